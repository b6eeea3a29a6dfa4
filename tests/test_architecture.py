"""The rooms and which way imports point; the style that every room keeps."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mia_nb

PACKAGE = Path(__file__).parent.parent / "mia_nb"
# from left to right
ROOMS = ["checks", "types", "parameters", *mia_nb.ROOMS[1:], "cli"]
LAPTOP = ROOMS[ROOMS.index("examples") :]
HEAVY = {"torch", "sklearn", "scipy.stats"}  # seconds of start-up that few functions need
INSIDE = {
    "_glossary": "plots",
    "_torchvision": "data",
    "_image_files": "data",
    "_files": "store",
    "_forking": "store",
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room(parts):
    return INSIDE.get(parts[0], parts[0])


def imported(path):
    """Rooms of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        assert not getattr(node, "level", 0), "relative imports hide which room they reach"
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mia_nb":
            inside = node.module.split(".")[1:]
            yield from (
                [room(inside)]
                if inside
                else [room([a.name]) for a in node.names if not a.name.startswith("__")]
            )
        elif isinstance(node, ast.Import):
            yield from (
                room(a.name.split(".")[1:]) for a in node.names if a.name.startswith("mia_nb.")
            )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_rooms_to_its_left(path):
    here = room([path.relative_to(PACKAGE).parts[0].removesuffix(".py")])
    if here == "__init__":
        assert not list(imported(path))
        return
    for other in imported(path):
        assert ROOMS.index(other) <= ROOMS.index(here), f"{here} imports {other}"


@pytest.mark.parametrize("name", LAPTOP)
def test_torch_scikit_learn_and_scipy_stats_wait_until_a_laptop_needs_them(name):
    if not (PACKAGE / name).exists() and not (PACKAGE / f"{name}.py").exists():
        pytest.skip(f"no room {name} yet")
    code = f"import sys, mia_nb.{name}; print(*{HEAVY} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_only_one_module_imports_torchvision():
    users = [
        p.name for p in FILES if "torchvision" in {a.split(".")[0] for a in top_level_imports(p)}
    ]
    assert users in ([], ["_torchvision.py"])


def top_level_imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def statements(node):
    """Statements below a node, docstrings aside: what there is to read, however it is laid out."""
    found = sum(isinstance(one, ast.stmt) for one in ast.walk(node)) - isinstance(node, ast.stmt)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    each = [one for one in ast.walk(node) if isinstance(one, documented)]
    return found - sum(ast.get_docstring(one, clean=False) is not None for one in each)


# Statements that each room may have. They only ever fall.
BUDGET = {
    "_files": 84,
    "_forking": 162,
    "_glossary": 25,
    "_image_files": 203,
    "_torchvision": 16,
    "accounting": 245,
    "attacks": 851,
    "auditing": 1556,
    "checks": 152,
    "cli": 869,
    "data": 266,
    "examples": 101,
    "defenses": 255,
    "metrics": 1138,
    "models": 1243,
    "plots": 1392,
    "parameters": 185,
    "querying": 278,
    "report": 160,
    "store": 306,
    "studies": 1032,
    "training": 2052,
    "types": 217,
    "widgets": 1980,
    "workshop": 747,
    "__init__": 14,
}


@pytest.mark.parametrize("name", BUDGET)
def test_a_room_keeps_within_its_budget_of_statements(name):
    files = [p for p in FILES if p.relative_to(PACKAGE).parts[0].removesuffix(".py") == name]
    count = sum(statements(ast.parse(path.read_text())) for path in files)
    assert count <= BUDGET[name], f"{name} has {count} statements, {BUDGET[name]} allowed"


def test_every_file_belongs_to_a_room_with_a_budget():
    rooms = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in FILES}
    assert rooms <= set(BUDGET)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_are_short_and_public_functions_say_what_they_do(path):
    tree = ast.parse(path.read_text())
    assert statements(tree) <= 330
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert statements(node) <= 40, f"{node.name} is too long"
    for parent in (tree, *(n for n in tree.body if isinstance(n, ast.ClassDef))):
        if getattr(parent, "name", "").startswith("_"):
            continue
        for node in (n for n in parent.body if isinstance(n, ast.FunctionDef)):
            documented = ast.get_docstring(node) or statements(node) <= 4
            assert node.name.startswith("_") or documented, f"{node.name} has no docstring"
