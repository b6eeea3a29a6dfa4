"""How long until something happens? Fresh processes: imports, the command line, a run whose results
are there.

    python benchmarks/startup.py [--rounds 5]

Wall times of whole processes, interleaved rounds after one that warms the file cache up. The second
table adds up the time that python -X importtime gives for each package's own modules.
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import tempfile
from functools import partial

from common import ROOT, options, ratios, report, rounds, spread, table

COMMAND = "from mia_nb.cli import main; import sys; sys.exit(main())"
MODULES = ("mia_nb", "mia_nb.attacks", "mia_nb.widgets", "mia_nb.training", "mia_nb.cli")
ANALYSIS = "from mia_nb import attacks, metrics, plots, widgets"
OTHERS = ("numpy", "pandas", "plotly.graph_objects", "ipywidgets", "torch")
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
TINY = ("-p", "num_models=2", "-p", "epochs=1", "-p", "limit=200")


def python(*words: str, quiet: bool = True) -> subprocess.CompletedProcess:
    """Run a fresh interpreter of this checkout; its failure is ours."""
    place = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "MIA_NB_MODE": "batch",
    }
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=place)
    if done.returncode:
        raise SystemExit(f"python {' '.join(words)}: {done.stderr.strip().splitlines()[-1:]}")
    return done


def packages(code: str) -> collections.Counter:
    """Milliseconds of importing each top-level package's own modules, of one run."""
    spent: collections.Counter = collections.Counter()
    for own, name in LINE.findall(python("-X", "importtime", "-c", code).stderr):
        top = name.partition(".")[0].lstrip("_")
        spent["Python" if top in sys.stdlib_module_names else name.partition(".")[0]] += (
            int(own) / 1e3
        )
    return spent


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    modules, others = (MODULES[:2], OTHERS[:1]) if args.quick else (MODULES, OTHERS)
    with report("Start-up", args.quick), tempfile.TemporaryDirectory() as results:
        runs = {"Python alone": partial(python, "-c", "")}
        runs |= {
            f"import {name}": partial(python, "-c", f"import {name}")
            for name in (*modules, *others)
        }
        runs[ANALYSIS] = partial(python, "-c", ANALYSIS)
        runs |= {
            f"mia-nb {word}": partial(python, "-c", COMMAND, word) for word in ("--help", "list")
        }
        if not args.quick:
            words = ("-c", COMMAND, "run", "01_train", "--results", results, *TINY)
            python(*words)
            runs["mia-nb run 01_train, all of it cached"] = partial(python, *words)
        taken = rounds(runs, 1 if args.quick else args.rounds, warm=0 if args.quick else 1)
        rows = []
        for name, values in taken.items():
            over = spread(ratios(values, taken["Python alone"]), ".1f")
            rows.append([name, spread([1e3 * seconds for seconds in values], ".0f"), over])
        table(["fresh process", "ms", "over Python alone"], rows)
        rows = []
        for code in (*(f"import {name}" for name in modules), ANALYSIS):
            spent = packages(code)
            most = ", ".join(f"{package} {ms:.0f}" for package, ms in spent.most_common(6))
            rows.append([code, f"{spent.total():.0f}", most])
        table(
            ["what", "importing, ms (with -X importtime, which slows it down)", "most of it"], rows
        )


if __name__ == "__main__":
    main()
