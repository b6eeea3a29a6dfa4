"""All benchmarks one after another: `make bench`. What they print, to keep in RESULTS.md with its
date.

    python benchmarks/run.py [--only NAME ...] [--quick] [--minutes N] [--out FILE]

After --minutes no further one is begun. Exit status 1 if one failed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

from common import gpu, options

HERE = Path(__file__).parent
# what is asked, the most important first; and how little of it a quick look takes
QUESTIONS = {
    "training": ["--quick"],
    "querying": ["--quick"],
    "scoring": ["--quick"],
    "gpu": ["--quick", "--device", "cpu"],
    "coverage": ["--quick"],
    "audits": ["--quick"],
    "private_sde": ["--quick"],
}


def ask(name: str, words: list[str], out: TextIO | None) -> int:
    """Run one script, its output passed on as it comes; its exit status."""
    begun = time.monotonic()
    say(f"## {name}\n", out)
    command = [sys.executable, "-u", str(HERE / f"{name}.py"), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            say(line.rstrip("\n"), out)
    status = "" if process.returncode == 0 else f"failed with status {process.returncode}, "
    say(f"\n({name}: {status}{time.monotonic() - begun:.0f} s)\n", out)
    return process.returncode


def say(line: str, out: TextIO | None) -> None:
    print(line, flush=True)
    if out:
        print(line, file=out, flush=True)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=QUESTIONS, metavar="NAME", help=", ".join(QUESTIONS)
    )
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    wanted = [name for name in QUESTIONS if args.only is None or name in args.only]
    until, left, failed = time.monotonic() + 60 * args.minutes, [], []
    out = args.out.open("w") if args.out else None
    for name in wanted:
        if name == "gpu" and not args.quick and gpu() is None:
            left.append("gpu (there is none here)")
        elif time.monotonic() > until:
            left.append(f"{name} (the time was up)")
        elif ask(name, QUESTIONS[name] if args.quick else [], out):
            failed.append(name)
    if left:
        say(f"Not run: {', '.join(left)}.", out)
    if failed:
        say(f"Failed: {', '.join(failed)}.", out)
    if out:
        out.close()
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
