"""Where units of work run: joblib, Ray, Dask, SLURM, or any executor, behind one `run`.

Workers see the same folder as this process and write what they finish there, so an engine carries
no results: whatever becomes of a worker, or of this process, what was finished is there.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import importlib
import numbers
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import torch
import yaml
from joblib import Parallel, delayed
from joblib import cpu_count as cores  # respects containers and affinity

from mia_nb.checks import refuse, shown

HOURS = 4  # of a SLURM job, unless said otherwise
PAUSE = 0.2  # seconds between two looks at what the workers do


class Engine(NamedTuple):
    """submit(fn, items, gpu) starts fn(*item) for every item and gives futures: done(), result(),
    cancel().

    gpu: whether an item wants a GPU, None where nobody knows yet. limit: items that may be handed
    over at a time."""

    name: str
    workers: int  # units at a time
    submit: Callable[[Callable, list[tuple], bool | None], list]
    limit: int | None = None


def find(workers: Any) -> Engine | None:
    """The engine that `workers` names or is; None for a number, or nothing: processes of this
    machine.

    "joblib:8", "dask:8", "ray:8": eight local workers; "dask:tcp://host:8786", "ray:ADDRESS",
    "ray": a cluster that runs; "slurm:8": jobs of one array, eight at a time, with submitit (its
    parameters as YAML in MIA_NB_SLURM, say "{slurm_partition: gpu, timeout_min: 600, folder:
    /shared/logs}"). Or an object: distributed.Client, submitit executor, joblib.Parallel, the
    initialised module ray, any concurrent.futures.Executor (processes: threads take turns). Raises
    ValueError for anything else, and for an engine that is not installed, with the command that
    installs it.
    """
    if isinstance(workers, str):
        return _named(workers)
    for is_one, engine_of in EXECUTORS:
        if is_one(workers):
            return engine_of(workers)
    number = isinstance(workers, numbers.Integral) and not isinstance(workers, bool)
    if workers is not None and not (number and workers >= 1):
        raise ValueError(
            f"workers={shown(workers)}: wanted a number from 1 up, a name such as dask:8, ray:8,"
            " slurm:8 or joblib:8, or an executor of joblib, Ray, Dask (its Client), submitit or"
            " concurrent.futures"
        )
    return None


def _named(text: str) -> Engine:
    name, _, given = text.partition(":")
    count = int(given) if given.lstrip("-").isdecimal() else None
    addressed = name in ("dask", "ray")  # the others are counted only
    reasons = {
        f"wanted a number, or {', '.join(f'{n}:NUMBER' for n in NAMES)}": name not in NAMES,
        f"wanted {name}:NUMBER, how many at a time": given and count is None and not addressed,
        "wanted at least one worker": count is not None and count < 1,
    }
    refuse(reasons, f"workers={text!r}: ")
    return NAMES[name](given, count)


def _load(module: str, engine: str):
    """A module that the extra of that engine installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"workers={engine}: {module} is not installed; try: pip install 'mia_nb[{engine}]'"
        ) from error


def _joblib(given: str, count: int | None) -> Engine:
    return _joblib_engine(Parallel(count or -1))


def _joblib_engine(parallel: Parallel) -> Engine:
    def submit(fn, items, gpu):
        # joblib.Parallel knows one call, not futures: it is one, in a thread
        calls = [delayed(fn)(*item) for item in items]
        return [ThreadPoolExecutor(1).submit(lambda: next(filter(None, parallel(calls)), None))]

    return Engine("joblib", parallel._effective_n_jobs(), submit)


def _dask(given: str, count: int | None) -> Engine:
    """One cluster or connection for a text; what was started here ends with this process."""
    if _connection(given, count).status != "running":
        _connection.cache_clear()
    return _dask_engine(_connection(given, count))


@functools.cache
def _connection(given: str, count: int | None):
    distributed = _load("distributed", "dask")
    try:
        if given and count is None:
            return distributed.Client(given, timeout=10)
        cluster = distributed.LocalCluster(
            n_workers=count or cores(),
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address=None,
            silence_logs="ERROR",
        )
        return distributed.Client(cluster)
    except OSError as error:
        raise ValueError(
            f"workers=dask:{given}: no scheduler answers there ({error}); start one with: dask"
            " scheduler"
        ) from error
    except RuntimeError as error:
        raise ValueError(
            f"workers=dask:{given}: no local cluster could be started; in a script its workers"
            ' import the script, so start it below `if __name__ == "__main__":`'
        ) from error


def _dask_engine(client) -> Engine:
    def submit(fn, items, gpu):
        # equal calls of another round are other work: pure=False
        return [client.submit(fn, *item, pure=False) for item in items]

    return Engine("dask", max(1, len(client.scheduler_info(n_workers=-1)["workers"])), submit)


def _ray(given: str, count: int | None) -> Engine:
    ray = _load("ray", "ray")
    where = {"num_cpus": count, "include_dashboard": False} if count else {"address": given or None}
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "ignore_reinit_error": True}
    try:
        ray.init(**where, **quiet)
    except ConnectionError as error:
        raise ValueError(
            f"workers=ray:{given}: no cluster answers there; start one with: ray start --head"
        ) from error
    except Exception:  # on a busy machine a node may not be up in Ray's thirty seconds
        ray.shutdown()
        ray.init(**where, **quiet)
    return _ray_engine(ray, count)


