"""How fast are 16 models asked? Images a second over a plain loop `for batch: softmax(model(x))`; a
cached answer.

    python benchmarks/querying.py [--rounds 3] [--models 16]
    python benchmarks/querying.py --store results --against OTHER_CHECKOUT

The second form asks what the notebooks of `--preset demo` ask about the pools in a store, in a copy
of it, by the code of another checkout and of this one in turn. The first asks models that are
hardly trained: what an answer costs does not depend on what was learnt. Loop and ours run in this
process, on a CPU by as many threads as there are cores. Ours includes the doubts about each model's
answers, the signals and their writing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from common import ROOT, head, options, ratios, report, rounds, row, spread, timed

from mia_nb import data, query, querying, store, training
from mia_nb.models.neural_de import set_noise
from mia_nb.types import Images, Recipe

BATCH = 512


class Asked(NamedTuple):
    images: str
    limit: int | None
    recipe: dict
    epochs: int = 1  # a spiking network is silent until its BatchNorm knows its inputs
    # several queries differ by the network's own noise, otherwise by input dropout
    noise: bool = False


COLOUR = "synthetic:classes=10,n=256,size=32,channels=3"
NETS = {
    "TinyCNN, digits": Asked("digits", None, {}),
    "ResNet14 w16, 32x32": Asked(COLOUR, None, {"model": "resnet14", "model_args": {"width": 16}}),
    "SNN T=4, digits": Asked(
        "digits",
        256,
        {"model": "snn", "model_args": {"base": "tinycnn", "timesteps": 4}},
        epochs=30,
    ),
    "SDENet w8, digits": Asked(
        "digits", 256, {"model": "sdenet", "model_args": {"width": 8, "steps": 4}}, noise=True
    ),
}


def pool_of(asked: Asked, models: int, root: str) -> tuple[training.pool.Pool, Images]:
    """A pool whose models are hardly trained, on 64 images each."""
    images = data.load(asked.images, limit=asked.limit)
    member = np.arange(len(images.y)) < 64
    member = np.stack([np.roll(member, 3 * m) for m in range(models)])
    recipe = Recipe(**asked.recipe, num_models=models, split="given", batch=32, epochs=asked.epochs)
    return training.train_pool(recipe, images, member=member, root=root, progress=False), images


def batches(images: Images) -> Iterator[torch.Tensor]:
    for x in images.x.split(BATCH):
        yield data.normalise(x, images.mean, images.std)


@torch.inference_mode()
def plain_loop(
    pool: training.pool.Pool, images: Images, queries: int, dropout: float, noise: bool | None
) -> np.ndarray:
    """(M, Q, N, K) probabilities."""
    answers = []
    for m in range(len(pool.member)):
        model = set_noise(pool.model(m).eval(), noise)
        for _ in range(queries):
            for x in batches(images):
                x = x * (torch.rand_like(x) > dropout) if dropout else x
                answers.append(torch.softmax(model(x), 1).numpy())
    return np.concatenate(answers).reshape(len(pool.member), queries, len(images.y), -1)


def questions(root: str) -> dict[str, list]:
    """What the demo's notebooks ask about its pools, by notebook."""
    pools = [training.load_pool(folder.key, root) for folder in store.folders(root, "pool")]
    spiking = [
        p for p in pools if p.recipe.model == "snn" and p.recipe.model_args["timesteps"] != 3
    ]
    last = max(
        (p for p in spiking if p.recipe.parent and p.recipe.epochs),
        key=lambda p: p.recipe.model_args["timesteps"],
    )
    flows = [p for p in pools if p.recipe.snapshots and not p.population.any()]
    sde = next(p for p in flows if p.recipe.model == "sdenet")
    network = last.ancestor

    def ask(pool: training.pool.Pool, **how) -> partial:
        return partial(query, pool, pool.images(), force=True, progress=False, **how)

    then = [
        ask(p.at(epoch), queries=4 if p is sde else 1)
        for p in flows
        for epoch in p.recipe.snapshots
    ]
    quality = partial(training.conversion_quality, network, network.images(), (1, 2, 4, 8, 16))
    rates = partial(querying.firing_rates, last, last.images(), models=range(4))
    trained = [p for p in (network, *spiking) if p.recipe.epochs]
    return {
        "02": [quality, rates, ask(last, per_step=True), *(ask(p) for p in (network, *spiking))],
        "04": [ask(p, queries=3, input_dropout=0.02) for p in trained],
        "09": [*map(ask, flows), *then, ask(sde, queries=16), ask(sde, noise=False)],
    }


