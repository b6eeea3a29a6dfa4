"""Models by name. `MODELS` says where each lives; nothing is imported before it is built."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mia_nb import _torchvision
from mia_nb.checks import hint, shown
from mia_nb.data import normalise
from mia_nb.digests import digest_of_function, installed
from mia_nb.types import Images

MODELS = {
    "tinycnn": "mia_nb.models.cnn:TinyCNN",
    "resnet14": "mia_nb.models.cnn:ResNet14",
    "resnet18": "mia_nb.models.cnn:ResNet18",
    "vgg16": "mia_nb.models.cnn:VGG16",
    "fast": "mia_nb.models.fast:FastNet",
    "odenet": "mia_nb.models.neural_de:FlowNet",
    "odenet64": "mia_nb.models.neural_de:FlowNet",
    "anode": "mia_nb.models.neural_de:FlowNet",
    "sonode": "mia_nb.models.neural_de:FlowNet",
    "hbnode": "mia_nb.models.neural_de:FlowNet",
    "sdenet": "mia_nb.models.neural_de:FlowNet",
    "snn": "mia_nb.models.snn:network",
    "replaced": "mia_nb.models.neural_de:replaced",
    "bottleneck": "mia_nb.models.bottleneck:Bottleneck",
}
FORMS = {  # what a name stands for where one class serves several; model_args come after it
    "odenet64": {"layout": "64"},
    "anode": {"layout": "64", "augment": 16},
    "sonode": {"layout": "64", "order": 2},
    "hbnode": {"layout": "64", "order": 2, "damped": True},
    "sdenet": {"k": 0.5},
}
FLOWS = ("odenet", "replaced", "bottleneck", *FORMS)  # networks of differential equations
# models made of another one, model_args["base"], and which by default
BASES = {"snn": "tinycnn", "replaced": "resnet14", "bottleneck": "tinycnn"}
PLACES = {place.partition(":")[0] for place in MODELS.values()}
LIBRARIES = ("torchvision", "snntorch")  # whose networks any recipe may name
# modules of which this process, and those that it starts, take networks of stored pools; names
# with commas between them
ALLOWED = "MIA_NB_BUILDERS"
# no module of these is imported for a network, whoever names it
NO_BUILDERS = sys.stdlib_module_names | {"torch"}
# a builder: its code when it was first seen, by the name that it was called by
_CODE: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
DEEPEST = 20  # networks that are made of one another
SMALLEST = 8  # pixels; below, the strides of every named model leave a single pixel early


def build(
    model: str,
    model_args: dict | None = None,
    *,
    in_channels: int,
    num_classes: int,
    size: int,
    seed: int | None,
    dtype: torch.dtype = torch.float32,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    frames: int = 1,
) -> nn.Module:
    """A freshly initialised module, images (B, in_channels, H, W) -> logits (B, num_classes).

    Parameters:
        model: a key of MODELS, or "package.module:function" of a builder of your own: an nn.Module
            class, or a function or class of a module that uses torch and is no part of Python or
            torch.
        model_args: its options. A builder of your own also gets those of in_channels, num_classes,
            size = (H, W), mean and std that its signature names; builders of torchvision.models get
            num_classes as they come.
        in_channels: channels of an image, those of all frames where it has several.
        num_classes: how many logits there are.
        size: of the images, a number or (H, W).
        seed: the weights depend on it only: torch's global generator is set for the call and left
            as it was found.
        dtype: the module is built in float32, then cast.
        mean, std: of the normalisation that the input went through.
        frames: of events, which lie one after the other along the channels (`Images.frames`); a
            builder that names it gets it where there are several. Spiking networks see one at each
            step, others all of them as channels of one image.

    Raises:
        ValueError: of one line for an unknown name, a builder that is none or cannot be imported or
            called, and a result that is no module.

    Caveat: this imports and calls what it is told to. A recipe that was read from a folder names
    only what `check_allowed` lets through.
    """
    builder = _find(model)
    if not _beside_networks(builder):
        raise ValueError(
            f"model {model!r} is no builder of models: it stands in an installed package, in a"
            " module that defines no network"
        )
    height, width = (size, size) if isinstance(size, int) else size
    # else the base says it
    if model in MODELS and model not in BASES and min(height, width) < SMALLEST:
        raise ValueError(
            f"{model} wants images of {SMALLEST}x{SMALLEST} pixels or more; these are"
            f" {height}x{width}"
        )
    offered = {
        "in_channels": in_channels,
        "num_classes": num_classes,
        "size": (int(height), int(width)),
        "mean": tuple(mean),
        "std": tuple(std),
    }
    if frames > 1:
        offered["frames"] = frames
    args = _arguments(model, builder, model_args or {}, offered)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            module = builder(**args)
        except Exception as error:
            reason = f"model {model} cannot be built: {type(error).__name__}: {first_line(error)}"
            raise ValueError(
                f"{reason} (model_args: {model_args})" if model_args else reason
            ) from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"model {model} returned a {type(module).__name__}; wanted a torch.nn.Module"
        )
    return module.to(dtype)


def _arguments(
    model: str, builder: Callable, model_args: dict[str, Any], offered: dict[str, Any]
) -> dict[str, Any]:
    """What a builder is called with: of what is offered that which it names, then its options;
    ValueError for an option that it does not take.
    """
    args = {**FORMS.get(model, {}), **model_args}
    names, takes_any = _names_of_arguments(builder)
    unknown = sorted(set(args) - set(names))
    if unknown and not takes_any:
        near = hint(unknown[0], names)
        raise ValueError(
            f"model_args: {model} takes no {unknown[0]!r}{near} (it takes {', '.join(names)})"
        )
    wanted = set(names)
    if str(getattr(builder, "__module__", None)).partition(".")[0] == "torchvision":
        wanted.add("num_classes")
    return {name: value for name, value in offered.items() if name in wanted} | args


def _names_of_arguments(builder: Callable) -> tuple[list[str], bool]:
    """Names of the arguments that a builder takes, those that its **options take among them where
    its `option_names` lists them; whether it takes any other name too.
    """
    names = []
    takes_any = False
    options = _option_names(builder)
    for name, parameter in inspect.signature(builder).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.append(name)
        elif options is not None:
            names += options
        else:
            takes_any = True
    return names, takes_any


def _option_names(builder: Callable) -> Sequence[str] | None:
    """`option_names` of a builder; of a class, those that stand beside the __init__ that it runs,
    since a subclass with an __init__ of its own may take other options.
    """
    if inspect.isclass(builder):
        builder = next(kind for kind in builder.__mro__ if "__init__" in vars(kind))
    return getattr(builder, "__dict__", {}).get("option_names")


def architecture(model: str, model_args: dict | None = None) -> str:
    """The model's name, of a spiking or replaced network that of the network it is made from.

    Parameters:
        model: as for `build`.
        model_args: its options, among them "base".
    """
    return (model_args or {}).get("base", BASES[model]) if model in BASES else model


def source(model: str, model_args: dict | None = None) -> str:
    """sha256 of the code of a builder of your own, "" for named models and where there is no file.

    Parameters:
        model: as for `build`.
        model_args: its options; of a spiking ("snn") or replaced network the code is that of
            "base".

    The code is its module's file, or every .py file of the package that it is in; of an installed
    package, which has a version, the module alone.

    Caveat: what a module outside of any package imports is not seen.
    """
    names = builders_of(model, model_args)
    if not names:
        return ""
    builder = _find(names[0])
    place = names[0].partition(":")[0]
    if place == "__main__":
        # a cell, whose file is the kernel's, or a script with globals of its own
        return _code_in_memory(names[0], builder)
    code = _code_in_files(names[0], builder)
    if _CODE.setdefault(builder, {}).setdefault(names[0], code) != code:
        raise ValueError(
            f"model {names[0]}: the files of {place} were changed since it was imported, so what is"
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
    top = sys.modules.get(model.partition(":")[0].partition(".")[0])
    roots = [
        Path(root)
        for root in getattr(top, "__path__", [])
        if "site-packages" not in Path(root).parts
    ]
    if roots:
        files = [file for root in roots for file in sorted(root.rglob("*.py"))]
        return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    for thing in (inspect.getmodule(builder), builder):
        with contextlib.suppress(OSError, TypeError):
            return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()
    return _code_in_memory(model, builder)


def builders_of(model: str, model_args: dict | None = None) -> list[str]:
    """Builders "module:function" outside of this package that a network is made by.

    Parameters:
        model, model_args: as for `build`; of a network that is made of another one the innermost
            counts.
    """
    depth = 0
    while model in BASES:
        if (depth := depth + 1) > DEEPEST:
            raise ValueError(f"model_args name a base within a base more than {DEEPEST} times")
        args = model_args if isinstance(model_args, dict) else {}
        model = str(args.get("base", BASES[model]))
        model_args = args.get("base_args")
    return [] if model in MODELS or ":" not in model else [model]


def allow(*modules: str) -> None:
    """Take networks of stored pools from these modules too, in this process and those it starts.

    Parameters:
        modules: names of modules or packages, or "module:function" of a builder, whose module it
            is.
    """
    names = [name for name in os.environ.get(ALLOWED, "").split(",") if name.strip()]
    names += [module.partition(":")[0] for module in modules]
    if names:
        os.environ[ALLOWED] = ",".join(dict.fromkeys(name.strip() for name in names))


def check_allowed(model: str, model_args: dict | None, what: str) -> None:
    """ValueError where a recipe that was read from a folder names a builder that nobody here did.

    Parameters:
        model, model_args: of the recipe.
        what: whose recipe it is.

    Allowed are the networks of this package, torchvision and snntorch, of the script or notebook
    itself, of modules of your own that are imported already, and of those that `allow`, the
    environment variable MIA_NB_BUILDERS or --allow names. Nothing is imported to find out.
    """
    for builder in builders_of(model, model_args):
        place = builder.partition(":")[0]
        top = place.partition(".")[0]
        named = [name.strip() for name in os.environ.get(ALLOWED, "").split(",")]
        if not (
            place in PLACES
            or top in (*LIBRARIES, "__main__")
            or any(name and f"{place}.".startswith(f"{name}.") for name in named)
            or (place in sys.modules and not installed(place))
        ):
            raise ValueError(
                f"{what} names {shown(builder)} as what builds its networks, which is neither of"
                " this package, torchvision or snntorch nor imported here; nothing of it was run."
                f" If you trust that code: mia.load_pool(..., builders=[{shown(top)}]),"
                f" mia-nb ... --allow {top}, or {ALLOWED}={top} in the environment"
            )
        if place not in PLACES and top not in (*LIBRARIES, "__main__"):
            allow(place)  # in workers too, which have not imported it yet


def timesteps(module: nn.Module) -> int | None:
    """T of a spiking network, a module with `timesteps` whose forward(x, per_step=True) gives (T,
    B, K); None of any other.
    """
    count = getattr(module, "timesteps", None)
    if count is None or "per_step" not in inspect.signature(module.forward).parameters:
        return None
    return count


def check_width(module: nn.Module, images: Images) -> nn.Module:
    """The module itself, if two of the images give outputs of shape (2, num_classes).

    Parameters:
        module: in any mode; runs in eval mode without gradient, so neither BatchNorm statistics nor
            the module's mode change.
        images: whose classes are counted.

    Raises:
        ValueError: of one line, where the module fails or its outputs are of another shape.
    """
    probe = _two_images(module, images)
    try:
        with evaluating(module), torch.random.fork_rng(devices=[]):
            output = module(probe)
    except Exception as error:
        raise ValueError(
            f"the model fails on two images of shape {tuple(probe.shape[1:])}: {first_line(error)}"
        ) from error
    wanted = (len(probe), len(images.classes))
    came = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if came != wanted:
        raise ValueError(
            f"the model gives {came} for two images; wanted {wanted}: one logit for each of"
            f" {wanted[1]} classes"
        )
    return module


def _two_images(module: nn.Module, images: Images) -> torch.Tensor:
    """The first two images as the module takes them."""
    weight = next(module.parameters(), torch.zeros(()))
    return normalise(images.x[:2].to(weight.device), images.mean, images.std, weight.dtype)


def main_logits(output: Any) -> torch.Tensor:
    """The logits among what a network gives in training mode.

    Parameters:
        output: of the network: logits, or a record whose field `logits` they are, as torchvision's
            googlenet and inception_v3 give it with the logits of their auxiliary heads, which no
            loss looks at here.
    """
    return output if isinstance(output, torch.Tensor) else getattr(output, "logits", output)


def check_training(module: nn.Module, images: Images) -> None:
    """ValueError of one line for a module that gives no logits (2, num_classes) of two images in
    training mode.

    Parameters:
        module: runs in training mode without gradient; its mode and buffers are left as they were.
        images: whose classes are counted.
    """
    probe = _two_images(module, images)
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(part, part.training) for part in module.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = module.train()(probe)
    except Exception as error:
        raise ValueError(
            f"the model fails in training mode on two images of shape {tuple(probe.shape[1:])}:"
            f" {first_line(error)}"
        ) from error
    finally:
        for part, training in modes:
            part.training = training
        for buffer, was in buffers:
            buffer.data = was
    logits = main_logits(output)
    wanted = (len(probe), len(images.classes))
    came = tuple(logits.shape) if isinstance(logits, torch.Tensor) else f"a {type(output).__name__}"
    if came != wanted:
        raise ValueError(
            f"the model gives {came} for two images in training mode; wanted logits {wanted}, or a"
            " named tuple whose field logits they are: return the logits alone"
        )


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradient; modes are left as found, part by part."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes.items():
            part.training = training


@contextlib.contextmanager
def same_draws(device: torch.device) -> Iterator[None]:
    """Random numbers of seed 0; torch's generators, that of this device too, are left as found."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield


