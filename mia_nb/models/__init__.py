"""Models by name. `MODELS` says where each lives; nothing is imported before it is built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from mia_nb.checks import hint
from mia_nb.models.builders import ALLOWED, allow, check_allowed, find, source
from mia_nb.models.modules import (
    check_training,
    check_width,
    evaluating,
    first_line,
    main_logits,
    same_draws,
    timesteps,
    watched,
)
from mia_nb.models.registry import BASES, FLOWS, FORMS, MODELS, architecture, builders_of

__all__ = [
    "ALLOWED",
    "BASES",
    "FLOWS",
    "FORMS",
    "MODELS",
    "allow",
    "architecture",
    "build",
    "build_base",
    "builders_of",
    "check_allowed",
    "check_training",
    "check_width",
    "evaluating",
    "first_line",
    "main_logits",
    "same_draws",
    "source",
    "timesteps",
    "watched",
]

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
    builder = find(model)
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


def build_base(
    base: str,
    base_args: dict | None,
    in_channels: int,
    num_classes: int,
    size: int | tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
) -> nn.Module:
    """The network that another one is made of, built inside the builder of that one: its weights
    are those that it has alone under the same seed.

    Parameters:
        base, base_args: `model` and `model_args` of `build`.
        in_channels, num_classes, size, mean, std: as there.
    """
    return build(
        base,
        base_args,
        in_channels=in_channels,
        num_classes=num_classes,
        size=size,
        mean=mean,
        std=std,
        seed=torch.initial_seed(),
    )


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
