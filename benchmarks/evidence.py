"""Train the pools whose signals travel with the package: CIFAR-10, 50,000 images, every pool on the
same masks.

    nice -n 19 python benchmarks/evidence.py cifar10-jpeg.npz --root results resnet14

The images are an .npz with train_images and train_labels, or whatever else `mia_nb.data.load`
reads. Pools are trained in the order given (default: all). A killed run resumes; a finished pool is
skipped. One line a pool says how long it took. Those of `MORE` are trained where they are named.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import shipping

from mia_nb import data, examples, querying
from mia_nb.attacks import score
from mia_nb.training import convert_pool, hybrid_pools, train_pool
from mia_nb.types import Recipe

ORDINARY = {
    "model": "resnet14",
    "model_args": {"width": 16},
    "num_models": 16,
    "epochs": 24,
    "snapshots": [4, 8, 12, 16, 20],
    "batch": 128,
    "lr": 0.1,
    "augment": "crop+flip",
    "dtype": "bfloat16",
    "seed": 0,
}
EQUATION = {"num_models": 8, "epochs": 8, "snapshots": [2, 4, 6]}


FAST = {  # the skeleton of the families at comparable accuracy
    "model": "fast",
    "model_args": {"width": 64},
    "num_models": 8,
    "epochs": 10,
    "snapshots": [1, 2, 3, 4, 5, 6, 7, 8, 9],
    "batch": 500,
    "lr": 0.12,
    "optimizer": "muon",
    "schedule": "linear",
    "augment": "translate+alternate",
    "dtype": "bfloat16",
    "seed": 0,
}
SMALL = FAST | {
    "model_args": {"width": 32},
    "num_models": 16,
    "epochs": 8,
    "snapshots": [1, 2, 3, 4, 5, 6, 7],
}
FAMILY = SMALL | {"num_models": 8}  # of one skeleton, to be compared at equal accuracy
FLOW = {"base": "fast", "base_args": {"width": 32}, "steps": 4}  # its last group as an equation
MORE = {  # further networks of other members, as references; their signals do not travel
    f"fast-small-{seed}": SMALL | {"snapshots": [], "seed": seed} for seed in (1, 2, 3)
}


def spiking(timesteps: int) -> dict:
    """Recipe of the skeleton as a spiking network that is trained from the start."""
    network = {"base": "fast", "base_args": {"width": 32}, "timesteps": timesteps}
    return FAMILY | {"model": "snn", "model_args": network}


POOLS = {  # name: recipe of a pool that is trained from nothing
    "fast-wide": FAST,
    # as the network was published; it does not convert to spikes
    "fast-gelu": FAST | {"model_args": {"width": 64, "activation": "gelu", "pooling": "max"}},
    "fast-small": SMALL,
    "fast-eight": FAMILY,  # its first eight models, as the parent of spiking networks
    # whole trainings, as fair rivals of less accurate families
    "fast-1-epoch": FAMILY | {"epochs": 1, "snapshots": []},
    "fast-2-epochs": FAMILY | {"epochs": 2, "snapshots": [1]},
    "fast-3-epochs": FAMILY | {"epochs": 3, "snapshots": [1, 2]},
    "fast-short": FAMILY | {"epochs": 4, "snapshots": [1, 2, 3]},
    "fast-long": FAMILY | {"epochs": 16, "snapshots": [4, 8, 10, 12, 14]},
    # the mean loss of a batch ends at .54: a target of .5 was never reached, and changed nothing
    "fast-relaxloss": FAMILY | {"defense": "relaxloss", "defense_args": {"target": 0.8}},
    "fast-smoothing": FAMILY | {"defense": "label_smoothing", "defense_args": {"smoothing": 0.2}},
    "fast-ode": FAMILY | {"model": "replaced", "model_args": FLOW | {"k": 0.0}},
    "fast-sde": FAMILY | {"model": "replaced", "model_args": FLOW | {"k": 0.35}},  # sigma 0.7
    "fast-direct-T1": spiking(1),
    "fast-direct-T4": spiking(4),
    "resnet14": ORDINARY,
    "relaxloss": ORDINARY
    | {
        "num_models": 8,
        "snapshots": [],
        "defense": "relaxloss",
        "defense_args": {"target": 0.5},
    },
    "odenet": ORDINARY | EQUATION | {"model": "odenet", "model_args": {"width": 16, "steps": 8}},
    "dp-sgd": ORDINARY
    | {
        "num_models": 8,
        "snapshots": [],
        "model": "tinycnn",
        "model_args": {"width": 32},
        "defense": "dp_sgd",
        # epsilon 8 by RDP at delta 1e-5, of the 25,000 members' batches alone
        "defense_args": {"noise_multiplier": 0.7087},
        "epochs": 12,
        "batch": 512,
        "lr": 2.0,
        "schedule": "cosine",
        "optimizer_args": {"weight_decay": 0.0},
        "augment": "none",
    },
    "sdenet": ORDINARY
    | EQUATION
    | {"model": "sdenet", "model_args": {"width": 16, "steps": 8, "k": 0.25}},  # sigma 0.71
    "resnet14-short": ORDINARY | {"epochs": 12, "num_models": 8, "snapshots": []},
    "resnet14-long": ORDINARY | {"epochs": 48, "num_models": 8, "snapshots": []},
}
TUNED = {"epochs": [2, 1, 1, 1], "lr": 5e-3, "batch": 64}


def tuned(timesteps: int):
    """How a pool's networks become spiking ones by hybrid training up to this many time steps."""
    return lambda pool, images: hybrid_pools(pool, images, timesteps=timesteps, **TUNED)[timesteps]


