"""Where code comes from: from Python, an installed package or this package, whose versions identify
it, or from the user's own files, whose contents identify it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
import types
from functools import cache
from pathlib import Path

PACKAGES = {"site-packages", "dist-packages"}
# libraries on which results rest: their versions stand in every record of where numbers come from
NUMERIC = ("numpy", "scipy", "scikit-learn", "pandas")
WITH_TORCH = ("torch", "torchvision", "snntorch", "torchdiffeq", "torchsde", "opacus")


@cache
def _standard_library() -> tuple[str, ...]:
    """The folders of Python's own modules."""
    places = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return tuple({os.path.realpath(place) + os.sep for place in places})


def installed(name: str | None) -> bool:
    """Whether a module belongs to Python, to an installed package or to this package, whose version
    identifies its code.

    All other code is the user's own: a script, a cell, a file or folder beside it, a package that
    was installed in editable mode.
    """
    top = str(name).partition(".")[0]
    if top in (__package__, "builtins"):
        return True
    if top in ("__main__", "__mp_main__", "None", ""):
        return False
    places = _source_paths(top)
    if not places:
        return top in sys.stdlib_module_names
    return all(_is_package_place(place) for place in places)


def _source_paths(top: str) -> list[str]:
    """The file or folders from which a module or package is, or would be, imported."""
    module = sys.modules.get(top)
    if module is not None:
        places = [*getattr(module, "__path__", ()), getattr(module, "__file__", "")]
        return [str(place) for place in places if place]
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(top)
    if spec is None:
        return []
    places = list(spec.submodule_search_locations or ())
    if spec.has_location:
        places.append(spec.origin)
    return [str(place) for place in places if place]


def _is_package_place(place: str) -> bool:
    """Whether a file or folder belongs to an installed package or to Python itself."""
    if PACKAGES & {*Path(place).parts}:
        return True
    return os.path.realpath(place).startswith(_standard_library())


def version(name: str | None) -> str:
    """The version of the distribution that a module belongs to."""
    top = str(name).partition(".")[0]
    if top == __package__:
        return _version_here()
    if top in sys.stdlib_module_names:
        return sys.version
    return _version_of(top, str(getattr(sys.modules.get(top), "__version__", "")))


@cache
def _version_of(top: str, stated: str) -> str:
    """The version of the package that installed a top-level module; without one, `stated`, the
    module's own.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(top)
    names = importlib.metadata.packages_distributions().get(top, [])
    return " ".join(importlib.metadata.version(name) for name in names) or stated


@cache
def _version_here() -> str:
    """The version of this package; in a checkout, a checksum of its code."""
    folder = Path(__file__).parent
    if _is_package_place(str(folder)):
        return importlib.metadata.version(__package__)
    files = sorted(folder.rglob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def file_digest(module: types.ModuleType) -> str:
    """A checksum of the files of a module; "" for the script or notebook itself."""
    if module.__name__ == "__main__":
        return ""
    roots = [Path(root) for root in getattr(module, "__path__", [])]
    files = [file for root in roots for file in sorted(root.rglob("*.py"))]
    if not files and getattr(module, "__file__", None):
        files = [Path(module.__file__)]
    of_all = hashlib.sha256()
    for file in files:
        with contextlib.suppress(OSError):
            of_all.update(hashlib.sha256(file.read_bytes()).digest())
    return of_all.hexdigest()
