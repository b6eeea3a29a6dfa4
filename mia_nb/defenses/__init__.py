"""Defenses: plain functions that change what a training step minimises, how it is made, or what a
model puts out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import nn

from mia_nb.checks import hint
from mia_nb.defenses import dp_sgd, objectives
from mia_nb.defenses.objectives import plain
from mia_nb.defenses.outputs import OUTPUTS

__all__ = ["DEFENSES", "Defense"]


class Defense(NamedTuple):
    """A defense of the training.

    Fields:
        defaults: its options with their usual values.
        objective: (step, **options) -> losses (B,) and what is minimised; `objectives.Step`.
        module: (module, **options) -> the network that is trained; None: as it is.
        draws: (seed, numbers, known, y, **options) -> an epoch's random numbers for the objective,
            of held-out images and their labels and those of the training batches; None: none.
        held_out: whether it looks at images that are set aside, its option of that name saying how
            many, which nobody else ever does.
        logits: whether it needs one output (B, K).
    """

    defaults: dict
    objective: Callable = plain
    module: Callable[..., nn.Module] | None = None
    draws: Callable[..., dict] | None = None
    held_out: bool = False
    logits: bool = False


def with_dropout(module: nn.Module, *, rate: float) -> nn.Module:
    """Dropout of the features before the last linear layer, in training only."""
    if not 0 < rate < 1:
        raise ValueError(f"rate={rate}: wanted a dropout rate between 0 and 1")
    name = next(
        (n for n, layer in reversed(list(module.named_modules())) if isinstance(layer, nn.Linear)),
        None,
    )
    if name is None:
        raise ValueError(
            f"{type(module).__name__} has no linear layer, before which the dropout defense goes"
        )
    owner, _, last = name.rpartition(".")
    owner = module.get_submodule(owner)
    setattr(owner, last, nn.Sequential(nn.Dropout(rate), getattr(owner, last)))
    return module


DEFENSES = {
    "l1": Defense({"weight": 1e-5}, objectives.l1),
    "l2": Defense({"weight": 1e-5}, objectives.l2),
    # stops at the lowest loss on held-out images
    "early_stopping": Defense({"held_out": 0}, held_out=True),
    "dropout": Defense({"rate": 0.5}, module=with_dropout),
    "label_smoothing": Defense({"smoothing": 0.1}, objectives.label_smoothing, logits=True),
    "mmd_mixup": Defense(
        {"weight": 5e-4, "alpha": 1.0, "bandwidth": 1.0, "held_out": 0},
        objectives.mmd_mixup,
        draws=objectives.mixup_draws,
        held_out=True,
        logits=True,
    ),
    "relaxloss": Defense({"target": 0.5}, objectives.relaxloss, logits=True),
    "dp_sgd": Defense(
        {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "multiplicity": 1, "average": 0.0},
        module=lambda module, **_: dp_sgd.fitting(module),
    ),
    # noisy states and randomised labels, drawn once: made by training.train_private alone
    "stored": Defense({"keep": 0.9, "slots": 0, "releases": 1}),
}
BELOW = {"smoothing": 1, "average": 1}  # ends of what an option may be
POSITIVE = ("bandwidth", "multiplicity")


def find(name: str) -> Defense:
    """The defense of that name; ValueError for one that is not known."""
    if name not in DEFENSES:
        known = ", ".join(DEFENSES)
        if name in OUTPUTS:
            raise ValueError(
                f"defense={name!r} is an output defense: give it to query(output=...); there are"
                f" {known}"
            )
        raise ValueError(
            f"defense={name!r} is not known; there are {known}{hint(name, [*DEFENSES, *OUTPUTS])};"
            " one of your own has to be entered into defenses.DEFENSES in this process"
        )
    return DEFENSES[name]


def arguments(name: str | None, given: dict) -> dict:
    """The options of a defense of the training, its defaults written out.

    Parameters:
        name: a key of DEFENSES, or None for no defense.
        given: options by name.

    Returns:
        All options by name, of the types of their defaults; {} without a defense.

    Raises:
        ValueError: for a name or an option that is not known, and a value out of range.

    Example:
        arguments("l2", {"weight": 1e-4})
    """
    if name is None:
        if given:
            raise ValueError(
                f"defense_args={given} without a defense: name one of {', '.join(DEFENSES)}"
            )
        return {}
    defaults = find(name).defaults
    _known(f"defense {name}", given, defaults)
    numbers = {**defaults, **given}
    for option, value in numbers.items():
        whole = isinstance(defaults[option], int)
        end = BELOW.get(option, math.inf)
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < end or (option in POSITIVE and value == 0):
            wanted = ("a whole number" if whole else "a number") + (
                " above 0" if option in POSITIVE else " of at least 0"
            )
            wanted += f" and below {end}" if end < math.inf else ""
            raise ValueError(f"defense {name}: {option}={value!r}; wanted {wanted}")
        numbers[option] = type(defaults[option])(value)  # 1 and 1.0 are the same recipe
    return numbers


def adapt(module: nn.Module, name: str | None, args: dict) -> nn.Module:
    """The network that is trained under this defense."""
    change = find(name).module if name else None
    return change(module, **args) if change else module


def output_arguments(name: str | None, given: dict | None, classes: int | None = None) -> dict:
    """The options of a defense of the outputs, its defaults written out.

    Parameters:
        name: a key of OUTPUTS.
        given: options by name, or None.
        classes: number of classes; None: it is not known, and values are not checked.

    Returns:
        All options by name. Of two classes memguard shows .75 by default, (1 + 1/K) / 2.

    Raises:
        ValueError: for a name or an option that is not known, and, where the number of classes is
            given, for a value that it cannot use.

    Example:
        output_arguments("rounding", {"decimals": 2})
    """
    if name not in OUTPUTS:
        where = (
            " changes the training: give it to Recipe(defense=...)"
            if name in DEFENSES
            else " is none"
        )
        raise ValueError(f"output={name!r}{where}; output defenses are {', '.join(OUTPUTS)}")
    defaults = OUTPUTS[name].defaults
    _known(f"output {name}", given or {}, defaults)
    # half is no label there
    usual = {"confidence": 0.75} if name == "memguard" and classes == 2 else {}
    options = {**defaults, **usual, **(given or {})}
    if classes is not None:
        change_output(name, np.zeros((1, classes)), np.zeros((1, classes)), **options)
    return options


def change_output(
    name: str, logits: np.ndarray, random: np.ndarray | None = None, **options: float
) -> np.ndarray:
    """Logits (..., K) as the output defense shows them; random: the model's logits on random
    images, where it wants them.

    The predicted label is the first of the largest logits and stays it: where another class would
    tie with it or be above, it is shown 1e-9 above that, as a logarithm.
    """
    change, _, wants = OUTPUTS[name]
    shown = change(logits, **options, **({"random": random} if wants else {}))
    top = np.arange(logits.shape[-1]) == logits.argmax(-1)[..., None]
    return np.where(
        top, np.maximum(shown, np.where(top, -np.inf, shown).max(-1, keepdims=True) + 1e-9), shown
    )


def _known(what: str, given: dict, defaults: dict) -> None:
    if strange := sorted(set(given) - set(defaults)):
        raise ValueError(
            f"{what} has no option {', '.join(strange)}; it has {', '.join(defaults) or 'none'}"
        )
