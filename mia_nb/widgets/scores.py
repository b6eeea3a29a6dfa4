"""Scores and ROC: one threshold, seen as a line in the histogram, a point on the curve, and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd

from mia_nb import metrics, plots
from mia_nb.plots.curves import band
from mia_nb.plots.style import GREY
from mia_nb.types import Scores
from mia_nb.widgets.explorer import Explorer, Ticks, View, buttons, dropdown, message, steps
from mia_nb.widgets.figure import plain
from mia_nb.widgets.stored import Source, named, only

TITLE = "Scores and ROC"
NOTHING = "nothing is stored that can be scored yet; make some with: mia-nb run all --preset demo"
PRIORS = {"1/2": 0.5, "1/10": 0.1, "1/100": 0.01}
ALL = "all"
LINEAR, TAIL = 91, 80  # positions of the threshold above and below 10 % false alarms


def scores(sources: Sequence[Source], *, attacks: Sequence[str] = (), at: float = 0.1) -> Explorer:
    """Histogram and ROC of one attack on one pool with a movable threshold; others beside it to compare.

    The threshold starts where a share `at` of non-members is accused, and is set with hindsight: an attacker does a little
    worse. Rates are means over targets, with the interval of `plots.roc`: pointwise, the wider of Clopper-Pearson on one
    target's samples and Student t over pairs of targets. PPV = prior TPR / (prior TPR + (1 - prior) FPR): the share of right
    accusations. attacks: which to offer; all that the pool's references support if empty.
    """
    if not sources:
        return message(TITLE, NOTHING)
    kept = _Kept(sources, attacks)
    controls = {  # filled by `adjust`, where a damaged source is a message
        "pool": dropdown("pool", list(kept.found), next(iter(kept.found))),
        "target": dropdown("target", [ALL], ALL),
        "attack": dropdown("attack"),
        "compare": Ticks("compare with"),
        "threshold": steps("threshold", [("", 0.0)], 0.0),
        "prior": buttons("prior", list(PRIORS), "1/2"),
    }
    return Explorer(
        TITLE,
        controls,
        kept.view,
        rows=[["histogram"], ["roc"]],
        adjust=lambda values: kept.adjust(at, **values),
    )


class _Kept:
    """What one explorer has computed so far, by what it depends on."""

    def __init__(self, sources: Sequence[Source], attacks: Sequence[str]):
        self.found = named(sources)
        self.offered = cache(lambda pool: tuple(attacks or self.found[pool].attacks()))
        self.chosen = cache(
            lambda pool, attack, target: only(
                self.found[pool].scores(attack), None if target == ALL else target
            )
        )
        self.rates = cache(lambda *which: Rates(self.chosen(*which)))
        self.auc = cache(
            lambda *which: metrics.intervals(self.chosen(*which), (), draws=200).loc["auc"]
        )
        self.pictures = cache(self._pictures)
        self.ties = cache(
            lambda *which: np.mean([metrics.tie_mass(row) for row in self.chosen(*which).value])
        )
        self.shown = ()

    def _pictures(self, pool, attack, target, others) -> tuple[dict, dict]:
        drawn = {name: self.chosen(pool, name, target) for name in dict.fromkeys((attack, *others))}
        return plain(plots.histogram(drawn[attack])), plain(plots.roc_pair(drawn))

    def view(self, pool, target, attack, compare, threshold, prior) -> View:
        which = (pool, attack, target)
        one, auc = self.chosen(*which), self.auc(*which)
        tpr, fpr, low, high, tp, fp = self.rates(*which)(threshold)
        n1, n0 = self.rates(*which).sizes
        sure = f"(95 %: {100 * low:.1f}-{100 * high:.1f})"
        sentence = f"{attack} finds {100 * tpr:.1f} % of members at {100 * fpr:.3g} % false alarms {sure}, n0 = {n0.min():,}"
        if fpr * n0.min() < 10:
            sentence += "; below resolution: fewer than ten false alarms"
        row = {
            "TPR": f"{tpr:.4f} [{low:.4f}, {high:.4f}]",
            "FPR": f"{fpr:.4f}",
            f"PPV at prior {prior}": f"{metrics.ppv(tpr, fpr, PRIORS[prior]):.3f}"
            if tp + fp
            else "n/m",
            "members accused": f"{tp:,} of {n1.sum():,}",
            "false alarms": f"{fp:,} of {n0.sum():,}",
            "AUC": f"{auc['value']:.3f} [{auc['low']:.3f}, {auc['high']:.3f}]",
            "ties": f"{self.ties(*which):.3f}",
            "k": one.info["k"],
            "Q": one.info["queries"],
            "targets": len(one.targets),
        }
        figures = dict(
            zip(
                ("histogram", "roc"),
                _marked(*self.pictures(*which, compare), threshold, tpr, fpr, auc["value"]),
                strict=True,
            )
        )
        hindsight = ["threshold set with hindsight (oracle)"]
        if target == ALL:
            hindsight.append(
                "numbers and star: one threshold for all targets; the curve: a threshold for each"
            )
        note = "; ".join([*hindsight, *one.info["flags"]])
        return View(sentence, figures, pd.DataFrame([row]), note)

    def adjust(self, at: float, *, pool, target, attack, compare, **_) -> dict:
        """Targets and attacks of this pool; where scores have another scale, the threshold's range and start."""
        names, targets = self.offered(pool), [ALL, *range(len(self.found[pool].signals.margin))]
        attack, target = (
            attack if attack in names else names[0],
            target if target in targets else ALL,
        )
        compare = compare if self.shown else ("loss",)  # to begin with
        others = tuple(name for name in names if name != attack)
        changes = {
            "target": {"options": targets, "value": target},
            "attack": {"options": names, "value": attack},
            "compare": {
                "options": others,
                "value": tuple(name for name in compare if name in others),
            },
        }
        if self.shown != (which := (pool, attack, target)):
            self.shown = which
            thresholds = self.rates(*which).grid()
            start = min(thresholds, key=lambda t: abs(self.rates(*which)(t)[1] - at))
            changes["threshold"] = {
                "options": [(f"{t:.3g}", t) for t in thresholds],
                "value": start,
            }
        return changes


