"""A fair fight: families of networks compared where they are equally accurate. And samples found again with other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import pandas as pd

from mia_nb import auditing, metrics, plots
from mia_nb.metrics.uncertainty import interval
from mia_nb.types import Scores
from mia_nb.widgets.explorer import Explorer, Ticks, View, buttons, dropdown, message, slider
from mia_nb.widgets.figure import plain
from mia_nb.widgets.stored import Source
from mia_nb.workshop.cube import canaries

TITLE, SUPPORT = "A fair fight", "Found again?"
NAMES = ("rmia", "lira_global", "loss")
DRAWS = 100
WORDS = {"dp_sgd": "DP-SGD", "relaxloss": "RelaxLoss"}
RATES = {"5 %": 0.05, "10 %": 0.1, "2 %": 0.02}


def frontier(
    sources: Sequence[Source], *, names: Sequence[str] = NAMES, draws: int = DRAWS
) -> pd.DataFrame:
    """`metrics.frontier` of families asked at several epochs: a row per family, epoch, attack and target.

    The family is what distinguishes the training, in words; the epoch of the end of training is its number of epochs. Attacks
    that refuse a family's references are left out.
    """
    return _frontier(tuple(sources), tuple(names), draws).copy()


@lru_cache(4)
def _frontier(sources: tuple, names: tuple, draws: int) -> pd.DataFrame:
    runs: dict[str, dict] = {}
    for source in sources:
        epoch = source.info.get("epoch") or source.recipe["epochs"]
        found = {name: _scores(source, name) for name in names}
        runs.setdefault(family(source.info), {})[epoch] = {
            name: one for name, one in found.items() if one is not None
        }
    return metrics.frontier(
        {name: dict(sorted(epochs.items())) for name, epochs in runs.items()}, (), draws=draws
    )


def common_accuracy(table: pd.DataFrame, first: str, other: str) -> float:
    """A point of test accuracy below the highest mean that both families of a `frontier` reach, in whole per cent."""
    means = metrics.frontier_means(table[table["family"].isin([first, other])])
    return float(np.floor(100 * means.groupby("family")["test_acc"].max().min() - 1) / 100)


def family(info: dict) -> str:
    """How the models of `Signals.info` were trained, in words: "ordinary", "RelaxLoss", "DP-SGD", "noisy (sigma = 2)"."""
    flow, defense = info.get("flow") or {}, info.get("defense") or ""
    if flow.get("k"):
        return f"noisy (sigma = {flow['sigma']:.3g})"
    return WORDS.get(defense, defense) or "ordinary"


def _scores(source: Source, name: str) -> Scores | None:
    try:
        return source.scores(name)
    except ValueError:
        return None


def fight(
    sources: Sequence[Source], *, epsilon: dict[str, float] | None = None, delta: float = 1e-5
) -> Explorer:
    """Leakage (strongest of three attacks) against test accuracy along training, and families compared at one accuracy.

    The line is an accuracy; the table reads every curve there, by linear interpolation and without extrapolation, and gives the
    difference to the first family with its 95 % interval (`metrics.matched`). epsilon: {"family/epoch": accounted number} of
    DP-SGD at `delta`, written beside its points.
    """
    if len(sources) < 2:
        return message(
            TITLE,
            "a fight needs two families asked at several epochs; build the cube with: mia-nb run workshop",
        )
    table = frontier(sources)
    names = list(table["family"].unique())
    means = metrics.frontier_means(table)
    base, ends = names[0], means[["test_acc"]].agg(["min", "max"])["test_acc"]

    @cache
    def picture(shown):
        figure = plots.frontier_lines(means[means["family"].isin(shown)])
        _accounted(figure, means, shown, epsilon or {}, delta)
        figure.update_layout(
            title_text="AUC of the strongest attack against test accuracy, along training"
        )
        return plain(figure)

    @cache
    def equal(shown, level):
        return metrics.matched(
            table[table["family"].isin([base, *shown])], levels=[level], baseline=base
        )

    def draw(shown, accuracy) -> View:
        if not shown:
            raise ValueError("tick one family or more")
        found = equal(tuple(shown), accuracy).set_index("family")
        rows, words = [], []
        for name in dict.fromkeys((base, *shown)):
            rows.append(_at(name, found, means, base))
            if name != base and name in found.index and found.loc[name, "difference_pairs"] >= 2:
                words.append(f"{name} {_verdict(found.loc[name])}")
        sentence = f"At {accuracy:.0%} test accuracy, against {base}: {'; '.join(words) or 'nothing can be compared here'}"
        figure = picture(tuple(shown))
        line = {
            "type": "line",
            "x0": accuracy,
            "x1": accuracy,
            "y0": 0,
            "y1": 1,
            "yref": "y domain",
        }
        figure = figure | {
            "layout": figure["layout"]
            | {"shapes": [line | {"line": {"color": "#7A7A7A", "width": 2}}]}
        }
        n = f"{table['target'].nunique()} targets, n0 = {table['n0'].min()}"
        note = f"{n}; strongest attack at each epoch, with hindsight; n/m: fewer than two targets came so far; 95 %, not corrected"
        return View(sentence, {"fight": figure}, pd.DataFrame(rows), f"{note} for several families")

    low, high = float(np.floor(100 * ends["min"]) / 100), float(np.ceil(100 * ends["max"]) / 100)
    start = min(max(0.9, low), high)
    controls = {
        "shown": Ticks("families", tuple(names), tuple(names), limit=len(names)),
        "accuracy": slider("accuracy", low, high, start, 0.01, form=".0%"),
    }
    return Explorer(TITLE, controls, draw, rows=[["fight"]])


def _at(name: str, found: pd.DataFrame, means: pd.DataFrame, base: str) -> dict:
    last = means[means["family"] == name].sort_values("epoch").iloc[-1]
    row = {
        "family": name,
        "ends at accuracy": f"{last['test_acc']:.1%}",
        "AUC there": f"{last['auc']:.3f}",
    }
    if name not in found.index or not found.loc[name, "pairs"]:
        return row | {"AUC at this accuracy": "n/m", "difference": "", "targets": "0"}
    one = found.loc[name]
    row["AUC at this accuracy"] = f"{one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"
    apart = "" if name == base else "n/m"
    if name != base and one["difference_pairs"] >= 2:
        apart = f"{one['difference']:+.3f} [{one['difference_low']:+.3f}, {one['difference_high']:+.3f}]"
    return row | {"difference": apart, "targets": f"{one['pairs']:.0f}"}


def _verdict(row: pd.Series) -> str:
    ends = (
        f"({row['difference']:+.3f} [{row['difference_low']:+.3f}, {row['difference_high']:+.3f}])"
    )
    outcome = (
        "gives away less"
        if row["difference_high"] < 0
        else "gives away more"
        if row["difference_low"] > 0
        else "not resolved"
    )
    return f"{outcome} {ends}"


def _accounted(figure, means: pd.DataFrame, shown, epsilon: dict[str, float], delta: float) -> None:
    """The accountant's numbers beside the points they belong to."""
    for name in shown:
        for k, (_, row) in enumerate(
            means[means["family"] == name].sort_values("epoch").iterrows()
        ):
            value = epsilon.get(f"{name}/{row['epoch']}")
            if value is not None:
                words = {
                    "text": f"ε {value:.1f}",
                    "showarrow": False,
                    "yshift": -24 - 14 * (k % 2),
                    "font": {"size": 11},
                }
                figure.add_annotation(x=row["test_acc"], y=row["auc"], **words)
    if any(key.split("/")[0] in shown for key in epsilon):
        figure.layout.title.subtitle.text += f"; ε: accounted for DP-SGD so far, at delta {delta:g}"


