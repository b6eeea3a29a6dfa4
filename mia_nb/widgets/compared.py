"""Scores beside those of a reference: pictures and numbers with intervals, and the words that tell
them.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.special import ndtri

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.curve import measurable
from mia_nb.metrics.uncertainty import FPR, bootstrap, interval
from mia_nb.plots.style import BELOW, look
from mia_nb.types import Scores
from mia_nb.widgets.explorer import plain, with_layout, with_title

DRAWS = 200  # of the bootstrap
BINS = 60  # of a histogram of half the width
MARKS = [0.99, 0.9, 0.5, 0.1, 0.01, 0.001, 1e-4]  # false-positive rates
RANKS = {
    "title": {"text": "FPR at this threshold (%)"},
    "tickangle": 0,
    "tickvals": (-ndtri(MARKS)).tolist(),
    "ticktext": [f"{100 * fpr:g}" for fpr in MARKS],
    "tickfont": {"size": 10},
}
ENDS = ("", "_low", "_high")
ORACLE = "thresholds set with hindsight (oracle)"
NOT_MEASURABLE = "n/m"
MEANS = ["tie_mass", "fpr_floor", "train_acc", "test_acc"]


def measure(
    scores: dict[Hashable, Scores],
    reference: Hashable = None,
    *,
    fpr=FPR,
    sampled: dict[Hashable, dict] | None = None,
) -> pd.DataFrame:
    """A row per key: auc and tpr@x, each with _low and _high, gain = AUC minus the reference's with
    its ends, and facts.

    Facts: tie_mass, fpr_floor, train_acc, test_acc (means over targets), n0, n1 (the smallest),
    targets. Intervals as `metrics.intervals`, the gain's as `metrics.difference`: paired, from the
    same draws of samples and pairs of targets.

    Parameters:
        scores: {key: scores}
        reference: the key that the others are compared with; None: no gain
        fpr: false-positive rates x
        sampled: {key: draws of `bootstrap`}, where they were made before

    Raises ValueError where masks or pairs of a row and of the reference differ.
    """
    sampled = sampled or {k: bootstrap(one, fpr, n_resamples=DRAWS) for k, one in scores.items()}
    facts = {key: metrics.per_target(one, fpr) for key, one in scores.items()}
    rows = {}
    for key, one in scores.items():
        values = metrics.intervals(one, fpr, sampled=sampled[key]).T.to_dict("list")
        if reference is not None:
            gain = (facts[key]["auc"] - facts[reference]["auc"]).to_numpy()
            values["gain"] = [
                gain.mean(),
                *interval(gain, one.pair, sampled[key]["auc"] - sampled[reference]["auc"]),
            ]
        rows[key] = {
            **{n + end: x for n, v in values.items() for end, x in zip(ENDS, v, strict=True)},
            **facts[key][MEANS].mean(),
            "targets": len(facts[key]),
            **facts[key][["n0", "n1"]].min(),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def beside(scores: dict[str, Scores], attack: str) -> dict[str, dict]:
    """Named scores beside each other: histograms, a panel each, and ROCs in one picture."""
    names = " beside ".join(scores)
    roc = plots.roc_pair(
        {f"{attacks.in_words(attack)}, {name}": one for name, one in scores.items()}
    )
    roc.update_layout(height=420, title_text=f"ROC of {attacks.in_words(attack)}: {names}")
    return {
        "histogram": histograms(scores, f"Scores of {attacks.in_words(attack)}: {names}"),
        "roc": plain(roc),
    }


def histograms(scores: dict[str, Scores], title: str) -> dict:
    """Members of each by their rank among its own non-members, who look the same in all."""
    (first, *others), names = [ranked(one) for one in scores.values()], [*scores]
    members = [first["data"][1] | {"name": f"members, {names[0]}"}]
    for i, (name, figure) in enumerate(zip(names[1:], others, strict=True)):
        line = {"shape": "hv", "color": look(i).colour, "dash": look(i + 1).dash, "width": 2}
        members.append(
            figure["data"][1] | {"name": f"members, {name}", "line": line, "fill": "none"}
        )
    figure = first | {"data": [first["data"][0] | {"name": "non-members"}, *members]}
    return with_title(with_layout(figure, legend=BELOW, height=330), title)


def place_of(scores: Scores) -> Callable[[np.ndarray], np.ndarray]:
    """Function of scores: the normal quantile of the share of all targets' non-members below."""
    outside = np.sort(scores.value[~scores.member & ~np.isnan(scores.value)])
    edge = 0.5 / len(outside)
    return lambda value: ndtri(
        np.clip(np.searchsorted(outside, value) / len(outside), edge, 1 - edge)
    )


