"""The fused attack beside every single one, on pools trained here: AUC and TPR, and what fused
gains, paired.

    python benchmarks/fused.py [--images cifar.npz --limit 10000] [--seed 201] [--root DIR]
    [--quick]
        [--only digits spiking sde images null]

Every target in turn against the references of all other pairs. Intervals are 95 %, of 1,000 draws.
rmia at temperature 2 reads logits halved before anything else, from a query of its own.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from common import options, report, table

from mia_nb import attacks, data, metrics
from mia_nb.metrics.curve import auc_null_error
from mia_nb.querying import query
from mia_nb.training import train_pool
from mia_nb.types import Recipe, Signals

FPR = (0.001, 0.01)
SHOWN = ("auc", "tpr@0.01", "tpr@0.001")
DIGITS = {"num_models": 16, "epochs": 20}
POOLS = {
    "digits": DIGITS | {"model": "tinycnn"},
    "spiking": {
        "num_models": 16,
        "epochs": 8,
        "model": "snn",
        "model_args": {"base": "tinycnn", "timesteps": 4},
    },
    "sde": {
        "num_models": 16,
        "epochs": 8,
        "model": "sdenet",
        "model_args": {"width": 8, "steps": 4},
    },
    "images": DIGITS | {"model": "tinycnn", "batch": 64},
}
WORDS = (
    "rmia",
    "nig",
    "lira_global",
    "lira_shrunk",
    "base",
    "attack_r",
    "watson",
    "song_mittal",
    "loss",
    "correctness",
)


def signals_of(name: str, args, root: str) -> tuple[Signals, Signals]:
    """The pool's signals as asked, and at temperature 2."""
    recipe = (
        POOLS[name] | ({"num_models": 8, "epochs": 2} if args.quick else {}) | {"seed": args.seed}
    )
    if name != "images":
        images = data.load("digits", limit=300 if args.quick else None)
    else:
        images = data.load(args.images, limit=args.limit)
    pool = train_pool(Recipe(**recipe), images, root=root, progress=False)
    queries = 8 if name == "sde" else 1
    ask = partial(query, pool, images, queries=queries, progress=False)
    return ask(), ask(temperature=2.0)


def null(seed: int, models: int, samples: int) -> Signals:
    """Margins that know nothing of membership, in complementary pairs."""
    rng = np.random.default_rng(seed)
    member = data.paired_membership(models, samples, seed=seed)
    phi = rng.normal(2, 3, samples) + rng.normal(size=member.shape)
    logits = np.stack([phi, np.zeros_like(phi)], axis=-1)
    return Signals.from_logits(logits, np.zeros(samples, int), member)


def compared(name: str, signals: Signals, warm: Signals) -> None:
    begun = time.process_time()
    fused = attacks.score("fused", signals)
    seconds = (time.process_time() - begun) / len(fused.value)
    singles = {word: attacks.score(word, signals) for word in WORDS}
    singles["nig, variance ratio"] = attacks.score(
        partial(attacks.likelihood.nig, share_variance="ratio"), signals
    )
    singles["rmia, temperature 2"] = attacks.score("rmia", warm)
    if signals.query_kind == "noise":
        singles["lira_joint"] = attacks.score("lira_joint", signals)
    rows = []
    for word, scores in {"fused": fused, **singles}.items():
        own, apart = metrics.intervals(scores, FPR), metrics.difference(fused, scores, FPR)
        cells = [shown(*own.loc[what]) for what in SHOWN]
        rows.append(
            [
                word,
                *cells,
                *("-" if scores is fused else shown(*apart.loc[what], "+") for what in SHOWN),
            ]
        )
    columns = "AUC | TPR at 1 % | TPR at .1 % | fused - it: AUC | TPR at 1 % | TPR at .1 %"
    models, queries, samples = signals.shape
    head = f"{name}: {models} models, {samples} samples, {queries} queries"
    table([head, *columns.split(" | ")], rows)
    print(f"fused takes {seconds:.1f} processor seconds a target.\n", flush=True)


def shown(value, low, high, sign: str = "") -> str:
    return f"{value:{sign}.4f} [{low:{sign}.4f}, {high:{sign}.4f}]"


def nothing(args) -> None:
    rows = []
    for models in (8, 16) if args.quick else (8, 16, 24):
        scores = attacks.score("fused", null(args.seed, models, 500 if args.quick else 4000))
        aucs = metrics.per_target(scores)["auc"]
        error = auc_null_error(*np.bincount(scores.member[0])) / np.sqrt(models)
        rows.append([models, scores.value.shape[1], f"{aucs.mean():.4f}", f"{error:.4f}"])
    table(
        [
            "null world: models",
            "samples",
            "mean AUC of fused",
            "standard error, targets independent",
        ],
        rows,
    )


def main():
    parser = options(__doc__)
    parser.add_argument(
        "--images", help="an .npz or a folder for data.load; without it, no pool of images"
    )
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=201, help="of pools and null worlds")
    parser.add_argument("--root", type=Path, help="where pools are kept; default: nowhere")
    parser.add_argument("--only", nargs="+", choices=[*POOLS, "null"])
    args = parser.parse_args()
    kept = contextlib.nullcontext(args.root) if args.root else tempfile.TemporaryDirectory()
    with report("Fused attack", args.quick), kept as root:
        for name in args.only or (["digits"] if args.quick else list(POOLS)):
            if name == "null" or (name == "images" and not args.images):
                continue
            compared(name, *signals_of(name, args, str(root)))
        if args.only is None or "null" in args.only:
            nothing(args)


if __name__ == "__main__":
    main()
