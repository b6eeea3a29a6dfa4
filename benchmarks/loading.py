"""First and second load of a folder of class folders of images: python benchmarks/loading.py FOLDER [--repeat 3]

Each round uses a fresh cache folder, loads twice, and checks that both give the same digest. Prints medians and their ratio.
The operating system's file cache is warm after the first round, which favours the first load.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from mia_nb import data


def made_up(folder: Path, count: int = 2000) -> str:
    """A folder of class folders of random 32x32 JPEGs."""
    rng = np.random.default_rng(0)
    for n in range(count):
        path = folder / f"class{n % 10}" / f"{n:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    return str(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="default: 2,000 small JPEGs made for the occasion")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(options.folder or made_up(Path(folder)), options.repeat)


def compare(folder: str, repeat: int) -> None:
    seconds = {"first": [], "second": []}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as root:
            digests = set()
            for which, taken in seconds.items():
                start = time.perf_counter()
                images = data.load(folder, root=root)
                taken.append(time.perf_counter() - start)
                digests.add(images.digest)
                print(f"{which} load: {taken[-1]:.2f} s", flush=True)
        if len(digests) > 1:
            raise SystemExit("the two loads differ")
    first, second = (statistics.median(taken) for taken in seconds.values())
    print(f"{tuple(images.x.shape)}: first {first:.2f} s, second {second:.2f} s, {first / second:.1f} times faster (medians)")


if __name__ == "__main__":
    main()
