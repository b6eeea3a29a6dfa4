"""Time and memory of rmia and lira against a textbook NumPy/SciPy version, in one run. Prints a markdown table.

python benchmarks/scoring.py [--repeat 11] [--samples 50000] [--population 10000]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import scipy
from scipy.special import log_expit, logsumexp
from scipy.stats import norm

from mia_nb import attacks
from mia_nb.types import Signals


def world(references: int, samples: int, population: int, seed: int = 0) -> tuple[Signals, Signals]:
    """(target, references) in complementary pairs; only what rmia and lira read is filled in."""
    rng = np.random.default_rng(seed)
    columns = samples + population
    member = np.zeros((references + 2, columns), bool)
    for row in range(0, references + 2, 2):
        member[row, :samples] = rng.permutation(samples) < samples // 2
        member[row + 1, :samples] = ~member[row, :samples]
    margin = (rng.normal(3, 3, columns) + member + rng.normal(size=member.shape))[:, None]
    signals = Signals(
        margin=margin,
        labels=rng.integers(0, 10, columns),
        member=member,
        population=np.arange(columns) >= samples,
        draws="plain",
        entropy=margin,
        modified_entropy=margin,
        correct=margin > 0,
        top_log_p=np.zeros((references + 2, columns, 1), np.float32),
        info={},
    )
    return signals.hold_out(0)


def textbook_ratio(target, references):
    """log p_t - log mean p with scipy's logsumexp; columns without IN model by the offline rule, a = 0.3."""
    log_p, member = log_expit(references.margin[:, 0]), references.member
    n_in = member.sum(0)
    log_in = logsumexp(np.where(member, log_p, -np.inf), axis=0) - np.log(np.maximum(n_in, 1))
    log_out = logsumexp(np.where(member, -np.inf, log_p), axis=0) - np.log(len(member) - n_in)
    online = np.logaddexp(log_in, log_out) - np.log(2)
    offline = np.logaddexp(np.log(1.3 / 2) + log_out, np.log(0.7 / 2))
    return log_expit(target.margin[0, 0]) - np.where(n_in > 0, online, offline)


def textbook_count(target, references):
    """Every sample against every population sample."""
    u = textbook_ratio(target, references)
    z = u[target.population]
    return np.array([(z < x).mean() for x in u])


def textbook_lira(target, references):
    """NaN-aware moments of both sides and scipy's log-densities."""
    phi, member = references.margin[:, 0], references.member
    log = []
    for side in (member, ~member):
        values = np.where(side, phi, np.nan)
        log.append(norm.logpdf(target.margin[0, 0], np.nanmean(values, axis=0), np.nanstd(values, axis=0, ddof=1)))
    return log[0] - log[1]


def median_time(attack, pair, repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        attack(*pair)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_memory(attack, pair) -> float:
    """Largest amount of memory held beyond the inputs, in MB (NumPy reports its arrays to tracemalloc)."""
    tracemalloc.start()
    attack(*pair)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    )
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--population", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=11, help="runs; the median counts (the textbook gets a third of them)")
    args = parser.parse_args()
    ratio_world, lira_world = world(16, args.samples, args.population), world(64, args.samples, 0)
    rows = [
        ("rmia", 16, args.population, attacks.rmia, textbook_ratio, ratio_world),
        ("rmia, count form", 16, args.population, partial(attacks.rmia, form="count"), textbook_count, ratio_world),
        ("lira, variance per sample", 64, 0, partial(attacks.lira, variance="per_sample"), textbook_lira, lira_world),
    ]
    print(f"{processor()}; Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}\n")
    print("| attack | samples | references | population | median | textbook | ratio | peak memory | largest difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, references, population, attack, textbook, pair in rows:
        ours, theirs = attack(*pair), textbook(*pair)
        audited = ~pair[0].population
        difference = np.abs(ours - theirs)[audited].max()
        fast, slow = median_time(attack, pair, args.repeat), median_time(textbook, pair, max(args.repeat // 3, 1))
        print(
            f"| {name} | {args.samples} | {references} | {population} | {1e3 * fast:.1f} ms | {1e3 * slow:.0f} ms "
            f"| {slow / fast:.1f}x | {peak_memory(attack, pair):.0f} MB | {difference:.1g} |"
        )


if __name__ == "__main__":
    main()
