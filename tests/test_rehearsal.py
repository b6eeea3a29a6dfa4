"""The CUDA path on a machine without a GPU, where the pretended device is at hand."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
TOOL = Path(os.environ.get("MIA_NB_FAKECUDA", HERE.parent.parent / "shared" / "tools"))
# torch.compile is beyond the pretence; that training reaches an accuracy is the processor's doing
# here, and rehearsal.py trains these families, plain and stacked, in bfloat16 too
EAGER = "not compiled and not train"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.rehearsal,
    pytest.mark.skipif(
        not (TOOL / "fakecuda.py").exists(), reason="no pretended CUDA device (MIA_NB_FAKECUDA)"
    ),
]
PATH = os.pathsep.join(map(str, (TOOL, HERE, HERE.parent, HERE.parent / "benchmarks")))


@pytest.mark.parametrize(("file", "chosen"), [("rehearsal.py", ""), ("test_gpu.py", EAGER)])
def test_the_cuda_path_keeps_the_rules_of_a_gpu(file, chosen, tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "fakecuda", "-p", "no:cacheprovider"]
    command += ["--tb=short", "--basetemp", str(tmp_path / "t"), "-k", chosen, str(HERE / file)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": PATH}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


PARTS = range(1, 7)
PLAN = """
import runpy
import sys

import fakecuda

fakecuda.install()
script, out = sys.argv[1:]
for part in range(1, 7):
    # a part finds the pools of those before it, as it does on a GPU
    sys.argv = [script, "--toy", "--part", str(part), "--out", f"{out}/{part}"]
    sys.argv += ["--results", f"{out}/results"]
    if part == 5:  # hybrid training to one time step in place of four takes half as long
        sys.argv += ["--pools", "resnet18", "fast-wide", "fast-hybrid-T1", "odenet", "sdenet"]
    print(f"part {part} begins", flush=True)
    try:
        runpy.run_path(script, None, "__main__")
    except SystemExit as end:
        print(f"part {part} ends with {end.code or 0}", flush=True)
"""


@pytest.fixture(scope="module")
def plan_for_a_gpu(tmp_path_factory) -> tuple[Path, str]:
    """(the folders of all parts, what was printed): one process, since each would load torch anew."""
    out = tmp_path_factory.mktemp("plan")
    script = HERE.parent / "benchmarks" / "gpu.py"
    done = subprocess.run(
        [sys.executable, "-c", PLAN, str(script), str(out)],
        env=os.environ | {"PYTHONPATH": PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return out, done.stdout


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_plan_for_a_gpu_runs_at_toy_size(part, plan_for_a_gpu):
    out, printed = plan_for_a_gpu
    of_part = printed.partition(f"part {part} begins\n")[2].partition(f"part {part + 1} begins\n")[
        0
    ]
    assert f"part {part} ends with 0\n" in of_part, printed[-6000:]
    folder = out / str(part)
    found = json.loads((folder / f"part{part}.json").read_text())
    assert found["rows"] and found["left"] == [] and "problems" not in found
    numbers = [cell for row in found["rows"] for cell in row.values() if isinstance(cell, float)]
    assert numbers and np.isfinite(numbers).all()
    assert (folder / f"part{part}.md").read_text().startswith(f"**Part {part}**")
    assert_it_travels(folder)


def assert_it_travels(folder):
    """Figures come back from a machine that is lent as a few files of a moderate size."""
    there = list(folder.rglob("*"))
    assert len(there) <= 8 and all(path.is_file() for path in there)
    assert all(re.fullmatch(r"[\w.-]+", path.name, re.ASCII) for path in there)
    assert sum(path.stat().st_size for path in there) < 8 * 16 * 2**20
