"""The rooms and which way imports point; the style that every room keeps."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mia_nb

PACKAGE = Path(__file__).parent.parent / "mia_nb"
# from left to right
ROOMS = [
    "escape",
    "checks",
    "arguments",
    "digests",
    "types",
    "parameters",
    *mia_nb.ROOMS[1:],
    "cli",
]
LAPTOP = ["accounting", *ROOMS[ROOMS.index("examples") :]]
HEAVY = {"torch", "sklearn", "scipy.stats"}  # seconds of start-up that few functions need
INSIDE = {
    "_glossary": "plots",
    "_torchvision": "data",
    "_files": "checks",
    "_memory": "checks",
    "_arrays": "checks",
    "_yaml": "checks",
    "_code_origin": "digests",
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


def is_short(node: ast.FunctionDef) -> bool:
    """Whether a function's body can be read as quickly as a docstring."""
    return sum(isinstance(part, ast.stmt) for part in ast.walk(node)) <= 5


def test_every_file_belongs_to_a_room():
    assert {room([p.relative_to(PACKAGE).parts[0].removesuffix(".py")]) for p in FILES} <= {
        *ROOMS,
        "__init__",
    }


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_public_functions_say_what_they_do(path):
    tree = ast.parse(path.read_text())
    for parent in (tree, *(n for n in tree.body if isinstance(n, ast.ClassDef))):
        if getattr(parent, "name", "").startswith("_"):
            continue
        for node in (n for n in parent.body if isinstance(n, ast.FunctionDef)):
            documented = ast.get_docstring(node) or is_short(node)
            assert node.name.startswith("_") or documented, f"{node.name} has no docstring"
