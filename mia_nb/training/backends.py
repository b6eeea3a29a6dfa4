"""The backends of workers: processes of this machine (loky), a cluster of Dask or one of Ray. How
each is started, and which exception says that a worker died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

import torch
from joblib import effective_n_jobs, parallel_config
from joblib.externals.loky import get_reusable_executor

from mia_nb import models
from mia_nb.checks import one_of
from mia_nb.training.machine import device_of, keep_freed_memory

BACKENDS = ("loky", "dask", "ray")


def check_backend(backend: str, model: str) -> None:
    """ValueError for an unknown backend, and for a network defined in the running script, which
    workers elsewhere could not import.
    """
    one_of("backend", backend, BACKENDS)
    if backend != "loky" and model.startswith("__main__:"):
        raise ValueError(
            f"model={model!r} lives in this script, which workers of {backend} cannot import:"
            " put it in a module"
        )


@contextlib.contextmanager
def started(backend: str, workers: int | None, builder: str, device: str | None) -> Iterator[int]:
    """Start the workers of a backend, which joblib uses inside the block.

    Parameters:
        backend: "loky": processes of this machine, which joblib keeps for the next call. "dask":
            the active Client; without one, the scheduler that Dask's own settings name, or a local
            cluster for this call. "ray": the cluster that Ray is connected to, or that RAY_ADDRESS
            names, or else this machine.
        workers: how many to start; None: one per core. A running cluster has its own number.
        builder: the code of the pool's networks.
        device: the name of the device that is wanted, or None.

    Yields:
        The number of units that are trained at a time.

    Raises:
        ValueError: the backend is not installed, or no cluster answers.
    """
    options = {}
    with contextlib.ExitStack() as stack:
        if backend == "dask":
            _connect_to_dask(workers, stack)
        elif backend == "ray":
            options = _ray_options(workers, device)
        else:
            # if one of these values changes, joblib starts fresh processes, since the running ones
            # have imported the earlier modules
            what_workers_imported = (tuple(sys.path), os.environ.get(models.ALLOWED, ""), builder)
            options = {
                "initializer": end_with_parent,
                "initargs": (os.getpid(), *what_workers_imported),
            }
            if torch.cuda.is_available():
                stack.callback(_free_gpus)
        stack.enter_context(parallel_config(backend=backend, **options))
        # joblib's -1 is all that the cluster has
        yield effective_n_jobs(-1 if workers is None or backend == "dask" else workers)


def _free_gpus() -> None:
    """End loky's idle processes, which hold memory of a GPU."""
    get_reusable_executor().shutdown(wait=True)


def _connect_to_dask(workers: int | None, stack: contextlib.ExitStack) -> None:
    """Connect to a Dask cluster, or start one until the stack is closed."""
    try:
        import dask
        import distributed
    except ImportError as error:
        raise _not_installed("dask", error) from error
    try:
        distributed.get_client()
        return
    except ValueError:
        pass  # none is active
    address = dask.config.get("scheduler-address", None)
    try:
        if address is None:
            local = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                memory_limit=0,
                dashboard_address=None,
                silence_logs="ERROR",
            )
            address = stack.enter_context(local)
        stack.enter_context(distributed.Client(address))
    except OSError as error:
        raise ValueError(
            f"backend=dask: no scheduler answers at {address} ({error}); start one with:"
            " dask scheduler"
        ) from error


def _ray_options(workers: int | None, device: str | None) -> dict:
    """Connect to a Ray cluster, or start one; the options of joblib's Ray backend, which are each
    worker's share of the GPUs.
    """
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise _not_installed("ray", error) from error
    register_ray()
    if not ray.is_initialized():
        local = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers}
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **local)
        except ConnectionError as error:
            raise ValueError(
                "backend=ray: no cluster answers at RAY_ADDRESS; start one with: ray start --head"
            ) from error
    resources = ray.cluster_resources()
    gpus = resources.get("GPU", 0)
    wants_gpu = device is None or device_of(device, here=False).type == "cuda"
    if not gpus or not wants_gpu:
        return {}
    count = workers or int(resources.get("CPU", 1))
    return {"ray_remote_args": {"num_gpus": min(1, gpus / count)}}


def _not_installed(backend: str, error: ImportError) -> ValueError:
    return ValueError(
        f"backend={backend}: {error.name} is not installed; try: pip install 'mia_nb[{backend}]'"
    )


def end_with_parent(parent: int, *_: object) -> None:
    """Prepare a process of loky: it ends with its parent process, and leaves Ctrl-C to the parent.

    Joblib ends its processes when a call is interrupted or Python exits. This covers SIGTERM and
    SIGKILL of the parent, after which a process would go on training for nobody.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    if os.name == "posix":
        threading.Thread(target=watch, daemon=True).start()


def error_of_lost_worker(backend: str) -> type[Exception]:
    """The exception that a backend raises when a worker died."""
    if backend == "ray":
        from ray.exceptions import RayActorError

        return RayActorError
    if backend == "dask":
        from distributed import KilledWorker  # raised after three more workers were tried

        return KilledWorker
    return BrokenProcessPool