def _ray_engine(ray, workers: int | None = None) -> Engine:
    """workers: so many on the GPUs that there are, sharing them if need be; None: one a GPU."""
    if not ray.is_initialized():
        raise ValueError(
            "workers=ray, but Ray is not initialised: call ray.init() first, or take"
            " workers='ray:8'"
        )
    resources = ray.cluster_resources()
    most = max(1, int(resources.get("CPU", 1)))
    count = min(workers or int(resources.get("GPU", 0)) or most, most)

    def submit(fn, items, gpu):
        if gpu and "GPU" not in resources:
            raise ValueError(
                "device=cuda, but no node of the Ray cluster has a GPU: add one, or take device=cpu"
            )
        share = 0 if gpu is False else min(1, resources.get("GPU", 0) / count)
        # lost workers are the caller's business
        remote = ray.remote(max_retries=0, num_cpus=1, num_gpus=share)(fn)
        return [remote.remote(*item).future() for item in items]

    return Engine("ray", count, submit)


def _slurm(given: str, count: int | None) -> Engine:
    submitit, count = _load("submitit", "slurm"), count or 8
    try:
        parameters = yaml.safe_load(os.environ.get("MIA_NB_SLURM", "")) or {}
        folder = Path(parameters.pop("folder", Path.home() / ".mia_nb" / "slurm"))
        executor = submitit.AutoExecutor(folder / "%j", cluster=parameters.pop("cluster", "slurm"))
        defaults = {"timeout_min": 60 * HOURS, "slurm_array_parallelism": count}
        executor.update_parameters(**defaults | parameters)
    except (AttributeError, NameError, TypeError, RuntimeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"workers=slurm:{given}: {reason}; MIA_NB_SLURM holds submitit's parameters as YAML"
        ) from error
    return _submitit_engine(executor)._replace(workers=count)


def _submitit_engine(executor) -> Engine:
    slurm = getattr(executor, "cluster", type(executor).__name__.lower()).startswith("slurm")
    count = int(executor.parameters.get("array_parallelism") or 0) if slurm else os.cpu_count()

    def submit(fn, items, gpu):
        wanted = [v for name, v in executor.parameters.items() if "gpu" in name or "gres" in name]
        if slurm and gpu is None and not any(wanted):
            raise ValueError(
                "SLURM gives no GPU to jobs that ask for none: say device=cuda, or device=cpu"
            )
        if slurm and gpu and not any(wanted):
            executor.update_parameters(gpus_per_node=1)
        with executor.batch():
            return [executor.submit(_requeued(fn), *item) for item in items]

    # its local processes all start at once
    return Engine("submitit", count or 8, submit, None if slurm else count)


def _requeued(fn: Callable) -> Callable:
    """A function that a preempted or timed-out job of submitit starts again with the same
    arguments.
    """
    from submitit.helpers import Checkpointable

    class Requeued(Checkpointable):
        def __call__(self, *args):
            return fn(*args)

    return Requeued()


def _executor_engine(executor: Executor) -> Engine:
    def submit(fn, items, gpu):
        return [executor.submit(fn, *item) for item in items]

    return Engine(type(executor).__name__, getattr(executor, "_max_workers", None) or 1, submit)


NAMES = {"joblib": _joblib, "ray": _ray, "dask": _dask, "slurm": _slurm}
EXECUTORS = (  # how one is recognised, whatever module it comes from, and the engine it makes
    (lambda given: getattr(given, "__name__", None) == "ray", _ray_engine),
    (lambda given: isinstance(given, Executor), _executor_engine),
    (lambda given: type(given).__module__.startswith("submitit."), _submitit_engine),
    (lambda given: hasattr(given, "_effective_n_jobs"), _joblib_engine),
    (lambda given: hasattr(given, "scheduler_info") and hasattr(given, "submit"), _dask_engine),
)


def run(
    engine: Engine,
    fn: Callable,
    items: Iterable[tuple],
    *,
    gpu: bool | None = None,
    progress=lambda: None,
) -> list[Exception]:
    """fn(*item) for every item, wherever; fn returns None, or the exception it complains with.

    What a worker was lost to (whatever the engine itself raises) comes back, one exception each:
    see what is missing and run that again. progress() is called now and then. Raises the first
    complaint; what still waits is cancelled then, and on an interrupt.
    """
    try:
        futures = engine.submit(fn, list(items), gpu)
    except ValueError:
        raise
    except Exception as error:  # an executor that is broken, a client that was closed
        return [error]
    lost = []
    try:
        while futures:
            for future in [f for f in futures if f.done()]:
                futures.remove(future)
                try:
                    complaint = future.result()
                except Exception as error:
                    lost.append(error)
                else:
                    if complaint:
                        raise complaint
            progress()
            time.sleep(PAUSE)
    finally:
        for future in futures:
            with contextlib.suppress(Exception):  # it is being given up anyway
                future.cancel()
    return lost


def gpus() -> list[str]:
    """The GPUs that this process may use, by the names CUDA_VISIBLE_DEVICES knows, without waking
    CUDA.
    """
    everything = ",".join(map(str, range(torch.cuda.device_count())))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", everything)
    return [name for name in visible.split(",") if name.strip()]


@functools.cache
def own_gpu() -> tuple[str | None, filelock.FileLock | None]:
    """One GPU of this machine for this process as long as it lives, taken before CUDA wakes: the
    first that no other worker holds, else a shared one; and the lock that holds it. Where an engine
    has already given this process one, that stays."""
    there = gpus()
    if len(there) < 2:
        return next(iter(there), None), None
    for name in [*there, None]:
        lock = filelock.FileLock(
            Path(tempfile.gettempdir()) / f"mia_nb-{getpass.getuser()}-gpu-{name}.lock", timeout=0
        )
        with contextlib.suppress(filelock.Timeout):
            lock.acquire()
            break
    # more workers than GPUs: some share
    os.environ["CUDA_VISIBLE_DEVICES"] = chosen = name or there[os.getpid() % len(there)]
    return chosen, lock
