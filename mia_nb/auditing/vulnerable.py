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
        A row per sample, with the columns
            sample: its number.
            auc: of its scores, NaN without targets on both sides.
            t_in, t_out: numbers of targets that contain it, and that do not.
            resolution: 1 / (t_in t_out).
            p: one-sided and exact, by permuting which targets contain the sample: within pairs if
                both models of each pair are targets, otherwise among all targets at given t_in.
                With 8 targets in pairs p is at least 1/16: no sample can be found alone.
            smallest_p: the p of a perfect order.
            q: p after Benjamini and Hochberg 1995.
            significant: q <= 0.1.
            null_auc: mean AUC without a leak; 1/2 unless there is a `null`.
        `.attrs["resolution"]` says in a sentence what these targets can find, `.attrs["fewest"]`
        is the number of samples that must stand out together for any to be found, None where not
        even all can be; `.attrs["method"]` says which test was used.

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
    samples = _per_sample(value, scores.member)
    testable = (samples.t_in > 0) & (samples.t_out > 0)
    if null is None and not scores.info.get("disjoint"):
        raise ValueError(
            "targets and references share a pool: per-sample numbers are biased; score with"
            " references=another pool, or pass null=null_scores(attack, signals)"
        )
    if not testable.any():
        raise ValueError(
            "no sample is in one target and out of another: an AUC over targets needs both"
        )
    if null is not None:
        drawn = _redrawn_aucs(scores, null)
        test = _test_by_redrawn_masks(samples.auc, drawn, testable, len(value), paired)
    elif paired:
        test = _test_by_flips(samples.ranks, scores, testable)
    else:
        known = ~np.isnan(value)
        test = _test_by_permutations(samples.ranks, scores.member, known, testable)
    from scipy.stats import false_discovery_control  # a second of start-up

    q = _of_testable(false_discovery_control(test.p), testable)
    cells = samples.t_in * samples.t_out
    table = pd.DataFrame(
        {
            "sample": np.arange(len(testable)),
            "auc": samples.auc,
            "t_in": samples.t_in,
            "t_out": samples.t_out,
            "resolution": np.where(testable, 1.0 / np.maximum(cells, 1), np.nan),
            "p": _of_testable(test.p, testable),
            "smallest_p": _of_testable(test.smallest, testable),
            "q": q,
            "significant": q <= RATE,
            "null_auc": test.null_auc,
        }
    )
    design = quantity(len(value), "target")
    if paired:
        design += f" in {quantity(len(np.unique(scores.pair)), 'pair')}"
    fewest = _fewest(test.smallest)
    table.attrs |= {
        "method": test.method,
        "rate": RATE,
        "fewest": fewest,
        "resolution": _resolution_words(design, test.smallest, fewest, test.more),
    }
    return table


def _of_testable(values: np.ndarray, testable: np.ndarray) -> np.ndarray:
    """Values of the samples that can be tested as a column (N,), NaN for all others."""
    column = np.full(len(testable), np.nan)
    column[testable] = values
    return column


class PermutationTest(NamedTuple):
    """The results for the samples that can be tested."""

    p: np.ndarray
    smallest: np.ndarray  # the p of a perfect order
    method: str
    more: str = "score more targets"  # what would lower the smallest p
    null_auc: float | np.ndarray = 0.5  # mean AUC of all samples (N,) under redrawn masks


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


def _redrawn_aucs(scores: Scores, null: Iterable[Scores]) -> np.ndarray:
    """(n_resamples, N) AUCs of the samples under redrawn masks; ValueError unless `null` belongs to
    these scores.
    """
    drawn = []
    attack = scores.info.get("attack")
    for redrawn in null:
        name = redrawn.info.get("attack", attack)
        if name != attack:
            raise ValueError(
                f"null holds scores of {name}, these are of {attack}: redraw the masks for the"
                " same attack"
            )
        same_targets = np.array_equal(redrawn.targets, scores.targets)
        if redrawn.value.shape != scores.value.shape or not same_targets:
            raise ValueError(
                f"null has targets x samples {redrawn.value.shape}, these scores"
                f" {scores.value.shape}, or other targets: null_scores scores all models of its"
                " signals, so score all targets of the same signals"
            )
        drawn.append(_per_sample(redrawn.value, redrawn.member).auc)
    if not drawn:
        raise ValueError(
            "null holds no scores: wanted one redrawn mask or more, and a generator that was not"
            " used before"
        )
    return np.array(drawn)


