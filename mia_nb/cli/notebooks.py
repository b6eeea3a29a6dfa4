"""Find notebooks and presets by short names, read parameters from the tagged cell, and check values
before anything runs.
"""

from __future__ import annotations

import os
import re
import shutil
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mia_nb._yaml import read_yaml_file
from mia_nb.checks import hint, shown
from mia_nb.cli.say import print_table, say
from mia_nb.parameters import (
    Parameter,
    complete,
    described,
    no_parameter,
    read_parameters,
    read_text,
    record_of,
)

PACKAGE = Path(__file__).resolve().parents[1]
# keys of a preset's step; a step with `preset` stands for that preset's steps, with `notebook` too
# for those of that notebook only
KEYS = {"notebook", "parameters", "preset"}


class Step(NamedTuple):
    """One notebook to run, and a value for each of its parameters."""

    notebook: Path
    parameters: dict[str, Any]


def folders(given: str | None = None) -> list[Path]:
    """Folders to search for notebooks: the given folder only, else ./notebooks, the checkout's and
    the installed package's.
    """
    if given:
        if not Path(given).is_dir():
            raise ValueError(f"--notebooks {given} is no folder")
        return [Path(given)]
    places = [Path("notebooks"), PACKAGE.parent / "notebooks", PACKAGE / "notebooks"]
    return [place for place in places if place.is_dir()]


def find_notebook(name: str, where: list[Path]) -> Path:
    """`01_train`, `train`, `workshop/04_budget_race` or a path -> the notebook's path; notebooks at
    the top precede those of the workshop.
    """
    known = _notebooks(where)
    if name in known:
        return known[name]
    if name.endswith(".ipynb") or os.sep in name:
        if not Path(name).is_file():
            raise ValueError(f"no notebook at {name}")
        return Path(name)
    close = hint(name, [*known, *_presets(where)])
    stems = {path.stem for path in known.values()}
    raise ValueError(f"no notebook named {name!r}{close or _listed(stems)}")


def _notebooks(where: list[Path]) -> dict[str, Path]:
    """Every notebook by its names: with and without its number; for those of the workshop also with
    their folder.
    """
    known: dict[str, Path] = {}
    on_top = [path for place in where for path in sorted(place.glob("*.ipynb"))]
    in_workshop = [path for place in where for path in sorted(place.glob("workshop/*.ipynb"))]
    for path in [*on_top, *in_workshop]:
        for name in (path.stem, re.sub(r"^\d+_", "", path.stem)):
            known.setdefault(name, path)
            if path in in_workshop:
                known.setdefault(f"workshop/{name}", path)
    return known


def resolve(name: str, preset: str | None, where: list[Path]) -> tuple[str, str | None]:
    """(target, preset) of `mia-nb run NAME`: if NAME is a preset and no notebook, all of that
    preset.
    """
    if preset is not None or name == "all" or name in _notebooks(where):
        return name, preset
    if name in _presets(where):
        return "all", name
    return name, None


def _presets(where: list[Path]) -> dict[str, Path]:
    known = {}
    for place in where:
        for path in sorted(place.glob("presets/*.yaml")):
            known.setdefault(path.stem, path)
    return known


def _find_preset(name: str, where: list[Path]) -> Path:
    known = _presets(where)
    path = Path(name) if name.endswith((".yaml", ".yml")) else known.get(name)
    if path is None or not path.is_file():
        raise ValueError(f"no preset named {name!r}{hint(name, known) or _listed(known)}")
    return path


def about(name: str, where: list[Path]) -> str:
    """A preset's description: the prose of the comment at its top."""
    prose = []
    for line in _find_preset(name, where).read_text(encoding="utf-8").splitlines():
        is_prose = line.startswith("# ") and not line.startswith("#  ")  # no indented commands
        if not is_prose:
            break
        prose.append(line.removeprefix("# "))
    return " ".join(prose)


def read_preset(name: str, where: list[Path], inside: tuple[Path, ...] = ()) -> list[dict]:
    """The steps of notebooks/presets/NAME.yaml (or of a .yaml file), as written. A step that names
    another preset is replaced by that preset's steps, whose parameters it overrides.

    inside: the presets that name this one, which it may not name in turn.
    """
    path = _find_preset(name, where)
    if path in inside:
        raise ValueError(f"{path} names itself among its presets: wanted another one")
    written = read_yaml_file(path)
    if not isinstance(written, list):
        raise _no_step(path, written)
    steps = []
    for step in written:
        _check_step(path, step)
        if "preset" not in step:
            steps.append(step)
            continue
        changes = step.get("parameters") or {}
        for inner in read_preset(step["preset"], where, (*inside, path)):
            if step.get("notebook", inner["notebook"]) == inner["notebook"]:
                parameters = (inner.get("parameters") or {}) | changes
                steps.append({**inner, "parameters": parameters})
    return steps


