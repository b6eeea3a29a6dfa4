"""Pools trained by the workers of an engine: joblib, Ray, Dask, SLURM, or any executor.

The unit is a group of rows, one part of the store. A worker reads everything from the pool's
folder, which all must see, and writes what it finishes there, so an engine carries no results. It
holds the unit's lock while it trains, so no unit is trained twice at a time, and one that is lost
goes on from its part file, whatever becomes of a worker or of this process.
"""

import contextlib
import functools
import getpass
import importlib
import json
import math
import numbers
import os
import platform
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import torch
from joblib import Parallel, cpu_count, delayed

from mia_nb import __version__, models
from mia_nb._files import open_file, replacing, scratch_name
from mia_nb.checks import shown
from mia_nb.parameters import read_yaml
from mia_nb.store import Folder
from mia_nb.training.execution import EXECUTION, choose, device_of, execution, resumed
from mia_nb.training.work import (
    TORCH,
    Progress,
    bare_plan,
    load_images,
    read_execution,
    recipe_of,
    unfinished,
    unit_name,
    work,
)
from mia_nb.types import Images

HOURS = 4  # of a SLURM job, unless said otherwise
PAUSE = 0.2  # seconds between two looks at what the workers do
ATTEMPTS = 3  # times in a row that workers may be lost without anything having got further
REPORTED = 0.5  # seconds between two reports of a worker
PATIENCE = 60.0  # seconds without a report until this process says that nobody has begun
# torch's threads and global generator are the process's: one unit at a time, whoever asks
ALONE = threading.Lock()
LOADED: dict[str, str] = {}  # module of a builder -> hash of the source that this process imported


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
    if name not in NAMES:
        raise ValueError(
            f"workers={text!r}: wanted a number, or {', '.join(f'{n}:NUMBER' for n in NAMES)}"
        )
    if given and count is None and not addressed:
        raise ValueError(f"workers={text!r}: wanted {name}:NUMBER, how many at a time")
    if count is not None and count < 1:
        raise ValueError(f"workers={text!r}: wanted at least one worker")
    return NAMES[name](given, count)