DERIVED = {  # name: (the pool it is made from, how)
    "fast-converted-T4": ("fast-eight", lambda pool, images: convert_pool(pool, images, 4)),
    "fast-hybrid-T1": ("fast-eight", tuned(1)),
    "fast-hybrid-T2": ("fast-eight", tuned(2)),
    "fast-hybrid-T4": ("fast-eight", tuned(4)),
}
# of all pools they would be over 25 MB
ENTROPIES = {"resnet14": examples.LOGARITHMS, "fast-small": ("modified_entropy",)}
LISTS = ("rmia", "nig", "lira_global", "attack_r")  # attacks whose lists have pictures
COUNTED = 512  # images on which operations are counted
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
KNOWN = [*POOLS, *DERIVED]


def made(name: str, images, root: str, device: str | None, compiled: bool):
    """The pool of this name, trained or made from another, or found where it was."""
    recipes = POOLS | MORE
    if name in recipes:
        recipe = Recipe(**recipes[name])
        return train_pool(recipe, images, root=root, device=device, compiled=compiled)
    base, derive = DERIVED[name]
    return derive(made(base, images, root, device, compiled), images)


def _accuracies(correct: np.ndarray, chosen: np.ndarray) -> list[float]:
    return [round(float(c[m].mean()), 4) for c, m in zip(correct, chosen, strict=True)]


def work(pool, images) -> dict:
    """What each network of a pool computes for an image; of derived ones, the recipe of the pool
    where their chain of parents began.
    """
    counted = querying.operations(pool, images, limit=COUNTED).drop(columns="model")
    record = {"operations": {name: counted[name].round().tolist() for name in counted}}
    if pool.recipe.parent is not None:
        record["made_from"] = pool.ancestor.recipe.to_json()
    return record


def about(pool, signals, images) -> dict:
    """What the manifest of the shipped signals records of a pool."""
    correct, member = signals.correct[:, 0], signals.member
    own = {"dataset", "fields", "models", "pool"}  # of the signals on the disk
    return {
        "info": {
            **{name: value for name, value in signals.info.items() if name not in own},
            "recipe": pool.recipe.to_json(),
            "pool": pool.key,
            "images": images.digest,
            "classes": CLASSES.split(),
            **work(pool, images),
        },
        "train_accuracy": _accuracies(correct, member),
        "test_accuracy": _accuracies(correct, ~member),
        "versions": {name: version(name) for name in ("mia_nb", "torch", "numpy")},
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.date.today().isoformat(),
    }


def ship(name: str, pool, images, place: Path) -> None:
    """Query a pool and put its signals beside the others that travel with the package."""
    begun = time.perf_counter()
    signals = querying.query(pool, images)
    shipping.write(place, name, signals, about(pool, signals, images), ENTROPIES.get(name, ()))
    size = sum(path.stat().st_size for path in place.iterdir()) / 1e6
    print(
        f"{name}: shipped, {size:.1f} MB in all, {time.perf_counter() - begun:,.0f} s", flush=True
    )


def pictures(name: str, images, place: Path) -> None:
    """Thumbnails of the samples that lead any attack's list of exposed ones, and of random ones."""
    from mia_nb.widgets.ranking import separations  # a machine that trains may lack widgets

    signals = examples.load_example(f"cifar10/{name}")
    orders = [np.argsort(-separations(score(word, signals))[0], kind="stable") for word in LISTS]
    first = np.argsort(orders, axis=1).min(0)  # the best place of every sample in any list
    exposed = np.argsort(first, kind="stable")[:200]
    others = np.setdiff1d(np.arange(len(first)), exposed)
    random = np.random.default_rng(0).choice(others, 200, replace=False)
    numbers = [*map(int, exposed), *sorted(map(int, random))]
    shipping.write_images(place, numbers, images.x[numbers].numpy())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images")
    parser.add_argument("pools", nargs="*", metavar="pool", help=f"of {', '.join([*KNOWN, *MORE])}")
    parser.add_argument("--root", default="results")
    parser.add_argument("--device", default=None)
    parser.add_argument("--compiled", action="store_true", help="T = 4 is a quarter faster")
    parser.add_argument("--ship", type=Path, help="folder of an example: write the signals there")
    given = parser.parse_intermixed_args()
    images = data.load(given.images, data_root=given.root)
    for name in given.pools or KNOWN:
        begun = time.perf_counter()
        pool = made(name, images, given.root, given.device, given.compiled)
        print(f"{name}: {pool.folder.path.name}, {time.perf_counter() - begun:,.0f} s", flush=True)
        if given.ship:
            ship(name, pool, images, given.ship)
    if given.ship and "resnet14" in (given.pools or KNOWN):
        pictures("resnet14", images, given.ship)


if __name__ == "__main__":
    main()
