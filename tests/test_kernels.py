"""Kernels that are forked from one process: quick, and each as if it were alone."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from mia_nb.cli.executing import Killed, execute
from mia_nb.cli.kernels import MODULES

linux = pytest.mark.skipif(sys.platform != "linux", reason="kernels are forked on Linux alone")
pytestmark = [pytest.mark.notebook, pytest.mark.slow, linux]

LEAVE = """
import os, random, sys, threading, time, warnings
import numpy as np, torch
import mia_nb.store
left = 1
random.seed(0), np.random.seed(0), torch.manual_seed(0), torch.set_num_threads(3), torch.set_default_dtype(torch.float64)
os.environ["LEFT"] = "1"
warnings.filterwarnings("error", message="left")
mia_nb.store.LEFT, sys.path[:0] = 1, ["/left"]
kept = open("left.txt", "w")
threading.Thread(target=time.sleep, args=(60,), name="left", daemon=True).start()
os.chdir("/"), os.umask(0o077)
"""
FOUND = """
import importlib, json, os, random, sys, threading, warnings
import numpy as np, torch
import mia_nb.store
for module in MODULES: importlib.import_module(module)
torch.optim.SGD([torch.zeros(1)], lr=1.0)
files = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")]
print(json.dumps({
    "names": sorted(name for name in globals() if not name.startswith("_")),
    "torch": [torch.get_num_threads(), str(torch.get_default_dtype())],
    "environment": sorted(name for name in os.environ if name not in VARY),
    "filters": sorted({str(one[:3]) for one in warnings.filters}),
    "package": hasattr(mia_nb.store, "LEFT"), "path": sys.path,
    "files": sorted(one for one in files if one.startswith("/") and "/dev/" not in one and ".ipynb" not in one),
    "threads": sorted(one.name.split(" ")[0].split("-")[0] for one in threading.enumerate() if one.name != "mia-nb-parent"),
    "place": [os.getcwd(), os.umask(0o022)],
    "main": [__name__, sys.argv[0].rsplit("/")[-1].split(".")[0]],
}), "|", random.random(), np.random.rand(), torch.rand(1).item(), os.getppid())
"""
# as ipykernel does at times, where its control thread is later than its main thread
FLUSHED = """
import pathlib, sys, zmq
kernel, end = get_ipython().kernel, get_ipython().kernel.do_shutdown
def flush():
    pathlib.Path("flushed").touch()
    raise zmq.ZMQError(zmq.ENOTSOCK)
async def shut(restart):
    sys.stdout.flush = flush
    return await end(restart)