def _marked(
    histogram: dict, roc: dict, threshold: float, tpr: float, fpr: float, auc: float
) -> tuple[dict, dict]:
    """The threshold as a line and as a star on both axes: shapes and notes, which are redrawn without the curves."""
    line = {
        "type": "line",
        "x0": threshold,
        "x1": threshold,
        "y0": 0,
        "y1": 1,
        "yref": "y domain",
        "line": {"color": GREY},
    }
    star = {"text": "★", "font": {"size": 20, "color": GREY}, "showarrow": False}
    stars = [star | {"x": fpr, "y": tpr, "xref": "x", "yref": "y"}]
    if fpr > 0 and tpr > 0:  # on logarithmic axes a note stands at the exponent
        stars.append(
            star | {"x": math.log10(fpr), "y": math.log10(tpr), "xref": "x2", "yref": "y2"}
        )
    title = roc["layout"]["title"] | {"text": f"AUC {auc:.3f}; star: the threshold"}
    notes = [*roc["layout"].get("annotations", []), *stars]
    roc = roc | {"layout": roc["layout"] | {"title": title, "annotations": notes}}
    return histogram | {"layout": histogram["layout"] | {"shapes": [line]}}, roc


class Rates:
    """TPR and FPR of Scores at any threshold (a score at it counts as accused), by sorting once."""

    def __init__(self, one: Scores):
        known = ~np.isnan(one.value)
        pairs = list(zip(one.value, one.member, known, strict=True))
        self.inside = [np.sort(v[m & k]) for v, m, k in pairs]
        self.outside = [np.sort(v[~m & k]) for v, m, k in pairs]
        self.sizes = tuple(
            np.array([len(s) for s in side]) for side in (self.inside, self.outside)
        )  # members, non-members
        self.pair = one.pair

    def __call__(self, threshold: float) -> tuple[float, float, float, float, int, int]:
        """(tpr, fpr, low, high of the tpr, true positives, false positives); rates are means over targets."""
        tp, fp = (
            np.array([len(s) - np.searchsorted(s, threshold) for s in side])
            for side in (self.inside, self.outside)
        )
        n1, n0 = self.sizes
        low, high = band((tp / n1)[:, None], self.pair, int(n1.min()))
        return (
            float((tp / n1).mean()),
            float((fp / n0).mean()),
            float(low[0]),
            float(high[0]),
            int(tp.sum()),
            int(fp.sum()),
        )

    def grid(self) -> list[float]:
        """Thresholds from accusing all to accusing none, close together where few non-members are accused."""
        n0 = min(len(s) for s in self.outside)
        fpr = np.concatenate(
            [np.linspace(1, 0.1, LINEAR), np.geomspace(0.1, 1 / n0, TAIL)[1:] if n0 > 10 else []]
        )
        outside = np.concatenate(self.outside)
        found = np.quantile(outside, 1 - fpr, method="higher")
        top = np.nextafter(max(outside.max(), *(s.max() for s in self.inside)), np.inf)
        return sorted({float(t) for t in (*found, top) if np.isfinite(t)})
