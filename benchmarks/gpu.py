"""What a GPU gives: images a second and share of the bf16 peak of training by network and mode, and
of asking ResNet18.

    python benchmarks/gpu.py [--minutes 8] [--seconds 2] [--nets ResNet18 ODENet] [--device cpu
    --quick]

The peak is that of a large matrix product, measured first. Floating-point operations are counted
(torch.utils.flop_counter, two for a multiplication and addition), forward and backward, on the
plain eager network. Rows come one after another, medians of whole epochs with everything that
belongs to them: order, gathering, crop and flip, losses copied back. After --minutes no further row
is begun; a row that runs out of memory says so. The first row of a network is an ordinary fp32 loop
with a DataLoader and default settings; the second gives that loader worker processes and pinned
memory, and its first step includes starting them. A row whose CUDA graph was not captured has
failed.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from common import head, options, report, row, timed
from ordinary import loader
from ordinary import training as ordinary_training
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mia_nb import data, query, training
from mia_nb.training import compiled, loop
from mia_nb.training.clipped import group_of
from mia_nb.types import Images, Recipe

# what the minutes are for: so many models on halves of CIFAR-10
HALF, MODELS, EPOCHS = 25_000, 64, 16
COLUMNS = (
    "net",
    "batch",
    "G",
    "mode",
    "images/s",
    "TFLOP/s",
    "% of bf16 peak",
    "first step, s",
    "GiB",
    f"minutes for {MODELS} models x {EPOCHS} epochs",
)


class Net(NamedTuple):
    recipe: dict
    batch: int
    groups: tuple[int, ...]  # models at once


NETS = {
    "ResNet18": Net({"model": "resnet18"}, 512, (2, 4)),
    "ResNet14": Net({"model": "resnet14"}, 128, (4, 16)),
    "ODENet": Net({"model": "odenet"}, 128, (4, 16)),
    "SNN TinyCNN T=4": Net(
        {"model": "snn", "model_args": {"base": "tinycnn", "timesteps": 4}}, 128, (4, 16)
    ),
}
TOYS = {
    "ResNet18": Net({"model": "resnet18", "model_args": {"width": 4}}, 8, (2,)),
    "SNN TinyCNN T=4": Net(
        {
            "model": "snn",
            "model_args": {"base": "tinycnn", "timesteps": 4, "base_args": {"width": 4}},
        },
        8,
        (2,),
    ),
}


class Mode(NamedTuple):
    name: str
    models: int = 1
    dtype: str = "bfloat16"
    how: dict | None = None  # of the plan; None: an ordinary loop
    workers: int = 0


def modes(net: Net, device: torch.device, quick: bool) -> Iterator[Mode]:
    """What is tried, in this order."""
    yield Mode("DataLoader loop, fp32", dtype="float32")
    if not quick:
        yield Mode(
            "DataLoader loop, fp32, workers", dtype="float32", workers=min(8, os.cpu_count() or 1)
        )
    yield Mode("plain, fp32", dtype="float32", how={})
    yield Mode("plain, bf16, channels-last", how={"channels_last": True})
    if not quick:
        yield Mode("plain+compiled", how={"channels_last": True, "compiled": True})
    for count in net.groups:
        if device.type == "cuda":
            yield Mode(f"graph:{count}", count, how={"channels_last": True, "graph": True})
        yield Mode(f"stacked:{count}", count, how={"stacked": True})
        if not quick:
            yield Mode(f"stacked:{count}+compiled", count, how={"stacked": True, "compiled": True})


class Measured(NamedTuple):
    rate: float  # images a second
    # seconds of the first step beyond a usual one: kernels chosen, code compiled, a graph captured
    first: float
    memory: float  # GiB at most


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def crop_and_flip(x: Tensor) -> Tensor:
    """One image (C, H, W) moved by up to four pixels and mirrored, as in torchvision's
    RandomCrop(padding=4) and flip.
    """
    height, width = x.shape[1:]
    top, left, mirrored = (
        int(torch.randint(9, ())),
        int(torch.randint(9, ())),
        int(torch.randint(2, ())),
    )
    x = nn.functional.pad(x, (4, 4, 4, 4))[:, top : top + height, left : left + width]
    return x.flip(-1) if mirrored else x


def ordinary_epochs(
    recipe: Recipe, images: Images, member: np.ndarray, device: torch.device, workers: int
) -> Callable:
    """An epoch of an ordinary loop per call, with crop and flip of single images."""
    extra = (
        {"num_workers": workers, "persistent_workers": True, "pin_memory": device.type == "cuda"}
        if workers
        else {}
    )
    batches = loader("dataset", images, member, recipe.batch, transform=crop_and_flip, **extra)
    return partial(
        next, ordinary_training(loop.build(recipe, images, 0), batches, recipe, str(device))
    )


def our_epochs(
    recipe: Recipe, images: Images, member: np.ndarray, device: torch.device, mode: Mode
) -> Callable:
    how = {"stacked": False, "channels_last": False, **mode.how}
    there = images._replace(x=images.x.to(device), y=images.y.to(device))
    group, history = (
        group_of(loop.Plan(recipe, there, member, device, **how), list(range(mode.models))),
        [],
    )

    def epoch() -> None:
        group.epoch(len(history), history)
        if mode.how.get("graph") and group.graph is None:
            raise RuntimeError("no CUDA graph was captured")
        history.append([1.0] * mode.models)

    return epoch


def measure(net: Net, mode: Mode, images: Images, device: torch.device, seconds: float) -> Measured:
    """Train for a while; the images live where the mode wants them.

    Nothing compiled is left from the row before.
    """
    compiled.forget()
    recipe = training.train.complete(
        Recipe(
            **net.recipe,
            batch=net.batch,
            dtype=mode.dtype,
            augment="crop+flip",
            epochs=10**6,
            lr=0.05,
        )
    )
    member = data.paired_membership(16, len(images.y), labels=images.y.numpy())
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    if mode.how is None:
        epoch = ordinary_epochs(recipe, images, member[0], device, mode.workers)
    else:
        epoch = our_epochs(recipe, images, member, device, mode)
    wait, steps = partial(synchronize, device), len(images.y) // 2 // net.batch
    first, taken, begun = timed(epoch, wait), [], time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - begun < seconds:
        taken.append(timed(epoch, wait))
    usual = statistics.median(taken)
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else math.nan
    return Measured(
        mode.models * steps * net.batch / usual, first - usual * (1 - 1 / steps), memory
    )


def bf16_peak(device: torch.device, quick: bool) -> float:
    """FLOP/s of a large bf16 matrix product, the best of ten medians of three."""
    size = 256 if quick else 8192
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    repeats = 2 if quick else 20

    def products() -> None:
        for _ in range(repeats):
            a @ b

    wait = partial(synchronize, device)
    taken = [
        statistics.median(timed(products, wait) for _ in range(3))
        for _ in range(2 if quick else 10)
    ]
    return 2 * size**3 * repeats / min(taken)


def counted(recipe: dict, images: Images) -> tuple[float, float]:
    """FLOP of one image: asked, and trained on (forward and backward)."""
    few = 4
    net = loop.build(Recipe(**recipe), images, 0)
    x, y = data.normalise(images.x[:few], images.mean, images.std), images.y[:few]
    totals = []
    for trained in (False, True):
        with FlopCounterMode(display=False) as counter:
            loss = nn.functional.cross_entropy(net.train()(x), y)
            if trained:
                loss.backward()
        totals.append(counter.get_total_flops() / few)
    return totals[0], totals[1]


def asking(
    net: Net, images: Images, device: torch.device, models: int
) -> Iterator[tuple[str, Callable[[], float]]]:
    """Images a second of asking `models` models: a plain fp32 loop, and ours in fp32 and in the
    recipe's bf16.
    """
    member = np.zeros((models, len(images.y)), bool)
    member[:, : net.batch] = True

    def rate(run: Callable[[], object]) -> float:
        run()
        wait = partial(synchronize, device)
        return models * len(images.y) / statistics.median(timed(run, wait) for _ in range(3))

    def pool_of(dtype: str, root: str) -> training.pool.Pool:
        one_step = {
            "num_models": models,
            "split": "given",
            "batch": net.batch,
            "epochs": 1,
            "lr": 0.01,
            "dtype": dtype,
        }
        where = {
            "root": root,
            "device": str(device),
            "workers": 1,
            "progress": False,
            "strategy": "plain",
        }
        return training.train_pool(Recipe(**net.recipe, **one_step), images, member=member, **where)

    @torch.inference_mode()
    def plain(pool: training.pool.Pool) -> None:
        for m in range(models):
            model = pool.model(m).to(device).eval()
            for x in images.x.split(512):
                torch.softmax(model(data.normalise(x.to(device), images.mean, images.std)), 1).cpu()

    def ordinary() -> float:
        with tempfile.TemporaryDirectory() as root:
            return rate(partial(plain, pool_of("float32", root)))

    def ours(dtype: str) -> float:
        with tempfile.TemporaryDirectory() as root:
            return rate(
                partial(
                    query,
                    pool_of(dtype, root),
                    images,
                    device=str(device),
                    progress=False,
                    force=True,
                )
            )

    yield "asking, plain loop, fp32", ordinary
    yield "asking, ours, fp32", partial(ours, "float32")
    yield "asking, ours, bf16", partial(ours, "bfloat16")


def attempt(run: Callable) -> tuple[object, str | None]:
    """What it gives, or in a few words why nothing."""
    try:
        return run(), None
    except Exception as error:
        if loop.short_of_memory(error):
            return None, "out of memory"
        lines = str(error).strip().splitlines()
        return None, f"failed: {type(error).__name__}: {lines[0][:120] if lines else ''}"


def network(
    name: str,
    net: Net,
    flop: tuple[float, float],
    images: Images,
    device: torch.device,
    args,
    peak: float,
    until: float,
) -> tuple[list, bool]:
    """Print the rows of one network; those not begun, and whether one failed."""
    left, failed = [], False
    jobs: list[tuple] = [
        (mode.name, mode.models, partial(measure, net, mode, images, device, args.seconds))
        for mode in modes(net, device, args.quick)
    ]
    if name == "ResNet18":
        jobs += [
            (what, 1, run) for what, run in asking(net, images, device, 2 if args.quick else 4)
        ]
    for what, models, run in jobs:
        if time.monotonic() > until:
            left.append(f"{name} {what}")
            continue
        found, problem = attempt(run)
        failed |= bool(problem and problem.startswith("failed"))
        if problem:
            row([name, net.batch, models, what, problem, *["-"] * 5])
        elif isinstance(found, Measured):
            minutes = f"{MODELS * EPOCHS * HALF / found.rate / 60:.1f}"
            memory = "-" if math.isnan(found.memory) else f"{found.memory:.2f}"
            speed = shares(found.rate, flop[1], peak)
            row([name, net.batch, models, what, *speed, f"{found.first:.1f}", memory, minutes])
        else:
            row([name, 512, models, what, *shares(found, flop[0], peak), "-", "-", "-"])
    return left, failed


def shares(rate: float, flop: float, peak: float) -> list[str]:
    return [f"{rate:,.0f}", f"{rate * flop / 1e12:.3g}", f"{100 * rate * flop / peak:.3g}"]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument(
        "--seconds", type=float, default=2, help="of each row, after its first epoch"
    )
    parser.add_argument("--nets", nargs="*", help="only networks that begin so")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            "gpu.py: torch finds no CUDA device here; run it where one is, or see that it works by"
            " --device cpu --quick"
        )
        return 2
    until = time.monotonic() + 60 * args.minutes
    nets = TOYS if args.quick else NETS
    if args.quick:
        args.seconds = 0.0
    where = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else "a CPU, which says nothing about GPUs"
    )
    images = data.load(f"synthetic:classes=10,n={64 if args.quick else 8192},size=32,channels=3")
    left, failed = [], False
    with report(f"Training and asking on {where}", args.quick):
        peak = bf16_peak(device, args.quick)
        print(
            f"bf16 peak of a matrix product: {peak / 1e12:.4g} TFLOP/s. float32 as torch has it by"
            " default: cudnn.allow_tf32"
        )
        print(
            f"{torch.backends.cudnn.allow_tf32}, matrix products"
            f" {torch.get_float32_matmul_precision()}. A model's epoch:"
        )
        print(
            f"{len(images.y) // 2:,} images, 32x32, crop + flip. GFLOP an image, trained on"
            " (asked):"
        )
        counts = {name: counted(net.recipe, images) for name, net in nets.items()}
        print(
            ", ".join(f"{name} {t / 1e9:.4g} ({a / 1e9:.4g})" for name, (a, t) in counts.items())
            + ".\n"
        )
        head(COLUMNS)
        for name, net in nets.items():
            if not args.nets or any(name.startswith(wanted) for wanted in args.nets):
                more, bad = network(name, net, counts[name], images, device, args, peak, until)
                left, failed = left + more, failed or bad
        if left:
            print(f"\nNot begun, the time was up: {', '.join(left)}.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
