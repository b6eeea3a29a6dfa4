"""Where units of work run: joblib, Ray, Dask, SLURM, or any executor, behind one `map`.

Workers see the same folder as this process and write what they finish there, so an engine carries no results: whatever becomes
of a worker, or of this process, what was finished is there.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import importlib
import numbers
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import yaml

from mia_nb.checks import shown

EXTRAS = {
    "joblib": None,
    "ray": "ray",
    "dask": "dask",
    "slurm": "slurm",
}  # engine -> mia_nb's extra that installs it
HOURS = 4  # of a SLURM job, unless said otherwise


class Engine(NamedTuple):
    """submit(fn, items, gpu) starts fn(*item) for every item and gives futures: done(), result(), cancel().

    gpu: whether an item wants a GPU, None where nobody knows yet. limit: items that may be handed over at a time."""

    name: str
    workers: int  # units at a time
    submit: Callable[[Callable, list[tuple], bool | None], list]
    limit: int | None = None


def find(workers: Any) -> Engine | None:
    """The engine that `workers` names or is; None for a number, or nothing: processes of this machine.

    "joblib:8", "dask:8", "ray:8": eight local workers; "dask:tcp://host:8786", "ray:ADDRESS", "ray": a cluster that runs;
    "slurm:8": jobs of one array, eight at a time, with submitit (its parameters as YAML in MIA_NB_SLURM, say
    "{slurm_partition: gpu, timeout_min: 600, folder: /shared/logs}"). Or an object: distributed.Client, submitit executor,
    joblib.Parallel, the initialised module ray, any concurrent.futures.Executor (processes: threads take turns).
    Raises ValueError for anything else, and for an engine that is not installed, with the command that installs it.
    """
    if workers is None or (isinstance(workers, numbers.Integral) and not isinstance(workers, bool)):
        if workers is not None and workers < 1:
            raise ValueError(
                f"workers={workers}: wanted a number from 1 up, or an engine such as dask:8"
            )
        return None
    if isinstance(workers, str):
        return _named(workers)
    if getattr(workers, "__name__", None) == "ray":
        return _ray_engine(workers)
    if isinstance(workers, Executor):
        return Engine(
            type(workers).__name__,
            getattr(workers, "_max_workers", None) or 1,
            functools.partial(_submit, workers),
        )
    if type(workers).__module__.startswith("submitit."):
        return _submitit_engine(workers)
    if hasattr(workers, "_effective_n_jobs"):
        return Engine(
            "joblib", workers._effective_n_jobs(), functools.partial(_call_parallel, workers)
        )
    if hasattr(workers, "scheduler_info") and hasattr(workers, "submit"):
        return _dask_engine(workers)
    raise ValueError(
        f"workers={shown(workers)}: wanted a number, a name such as dask:8, ray:8, slurm:8 or joblib:8, or an executor of "
        "joblib, Ray, Dask (its Client), submitit or concurrent.futures"
    )


def _named(text: str) -> Engine:
    name, _, what = text.partition(":")
    if name not in EXTRAS:
        raise ValueError(
            f"workers={text!r}: wanted a number, or {', '.join(f'{n}:NUMBER' for n in EXTRAS)}"
        )
    try:
        count = int(what) if what else None
    except ValueError:
        count = None  # an address
        if name in ("joblib", "slurm"):
            raise ValueError(
                f"workers={text!r}: wanted {name}:NUMBER, how many at a time"
            ) from None
    if count is not None and count < 1:
        raise ValueError(f"workers={text!r}: wanted at least one worker")
    if name == "joblib":
        from joblib import Parallel

        return find(Parallel(count or -1))
    if name == "slurm":
        return _slurm(text, count or 8)
    return _dask(what) if name == "dask" else _ray(what, count)


def _load(module: str, engine: str):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"workers={engine}: {module} is not installed; try: pip install 'mia_nb[{EXTRAS[engine]}]'"
        ) from error


def _dask(what: str) -> Engine:
    """One cluster or connection for a text; what was started here ends with this process."""
    if (client := _connect(what)).status != "running":
        _connect.cache_clear()
        client = _connect(what)
    return _dask_engine(client)


@functools.cache
def _connect(what: str):
    distributed = _load("distributed", "dask")
    if what and not what.isdigit():
        try:
            return distributed.Client(what, timeout=10)
        except OSError as error:
            reason = f"no scheduler answers there ({error}); start one with: dask scheduler"
            raise ValueError(f"workers=dask:{what}: {reason}") from error
    from joblib import cpu_count

    try:
        cluster = distributed.LocalCluster(
            n_workers=int(what or cpu_count()),
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address=None,
            silence_logs="ERROR",
        )
    except RuntimeError as error:
        reason = 'in a script its workers import the script, so start it below `if __name__ == "__main__":`'
        raise ValueError(
            f"workers=dask:{what}: no local cluster could be started; {reason}"
        ) from error
    return distributed.Client(cluster)


def _dask_engine(client) -> Engine:
    def submit(fn, items, gpu):
        # equal calls of another round are other work: pure=False
        return [client.submit(fn, *item, pure=False) for item in items]

    return Engine("dask", max(1, len(client.scheduler_info(n_workers=-1)["workers"])), submit)


def _ray(what: str, count: int | None) -> Engine:
    ray = _load("ray", "ray")
    if not ray.is_initialized():
        given = (
            {"num_cpus": count, "include_dashboard": False} if count else {"address": what or None}
        )
        for patience in (True, False):
            try:
                ray.init(**given, log_to_driver=False, logging_level="ERROR")
                break
            except ConnectionError as error:
                raise ValueError(
                    f"workers=ray:{what}: no cluster answers there; start one with: ray start --head"
                ) from error
            except (
                Exception
            ):  # on a busy machine a node may not be up in Ray's thirty seconds: once more
                ray.shutdown()
                if not patience:
                    raise
    return _ray_engine(ray, count)


def _ray_engine(ray, workers: int | None = None) -> Engine:
    """workers: so many on the GPUs that there are, sharing them if need be; None: one a GPU."""
    if not ray.is_initialized():
        raise ValueError(
            "workers=ray, but Ray is not initialised: call ray.init() first, or take workers='ray:8'"
        )
    there = ray.cluster_resources()
    most = max(1, int(there.get("CPU", 1)))
    count = min(workers or int(there.get("GPU", 0)) or most, most)

    def submit(fn, items, gpu):
        if gpu and "GPU" not in there:
            raise ValueError(
                "device=cuda, but no node of the Ray cluster has a GPU: add one, or take device=cpu"
            )
        share = 0 if gpu is False else min(1, there.get("GPU", 0) / count)
        remote = ray.remote(max_retries=0, num_cpus=1, num_gpus=share)(
            fn
        )  # lost workers are the caller's business
        return [_RayFuture(ray, remote.remote(*item)) for item in items]

    return Engine("ray", count, submit)


class _RayFuture(NamedTuple):
    ray: Any
    reference: Any

    def done(self) -> bool:
        return bool(self.ray.wait([self.reference], timeout=0)[0])

    def result(self):
        return self.ray.get(self.reference)

    def cancel(self) -> None:
        self.ray.cancel(self.reference, force=True)


def _slurm(text: str, count: int) -> Engine:
    submitit = _load("submitit", "slurm")
    try:
        given = yaml.safe_load(os.environ.get("MIA_NB_SLURM", "")) or {}
        folder = Path(given.pop("folder", Path.home() / ".mia_nb" / "slurm"))
        executor = submitit.AutoExecutor(folder / "%j", cluster=given.pop("cluster", "slurm"))
        executor.update_parameters(
            **{"timeout_min": 60 * HOURS, "slurm_array_parallelism": count, **given}
        )
    except (AttributeError, NameError, TypeError, RuntimeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"workers={text}: {reason}; MIA_NB_SLURM holds submitit's parameters as YAML"
        ) from error
    return _submitit_engine(executor)._replace(workers=count)


def _submitit_engine(executor) -> Engine:
    slurm = getattr(executor, "cluster", type(executor).__name__.lower()).startswith("slurm")
    count = int(executor.parameters.get("array_parallelism") or 0) if slurm else os.cpu_count()

    def submit(fn, items, gpu):
        asked = [
            value for name, value in executor.parameters.items() if "gpu" in name or "gres" in name
        ]
        if slurm and gpu is None and not any(asked):
            raise ValueError(
                "SLURM gives no GPU to jobs that ask for none: say device=cuda, or device=cpu"
            )
        if slurm and gpu and not any(asked):
            executor.update_parameters(gpus_per_node=1)
        with executor.batch():
            return [executor.submit(Requeued(fn), *item) for item in items]

    # its local processes all start at once
    return Engine("submitit", count or 8, submit, None if slurm else count)


class Requeued:
    """A function that a preempted or timed-out job of submitit starts again with the same arguments."""

    def __init__(self, fn: Callable):
        self.fn = fn

    def __call__(self, *args):
        return self.fn(*args)

    def checkpoint(self, *args):
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *args)


def _submit(executor: Executor, fn, items, gpu) -> list:
    return [executor.submit(fn, *item) for item in items]


def _call_parallel(parallel, fn, items, gpu) -> list:
    """joblib.Parallel knows one call, not futures: it is one, in a thread."""
    from joblib import delayed

    thread = ThreadPoolExecutor(1)
    future = thread.submit(
        lambda: next(filter(None, parallel(delayed(fn)(*item) for item in items)), None)
    )
    thread.shutdown(wait=False)
    return [future]


def map(
    engine: Engine,
    fn: Callable,
    items: Iterable[tuple],
    *,
    gpu: bool | None = None,
    progress=lambda: None,
) -> list:
    """fn(*item) for every item, wherever; fn answers None, or in words what it complains of.

    What a worker was lost to (whatever the engine itself raises) comes back, one exception each: ask what is missing and map
    again. progress() is called now and then. Raises at the first complaint, ValueError or OSError where fn met one, else
    RuntimeError; what still waits is cancelled then, and on an interrupt.
    """
    waiting, futures, lost, pause = list(items), [], [], 0.01
    try:
        while waiting or futures:
            room = len(waiting) if engine.limit is None else engine.limit - len(futures)
            if waiting and room > 0:
                try:
                    futures += engine.submit(fn, waiting[:room], gpu)
                except ValueError:
                    raise
                except Exception as error:  # an executor that is broken, a client that was closed
                    return [*lost, error]
                waiting = waiting[room:]
            for future in [f for f in futures if f.done()]:
                futures.remove(future)
                try:
                    complaint = future.result()
                except Exception as error:
                    lost.append(error)
                else:
                    _raise(complaint)
            progress()
            time.sleep(pause)
            pause = min(1.3 * pause, 0.5)
    finally:
        for future in futures:
            with contextlib.suppress(Exception):  # it is being given up anyway
                future.cancel()
    return lost


def _raise(complaint: str | None) -> None:
    if not complaint:
        return
    kind, _, text = complaint.partition(": ")
    if kind == "ValueError":
        raise ValueError(text)
    if kind.startswith("OSError "):
        raise OSError(int(kind.removeprefix("OSError ")), text)
    raise RuntimeError(complaint)


def gpus() -> list[str]:
    """The GPUs that this process may use, by the names CUDA_VISIBLE_DEVICES knows, without waking CUDA."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name.strip()]
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return asked.stdout.split()


@functools.cache
def own_gpu() -> tuple[str | None, filelock.FileLock | None]:
    """One GPU of this machine for this process as long as it lives, taken before CUDA wakes: the first that no other worker
    holds, else a shared one; and the lock that holds it. Where an engine has already given this process one, that stays."""
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
