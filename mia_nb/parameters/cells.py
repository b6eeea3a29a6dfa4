"""The parameters that the cells of a notebook declare."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import Any, NamedTuple

from mia_nb._files import parse_json

LONGEST_CELL = 20_000  # characters of a parameters cell
# exceptions that reading a file may raise if it is no notebook
FOREIGN = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    RecursionError,
    MemoryError,
)


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
        cells = parse_json(path.read_text(encoding="utf-8"))["cells"]
        tagged = [
            cell for cell in cells if "parameters" in cell.get("metadata", {}).get("tags", [])
        ]
        advanced = [cell for cell in cells if cell.get("id") == "advanced"]
        source = "\n".join("".join(cell["source"]) for cell in tagged + advanced)
    except FOREIGN as error:
        reason = f"{type(error).__name__}: {str(error)[:120]}"
        raise ValueError(f"{path} is not a notebook ({reason})") from error
    if len(tagged) > 1:
        raise ValueError(f"{path} has {len(tagged)} cells tagged `parameters`; wanted one")
    return parse(source, path) if tagged else {}


def parse(source: str, path: Path) -> dict[str, Parameter]:
    """The parameters that the source of a cell declares; ValueError if it holds more than
    literals.
    """
    if len(source) > LONGEST_CELL:
        raise ValueError(
            f"{path}: the parameters cell has {len(source):,} characters; wanted fewer"
        )
    try:
        nodes = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"{path}: the parameters cell is not Python: {error}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # NUL; nested absurdly
        reason = str(error)[:120] or "nested too deep"
        raise ValueError(f"{path}: the parameters cell cannot be read ({reason})") from None
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    parameters = {}
    for node in nodes:
        try:
            name = _assigned_name(node)
            default = ast.literal_eval(node.value)
        except (TypeError, ValueError, RecursionError, MemoryError) as error:
            line = (ast.get_source_segment(source, node) or "")[:120]
            raise ValueError(
                f"{path}: `{line}` in the parameters cell: wanted `name: type = literal  # help`"
            ) from error
        kinds = _kinds(getattr(node, "annotation", None), default)
        parameters[name] = Parameter(name, default, kinds, comments.get(node.end_lineno, ""))
    return parameters


def _assigned_name(node: ast.stmt) -> str:
    """The name that a statement sets; ValueError unless it sets exactly one."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    else:
        raise ValueError("no assignment to one name")
    if not isinstance(target, ast.Name):
        raise ValueError("no assignment to one name")
    return target.id


def _kinds(annotation: ast.expr | None, default: Any) -> tuple[str, ...]:
    """`int | None` -> ("int", "None"); without an annotation the type of the default, and () if the
    default is None.
    """
    if annotation is None:
        return () if default is None else (type(default).__name__,)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        text = annotation.value  # the annotation is written in quotation marks
    else:
        text = ast.unparse(annotation)
    text = re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)
    kinds = tuple(kind.strip() for kind in text.split("|"))
    if default is None and "None" not in kinds:
        return (*kinds, "None")
    return kinds
