"""What the predictions turn out to be: computed from the cube, by part of the workshop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mia_nb import accounting, attacks, metrics
from mia_nb.types import Scores
from mia_nb.widgets.networks import draws
from mia_nb.widgets.stored import Source
from mia_nb.workshop.cube import canaries, group
from mia_nb.workshop.fight import canary_auc, common_accuracy, frontier
from mia_nb.workshop.null import lattice_scores, redrawn
from mia_nb.workshop.race import with_references

Cube = dict[str, Source]
CLOSE = 0.01  # AUCs nearer than this are called equal in the workshop's texts


def truth(part: int, cube: Cube) -> dict[str, object]:
    """{"answer", "why"} for the prediction of a part, 1 to 11, to be handed to `predict`. ValueError for another number."""
    if part not in TRUTHS:
        raise ValueError(f"part {part!r}: the workshop has parts {min(TRUTHS)} to {max(TRUTHS)}")
    answer, why = TRUTHS[part](cube)
    return {"answer": answer, "why": why}


def mean_auc(scores: Scores) -> float:
    """AUC averaged over targets, samples that could not be scored left out."""
    known = [
        (v[~np.isnan(v)], m[~np.isnan(v)]) for v, m in zip(scores.value, scores.member, strict=True)
    ]
    return float(np.mean([metrics.auc(*pair) for pair in known]))


def right_of_twenty(scores: Scores) -> float:
    """Expected right guesses of twenty, when the upper half of each target's scores is accused."""
    share = [
        ((v > np.median(v)) == m).mean() for v, m in zip(scores.value, scores.member, strict=True)
    ]
    return float(20 * np.mean(share))


def outcome(low: float, high: float) -> str:
    """more, less or cannot say: on which side of zero an interval of a difference lies."""
    return "more" if low > 0 else "less" if high < 0 else "cannot say"


def _game(cube: Cube) -> tuple:
    loss, rmia = (right_of_twenty(cube["small"].scores(name)) for name in ("loss", "rmia"))
    why = "On average over all images and targets that is what the loss attack gets, which sees what you see; a coin gets 10. "
    return round(loss, 1), f"{why}With reference models RMIA gets {rmia:.1f}."


def _threshold(cube: Cube) -> tuple:
    score = cube["small"].scores("rmia")
    value, member = score.value[0], score.member[0]
    curve, few = metrics.roc(value, member), metrics.tpr_at(value, member, 0.02)
    best = int(np.argmax(curve.tpr - curve.fpr))
    share = [
        float(metrics.ppv(*rates, 0.01))
        for rates in ((curve.tpr[best], curve.fpr[best]), (few.tpr, few.fpr_realised))
    ]
    why = f"Where most guesses are right, {curve.fpr[best]:.0%} of the innocent are accused. If one person in a hundred was a "
    why += f"member, only {share[0]:.1%} of those accusations are right; far to the right, at {few.fpr_realised:.1%} false "
    return FAR, f"{why}alarms, {share[1]:.1%}: more, and still most of them are wrong."


FAR, MOST, MIDDLE = (
    "far to the right",
    "where most guesses are right",
    "where half of the members are found",
)


def _worlds(cube: Cube) -> tuple:
    signals = cube["pool"].signals
    most = len(signals.margin) - 2
    found = [
        with_references(signals, *at)
        for at in (("lira_per_sample", 4), ("lira_per_sample", most), ("lira_shrunk", 4))
    ]
    few, many, shrunk = (np.nan if one is None else mean_auc(one) for one in found)
    why = f"With two models in each world and a spread of its own for every image the likelihood ratio reaches AUC {few:.3f}, "
    why += f"with all {most} references {many:.3f}. Two models can agree by luck: then the spread is far too small and the ratio "
    return (
        "no" if few < many - CLOSE else "yes"
    ), f"{why}explodes. A spread borrowed from all images gives {shrunk:.3f}."


def _race(cube: Cube) -> tuple:
    signals, best = cube["pool"].signals, []
    for count in (4, min(64, len(signals.margin) - 2)):
        found = {name: with_references(signals, name, count) for name in RACERS}
        values = {name: mean_auc(scores) for name, scores in found.items() if scores is not None}
        best.append(
            (
                count,
                max(values, key=values.get),
                ", ".join(f"{name} {value:.3f}" for name, value in values.items()),
            )
        )
    return best[0][1], " ".join(
        f"AUC with {count} references: {listed}; highest: {name}." for count, name, listed in best
    )


RACERS = ("loss", "rmia", "nig", "lira_per_sample")


def _real(cube: Cube) -> tuple:
    real, drawn = redrawn(cube["small"].signals, "rmia")
    p = (1 + int((drawn >= real).sum())) / (len(drawn) + 1)
    why = f"{int((drawn >= real).sum())} of {len(drawn)} worlds with members dealt anew reach {real:.3f} (p = {p:.3g}); they lie "
    why += f"between {drawn.min():.3f} and {drawn.max():.3f}."
    return ("no" if p <= 0.05 else "yes"), why


def _lattice(cube: Cube) -> tuple:
    tied, free = lattice_scores(cube["pool"], 4).values()
    first, second = (metrics.tpr_at(one.value[0], one.member[0], 0.05) for one in (tied, free))
    why = (
        "The target can beat 0, 1, 2, 3 or 4 of four references: five scores. The highest accuses "
    )
    why += f"{first.fpr_floor:.0%} of the non-members, so that no threshold reaches 5 %. "
    return (
        TIES if first.fpr_floor > 0.05 else NOTHING
    ), f"{why}The same comparison as a difference finds {second.tpr:.1%} there."


