"""The CUDA path on a machine without a GPU, where the pretended device is at hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOOL = Path(os.environ.get("MIA_NB_FAKECUDA", HERE.parent.parent / "shared" / "tools"))
QUICK = (
    "waits or streams"  # the rest takes minutes on a CPU, and torch.compile is beyond the pretence
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.rehearsal,
    pytest.mark.skipif(
        not (TOOL / "fakecuda.py").exists(), reason="no pretended CUDA device (MIA_NB_FAKECUDA)"
    ),
]


@pytest.mark.parametrize(("file", "chosen"), [("rehearsal.py", ""), ("test_gpu.py", QUICK)])
def test_the_cuda_path_keeps_the_rules_of_a_gpu(file, chosen, tmp_path):
    path = os.pathsep.join([str(TOOL), str(HERE), str(HERE.parent)])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "fakecuda", "-p", "no:cacheprovider"]
    command += ["--tb=short", "--basetemp", str(tmp_path / "t"), "-k", chosen, str(HERE / file)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
