"""All benchmarks one after another: `make bench`. Paste what they print into RESULTS.md with date and hardware."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

for script in sorted(p for p in HERE.glob("*.py") if p.name != "run.py"):
    print(f"## {script.stem}\n", flush=True)
    subprocess.run([sys.executable, str(script)], check=False)
    print(flush=True)
