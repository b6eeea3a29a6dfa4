"""Defenses: functions that change the loss of a training step, the network, the training, or the
outputs of a trained model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import nn

from mia_nb.checks import hint, shown
from mia_nb.defenses import dp_sgd, objectives
from mia_nb.defenses.objectives import plain
from mia_nb.defenses.outputs import OUTPUTS, change_output

__all__ = ["DEFENSES", "Defense"]


class Defense(NamedTuple):
    """A defense of the training.

    Fields:
        defaults: its options with their usual values.
        objective: (step, **options) -> losses (B,) and what is minimised; `objectives.Step`.
        module: (module, **options) -> the network that is trained; None leaves it unchanged.
        draws: (seed, numbers of the held-out images, their labels, labels of the batches, /,
            **options) -> an epoch's random numbers for the objective; None if it needs none.
        held_out: whether it uses held-out images, which are neither trained on nor audited. The
            option of that name is their number.
        logits: whether it needs networks with a single output (B, K).
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
    linear_layers = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linear_layers:
        raise ValueError(
            f"{type(module).__name__} has no linear layer, before which the dropout defense goes"
        )
    path, _, name = linear_layers[-1].rpartition(".")
    parent = module.get_submodule(path)
    setattr(parent, name, nn.Sequential(nn.Dropout(rate), getattr(parent, name)))
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
    # training on stored noisy states and randomised labels; only training.train_private uses it
    "stored": Defense({"keep": 0.9, "slots": 0, "releases": 1}),
}
BELOW = {"smoothing": 1, "average": 1}  # options that must be below this number
POSITIVE = ("bandwidth", "multiplicity", "max_grad_norm")  # options that must not be 0


def find(name: str) -> Defense:
    """The defense of this name; ValueError if there is none."""
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
    defense = DEFENSES[name]
    if not (isinstance(defense, Defense) and isinstance(defense.defaults, dict)):
        raise ValueError(
            f"defenses.DEFENSES[{name!r}] is {shown(defense)}: wanted a defenses.Defense, such as"
            ' Defense({"weight": 0.5}, objective)'
        )
    return defense


def arguments(name: str | None, given: dict) -> dict:
    """All options of a defense of the training: those given, and the defaults of the others.

    Parameters:
        name: a key of DEFENSES, or None for no defense.
        given: options by name.

    Returns:
        All options by name, converted to the types of their defaults; {} without a defense.

    Raises:
        ValueError: for an unknown name or option, and for a value out of range.

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
    _check_known(f"defense {name}", given, defaults)
    options = {}
    for option, default in defaults.items():
        value = given.get(option, default)
        _check_number(name, option, value, default)
        options[option] = type(default)(value)  # 1 and 1.0 are the same recipe
    return options


def _check_number(defense: str, option: str, value: object, default: float) -> None:
    """ValueError for a value that is no number, is not whole where the default is, or is out of the
    option's range.
    """
    whole = isinstance(default, int)
    end = BELOW.get(option, math.inf)
    kinds = int if whole else (int, float)
    if isinstance(value, kinds) and not isinstance(value, bool):
        if 0 < value < end:
            return
        if value == 0 and option not in POSITIVE:
            return
    wanted = "a whole number" if whole else "a number"
    wanted += " above 0" if option in POSITIVE else " of at least 0"
    if option in BELOW:
        wanted += f" and below {end}"
    raise ValueError(f"defense {defense}: {option}={value!r}; wanted {wanted}")


def adapt(module: nn.Module, name: str | None, args: dict) -> nn.Module:
    """The network as this defense changes it for training; most leave it unchanged."""
    if name is None:
        return module
    change = find(name).module
    return module if change is None else change(module, **args)


def output_arguments(name: str | None, given: dict | None, classes: int | None = None) -> dict:
    """All options of a defense of the outputs: those given, and the defaults of the others.

    Parameters:
        name: a key of OUTPUTS.
        given: options by name, or None.
        classes: number of classes; if None, values are not checked.

    Returns:
        All options by name. With two classes memguard shows .75 by default, (1 + 1/K) / 2.

    Raises:
        ValueError: for an unknown name or option, and, if the number of classes is given, for a
            value that it cannot use.

    Example:
        output_arguments("rounding", {"decimals": 2})
    """
    if name not in OUTPUTS:
        reason = "is none"
        if name in DEFENSES:
            reason = "changes the training: give it to Recipe(defense=...)"
        raise ValueError(f"output={name!r} {reason}; output defenses are {', '.join(OUTPUTS)}")
    defaults = OUTPUTS[name].defaults
    given = given or {}
    _check_known(f"output {name}", given, defaults)
    if name == "memguard" and classes == 2:
        defaults = {"confidence": 0.75}  # the usual 0.5 would not show the label
    options = defaults | given
    if classes is not None:
        # a defense refuses by itself what it cannot use
        logits = np.zeros((1, classes))
        change_output(name, logits, random=logits, **options)
    return options


def _check_known(what: str, given: dict, defaults: dict) -> None:
    """ValueError for options that a defense does not have."""
    strange = sorted(set(given) - set(defaults))
    if strange:
        raise ValueError(
            f"{what} has no option {', '.join(strange)}; it has {', '.join(defaults) or 'none'}"
        )
