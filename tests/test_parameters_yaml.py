"""Values and presets are YAML 1.2: a number is the number that is written, or the value is refused."""

from __future__ import annotations

import math

import pytest

from mia_nb._yaml import read_yaml, read_yaml_file
from mia_nb.cli.notebooks import read_preset

READ = {
    "012": 12,
    "-007": -7,
    "0x1F": "0x1F",
    "+5": 5,
    "1:30": "1:30",
    "190:20:30": "190:20:30",
    "1_000": "1_000",
    "0b101": "0b101",
    "1e-3": 1e-3,
    "1E5": 1e5,
    "-.5": -0.5,
    "3.": 3.0,
    ".inf": math.inf,
    "yes": "yes",
    "off": "off",
    "y": "y",
    "True": True,
    "false": False,
    "null": None,
    "~": None,
    "": None,
    "2020-13-45": "2020-13-45",
    "2001-12-14t21:59:43.10-05:00": "2001-12-14t21:59:43.10-05:00",
    "=": "=",
    "!!str 5": "5",
    "!!int 5": 5,
    "{a: &x [1, 010], b: *x}": {"a": [1, 10], "b": [1, 10]},
    "{a: 1, <<: {a: 2, b: 3}}": {"a": 1, "b": 3},
}


@pytest.mark.parametrize("text", READ)
def test_a_value_is_what_is_written(text):
    value = read_yaml(text, "value")
    assert value == READ[text] and type(value) is type(READ[text])


REFUSED = {
    "{a: 3, a: 4}": "'a' is there twice",
    "a: 1\nb: 2\na: 3": "'a' is there twice",
    "[{x: 1, 'x': 2}]": "'x' is there twice",
    "{<<: {a: 1}, <<: {b: 1}}": "'<<' is there twice",
    "? [a]\n: b": "unhashable key",
    "!!bool x": "is not YAML",
    "!!int ''": "is not YAML",
    "!!int 1.5": "is not YAML",
    "!!float x": "is not YAML",
    "!!seq x": "expected a sequence",
    "!!map [1]": "is not YAML",
    "!!python/object/apply:os.getcwd []": "could not determine a constructor",
    "!own 3": "could not determine a constructor",
    "*nowhere": "undefined alias",
    "[": "is not YAML",
    "a: b: c": "is not YAML",
    "- 1\n\t- 2": "is not YAML",
    "--- 1\n--- 2": "is not YAML",
    "7" * 5000: "is not YAML",
    "[" * 20_000: "recursion",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:20])
def test_what_is_none_is_refused_in_one_line_that_says_where(text):
    with pytest.raises(ValueError, match=r"^epochs=") as refused:
        read_yaml(text, f"epochs={text}" if len(text) < 80 else "epochs=long")
    message = str(refused.value).removeprefix(f"epochs={text}")
    assert REFUSED[text] in message and len(message) < 500
    assert "\n" not in message


FILES = {
    "utf-16": ("- notebook: 01_train\n".encode("utf-16"), "is not UTF-8"),
    "latin-1": ("- notebook: 01_train # é\n".encode("latin-1"), "is not UTF-8"),
    "a name twice": (b"- {notebook: 01_train, notebook: 03_attack}\n", "'notebook' is there twice"),
    "no list": (b"notebook: 01_train\n", "wanted a list of steps"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_preset_that_is_none_is_refused_by_its_name(kind, tmp_path):
    content, reason = FILES[kind]
    path = tmp_path / "own.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"own\.yaml") as refused:
        read_preset(str(path), [tmp_path])
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_a_preset_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_bytes("- {notebook: 01_train, parameters: {seed: 010}}\n".encode("utf-8-sig"))
    assert read_yaml_file(path) == [{"notebook": "01_train", "parameters": {"seed": 10}}]
