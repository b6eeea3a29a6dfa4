"""The parameters of notebooks: what a cell declares, the records that group them, and values for
them, checked before anything runs.

A notebook has few parameters of its own. What many notebooks share lies in records, mappings with
known fields: `recipe` (how a pool is trained), `source` (the images), `query`, `analysis`, `run`.
A value is given for a parameter, for entries of a record, or for a field of a record by its bare
name: `epochs=5` is `recipe={epochs: 5}`, and entries that are not named stay as they are.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from mia_nb._files import parse_json, without_collection
from mia_nb._yaml import read_yaml
from mia_nb.checks import LARGE, hint, plain, shown
from mia_nb.types.recipes import Query, Recipe, Record, Whole

KINDS = {  # what an annotation's words take
    "int": Annotated[Whole, Field(gt=-LARGE, lt=LARGE)],
    "float": float,
    "bool": bool,
    "str": str,
    "None": None,
    "dict": dict,
    "list": list,
    "tuple": list,
}
INJECTED = "# Parameters"  # how the cell begins that papermill adds
LONGEST_CELL = 20_000  # characters of a parameters cell
# what a file that is no notebook may raise where it is read
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
    """One line of a notebook's parameters cell: `name: int | None = 16  # help`; no kinds =
    anything goes.
    """

    name: str
    default: Any
    kinds: tuple[str, ...]
    help: str


class Source(Record):
    """Which images."""

    dataset: str = Field(
        "digits",
        min_length=1,
        description=(
            "digits, cifar10, cifar100, mnist, fashion_mnist, tiny_imagenet, a folder of class"
            " folders, or a .npz file"
        ),
    )
    data_root: str = Field("data", description="the folder where data sets are kept")
    limit: Whole | None = Field(
        None, ge=1, le=10**9, description="a number of images from 1 up, or None for all"
    )
    size: Whole | None = Field(
        None,
        ge=1,
        description="the side in pixels to which a folder's images are cut and scaled, or None",
    )
    part: Literal["all", "train", "test"] = Field(
        "all", description="all, or the official part alone: train or test"
    )
    download: bool = Field(False, description="true or false: may the data set be downloaded?")


class Run(Record):
    """How a notebook is executed; nothing of it changes what comes out."""

    device: str | None = Field(
        None, min_length=1, description="cpu or cuda, or None for cuda where there is one"
    )
    strategy: str = Field(
        "auto",
        min_length=1,
        description="auto, plain or stacked, or either of the last two with +compiled",
    )
    workers: Whole | None = Field(
        None,
        ge=1,
        description="a number of workers from 1 up, or None for one a core or GPU",
    )
    backend: Literal["loky", "dask", "ray"] = Field(
        "loky", description="where workers run: loky (this machine), dask or ray"
    )
    force: bool = Field(False, description="true or false: compute again what is stored?")


class Analysis(Record):
    """How scores are turned into results, and how these are shown."""

    n_resamples: Whole = Field(400, ge=0, description="a number of resamples behind the intervals")
    control_resamples: Whole = Field(
        200, ge=0, description="a number of redrawn memberships behind the negative control"
    )
    delta: float = Field(
        1e-5, ge=0, lt=1, description="a fraction in [0, 1): the delta of epsilons"
    )
    fpr: float = Field(
        0.1, ge=0, le=1, description="a fraction in [0, 1]: the false positive rate compared at"
    )
    shown: Whole = Field(10, ge=1, description="a number of rows or images shown, from 1 up")
    mode: Literal["auto", "batch", "live"] = Field(
        "auto", description="auto, batch (plain text) or live (progress bars, explorers)"
    )
    stands_for: str | list[str] = Field(
        "",
        description="the block of the papers' tables that ours is laid beside, such as cifar10",
    )
    objective: str = Field(
        "auc", min_length=1, description="auc, advantage or tpr@0.01: what options are chosen for"
    )


class Study(Record):
    """The published accounting of neural SDEs that ours is laid beside."""

    sigma: float = Field(2.0, gt=0, description="a finite number above 0: the noise")
    samples: Whole = Field(25_000, ge=1, description="a number of records, from 1 up")
    batches: list[Whole] = Field([512, 256, 128], description="a list of batch sizes")
    marks: list[Whole] = Field(
        [1, 10, 30, 100, 200, 300], description="a list of epochs at which it is evaluated"
    )
    deltas: list[float] = Field(
        [1e-2, 1e-3, 1e-4, 1e-5, 1e-6], description="a list of deltas of the sweep"
    )


RECORDS: dict[str, type[Record]] = {  # a bare name goes to the first that has it
    "recipe": Recipe,
    "source": Source,
    "query": Query,
    "run": Run,
    "analysis": Analysis,
    "study": Study,
}


def refuse_values(path: Path, values: Mapping[str, Any]) -> None:
    """Run the cells of a notebook that check its parameters alone, before there is a kernel.

    Parameters:
        path: the notebook; cells whose id begins with `checks` refuse by a ValueError.
        values: of all its parameters, records as mappings.

    Raises ValueError, which begins with the notebook's name, for what they refuse.
    """
    cells = parse_json(path.read_text(encoding="utf-8"))["cells"]
    checks = [cell["source"] for cell in cells if cell.get("id", "").startswith("checks")]
    records = {name: kind(**values[name]) for name, kind in RECORDS.items() if name in values}
    try:
        exec("\n".join(map("".join, checks)), {**values, **records})
    except ValueError as error:
        raise ValueError(f"{path.stem}: {error}") from error
    except Exception as error:  # of a notebook of somebody's own, anything
        reason = f"{type(error).__name__}: {str(error)[:160]}"
        raise ValueError(f"{path.stem}: its cells that check parameters fail ({reason})") from error


def read_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters of a notebook by name, from its one cell tagged `parameters` and the folded
    one whose id is `advanced`; {} where none is tagged.
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
    """The parameters that the source of a cell declares; ValueError unless it is literals alone."""
    if len(source) > LONGEST_CELL:
        raise ValueError(
            f"{path}: the parameters cell has {len(source):,} characters; wanted fewer"
        )
    try:
        with without_collection():
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
            with without_collection():
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
    """The one name that a statement sets; ValueError for other statements."""
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
    """`int | None` -> ("int", "None"); without an annotation the default's own type, and () when
    that is None.
    """
    if annotation is None:
        return () if default is None else (type(default).__name__,)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        text = annotation.value  # it is written in quotation marks
    else:
        text = ast.unparse(annotation)
    text = re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)
    kinds = tuple(kind.strip() for kind in text.split("|"))
    if default is None and "None" not in kinds:
        return (*kinds, "None")
    return kinds


def fit(parameter: Parameter, value: Any) -> Any:
    """The value as one of the parameter's kinds (whole numbers become floats where those are
    wanted), or ValueError.
    """
    try:
        value = plain(value)
    except ValueError as error:
        raise ValueError(f"{parameter.name}={shown(value)}: {error}") from None
    for kind in parameter.kinds or ("Any",):
        try:
            return _as(kind, value)
        except ValidationError:
            continue
    wanted = " or ".join(parameter.kinds)
    if wanted.startswith("list") and isinstance(value, str | int | float):
        wanted += f"; write [{value}]"
    raise ValueError(f"{parameter.name}={shown(value)} is {_english(value)}, wanted {wanted}")


def complete(
    known: Mapping[str, Parameter], given: Iterable[tuple[str, Any]], who: str = "this notebook"
) -> dict[str, Any]:
    """A value for every parameter: what is given for it or for a field of its record, else its own.

    known: parameters by name; given: (name, value), later ones over earlier ones; who: the notebook
    in messages. Records come back as mappings of all their fields. Raises ValueError for names that
    are nobody's ("did you mean") and for values that do not fit.
    """
    values = {name: parameter.default for name, parameter in known.items()}
    entries = {name: dict(values[name]) for name in known if name in RECORDS}
    for name, value in given:
        if name in known and name not in entries:
            values[name] = fit(known[name], value)
        elif name in entries:
            entries[name] |= fit(known[name], value)
        elif record := record_of(name, entries):
            entries[record][name] = value
        else:
            raise no_parameter(name, known, who)
    return values | {name: RECORDS[name](**some).to_json() for name, some in entries.items()}


def no_parameter(name: str, known: Iterable[str], who: str) -> ValueError:
    """The error for a name that is neither a parameter of a notebook nor a field of its records."""
    names = [*known]
    for record in known:
        if record in RECORDS:
            names += RECORDS[record].model_fields
    close = hint(name, names) or f"; there are: {', '.join(sorted(names)) or 'none'}"
    return ValueError(f"{who} has no parameter {name!r}{close}")


def record_of(name: str, records: Iterable[str]) -> str | None:
    """The first of these records that has a field of this name, None where none has."""
    for record, kind in RECORDS.items():
        if record in records and name in kind.model_fields:
            return record
    return None


def read_text(known: Mapping[str, Parameter], name: str, text: str) -> Any:
    """The command line's text as a value for a parameter or a field, read as YAML; where text is
    wanted, text that YAML would read otherwise stays.
    """
    record = record_of(name, known)
    if name in known or record is None:
        kinds = known[name].kinds if name in known else ()
    else:
        annotation = RECORDS[record].model_fields[name].annotation
        names = {str: "str", type(None): "None"}
        kinds = tuple(names.get(kind, "other") for kind in get_args(annotation) or (annotation,))
    if text == "None" and "None" in kinds:
        return None
    value = read_yaml(text, f"{name}={text}")
    only_text = set(kinds) in ({"str"}, {"str", "None"})
    stays = only_text and not isinstance(value, str) and text not in ("null", "~")
    return text if stays else value


def changed(known: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """What of these values is not the notebook's own; of a record the entries alone."""
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
    """(name, type, default, meaning) of every parameter, and below a record of its fields, with the
    notebook's own defaults.
    """
    rows = []
    defaults = complete(known, [])
    for name, (_, default, kinds, text) in known.items():
        if not text and (record := record_of(name, RECORDS)):
            text = RECORDS[record].model_fields[name].description
        rows.append((name, " | ".join(kinds) or "any", repr(default), text))
        fields = RECORDS[name].model_fields if name in RECORDS else {}
        for field, about in fields.items():
            default = repr(defaults[name][field])
            rows.append((f"  {field}", _type_of(about.annotation), default, about.description))
    return rows