TIES, NOTHING, BUG = "too few different scores", "nothing can be found", "a programming error"


def _spikes(cube: Cube) -> tuple:
    low, high, ends = steps_difference(cube)
    why = f"RMIA after the first step {ends[0]:.3f}, after the last {ends[1]:.3f}; difference 95 %: {low:+.3f} to {high:+.3f}."
    return outcome(
        low, high
    ), f"{why} Coarse answers hide some of the signal; they do not remove it."


def steps_difference(cube: Cube) -> tuple[float, float, tuple[float, float]]:
    """(low, high) of the AUC of RMIA after the last time step minus after the first, and both AUCs."""
    first, last = (
        attacks.score("rmia", cube["spikes/steps"].signals.select(queries=[t])) for t in (0, -1)
    )
    row = metrics.difference(last, first, (), draws=200).loc["auc"]
    return float(row["low"]), float(row["high"]), (mean_auc(first), mean_auc(last))


def _noise(cube: Cube) -> tuple:
    gain, low, high, ends = answers_gain(cube)
    many = middle(cube).signals.margin.shape[1]
    why = f"One answer at sigma = {sigma_of(middle(cube)):g}: AUC {ends[0]:.3f}; {many} answers averaged: {ends[1]:.3f} "
    why += f"({gain:+.3f}, 95 %: {low:+.3f} to {high:+.3f})."
    return ("only against those who ask once" if low > 0 else "cannot say from these answers"), why


def middle(cube: Cube) -> Source:
    """The noisy networks of middle strength: noise that an attacker notices and that leaves them useful."""
    noisy = sorted((one for one in group(cube, "noise") if draws(one) == "noise"), key=sigma_of)
    return noisy[len(noisy) // 2]


def sigma_of(source: Source) -> float:
    """The noise of an equation's answers, sigma = k sqrt(steps / T)."""
    return float((source.info.get("flow") or {}).get("sigma", 0.0))


def answers_gain(cube: Cube) -> tuple[float, float, float, tuple[float, float]]:
    """(gain, low, high) in AUC of RMIA from averaging all answers of the middle noisy network, and both AUCs."""
    source = middle(cube)
    one = attacks.score("rmia", source.signals.select(queries=[0]))
    row = metrics.difference(source.scores("rmia"), one, (), draws=200).loc["auc"]
    return (
        float(row["value"]),
        float(row["low"]),
        float(row["high"]),
        (mean_auc(one), mean_auc(source.scores("rmia"))),
    )


def canary_split(cube: Cube) -> tuple[tuple, tuple]:
    """AUC of RMIA on the mislabelled images and on all others, each (mean, low, high)."""
    sources = group(cube, "canary")
    mask = canaries(sources[0])[sources[0].audited]
    return canary_auc(sources, "rmia", mask), canary_auc(sources, "rmia", ~mask)


def _exposed(cube: Cube) -> tuple:
    odd, others = canary_split(cube)
    why = f"RMIA's AUC is {odd[0]:.3f} [{odd[1]:.3f}, {odd[2]:.3f}] among the mislabelled images, "
    why += f"{others[0]:.3f} [{others[1]:.3f}, {others[2]:.3f}] among the others."
    return (ODD if odd[0] > others[0] else TYPICAL if odd[0] < others[0] else ALIKE), why


ODD, TYPICAL, ALIKE = "odd and mislabelled ones", "typical ones", "all alike"


def equal_accuracy(cube: Cube):
    """(name, row of `metrics.matched`) of the second family against the first, where both are as accurate, else None."""
    table = frontier(group(cube, "fight"))
    first, other = table["family"].unique()[:2]
    both, level = table[table["family"].isin([first, other])], common_accuracy(table, first, other)
    found = metrics.matched(both, baseline=first, levels=[level])
    rows = found[(found["family"] == other) & (found["difference_pairs"] >= 2)]
    return other, (rows.iloc[-1] if len(rows) else None)


def _fight(cube: Cube) -> tuple:
    other, row = equal_accuracy(cube)
    if row is None:
        return (
            WORSE,
            f"{other} and ordinary training pass no accuracy in common: nothing can be compared.",
        )
    said = outcome(row["difference_low"], row["difference_high"])
    why = f"At {row['level']:.1%} test accuracy {other}'s AUC differs by {row['difference']:+.3f} "
    why += f"(95 %: {row['difference_low']:+.3f} to {row['difference_high']:+.3f})."
    return {"less": BETTER, "more": NEITHER}.get(said, WORSE), why


BETTER, WORSE, NEITHER = (
    "it gives away less",
    "it is just worse, or one cannot say",
    "it gives away more",
)


def _claims(cube: Cube) -> tuple:
    bound = float(accounting.tradeoff(0.01, epsilon=8.0, delta=1e-5))
    half = float(accounting.tradeoff(0.01, epsilon=1.0, delta=1e-5))
    why = f"Epsilon 8 at delta 1e-5 allows {bound:.2%} of members at 1 % false alarms; epsilon 1 would allow {half:.1%}. "
    return round(
        100 * bound
    ), f"{why}What is proved for the worst case and what an attack finds today are two things."


TRUTHS: dict[int, Callable[[Cube], tuple]] = {
    1: _game, 2: _threshold, 3: _worlds, 4: _race, 5: _real, 6: _lattice, 7: _spikes, 8: _noise, 9: _exposed, 10: _fight,
    11: _claims,
}  # fmt: skip
