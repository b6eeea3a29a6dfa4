"""Text nested to the end of the stack, read while garbage waits whose finalizers need some stack."""

from __future__ import annotations

import gc
import sys

import pytest

from mia_nb import _yaml, parameters, store
from mia_nb._files import parse_json
from mia_nb.digests import digest
from mia_nb.report import parts
from mia_nb.store.manifest import listed
from mia_nb.workshop import cube

DEEP = "[" * 100_000


class Garbage:
    """Refers to itself, so that the collector alone ends it, by twenty calls; leaves another."""

    wanted = False

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        if Garbage.wanted:
            Garbage()
        down(20)


def down(calls: int) -> None:
    if calls:
        down(calls - 1)


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
    "cell": (
        lambda path: parameters.parse("x = " + "[" * 19_000, path),
        "cannot be read|is not Python",
    ),
    "yaml": (lambda path: _yaml.read_yaml("[" * 9000, "x"), "nested too deep"),
    "digest": (lambda path: digest(nested_list()), "nested too deeply"),
    "report": (lambda path: parts._cells(path, DEEP.encode()), "is not a notebook .*recursion"),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_nested_too_deep_is_refused_and_breaks_no_finalizer(kind, tmp_path, monkeypatch):
    read, refusal = READERS[kind]
    broken: list = []
    monkeypatch.setattr(sys, "unraisablehook", broken.append)
    monkeypatch.setattr(Garbage, "wanted", True)
    usual = gc.get_threshold()
    Garbage()
    gc.set_threshold(5, 10**6, 10**6)  # nearly every object that is made has some collected
    try:
        if refusal is None:
            read(tmp_path)
        else:
            with pytest.raises(ValueError, match=refusal):
                read(tmp_path)
    finally:
        gc.set_threshold(*usual)
    assert not broken
    assert gc.isenabled()