def _type_of(annotation: Any) -> str:
    """int, list, str | None ...; the words of a Literal are in the field's description."""
    union = get_origin(annotation) in (Union, UnionType)
    kinds = [get_origin(one) or one for one in (get_args(annotation) if union else [annotation])]
    named = {Annotated: "int", Literal: "str", type(None): "None"}
    return " | ".join(dict.fromkeys(named.get(kind, kind.__name__) for kind in kinds))


def of_namespace(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """`complete` for a running notebook, from the names that its parameters cell annotated.

    A kernel keeps the source of every cell: those that declare say what the defaults were
    before papermill set other values, and the cell that papermill added what was given for bare
    names of fields.
    """
    declared: dict[str, Parameter] = {}
    injected: list[str] = []
    for source in namespace.get("In", []):
        if source.startswith(INJECTED):
            nodes = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
            injected = [node.targets[0].id for node in nodes]
        elif re.match(r"\w+: [\w |]+ = ", source):
            declared |= parse(source, Path("this notebook"))
    known = {}
    given = []
    for name, kind in namespace.get("__annotations__", {}).items():
        if name in namespace:
            kinds = tuple(getattr(kind, "__name__", str(kind)).split(" | "))
            known[name] = declared.get(name, Parameter(name, namespace[name], kinds, ""))
    for name in dict.fromkeys([*known, *injected]):
        value = dict(namespace[name]) if name in RECORDS else namespace[name]
        wants_text = name in known and "str" in known[name].kinds
        if isinstance(value, str) and (value == "null" or not wants_text):
            value = read_text(known, name, value)
        given.append((name, value))
    return complete(known, given)


def _as(kind: str, value: Any) -> Any:
    """Convert or raise ValidationError; `list[T]` item by item; a kind not known here is not
    checked.
    """
    base, _, items = kind.removesuffix("]").partition("[")
    wanted = KINDS.get(base, Any)
    if wanted is list and items:
        wanted = list[KINDS.get(items.partition(",")[0], Any)]
    return TypeAdapter(wanted, config=ConfigDict(strict=True)).validate_python(value)


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
