"""How fast are 16 models asked? Images a second over a plain loop `for batch: softmax(model(x))`; a cached answer.

    python benchmarks/querying.py [--rounds 3] [--models 16]

Models that are hardly trained: what an answer costs does not depend on what was learnt. Both are asked in this process, on a
CPU by as many threads as there are cores. Ours includes the doubts about each model's answers, the signals and their writing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from common import head, options, ratios, report, rounds, row, spread, timed

from mia_nb import data, query, training
from mia_nb.models.neural_de import set_noise
from mia_nb.types import Images, Recipe

BATCH = 512


class Asked(NamedTuple):
    images: str
    limit: int | None
    recipe: dict
    epochs: int = 1  # a spiking network is silent until its BatchNorm knows its inputs
    noise: bool = False  # several queries differ by the network's own noise, otherwise by input dropout


COLOUR = "synthetic:classes=10,n=256,size=32,channels=3"
NETS = {
    "TinyCNN, digits": Asked("digits", None, {}),
    "ResNet14 w16, 32x32": Asked(COLOUR, None, {"model": "resnet14", "model_args": {"width": 16}}),
    "SNN T=4, digits": Asked("digits", 256, {"model": "snn", "model_args": {"base": "tinycnn", "timesteps": 4}}, epochs=30),
    "SDENet w8, digits": Asked("digits", 256, {"model": "sdenet", "model_args": {"width": 8, "steps": 4}}, noise=True),
}


def pool_of(asked: Asked, models: int, root: str) -> tuple[training.Pool, Images]:
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
def plain_loop(pool: training.Pool, images: Images, queries: int, dropout: float, noise: bool | None) -> np.ndarray:
    """(M, Q, N, K) probabilities."""
    answers = []
    for m in range(len(pool.member)):
        model = set_noise(pool.model(m).eval(), noise)
        for _ in range(queries):
            for x in batches(images):
                x = x * (torch.rand_like(x) > dropout) if dropout else x
                answers.append(torch.softmax(model(x), 1).numpy())
    return np.concatenate(answers).reshape(len(pool.member), queries, len(images.y), -1)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", type=int, default=16)
    args = parser.parse_args()
    os.environ["MIA_NB_MODE"] = "batch"
    nets = NETS
    if args.quick:
        args.rounds, args.models = 1, 2
        nets = {name: asked._replace(limit=128) for name, asked in NETS.items() if "w" not in name}
    with report(f"Asking {args.models} models", args.quick), tempfile.TemporaryDirectory() as root:
        head(["networks", "images", "queries", "plain loop, images/s", "ours, images/s", "factor", "cached answer"])
        for name, asked in nets.items():
            pool, images = pool_of(asked, args.models, root)
            for queries in (1, 2 if args.quick else 10):
                dropout, noise = 0.02 if queries > 1 and not asked.noise else 0.0, asked.noise or None
                how = {"queries": queries, "input_dropout": dropout, "noise": noise, "batch": BATCH, "progress": False}
                ours = partial(query.query, pool, images, **how)
                runs = {
                    "loop": partial(plain_loop, pool, images, queries, dropout, noise),
                    "ours": partial(ours, force=True),
                }
                taken = rounds(runs, args.rounds, warm=1 if queries == 1 else 0)
                cached = sorted(timed(ours) for _ in range(5))[2]
                count = args.models * queries * len(images.y)
                kind = "noise" if noise else "dropout .02" if dropout else "plain"
                rates = {way: [count / seconds for seconds in values] for way, values in taken.items()}
                shown = [spread(rates[way], ",.0f") for way in ("loop", "ours")]
                factor = spread(ratios(rates["ours"], rates["loop"]))
                row([name, len(images.y), f"{queries}, {kind}", *shown, factor, f"{1e3 * cached:.0f} ms"])


if __name__ == "__main__":
    main()
