"""Scores and ROC: one threshold, seen as a line in the histogram, a point on the curve, and
numbers.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from mia_nb import metrics, plots
from mia_nb.attacks import in_words
from mia_nb.checks import fraction
from mia_nb.metrics.curve import tie_mass
from mia_nb.plots.curves import band
from mia_nb.plots.style import GREY
from mia_nb.plots.views import rank_among
from mia_nb.types import Scores
from mia_nb.widgets.explorer import (
    Explorer,
    Ticks,
    View,
    buttons,
    chooser,
    dropdown,
    message,
    plain,
    remarks,
    steps,
    with_layout,
    with_line,
    with_title,
    worded,
)
from mia_nb.widgets.pictures import INSIDE, ORACLE, ends, ranked, shown
from mia_nb.widgets.stored import ALL, NOTHING, Source, list_of_sources, named, only

TITLE = "Scores and ROC"
QUESTION = "Where would you put the threshold, and what does it cost?"
PRIORS = {"1/2": 0.5, "1/10": 0.1, "1/100": 0.01}
BOTH = "numbers and star: one threshold for all targets; the curve: a threshold for each"
BAND = "the interval is that of the curve's band, which is wider than a table's"
STEPS = 150  # positions of the threshold
LINED = {"legend": INSIDE, "meta": "drag the line"}


def scores(sources: Sequence[Source], *, attacks: Sequence[str] = (), at: float = 0.1) -> Explorer:
    """Histogram and ROC of one attack on one pool with a movable threshold; other attacks beside it
    to compare.

    Parameters:
        sources: what to choose the pool from, as `sources` gives them
        attacks: names of those to offer; () for all that the pool's references support
        at: false-positive rate, 0 to 1, at which the threshold starts

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Rates are means over targets, with the interval of `plots.roc_pair`: pointwise, the wider of
    Clopper-Pearson on one target's samples and Student t over pairs of targets. PPV = prior TPR /
    (prior TPR + (1 - prior) FPR): the share of right accusations.

    Caveat: the threshold is set with hindsight; an attacker does a little worse.

    Example: `widgets.scores(widgets.sources("results")).set(attack="rmia").sentence`
    """
    sources = list_of_sources(sources)
    fraction("at", at)
    if not sources:
        return message(TITLE, NOTHING)
    pools = named(sources)
    chosen = cache(lambda pool, attack, target: only(pools[pool].scores(attack), target))
    rates = cache(lambda *which: Rates(chosen(*which)))
    auc = cache(lambda *which: metrics.intervals(chosen(*which), (), n_resamples=200).loc["auc"])
    ties = cache(lambda *which: np.mean([tie_mass(row) for row in chosen(*which).value]))

    @cache
    def pictures(
        pool: str, attack: str, target: int | str, others: tuple[str, ...]
    ) -> tuple[dict, dict]:
        drawn = {name: chosen(pool, name, target) for name in dict.fromkeys((attack, *others))}
        return with_layout(ranked(drawn[attack], bins=100), **LINED), plain(plots.roc_pair(drawn))

    def dragged(x: float, values: dict) -> dict:
        which = [values[name] for name in ("pool", "attack", "target")]
        place = rank_of(chosen(*which))
        return {"threshold": min(rates(*which).grid(), key=lambda t: abs(place(t) - x))}

    def offered(pool: str) -> tuple[str, ...]:
        return tuple(attacks or pools[pool].attacks())

    def start(pool: str, attack: str, target: int | str) -> float:
        rates_at = rates(pool, attack, target)
        return min(rates_at.grid(), key=lambda threshold: abs(rates_at(threshold)[1] - at))

    def draw(
        pool: str,
        target: int | str,
        attack: str,
        compare: tuple[str, ...],
        threshold: float,
        prior: float,
    ) -> View:
        """Scores of both sides, the ROC, and what this threshold costs."""
        which = (pool, attack, target)
        scores_of_target = chosen(*which)
        area = auc(*which)
        size = rates(*which).sizes
        tpr, fpr, low, high, tp, fp = rates(*which)(threshold)
        pools = (
            f"{in_words(attack)} finds {100 * tpr:.1f} % of members at {100 * fpr:.3g} %"
            f" false positives (95 %: {100 * low:.1f}-{100 * high:.1f}), n0 = {size[1].min():,}"
        )
        ppv = metrics.ppv(tpr, fpr, PRIORS[prior]) if tp + fp else np.nan
        texts = {
            pools: True,
            f"at a prior of {prior}, {100 * ppv:.3g} % of those accused are members": tp + fp,
            "below resolution: fewer than ten false positives": fpr * size[1].min() < 10,
        }
        row = {
            "threshold (score)": f"{threshold:.4g}",
            "TPR": ends(tpr, low, high, ".4f"),
            "FPR": f"{fpr:.4f}",
            f"PPV at prior {prior}": shown(ppv, ".3f"),
            "members accused": f"{tp:,} of {size[0].sum():,}",
            "false positives": f"{fp:,} of {size[1].sum():,}",
            "AUC": ends(area["value"], area["low"], area["high"]),
            "ties": f"{ties(*which):.3f}",
            "k": scores_of_target.info["k"],
            "Q": scores_of_target.info["queries"],
            "targets": len(scores_of_target.targets),
        }
        measured = {
            "attack": attack,
            "targets": len(scores_of_target.targets),
            "threshold": threshold,
            "tpr": tpr,
            "tpr_low": low,
            "tpr_high": high,
            "fpr": fpr,
            "prior": PRIORS[prior],
            "ppv": ppv,
            "true_positives": tp,
            "members": size[0].sum(),
            "false_positives": fp,
            "non_members": size[1].sum(),
            "auc": area["value"],
            "auc_low": area["low"],
            "auc_high": area["high"],
            "tie_mass": ties(*which),
            "references": scores_of_target.info["k"],
            "queries": scores_of_target.info["queries"],
        }
        histogram, roc = pictures(*which, compare)
        histogram = with_title(
            histogram,
            f"{in_words(attack)}: a random member outscores a random non-member in"
            f" {area['value']:.1%} of cases",
        )
        figures = {
            "histogram": with_line(
                histogram, float(rank_of(scores_of_target)(threshold)), editable=True
            ),
            "roc": with_star(roc, fpr, tpr, f"AUC {area['value']:.3f}; star: the threshold"),
        }
        return View(
            remarks(texts),
            figures,
            pd.DataFrame([row]),
            remarks(
                {ORACLE: True, BOTH: target == ALL, BAND: True}, scores_of_target.info["flags"]
            ),
            pd.DataFrame([measured]),
        )

    controls = {  # filled by what they follow, where a damaged source is a message
        "pool": chooser("pool", pools),
        "target": dropdown("target", [ALL], ALL),
        "attack": dropdown("attack"),
        "compare": Ticks("compare with", ["loss"], ["loss"]),
        "threshold": steps("threshold", [("", 0.0)], 0.0),
        "prior": buttons("prior", list(PRIORS), "1/2"),
    }
    follow = {
        "target": {"options": lambda pool: pools[pool].targets},
        "attack": {"options": lambda pool: worded(offered(pool))},
        "compare": {"options": lambda pool, attack: [x for x in offered(pool) if x != attack]},
        "threshold": {
            "options": lambda pool, attack, target: rates(pool, attack, target).marks(),
            "value": start,
        },
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        question=QUESTION,
        rows=[["histogram"], ["roc"]],
        follow=follow,
        pools=pools,
        heights={"histogram": 190, "roc": 268},
        wide=["threshold"],
        drags={"histogram": dragged},
    )


def rank_of(scores: Scores) -> Callable[[np.ndarray], np.ndarray]:
    """Where a score stands on the histogram's axis, by its rank among all targets' non-members."""
    return rank_among(scores.value[~scores.member])


def with_star(roc: dict, fpr: float, tpr: float, title: str) -> dict:
    """A star on both axes of `plots.roc_pair`: notes, which are redrawn without the curves."""
    star = {"text": "★", "font": {"size": 20, "color": GREY}, "showarrow": False}
    stars = [star | {"x": fpr, "y": tpr, "xref": "x", "yref": "y"}]
    if fpr > 0 and tpr > 0:  # on logarithmic axes a note stands at the exponent
        stars.append(
            star | {"x": math.log10(fpr), "y": math.log10(tpr), "xref": "x2", "yref": "y2"}
        )
    return with_title(
        with_layout(roc, annotations=[*roc["layout"].get("annotations", []), *stars]), title
    )


class Rates:
    """TPR and FPR of Scores at any threshold (a score at it counts as accused), by sorting once."""

    def __init__(self, scores: Scores):
        pairs = list(zip(scores.value, scores.member, ~np.isnan(scores.value), strict=True))
        self.inside = [np.sort(v[m & known]) for v, m, known in pairs]
        self.outside = [np.sort(v[~m & known]) for v, m, known in pairs]
        self.pair = scores.pair
        # members, non-members
        self.sizes = tuple(np.array([len(s) for s in side]) for side in (self.inside, self.outside))

    def __call__(self, threshold: float) -> tuple[float, float, float, float, int, int]:
        """(tpr, fpr, low, high of the tpr, true positives, false positives); rates are means over
        targets.
        """
        tp, fp = (
            np.array([len(s) - np.searchsorted(s, threshold) for s in side])
            for side in (self.inside, self.outside)
        )
        n1, n0 = self.sizes
        (low,), (high,) = band((tp / n1)[:, None], self.pair, int(n1.min()))
        return (
            *map(float, ((tp / n1).mean(), (fp / n0).mean(), low, high)),
            int(tp.sum()),
            int(fp.sum()),
        )

    def grid(self) -> list[float]:
        """Thresholds from accusing all to accusing none, even steps of the normal quantile of the
        false-positive rate, and those of the rates in tables.
        """
        inside = np.concatenate(self.inside)
        outside = np.concatenate(self.outside)
        furthest = max(-ndtri(1 / min(len(s) for s in self.outside)), 0)
        fpr = [1, *metrics.uncertainty.FPR, *ndtr(-np.linspace(-2, furthest, STEPS))]
        thresholds = np.quantile(outside, 1 - np.array(fpr), method="higher")
        top = np.nextafter(max(outside.max(), inside.max()), np.inf)
        return sorted({float(t) for t in (*thresholds, top) if np.isfinite(t)})

    def marks(self) -> list[tuple[str, float]]:
        """The grid for a slider, each threshold called by its false-positive rate."""
        outside = np.sort(np.concatenate(self.outside))
        fpr = 1 - np.searchsorted(outside, self.grid()) / len(outside)
        return [(f"{100 * x:.3g} %", t) for x, t in zip(fpr, self.grid(), strict=True)]
