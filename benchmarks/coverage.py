"""How often the 95 % intervals of `metrics.intervals` hold the truth, in simulated worlds whose
truth is known.

    python benchmarks/coverage.py [--worlds 200] [--only "heavy tails,ties"] [--targets 4,8,16]
        [--sides 500,2000]

Wanted: 0.93 or more everywhere, and no more than 0.99 where the interval could be narrower. 200
worlds know a coverage of 0.95 to +-0.03. One column compares with a narrower rule that would seem
right (`pooled`). A second table says how narrow any rule could be (`narrowest`).
"""

from __future__ import annotations

from itertools import product

import numpy as np
from common import head, options, report, row, table
from scipy import sparse
from scipy.optimize import linprog
from scipy.stats import chi2, norm, t

from mia_nb import metrics
from mia_nb.metrics.bootstrap import bootstrap
from mia_nb.metrics.targets import per_target_metrics
from mia_nb.metrics.uncertainty import half_width, intervals_of_rows, variances
from mia_nb.types import Scores

FPR = (0.01,)
SHIFT = 0.7
WORLDS = {
    "equal variance": lambda v, m, w: v + SHIFT * m,
    "unequal variance": lambda v, m, w: v * np.where(m, 1.6, 1) + SHIFT * m,
    "ties": lambda v, m, w: np.round(v + SHIFT * m),
    "heavy tails": lambda v, m, w: v / np.sqrt(w["chi"] / 2) + SHIFT * m,
    "a few exposed samples": lambda v, m, w: v + np.where(w["sample"] < 0.03, 3.5, 0.1) * m,
    "hard and easy samples": lambda v, m, w: v + norm.ppf(w["sample"]) + SHIFT * m,
    "mirrored pairs": lambda v, m, w: (
        np.where(np.arange(len(v))[:, None] % 2, -np.roll(v, 1, 0), v) + SHIFT * m
    ),
    "targets that differ": lambda v, m, w: v + (SHIFT + 0.25 * w["pair"]) * m,
    "targets that differ log-normally": lambda v, m, w: v + 0.6 * np.exp(0.5 * w["pair"]) * m,
    "targets that differ with heavy tails": lambda v, m, w: (
        v + (SHIFT + 0.15 * t.ppf(norm.cdf(w["pair"]), 3)) * m
    ),
    "mirrored pairs that differ": lambda v, m, w: (
        np.where(np.arange(len(v))[:, None] % 2, -np.roll(v, 1, 0), v)
        + (SHIFT + 0.25 * w["pair"]) * m
    ),
    "null": lambda v, m, w: v,
}


