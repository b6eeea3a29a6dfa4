"""The contrasts between settings that a claim compares."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np

from mia_nb.metrics.targets import per_target_metrics
from mia_nb.metrics.uncertainty import interval
from mia_nb.studies.joins import networks_of, pairs
from mia_nb.studies.settings import Setting
from mia_nb.studies.study import Claim, Contrast
from mia_nb.types import Scores

STOCHASTIC_ONLY = ("lira_joint",)  # attacks that use how the outputs of several queries differ
OF_MODELS = ("test_accuracy", "gap")


def one_pair(scores: Scores) -> bool:
    """Whether all targets are of one pair, so that intervals do not cover training randomness."""
    return len(np.unique(scores.pair)) < 2


def contrasts(claim: Claim, settings: dict[Setting, Any]) -> list[Contrast]:
    """All contrasts of a claim that were run."""
    networks = networks_of(settings)
    compared = []
    for join in claim.joins:
        for a, b in pairs(join, networks):
            for comparison in join.compare:
                compared += _of_pair(comparison, a, b, settings)
    return compared


def _of_pair(
    comparison: Contrast, a: Setting, b: Setting, settings: dict[Setting, Any]
) -> Iterator[Contrast]:
    """One comparison of two settings, for each of its attacks."""
    if comparison.swap:
        a, b = b, a
    of_models = comparison.metric in OF_MODELS
    words = comparison.compared
    if not words:
        words = f"{{a.models}} {'/' if comparison.ratio else '-'} {{b.models}}"
        if not of_models and not comparison.attacks:
            words += ", {attacks}"
    for side_a, side_b in _sides(comparison.attacks, a, b, settings):
        named = {
            "a": a,
            "b": b,
            "attack": side_a[0].attack,
            "other": side_b[0].attack,
            "attacks": _worst_case(side_a, side_b),
        }
        if of_models:  # all attacks on a model share them
            side_a, side_b = side_a[:1], side_b[:1]
        sides = [side_a]
        if not comparison.minus:
            sides.append(side_b)
            if comparison.beyond:
                sides += [(side[0]._replace(**comparison.beyond),) for side in sides]
        contrast = comparison._replace(
            part=comparison.part.format(**named),
            compared=words.format(**named),
            sides=tuple(sides),
        )
        if contrast.settings <= settings.keys():
            yield contrast


def _sides(
    attacks: list | str, a: Setting, b: Setting, settings: dict[Setting, Any]
) -> Iterator[tuple[tuple, tuple]]:
    """(side of a, side of b) for each of the attacks, as a `Contrast` has them."""
    if not attacks:
        side_a, side_b = strongest(settings, a, b)
        if side_a:
            yield side_a, side_b
        return
    if attacks == "in order under b":
        attacks = _ordered_under(settings, a, b)
        b = a
    elif attacks in ("each", "each of several"):
        common = _common_attacks(settings, a, b)
        attacks = common if attacks == "each" or len(common) > 1 else []
    elif isinstance(attacks, str):
        attacks = [attacks]
    for attack in attacks:
        attack_a, attack_b = (attack, attack) if isinstance(attack, str) else attack
        first = a._replace(attack=attack_a)
        second = b._replace(attack=attack_b)
        if first in settings and second in settings:
            yield (first,), (second,)


def _common_attacks(settings: dict[Setting, Any], *networks: Setting) -> list[str]:
    """The attacks that all of these networks have."""
    attacks = dict.fromkeys(setting.attack for setting in settings)
    return [
        attack
        for attack in attacks
        if all(network._replace(attack=attack) in settings for network in networks)
    ]


def _ordered_under(
    settings: dict[Setting, Scores], a: Setting, b: Setting
) -> Iterator[tuple[str, str]]:
    """Two attacks that both settings have, of which the first is surely stronger under b."""
    under_b = {}
    for attack in _common_attacks(settings, a, b):
        under_b[attack] = settings[b._replace(attack=attack)]
    auc = {attack: per_target_metrics(scores, ())[:, 0] for attack, scores in under_b.items()}
    for better, worse in permutations(auc, 2):
        if interval(auc[better] - auc[worse], under_b[better].pair)[0] > 0:
            yield better, worse


def strongest(settings: dict[Setting, Any], a: Setting, b: Setting) -> list[tuple[Setting, ...]]:
    """For each of two networks the attacks that both have; the strongest counts, so that families
    are compared by their worst case. The tuples may be empty.

    A stochastic network also has the attacks that only such networks allow (`STOCHASTIC_ONLY`), if
    all stochastic networks have them.
    """
    common = _common_attacks(settings, a, b)
    stochastic = [network for network in (a, b) if network.stochastic]
    possible = _common_attacks(settings, *stochastic)
    added = [name for name in STOCHASTIC_ONLY if name in possible and name not in common]
    sides = []
    for network in (a, b):
        attacks = common + added if common and network.stochastic else common
        sides.append(tuple(network._replace(attack=attack) for attack in attacks))
    return sides


def _worst_case(side: tuple, other: tuple) -> str:
    """The attacks of a side in words, and those of the other side if its words differ."""
    words = []
    for attacks in (side, other):
        several = f"strongest of {len(attacks)} attacks"
        words.append(several if len(attacks) > 1 else attacks[0].attack)
    return " against ".join(dict.fromkeys(words))
