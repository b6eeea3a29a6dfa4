"""ROC curves under the trade-off curves of (epsilon, delta): does an attack find more than
differential privacy would allow?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mia_nb.accounting import gaussian_mu, tradeoff
from mia_nb.plots.curves import LEVEL, Counted, add_plane, add_roc, averaged, counted, is_resolved
from mia_nb.plots.scores import named, targets
from mia_nb.plots.style import BELOW, GREY, clauses, finish, listed, looks, translucent
from mia_nb.studies.below_curve import room_below
from mia_nb.types import Scores

RELATION = "add/remove one record"
VACUOUS = 0.99  # a bound above this TPR excludes nothing
# false positive rates at which a ROC is compared with a curve
LOOKED_AT = (0.0001, 0.001, 0.01, 0.1)
SHOWN_TARGETS = 16


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
    thin = {}
    for name, attack in scores.items():
        of_attack = counted(attack)
        curves[name] = averaged(of_attack, log=True)
        # only those that are drawn: the curves of all targets of all attacks would fill the memory
        thin[name] = of_attack._replace(rocs=of_attack.rocs[:SHOWN_TARGETS])
    lines = []
    for i, (epsilon, delta) in enumerate(bounds):
        lines += _bounds(epsilon, delta, i)
    n0s = [curve.n0 for curve in curves.values()]
    start = 1 / (10 * max(n0s))
    figure = make_subplots(1, 1)
    add_plane(figure, min(curves.values(), key=lambda curve: curve.n0), log=True)
    for line in lines:
        _add_bound(figure, *line, start)
    style_of = looks(scores)
    for name in scores:
        if len(thin[name].rocs) > 1:
            _add_targets(figure, name, thin[name], style_of[name].colour)
        add_roc(figure, name, curves[name], style_of[name], log=True)
    sentence, rates = _above(scores, lines, attempts)
    count = max(len(attack.targets) for attack in scores.values())
    several = f"mean of {count} targets; thin: each (a spread, no confidence interval)"
    return finish(
        figure,
        sentence,
        clauses(
            several if count > 1 else "one target",
            f"band {LEVEL:.0%} pointwise",
            f"grey: bounds ({RELATION})",
            rates and f"compared with them at {listed(f'{100 * x:g} %' for x in rates)}",
        ),
        height=520,
        legend=BELOW,
        xaxis_range=[math.log10(start), 0.01],
        yaxis_range=[-math.log10(max(curve.n1 for curve in curves.values())), 0.02],
    )


def _bounds(epsilon: float, delta: float, i: int) -> list[tuple[str, Callable, str]]:
    """(name, fpr -> tpr, dash) of the line and of the Gaussian curve of equal (epsilon, delta)."""
    name = f"epsilon {epsilon:g}, delta {delta:g}"
    lines = [(name, partial(tradeoff, epsilon=epsilon, delta=delta), ("dash", "longdash")[i % 2])]
    if delta and (mu := gaussian_mu(epsilon, delta)):
        lines.append((f"GDP of {name}", partial(tradeoff, mu=mu), ("dot", "dashdot")[i % 2]))
    return lines


def _add_bound(figure: go.Figure, name: str, curve: Callable, dash: str, start: float) -> None:
    fpr = np.geomspace(start, 1, 400)
    tpr = np.asarray(curve(fpr))
    split = int((tpr <= VACUOUS).sum())  # curves rise, so the vacuous part is on the right
    for part, colour, width in (
        (slice(0, split + 1), GREY, 1.8),
        (slice(split, None), translucent(GREY, 0.3), 1.2),
    ):
        figure.add_scatter(
            x=fpr[part],
            y=tpr[part],
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=colour == GREY,
            line={"color": colour, "dash": dash, "width": width},
            hovertemplate=f"{name}: at most %{{y:.2%}} at %{{x:.3%}}<extra></extra>",
        )


def _add_targets(figure: go.Figure, name: str, curves: Counted, colour: str) -> None:
    """A thin line for each target."""
    for row, roc in enumerate(curves.rocs):
        of_target = curves._replace(rocs=[roc], pair=curves.pair[[row]])
        curve = averaged(of_target, log=True)
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


def _above(scores: dict[str, Scores], lines: list[tuple], attempts: int) -> tuple[str, list[float]]:
    """(the attacks that are resolved above bounds, in words; the compared rates)."""
    pairs = {name: targets(attack) for name, attack in scores.items()}
    rates = {name: _resolved_rates(pairs_of_attack) for name, pairs_of_attack in pairs.items()}
    compared = sorted(set().union(*rates.values()))
    looks_at = sum(len(rates[name]) * len(pairs[name]) for name in pairs)
    number_of_tests = len(lines) * looks_at
    if not number_of_tests:
        return "too few non-members to compare any curve with a bound", compared
    confidence = 1 - (1 - LEVEL) / (attempts * number_of_tests)
    above: dict[tuple[str, str], str] = {}
    for name, pairs_of_attack in pairs.items():
        for bound, curve, _ in lines:
            if (name, bound.removeprefix("GDP of ")) in above:
                continue  # the Gaussian curve lies below the line: nothing new
            where = _where_above(pairs_of_attack, rates[name], curve, confidence)
            if where:
                above[name, bound] = f"{name} is above {bound} at FPR {listed(where)}"
    together = f"{LEVEL:.0%} over {attempts * number_of_tests} looks together"
    return clauses(*above.values()) or f"no curve is above a bound ({together})", compared


def _where_above(
    pairs: list[tuple[np.ndarray, np.ndarray]],
    rates: list[float],
    curve: Callable,
    confidence: float,
) -> list[str]:
    """The rates at which targets are above a curve, and the numbers of such targets, in words."""
    where = []
    for x in rates:
        rooms = [room_below(*pair, x, curve, (confidence,))[2] for pair in pairs]
        count = sum(room < 0 for room in rooms)
        if count:
            of_targets = f" ({count} of {len(rooms)})" if len(rooms) > 1 else ""
            where.append(f"{100 * x:g} %{of_targets}")
    return where


def _resolved_rates(pairs: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """The rates at which every target has enough non-members for ten false positives."""
    n0 = min((~member).sum() for _, member in pairs)
    return [x for x in LOOKED_AT if is_resolved(x, n0)]
