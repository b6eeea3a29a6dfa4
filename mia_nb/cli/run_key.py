"""The contents of a run's key: parameters, notebooks, the package's code, and the files, builders
and pools that parameters name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from mia_nb import store
from mia_nb._files import parse_json
from mia_nb.cli.notebooks import PACKAGE, Step
from mia_nb.digests import digest

BUILDER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # package.module:function
# parameters, also in groups, that are no part of a run's key: they change how or where it is done,
# not its results
NOT_IN_KEY = ("force", "workers", "backend", "results", "data_root")


def run_recipe(steps: list[Step], results: Path) -> dict:
    """The record whose digest is a run's key: parameters, notebooks, the package's code, and the
    files, builders and pools that parameters name.
    """
    entries = []
    for step in steps:
        values = _without_place(step.parameters)
        fingerprints = {}
        for name, value in values_in_key(step.parameters).items():
            if found := fingerprint(value):
                fingerprints[name] = found
        if values.get("pool"):
            # a parameter may hold the first letters of a pool's key, and later name another pool
            with contextlib.suppress(ValueError):
                pool = store.find(str(values["pool"]), results, "pool")
                fingerprints["pool"] = digest(pool.files())
        cells = parse_json(step.notebook.read_text(encoding="utf-8"))["cells"]
        code = [[cell["cell_type"], "".join(cell["source"])] for cell in cells]
        entries.append(
            {
                "notebook": step.notebook.stem,
                "parameters": values,
                "files": fingerprints,
                "source": digest(code),
            }
        )
    sources = {str(path.relative_to(PACKAGE)): path.read_bytes() for path in PACKAGE.rglob("*.py")}
    return {"steps": entries, "package": digest(sources)}


def fingerprint(value: object) -> str | None:
    """Digest of the file, folder or builder that a parameter names, None if it names none: changed
    data or a changed builder is a new run.

    The digest is of a file's content, of all code of a builder's package, and of the names, sizes
    and times of a folder's files. Caveat: what a builder outside of any package imports is not
    read.
    """
    if not isinstance(value, str) or not 0 < len(value) < 1000 or "\0" in value:
        return None
    path = Path(value)
    if BUILDER.fullmatch(value):
        path = _file_of_builder(value) or path
        while (path.parent / "__init__.py").is_file():
            path = path.parent
        if path.is_dir():
            files = path.rglob("*.py")
            return digest({str(file.relative_to(path)): store.sha256_of(file) for file in files})
    if path.is_file():
        return store.sha256_of(path)
    if not path.exists():
        return None
    files = []
    for folder, _, names in os.walk(path):
        files += [Path(folder, name) for name in names]
    stats = {}
    for file in sorted(files):
        if file.exists():  # a link may lead nowhere
            stat = file.stat()
            stats[str(file.relative_to(path))] = (stat.st_size, stat.st_mtime_ns)
    return digest(stats)


def _file_of_builder(builder: str) -> Path | None:
    """The file of `module:function`, searched as a kernel would, in the working directory first.
    Its package is not imported: that may be slow, and may fail outside of a kernel.
    """
    top, *rest = builder.partition(":")[0].split(".")
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path.pop(0)
    for name in rest:
        places = spec.submodule_search_locations if spec is not None else None
        spec = PathFinder.find_spec(name, places or [])
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Path(spec.origin)


def _without_place(parameters: dict) -> dict:
    """The parameters that decide the results of a notebook; parameters in groups too."""
    kept = {name: value for name, value in parameters.items() if name not in NOT_IN_KEY}
    for name, group in kept.items():
        if isinstance(group, dict):
            kept[name] = {key: value for key, value in group.items() if key not in NOT_IN_KEY}
    return kept


def values_in_key(parameters: dict) -> dict:
    """The parameters that decide the results of a notebook, and beside them the fields of the
    groups that may name files or builders.
    """
    values = _without_place(parameters)
    return {**values, **values.get("source", {}), **values.get("recipe", {})}
