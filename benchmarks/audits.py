"""How often does the audit of one finished model say that members are given away?

    nice -n 10 python benchmarks/audits.py [--worlds 400]

One line a world: how often the decision of `mia_nb.audit` says so (level .025), beside a
permutation test of the loss alone (its mean, and its ranks), what two other tools report, and five
attacks at Bonferroni's level on half of the non-members. In the first worlds there is nothing to
find, in the others members are given away.

Neither tool decides. Each gets an exact permutation test, at the same level, of the number that it
reports. TensorFlow Privacy's threshold attack reports the largest |TPR - FPR| over all thresholds of
the loss, and an area under the ROC, whose test is that of the loss's ranks. LeakPro's population
attack sets 100 thresholds, at quantiles from 1e-5 to 1 of the losses of samples that are not
audited, and reports the area under the ROC of these thresholds; here half of the non-members (whole
groups, where they are told) are not audited. Sources: README and `run_attacks` of TensorFlow
Privacy's membership_inference_attack; LeakPro's `attack_p`, after Ye et al. 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from common import head, options, report, row
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from mia_nb.attacks import score
from mia_nb.attacks.margins import log_p
from mia_nb.attacks.single import attack_p
from mia_nb.auditing.alone import ALONE
from mia_nb.auditing.decision import LOSS, compared_means
from mia_nb.metrics import clopper_pearson
from mia_nb.metrics.permutation import LEVEL, membership_test, mid_ranks, pure_units
from mia_nb.types import Scores, Signals

WORLDS = 400
PERMUTATIONS = 999
QUANTILES = np.logspace(-5, 0, 100)
WAYS = (
    "audit",
    "mean loss",
    "ranks of the loss",
    "TF Privacy, advantage",
    "LeakPro, population",
    "Bonferroni, half",
)


def logistic(
    rng: np.random.Generator, *, side: int = 250, features: int = 24, classes: int = 2, leak: bool
) -> tuple[Signals, None]:
    """A logistic regression, C = 1, on noisy labels; without a leak it was fitted on others."""
    count = 3 * side
    x = rng.normal(size=(count, features))
    z = x @ rng.normal(size=(features, classes)) / np.sqrt(features)
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    fitted = slice(0, side) if leak else slice(2 * side, count)
    model = LogisticRegression(C=1.0).fit(x[fitted], y[fitted])
    audited = slice(0, 2 * side)
    return _signals(model.predict_log_proba(x[audited]), y[audited]), None


def margins(
    rng: np.random.Generator, *, side: int, exposed: float = 0.0, shift: float = 0.0
) -> tuple[Signals, None]:
    """Logits that are better for the true class; a share of members is exposed by 40 nats, and all
    by a shift.
    """
    y = rng.integers(0, 5, 2 * side)
    z = rng.normal(size=(2 * side, 5))
    gain = 2 + 1.5 * rng.normal(size=2 * side)
    gain[:side] += shift
    gain[rng.permutation(side)[: round(exposed * side)]] += 40
    z[np.arange(2 * side), y] += gain
    return _signals(z, y), None


def patients(rng: np.random.Generator, *, side: int = 15) -> tuple[Signals, np.ndarray]:
    """So many patients a side with ten images each, which are alike; nobody is given away."""
    group = np.repeat(np.arange(2 * side), 10)
    y = rng.integers(0, 5, len(group))
    z = rng.normal(size=(len(group), 5))
    z[np.arange(len(group)), y] += 2 + 4 * rng.normal(size=2 * side)[group]
    return _signals(z, y), group


def _signals(logits: np.ndarray, labels: np.ndarray) -> Signals:
    member = np.arange(len(labels)) < len(labels) // 2
    return Signals.from_logits(logits[None], labels, member[None])


KINDS: dict[str, Callable] = {
    "nothing, logistic, 250 + 250": partial(logistic, leak=False),
    "nothing, 12 + 12": partial(margins, side=12),
    "nothing, 15 + 15 groups of ten, told": patients,
    "logistic, 2 classes, 250 + 250": partial(logistic, leak=True),
    "5 % wholly exposed, 500 + 500": partial(margins, side=500, exposed=0.05),
    "logistic, 3 classes, 250 + 250": partial(logistic, leak=True, features=12, classes=3),
    "every member a little, 250 + 250": partial(margins, side=250, shift=0.35),
    "2 % wholly exposed, 500 + 500": partial(margins, side=500, exposed=0.02),
}


def decisions(signals: Signals, groups: np.ndarray | None, seed: int) -> dict[str, bool]:
    """What each way says of one world."""
    member = signals.member[0]
    units = None if groups is None else pure_units(groups, member)
    scores = {name: score(attack, signals) for name, attack in ALONE.items()}
    means = compared_means(signals)
    evidence = membership_test(
        {name: found.value[0] for name, found in scores.items()},
        member,
        means=means,
        units=units,
        permutations=PERMUTATIONS,
        seed=seed,
    )
    number = np.arange(len(member))
    if units is not None:
        number = np.unique(units, return_inverse=True)[1]
    fit = scores["loss"].value[0]  # larger where the loss is smaller
    deals = _deals(member, number, seed)
    numbers = {
        "mean loss": _differences(means[LOSS], deals[:, number]),
        "ranks of the loss": _differences(mid_ranks(fit), deals[:, number]),
        "TF Privacy, advantage": _advantages(fit, deals[:, number]),
        "LeakPro, population": _against_population(fit, member, number, seed),
    }
    # the first deal is the true one
    accused = {way: (found >= found[0] - 1e-12).mean() <= LEVEL for way, found in numbers.items()}
    return {
        "audit": evidence.p <= LEVEL,
        **accused,
        "Bonferroni, half": _bonferroni(signals, seed),
    }


def _deals(member: np.ndarray, unit: np.ndarray, seed: int) -> np.ndarray:
    """(1 + PERMUTATIONS, units) bool: which units are members, truly and in each deal."""
    rng = np.random.default_rng(seed)
    inside = np.bincount(unit, member) > 0
    deals = rng.permuted(np.broadcast_to(inside, (PERMUTATIONS, len(inside))), axis=1)
    return np.concatenate([inside[None], deals])


def _differences(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """(deals,) mean of the values (N,) over members (deals, N) less the mean over the others."""
    centred = values - values.mean()
    count = members.sum(1)
    sums = members.astype(float) @ centred
    return sums / (count * (len(values) - count)) * len(values)


def _advantages(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """(deals,) largest |TPR - FPR| over all thresholds of the values (N,), members (deals, N)."""
    falling = np.argsort(-values)
    ordered = members[:, falling]
    tpr = ordered.cumsum(1) / ordered.sum(1, keepdims=True)
    fpr = (~ordered).cumsum(1) / (~ordered).sum(1, keepdims=True)
    # a threshold does not part samples that are equal
    last = np.append(np.diff(values[falling]) != 0, True)
    return np.abs(tpr - fpr)[:, last].max(1)


def _against_population(
    fit: np.ndarray, member: np.ndarray, unit: np.ndarray, seed: int
) -> np.ndarray:
    """(deals,) how much higher members rank than others by the number of thresholds of LeakPro's
    population attack that their loss lies below, which is its area under the ROC but for a constant
    and a factor. Half of the units of non-members set the thresholds.
    """
    outside = np.unique(unit[~member])
    away = np.random.default_rng(seed).permutation(outside)[: len(outside) // 2]
    aside = np.isin(unit, away)
    loss = -log_p(fit)
    thresholds = np.quantile(loss[aside], QUANTILES)
    audited = ~aside
    crossed = (loss[audited, None] < thresholds).sum(1)
    number = np.unique(unit[audited], return_inverse=True)[1]
    deals = _deals(member[audited], number, seed)
    return _differences(mid_ranks(crossed), deals[:, number])


def _bonferroni(signals: Signals, seed: int) -> bool:
    """Does one of five attacks' normal intervals at 1 - .05 / 5 lie above an AUC of 1/2, where half
    of the non-members are a population? Samples count as independent.
    """
    outside = np.flatnonzero(~signals.member[0])
    away = np.random.default_rng(seed).permutation(outside)[: len(outside) // 2]
    population = np.isin(np.arange(len(signals.labels)), away)
    halved = replace(signals, population=population)
    attacks = ALONE | {"attack_p": partial(attack_p, form="population")}
    scores = [score(attack, halved) for attack in attacks.values()]
    wanted = norm.isf(0.05 / len(attacks) / 2)
    return any(_standard_errors(found) > wanted for found in scores)


def _standard_errors(scores: Scores) -> float:
    """How many of its standard errors (DeLong's) an AUC lies above 1/2."""
    value = scores.value[0]
    member = scores.member[0]
    inside = value[member]
    outside = value[~member]
    rank = mid_ranks(value)
    # the share of the other side below each sample, ties for one half
    above_others = (rank[member] - mid_ranks(inside)) / len(outside)
    below_members = 1 - (rank[~member] - mid_ranks(outside)) / len(inside)
    variance = above_others.var(ddof=1) / len(inside) + below_members.var(ddof=1) / len(outside)
    difference = above_others.mean() - 0.5
    return difference / np.sqrt(variance) if variance > 0 else np.sign(difference) * np.inf


def measured(name: str, number: int, worlds: int) -> list[str]:
    """A row of the table."""
    accused = dict.fromkeys(WAYS, 0)
    for seed in range(worlds):
        signals, groups = KINDS[name](np.random.default_rng([number, seed]))
        for way, leaks in decisions(signals, groups, seed).items():
            accused[way] += leaks
    cells = []
    for count in accused.values():
        low, high = clopper_pearson(count, worlds)
        cells.append(f"{count} [{100 * low:.0f}, {100 * high:.0f} %]")
    return [name, *cells]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--worlds", type=int, default=WORLDS)
    given = parser.parse_args()
    worlds = 5 if given.quick else given.worlds
    with report("Audits of one finished model", given.quick):
        print(f"Of {worlds} worlds those in which members are said to be given away.\n")
        head(["world", *WAYS])
        for number, name in enumerate(KINDS):
            row(measured(name, number, worlds))


if __name__ == "__main__":
    main()
