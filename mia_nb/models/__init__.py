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
    seed_global_generator,
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
    "seed_global_generator",
    "source",
    "timesteps",
    "watched",
]

SMALLEST = 8  # pixels; in smaller images the strides of named models soon leave a single pixel


def build(
    model: str,
    model_args: dict | None = None,
    *,
    in_channels: int,
    num_classes: int,
    size: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    frames: int = 1,
) -> nn.Module:
    """A freshly initialised module, images (B, in_channels, H, W) -> logits (B, num_classes).

    Parameters:
        model: a key of MODELS, or "package.module:function" of a builder of your own: an nn.Module
            class, or a function or class of a module that uses torch and belongs neither to Python
            nor to torch.
        model_args: its options. A builder of your own also gets those of in_channels, num_classes,
            size = (H, W), mean and std that its signature names; builders of torchvision.models
            get num_classes in any case.
        in_channels: channels of an image; of several frames, the channels of all of them.
        num_classes: how many logits there are.
        size: of the images, a number or (H, W).
        seed: decides the weights. torch's global generator is set for the call and then restored.
        dtype: the module is built in float32, then cast.
        mean, std: of the normalisation that the input went through.
        frames: number of frames of events, which lie one after the other along the channels
            (`Images.frames`). A builder whose signature names it gets a number above 1. Spiking
            networks see one frame per step, others see all frames as channels of one image.

    Raises:
        ValueError: of one line for an unknown name, for what is no builder or cannot be imported or
            called, and for a result that is no module.

    Caveat: this imports and calls any builder. `check_allowed` restricts the builders that a recipe
    read from a folder may name.
    """
    builder = find(model)
    height, width = (size, size) if isinstance(size, int) else size
    # where a model has a base, building the base checks it
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
            message = f"model {model} cannot be built: {type(error).__name__}: {first_line(error)}"
            if model_args:
                message += f" (model_args: {model_args})"
            raise ValueError(message) from error
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
    """Build the base of another network, inside that network's builder: the base has the weights
    that it would have alone under the same seed.

    Parameters:
        base, base_args: `model` and `model_args` of `build`.
        in_channels, num_classes, size, mean, std: as for `build`.
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
    """The arguments of a builder: the offered ones that it names, then its options; ValueError for
    an option that it does not take.
    """
    options = {**FORMS.get(model, {}), **model_args}
    names, takes_any = _names_of_arguments(builder)
    unknown = sorted(set(options) - set(names))
    if unknown and not takes_any:
        near = hint(unknown[0], names)
        raise ValueError(
            f"model_args: {model} takes no {unknown[0]!r}{near} (it takes {', '.join(names)})"
        )
    wanted = set(names)
    if str(getattr(builder, "__module__", None)).partition(".")[0] == "torchvision":
        wanted.add("num_classes")  # its builders pass it on in **kwargs
    return {name: value for name, value in offered.items() if name in wanted} | options


def _names_of_arguments(builder: Callable) -> tuple[list[str], bool]:
    """Names of the arguments that a builder takes, with those of its **options where its
    `option_names` lists them; and whether it takes any other name too.
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
    """`option_names` of a builder; for a class, those of the class that defines its __init__, since
    a subclass with an __init__ of its own may take other options.
    """
    owner = builder
    if inspect.isclass(builder):
        owner = next(ancestor for ancestor in builder.__mro__ if "__init__" in vars(ancestor))
    return getattr(owner, "__dict__", {}).get("option_names")