kernel.do_shutdown = shut
"""
VARY = ("JPY_PARENT_PID", "MIA_NB_FORK")


def run(folder, *cells: str) -> str:
    """What a notebook of these cells prints."""
    source, out = folder / "in.ipynb", folder / "out.ipynb"
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), source
    )
    execute(source, out, {})
    found = nbformat.read(out, 4).cells
    return "".join(
        one.text for cell in found for one in cell.outputs if one.output_type == "stream"
    )


def test_a_kernel_finds_nothing_of_the_one_before_and_is_as_one_that_was_not_forked(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    run(tmp_path, LEAVE)
    look = FOUND.replace("VARY", repr(VARY)).replace("MODULES", repr(MODULES))
    states, numbers = zip(*(run(tmp_path, look).split(" | ") for _ in range(2)), strict=True)
    monkeypatch.setenv("MIA_NB_FORK", "0")
    alone, other = run(tmp_path, look).split(" | ")
    assert json.loads(states[0]) == json.loads(states[1]) == json.loads(alone)
    one, two, three = (line.split() for line in (*numbers, other))
    # the first two were forked
    assert str(os.getpid()) not in (one[3], two[3]) and three[3] == str(os.getpid())
    assert (
        len({one[0], two[0], three[0]})
        == len({one[1], two[1], three[1]})
        == len({one[2], two[2], three[2]})
        == 3
    )


def test_the_second_notebook_imports_in_less_than_half_a_second(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    everything = (
        "from mia_nb import attacks, auditing, data, metrics, models, plots, query, training,"
        " widgets, workshop"
    )
    timed = (
        f"import time\nstart = time.process_time()\n{everything}\nimport torch,"
        " pandas\nprint(time.process_time() - start)"
    )
    run(tmp_path, "1")
    assert float(run(tmp_path, timed)) < 0.5


def test_what_a_cell_left_is_on_the_disk_while_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    look = "import nbformat\nsaved = nbformat.read('out.ipynb', 4)\n"
    look += "print([len(cell.outputs) for cell in saved.cells], saved.cells[0].outputs[0].text)"
    assert run(tmp_path, "print('ends')", look) == "ends\n[1, 0] ends\n\n"
    text = (tmp_path / "out.ipynb").read_text()
    nbformat.validate(nbformat.reads(text, 4))
    assert text == nbformat.writes(nbformat.reads(text, 4))  # the last save is indented as usual


def test_a_kernel_that_dies_is_told_and_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Killed, match="the kernel died in cell 1 of 1"):
        run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert run(tmp_path, "print(1 + 1)") == "2\n"


def test_a_kernel_ends_with_the_process_that_forked_it_and_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kill_parent = "import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
    with pytest.raises(Killed, match="the kernel died in cell 1 of 1"):
        run(tmp_path, kill_parent)
    assert run(tmp_path, "print(1 + 1)") == "2\n"


PROCESSES = """
import torch, multiprocessing
from joblib import Parallel, delayed
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, number): return number
batches = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
print([batch.tolist() for batch in batches], Parallel(n_jobs=2)(delayed(lambda x: x * x)(x) for x in (2, 3)))
"""


def test_a_notebook_may_start_processes_that_know_what_it_defined(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, PROCESSES) == "[[0, 1, 2, 3]] [4, 9]\n"


def test_a_module_in_the_working_directory_does_not_stand_in_for_a_library(tmp_path, monkeypatch):
    (tmp_path / "code.py").write_text("raise RuntimeError('imported')")
    script = (
        "from test_kernels import run; from pathlib import Path; print(run(Path('.'), 'print(7)'))"
    )
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:1] = [{os.path.dirname(__file__)!r}]; {script}",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    # after the line of the notebook comes what its cell printed
    assert (done.stdout.split()[-1], done.stderr) == ("7", "")


@pytest.mark.parametrize("forked", ["0", "1"])
def test_a_kernel_that_ends_while_it_flushes_says_nothing(tmp_path, monkeypatch, capfd, forked):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIA_NB_FORK", forked)
    run(tmp_path, FLUSHED)
    assert (tmp_path / "flushed").exists()
    assert capfd.readouterr().err == ""


def test_a_killed_run_leaves_no_process_behind(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_kernels import run; from pathlib"
        " import Path\n"
    )
    cell = "import os, signal, time; open('left', 'w').write(f'{os.getppid()} {os.getpid()}')\n"
    cell += "os.kill(int(os.environ['RUNNER']), signal.SIGKILL); time.sleep(600)"
    code += f"import os; os.environ['RUNNER'] = str(os.getpid()); run(Path('.'), {cell!r})"
    done = subprocess.run([sys.executable, "-c", code, os.path.dirname(__file__)], cwd=tmp_path)
    left = [int(word) for word in (tmp_path / "left").read_text().split()]
    assert done.returncode == -signal.SIGKILL and len(left) == 2
    deadline = time.monotonic() + 20
    while any(map(alive, left)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in left if alive(pid)]


def test_an_interrupt_while_everything_is_imported_raises_nothing_and_kernels_hear_the_next():
    code = """
import os, signal, sys
from types import SimpleNamespace
from mia_nb.cli import kernels

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "statistics":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with & ignores it
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as the fork server starts
os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupted())
sys.modules["torch"] = SimpleNamespace(zeros=int, optim=SimpleNamespace(SGD=lambda *_, lr: 0))
kernels.MODULES = ("statistics",)
import mia_nb.cli.preloaded
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("heard")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("heard\n", "")


def alive(pid: int) -> bool:
    """Whether a process runs, and does not merely wait for its parent to notice."""
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def marked(mark: str) -> list[int]:
    """Processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("seconds", [0.5, 2.5])
def test_a_run_that_is_ended_in_its_first_seconds_leaves_no_process(seconds, number, tmp_path):
    mark = f"MIA_NB_TEST_MARK={tmp_path.name}-{seconds}-{number}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-m", "mia_nb.cli", "run", "train", "-p", "limit=200"]
    with open(tmp_path / "out.txt", "w") as out:
        run = subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | {name: value}, stdout=out, stderr=out
        )
        time.sleep(seconds)
        run.send_signal(number)
        run.wait(30)
    deadline = time.monotonic() + 90
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert marked(mark) == []
