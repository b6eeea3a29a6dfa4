"""How long does the main job take? Seconds of each notebook of `mia-nb run all --preset demo` into
an empty results folder.

python benchmarks/demo.py [--preset tour]
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from common import ROOT, options, report, table, timed

AIM, FIRST = 150, 45  # seconds on two cores: in all, and to the first page of results
QUICK = ("01_train", "--preset", "demo", "-p", "num_models=2", "-p", "epochs=1", "-p", "limit=200")


def run(results: str, *words: str) -> float:
    """Run the command; seconds until its report is there for the first time."""
    command = [sys.executable, "-m", "mia_nb.cli", "run", *words, "--results", results]
    begun, first = time.perf_counter(), 0.0
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
    )
    while process.poll() is None:
        if not first and list(Path(results).glob("run-*/report.html")):
            first = time.perf_counter() - begun
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command[2:])} ended with {process.returncode}")
    return first or time.perf_counter() - begun


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--preset", default="demo")
    args = parser.parse_args()
    with report("The demo", args.quick), tempfile.TemporaryDirectory() as results:
        words = QUICK if args.quick else ("all", "--preset", args.preset)
        begun = time.perf_counter()
        first, whole = run(results, *words), time.perf_counter() - begun
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = next(Path(results).glob("run-*")) / "status.json"
        rows = [
            [step["notebook"], f"{step['seconds']:.1f}"]
            for step in json.loads(status.read_text())["steps"]
        ]
        rows.append([f"to the first page of results (aim {FIRST})", f"{first:.1f}"])
        rows.append([f"all, report and start-up included (aim {AIM})", f"{whole:.1f}"])
        rows.append(["processor time of all", f"{used.ru_utime + used.ru_stime:.1f}"])
        table(
            ["notebook", "seconds"],
            [
                *rows,
                ["the same again, all of it cached", f"{timed(partial(run, results, *words)):.1f}"],
            ],
        )


if __name__ == "__main__":
    main()