def _test_by_redrawn_masks(
    auc: np.ndarray, drawn: np.ndarray, testable: np.ndarray, targets: int, paired: bool
) -> PermutationTest:
    """The test of AUCs (N,) by AUCs (n_resamples, N) under redrawn masks."""
    masks = len(drawn)
    with_auc = (~np.isnan(drawn)).sum(0)  # a redrawn mask of coins may leave a sample one side
    p = (1 + (drawn >= auc).sum(0)) / (with_auc + 1)
    smallest = (1 + (drawn >= 1).sum(0)) / (with_auc + 1)
    mean = np.where(with_auc > 0, np.nansum(drawn, axis=0) / np.maximum(with_auc, 1), np.nan)
    half = targets // 2
    orders = 2.0**half if paired else comb(targets, half)
    more = f"redraw more than {masks} masks" if masks < orders else "score more targets"
    return PermutationTest(p[testable], smallest[testable], f"{masks} redrawn masks", more, mean)


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
        unscored = np.isnan(value[rows]).any(0)
        value[np.ix_(rows, unscored)] = np.nan
    return value


class PerSample(NamedTuple):
    """Ranks and AUC of each of N samples over T targets."""

    ranks: np.ndarray  # (T, N) 2 midrank - 1 of a target's score of the sample; 0 where NaN
    auc: np.ndarray  # (N,), NaN without targets on both sides
    t_in: np.ndarray  # (N,) targets that contain the sample
    t_out: np.ndarray  # (N,) targets that do not


def _per_sample(value: np.ndarray, member: np.ndarray) -> PerSample:
    """Ranks and AUCs from scores and masks (T, N)."""
    known = ~np.isnan(value)
    ranks = np.stack([2 * (value < row).sum(0) + (value == row).sum(0) for row in value])
    t_in = (member & known).sum(0)
    t_out = (~member & known).sum(0)
    above = (ranks * member).sum(0) - t_in**2
    cells = np.where(t_in * t_out > 0, t_in * t_out, np.nan)
    return PerSample(ranks, above / (2.0 * cells), t_in, t_out)


def _test_by_flips(ranks: np.ndarray, scores: Scores, testable: np.ndarray) -> PermutationTest:
    """The test in pairs, in exact form: each pair's two ranks are swapped with probability 1/2.

    A pair then adds the size of its gain, or nothing, to the sum of the gains above 0.
    """
    pairs = rows_of_pairs(scores.pair)
    signed = (ranks * np.where(scores.member, 1, -1))[:, testable]
    gain = np.stack([signed[rows].sum(0) for rows in pairs])  # (pairs, samples)
    scored = np.stack([ranks[rows[0]] > 0 for rows in pairs])[:, testable].sum(0)
    p = np.empty(gain.shape[1])
    for sample, gains in enumerate(gain.T):
        chances = np.ones(1)  # of each sum
        for step in np.abs(gains):
            unmoved = np.append(chances, np.zeros(step))
            chances = (unmoved + np.roll(unmoved, step)) / 2
        observed = gains[gains > 0].sum()
        p[sample] = chances[observed:].sum()
    return PermutationTest(np.minimum(p, 1), 0.5**scored, "exact: flips within pairs")


def _test_by_permutations(
    ranks: np.ndarray, member: np.ndarray, known: np.ndarray, testable: np.ndarray
) -> PermutationTest:
    """The test without pairs: all choices of t_in targets are equally likely."""
    ranks = ranks[:, testable]
    member = (member & known)[:, testable]
    t_in = member.sum(0)
    observed = (ranks * member).sum(0)
    smallest = 1 / comb(known[:, testable].sum(0), t_in)
    # samples whose ranks are the same, in whatever order, have the same distribution
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
        ways = np.zeros((most + 1, int(pattern.sum()) + 1))  # [j, s]: j targets, sum of ranks s
        ways[0, 0] = 1
        for rank in pattern[pattern > 0]:
            ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank]
        at_least = ways[:, ::-1].cumsum(1)[:, ::-1]
        alike = which == number
        p[alike] = at_least[t_in[alike], observed[alike]] / at_least[t_in[alike], 0]
    return PermutationTest(p, smallest, "exact: permutations of targets")


def _fewest(smallest: np.ndarray) -> int | None:
    """The fewest samples that can be found together, each at its smallest p, by Benjamini and
    Hochberg; None where not even all of them can.
    """
    ranks = np.arange(1, len(smallest) + 1)
    enough = ranks[np.sort(smallest) <= ranks * RATE / len(smallest) * (1 + 1e-9)]
    return int(enough[0]) if len(enough) else None


def _resolution_words(design: str, smallest: np.ndarray, fewest: int | None, more: str) -> str:
    """A sentence on what the targets of this design can find after the correction; `more` is what
    would lower the smallest p.
    """
    floor = float(smallest.min())
    start = f"{design}: p cannot fall below {floor:.3g}"
    median = np.median(smallest)
    if median > 1.5 * floor:
        start += f" ({median:.3g} for half of the samples)"
    samples = len(smallest)
    if fewest is None:
        finding = (
            f"nothing can be found at a rate of {RATE:g}, not even all of {samples} samples"
            f" together: {more}"
        )
    elif fewest > 1:
        finding = (
            f"nothing can be found unless {fewest} of {samples} samples reach it together: {more}"
        )
    else:
        finding = f"a single sample of {samples} can be found"
    return f"{start}; {finding}"
