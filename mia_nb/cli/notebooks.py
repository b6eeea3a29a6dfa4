"""Notebooks and presets: found by short name; parameters read from the tagged cell; values checked before anything runs."""

from __future__ import annotations

import ast
import difflib
import io
import itertools
import json
import os
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mia_nb.checks import LARGE, plain, positive, shown
from mia_nb.types import Recipe

PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (
    "results",
    "data_root",
)  # parameters that say where things lie, not what they are: absolute, and not part of a run's key
KEYS = {"notebook", "parameters", "share"}  # of a preset's step
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # YAML 1.1 takes 1e-3 for text


class Parameter(NamedTuple):
    """One line of a notebook's parameters cell: `name: int | None = 16  # help`; no kinds = anything goes."""

    name: str
    default: Any
    kinds: tuple[str, ...]
    help: str


class Step(NamedTuple):
    """One notebook to run, a value for each of its parameters, and how long it takes beside the others (for progress)."""

    notebook: Path
    parameters: dict[str, Any]
    share: float = 1.0


def folders(given: str | None = None) -> list[Path]:
    """Where notebooks are looked for: the given folder alone, or ./notebooks, the checkout's, the installed package's."""
    if given:
        if not Path(given).is_dir():
            raise ValueError(f"--notebooks {given} is no folder")
        return [Path(given)]
    places = [Path("notebooks"), PACKAGE.parent / "notebooks", PACKAGE / "notebooks"]
    return [place for place in places if place.is_dir()]


def find_notebook(name: str, where: list[Path]) -> Path:
    """`01_train`, `train`, `workshop/04_budget_race` or a path -> the notebook's path; those at the top come first."""
    known = _notebooks(where)
    if name in known:
        return known[name]
    if name.endswith(".ipynb") or os.sep in name:
        if not Path(name).is_file():
            raise ValueError(f"no notebook at {name}")
        return Path(name)
    close = difflib.get_close_matches(name, [*known, *_presets(where)], n=1)
    listed = dict.fromkeys(path.stem for path in known.values())
    raise ValueError(f"no notebook named {name!r}{_hint(name, close or listed)}")


def _notebooks(where: list[Path]) -> dict[str, Path]:
    """Every notebook by its names: with and without its number, those of the workshop also with their folder."""
    known: dict[str, Path] = {}
    for folder in ("", "workshop"):
        for path in (path for place in where for path in sorted((place / folder).glob("*.ipynb"))):
            for name in (path.stem, re.sub(r"^\d+_", "", path.stem)):
                known.setdefault(name, path)
                if folder:
                    known.setdefault(f"{folder}/{name}", path)
    return known


def resolve(name: str, preset: str | None, where: list[Path]) -> tuple[str, str | None]:
    """(target, preset) of `mia-nb run NAME`: a NAME that is no notebook but a preset means all of that preset."""
    if (
        preset is None
        and name != "all"
        and name not in _notebooks(where)
        and name in _presets(where)
    ):
        return "all", name
    return name, preset


def _presets(where: list[Path]) -> dict[str, Path]:
    return {
        path.stem: path
        for place in reversed(where)
        for path in sorted(place.glob("presets/*.yaml"))
    }


def _find_preset(name: str, where: list[Path]) -> Path:
    known = _presets(where)
    path = Path(name) if name.endswith((".yaml", ".yml")) else known.get(name)
    if path is None or not path.is_file():
        raise ValueError(f"no preset named {name!r}{_hint(name, known)}")
    return path


def about(name: str, where: list[Path]) -> str:
    """What a preset says of itself: the prose of the comment on its top."""
    lines = _find_preset(name, where).read_text(encoding="utf-8").splitlines()
    prose = itertools.takewhile(
        lambda line: line.startswith("# ") and not line.startswith("#  "), lines
    )
    return " ".join(line.removeprefix("# ") for line in prose)


