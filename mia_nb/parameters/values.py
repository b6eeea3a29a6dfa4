"""Values for the parameters of a notebook, checked before anything runs."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from mia_nb._files import parse_json
from mia_nb._yaml import read_yaml
from mia_nb.checks import LARGE, hint, plain, shown
from mia_nb.parameters.cells import Parameter, parse
from mia_nb.parameters.records import RECORDS, record_of
from mia_nb.types.recipes import Record, Whole

KINDS = {  # the types that the words of an annotation stand for
    "int": Annotated[Whole, Field(gt=-LARGE, lt=LARGE)],
    "float": float,
    "bool": bool,
    "str": str,
    "None": None,
    "dict": dict,
    "list": list,
    "tuple": list,
}
INJECTED = "# Parameters"  # the first line of the cell that papermill adds


def refuse_values(path: Path, values: Mapping[str, Any]) -> None:
    """Run only those cells of a notebook that check its parameters, before a kernel starts.

    Parameters:
        path: the notebook; cells whose id begins with `checks` raise ValueError for bad values.
        values: of all its parameters, records as mappings.

    Raises ValueError, which begins with the notebook's name, if a cell does.
    """
    cells = parse_json(path.read_text(encoding="utf-8"))["cells"]
    checks = [cell["source"] for cell in cells if cell.get("id", "").startswith("checks")]
    records = {name: kind(**values[name]) for name, kind in RECORDS.items() if name in values}
    try:
        exec("\n".join(map("".join, checks)), {**values, **records})
    except ValueError as error:
        raise ValueError(f"{path.stem}: {error}") from error
    except Exception as error:  # a user's own notebook may raise anything
        reason = f"{type(error).__name__}: {str(error)[:160]}"
        raise ValueError(f"{path.stem}: its cells that check parameters fail ({reason})") from error


def fit(parameter: Parameter, value: Any) -> Any:
    """The value as one of the parameter's kinds, or ValueError; whole numbers become floats if need
    be.
    """
    try:
        value = plain(value)
    except ValueError as error:
        raise ValueError(f"{parameter.name}={shown(value)}: {error}") from None
    for kind in parameter.kinds or ("any",):
        wanted = KINDS.get(kind.partition("[")[0], Any)  # of list[int] only that it is a list
        with contextlib.suppress(ValidationError):
            adapter = TypeAdapter(wanted, config=ConfigDict(strict=True))
            return adapter.validate_python(value)
    kinds = " or ".join(parameter.kinds)
    if kinds.startswith("list") and isinstance(value, str | int | float):
        kinds += f"; write [{value}]"
    raise ValueError(f"{parameter.name}={shown(value)} is {_english(value)}, wanted {kinds}")


def complete(
    known: Mapping[str, Parameter], given: Iterable[tuple[str, Any]], who: str = "this notebook"
) -> dict[str, Any]:
    """A value for every parameter: the given one, also for a field of a record, else its default.

    known: parameters by name; given: (name, value) pairs, of which later ones override earlier
    ones; who: the notebook in messages. Records are returned as mappings of all their fields.
    Raises ValueError for unknown names ("did you mean"), for values that do not fit, and for a
    parameter of another kind that has the name of a record.
    """
    values = {name: parameter.default for name, parameter in known.items()}
    entries_of = {}
    for name, default in values.items():
        if name not in RECORDS:
            continue
        if not isinstance(default, dict | Record):
            raise ValueError(
                f"{name}={shown(default)} in the parameters cell of {who}: wanted a mapping, as"
                " this is the name of a record; call the parameter something else"
            )
        entries_of[name] = dict(default)
    for name, value in given:
        if name in entries_of:
            entries_of[name] |= fit(known[name], value)
        elif name in known:
            values[name] = fit(known[name], value)
        elif record := record_of(name, entries_of):
            entries_of[record][name] = value
        else:
            raise no_parameter(name, known, who)
    for record, entries in entries_of.items():
        values[record] = RECORDS[record](**entries).to_json()
    return values


def no_parameter(name: str, known: Iterable[str], who: str) -> ValueError:
    """The error for a name that is neither a parameter of a notebook nor a field of its records."""
    names = [*known]
    for record in known:
        if record in RECORDS:
            names += RECORDS[record].model_fields
    close = hint(name, names) or f"; there are: {', '.join(sorted(names)) or 'none'}"
    return ValueError(f"{who} has no parameter {name!r}{close}")


def read_text(known: Mapping[str, Parameter], name: str, text: str) -> Any:
    """Text of the command line as a value for a parameter or a field. It is read as YAML; where
    only text is wanted, what YAML would read as another type stays text, except null.
    """
    kinds = ()
    if name in known:
        kinds = known[name].kinds
    elif record := record_of(name, known):
        kinds = _type_of(RECORDS[record].model_fields[name].annotation).split(" | ")
    if text == "None" and "None" in kinds:
        return None
    value = read_yaml(text, f"{name}={text}")
    wants_text = "str" in kinds and set(kinds) <= {"str", "None"}
    if wants_text and not isinstance(value, str) and text != "null":
        return text
    return value


def changed(known: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that differ from the notebook's defaults; of a record only such entries."""
    defaults = complete(known, [])
    changes = {}
    for name, value in values.items():
        if name in RECORDS and value != defaults[name]:
            changes[name] = {
                field: entry for field, entry in value.items() if entry != defaults[name][field]
            }
        elif value != defaults[name]:
            changes[name] = value
    return changes