def _load(module: str, engine: str):
    """A module that the extra of that engine installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"workers={engine}: {module} is not installed; try: pip install 'mia_nb[{engine}]'"
        ) from error


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
    local = {
        "n_workers": count or cpu_count(),
        "threads_per_worker": 1,
        "memory_limit": 0,
        "silence_logs": "ERROR",
        "dashboard_address": None,
    }
    try:
        if given and count is None:
            return distributed.Client(given, timeout=10)
        return distributed.Client(distributed.LocalCluster(**local))
    except (OSError, RuntimeError) as error:
        script = 'start it below `if __name__ == "__main__":`'
        reason = (
            f"no scheduler answers there ({error}); start one with: dask scheduler"
            if isinstance(error, OSError)
            else f"no local cluster could be started; its workers import a script, so {script}"
        )
        raise ValueError(f"workers=dask:{given}: {reason}") from error


def _one_by_one(submit: Callable) -> Callable:
    """Engine.submit of what takes one item after another."""
    return lambda fn, items, gpu: [submit(fn, *item) for item in items]


def _dask_engine(client) -> Engine:
    workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    # equal calls of another round are other work: pure=False
    return Engine("dask", workers, _one_by_one(functools.partial(client.submit, pure=False)))


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
    submitit = _load("submitit", "slurm")
    count = count or 8
    try:
        parameters = read_yaml(os.environ.get("MIA_NB_SLURM", ""), "MIA_NB_SLURM") or {}
        folder = Path(parameters.pop("folder", Path.home() / ".mia_nb" / "slurm"))
        executor = submitit.AutoExecutor(folder / "%j", cluster=parameters.pop("cluster", "slurm"))
        executor.update_parameters(
            **{"timeout_min": 60 * HOURS, "slurm_array_parallelism": count, **parameters}
        )
    except (AttributeError, NameError, TypeError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"workers=slurm:{given}: {' '.join(str(error).split())}; MIA_NB_SLURM holds submitit's"
            " parameters as YAML"
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
    workers = getattr(executor, "_max_workers", None) or 1
    return Engine(type(executor).__name__, workers, _one_by_one(executor.submit))


NAMES = {  # what starts or finds an engine, from the text behind its name, also as a number
    "joblib": lambda given, count: _joblib_engine(Parallel(count or -1)),
    "ray": _ray,
    "dask": _dask,
    "slurm": _slurm,
}
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
    items: list[tuple],
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
        futures = engine.submit(fn, items, gpu)
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


class Unwanted(Exception):
    """The process that wanted this work has gone on to other things."""


def decide(engine: Engine, folder: Folder, device: str | None, strategy: str) -> dict:
    """How the pool of this folder is made, as `execution` records it; chosen by a worker, whose
    machine it is about.
    """
    task = (begin_there, device, strategy, engine.workers)
    _persist(engine, folder, lambda: [] if folder.intact(EXECUTION) else [task], device)
    return resumed(folder, device, strategy, here=False)


def train_on(
    engine: Engine, folder: Folder, each: list[list[int]], checkpoint: float, progress: Progress
) -> None:
    """Train the units that are missing, wherever; a worker that is lost costs what it did since its
    unit's last part file.

    Raises what a worker complains of, and RuntimeError where workers are lost again and again and
    nothing gets further; what is finished is kept. On an interrupt the workers stop after the epoch
    that they are in.
    """
    device = read_execution(folder)["device"]
    due = time.monotonic() + PATIENCE

    def look() -> None:
        """Pass on what the workers reported last; say once if nobody reports anything."""
        nonlocal due
        for rows in each:
            # none yet, or half of it
            with contextlib.suppress(OSError, ValueError), open_file(_report(folder, rows)) as file:
                progress(*json.load(file))
                due = math.inf
        if time.monotonic() > due:
            due = math.inf
            print(
                f"no worker of {engine.name} has trained an epoch after {PATIENCE:.0f} s: is there"
                " one, or a queue, or an epoch that long? Waiting on",
                file=sys.stderr,
            )

    def missing() -> list[tuple]:
        left = [rows for rows in each if unfinished(folder, rows)][: engine.limit]
        return [(train_there, rows, checkpoint) for rows in left]

    try:
        _persist(engine, folder, missing, device, look)
    finally:
        for rows in each:
            _report(folder, rows).unlink(missing_ok=True)


def _persist(
    engine: Engine,
    folder: Folder,
    missing: Callable[[], list[tuple]],
    device: str | None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Run the tasks that are missing until none is; workers may be lost, as long as something gets
    further.
    """
    token = folder.path / scratch_name(f"wanted-{driver()}")
    context = {  # what every worker needs to know
        "token": str(token),  # a file in the pool's folder, there as long as the work is wanted
        "driver": driver(),  # the process that wants it: host and number
        "places": [path or os.getcwd() for path in sys.path],  # where that one finds modules
        "version": __version__,
        "builders": os.environ.get(models.ALLOWED, ""),  # whose networks it trains
        "device": device,  # where it wants it, None where a worker chooses
    }
    gpu = None if device is None else device_of(device, here=False).type == "cuda"

    def look() -> None:
        progress()
        # or it would be swept as left behind
        if token.exists() and time.time() - token.stat().st_mtime > 600:
            token.touch()

    token.touch(exist_ok=False)
    try:
        states, reason = [], ""
        while todo := missing():
            states.append((len(todo), sorted(folder.files())))
            if states.count(states[-1]) > ATTEMPTS:
                raise RuntimeError(
                    f"{engine.name} lost its workers {ATTEMPTS} times in a row ({reason}): what is"
                    " finished is kept; see the engine's log, or make a new executor, then run the"
                    " same again"
                )
            tasks = [(context, *task) for task in todo]
            reason = "no worker says why"
            if lost := run(engine, work_there, tasks, gpu=gpu, progress=look):
                reason = f"{type(lost[-1]).__name__}: {' '.join(str(lost[-1]).split())[:300]}"
                print(
                    f"{engine.name} lost {len(lost)} of its workers' tasks ({reason}); asking again"
                    " for what is missing",
                    file=sys.stderr,
                )
    finally:
        token.unlink(missing_ok=True)