def read_preset(name: str, where: list[Path]) -> list[dict]:
    """The steps of notebooks/presets/NAME.yaml (or of a .yaml file), as written."""
    path = _find_preset(name, where)
    steps = read_yaml(path.read_text(encoding="utf-8"), str(path))
    for step in steps if isinstance(steps, list) else [None]:
        if (
            not isinstance(step, dict)
            or set(step) - KEYS
            or not isinstance(step.get("notebook"), str)
        ):
            raise ValueError(
                f"{path}: wanted a list of steps `- {{notebook: 01_train, parameters: {{epochs: 20}}}}`, found {shown(step)}"
            )
        if not isinstance(step.get("parameters") or {}, dict):
            raise ValueError(
                f"{path}: the parameters of {step['notebook']} must be `name: value` pairs"
            )
        positive(f"{path}: share of {step['notebook']}", step.get("share", 1))
    return steps


def read_yaml(text: str, where: str) -> Any:
    """What a text says as YAML; ValueError, which begins with `where` it stands, for what is none."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(
            f"{where} is not YAML ({' '.join(str(error).split())}); quote it"
        ) from error
    except RecursionError:
        raise ValueError(f"{where[:80]} is nested too deep") from None


def read_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters of a notebook by name, from its one cell tagged `parameters`; {} where there is no such cell."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        tagged = [
            cell for cell in cells if "parameters" in cell.get("metadata", {}).get("tags", [])
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a notebook: {error}") from error
    if len(tagged) > 1:
        raise ValueError(f"{path} has {len(tagged)} cells tagged `parameters`; wanted one")
    return _parse_parameters("".join(tagged[0]["source"]), path) if tagged else {}


def _parse_parameters(source: str, path: Path) -> dict[str, Parameter]:
    try:
        nodes = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"{path}: the parameters cell is not Python: {error}") from error
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    found = {}
    for node in nodes:
        try:
            (target,) = node.targets if isinstance(node, ast.Assign) else [node.target]
            target = None if isinstance(node, ast.AugAssign) else target
            name, default = target.id, ast.literal_eval(node.value)
        except (AttributeError, ValueError) as error:
            line = ast.unparse(node)
            raise ValueError(
                f"{path}: `{line}` in the parameters cell: wanted `name: type = literal  # help`"
            ) from error
        kinds = _kinds(getattr(node, "annotation", None), default)
        found[name] = Parameter(name, default, kinds, comments.get(node.end_lineno, ""))
    return found


def _kinds(annotation: ast.expr | None, default: Any) -> tuple[str, ...]:
    """`int | None` -> ("int", "None"); without an annotation the default's own type, and () when that is None."""
    if annotation is None:
        return () if default is None else (type(default).__name__,)
    text = (
        annotation.value
        if isinstance(annotation, ast.Constant) and annotation.value
        else ast.unparse(annotation)
    )
    text = re.sub(r"Optional\[(.*)\]$", r"\1 | None", text)
    kinds = tuple(kind.strip() for kind in text.split("|"))
    return kinds if default is not None or "None" in kinds else (*kinds, "None")


def meaning(parameter: Parameter) -> str:
    """What a parameter is: its own comment, or what a recipe's field of that name is."""
    field = Recipe.model_fields.get(parameter.name)
    return parameter.help or (field.description if field else "")


def fit(parameter: Parameter, value: Any) -> Any:
    """The value as one of the parameter's kinds (whole numbers become floats where those are wanted), or ValueError."""
    try:
        value = plain(value)
    except ValueError as error:
        raise ValueError(f"{parameter.name}={shown(value)}: {error}") from None
    for kind in parameter.kinds or ("Any",):
        try:
            return _as(kind, value)
        except TypeError:
            continue
    wanted = " or ".join(parameter.kinds)
    hint = (
        f"; write [{value}]"
        if wanted.startswith("list") and isinstance(value, str | int | float)
        else ""
    )
    raise ValueError(f"{parameter.name}={shown(value)} is {_english(value)}, wanted {wanted}{hint}")


