"""Which samples are exposed: AUC of one sample's scores over target models, with a permutation test and its resolution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.special import comb

from mia_nb.attacks import score as run_attack
from mia_nb.checks import checked
from mia_nb.metrics.null import redraw
from mia_nb.types import Scores, Signals

BUDGET = 3e8  # additions an exact null distribution may take before random permutations replace it
CHUNK = 1 << 21  # table entries held at once


@checked
def vulnerability(
    scores: Scores,
    *,
    rate: float = 0.1,
    permutations: int = 2000,
    seed: int = 0,
    disjoint: bool | None = None,
    null: Iterable[Scores] | None = None,
) -> pd.DataFrame:
    """Per sample i the AUC of its scores over the t_in targets that contain it against the t_out that do not; a row each.

    Columns: sample, auc, t_in, t_out, resolution = 1 / (t_in t_out), p, smallest_p (what a perfect order would reach), q (p
    after Benjamini and Hochberg 1995), significant = q <= `rate`, null_auc. p: one-sided, by permuting who trained on the
    sample: within pairs where both of each pair are targets, among all targets at given t_in otherwise. Exact where the
    distribution can be added up, else (1 + #{as large}) / (permutations + 1). `.attrs["resolution"]` says in a sentence what
    these targets can find, `.attrs["method"]` which test was used. With 8 targets in pairs p cannot fall below 1/16: no
    sample can be found alone.

    Only for references from a pool that is disjoint from the targets': leave-one-out scores are biased sample by sample,
    also with the mate dropped. A target's own outputs are references for the other targets' scores, those that contain the
    sample on one side and those that do not on the other, so that its scores over targets move together: without any leak
    the mean AUC of one sample is .43 to .47 for likelihood ratios with 8 to 32 models. Two halves of one pool are disjoint
    pools, where no model of one half has the members of a model of the other, or exactly the others (`auditing.apart`).
    disjoint=None takes the word of `attacks.score` for that; scores from elsewhere, which say nothing of it, are disjoint
    where the keys of the two pools are known and differ.
    Where pools are not disjoint, `null` must hold scores of redrawn masks (`null_scores`): p = (1 + #{redrawn AUC >= AUC}) /
    (draws + 1), which a perfect order lowers to (1 + #{redrawn AUC = 1}) / (draws + 1) at best, and null_auc, printed beside
    it, is the mean of the redrawn AUCs.
    Raises ValueError for shared pools without `null`, a `null` that is empty or of another attack, of other targets or
    samples, targets of which some have their mate and others do not, and a sample set where no target contains, or lacks, any
    sample. Caveats: tests of samples share their targets, and Benjamini-Hochberg assumes that they do not depend on each
    other negatively; a ranking without significance is a ranking, no risk.
    """
    if not 0 < rate < 1 or permutations < 1:
        raise ValueError(
            f"rate={rate}, permutations={permutations}: wanted a rate between 0 and 1, at least 1 permutation"
        )
    disjoint = _disjoint(scores.info) if disjoint is None else disjoint
    if not disjoint and null is None:
        raise ValueError(
            "targets and references share a pool: per-sample numbers are biased; score with references=another pool, "
            "or pass null=null_scores(attack, signals)"
        )
    paired = _paired(scores)
    value = _both_or_none(scores) if paired else scores.value
    ranks, auc, t_in, t_out = _per_sample(value, scores.member)
    able = (t_in > 0) & (t_out > 0)
    if not able.any():
        raise ValueError(
            "no sample is in one target and out of another: an AUC over targets needs both"
        )
    p, smallest, null_auc = (
        np.full(len(auc), np.nan),
        np.full(len(auc), np.nan),
        np.full(len(auc), 0.5),
    )
    more = "score more targets"
    if null is not None:
        drawn = _redrawn(scores, null)
        p[able], smallest[able], null_auc = _by_redrawing(auc, drawn, able)
        orders = 2.0 ** len(np.unique(scores.pair)) if paired else comb(len(value), len(value) // 2)
        more = f"redraw more than {len(drawn)} masks" if len(drawn) + 1 <= orders else more
        method = f"{len(drawn)} redrawn masks"
    elif paired:
        p[able], smallest[able], method = *_flips(ranks, scores, able), "exact: flips within pairs"
    else:
        p[able], smallest[able], method = _free(
            ranks, scores.member, ~np.isnan(value), able, permutations, seed
        )
        if not method.startswith("exact") and np.median(smallest[able]) <= 1 / (permutations + 1):
            more = f"take more than {permutations} permutations"
    q = np.full(len(p), np.nan)
    q[able] = _benjamini_hochberg(p[able])
    table = pd.DataFrame({"sample": np.arange(len(auc)), "auc": auc, "t_in": t_in, "t_out": t_out})
    with np.errstate(divide="ignore"):
        table["resolution"] = np.where(able, 1.0 / (t_in * t_out), np.nan)
    table = table.assign(p=p, smallest_p=smallest, q=q, significant=q <= rate, null_auc=null_auc)
    pairs = len(np.unique(scores.pair)) if paired else None
    table.attrs |= {
        "method": method,
        "rate": rate,
        "targets": len(scores.value),
        "disjoint": bool(disjoint),
    }
    table.attrs["resolution"] = _resolution(len(scores.value), pairs, smallest[able], rate, more)
    return table


def null_scores(
    attack, signals: Signals, *, draws: int = 200, seed: int = 0, targets=None
) -> Iterator[Scores]:
    """Scores of an attack on the real signals under masks redrawn from their design: what chance and the design make of them.

    If membership changes no signal, the real mask is exchangeable with the redrawn ones. Same targets for the same table.
    """
    for mask in redraw(signals, draws, np.random.default_rng(seed)):
        yield run_attack(attack, replace(signals, member=mask), targets=targets)


def _benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    order, count = np.argsort(p), len(p)
    q = np.empty(count)
    q[order] = np.minimum.accumulate((p[order] * (count / np.arange(1, count + 1)))[::-1])[::-1]
    return np.minimum(q, 1)


def _disjoint(info: dict) -> bool:
    keys = info.get("keys") or {}
    known = None not in (keys.get("target"), keys.get("references"))
    return info.get("disjoint", known and keys["target"] != keys["references"])


def _redrawn(scores: Scores, null: Iterable[Scores]) -> np.ndarray:
    """(draws, N) AUCs of the samples under redrawn masks; ValueError for what is no null of these scores."""
    drawn, attack = [], scores.info.get("attack")
    for other in null:
        if (name := other.info.get("attack", attack)) != attack:
            raise ValueError(
                f"null holds scores of {name}, these are of {attack}: redraw the masks for the same attack"
            )
        if other.value.shape != scores.value.shape or not np.array_equal(
            other.targets, scores.targets
        ):
            raise ValueError(
                f"null has targets x samples {other.value.shape}, these scores {scores.value.shape}: redraw the masks for the "
                "same targets and samples"
            )
        drawn.append(_per_sample(other.value, other.member)[1])
    if not drawn:
        raise ValueError(
            "null holds no scores: wanted one redrawn mask or more, and a generator that was not used before"
        )
    return np.array(drawn)


def _by_redrawing(auc, drawn, able) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(p, smallest p) of the samples `able`, and the mean redrawn AUC (N,), from AUCs (draws, N) under redrawn masks."""
    seen = (~np.isnan(drawn)).sum(0)  # a redrawn mask of coins may leave a sample one side
    p, smallest = (((1 + (drawn >= least).sum(0)) / (seen + 1))[able] for least in (auc, 1))
    return p, smallest, np.where(seen > 0, np.nansum(drawn, axis=0) / np.maximum(seen, 1), np.nan)


def _paired(scores: Scores) -> bool:
    """Whether every target's mate is a target too; some with and some without is a ValueError."""
    sizes = np.unique(scores.pair, return_counts=True)[1]
    if (sizes == 1).all():
        return False
    told = scores.member[:, ~scores.member.all(0)]
    twins = [told[scores.pair == one] for one in np.unique(scores.pair)]
    if (sizes == 2).all() and all((first != second).all() for first, second in twins):
        return True
    raise ValueError(
        "some targets have their mate among the targets and others do not: score both of each pair, or one of each"
    )


def _both_or_none(scores: Scores) -> np.ndarray:
    value = scores.value.copy()
    for one in np.unique(scores.pair):
        rows = np.flatnonzero(scores.pair == one)
        value[np.ix_(rows, np.isnan(value[rows]).any(0))] = np.nan
    return value


def _per_sample(
    value: np.ndarray, member: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(2 midrank - 1 over targets (T, N), 0 where NaN; AUC (N,), NaN without both sides; t_in; t_out)."""
    known = ~np.isnan(value)
    ranks = np.stack([2 * (value < row).sum(0) + (value == row).sum(0) for row in value])
    t_in, t_out = (member & known).sum(0), (~member & known).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        auc = ((ranks * member).sum(0) - t_in**2) / (2.0 * t_in * t_out)
    return ranks, np.where((t_in > 0) & (t_out > 0), auc, np.nan), t_in, t_out


def _flips(ranks: np.ndarray, scores: Scores, able: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(p, smallest p) of the samples `able`: each pair's two ranks change sides with probability 1/2, all flips added up."""
    twins = [np.flatnonzero(scores.pair == one) for one in np.unique(scores.pair)]
    gain = np.stack(
        [(ranks[rows] * np.where(scores.member[rows], 1, -1)).sum(0) for rows in twins]
    )[:, able]
    size, seen = np.abs(gain), np.stack([ranks[rows[0]] > 0 for rows in twins])[:, able].sum(0)
    observed, width = np.where(gain > 0, gain, 0).sum(0), int(size.sum(0).max()) + 1
    p = np.empty(gain.shape[1])
    for start in range(0, len(p), max(1, CHUNK // width)):
        part = slice(start, start + max(1, CHUNK // width))
        table = np.zeros((len(p[part]), width))
        table[:, 0] = 1
        for step in size[:, part]:
            source = np.arange(width) - step[:, None]
            table = (
                table
                + np.where(source >= 0, np.take_along_axis(table, np.maximum(source, 0), 1), 0)
            ) / 2
        p[part] = np.where(np.arange(width) >= observed[part, None], table, 0).sum(1)
    return np.minimum(p, 1), 0.5**seen


def _free(ranks, member, known, able, permutations, seed) -> tuple[np.ndarray, np.ndarray, str]:
    """(p, smallest p, method) of the samples `able`: all choices of t_in of the targets are alike."""
    ranks, known, member = ranks[:, able], known[:, able], (member & known)[:, able]
    t_in, observed = member.sum(0), (ranks * member).sum(0)
    smallest = 1 / comb(known.sum(0), t_in)
    patterns, which = np.unique(np.sort(ranks, axis=0), axis=1, return_inverse=True)
    which = np.ravel(which)
    targets, most = len(ranks), int(t_in.max())
    if patterns.shape[1] * targets**3 * (most + 1) > BUDGET:
        hits, rng = np.zeros(len(t_in)), np.random.default_rng(seed)
        for _ in range(permutations):
            order = rng.permutation(targets)
            chosen = known[order] & (known[order].cumsum(0) <= t_in)
            hits += (ranks[order] * chosen).sum(0) >= observed
        floor = 1 / (permutations + 1)
        return (
            (1 + hits) * floor,
            np.maximum(smallest, floor),
            f"{permutations} random permutations of targets",
        )
    p = np.empty(len(t_in))
    for number, pattern in enumerate(patterns.T):
        table = np.zeros((most + 1, int(pattern.sum()) + 1))
        table[0, 0] = 1
        for rank in pattern[pattern > 0]:  # ways to choose j targets whose ranks add up to s
            table[1:, rank:] += table[:-1, : table.shape[1] - rank]
        tail = table[:, ::-1].cumsum(1)[:, ::-1]
        mine = which == number
        p[mine] = tail[t_in[mine], observed[mine]] / tail[t_in[mine], 0]
    return p, smallest, "exact: permutations of targets"


def _resolution(
    targets: int, pairs: int | None, smallest: np.ndarray, rate: float, more: str
) -> str:
    """What these targets can find after the correction, in a sentence; `more` is what would lower the floor of p."""
    floor, samples = float(smallest.min()), len(smallest)
    ranks = np.arange(1, samples + 1)
    enough = ranks[
        np.sort(smallest) <= ranks * rate / samples * (1 + 1e-9)
    ]  # were all at their floors
    design = f"{targets} targets" + (f" in {pairs} pairs" if pairs else "")
    start = f"{design}: p cannot fall below {floor:.3g}"
    if (middle := np.median(smallest)) > 1.5 * floor:
        start += f" ({middle:.3g} for half of the samples)"
    if not len(enough):
        return f"{start}; nothing can be found at a rate of {rate:g}, not even all of {samples} samples together: {more}"
    if enough[0] > 1:
        return f"{start}; nothing can be found unless {enough[0]} of {samples} samples reach it together: {more}"
    return f"{start}; a single sample of {samples} can be found"
