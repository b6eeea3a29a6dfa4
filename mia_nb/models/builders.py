"""Builders of networks from outside of this package: which may be called, and a digest of their
code.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

from torch import nn

from mia_nb import _torchvision
from mia_nb.checks import hint, shown
from mia_nb.digests import digest_of_function, installed
from mia_nb.models.modules import first_line
from mia_nb.models.registry import MODELS, PLACES, builders_of

LIBRARIES = ("torchvision", "snntorch")  # whose networks any recipe may name
# environment variable: modules, separated by commas, that may build networks of stored pools in
# this process and those that it starts
ALLOWED = "MIA_NB_BUILDERS"
# packages whose modules are never imported to build a network
NO_BUILDERS = sys.stdlib_module_names | {"torch"}
# {builder: {name it was called by: digest of its code when it was first seen}}
_CODE: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def find(model: str) -> Callable[..., nn.Module]:
    """The builder of a model by name; ValueError if there is none."""
    place, _, name = MODELS.get(model, model).partition(":")
    if not name:
        near = hint(model, MODELS)
        raise ValueError(
            f"no model {model!r}{near} (known: {', '.join(MODELS)}, or package.module:function)"
        )
    wanted = "wanted an nn.Module class, or a function of a module of yours that imports torch"
    library = _foreign(place)
    if library:
        raise ValueError(f"model {model!r} is part of {library}: {wanted}")
    try:
        module = _torchvision.module(place)
    except (Exception, SystemExit) as error:  # some modules are programs
        raise ValueError(
            f"model {model!r}: {place} cannot be imported: {type(error).__name__}:"
            f" {first_line(error)}"
        ) from error
    builder = getattr(module, name, None)
    if not callable(builder):
        raise ValueError(f"model {model!r}: {place} has no function {name!r}")
    if not _builds(builder):
        raise ValueError(f"model {model!r} is no builder of models: {wanted}")
    if not _beside_networks(builder):
        raise ValueError(
            f"model {model!r} is no builder of models: it stands in an installed package, in a"
            " module that defines no network"
        )
    return builder


def _foreign(place: str) -> str:
    """The library without builders that a module is part of; "" where it may have some."""
    top = place.partition(".")[0]
    if top in NO_BUILDERS:
        return "Python or torch"
    # other parts of torchvision download and write
    if top == "torchvision" and not f"{place}.".startswith("torchvision.models."):
        return "Python or torch"
    if top == "mia_nb" and place not in PLACES:
        return "mia_nb"
    return ""


def _builds(builder: object) -> bool:
    """Whether this is an nn.Module class, or a function or class of a module that uses torch."""
    if _is_network_class(builder):
        return True
    if not (inspect.isfunction(builder) or inspect.isclass(builder)):
        return False
    home = getattr(builder, "__module__", None) or ""
    if _foreign(home) or home not in sys.modules:
        return False
    return any(_is_of_torch(value) for value in vars(sys.modules[home]).values())


def _is_of_torch(value: object) -> bool:
    """Whether a value in a module's namespace is a part of torch or torchvision, or a network."""
    if _is_network_class(value):
        return True
    origin = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    return str(origin).partition(".")[0] in ("torch", "torchvision")


def _is_network_class(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, nn.Module)


def _beside_networks(builder: Callable) -> bool:
    """Whether a function or class of an installed package is defined in a module that defines
    networks: other code that uses torch (savers, loaders, trainers) is not called.
    """
    home = getattr(builder, "__module__", None) or ""
    if not installed(home) or home.startswith("torchvision.models") or home in PLACES:
        return True
    if _is_network_class(builder):
        return True
    for value in vars(sys.modules[home]).values():
        if _is_network_class(value) and value.__module__ == home:
            return True
    return False


def source(model: str, model_args: dict | None = None) -> str:
    """sha256 of the code of a builder of your own; "" for named models.

    Parameters:
        model: as for `build`.
        model_args: its options; for a spiking ("snn") or replaced network the code is that of
            "base".

    The code is its module's file, or every .py file of its package. For an installed package, which
    has a version, it is the module's file alone.

    Caveat: what a module outside of any package imports is not seen.
    """
    names = builders_of(model, model_args)
    if not names:
        return ""
    (name,) = names
    builder = find(name)
    place = name.partition(":")[0]
    if place == "__main__":
        # a notebook cell, which has no file of its own, or a script
        return _code_in_memory(name, builder)
    code = _code_in_files(name, builder)
    code_at_first = _CODE.setdefault(builder, {}).setdefault(name, code)
    if code != code_at_first:
        raise ValueError(
            f"model {name}: the files of {place} were changed since it was imported, so what is"
            f" in memory is not what is in them; restart, or importlib.reload({place})"
        )
    return code


def _code_in_memory(model: str, builder: Callable) -> str:
    """Digest of a builder from a notebook cell or a script; ValueError where it has none."""
    try:
        return digest_of_function(builder, versions=False)
    except ValueError as error:
        raise ValueError(
            f"model {model}: {error}, so that a change of the network would go unnoticed; put the"
            ' network into a file of its own, net.py, and take model="net:..."'
        ) from None


def _code_in_files(model: str, builder: Callable) -> str:
    """sha256 of the files of the package that a builder is in, or of its module alone."""
    place = model.partition(":")[0]
    package = sys.modules.get(place.partition(".")[0])
    files = []
    for root in map(Path, getattr(package, "__path__", [])):
        if "site-packages" not in root.parts:
            files += sorted(root.rglob("*.py"))
    if files:
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    for code in (inspect.getmodule(builder), builder):  # its module, or else itself
        with contextlib.suppress(OSError, TypeError):
            return hashlib.sha256(inspect.getsource(code).encode()).hexdigest()
    return _code_in_memory(model, builder)


def allow(*modules: str) -> None:
    """Let these modules build networks of stored pools too, in this process and those it starts.

    Parameters:
        modules: names of modules or packages, or "module:function" for the module of a builder.
    """
    names = _allowed_modules()
    names += [module.partition(":")[0].strip() for module in modules]
    if names:
        os.environ[ALLOWED] = ",".join(dict.fromkeys(names))


def _allowed_modules() -> list[str]:
    """The modules that the environment allows to build networks of stored pools."""
    names = [name.strip() for name in os.environ.get(ALLOWED, "").split(",")]
    return [name for name in names if name]


def check_allowed(model: str, model_args: dict | None, what: str) -> None:
    """ValueError where a recipe that was read from a folder names a builder that is not allowed.

    Parameters:
        model, model_args: of the recipe.
        what: whose recipe it is.

    Allowed are builders of this package, torchvision and snntorch, of the script or notebook
    itself, of your own modules that are already imported, and of modules named by `allow`, the
    environment variable MIA_NB_BUILDERS or --allow. This check imports nothing.
    """
    for builder in builders_of(model, model_args):
        place = builder.partition(":")[0]
        top = place.partition(".")[0]
        if place in PLACES or top in (*LIBRARIES, "__main__"):
            continue
        named = any(f"{place}.".startswith(f"{name}.") for name in _allowed_modules())
        imported = place in sys.modules and not installed(place)
        if not named and not imported:
            raise ValueError(
                f"{what} names {shown(builder)} as what builds its networks, which is neither of"
                " this package, torchvision or snntorch nor imported here; nothing of it was run."
                f" If you trust that code: mia.load_pool(..., builders=[{shown(top)}]),"
                f" mia-nb ... --allow {top}, or {ALLOWED}={top} in the environment"
            )
        allow(place)  # in workers too, which have not imported it yet