def described(known: Mapping[str, Parameter]) -> list[tuple[str, str, str, str]]:
    """(name, type, default, meaning) of every parameter, and after a record of its fields, with the
    notebook's defaults.
    """
    rows = []
    defaults = complete(known, [])
    for name, parameter in known.items():
        kinds = " | ".join(parameter.kinds) or "any"
        rows.append((name, kinds, repr(parameter.default), parameter.help))
        if name not in RECORDS:
            continue
        for field, about in RECORDS[name].model_fields.items():
            default = repr(defaults[name][field])
            rows.append((f"  {field}", _type_of(about.annotation), default, about.description))
    return rows


def _type_of(annotation: Any) -> str:
    """The type in words: int, list, str | None ...; a Literal is str, as the field's description
    lists its words.
    """
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(dict.fromkeys(map(_type_of, get_args(annotation))))
    kind = get_origin(annotation) or annotation
    words = {Annotated: "int", Literal: "str", type(None): "None"}
    return words.get(kind, kind.__name__)


def of_namespace(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """`complete` for a running notebook, from the names that its parameters cell annotated.

    A kernel keeps the source of every cell. The declaring cells tell the defaults before papermill
    set other values; the cell that papermill added tells the names of fields that it set.
    """
    declared, injected = _read_cells(namespace.get("In", []))
    known = {}
    for name, kind in namespace.get("__annotations__", {}).items():
        if name in namespace:
            kinds = tuple(getattr(kind, "__name__", str(kind)).split(" | "))
            known[name] = declared.get(name, Parameter(name, namespace[name], kinds, ""))
    given = []
    for name in dict.fromkeys([*known, *injected]):
        value = namespace[name]
        wants_text = name in known and "str" in known[name].kinds
        if name in RECORDS:
            value = dict(value)
        elif isinstance(value, str) and (value == "null" or not wants_text):
            value = read_text(known, name, value)
        given.append((name, value))
    return complete(known, given)


def _read_cells(sources: Iterable[str]) -> tuple[dict[str, Parameter], list[str]]:
    """(the parameters that these cells declare, the names that papermill set in its own cell)."""
    declared: dict[str, Parameter] = {}
    injected: list[str] = []
    for source in sources:
        if source.startswith(INJECTED):
            nodes = ast.parse(source).body
            injected = [node.targets[0].id for node in nodes if isinstance(node, ast.Assign)]
        elif re.match(r"\w+: [\w |]+ = ", source):
            declared |= parse(source, Path("this notebook"))
    return declared, injected


def _english(value: Any) -> str:
    names = {
        str: "text",
        bool: "true/false",
        int: "a whole number",
        float: "a number",
        list: "a list",
        dict: "a mapping",
    }
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