def answer(root: str) -> None:
    """Seconds by the clock and of the processor that each notebook's questions take."""
    for name, runs in questions(root).items():
        begun, spent = time.perf_counter(), time.process_time()
        for run in runs:
            run()
        print(name, time.perf_counter() - begun, time.process_time() - spent)


def compare(stored: Path, other: str, count: int) -> None:
    """The demo's questions by two checkouts, in interleaved rounds."""
    taken: dict = {}
    with tempfile.TemporaryDirectory() as root:
        for folder in stored.glob("pool-*"):
            shutil.copytree(folder, Path(root) / folder.name)
        for _ in range(count):
            for tree in (other, str(ROOT)):
                environment = os.environ | {"PYTHONPATH": tree, "MIA_NB_MODE": "batch"}
                run = [sys.executable, __file__, "--answer", root]
                said = subprocess.run(
                    run, env=environment, capture_output=True, text=True, check=True
                )
                for name, *seconds in map(str.split, said.stdout.splitlines()):
                    taken.setdefault((name, tree), []).append([float(value) for value in seconds])
    head(
        ["notebook", "seconds there", "here", "factor", "processor seconds there", "here", "factor"]
    )
    for name in sorted({name for name, _ in taken}):
        before, after = (list(zip(*taken[name, tree], strict=True)) for tree in (other, str(ROOT)))
        cells = (
            (spread(a, ".1f"), spread(b, ".1f"), spread(ratios(a, b)))
            for a, b in zip(before, after, strict=True)
        )
        row([name, *(cell for each in cells for cell in each)])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--store", type=Path, help="a folder with the pools of --preset demo")
    parser.add_argument("--against", help="another checkout, which is asked the same")
    parser.add_argument("--answer", help="ask the demo's questions here, and print what they took")
    args = parser.parse_args()
    if args.answer:
        return answer(args.answer)
    if args.store and args.against:
        with report("The demo's questions"):
            return compare(args.store, args.against, args.rounds)
    os.environ["MIA_NB_MODE"] = "batch"
    nets = NETS
    if args.quick:
        args.rounds, args.models = 1, 2
        nets = {name: asked._replace(limit=128) for name, asked in NETS.items() if "w" not in name}
    with report(f"Asking {args.models} models", args.quick), tempfile.TemporaryDirectory() as root:
        head(
            [
                "networks",
                "images",
                "queries",
                "plain loop, images/s",
                "ours, images/s",
                "factor",
                "cached answer",
            ]
        )
        for name, asked in nets.items():
            pool, images = pool_of(asked, args.models, root)
            for queries in (1, 2 if args.quick else 10):
                dropout, noise = (
                    0.02 if queries > 1 and not asked.noise else 0.0,
                    asked.noise or None,
                )
                how = {
                    "queries": queries,
                    "input_dropout": dropout,
                    "noise": noise,
                    "batch": BATCH,
                    "progress": False,
                }
                ours = partial(query, pool, images, **how)
                runs = {
                    "loop": partial(plain_loop, pool, images, queries, dropout, noise),
                    "ours": partial(ours, force=True),
                }
                taken = rounds(runs, args.rounds, warm=1 if queries == 1 else 0)
                cached = sorted(timed(ours) for _ in range(5))[2]
                count = args.models * queries * len(images.y)
                kind = "noise" if noise else "dropout .02" if dropout else "plain"
                rates = {
                    way: [count / seconds for seconds in values] for way, values in taken.items()
                }
                shown = [spread(rates[way], ",.0f") for way in ("loop", "ours")]
                factor = spread(ratios(rates["ours"], rates["loop"]))
                row(
                    [
                        name,
                        len(images.y),
                        f"{queries}, {kind}",
                        *shown,
                        factor,
                        f"{1e3 * cached:.0f} ms",
                    ]
                )


if __name__ == "__main__":
    main()
