"""Pools trained by other processes: the same bytes, nothing lost and nothing twice when a worker
dies.
"""

import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import joblib
import numpy as np
import pytest
import toys

from mia_nb import __version__, data, store, training
from mia_nb.training import engines
from mia_nb.training import train as trainer
from mia_nb.types import Recipe

distributed, ray, submitit = (
    pytest.importorskip(name) for name in ("distributed", "ray", "submitit")
)
SMALL = Recipe(num_models=8, epochs=3, batch=16, lr=0.05, model_args={"width": 4})
ENGINES = ["joblib:2", "dask:2", "ray:2", "submitit"]


@pytest.fixture(scope="module", autouse=True)
def environment():
    """As it was: dask sets the threads of its workers in the process that starts them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=160,size=8,channels=1,seed=1")


@pytest.fixture(scope="module", params=ENGINES)
def workers(request, tmp_path_factory):
    if request.param == "submitit":
        executor = submitit.AutoExecutor(tmp_path_factory.mktemp("jobs") / "%j", cluster="local")
        executor.update_parameters(timeout_min=5)
        return executor
    return request.param


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


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["plain", "stacked:2"])
def test_an_engines_pool_of_eight_has_the_bytes_of_one_machines(
    workers, strategy, images, tmp_path
):
    if workers not in ("joblib:2", "dask:2"):
        pytest.skip("a process for each unit takes its time; the next test compares the bytes, too")
    here = train(SMALL, images, tmp_path / "here", workers=1, strategy=strategy)
    there = train(SMALL, images, tmp_path / "there", workers=workers, strategy=strategy)
    assert made(there) == made(here) and len(made(here)) == 16
    assert set(times_written(there).values()) == {1}
    assert there.folder.read_json("execution.json") == here.folder.read_json("execution.json")
    assert not list(there.folder.path.glob(".tmp*"))


@pytest.mark.slow
def test_a_worker_killed_inside_a_model_costs_no_model_and_none_is_trained_twice(
    workers, images, tmp_path, capfd
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
    killed = train(
        recipe, images, tmp_path / "killed", workers=workers, strategy="plain", checkpoint=0
    )
    assert not (tmp_path / "fuse").exists()  # somebody did die
    assert made(killed) == made(whole) and len(made(whole)) == 8
    # joblib stops its other worker with the dead one: at worst between a model's two files
    twice = [file for file, times in times_written(killed).items() if times != 1]
    assert len(twice) <= (workers == "joblib:2")
    steps, of_whole = (
        (tmp_path / name).read_text().splitlines() for name in ("steps", "steps of the whole")
    )
    # five steps an epoch, dead in the eighth: three of the second epoch are done again, and none of
    # the first, which is stored; joblib's other worker does five again at most
    again = len(steps) - len(of_whole)
    assert 3 <= again <= 8 if workers == "joblib:2" else again == 3
    assert str(os.getpid()) not in steps  # this process only looked on


@pytest.mark.slow
def test_executors_of_the_standard_library_and_of_joblib_serve_too(images, tmp_path):
    here = made(train(SMALL, images, tmp_path / "here", workers=1))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        assert (
            made(
                train(SMALL, images, tmp_path / "processes", workers=executor, strategy="stacked:4")
            )
            == here
        )
    assert (
        made(
            train(
                SMALL,
                images,
                tmp_path / "parallel",
                workers=joblib.Parallel(2),
                strategy="stacked:4",
            )
        )
        == here
    )
    with ThreadPoolExecutor(4) as executor:  # threads share torch's generator: they take turns
        assert (
            made(train(SMALL, images, tmp_path / "threads", workers=executor, strategy="stacked:4"))
            == here
        )


def test_a_pool_that_goes_on_asks_for_the_device_it_was_begun_on(images, tmp_path):
    pool, wanted = train(SMALL, images, tmp_path, workers=1), []
    with ThreadPoolExecutor(1) as executor:
        engine = engines.find(executor)

        def submit(fn, items, gpu):
            wanted.append(gpu)
            return engine.submit(fn, items, gpu)

        watched = engine._replace(submit=submit)
        how = engines.decide(watched, pool.folder, None, "auto")
        assert wanted == [] and how == pool.folder.read_json("execution.json")
        pool.folder.remove("model_003.safetensors")
        engines.train_on(watched, pool.folder, [[3]], 60, lambda *_: None)
    assert wanted == [False] and pool.status == ["trained"] * 8


def test_an_engine_with_a_limit_is_never_handed_more_units_at_a_time(images, tmp_path):
    pool, handed = train(SMALL, images, tmp_path, workers=1, strategy="plain"), []
    units = [[m] for m in range(5)]
    for (m,) in units:
        pool.folder.remove(f"model_{m:03d}.safetensors")
    with ThreadPoolExecutor(1) as executor:
        engine = engines.find(executor)

        def submit(fn, items, gpu):
            handed.append(len(items))
            return engine.submit(fn, items, gpu)

        few = engine._replace(limit=2, submit=submit)
        engines.train_on(few, pool.folder, units, 60, lambda *_: None)
    assert handed == [2, 2, 1] and pool.status == ["trained"] * 8


@pytest.mark.slow
def test_what_a_worker_complains_of_is_said_here_in_one_line(images, tmp_path):
    pool = train(SMALL, images, tmp_path, workers=1)
    (pool.folder.path / "execution.json").unlink()
    for name in ("model_000.safetensors", "model_001.safetensors"):
        pool.folder.remove(name)
    with pytest.raises(
        ValueError, match=r"worker on .*execution.json is missing or altered.*force=True"
    ):
        train(SMALL, images, tmp_path, workers="joblib:2")


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["joblib:1", "dask:1"])
def test_a_worker_that_lives_on_trains_a_builders_code_of_now(
    workers, images, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    source = "from torch import nn\n\n\ndef net(in_channels, num_classes, size):\n"
    source += (
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.{}(), nn.Linear(8,"
        " num_classes))\n"
    )
    recipe, found = Recipe(model="edited:net", num_models=2, epochs=1, batch=16), []
    for name in ("ReLU", "Tanh"):
        (tmp_path / "edited.py").write_text(source.format(name) + "#" * len(found))
        sys.modules.pop("edited", None)
        importlib.invalidate_caches()
        here, there = (
            made(train(recipe, images, tmp_path / f"{name}{how}", workers=how))
            for how in (1, workers)
        )
        assert here == there
        found.append(there)
    assert found[0] != found[1]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["joblib:2", "dask:2"])
def test_an_interrupt_stops_the_workers_after_their_epoch(workers, images, tmp_path, monkeypatch):
    recipe = Recipe(
        model="toys:fused",
        model_args={"place": str(tmp_path), "pause": 0.02},
        num_models=2,
        epochs=500,
        batch=16,
    )
    steps = tmp_path / "steps"

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(trainer.Bar, "update", interrupt)  # at the first report
        train(recipe, images, tmp_path / "pool", workers=workers, strategy="plain")
    time.sleep(3)
    before = steps.read_text()
    time.sleep(2)
    assert steps.read_text() == before and before.count("\n") < 2 * 5 * 100
    (folder,) = (tmp_path / "pool").glob("pool-*")
    assert not store.Folder(folder).locked("part_000-000") and not list(folder.glob(".tmp-wanted*"))


@pytest.mark.slow
def test_a_model_that_a_worker_forgot_is_asked_for_again(images, tmp_path, monkeypatch):
    forgotten = []
    record = store.Folder._append

    def once(folder, entries):
        if "model_001.safetensors" in entries and not forgotten:
            forgotten.extend(entries)
        else:
            record(folder, entries)

    monkeypatch.setattr(store.Folder, "_append", once)
    with ThreadPoolExecutor(1) as executor:
        pool = train(SMALL, images, tmp_path, workers=executor, strategy="plain")
    assert forgotten and pool.status == ["trained"] * 8


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        (0, "wanted a number from 1 up"),
        ("spark:4", "wanted a number, or joblib:NUMBER"),
        ("dask:0", "at least one worker"),
        ("slurm:many", "wanted slurm:NUMBER"),
        ("slurm:4", "MIA_NB_SLURM holds submitit's parameters"),
        ("joblib:many", "wanted joblib:NUMBER"),
        ("dask:-1", "at least one worker"),
        pytest.param(
            "dask:tcp://127.0.0.1:1", "no scheduler answers there", marks=pytest.mark.slow
        ),
        (print, "wanted a number from 1 up, a name such as dask:8"),
        (2.5, "wanted a number from 1 up, a name such as dask:8"),
    ],
)
def test_workers_that_are_none_are_refused_in_one_line(
    workers, message, images, tmp_path, monkeypatch
):
    # no SLURM here, whatever this machine has
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    with pytest.raises(ValueError, match=message) as refusal:
        train(SMALL, images, tmp_path, workers=workers)
    assert "\n" not in str(refusal.value)


def test_a_builder_of_a_script_is_refused_before_any_worker_starts(images, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "net", toys.mlp, raising=False)
    with pytest.raises(ValueError, match="put it in a module"):
        train(
            Recipe(**{**SMALL.to_json(), "model": "__main__:net"}),
            images,
            tmp_path,
            workers="dask:2",
        )


@pytest.mark.slow
def test_slurm_jobs_take_their_parameters_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MIA_NB_SLURM", f"{{cluster: local, timeout_min: 7, folder: {tmp_path}}}")
    engine = engines.find("slurm:3")
    assert engine.name == "submitit" and engine.workers == 3
    assert engines.run(engine, os.path.basename, [("",), ("",)]) == []  # "" is no complaint
    assert list(tmp_path.glob("*/*_submitted.pkl"))
    monkeypatch.setenv("MIA_NB_SLURM", "{cluster: local, walltime: 3}")
    with pytest.raises(ValueError, match="walltime"):
        engines.find("slurm:3")


def test_slurm_wants_to_be_told_whether_a_gpu_is_needed_and_asks_for_one(tmp_path, monkeypatch):
    sbatch = tmp_path / "sbatch"
    sent = tmp_path / "sent"
    sbatch.write_text(f"#!/bin/sh\ncp $1 {sent}\necho Submitted batch job 7\n")
    sbatch.chmod(0o755)
    (tmp_path / "srun").symlink_to(sbatch)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MIA_NB_SLURM", f"{{folder: {tmp_path / 'jobs'}}}")
    engine = engines.find("slurm:16")
    assert engine.workers == 16 and engine.limit is None  # a whole array at once
    with pytest.raises(ValueError, match="say device=cuda, or device=cpu"):
        engine.submit(os.path.basename, [("",)], None)
    for gpu in (False, True):
        engine.submit(os.path.basename, [("",), ("",)], gpu)
        script = sent.read_text()
        # of two jobs at most two
        assert ("gpus-per-node=1" in script) == gpu and "--array=0-1%2" in script


class Instant(Executor):
    """An executor that answers at once, and counts what is handed over."""

    def __init__(self, answers):
        self.answers, self.given = iter(answers), 0

    def submit(self, fn, /, *args):
        self.given += 1
        future = Future()
        answer = next(self.answers)
        lost = isinstance(answer, BrokenProcessPool)
        future.set_exception(answer) if lost else future.set_result(answer)
        return future


def test_what_was_lost_is_told_from_what_was_complained_of():
    lost = engines.run(
        engines.find(Instant([None, BrokenProcessPool("gone"), None])), print, [()] * 3
    )
    assert [str(error) for error in lost] == ["gone"]
    complaint = ValueError("no")
    with pytest.raises(ValueError) as raised:
        engines.run(engines.find(Instant([None, complaint])), print, [()] * 2)
    assert raised.value is complaint
    broken = ProcessPoolExecutor(1)
    broken.shutdown()
    assert isinstance(engines.run(engines.find(broken), print, [()])[0], RuntimeError)


def raising(folder, context, error):
    raise error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (store.Corrupt("images.npy was altered"), ValueError, "images.npy was altered"),
        (OSError(28, "full"), OSError, "full"),
        (KeyError("x"), RuntimeError, "KeyError: worker on .*'x'"),
        (engines.Unwanted(), None, ""),
    ],
    ids=["ValueError", "OSError", "KeyError", "Unwanted"],
)
def test_what_a_task_raises_comes_back_as_an_exception_that_every_engine_carries(
    error, kind, text, images, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    pool, token = train(SMALL.replace(num_models=2), images, tmp_path, workers=1), ".tmp-wanted"
    token = pool.folder.path / token
    token.touch()
    context = {
        "token": str(token),
        "driver": "elsewhere-1",
        "places": [],
        "version": __version__,
        "builders": "",
        "device": "cpu",
    }
    complaint = engines.work_there(context, raising, error)
    assert token.exists() == (kind is None)  # nobody else need go on
    if kind is None:
        assert complaint is None
        return
    complaint = pickle.loads(pickle.dumps(complaint))
    assert type(complaint) is kind and getattr(complaint, "errno", None) == getattr(
        error, "errno", None
    )
    assert re.search(text, str(complaint)) and "worker on " in str(complaint)
    assert engines.work_there(context, raising, error) is None  # nobody wants it any more


@pytest.mark.slow
def test_a_job_of_submitit_that_runs_out_of_time_is_started_again(tmp_path):
    executor = submitit.LocalExecutor(tmp_path / "%j", max_num_timeout=5)
    # signalled after eleven seconds
    executor.update_parameters(timeout_min=0.6, signal_delay_s=25)
    code = (
        "import sys, time, pathlib; p = pathlib.Path(sys.argv[1]); first = not p.exists();"
        " p.touch(); time.sleep(60 * first)"
    )
    engine = engines.find(executor)
    (job,) = engine.submit(
        subprocess.call, [([sys.executable, "-c", code, str(tmp_path / "mark")],)], False
    )
    assert job.result() == 0
    assert "requeu" in job.stdout().lower()


def test_objects_that_are_executors_are_recognised_whatever_module_they_come_from(monkeypatch):
    from joblib.externals.loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=2)
    engine = engines.find(executor)
    assert engine.name == type(executor).__name__ and engine.workers == 2
    assert engines.find(np.int64(4)) is None
    assert engines.find(joblib.Parallel(3)).workers == 3


CLAIM = """
import sys
from mia_nb.training.engines import own_gpu
print(own_gpu()[0], flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_each_worker_takes_a_gpu_that_no_other_holds_and_frees_it_when_it_dies(tmp_path):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "2,5", "TMPDIR": str(tmp_path)}

    def start():
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "env": environment,
        }
        process = subprocess.Popen([sys.executable, "-c", CLAIM], **pipes)
        return process, process.stdout.readline().strip()

    processes, names = zip(*(start() for _ in range(3)), strict=True)
    assert names[:2] == ("2", "5") and names[2] in ("2", "5")  # the third shares
    processes[1].kill()
    processes[1].wait()
    fourth, name = start()
    assert name == "5"
    for process in (*processes, fourth):
        process.kill()
        process.wait()
    alone = subprocess.run(
        [sys.executable, "-c", CLAIM],
        env=environment | {"CUDA_VISIBLE_DEVICES": "7"},
        input="",
        text=True,
        capture_output=True,
        check=True,
    )
    # an engine gave it
    assert alone.stdout.strip() == "7" and not list(Path(tmp_path).glob("*gpu-7*"))


def test_the_best_memory_is_found_by_halving_and_the_bytes_stay(
    images, tmp_path, monkeypatch, capsys
):
    import torch

    from mia_nb.training import loop

    whole = train(SMALL, images, tmp_path / "whole", workers=1, strategy="stacked:8")
    epoch, sizes = loop.Group.epoch, []

    def small(self, number, history):
        sizes.append(len(self.ids))
        if len(self.ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return epoch(self, number, history)

    monkeypatch.setattr(loop.Group, "epoch", small)
    halved = train(SMALL, images, tmp_path / "halved", workers=1, strategy="stacked:8")
    assert made(halved) == made(whole) and max(sizes) == 8 and sizes.count(2) == 4 * SMALL.epochs
    assert (
        "8 models do not fit into memory together: training 4 at a time" in capsys.readouterr().err
    )
    monkeypatch.setattr(
        loop.Group,
        "epoch",
        lambda self, *_: (_ for _ in ()).throw(torch.OutOfMemoryError("out of memory")),
    )
    with pytest.raises(ValueError, match=r"model 0 does not fit into memory.*smaller batch"):
        train(SMALL, images, tmp_path / "none", workers=1, strategy="stacked:8")
