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
# parameters, also those in groups, that are no part of a run's key: they change how or where a
# notebook runs, not its results
NOT_IN_KEY = ("force", "workers", "backend", "results", "data_root")


def run_recipe(steps: list[Step], results: Path) -> dict:
    """The record whose digest is a run's key: parameters, notebooks, the package's code, and the
    files, builders and pools that parameters name.
    """
    entries = []
    for step in steps:
        cells = parse_json(step.notebook.read_text(encoding="utf-8"))["cells"]
        code = [[cell["cell_type"], "".join(cell["source"])] for cell in cells]
        entries.append(
            {
                "notebook": step.notebook.stem,
                "parameters": _parameters_in_key(step.parameters),
                "files": _fingerprints(step.parameters, results),
                "source": digest(code),
            }
        )
    sources = {str(path.relative_to(PACKAGE)): path.read_bytes() for path in PACKAGE.rglob("*.py")}
    return {"steps": entries, "package": digest(sources)}


def _fingerprints(parameters: dict, results: Path) -> dict[str, str]:
    """Digests of the files, folders, builders and pools that parameters name, by parameter."""
    fingerprints = {}
    for name, value in values_in_key(parameters).items():
        digest_of_value = fingerprint(value)
        if digest_of_value is not None:
            fingerprints[name] = digest_of_value
    if parameters.get("pool"):
        # a parameter may hold the first letters of a pool's key, and later name another pool
        with contextlib.suppress(ValueError):
            pool = store.find(str(parameters["pool"]), results, "pool")
            fingerprints["pool"] = digest(pool.files())
    return fingerprints


def fingerprint(value: object) -> str | None:
    """Digest of the file, folder or builder that a parameter names, None if it names none: changed
    data or a changed builder is a new run.

    The digest is of a file's content, of all code of a builder's package, and of the names, sizes
    and times of a folder's files. Caveat: what a builder outside of any package imports is not
    read.
    """
    if not isinstance(value, str) or not 0 < len(value) < 1000 or "\0" in value:
        return None
    if BUILDER.fullmatch(value):
        file = _file_of_builder(value)
        if file is not None:
            return _digest_of_code(file)
    path = Path(value)
    if path.is_file():
        return store.sha256_of(path)
    if path.exists():
        return _digest_of_folder(path)
    return None


def _digest_of_code(file: Path) -> str:
    """Digest of all code of the outermost package that a module's file is in, or of the file alone
    if it is in none.
    """
    package = None
    for folder in file.parents:
        if not (folder / "__init__.py").is_file():
            break
        package = folder
    if package is None:
        return store.sha256_of(file)
    return digest(
        {str(path.relative_to(package)): store.sha256_of(path) for path in package.rglob("*.py")}
    )


def _digest_of_folder(path: Path) -> str:
    """Digest of the names, sizes and times of all files in a folder."""
    stats = {}
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
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
        if spec is None:
            return None
        spec = PathFinder.find_spec(name, spec.submodule_search_locations or [])
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Path(spec.origin)


def _parameters_in_key(parameters: dict) -> dict:
    """The parameters that decide the results of a notebook, without the others in groups too."""
    values = {}
    for name, value in parameters.items():
        if name in NOT_IN_KEY:
            continue
        if isinstance(value, dict):
            value = {field: entry for field, entry in value.items() if field not in NOT_IN_KEY}
        values[name] = value
    return values


def values_in_key(parameters: dict) -> dict:
    """The parameters that decide the results of a notebook, and beside them the fields of the
    groups that may name files or builders.
    """
    values = _parameters_in_key(parameters)
    return {**values, **values.get("source", {}), **values.get("recipe", {})}
