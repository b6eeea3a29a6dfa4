"""Train the pools whose signals travel with the package: CIFAR-10, 50,000 images, every pool on the
same masks.

    nice -n 19 python benchmarks/evidence.py cifar10-jpeg.npz --root results resnet14

The images are an .npz with train_images and train_labels, or whatever else `mia_nb.data.load`
reads. Pools are trained in the order given (default: all). A killed run resumes; a finished pool is
skipped. One line a pool says how long it took.
"""

from __future__ import annotations

import argparse
import time

from mia_nb import data
from mia_nb.training import train_pool
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
POOLS = {
    "resnet14": ORDINARY,
    "resnet14-long": ORDINARY | {"epochs": 48, "num_models": 8, "snapshots": []},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images")
    parser.add_argument("pools", nargs="*", metavar="pool", help=f"of {', '.join(POOLS)}")
    parser.add_argument("--root", default="results")
    parser.add_argument("--device", default=None)
    given = parser.parse_args()
    images = data.load(given.images, data_root=given.root)
    for name in given.pools or POOLS:
        begun = time.perf_counter()
        pool = train_pool(Recipe(**POOLS[name]), images, root=given.root, device=given.device)
        print(f"{name}: {pool.folder.path.name}, {time.perf_counter() - begun:,.0f} s", flush=True)


if __name__ == "__main__":
    main()
