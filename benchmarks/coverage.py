"""How often the 95 % intervals of `metrics.intervals` hold the truth, in simulated worlds whose
truth is known.

    python benchmarks/coverage.py [--worlds 200] [--only heavy,ties]

Wanted: 0.93 or more everywhere, and no more than 0.99 where the interval could be narrower. 200
worlds know a coverage of 0.95 to +-0.03. One column compares with what intervals were before: the
widest of the percentiles of a bootstrap over samples and pairs at once, Clopper-Pearson for a
single target (TPR) and Student's t over 2 to 4 pairs.
"""

from __future__ import annotations

import numpy as np
from common import head, options, report, row
from scipy.stats import norm

from mia_nb import metrics
from mia_nb.metrics.uncertainty import bootstrap, interval, per_target_metrics
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


def before(scores: Scores, rows, sampled: dict, name: str) -> tuple[float, float]:
    """The interval of earlier versions."""
    pairs, unit = np.unique(scores.pair, return_inverse=True)
    rng, draws = np.random.default_rng(1), len(sampled[name])
    weight = rng.multinomial(len(pairs), np.full(len(pairs), 1 / len(pairs)), draws)[:, unit] / len(
        unit
    )
    both = (sampled[name] * weight).sum(1)
    found = [np.quantile(both, [0.025, 0.975])]
    if name != "auc":
        exact = metrics.clopper_pearson(rows[f"{name}_tp"], rows["n1"])
        found.append([end.mean() for end in exact])
    if len(pairs) < 5:
        found.append(interval(rows[name], scores.pair))
    return tuple(np.clip(max(found, key=lambda ends: ends[1] - ends[0]), 0, 1))


def covered(name: str, targets: int, side: int, worlds: int, draws: int) -> list[str]:
    """Cells of one row: coverage and mean width of both metrics, now and before."""
    wanted, found = truth(name), {"auc": [], "tpr@0.01": []}
    for seed in range(worlds):
        scores = world(
            name, targets, 2 * side, np.random.default_rng([seed, targets, side, *name.encode()])
        )
        rows, sampled = (
            metrics.per_target(scores, FPR),
            bootstrap(scores, FPR, n_resamples=draws, seed=seed),
        )
        now = metrics.intervals(scores, FPR, sampled=sampled)
        for metric, kept in found.items():
            ends = np.array(
                [now.loc[metric, ["low", "high"]], before(scores, rows, sampled, metric)], float
            )
            inside = (ends[:, 0] <= wanted[metric]) & (wanted[metric] <= ends[:, 1])
            kept.append([inside, ends[:, 1] - ends[:, 0]])
    means = [np.mean(kept, axis=0).T for kept in found.values()]
    return [f"{inside:.3f} ({width:.4f})" for both in means for inside, width in both]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--draws", type=int, default=200, help="resamples behind each interval")
    parser.add_argument("--only", default=",".join(WORLDS), help="worlds, separated by commas")
    given = parser.parse_args()
    sizes = [(4, 100)] if given.quick else [(t, n) for t in (4, 8, 16) for n in (500, 2000)]
    heads = [
        "world",
        "targets",
        "samples a side",
        "AUC",
        "AUC before",
        "TPR at 1 %",
        "TPR at 1 % before",
    ]
    with report("Coverage (mean width) of nominal 95 % intervals", given.quick):
        head(heads)
        for name in ["heavy tails"] if given.quick else given.only.split(","):
            for targets, side in sizes:
                cells = covered(
                    name, targets, side, 4 if given.quick else given.worlds, given.draws
                )
                row([name, str(targets), f"{side:,}", *cells])


if __name__ == "__main__":
    main()