def fit_text(parameter: Parameter, text: str) -> Any:
    """As `fit`, from the command line's text read as YAML; where text is wanted, text that YAML would read otherwise stays."""
    value = float(text) if EXPONENT.fullmatch(text) else read_yaml(text, f"{parameter.name}={text}")
    if text == "None" and "None" in parameter.kinds:
        return None
    only_text = parameter.kinds in (("str",), ("str", "None"))
    if only_text and not isinstance(value, str) and text not in ("null", "~"):
        value = text
    return fit(parameter, value)


def _as(kind: str, value: Any) -> Any:
    """Convert or raise TypeError; `list[T]` item by item; a kind not known here is not checked."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "float" and number:
        return float(value)
    if kind == "int" and number and value == value // 1 and abs(value) < LARGE:
        return int(value)
    base, _, items = kind.rstrip("]").partition("[")
    if base in ("list", "tuple") and isinstance(value, list):
        return [_as(items.split(",")[0] or "Any", item) for item in value]
    checked = {
        "int": int,
        "float": float,
        "bool": bool,
        "str": str,
        "None": type(None),
        "dict": dict,
        "list": list,
        "tuple": list,
    }
    if type(value) is not checked.get(base, type(value)):
        raise TypeError(kind)
    return value


def plan(
    target: str, preset: str | None, given: Iterable[tuple[str, str]], where: list[Path]
) -> list[Step]:
    """The steps to run: those of the preset (of one notebook, or `all`), or one notebook with its defaults; `given` overrides.

    Raises ValueError for anything unknown ("did you mean") or of the wrong type, before anything runs.
    """
    if target == "all":
        if preset is None:
            known = sorted(_presets(where))
            raise ValueError(
                f"`run all` needs --preset NAME; there are: {', '.join(known) or 'none'}"
            )
        entries = [
            (find_notebook(step["notebook"], where), step) for step in read_preset(preset, where)
        ]
    else:
        path = find_notebook(target, where)
        steps = [{"notebook": path.stem}] if preset is None else read_preset(preset, where)
        entries = [
            (path, step)
            for step in steps
            if preset is None or find_notebook(step["notebook"], where).stem == path.stem
        ]
        if not entries:
            raise ValueError(f"preset {preset} has no step for {path.stem}")
    declared = [read_parameters(path) for path, _ in entries]
    if "results" in dict(given):
        raise ValueError(
            f"results={dict(given)['results']}: every notebook of a run shares one folder; use --results DIR"
        )
    _refuse_unknown(
        {name for name, _ in given}, set().union(*declared), [path for path, _ in entries]
    )
    steps = []
    for (path, step), known in zip(entries, declared, strict=True):
        written = step.get("parameters") or {}
        _refuse_unknown(written, known, [path])
        values = {name: parameter.default for name, parameter in known.items()}
        values |= {name: fit(known[name], value) for name, value in written.items()}
        values |= {name: fit_text(known[name], text) for name, text in given if name in known}
        _check_recipe(values, known)
        steps.append(Step(path, values, step.get("share", 1)))
    return steps


def _check_recipe(values: dict[str, Any], known: dict[str, Parameter]) -> None:
    """ValueError for values that no recipe takes, where the parameters of these names are those of a recipe."""
    shared = set(known) & set(Recipe.model_fields)
    try:
        Recipe(**{"split": "given"} | {name: known[name].default for name in shared})
    except ValueError:  # by these names the notebook means something else
        return
    Recipe(**{"split": "given"} | {name: values[name] for name in shared})


def _refuse_unknown(names: Iterable[str], known: Iterable[str], paths: list[Path]) -> None:
    for name in names:
        if name not in known:
            stems = ", ".join(dict.fromkeys(path.stem for path in paths))
            raise ValueError(f"{stems} has no parameter {name!r}{_hint(name, known)}")


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return (
        f"; did you mean {close[0]}?"
        if close
        else f"; there are: {', '.join(sorted(known)) or 'none'}"
    )


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
