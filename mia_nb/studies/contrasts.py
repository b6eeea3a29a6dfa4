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
OF_MODELS = ("test_accuracy", "gap")  # metrics of models, and of no attack
Side = tuple[Setting, ...]


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
    words = comparison.compared or _usual_words(comparison)
    for side_a, side_b in _sides(comparison.attacks, a, b, settings):
        named = {
            "a": a,
            "b": b,
            "attack": side_a[0].attack,
            "other": side_b[0].attack,
            "attacks": _worst_case(side_a, side_b),
        }
        if comparison.metric in OF_MODELS:  # all attacks on a model share them
            side_a = side_a[:1]
            side_b = side_b[:1]
        contrast = comparison._replace(
            part=comparison.part.format(**named),
            compared=words.format(**named),
            sides=_sides_of_sum(comparison, side_a, side_b),
        )
        if contrast.settings <= settings.keys():
            yield contrast


def _usual_words(comparison: Contrast) -> str:
    """What stands for `compared` where a comparison has no words of its own."""
    sign = "/" if comparison.ratio else "-"
    words = f"{{a.models}} {sign} {{b.models}}"
    if comparison.metric in OF_MODELS or comparison.attacks:
        return words
    return words + ", {attacks}"


def _sides_of_sum(comparison: Contrast, side_a: Side, side_b: Side) -> tuple[Side, ...]:
    """The sides whose weighted sum is taken, in the order of `study.WEIGHTS`."""
    if comparison.minus:
        return (side_a,)
    if not comparison.beyond:
        return side_a, side_b
    beyond_a = side_a[0]._replace(**comparison.beyond)
    beyond_b = side_b[0]._replace(**comparison.beyond)
    return side_a, side_b, (beyond_a,), (beyond_b,)


def _sides(
    attacks: list | str, a: Setting, b: Setting, settings: dict[Setting, Any]
) -> Iterator[tuple[Side, Side]]:
    """(side of a, side of b) for each of the attacks, as a `Contrast` has them."""
    if not attacks:
        side_a, side_b = strongest(settings, a, b)
        if side_a:
            yield side_a, side_b
        return
    if attacks == "in order under b":
        attack_pairs = _ordered_under(settings, a, b)
        b = a  # both attacks are compared on a
    else:
        attack_pairs = _attack_pairs(attacks, a, b, settings)
    for attack_a, attack_b in attack_pairs:
        setting_a = a._replace(attack=attack_a)
        setting_b = b._replace(attack=attack_b)
        if setting_a in settings and setting_b in settings:
            yield (setting_a,), (setting_b,)


def _attack_pairs(
    attacks: list | str, a: Setting, b: Setting, settings: dict[Setting, Any]
) -> list[tuple[str, str]]:
    """(attack on a, attack on b) for each entry of `attacks`, in the forms of a `Contrast`."""
    if attacks in ("each", "each of several"):
        common = _common_attacks(settings, a, b)
        if attacks == "each of several" and len(common) == 1:
            return []
        attacks = common
    elif isinstance(attacks, str):
        attacks = [attacks]
    attack_pairs = []
    for entry in attacks:
        attack_a, attack_b = (entry, entry) if isinstance(entry, str) else entry
        attack_pairs.append((attack_a, attack_b))
    return attack_pairs


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
    auc = {}
    for attack in _common_attacks(settings, a, b):
        scores = settings[b._replace(attack=attack)]
        auc[attack] = per_target_metrics(scores, ())[:, 0]
    for stronger, weaker in permutations(auc, 2):
        pair = settings[b._replace(attack=stronger)].pair
        low, _ = interval(auc[stronger] - auc[weaker], pair)
        if low > 0:
            yield stronger, weaker


def strongest(settings: dict[Setting, Any], a: Setting, b: Setting) -> tuple[Side, Side]:
    """(side of a, side of b): the attacks that both networks have, of which the strongest will
    count, so that families are compared by their worst case. Without a common attack both are
    empty.

    A stochastic network also has the attacks that only such networks allow (`STOCHASTIC_ONLY`), if
    they were run on every stochastic network of the two.
    """
    common = _common_attacks(settings, a, b)
    if not common:
        return (), ()
    stochastic = [network for network in (a, b) if network.stochastic]
    possible = _common_attacks(settings, *stochastic)
    added = [name for name in STOCHASTIC_ONLY if name in possible and name not in common]

    def side(network: Setting) -> Side:
        attacks = common + added if network.stochastic else common
        return tuple(network._replace(attack=attack) for attack in attacks)

    return side(a), side(b)


def _worst_case(side_a: Side, side_b: Side) -> str:
    """The attacks of the first side in words, and those of the second if its words differ."""
    words = []
    for side in (side_a, side_b):
        if len(side) > 1:
            words.append(f"strongest of {len(side)} attacks")
        else:
            words.append(side[0].attack)
    return " against ".join(dict.fromkeys(words))