def support(
    sources: Sequence[Source], *, names: Sequence[str] = ("rmia", "nig", "loss")
) -> Explorer:
    """Members found by one training, and by how many of its repetitions with other seeds: canaries beside all others.

    A member of a target is found where its score is above the threshold at which so many of the target's non-members are
    accused. Repetitions share their members; grey: what independent lists of the same sizes would give.
    """
    if len(sources) < 2:
        return message(
            SUPPORT,
            "repetitions need two trainings or more on the same members: mia-nb run workshop",
        )
    canary = canaries(sources[0])[sources[0].audited]
    member = sources[0].scores(names[0]).member

    @cache
    def lists(attack, rate) -> np.ndarray:
        """(seeds, targets, N) who is above the threshold."""
        out = []
        for source in sources:
            one = source.scores(attack)
            if not np.array_equal(one.member, member):
                raise ValueError(
                    f"{source.label} has other members than {sources[0].label}: repetitions share them"
                )
            cuts = [_cut(v[~m], rate) for v, m in zip(one.value, one.member, strict=True)]
            out.append(one.value > np.array(cuts)[:, None])
        return np.array(out)

    @cache
    def picture(attack, rate):
        hits = lists(attack, rate)
        shares = {
            words: hits[:, member & mask]
            for words, mask in (("canaries", canary), ("all others", ~canary))
        }
        return plain(plots.found_again(shares, name=attack))

    def draw(attack, alarms) -> View:
        rate = RATES[alarms]
        hits, rows = lists(attack, rate), []
        for words, mask in (("canaries", canary), ("all others", ~canary)):
            inside, outside = hits[:, member & mask], hits[:, ~member & mask]
            rows.append({
                "images": words, "members found by one training": f"{inside.mean():.1%}",
                "by every training": f"{inside.all(0).mean():.1%}", "non-members accused": f"{outside.mean():.1%}",
                "AUC": _auc(sources, attack, mask), "how many": int(mask.sum()),
            })  # fmt: skip
        overlap = ""
        if len(sources) > 2:
            again = np.stack([source.scores(attack).value[0] for source in sources])
            shared = auditing.stability({attack: again}, member[0], fpr=rate).iloc[0]["jaccard"]
            overlap = f"; lists of one target overlap by {shared:.0%}"
        sentence = f"{attack} at {alarms} false alarms finds {rows[0]['members found by one training']} of the mislabelled members "
        sentence += f"and {rows[1]['members found by one training']} of the others{overlap} ({len(sources)} seeds, "
        sentence += f"{len(member)} targets, {int(canary.sum())} canaries)"
        note = "AUC: mean over targets and seeds, 95 % over pairs of targets; who is found by one seed only is not a finding yet"
        return View(sentence, {"again": picture(attack, rate)}, pd.DataFrame(rows), note)

    controls = {
        "attack": dropdown("attack", list(names), names[0]),
        "alarms": buttons("alarms", list(RATES), "10 %"),
    }
    return Explorer(SUPPORT, controls, draw, rows=[["again"]])


def _cut(outside: np.ndarray, rate: float) -> float:
    """The score that at most a share `rate` of the non-members exceeds."""
    return float(-np.sort(-outside)[int(np.floor(rate * len(outside) + 1e-9))])


def _auc(sources: Sequence[Source], attack: str, mask: np.ndarray) -> str:
    value, low, high = canary_auc(sources, attack, mask)
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def canary_auc(
    sources: Sequence[Source], attack: str, mask: np.ndarray
) -> tuple[float, float, float]:
    """(mean over targets and seeds, low, high) of the AUC on the columns `mask` (N audited,); 95 % over pairs of targets."""
    each = []
    for source in sources:
        one = source.scores(attack)
        each.append(
            [metrics.auc(v[mask], m[mask]) for v, m in zip(one.value, one.member, strict=True)]
        )
    values, pair = np.mean(each, axis=0), sources[0].scores(attack).pair
    low, high = interval(values, pair)
    return float(values.mean()), float(np.fmax(low, 0)), float(np.fmin(high, 1))
