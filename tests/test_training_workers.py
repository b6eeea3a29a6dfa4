"""Pools trained by the workers of joblib's backends: the same bytes, nothing lost and nothing twice
when a worker dies, and no process left behind.
"""

import importlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import toys
from joblib.externals.loky import get_reusable_executor

from mia_nb import data, store, training
from mia_nb.training import backends, execution, reports, workers
from mia_nb.types import Recipe

SMALL = Recipe(num_models=8, epochs=3, batch=16, lr=0.05, model_args={"width": 4})
FEW = SMALL.replace(num_models=4, epochs=2)
BACKENDS = [
    "loky",
    pytest.param(
        "dask",
        marks=pytest.mark.skipif(not importlib.util.find_spec("distributed"), reason="no Dask"),
    ),
    pytest.param(
        "ray", marks=pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="no Ray")
    ),
]


@pytest.fixture(scope="module", autouse=True)
def environment():
    """As it was: dask sets the threads of its workers in the process that starts them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    get_reusable_executor().shutdown(wait=True)


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=160,size=8,channels=1,seed=1")


@pytest.fixture(scope="module")
def cluster():
    """Two workers of Dask that all tests share, since each takes seconds to start."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": 0}
    with (
        distributed.LocalCluster(**options, dashboard_address=None, silence_logs="ERROR") as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param == "dask":
        with request.getfixturevalue("cluster").as_current():
            yield request.param
    else:
        yield request.param


@pytest.fixture(scope="module")
def trained_here(images, tmp_path_factory):
    """A pool that this process trained."""
    root = tmp_path_factory.mktemp("here")
    return train(FEW, images, root, workers=1, strategy="stacked:2")


def train(recipe, images, root, **options):
    return training.train_pool(recipe, images, root=root, progress=False, **options)


def made(pool):
    """{file: sha256} of what training left."""
    return {
        name: sha
        for name, sha in pool.folder.files().items()
        if name.startswith(("model_", "losses_", "diverged_"))
    }


def times_written(pool):
    lines = (pool.folder.path / "manifest.jsonl").read_text().splitlines()
    return Counter(
        entry["file"]
        for entry in map(json.loads, lines)
        if entry["file"].startswith(("model_", "losses_"))
    )


# stacked here, one by one in the test of a worker that is killed
@pytest.mark.slow
def test_every_backend_trains_the_bytes_of_this_process_and_no_model_twice(
    backend, images, tmp_path, trained_here
):
    here = trained_here
    there = train(FEW, images, tmp_path, workers=2, backend=backend, strategy="stacked:2")
    assert made(there) == made(here) and len(made(here)) == 8
    assert set(times_written(there).values()) == {1}
    assert there.folder.read_json("execution.json") == here.folder.read_json("execution.json")
    assert not list(there.folder.path.glob(".tmp*"))


# here, as loky's processes of the test before serve it too
@pytest.mark.slow
def test_what_a_worker_complains_of_is_said_here_in_one_line(backend, images, tmp_path):
    pool = train(FEW, images, tmp_path, workers=1, strategy="plain")
    for name in ("model_000.safetensors", "model_001.safetensors"):
        pool.folder.remove(name)
    (pool.folder.path / "labels.npy").write_bytes(b"altered")
    with (
        backends.started(backend, 2, pool.record["builder"], "cpu"),
        pytest.raises(ValueError, match=r"labels\.npy"),
    ):
        workers._train_units(pool, [[0], [1]], backend, 2, 0, lambda *_: None)


@pytest.mark.slow
def test_a_worker_killed_inside_a_model_costs_no_finished_epoch_and_the_bytes_stay(
    backend, images, tmp_path
):
    recipe = Recipe(
        model="toys:fused",
        model_args={"place": str(tmp_path)},
        num_models=4,
        epochs=3,
        batch=16,
        lr=0.05,
    )
    whole = train(recipe, images, tmp_path / "whole", workers=1, strategy="plain")
    (tmp_path / "steps").rename(tmp_path / "steps of the whole")
    (tmp_path / "fuse").touch()
    options = {"workers": 2, "backend": backend, "strategy": "plain", "checkpoint": 0}
    killed = train(recipe, images, tmp_path / "killed", **options)
    assert not (tmp_path / "fuse").exists()  # somebody did die
    assert made(killed) == made(whole) and len(made(whole)) == 8
    # loky and Ray stop the other worker with the dead one: at worst between a model's two files
    twice = [file for file, times in times_written(killed).items() if times != 1]
    assert len(twice) <= (backend != "dask")
    steps = (tmp_path / "steps").read_text().splitlines()
    of_whole = (tmp_path / "steps of the whole").read_text().splitlines()
    # five steps an epoch, dead in the eighth: three of the second epoch are done again, and none of
    # the first, which is stored; loky's other worker does five again at most
    again = len(steps) - len(of_whole)
    assert 3 <= again <= 8
    assert str(os.getpid()) not in steps  # this process only looked on


@pytest.mark.slow
def test_workers_that_always_die_end_the_training_with_what_to_do(images, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "deadly.py").write_text(
        "import os\nfrom torch import nn\n\n\nclass Deadly(nn.Linear):\n"
        "    def forward(self, x):\n"
        f"        if os.getpid() != {os.getpid()}:\n            os._exit(9)\n"
        "        return super().forward(x.flatten(1))\n\n\n"
        "def net(in_channels, num_classes, size):\n    return Deadly(64, num_classes)\n"
    )
    recipe = Recipe(model="deadly:net", num_models=2, epochs=1, batch=16)
    monkeypatch.setattr(workers, "ROUNDS", 1)  # the test before sees that work is handed out again
    with pytest.raises(
        RuntimeError, match=r"workers were lost in 1 round of training: take fewer.*What is"
    ):
        train(recipe, images, tmp_path / "pool", workers=2, strategy="plain")


@pytest.mark.slow
def test_a_builder_that_was_edited_is_trained_as_it_is_now(images, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = "from torch import nn\n\n\ndef net(in_channels, num_classes, size):\n"
    source += (
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.{}(), nn.Linear(8,"
        " num_classes))\n"
    )
    recipe = Recipe(model="edited:net", num_models=2, epochs=1, batch=16)
    bytes_of = []
    for name in ("ReLU", "Tanh"):
        (tmp_path / "edited.py").write_text(source.format(name) + "#" * len(bytes_of))
        sys.modules.pop("edited", None)
        importlib.invalidate_caches()
        here = made(train(recipe, images, tmp_path / f"{name}1", workers=1, strategy="plain"))
        there = made(train(recipe, images, tmp_path / f"{name}2", workers=2, strategy="plain"))
        assert here == there
        bytes_of.append(there)
    assert bytes_of[0] != bytes_of[1]


SCRIPT = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.path.insert(0, sys.argv[2])
from mia_nb import data, training
from mia_nb.types import Recipe
if __name__ == "__main__":
    images = data.load("synthetic:classes=4,n=160,size=8,channels=1,seed=1")
    args = {"place": sys.argv[1], "pause": 0.02}
    recipe = Recipe(model="toys:fused", model_args=args, num_models=2, epochs=500, batch=16)
    training.train_pool(recipe, images, root=sys.argv[1] + "/pool", workers=2, strategy="plain",
                        backend=sys.argv[3], progress=False)
"""


# an end that Python hears of and one that it does not; loky's workers after SIGKILL: test_training.py
ENDS = [("loky", signal.SIGINT), ("dask", signal.SIGTERM)]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "sent"), ENDS)
def test_a_training_that_is_stopped_leaves_no_process_behind(backend, sent, tmp_path):
    if backend == "dask":
        pytest.importorskip("distributed")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(Path(__file__).parent), backend]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    steps = tmp_path / "steps"
    while not (steps.exists() and len(set(steps.read_text().split())) == 2):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(sent)
    assert process.wait(60) != 0
    assert not psutil.wait_procs(children, timeout=30)[1]
    (folder,) = (tmp_path / "pool").glob("pool-*")
    assert not store.Folder(folder).locked("part_000-000")


@pytest.mark.parametrize(
    ("workers", "backend", "message"),
    [
        (0, "loky", "workers=0: wanted a whole number from 1 up"),
        (2.5, "loky", "workers=2.5: wanted a whole number"),
        (True, "loky", "workers=True: wanted a whole number"),
        ("dask:8", "loky", "workers='dask:8': wanted a whole number"),
        (2, "spark", "spark"),
        (2, None, "backend"),
    ],
)
def test_workers_that_are_none_are_refused_in_one_line(workers, backend, message, images, tmp_path):
    with pytest.raises(ValueError, match=message) as refusal:
        train(SMALL, images, tmp_path, workers=workers, backend=backend)
    assert "\n" not in str(refusal.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_backend_that_is_not_installed_is_refused_with_what_installs_it(
    backend, module, images, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"pip install 'mia_nb\[{backend}\]'"):
        train(SMALL, images, tmp_path, workers=2, backend=backend)


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_named_before_force_removes_anything(images, tmp_path):
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed")
    pool = train(SMALL, images, tmp_path)
    with (
        dask.config.set(
            {"scheduler-address": "tcp://127.0.0.1:1", "distributed.comm.timeouts.connect": "2s"}
        ),
        pytest.raises(ValueError, match=r"no scheduler answers at tcp://127\.0\.0\.1:1"),
    ):
        train(SMALL, images, tmp_path, backend="dask", force=True)
    assert pool.folder.damaged() == []
    assert pool.unfinished(range(SMALL.num_models)) == []


@pytest.mark.slow
@pytest.mark.parametrize("change", ["__version__", "TORCH"])
def test_force_removes_nothing_where_workers_have_other_versions(
    change, cluster, images, tmp_path, monkeypatch
):
    pool = train(SMALL, images, tmp_path)
    monkeypatch.setattr(workers, change, "0.0")
    with (
        cluster.as_current(),
        pytest.raises(ValueError, match=r"0\.0.*: install"),
    ):
        train(SMALL, images, tmp_path, backend="dask", force=True)
    assert pool.folder.damaged() == []
    assert pool.unfinished(range(SMALL.num_models)) == []


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_builder_of_a_script_is_refused_before_any_worker_starts(
    backend, images, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys.modules["__main__"], "net", toys.mlp, raising=False)
    recipe = SMALL.replace(model="__main__:net", model_args={})
    with pytest.raises(ValueError, match="put it in a module"):
        train(recipe, images, tmp_path, workers=2, backend=backend)


def test_a_training_of_seconds_starts_no_process_unless_it_is_asked_to(
    images, tmp_path, monkeypatch
):
    monkeypatch.setattr(execution, "cores", lambda: 8)

    def no_workers(*_):
        raise AssertionError("workers were started")

    monkeypatch.setattr(workers, "_train_units", no_workers)
    train(SMALL, images, tmp_path / "few")
    with pytest.raises(AssertionError, match="workers were started"):
        train(SMALL, images, tmp_path / "asked", workers=2, strategy="plain")
    with pytest.raises(AssertionError, match="workers were started"):
        train(SMALL.replace(epochs=1000), images, tmp_path / "many", strategy="plain")


def test_a_report_that_nobody_waits_for_stops_the_worker(tmp_path):
    report = reports.Reporter(tmp_path / "reports", epochs=3)
    with pytest.raises(reports.Unwanted):
        report([0], 1, 0.5)
    (tmp_path / "reports").mkdir()
    seen = []
    with reports.passed_on(tmp_path / "reports", lambda *event: seen.append(event)):
        report([0, 1], 1, 0.5)
        report([2], 3, 0.25)
    assert seen[-2:] == [([0, 1], 1, 0.5), ([2], 3, 0.25)]


def test_a_worker_with_other_code_or_another_file_system_is_told_so(images, tmp_path, monkeypatch):
    pool = train(SMALL, images, tmp_path, workers=1)
    order = workers._order(pool.folder, tmp_path, 60.0)
    assert workers._pool_there(order).folder.path == pool.folder.path
    with monkeypatch.context() as elsewhere, pytest.raises(ValueError, match="has other code"):
        elsewhere.setattr(workers.models, "source", lambda *_: "another")
        workers._pool_there(order)  # looks again, although it has seen this order
    with pytest.raises(ValueError, match=r"mia_nb is .* install the same version"):
        workers._pool_there(order._replace(version="0"))
    with pytest.raises(ValueError, match="file system that all workers share"):
        workers._pool_there(order._replace(folder=str(tmp_path / "elsewhere")))


FAULTS = """
import resource
import torch
from mia_nb.training import machine

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(2**24)  # 64 MiB, above what the C library keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

usual = faults()
machine.keep_freed_memory()
faults()  # takes the memory once more
kept = faults()
before = held()
machine.give_freed_memory_back()
print(usual, kept, before - held())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
def test_a_worker_keeps_the_memory_that_a_training_step_frees_until_its_unit_is_trained():
    ran = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, timeout=120
    )
    usual, kept, given_back = map(int, ran.stdout.split())
    assert usual > 20 * max(kept, 1)
    assert given_back > 2**25
