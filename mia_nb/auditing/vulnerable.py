"""Which samples are exposed: AUC of one sample's scores over target models, with a permutation test
and its resolution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import comb

from mia_nb.attacks import score as run_attack
from mia_nb.checks import checked, quantity
from mia_nb.metrics.pairs import in_pairs, redraw, rows_of_pairs
from mia_nb.types import Scores, Signals

RATE = 0.1  # of false discoveries
MOST_ADDITIONS = 3e9  # of an exact test without pairs
MOST_BYTES = 1e9  # of its largest table


@checked
def vulnerability(scores: Scores, *, null: Iterable[Scores] | None = None) -> pd.DataFrame:
    """Which samples are exposed: for each sample the AUC of its scores, targets that contain it
    against those that do not, with a permutation test.

    Parameters:
        scores: of T targets, (T, N).
        null: scores of redrawn masks (`null_scores`), needed unless targets and references come
            from disjoint pools, which `attacks.score` notes in the scores' info.

    Returns:
        A row per sample with sample, auc, t_in, t_out (targets that contain the sample, and that do
        not), resolution = 1 / (t_in t_out), p, smallest_p (that of a perfect order), q (p after
        Benjamini and Hochberg 1995), significant = q <= 0.1, null_auc. p is one-sided and exact, by
        permuting which targets contain the sample: within pairs if both models of each pair are
        targets, otherwise among all targets at given t_in. `.attrs["resolution"]` says in a
        sentence what these targets can find, `.attrs["method"]` which test was used. With 8 targets
        in pairs p is at least 1/16: no sample can be found alone.

    Leave-one-out scores are biased for single samples, even with the complementary model dropped. A
    target is a reference for the other targets, on one side if it contains the sample and on the
    other if not, so that a sample's scores over targets are correlated: without any leak its mean
    AUC is .43 to .47 for likelihood ratios with 8 to 32 models. Two halves of one pool are disjoint
    pools if no model of one half has the members of a model of the other, or exactly the others
    (`score_split`). With a `null`, p = (1 + #{redrawn AUC >= AUC}) / (n_resamples + 1), which is
    (1 + #{redrawn AUC = 1}) / (n_resamples + 1) for a perfect order, and null_auc is the mean of
    the redrawn AUCs.

    Raises:
        ValueError: for shared pools without `null`, a `null` that is empty or of another attack, of
            other targets or samples, targets of which only some have their complementary model, too
            many targets without pairs for an exact test, and where no sample is in one target and
            out of another.

    Caveat: samples share their targets, and Benjamini-Hochberg assumes that their tests are not
    negatively dependent. Where nothing is significant, the order is only a ranking.
    """
    paired = _paired(scores)
    value = _both_or_none(scores) if paired else scores.value
    ranks, auc, t_in, t_out = _per_sample(value, scores.member)
    able = (t_in > 0) & (t_out > 0)
    if null is None and not scores.info.get("disjoint"):
        raise ValueError(
            "targets and references share a pool: per-sample numbers are biased; score with"
            " references=another pool, or pass null=null_scores(attack, signals)"
        )
    if not able.any():
        raise ValueError(
            "no sample is in one target and out of another: an AUC over targets needs both"
        )
    if null is not None:
        test = _by_redrawing(scores, auc, _redrawn(scores, null), able, paired)
    elif paired:
        test = _flips(ranks, scores, able)
    else:
        test = _free(ranks, scores.member, ~np.isnan(value), able)
    from scipy.stats import false_discovery_control  # a second of start-up

    p, smallest, q = np.full((3, len(auc)), np.nan)
    p[able] = test.p
    smallest[able] = test.smallest
    q[able] = false_discovery_control(test.p)
    table = pd.DataFrame(
        {
            "sample": np.arange(len(auc)),
            "auc": auc,
            "t_in": t_in,
            "t_out": t_out,
            "resolution": np.where(able, 1.0 / np.maximum(t_in * t_out, 1), np.nan),
            "p": p,
            "smallest_p": smallest,
            "q": q,
            "significant": q <= RATE,
            "null_auc": test.null_auc,
        }
    )
    design = quantity(len(value), "target")
    if paired:
        design += f" in {quantity(len(np.unique(scores.pair)), 'pair')}"
    table.attrs |= {
        "method": test.method,
        "rate": RATE,
        "resolution": _resolution(design, test.smallest, test.more),
    }
    return table


class Tested(NamedTuple):
    """A permutation test of the samples that can be tested: `p`, the `smallest` p, which a perfect
    order has, the `method`, what would lower the smallest p (`more`), and the mean AUC (N,) of
    samples under redrawn masks (`null_auc`).
    """

    p: np.ndarray
    smallest: np.ndarray
    method: str
    more: str = "score more targets"
    null_auc: float | np.ndarray = 0.5


def null_scores(
    attack: str | Callable, signals: Signals, *, n_resamples: int = 200, seed: int = 0
) -> Iterator[Scores]:
    """Scores of an attack on the real signals under masks redrawn from their design, which show the
    effect of chance and of the design.

    Parameters:
        attack: a name of `attacks.ATTACKS`, or a function like those.
        signals: of the pool.
        n_resamples: how many masks are redrawn.
        seed: of the masks.

    Returns:
        `Scores`, one after the other. If membership changes no signal, the real mask is
        exchangeable with the redrawn ones.
    """
    for mask in redraw(signals, n_resamples, np.random.default_rng(seed)):
        yield run_attack(attack, replace(signals, member=mask))


def _redrawn(scores: Scores, null: Iterable[Scores]) -> np.ndarray:
    """(n_resamples, N) AUCs of the samples under redrawn masks; ValueError unless `null` belongs to
    these scores.
    """
    drawn = []
    attack = scores.info.get("attack")
    for other in null:
        name = other.info.get("attack", attack)
        same = np.array_equal(other.targets, scores.targets)
        if name != attack:
            raise ValueError(
                f"null holds scores of {name}, these are of {attack}: redraw the masks for the"
                " same attack"
            )
        if other.value.shape != scores.value.shape or not same:
            raise ValueError(
                f"null has targets x samples {other.value.shape}, these scores"
                f" {scores.value.shape}, or other targets: null_scores scores all models of its"
                " signals, so score all targets of the same signals"
            )
        drawn.append(_per_sample(other.value, other.member)[1])
    if not drawn:
        raise ValueError(
            "null holds no scores: wanted one redrawn mask or more, and a generator that was not"
            " used before"
        )
    return np.array(drawn)


def _by_redrawing(
    scores: Scores, auc: np.ndarray, drawn: np.ndarray, able: np.ndarray, paired: bool
) -> Tested:
    """The test by AUCs (n_resamples, N) under redrawn masks."""
    masks = len(drawn)
    seen = (~np.isnan(drawn)).sum(0)  # a redrawn mask of coins may leave a sample one side
    p = (1 + (drawn >= auc).sum(0)) / (seen + 1)
    smallest = (1 + (drawn >= 1).sum(0)) / (seen + 1)
    mean = np.where(seen > 0, np.nansum(drawn, axis=0) / np.maximum(seen, 1), np.nan)
    targets = len(scores.value)
    orders = 2.0 ** (targets // 2) if paired else comb(targets, targets // 2)
    more = f"redraw more than {masks} masks" if masks < orders else "score more targets"
    return Tested(p[able], smallest[able], f"{masks} redrawn masks", more, mean)


def _paired(scores: Scores) -> bool:
    """Whether every target's complementary model is a target too; ValueError if only some are."""
    if len(np.unique(scores.pair)) == len(scores.pair):
        return False
    if in_pairs(scores.member, scores.pair):
        return True
    raise ValueError(
        "some targets have their complementary model among the targets and others do not: score"
        " both of each pair, or one of each"
    )


def _both_or_none(scores: Scores) -> np.ndarray:
    """The scores (T, N), with NaN for both targets of a pair if one of them has no score."""
    value = scores.value.copy()
    for rows in rows_of_pairs(scores.pair):
        value[np.ix_(rows, np.isnan(value[rows]).any(0))] = np.nan
    return value


def _per_sample(
    value: np.ndarray, member: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(2 midrank - 1 over targets (T, N), 0 where NaN; AUC (N,), NaN without both sides; t_in;
    t_out).
    """
    known = ~np.isnan(value)
    ranks = np.stack([2 * (value < row).sum(0) + (value == row).sum(0) for row in value])
    t_in = (member & known).sum(0)
    t_out = (~member & known).sum(0)
    above = (ranks * member).sum(0) - t_in**2
    cells = np.where(t_in * t_out > 0, t_in * t_out, np.nan)
    return ranks, above / (2.0 * cells), t_in, t_out


def _flips(ranks: np.ndarray, scores: Scores, able: np.ndarray) -> Tested:
    """The test in pairs: each pair's two ranks are swapped with probability 1/2, in exact form."""
    pairs = rows_of_pairs(scores.pair)
    signed = (ranks * np.where(scores.member, 1, -1))[:, able]
    gain = np.stack([signed[rows].sum(0) for rows in pairs])  # (pairs, samples)
    seen = np.stack([ranks[rows[0]] > 0 for rows in pairs])[:, able].sum(0)
    p = np.empty(gain.shape[1])
    for sample, gains in enumerate(gain.T):
        table = np.ones(1)  # probability of each sum of the pairs that gain
        for step in np.abs(gains):
            unmoved = np.append(table, np.zeros(step))
            table = (unmoved + np.roll(unmoved, step)) / 2
        p[sample] = table[gains[gains > 0].sum() :].sum()
    return Tested(np.minimum(p, 1), 0.5**seen, "exact: flips within pairs")


def _free(ranks: np.ndarray, member: np.ndarray, known: np.ndarray, able: np.ndarray) -> Tested:
    """The test without pairs: all choices of t_in targets are equally likely."""
    ranks = ranks[:, able]
    member = (member & known)[:, able]
    t_in = member.sum(0)
    observed = (ranks * member).sum(0)
    smallest = 1 / comb(known[:, able].sum(0), t_in)
    patterns, which = np.unique(np.sort(ranks, axis=0), axis=1, return_inverse=True)
    which = np.ravel(which)
    most = int(t_in.max())
    cells = (most + 1.0) * (patterns.sum(0) + 1)
    additions = (cells * (patterns > 0).sum(0)).sum()
    if additions > MOST_ADDITIONS or cells.max() * 8 > MOST_BYTES:
        raise ValueError(
            f"{len(ranks)} targets without pairs are too many for an exact test"
            f" ({additions:.1g} additions): score fewer, or all targets within their own pool with"
            " null=null_scores(attack, signals)"
        )
    p = np.empty(len(t_in))
    for number, pattern in enumerate(patterns.T):
        table = np.zeros((most + 1, int(pattern.sum()) + 1))
        table[0, 0] = 1
        for rank in pattern[pattern > 0]:  # ways to choose j targets whose ranks add up to s
            table[1:, rank:] += table[:-1, : table.shape[1] - rank]
        tail = table[:, ::-1].cumsum(1)[:, ::-1]
        alike = which == number
        p[alike] = tail[t_in[alike], observed[alike]] / tail[t_in[alike], 0]
    return Tested(p, smallest, "exact: permutations of targets")


def _resolution(design: str, smallest: np.ndarray, more: str) -> str:
    """A sentence on what the targets of this design can find after the correction; `more` is what
    would lower the smallest p.
    """
    floor = float(smallest.min())
    samples = len(smallest)
    ranks = np.arange(1, samples + 1)
    # were all at their floors
    enough = ranks[np.sort(smallest) <= ranks * RATE / samples * (1 + 1e-9)]
    start = f"{design}: p cannot fall below {floor:.3g}"
    if (middle := np.median(smallest)) > 1.5 * floor:
        start += f" ({middle:.3g} for half of the samples)"
    together = enough[0] if len(enough) else 0
    if not together:
        finding = (
            f"nothing can be found at a rate of {RATE:g}, not even all of {samples} samples"
            f" together: {more}"
        )
    elif together > 1:
        finding = (
            f"nothing can be found unless {together} of {samples} samples reach it together: {more}"
        )
    else:
        finding = f"a single sample of {samples} can be found"
    return f"{start}; {finding}"
