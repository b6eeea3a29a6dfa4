"""Time and memory of scoring: against a textbook version, at 50,000 samples x 256 references, from
files, and how it grows.

    python benchmarks/scoring.py [--repeat 5] [--samples 50000] [--population 10000] [--quick]
        [--only whole_pools]

Peak memory is what the attack holds beyond its inputs, as NumPy reports it. Signals from files are
scored in a process of their own; of what is resident there, pages of the files are the system's to
take back, and the rest is the process's own.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
from common import options, ratios, report, rounds, spread, table, timed
from scipy.special import log_expit, logsumexp
from scipy.stats import norm

from mia_nb import attacks, metrics, store
from mia_nb.attacks.reading import select_lazily
from mia_nb.metrics.bootstrap import bootstrap
from mia_nb.types import CUBES, Scores, Signals

ATTACKS = {
    name: attacks.ATTACKS[name] for name in ("rmia", "lira_global", "lira_per_sample", "nig")
}


def design(models: int, samples: int, population: int, rng) -> np.ndarray:
    """(M, N) member mask of complementary pairs, the population last."""
    member = np.zeros((models, samples + population), bool)
    for row in range(0, models, 2):
        member[row, :samples] = rng.permutation(samples) < samples // 2
        member[row + 1, :samples] = ~member[row, :samples]
    return member


def pairs(models: int, samples: int, population: int = 0, seed: int = 0) -> Signals:
    """A Gaussian world in complementary pairs; only what the likelihood and ratio attacks read is
    filled in.
    """
    rng = np.random.default_rng(seed)
    member = design(models, samples, population, rng)
    columns = samples + population
    margin, difficulty = np.empty((models, 1, columns)), rng.normal(3, 3, columns)
    for row, own in zip(margin[:, 0], member, strict=True):
        row[:] = difficulty + own + rng.normal(size=columns)
    return Signals(
        margin=margin,
        labels=rng.integers(0, 10, columns),
        member=member,
        population=np.arange(columns) >= samples,
        query_kind="plain",
        entropy=margin,
        modified_entropy=margin,
        correct=margin > 0,
        top_log_p=np.zeros((models, columns, 1), np.float32),
        info={},
    )


def world(references: int, samples: int, population: int = 0) -> tuple[Signals, Signals]:
    """(target, references)."""
    return pairs(references + 2, samples, population).hold_out(0)


def textbook_ratio(target, references):
    """log p_t - log mean p with scipy's logsumexp; columns without IN model by the offline rule, a
    = 0.3.
    """
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
        log.append(
            norm.logpdf(
                target.margin[0, 0], np.nanmean(values, axis=0), np.nanstd(values, axis=0, ddof=1)
            )
        )
    return log[0] - log[1]


def peak_memory(run) -> float:
    """Largest amount of memory held beyond the inputs, in MB (NumPy reports its arrays to
    tracemalloc).
    """
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def stored(folder: Path, models: int, samples: int) -> None:
    """Signals of a Gaussian world in complementary pairs, written model by model: every field that
    a query writes.
    """
    rng = np.random.default_rng(0)
    member = design(models, samples, 0, rng)
    difficulty = rng.normal(3, 3, samples)
    fields = {
        "labels": rng.integers(0, 10, samples),
        "member": member,
        "population": np.zeros(samples, bool),
    }
    place = store.Folder(folder)
    place.path.mkdir()
    for name, value in fields.items():
        place.write_array(f"{name}.npy", value)
    place.write_json("info.json", {"draws": "plain", "fields": [*fields, *CUBES, "top_log_p"]})
    kinds = {
        "entropy": float,
        "modified_entropy": float,
        "correct": bool,
        "top_log_p": np.float32,
        "margin": float,
    }
    with contextlib.ExitStack() as stack:
        files = {}
        for name, kind in kinds.items():
            shape = (models, samples, 10) if name == "top_log_p" else (models, 1, samples)
            files[name] = stack.enter_context(place.rows(f"{name}.npy", np.dtype(kind), shape))
        for own in member:
            margin = (difficulty + own + rng.normal(size=samples))[None, None]
            row = {
                "entropy": -margin,
                "modified_entropy": -margin,
                "correct": margin > 0,
                "margin": margin,
            }
            for name, append in files.items():
                append(row.get(name, np.full((1, samples, 10), -3, np.float32)))


def memory(what: str) -> int:
    """Bytes of this process by the kernel's account: VmHWM, the most that was ever resident, or
    RssAnon, RssFile now.
    """
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{what}:")[1].split()[0])


def child(folder: str, name: str, targets: int) -> None:
    """Score stored signals in this process and print what it took: seconds to load, to score; bytes
    resident at the most.
    """
    attacks.score(name, pairs(8, 500), targets=[0])  # what a first call loads
    before, pages = memory("VmHWM"), memory("RssFile")
    begun = time.perf_counter()
    signals = store.load_signals(store.Folder(Path(folder)))
    loaded = time.perf_counter()
    attacks.score(name, signals, targets=range(targets))
    done = time.perf_counter()
    took = {
        "load": loaded - begun,
        "score": done - loaded,
        "peak": memory("VmHWM") - before,
        "pages": memory("RssFile") - pages,
    }
    print(json.dumps(took))


def in_child(folder: Path, name: str, targets: int = 1) -> dict:
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(folder), name, str(targets)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def against_textbook(args) -> None:
    ratio_world, lira_world = world(16, args.samples, args.population), world(64, args.samples)
    rows = []
    for name, attack, textbook, pair in (
        ("rmia", attacks.reference.rmia, textbook_ratio, ratio_world),
        (
            "rmia, count form",
            partial(attacks.reference.rmia, form="count"),
            textbook_count,
            ratio_world,
        ),
        (
            "lira, variance per sample",
            partial(attacks.likelihood.lira, variance="per_sample"),
            textbook_lira,
            lira_world,
        ),
    ):
        difference = np.abs(attack(*pair) - textbook(*pair))[~pair[0].population].max()
        # the quadratic textbook takes seconds: once is enough
        runs = {"ours": partial(attack, *pair), "textbook": partial(textbook, *pair)}
        taken = rounds(runs, 1 if textbook is textbook_count else args.repeat, warm=0)
        ours = {key: [1e3 * value for value in values] for key, values in taken.items()}
        sizes = pair[1].shape[0], int(pair[0].population.sum())
        times = [spread(ours["ours"], ".1f", " ms"), spread(ours["textbook"], ".0f", " ms")]
        times.append(spread(ratios(ours["textbook"], ours["ours"]), ".1f", "x"))
        rows.append(
            [
                name,
                args.samples,
                *sizes,
                *times,
                f"{peak_memory(runs['ours']):.0f} MB",
                f"{difference:.1g}",
            ]
        )
    columns = (
        "attack | samples | references | population | ours | textbook | ratio | peak memory |"
        " largest difference"
    )
    table(columns.split(" | "), rows)


def one_target(args) -> None:
    """One target against many references in memory."""
    rows = []
    for references in (8, 32) if args.quick else (256, 1024):
        pair = world(references, args.samples)
        taken = rounds(
            {name: partial(attack, *pair) for name, attack in ATTACKS.items()},
            1 if references > 256 else args.repeat,
        )
        inputs = (pair[1].shape[0] * args.samples * 9) / 1e6
        for name, seconds in taken.items():
            peak = peak_memory(partial(ATTACKS[name], *pair))
            rows.append(
                [
                    name,
                    args.samples,
                    references,
                    spread(seconds, ".2f", " s"),
                    f"{peak:.0f} MB",
                    f"{inputs:.0f} MB",
                ]
            )
    table(["one target", "samples", "references", "time", "peak memory", "margins and masks"], rows)


def one_by_one(name: str, signals: Signals) -> np.ndarray:
    """The scores of every target by the attack alone, which reads its references anew for each."""
    models = np.arange(signals.shape[0])
    scores = []
    for t in models:
        target = signals.select(models=slice(t, t + 1)).hide()
        references = select_lazily(signals, models[models // 2 != t // 2])
        scores.append(ATTACKS[name](target, references))
    return np.array(scores)


def whole_pools(args) -> None:
    """Every model of a pool as the target: `score` beside one target after the other.

    Seconds are the process's own, once each: one after the other takes a minute in large pools.
    """
    rows = []
    sizes = ((512, 5_000), (16, 1_000_000))
    if args.quick:
        sizes = ((16, 500),)
    for models, samples in sizes:
        signals = pairs(models, samples)
        for name in ("rmia", "lira_global", "nig"):
            begun = time.process_time()
            expected = one_by_one(name, signals)
            each = time.process_time() - begun
            begun = time.process_time()
            found = attacks.score(name, signals).value
            shared = time.process_time() - begun
            difference = np.abs(found - expected).max()
            times = [f"{shared:.1f} s", f"{each:.1f} s", f"{each / shared:.1f}x"]
            peak = peak_memory(partial(attacks.score, name, signals))
            rows.append([name, models, samples, *times, f"{peak:.0f} MB", f"{difference:.1g}"])
    columns = (
        "all targets | models | samples | score | one by one | ratio | peak memory |"
        " largest difference"
    )
    table(columns.split(" | "), rows)


def chosen_temperatures(args) -> None:
    """`rmia_tuned` of every model of a pool: `score` beside a few targets by themselves, whose
    seconds are multiplied. Seconds are the process's own, once each.
    """
    rows = []
    sizes = ((16, 50_000), (64, 5_000), (128, 5_000), (256, 5_000))
    if args.quick:
        sizes = ((8, 200),)
    for models, samples in sizes:
        signals = pairs(models, samples)
        begun = time.process_time()
        found = attacks.score("rmia_tuned", signals).value
        shared = time.process_time() - begun
        targets = range(0, models, models // 4)
        begun = time.process_time()
        expected = [attacks.ATTACKS["rmia_tuned"](*signals.hold_out(t)) for t in targets]
        each = (time.process_time() - begun) * models / len(targets)
        difference = np.abs(found[targets] - expected).max()
        times = [f"{shared:.1f} s", f"{each:.0f} s", f"{each / shared:.1f}x"]
        rows.append([models, samples, *times, f"{difference:.1g}"])
    columns = "models | samples | score | one by one, of 4 targets | ratio | largest difference"
    table(columns.split(" | "), rows)


def from_files(args) -> None:
    """Signals as `query` writes them, scored in a fresh process."""
    rows = []
    with tempfile.TemporaryDirectory() as root:
        for models, targets in ((8, 2),) if args.quick else ((16, 16), (256, 1), (256, 4)):
            folder = Path(root) / f"signals-{models}-0"
            if not folder.exists():
                stored(folder, models, args.samples)
            size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
            for name in ATTACKS if targets == 1 else ("rmia", "lira_global"):
                took = in_child(folder, name, targets)
                own = (took["peak"] - took["pages"]) / 1e6
                seconds = [f"{took[key]:.2f} s" for key in ("load", "score")]
                memory = [f"{took['peak'] / 1e6:.0f} MB", f"{own:.0f} MB", f"{size:.0f} MB"]
                rows.append([name, args.samples, models, targets, *seconds, *memory])
    columns = (
        "from files | samples | models | targets | load, verify | score | resident at most |"
        " without pages of files | on disk"
    )
    table(columns.split(" | "), rows)


def of_targets(targets: int, samples: int) -> Scores:
    rng = np.random.default_rng(0)
    member = design(targets, samples, 0, rng)
    rows = np.arange(targets)
    facts = np.tile([0.99, 0.9], (targets, 1))
    return Scores(
        rng.normal(size=member.shape) + 0.3 * member,
        member,
        rows,
        rows // 2,
        facts,
        facts,
        {"k": 3, "queries": 1},
    )


def with_bootstrap(args) -> None:
    rows, draws = [], 20
    for targets in (4, 8) if args.quick else (16, 64, 256):
        scores = of_targets(targets, args.samples)
        whole = timed(partial(metrics.summary, scores, n_resamples=draws))
        drawn = timed(partial(bootstrap, scores, n_resamples=draws))
        peak = peak_memory(partial(bootstrap, scores, n_resamples=2))
        thousand = f"{whole - drawn + 1000 / draws * drawn:.0f} s"
        rows.append(
            [args.samples, targets, f"{whole:.1f} s", f"{drawn:.1f} s", thousand, f"{peak:.0f} MB"]
        )
    columns = (
        f"samples | targets | summary, {draws} draws | its bootstrap | 1,000 draws, extrapolated |"
        " bootstrap's peak memory"
    )
    table(columns.split(" | "), rows)


def growth(args) -> None:
    """Exponents b of processor seconds = a size^b, least squares of the logarithms."""
    models = (8, 16) if args.quick else (16, 64, 256)
    samples = (500, 1000) if args.quick else (5_000, 10_000, 20_000, 50_000)
    rows = []
    for what, grid in (
        ("references", [(m, samples[-1]) for m in models]),
        ("samples", [(models[1], n) for n in samples]),
    ):
        worlds = {at: world(*at) for at in grid}
        for name, attack in ATTACKS.items():
            x = np.log([at[what == "samples"] for at in grid])
            y = np.log(
                [
                    min(processor_seconds(partial(attack, *worlds[at])) for _ in range(args.repeat))
                    for at in grid
                ]
            )
            slope, level = np.polyfit(x, y, 1)
            off = math.expm1(np.abs(y - slope * x - level).max())
            sizes = ", ".join(f"{at[what == 'samples']:,}" for at in grid)
            rows.append([name, what, sizes, f"{slope:.2f}", f"{100 * off:.0f} %"])
    table(["growth of", "with", "at", "exponent", "farthest from the fit"], rows)


def processor_seconds(run) -> float:
    """Of this process: other work on the machine counts for little."""
    begun = time.process_time()
    run()
    return time.process_time() - begun


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = options(__doc__)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--population", type=int)
    parser.add_argument("--only", help="one question: the name of a function of this script")
    parser.add_argument("--repeat", type=int, help="interleaved rounds, of which the median counts")
    args = parser.parse_args()
    args.samples = args.samples or (2000 if args.quick else 50_000)
    args.population = args.population or (500 if args.quick else 10_000)
    args.repeat = args.repeat or (1 if args.quick else 5)
    with report("Scoring", args.quick):
        questions = (
            against_textbook,
            one_target,
            whole_pools,
            chosen_temperatures,
            from_files,
            with_bootstrap,
            growth,
        )
        for question in questions:
            if args.only in (None, question.__name__):
                question(args)


if __name__ == "__main__":
    main()