def _find(model: str) -> Callable[..., nn.Module]:
    """The builder of a model by name; ValueError where there is none."""
    place, _, name = MODELS.get(model, model).partition(":")
    if not name:
        near = hint(model, MODELS)
        raise ValueError(
            f"no model {model!r}{near} (known: {', '.join(MODELS)}, or package.module:function)"
        )
    wanted = "wanted an nn.Module class, or a function of a module of yours that imports torch"
    if _foreign(place):
        raise ValueError(f"model {model!r} is part of {_foreign(place)}: {wanted}")
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
    return builder


def _foreign(place: str) -> str:
    """What a module is part of that has no builders; "" where it may have some."""
    top = place.partition(".")[0]
    if top in NO_BUILDERS:
        return "Python or torch"
    if top == "torchvision" and place.split(".")[1:2] != ["models"]:  # others download and write
        return "Python or torch"
    return "mia_nb" if top == "mia_nb" and place not in PLACES else ""


def _builds(builder: object) -> bool:
    """An nn.Module class, or a function or class defined where something comes from torch."""
    if inspect.isclass(builder) and issubclass(builder, nn.Module):
        return True
    home = getattr(builder, "__module__", None) or ""
    if not (inspect.isfunction(builder) or inspect.isclass(builder)) or _foreign(home):
        return False
    for value in vars(sys.modules[home]).values() if home in sys.modules else ():
        origin = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
        if str(origin).partition(".")[0] in ("torch", "torchvision"):
            return True
        if inspect.isclass(value) and issubclass(value, nn.Module):
            return True
    return False


def _beside_networks(builder: Callable) -> bool:
    """Whether a function or class of an installed package stands where that defines networks: of
    all that uses torch (savers, loaders, trainers) only this is called.
    """
    home = getattr(builder, "__module__", None) or ""
    if not installed(home) or home.startswith("torchvision.models") or home in PLACES:
        return True
    if inspect.isclass(builder) and issubclass(builder, nn.Module):
        return True
    kinds = [value for value in vars(sys.modules[home]).values() if inspect.isclass(value)]
    return any(issubclass(kind, nn.Module) and kind.__module__ == home for kind in kinds)


def first_line(error: Exception) -> str:
    """What an exception says, for errors of one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
