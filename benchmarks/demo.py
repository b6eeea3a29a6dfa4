"""How long does the main job take? Seconds of each notebook of `mia-nb run all --preset demo` into an empty results folder.

python benchmarks/demo.py [--aim 240]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from common import ROOT, options, report, table, timed

AIM = 240  # seconds on two cores
QUICK = ("01_train", "--preset", "demo", "-p", "num_models=2", "-p", "epochs=1", "-p", "limit=200")


def run(results: str, *words: str) -> None:
    command = [sys.executable, "-m", "mia_nb.cli", "run", *words, "--results", results]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[2:])} ended with {done.returncode}")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--aim", type=float, default=AIM)
    args = parser.parse_args()
    with report("The demo", args.quick), tempfile.TemporaryDirectory() as results:
        once = partial(run, results, *(QUICK if args.quick else ("all", "--preset", "demo")))
        whole = timed(once)
        status = next(Path(results).glob("run-*")) / "status.json"
        rows = [[step["notebook"], f"{step['seconds']:.1f}"] for step in json.loads(status.read_text())["steps"]]
        rows.append(["all, report and start-up included", f"{whole:.1f}"])
        if not args.quick:
            rows.append(["aim", f"{args.aim:.0f}"])
        table(["notebook", "seconds"], [*rows, ["the same again, all of it cached", f"{timed(once):.1f}"]])


if __name__ == "__main__":
    main()
