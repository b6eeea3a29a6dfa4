"""The parameters that the cells of a notebook declare. papermill's `inspect_notebook` passes over
types such as `int | None`, mappings with `=` in them and the cell *Advanced*, so it is not used.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path
from typing import Any, NamedTuple

from mia_nb._files import parse_json


class Parameter(NamedTuple):
    """One line of a notebook's parameters cell, `name: int | None = 16  # help`. Without kinds any
    value is accepted.
    """

    name: str
    default: Any
    kinds: tuple[str, ...]
    help: str


def read_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters of a notebook by name, from its only cell tagged `parameters` and the folded
    cell with id `advanced`; {} if no cell is tagged.
    """
    try:
        tagged = []
        advanced = []
        for cell in parse_json(path.read_text(encoding="utf-8"))["cells"]:
            if "parameters" in cell.get("metadata", {}).get("tags", []):
                tagged.append(cell)
            elif cell.get("id") == "advanced":
                advanced.append(cell)
        source = "\n".join("".join(cell["source"]) for cell in tagged + advanced)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error)[:120]}"
        raise ValueError(f"{path} is not a notebook ({reason})") from error
    if len(tagged) > 1:
        raise ValueError(f"{path} has {len(tagged)} cells tagged `parameters`; wanted one")
    return parse(source, path) if tagged else {}


def parse(source: str, path: Path) -> dict[str, Parameter]:
    """The parameters that the source of a cell declares; ValueError if it holds more than
    literals.
    """
    try:
        nodes = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"{path}: the parameters cell is not Python: {error}") from error
    comments = {}  # line: text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
    parameters = {}
    for node in nodes:
        try:
            name, default, kinds = _declared(node)
        except ValueError as error:
            line = (ast.get_source_segment(source, node) or "")[:120]
            raise ValueError(
                f"{path}: `{line}` in the parameters cell: wanted `name: type = literal  # help`"
            ) from error
        parameters[name] = Parameter(name, default, kinds, comments.get(node.end_lineno, ""))
    return parameters


def _declared(node: ast.stmt) -> tuple[str, Any, tuple[str, ...]]:
    """(name, default, kinds) of an assignment: `int | None` is ("int", "None"), and without an
    annotation the kind is that of the default; ValueError for another statement.
    """
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr()):
            kinds = tuple(ast.unparse(annotation).split(" | "))
            return name, ast.literal_eval(node.value), kinds
        case ast.Assign(targets=[ast.Name(id=name)]):
            default = ast.literal_eval(node.value)
            return name, default, () if default is None else (type(default).__name__,)
    raise ValueError("no assignment to one name")
