"""ROC curves under the trade-off curves of (epsilon, delta): does an attack find more than
differential privacy would allow?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.accounting import gaussian_mu, tradeoff
from mia_nb.plots.curves import (
    LEVEL,
    Counted,
    add_plane,
    add_roc,
    counted_rocs,
    is_resolved,
    log_curve,
)
from mia_nb.plots.scores import named, targets
from mia_nb.plots.style import BELOW, GREY, clauses, finish, listed, looks, translucent
from mia_nb.studies.below_curve import room_below
from mia_nb.types import Scores

RELATION = "add/remove one record"
VACUOUS = 0.99  # a bound above this TPR excludes nothing
COMPARED_AT = (0.0001, 0.001, 0.01, 0.1)  # false positive rates
SHOWN_TARGETS = 16

# (score, member) of each target of an attack, without samples that have no score
ScoredTargets = list[tuple[np.ndarray, np.ndarray]]


class Bound(NamedTuple):
    """A trade-off curve, above which no attack on a private mechanism lies."""

    name: str
    tpr: Callable[[np.ndarray], np.ndarray]  # a function of the false positive rate
    dash: str


def roc_bounds(
    scores: Scores | dict[str, Scores],
    *,
    bounds: Sequence[tuple[float, float]] = ((1.0, 1e-5), (8.0, 1e-5)),
    attempts: int = 1,
) -> go.Figure:
    """ROC of attacks on logarithmic axes under the trade-off curves of (epsilon, delta): Figure 5
    of Hong, Wu, Gruber and Lee.

    Each bound is drawn as the line min(e^eps FPR + delta, 1 - e^-eps (1 - delta - FPR), 1) and as
    the Gaussian curve Phi(Phi^-1(FPR) + mu) of equal (epsilon, delta), from FPR 1 / (10 n0) to 1,
    faint where it exceeds 0.99 and so allows everything. Thick: mean over targets; thin: up to 16
    targets, a spread and not a confidence interval, as targets share records and references. Band:
    95 %, pointwise, the wider of Clopper-Pearson for one target's members at the mean TPR and
    Student t over pairs.

    A target is called above a bound only if the exact lower end of its TPR is above the curve at
    the upper end of its FPR. FPRs 1e-4, 1e-3, 1e-2, 1e-1 are compared as far as they allow 10 false
    positives, jointly at 95 % over all comparisons (Bonferroni).

    Parameters:
        scores: scores of one attack, or {name: Scores}
        bounds: pairs (epsilon, delta)
        attempts: number of attacks from which each of the drawn ones was chosen

    Raises:
        ValueError: for epsilons below 0 and deltas outside [0, 1).

    Caveat: one training is one trial, so neither a curve above a bound nor one below it is a formal
    statement on a mechanism.
    """
    scores = named(scores)
    curves = {}
    shown_targets = {}
    for name, attack in scores.items():
        counted = counted_rocs(attack)
        curves[name] = log_curve(counted)
        # only those that are drawn: the curves of all targets of all attacks would fill the memory
        shown_targets[name] = counted._replace(rocs=counted.rocs[:SHOWN_TARGETS])
    curves_of_bounds = []
    for i, (epsilon, delta) in enumerate(bounds):
        curves_of_bounds += _bounds(epsilon, delta, i)
    start = 1 / (10 * max(curve.n0 for curve in curves.values()))
    figure = make_subplots(1, 1)
    add_plane(figure, min(curves.values(), key=lambda curve: curve.n0), log=True)
    for bound in curves_of_bounds:
        _add_bound(figure, bound, start)
    style_of = looks(scores)
    for name in scores:
        if len(shown_targets[name].rocs) > 1:
            _add_targets(figure, name, shown_targets[name], style_of[name].colour)
        add_roc(figure, name, curves[name], style_of[name], log=True)
    pairs = {name: targets(attack) for name, attack in scores.items()}
    rates = {name: _resolved_rates(of_attack) for name, of_attack in pairs.items()}
    compared = sorted(set().union(*rates.values()))
    drawn = "one target"
    count = max(len(attack.targets) for attack in scores.values())
    if count > 1:
        drawn = f"mean of {count} targets; thin: each (a spread, no confidence interval)"
    return finish(
        figure,
        _above(pairs, rates, curves_of_bounds, attempts),
        clauses(
            drawn,
            f"band {LEVEL:.0%} pointwise",
            f"grey: bounds ({RELATION})",
            compared and f"compared with them at {listed(f'{100 * x:g} %' for x in compared)}",
        ),
        height=520,
        legend=BELOW,
        xaxis_range=[math.log10(start), 0.01],
        yaxis_range=[-math.log10(max(curve.n1 for curve in curves.values())), 0.02],
    )


def _bounds(epsilon: float, delta: float, i: int) -> list[Bound]:
    """The line, and the Gaussian curve of equal (epsilon, delta) if there is one; number i of the
    pairs (epsilon, delta) decides the dashes.
    """
    name = f"epsilon {epsilon:g}, delta {delta:g}"
    line = partial(tradeoff, epsilon=epsilon, delta=delta)
    bounds = [Bound(name, line, ("dash", "longdash")[i % 2])]
    mu = gaussian_mu(epsilon, delta) if delta else 0
    if mu:
        bounds.append(Bound(f"GDP of {name}", partial(tradeoff, mu=mu), ("dot", "dashdot")[i % 2]))
    return bounds


def _add_bound(figure: go.Figure, bound: Bound, start: float) -> None:
    """The curve from FPR `start` to 1, faint where it allows everything."""
    fpr = np.geomspace(start, 1, 400)
    tpr = np.asarray(bound.tpr(fpr))
    split = int((tpr <= VACUOUS).sum())  # curves rise, so the vacuous part is on the right
    for part, colour, width in (
        (slice(0, split + 1), GREY, 1.8),
        (slice(split, None), translucent(GREY, 0.3), 1.2),
    ):
        figure.add_scatter(
            x=fpr[part],
            y=tpr[part],
            mode="lines",
            name=bound.name,
            legendgroup=bound.name,
            showlegend=colour == GREY,
            line={"color": colour, "dash": bound.dash, "width": width},
            hovertemplate=f"{bound.name}: at most %{{y:.2%}} at %{{x:.3%}}<extra></extra>",
        )


def _add_targets(figure: go.Figure, name: str, counted: Counted, colour: str) -> None:
    """A thin line for each target."""
    for row, roc in enumerate(counted.rocs):
        of_target = counted._replace(rocs=[roc], pair=counted.pair[[row]])
        curve = log_curve(of_target)
        figure.add_scatter(
            x=curve.fpr.astype(np.float32),
            y=curve.tpr.astype(np.float32),
            mode="lines",
            legendgroup=name,
            showlegend=False,
            line={"color": translucent(colour, 0.3), "width": 0.8, "shape": "hv"},
            hoverinfo="skip",
            name=f"{name}, target",
        )


def _above(
    pairs: dict[str, ScoredTargets],
    rates: dict[str, list[float]],
    bounds: list[Bound],
    attempts: int,
) -> str:
    """The attacks that are resolved above bounds, in words.

    Parameters:
        pairs: of each attack.
        rates: the false positive rates at which each attack is compared.
        bounds: with the line of a pair (epsilon, delta) before its Gaussian curve.
        attempts: number of attacks from which each one was chosen.
    """
    comparisons_a_bound = sum(len(rates[name]) * len(pairs[name]) for name in pairs)
    comparisons = attempts * len(bounds) * comparisons_a_bound
    if not comparisons:
        return "too few non-members to compare any curve with a bound"
    confidence = 1 - (1 - LEVEL) / comparisons
    above: dict[tuple[str, str], str] = {}
    for name, pairs_of_attack in pairs.items():
        for bound in bounds:
            if (name, bound.name.removeprefix("GDP of ")) in above:
                continue  # the Gaussian curve lies below the line: nothing new
            where = _where_above(pairs_of_attack, rates[name], bound, confidence)
            if where:
                above[name, bound.name] = f"{name} is above {bound.name} at FPR {listed(where)}"
    if not above:
        return f"no curve is above a bound ({LEVEL:.0%} over {comparisons} looks together)"
    return clauses(*above.values())


def _where_above(
    pairs: ScoredTargets, rates: list[float], bound: Bound, confidence: float
) -> list[str]:
    """The rates at which targets are above a bound, and the numbers of such targets, in words."""
    where = []
    for x in rates:
        count = 0
        for score, member in pairs:
            _, _, room = room_below(score, member, x, bound.tpr, (confidence,))
            count += room < 0
        if count:
            of_targets = f" ({count} of {len(pairs)})" if len(pairs) > 1 else ""
            where.append(f"{100 * x:g} %{of_targets}")
    return where


def _resolved_rates(pairs: ScoredTargets) -> list[float]:
    """The rates at which every target has enough non-members for ten false positives."""
    n0 = min((~member).sum() for _, member in pairs)
    return [x for x in COMPARED_AT if is_resolved(x, n0)]
