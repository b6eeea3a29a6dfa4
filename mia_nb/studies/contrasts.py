"""The contrasts between settings that a claim compares."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from mia_nb.metrics.targets import per_target_metrics
from mia_nb.metrics.uncertainty import interval
from mia_nb.studies.joins import networks_of, pairs
from mia_nb.studies.settings import Setting
from mia_nb.studies.study import Claim, Study
from mia_nb.types import Scores

TPR = "tpr"  # stands for the TPR at the smallest FPR that all settings can measure
STOCHASTIC_ONLY = ("lira_joint",)  # attacks that use how the outputs of several queries differ
OF_MODELS = ("test_accuracy", "gap")


RANGES = {"leak": (-0.5, 0.5), "gap": (-1.0, 1.0)}  # of metrics that are no rates


class Contrast(NamedTuple):
    """A weighted sum over sides; a side is one setting, or the strongest of several attacks.

    The fields are those of `compare` in a study's file.
    """

    part: str
    compared: str
    terms: tuple[tuple[int, tuple[Setting, ...]], ...]
    metric: str = "auc"
    needed: bool = True
    margin: float = 0.0
    above: float = 0.0
    ratio: bool = False
    minus: str = ""
    tpr: bool = True

    @property
    def first(self) -> Setting:
        return self.terms[0][1][0]

    @property
    def settings(self) -> set[Setting]:
        """Every setting on a side."""
        return {setting for _, side in self.terms for setting in side}

    def weighted(self, values: list[Any]) -> Any:
        """The weighted sum of the sides' values, numbers or arrays, minus the value at chance where
        the contrast is with chance.
        """
        chance = 0.0
        if self.minus == "chance":
            chance = 0.5 if self.metric == "auc" else rate_of(self.metric)
        weights = [weight for weight, _ in self.terms]
        return sum(weight * value for weight, value in zip(weights, values, strict=True)) - chance

    @property
    def possible(self) -> tuple[float, float]:
        """The smallest and the largest weighted sum that there can be."""
        low, high = RANGES.get(self.metric, (0.0, 1.0))
        positive = [weight > 0 for weight, _ in self.terms]
        smallest = self.weighted([low if side else high for side in positive])
        largest = self.weighted([high if side else low for side in positive])
        return smallest, largest

    def outcome(self, ends: tuple[float, float], simultaneous: tuple[float, float]) -> str:
        """ "for" or "against" the claim, or "open".

        Parameters:
            ends: (low, high) of the interval at the level asked for, which decides "for"
            simultaneous: (low, high) of the interval that holds for all comparisons jointly, which
                decides "against"; NaN decides nothing
        """
        low, high = ends
        simultaneous_low, simultaneous_high = simultaneous
        if self.margin:
            holds = -self.margin < low and high < self.margin
            fails = simultaneous_low > self.margin or simultaneous_high < -self.margin
        else:
            holds = low > self.above
            fails = simultaneous_high < self.above
        if holds:
            return "for"
        # A model at chance has TPR = FPR, and no TPR exceeds 1: a claimed ratio above 1 / FPR
        # cannot be reached, so a smaller one is not evidence against the claim.
        out_of_reach = self.ratio and self.above * rate_of(self.metric) > 1 - 1e-9
        return "against" if fails and not out_of_reach else "open"

    def row(
        self, value: float, ends: tuple[float, float], simultaneous: tuple[float, float]
    ) -> dict[str, object]:
        """One row of `compare.compare`, without the claim: a value of the contrast with its
        intervals, as in `outcome`.
        """
        return {
            "part": self.part,
            "compared": self.compared,
            "metric": f"ratio of {self.metric}" if self.ratio else self.metric,
            "needed": self.needed,
            "value": float(value),
            "low": ends[0],
            "high": ends[1],
            "simultaneous_low": simultaneous[0],
            "simultaneous_high": simultaneous[1],
            "margin": self.margin,
            "outcome": self.outcome(ends, simultaneous),
        }


def rate_of(metric: str) -> float:
    """The FPR in a metric's name; 0 where there is none."""
    return float(metric.partition("tpr@")[2] or 0)


def one_pair(scores: Scores) -> bool:
    """Whether all targets are of one pair, so that intervals do not cover training randomness."""
    return len(np.unique(scores.pair)) < 2


def contrasts(study: Study, claim: Claim, settings: dict[Setting, Any]) -> list[Contrast]:
    """All contrasts of a claim that the study's verdict needs and that were run."""
    networks = networks_of(settings)
    compared = []
    for join in claim.joins:
        for a, b in pairs(join, networks, study.selections):
            for comparison in join["compare"]:
                if comparison.get("verdict", study.verdict) == study.verdict:
                    compared += _contrasts(comparison, a, b, settings)
    return compared


def _contrasts(
    comparison: dict, a: Setting, b: Setting, settings: dict[Setting, Any]
) -> Iterator[Contrast]:
    """One comparison of two settings, for each of its attacks."""
    if comparison.get("swap"):
        a, b = b, a
    of_models = comparison.get("metric") in OF_MODELS
    sign = "/" if comparison.get("ratio") else "-"
    compared = f"{{a.models}} {sign} {{b.models}}"
    if not of_models and "attack" not in comparison and "attacks" not in comparison:
        compared += ", {attacks}"
    compared = comparison.get("compared", compared)
    options = {name: comparison[name] for name in Contrast._fields if name in comparison}
    for attack, side_a, side_b in _sides(comparison, a, b, settings):
        words = {
            "a": a,
            "b": b,
            "attack": attack,
            "other": side_b[0].attack,
            "attacks": _worst_case(side_a, side_b),
        }
        if of_models:  # all attacks on a model share them
            side_a, side_b = side_a[:1], side_b[:1]
        options["part"] = comparison["part"].format(**words)
        options["compared"] = compared.format(**words)
        contrast = Contrast(**options, terms=_terms(comparison, side_a, side_b))
        if contrast.settings <= settings.keys():
            yield contrast


def _terms(comparison: dict, side_a: tuple, side_b: tuple) -> tuple[tuple[int, tuple], ...]:
    """The sides with their weights: a minus b, minus the same difference "beyond" other fields."""
    terms = [(1, side_a)]
    if not comparison.get("minus"):
        terms.append((-1, side_b))
    subtracted = []
    if "beyond" in comparison:
        for weight, side in terms:
            subtracted.append((-weight, (side[0]._replace(**comparison["beyond"]),)))
    return (*terms, *subtracted)


def _sides(
    comparison: dict, a: Setting, b: Setting, settings: dict[Setting, Any]
) -> Iterator[tuple[str, tuple, tuple]]:
    """(attack, side of a, side of b) for each attack of a comparison that both settings have."""
    if "attacks" in comparison:
        attacks = comparison["attacks"]
    elif "attack" in comparison:
        attacks = [comparison["attack"]]
    else:
        side_a, side_b = strongest(settings, a, b)
        if side_a:
            yield "", side_a, side_b
        return
    if attacks == "in order under b":
        attacks = _ordered_under(settings, a, b)
        b = a
    elif attacks == "each":
        attacks = _common_attacks(settings, a, b)
    elif attacks == "each of several":
        common = _common_attacks(settings, a, b)
        attacks = common if len(common) > 1 else []
    for attack in attacks:
        attack_a, attack_b = (attack, attack) if isinstance(attack, str) else attack
        first = a._replace(attack=attack_a)
        second = b._replace(attack=attack_b)
        if first in settings and second in settings:
            yield attack_a, (first,), (second,)


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