def driver() -> str:
    """This process, as others know it."""
    return f"{platform.node()}-{os.getpid()}"


def work_there(context: dict, task: Callable, *args) -> Exception | None:
    """task(folder, token, *args) in a worker, with a GPU of its own where it may need one; what it
    raises is returned, as an exception of a kind that every engine can carry.
    """
    token = Path(context["token"])
    try:
        with ALONE, contextlib.suppress(Unwanted):
            # without its token the driver has gone on; without the folder, it is not seen here
            if token.exists() or not token.parent.exists():
                sys.path += [place for place in context["places"] if place not in sys.path]
                folder = _checked(context)
                if context["device"] != "cpu" and context["driver"] != driver():
                    own_gpu()
                task(folder, token, *args)
    except Exception as error:
        traceback.print_exc()
        token.unlink(missing_ok=True)  # the others need not go on
        text = f"worker on {platform.node()}: {error}"
        if isinstance(error, OSError) and error.errno:
            return OSError(error.errno, text)
        if isinstance(error, ValueError):
            return ValueError(text)
        return RuntimeError(f"{type(error).__name__}: {text}")


def _checked(context: dict) -> Folder:
    """The pool's folder as a worker sees it; ValueError where it sees none, or computes with other
    code.
    """
    folder = Folder(Path(context["token"]).parent)
    if context["version"] != __version__:
        raise ValueError(
            f"mia_nb is {__version__} there and {context['version']} here: install the same on all"
            " workers"
        )
    if not folder.has("recipe.json"):
        raise ValueError(
            f"it sees no {folder.path}: keep results on a file system that all workers share"
            " (--results)"
        )
    models.allow(*context["builders"].split(","))
    recipe = recipe_of(folder)
    name = next(iter(models.builders_of(recipe.model, recipe.model_args)), "")
    module, _, function = name.partition(":")
    if function:  # a user's own
        wanted = folder.record.get("builder", "")
        if LOADED.get(module, wanted) != wanted:  # edited since this process imported it
            package = module.partition(".")[0]
            for loaded in [m for m in sys.modules if m.partition(".")[0] == package]:
                del sys.modules[loaded]
        importlib.invalidate_caches()
        if models.source(recipe.model, recipe.model_args) != wanted:
            raise ValueError(
                f"the code of {name} is another one there: all workers must see the same files"
            )
        LOADED[module] = wanted
    return folder


def begin_there(folder: Folder, _, device: str | None, strategy: str, workers: int) -> None:
    """A worker's part of `decide`."""
    plan = bare_plan(folder, _images(folder.path))

    def alone() -> dict:
        # one thread: a machine's other cores have workers of their own
        return choose(plan, device, strategy, workers) | {"threads": 1}

    execution(folder, device, strategy, alone)


def train_there(folder: Folder, token: Path, rows: list[int], checkpoint: float) -> None:
    """A worker's part of `train_on`: one unit.

    ValueError where it cannot go on as the pool was begun.
    """
    begun = read_execution(folder)
    written = 0.0
    if begun.get("torch") != TORCH:
        raise ValueError(
            f"torch is {TORCH} there, and the pool was begun with {begun.get('torch')}: install"
            " that"
        )
    if begun["device"].startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("it has no GPU, and the pool was begun on one")

    def progress(some: list[int], epoch: int, loss: float) -> None:
        nonlocal written
        if time.monotonic() - written > REPORTED or epoch == epochs:
            with replacing(_report(folder, rows)) as file:
                file.write(json.dumps([some, epoch, loss]).encode())
            written = time.monotonic()
            if not token.exists():
                raise Unwanted

    epochs = recipe_of(folder).epochs
    images = _images(folder.path)
    work(folder, images=images, each=[rows], checkpoint=checkpoint, progress=progress)


@functools.lru_cache(maxsize=1)
def _images(path: Path) -> Images:
    """A pool's images, once for all units that a worker's process trains."""
    return load_images(Folder(path), shared=True)


def _report(folder: Folder, rows: list[int]) -> Path:
    """Where a worker says how far its rows are; a temporary name, so that what is left behind gets
    swept.
    """
    return folder.path / f".tmp-progress-{unit_name(rows)}"