def _check_step(path: Path, step: Any) -> None:
    """ValueError unless this is a step of a preset."""
    if not isinstance(step, dict) or not step.keys() <= KEYS:
        raise _no_step(path, step)
    names = [step[key] for key in ("notebook", "preset") if step.get(key) is not None]
    if not names or not all(isinstance(name, str) for name in names):
        raise _no_step(path, step)
    if not isinstance(step.get("parameters") or {}, dict):
        step_name = " of ".join(names)
        raise ValueError(f"{path}: the parameters of {step_name} must be `name: value` pairs")


def _no_step(path: Path, written: Any) -> ValueError:
    """The error for a preset that holds something else than steps."""
    return ValueError(
        f"{path}: wanted a list of steps `- {{notebook: 01_train, parameters: {{epochs:"
        f" 20}}}}`, found {shown(written)}"
    )


def name_value_pairs(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Texts `name=value` of `-p` as (name, value); ValueError for other texts."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"-p {text}: wanted -p name=value or -p name value")
        pairs.append((name.strip(), value))
    return pairs


def plan(
    target: str, preset: str | None, given: Iterable[tuple[str, str]], where: list[Path]
) -> list[Step]:
    """The steps to run: those of the preset (for one notebook, or `all`), or one notebook with its
    defaults. The (name, text) pairs `given` override parameters in every step that has them.

    Raises ValueError for anything unknown ("did you mean") or of the wrong type, before anything
    runs.
    """
    given = list(given)
    entries = _entries(target, preset, where)
    declared = [read_parameters(path) for path, _ in entries]
    _refuse_unknown(given, entries, declared)
    steps = []
    for (path, parameters), known in zip(entries, declared, strict=True):
        values = list(parameters.items())
        for name, text in given:
            if _has(known, name):
                values.append((name, read_text(known, name, text)))
        steps.append(Step(path, complete(known, values, path.stem)))
    return steps


def _refuse_unknown(
    given: list[tuple[str, str]],
    entries: list[tuple[Path, dict]],
    declared: list[dict[str, Parameter]],
) -> None:
    """ValueError for a parameter that is given on the command line, and that no notebook has."""
    everywhere: dict[str, Parameter] = {}
    for known in declared:
        everywhere |= known
    stems = ", ".join(dict.fromkeys(path.stem for path, _ in entries))
    for name, text in given:
        if name == "results":
            raise ValueError(
                f"results={text}: every notebook of a run shares one folder; use --results DIR"
            )
        if not _has(everywhere, name):
            raise no_parameter(name, everywhere, stems)


def _has(known: dict[str, Parameter], name: str) -> bool:
    """Whether a notebook has this parameter, on its own or as a field of a record."""
    return name in known or record_of(name, known) is not None


def _entries(target: str, preset: str | None, where: list[Path]) -> list[tuple[Path, dict]]:
    """(notebook, parameters as the preset gives them) of everything to run."""
    if target == "all":
        if preset is None:
            raise ValueError(f"`run all` needs --preset NAME{_listed(_presets(where))}")
        return _entries_of_preset(preset, where)
    wanted = find_notebook(target, where)
    if preset is None:
        return [(wanted, {})]
    entries = []
    for path, parameters in _entries_of_preset(preset, where):
        if path.stem == wanted.stem:
            entries.append((wanted, parameters))  # the preset may have found another copy
    if not entries:
        raise ValueError(f"preset {preset} has no step for {wanted.stem}")
    return entries


def _entries_of_preset(preset: str, where: list[Path]) -> list[tuple[Path, dict]]:
    entries = []
    for step in read_preset(preset, where):
        path = find_notebook(step["notebook"], where)
        entries.append((path, step.get("parameters") or {}))
    if not entries:
        raise ValueError(f"preset {preset} has no step")
    return entries


def _listed(names: Iterable[str]) -> str:
    """The end of a message that lists all names there are."""
    return f"; there are: {', '.join(sorted(names)) or 'none'}"


def params(args: Namespace) -> None:
    """`mia-nb params`: print a notebook's parameters, one per line."""
    path = find_notebook(args.notebook, folders(args.notebooks))
    rows = described(read_parameters(path))
    say(path if rows else f"{path} has no cell tagged `parameters`")
    print_table(rows, shutil.get_terminal_size((10_000, 0)).columns)