def world(name: str, targets: int, samples: int, rng, leaks=None) -> Scores:
    """Scores of complementary pairs; `leaks` (pairs,): standard normal, how the pairs differ."""
    half = rng.permuted(np.tile(np.arange(samples) < samples // 2, (targets // 2, 1)), axis=1)
    member, rows = np.stack([half, ~half], axis=1).reshape(targets, samples), np.arange(targets)
    drawn = {"chi": rng.chisquare(2, member.shape), "sample": rng.random(samples)}
    drawn["pair"] = np.repeat(rng.normal(size=targets // 2) if leaks is None else leaks, 2)[:, None]
    value, facts = WORLDS[name](rng.normal(size=member.shape), member, drawn), np.ones((targets, 2))
    return Scores(value, member, rows, rows // 2, facts, facts, {})


def truth(name: str) -> dict[str, float]:
    """Each metric, as the mean over 100 pairs whose leaks are quantiles, on 60,000 samples."""
    leaks = norm.ppf((np.arange(100) + 0.5) / 100)
    values = per_target_metrics(
        world(name, 200, 60_000, np.random.default_rng(99), leaks), FPR
    ).mean(0)
    return dict(zip(("auc", "advantage", "tpr@0.01"), values, strict=True))


def pooled(scores: Scores, values: np.ndarray, drawn: np.ndarray) -> tuple[float, float]:
    """An interval of the mean of values (targets,) that gives Student's t to what samples do not
    explain alone: t^2 (B + V), where V is the variance by samples, B what pairs vary beyond theirs,
    with (P - 1) ((B + V) / A)^2 degrees of freedom (Satterthwaite 1946) for P pairs that vary by A.
    """
    variance = variances(values, scores.pair, drawn)
    beyond = max(variance.over_pairs - (variance.by_samples - variance.shared), 0)
    whole = beyond + variance.by_samples
    free = (variance.pairs - 1) * (whole / max(variance.over_pairs, 1e-6 * whole)) ** 2
    half = t.isf(0.025, free) * np.sqrt(whole)
    return values.mean() - half, values.mean() + half


def covered(name: str, targets: int, side: int, worlds: int, draws: int) -> list[str]:
    """Cells of one row: coverage and mean width of both metrics, as it is and pooled."""
    wanted = truth(name)
    kept = {"auc": [], "tpr@0.01": []}
    for seed in range(worlds):
        rng = np.random.default_rng([seed, targets, side, *name.encode()])
        scores = world(name, targets, 2 * side, rng)
        rows = metrics.per_target(scores, FPR)
        sampled = bootstrap(scores, FPR, n_resamples=draws, seed=seed)
        now = intervals_of_rows(rows, sampled)
        for metric, found in kept.items():
            narrower = pooled(scores, rows[metric].to_numpy(), sampled[metric])
            ends = np.array([now.loc[metric, ["low", "high"]], narrower], float)
            inside = (ends[:, 0] <= wanted[metric]) & (wanted[metric] <= ends[:, 1])
            found.append([inside, ends[:, 1] - ends[:, 0]])
    means = [np.mean(found, axis=0).T for found in kept.values()]
    return [f"{inside:.3f} ({width:.4f})" for both in means for inside, width in both]


def narrowest(pairs: int, least: float, cells: int) -> list[str]:
    """A row: how wide intervals are where pairs differ by their samples alone, as the package makes
    them and at the least, and how often the package's and the pooled ones cover.

    A rule sees the variance x between pairs, in units of what samples explain, which is known. If
    pairs truly vary by 1 + r of these units, x is (1 + r) chi2_d / d with d = P - 1, and an interval
    of half-width h covers with probability 2 Phi(h / sqrt(1 + r)) - 1. Over x and h on a grid, the
    rule h(x), which may toss coins, of least mean width at r = 0 that covers `least` at every r is a
    linear programme.
    """
    free = pairs - 1
    z = norm.isf(0.025)
    edges = np.concatenate([[0], np.geomspace(1e-4, 2e4, cells)])
    x = np.sqrt(np.maximum(edges[:-1], 1e-5) * edges[1:])
    halves = np.concatenate([np.geomspace(1, 60, 110), np.geomspace(63, 2e4, 30)])
    ratios = np.concatenate([[0, 0.1, 0.2, 0.4], np.geomspace(0.6, 1000, 24)])
    share = np.diff([chi2.cdf(edges * free / (1 + r), free) for r in ratios], axis=1)
    beyond = [chi2.sf(edges[-1] * free / (1 + r), free) for r in ratios]
    covers = 2 * norm.cdf(halves / np.sqrt(1 + ratios)[:, None]) - 1
    by_ratio = share[:, :, None] * covers[:, None, :]
    found = linprog(
        np.outer(share[0], halves).ravel(),
        A_ub=-by_ratio.reshape(len(ratios), -1),
        b_ub=np.array(beyond) - least,
        A_eq=sparse.kron(sparse.eye(cells), np.ones((1, len(halves)))),
        b_eq=np.ones(cells),
        method="highs",
    )
    now = half_width(x / pairs, pairs, 0, 1 / pairs) * np.sqrt(pairs)
    whole = np.maximum(x, 1)
    satterthwaite = t.isf(0.025, free * (whole / x) ** 2) * np.sqrt(whole)
    lowest = []
    for rule in (now, satterthwaite):
        inside = 2 * norm.cdf(rule / np.sqrt(1 + ratios)[:, None]) - 1
        lowest.append((share * inside).sum(1) + beyond)
    return [
        f"{2 * pairs}",
        f"{least:.2f}",
        f"{share[0] @ now / z:.2f}",
        f"{found.fun / z:.2f}",
        f"{share[0] @ satterthwaite / z:.2f}",
        *(f"{values.min():.3f} to {values.max():.3f}" for values in lowest),
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--draws", type=int, default=200, help="resamples behind each interval")
    parser.add_argument("--only", default=",".join(WORLDS), help="worlds, separated by commas")
    parser.add_argument("--targets", default="4,8,16", help="numbers of targets, even")
    parser.add_argument("--sides", default="500,2000", help="numbers of members of a target")
    given = parser.parse_args()
    sizes = [(4, 100)]
    bounds = [(4, 0.95)]
    if not given.quick:
        counts = [int(count) for count in given.targets.split(",")]
        sizes = [*product(counts, [int(side) for side in given.sides.split(",")])]
        bounds = [*product((4, 6, 8, 16), (0.95, 0.93))]
    heads = [
        "world",
        "targets",
        "samples a side",
        "AUC",
        "AUC pooled",
        "TPR at 1 %",
        "TPR at 1 % pooled",
    ]
    with report("Coverage (mean width) of nominal 95 % intervals", given.quick):
        head(heads)
        for name in ["heavy tails"] if given.quick else given.only.split(","):
            for targets, side in sizes:
                cells = covered(
                    name, targets, side, 4 if given.quick else given.worlds, given.draws
                )
                row([name, str(targets), f"{side:,}", *cells])
        print("\nMean widths in units of what samples alone need, where they alone matter.\n")
        columns = (
            "targets | least coverage wanted | width | narrowest possible | pooled | coverage over"
            " all r | pooled: coverage over all r"
        )
        rows = [narrowest(count // 2, least, 40 if given.quick else 100) for count, least in bounds]
        table(columns.split(" | "), rows)


if __name__ == "__main__":
    main()
