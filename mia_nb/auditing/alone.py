"""Attacks on one finished model that need no other model beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mia_nb.attacks import ATTACKS, suite
from mia_nb.attacks.registry import Attack
from mia_nb.types import Scores, Signals


def entropy(target: Signals, references: Signals | None = None) -> np.ndarray:
    """Label free: s = sum_c p_c log p_c. Source: Song & Mittal 2021, without their thresholds."""
    return -target.entropy[0].mean(0)


def modified_entropy(target: Signals, references: Signals | None = None) -> np.ndarray:
    """s = (1 - p_y) log p_y + sum_{c != y} p_c log(1 - p_c). Source: as `entropy`."""
    return -target.modified_entropy[0].mean(0)


ALONE = {
    "loss": ATTACKS["loss"],
    "correctness": ATTACKS["correctness"],
    "entropy": entropy,
    "modified entropy": modified_entropy,
}


def attacks_on(design: dict) -> dict[str, Attack]:
    """The attacks that an audit tries unless others are named: {name: attack}.

    design: facts of `auditing.design`. For one model alone they are those that decide in
    `mia_nb.audit`, for several the `suite` for the number of references.
    """
    if design["models"] == 1:
        return ALONE
    return suite(design["references"])


def ranked_among_others(loss: Scores, units: np.ndarray | None, seed: int) -> Scores:
    """The population attack, cross-fitted: each sample's score is 1 - p, p its rank by loss among
    the non-members of the other half.

    Samples are split into two halves, units as a whole, and each half is ranked among the
    non-members of the other. So every non-member is scored, and none is compared with itself.
    p = (1 + non-members of the other half whose score is at least as large) / (1 + all of them).

    Parameters:
        loss: scores of the loss threshold on one model.
        units: (N,) labels; samples of one label are in the same half. None: each by itself.
        seed: of the halves.
    """
    value = loss.value[0]
    member = loss.member[0]
    in_first = _in_first_half(member, units, seed)
    ranked = np.empty(len(value))
    for half in (in_first, ~in_first):
        calibration = np.sort(value[~half & ~member])
        below = np.searchsorted(calibration, value[half], side="left")
        ranked[half] = below / (1 + len(calibration))  # = 1 - p
    return replace(loss, value=ranked[None], info=loss.info | {"attack": "attack_p"})


def _in_first_half(member: np.ndarray, units: np.ndarray | None, seed: int) -> np.ndarray:
    """(N,) bool, half of the members' units and half of the others'. Where one side is a single
    unit, its samples are split.
    """
    labels = np.arange(len(member)) if units is None else units
    rng = np.random.default_rng(seed)
    in_first = np.zeros(len(member), bool)
    for side in (member, ~member):
        unit = labels[side]
        if len(np.unique(unit)) == 1:
            unit = np.arange(len(unit))
        shuffled = rng.permutation(np.unique(unit))
        in_first[side] = np.isin(unit, shuffled[: len(shuffled) // 2])
    return in_first
