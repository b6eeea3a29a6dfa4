"""Files and surroundings that nobody planned for end in one line, or work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mia_nb import cli, data
from mia_nb.parameters import complete, read_parameters, refuse_values


def notebook(path: Path, cells: list[dict]) -> Path:
    text = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(text))
    return path


def tagged(source: object) -> list[dict]:
    return [{"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source}]


CONTENTS = {
    "deep JSON": "[" * 200_000,
    "no JSON": "not a notebook",
    "a list": "[1, 2]",
    "a number": "3",
    "no cells": '{"metadata": {}}',
    "cells that are none": '{"cells": [1]}',
    "a cell without source": json.dumps({"cells": [{"metadata": {"tags": ["parameters"]}}]}),
    "metadata that is a list": '{"cells": [{"metadata": [], "source": ""}]}',
    "source that is a number": json.dumps({"cells": tagged(3)}),
    "no Python": json.dumps({"cells": tagged("x: int = = 1")}),
    "a call": json.dumps({"cells": tagged("x: int = open('y')")}),
    "two names": json.dumps({"cells": tagged("x = y = 3")}),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_file_that_is_no_notebook_is_refused_in_one_line(kind, tmp_path):
    path = tmp_path / "own.ipynb"
    path.write_text(CONTENTS[kind])
    with pytest.raises(ValueError, match=r"own\.ipynb") as refused:
        read_parameters(path)
    message = str(refused.value)
    assert len(message.replace(str(tmp_path), "")) < 400, message


@pytest.mark.parametrize("source", ["run: int = 3", "query = 'select'", "source: list = []"])
def test_a_parameter_of_another_kind_with_the_name_of_a_record_is_refused(source, tmp_path):
    known = read_parameters(notebook(tmp_path / "own.ipynb", tagged(source)))
    with pytest.raises(ValueError, match="in the parameters cell of own: wanted a mapping"):
        complete(known, [], "own")


@pytest.mark.parametrize(
    "check", ["{}['x']", "1 / 0", "x = (", "raise SystemError('bad')", "import nowhere"]
)
def test_a_check_of_somebodys_own_that_fails_is_said_in_one_line(check, tmp_path):
    path = notebook(tmp_path / "own.ipynb", [{"id": "checks", "source": check}])
    with pytest.raises(ValueError, match="own: its cells that check parameters fail"):
        refuse_values(path, {})


def test_a_check_that_refuses_a_value_is_said_as_it_stands(tmp_path):
    check = "if epochs < 1:\n    raise ValueError('epochs: wanted 1 or more')"
    path = notebook(tmp_path / "own.ipynb", [{"id": "checks", "source": check}])
    with pytest.raises(ValueError, match=r"^own: epochs: wanted 1 or more$"):
        refuse_values(path, {"epochs": 0})


@pytest.mark.parametrize("draw", [data.paired_membership, data.bernoulli_membership])
@pytest.mark.parametrize("size", [(2, 10**12), (4, 10**10), (100_000, 100_000)])
def test_masks_that_no_machine_holds_are_refused(draw, size):
    with pytest.raises(ValueError, match="masks of"):
        draw(*size)


@pytest.mark.parametrize("kind", ["missing", "none"])
def test_without_a_home_a_temporary_folder_is_one(kind, tmp_path):
    code = (
        "import os; from mia_nb import cli; cli._give_home(); home = os.path.expanduser('~');"
        " print(os.path.isdir(home) and os.access(home, os.W_OK), home)"
    )
    environment = {**os.environ, "HOME": str(tmp_path / "nowhere") if kind == "missing" else "/dev"}
    environment |= {"HOME": "/proc/nowhere"} if kind == "none" else {}
    asked = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    usable, _, home = asked.stdout.strip().partition(" ")
    assert usable == "True" and not Path(home).exists()  # and it is gone afterwards


def test_a_home_that_is_there_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    cli._give_home()
    assert os.environ["HOME"] == str(tmp_path)
