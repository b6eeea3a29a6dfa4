"""First and second load of a folder of class folders of images: python benchmarks/loading.py FOLDER
[--repeat 3]

Each round uses a fresh cache folder, loads twice, and checks that both give the same digest. Prints
medians and their ratio. The operating system's file cache is warm after the first round, which
favours the first load.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from common import options, ratios, report, spread, table, timed
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


def main() -> None:
    parser = options(__doc__)
    parser.add_argument(
        "folder", nargs="?", help="default: 2,000 small JPEGs made for the occasion"
    )
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, report("A folder of images", args.quick):
        compare(
            args.folder or made_up(Path(folder), 50 if args.quick else 2000),
            1 if args.quick else args.repeat,
        )


def compare(folder: str, repeat: int) -> None:
    taken: dict[str, list[float]] = {"first": [], "second": []}
    for _ in range(repeat):
        found = []
        with tempfile.TemporaryDirectory() as root:
            for seconds in taken.values():
                seconds.append(
                    timed(
                        lambda root=root, found=found: found.append(
                            data.load(folder, data_root=root)
                        )
                    )
                )
        if len({images.digest for images in found}) > 1:
            raise SystemExit("the two loads differ")
    rows = [
        [which, spread(seconds), spread(ratios(taken["first"], seconds), ".1f")]
        for which, seconds in taken.items()
    ]
    print(f"{tuple(found[0].x.shape)}\n")
    table(["load", "seconds", "times faster"], rows)


if __name__ == "__main__":
    main()