def ranked(scores: Scores, *, bins: int = BINS) -> dict:
    """The histogram of scores by their rank among non-members, who look normal then: what few
    members betray by is seen however long the tail of the scores is.
    """
    value = np.where(np.isnan(scores.value), np.nan, place_of(scores)(scores.value))
    figure = plain(plots.histogram(replace(scores, value=value), bins=bins))
    return with_layout(figure, xaxis=figure["layout"]["xaxis"] | RANKS)


def rate(rows: pd.DataFrame) -> float | None:
    """The smallest false-positive rate at which every row has a measurable TPR; None where there is
    none.
    """
    told = (x for x in FPR if measurable(f"tpr@{x:g}", rows["n0"].min()))
    return next(
        (x for x in told if ((rows["fpr_floor"] <= x) | (rows[f"tpr@{x:g}"] > 0)).all()), None
    )


def told(rows: pd.DataFrame, key: Hashable, attack: str = "") -> str:
    """A row in words: "12.0 % (95 %: 10.1-14.0)", or with the attack "RMIA finds 12.0 % of members
    at ..., n0 = 898".

    Where no rate is measurable in every row, the AUC.
    """
    x = rate(rows)
    name, scale, form = ("auc", 1, ".3f") if x is None else (f"tpr@{x:g}", 100, ".1f")
    value, low, high = (f"{scale * rows.loc[key, name + end]:{form}}" for end in ENDS)
    value = value if x is None else f"{value} %"
    interval = f"(95 %: {low}-{high})"
    if not attack:
        return f"{value} {interval}"
    finds = f"has AUC {value}"
    if x is not None:
        finds = f"finds {value} of members at {100 * x:g} % false positives"
    return f"{attacks.in_words(attack)} {finds} {interval}, n0 = {rows['n0'].min():,}"


def numbers(rows: pd.DataFrame, at: Hashable, *, reference: Hashable = None) -> pd.DataFrame:
    """The rows for a reader, an arrow at one, and what each is beyond the reference."""

    def column(name: str, form: str = ".3f") -> list[str]:
        return [ends(*each, form) for each in rows[[name + end for end in ENDS]].to_numpy()]

    table = pd.DataFrame(
        {
            "": np.where(rows.index == at, "\N{BLACK RIGHT-POINTING TRIANGLE}", ""),
            "queried": rows.index,
        }
    )
    table["AUC"] = column("auc")
    if (x := rate(rows)) is not None:
        table[f"TPR at {100 * x:g} % FPR"] = column(f"tpr@{x:g}")
    if reference is not None:
        table[f"minus {reference}"] = column("gain", "+.3f")
        table.loc[rows.index == reference, f"minus {reference}"] = ""
    table["test acc."] = [f"{accuracy:.3f}" for accuracy in rows["test_acc"]]
    if tied(rows):
        table["tied"] = [f"{mass:.1%}" for mass in rows["tie_mass"]]
    return table


def tied(rows: pd.DataFrame) -> bool:
    """Whether scores equal to another's are worth a word."""
    return bool(rows["tie_mass"].max() > 0.01)


def sizes(rows: pd.DataFrame) -> str:
    """Numbers of targets and of samples behind the rows."""
    n1, n0, count = rows[["n1", "n0", "targets"]].min()
    return (
        f"{count:.0f} target{'s' * (count > 1)} with {n1:,.0f} members and {n0:,.0f} non-members"
        " each"
    )


def ends(value: float, low: float, high: float, form: str = ".3f", *, unit: str = "") -> str:
    """A value and its interval: "0.617 [0.547, 0.685]"; n/m for what is not known."""
    interval = f"{low:{form}}, {high:{form}}" if np.isfinite([low, high]).all() else NOT_MEASURABLE
    return NOT_MEASURABLE if np.isnan(value) else f"{value:{form}}{unit} [{interval}]"


def shown(number: float, form: str = ".3g") -> str:
    return NOT_MEASURABLE if np.isnan(number) else format(number, form)


def mean_of(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(N,) mean of each column where the mask (M, N) holds, NaN where it nowhere does."""
    return np.ma.array(values, mask=~mask).mean(0).filled(np.nan)
