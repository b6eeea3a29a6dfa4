"""Text nested to the end of the stack."""

from __future__ import annotations

import pytest

from mia_nb import parameters, store
from mia_nb._files import parse_json
from mia_nb.digests import digest
from mia_nb.report import parts
from mia_nb.store.manifest import listed
from mia_nb.workshop import cube

DEEP = "[" * 100_000


def nested_list() -> list:
    value: list = []
    for _ in range(100_000):
        value = [value]
    return value


def manifest_line(path):
    (path / "manifest.jsonl").write_text(DEEP + "\n")
    return listed(path / "manifest.jsonl")


def stored(path):
    folder = store.open_folder(path, "pool", "p", "ab" * 32, {})
    folder.write_bytes("info.json", DEEP.encode())
    return folder.read_json("info.json")


def notebook(path):
    (path / "a.ipynb").write_text(DEEP)
    return parameters.read_parameters(path / "a.ipynb")


def course(path):
    (path / cube.INDEX).write_text(DEEP)
    return cube.open_cube(path)


READERS = {  # what reads a text nested as deep: (how, what it refuses it by)
    "json": (lambda path: parse_json(DEEP), "nested too deep"),
    "manifest": (manifest_line, None),
    "store": (stored, "not what it should be"),
    "notebook": (notebook, "a.ipynb"),
    "course": (course, "damaged"),
    "digest": (lambda path: digest(nested_list()), "nested too deeply"),
    "report": (lambda path: parts._cells(path, DEEP.encode()), "is not a notebook .*recursion"),
}


@pytest.mark.parametrize("kind", READERS)
def test_what_is_nested_too_deep_is_refused(kind, tmp_path):
    read, refusal = READERS[kind]
    if refusal is None:
        read(tmp_path)
        return
    with pytest.raises(ValueError, match=refusal):
        read(tmp_path)
