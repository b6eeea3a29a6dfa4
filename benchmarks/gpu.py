"""The plan for a GPU: six parts, one command each of at most nine minutes, ordered by worth.

    python benchmarks/gpu.py --part 1 [--out FOLDER] [--images cifar10] [--results FOLDER]
    python benchmarks/gpu.py --toy --device cpu             # every part in seconds: shows it runs

1  the tests that need a GPU, and what `mia-nb doctor` says
2  ResNet18: images a second of training and querying by strategy, beside lira-pytorch's loop
3  sixteen ResNet18 on halves of the images by the fast recipe: accuracy and minutes
4  ResNet14, spiking networks of four time steps, ODENet, SDENet: training by strategy
5  signals of pools on the same masks, to travel with the package (--pools)
6  recipes: what the fast and the long one leak

Figures go to partN.json and partN.md in --out (default: $OUT, else build/gpu), each row as soon as
it is there; part 5 adds a manifest and one file a pool, to be copied over those in data/cifar10. No
part writes more than eight files, nor one above 16 MiB, nor a folder. Parts 3, 5 and 6 train on
--images and keep pools in --results: a part that ran out of time goes on when it is run again.
Images are whatever `mia_nb.data.load` reads, or an archive of class folders, which is small enough
to travel with a copy of the repository and decoded where it arrives, by all cores:

    python benchmarks/gpu.py --part 3 --images cifar10-jpeg.tar.gz --out FOLDER    # so 5 and 6

Parts 1, 2 and 4 need no images of yours. Parts 2 to 6 import nothing of Jupyter, papermill and
plotly, so that they run on a server that has PyTorch, the usual scientific packages and pydantic;
the tests of part 1 need torchsde too, its doctor all of the package's dependencies. The bf16 peak is that of a
large matrix product, measured first; minutes are those of this run. Floating-point operations are counted on the plain eager
network (two for a multiplication and addition). Rates are medians of whole epochs with everything
that belongs to them: order, gathering, crop and flip, losses copied back. A row that fails says so,
and the exit status is 1; after --minutes what is left is named.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import evidence
import numpy as np
import torch
from common import ROOT, head, header, mean_interval, options, report, row, timed
from ordinary import loader
from ordinary import training as ordinary_training
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mia_nb import attacks, cli, data, metrics, query, training
from mia_nb.training import clipped, compiled, execution, plans
from mia_nb.types import Images, Recipe

TIMESTEPS = 4


class Net(NamedTuple):
    recipe: dict
    batch: int
    groups: tuple[int, ...]  # models at once


def spiking(**options) -> dict:
    return {"model": "snn", "model_args": {"base": "resnet18", "timesteps": TIMESTEPS, **options}}


# neurons of a converted network, which hybrid training goes on with
CONVERTED = {"beta": 1.0, "reset": "soft", "surrogate": "boxcar", "detach_reset": True}
RESNET18 = {"ResNet18": Net({"model": "resnet18"}, 512, (2, 4))}
FAMILIES = {
    "ResNet14": Net({"model": "resnet14"}, 128, (4, 16)),
    "SNN ResNet18 T=4, direct": Net(spiking(), 128, (2,)),
    "SNN ResNet18 T=4, hybrid": Net(spiking(**CONVERTED), 128, (2,)),
    "ODENet": Net({"model": "odenet"}, 128, (4, 16)),
    "SDENet": Net({"model": "sdenet", "model_args": {"k": 0.25}}, 128, (4, 16)),
}
FAST = evidence.ORDINARY | {"snapshots": [], **training.changes("fast")}
POOLS = evidence.POOLS | {
    "resnet18": FAST | {"model": "resnet18", "model_args": {}, "batch": 512, "lr": 0.2},
}
SHIPPED = ("resnet18", "fast-wide", "fast-hybrid-T4", "odenet", "sdenet")
SMALL = {"num_models": 4, "epochs": 1, "snapshots": [], "batch": 16}


def small(recipe: dict) -> dict:
    """The recipe at toy size."""
    given = recipe.get("model_args", {})
    if recipe["model"] == "snn":
        return {**recipe, "model_args": {**given, "base_args": {"width": 8}, "timesteps": 2}}
    steps = {"steps": 2} if recipe["model"] in ("odenet", "sdenet") else {}
    return {**recipe, "model_args": {**given, "width": 8, **steps}}


def printed(value: object) -> str:
    """A cell: numbers rounded, "-" for what was not measured."""
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1e3 else f"{value:,.0f}"
    return "-" if value is None else str(value)


class Run:
    """One part: where it runs, how long it may, and its rows, kept as they come."""

    def __init__(self, part: int, args, device: torch.device):
        self.part, self.device, self.toy, self.results = part, device, args.quick, args.results
        self.pools, self.seconds = args.pools, 0.0 if args.quick else args.seconds
        self.until, self.out = time.monotonic() + 60 * args.minutes, args.out
        self.source, self.columns, self.failed, self.left = args.images, None, False, []
        self.begun, self.figures = time.monotonic(), {"part": part, "toy": args.quick, "rows": []}
        self.figures["machine"], self.lines = header(), []
        self.out.mkdir(parents=True, exist_ok=True)

    def row(self, **cells) -> None:
        """Print a row, and keep it; numbers are rounded in print alone."""
        shown = [printed(value) for value in cells.values()]
        with contextlib.redirect_stdout(io.StringIO()) as text:
            if list(cells) != self.columns:
                self.columns = list(cells)
                print()
                head(self.columns)
            row(shown)
        print(text.getvalue(), end="", flush=True)
        self.lines.append(text.getvalue())
        self.figures["rows"].append(cells)
        self.keep()

    def keep(self) -> None:
        """Write what there is; what a killed run has found is not lost."""
        facts = {"seconds": round(time.monotonic() - self.begun, 1), "left": self.left}
        text = json.dumps(self.figures | facts, indent=1, default=float) + "\n"
        (self.out / f"part{self.part}.json").write_text(text)
        title = f"**Part {self.part}**, {self.figures['machine']}, {facts['seconds']:.0f} s\n"
        (self.out / f"part{self.part}.md").write_text(title + "".join(self.lines))

    def attempt(self, what: str, run: Callable[[], object]) -> object:
        """What it gives; None where the time is up or it fails, which is said and kept."""
        if time.monotonic() > self.until:
            self.left.append(what)
            return None
        try:
            return run()
        except Exception as error:
            short = isinstance(error, torch.OutOfMemoryError)
            lines = str(error).strip().splitlines()
            self.failed |= not short
            said = f"failed: {type(error).__name__}: {lines[0][:120] if lines else ''}"
            self.figures.setdefault("problems", {})[what] = "out of memory" if short else said
            print(f"\n{what}: {'out of memory' if short else said}", flush=True)
        self.columns = None  # a line ends a table
        return None

    @cached_property
    def images(self) -> Images:
        """Those that pools are trained on."""
        return loaded("synthetic:classes=10,n=128,size=16" if self.toy else self.source)

    def pool(self, recipe: dict, **toy) -> tuple[training.pool.Pool, float]:
        """The pool of a recipe and the minutes that its training took in this run; `toy` changes
        it at toy size.
        """
        begun, recipe = time.monotonic(), small(recipe) | SMALL | toy if self.toy else recipe
        place = {"root": self.results, "device": str(self.device), "progress": not self.toy}
        pool = training.train_pool(Recipe(**recipe), self.images, **place)
        return pool, (time.monotonic() - begun) / 60


def loaded(source: str) -> Images:
    """What `data.load` reads, or what is in a .tar or .tar.gz of class folders of images."""
    if not source.endswith((".tar", ".tar.gz", ".tgz")):
        return data.load(source)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
        (only,) = Path(folder).iterdir()
        return data.load(only, data_root=folder)


class TimeUp(BaseException):
    """The part's minutes are over."""


class Tests:
    """How many of pytest's tests passed, failed and were skipped."""

    def __init__(self):
        self.outcomes = dict.fromkeys(("passed", "failed", "skipped"), 0)

    def pytest_runtest_logreport(self, report) -> None:
        self.outcomes[report.outcome] += report.when == "call" or report.outcome != "passed"


def sound(run: Run) -> None:
    """Part 1."""
    import pytest

    seen, chosen = Tests(), ["-k", "step_waits and plain"] if run.toy else []
    with tempfile.TemporaryDirectory() as folder:
        words = ["-q", "--tb=short", "-p", "no:cacheprovider", "--basetemp", f"{folder}/t"]
        begun = time.monotonic()
        status = pytest.main([*words, *chosen, str(ROOT / "tests/test_gpu.py")], plugins=[seen])
        run.row(what="tests", status=int(status), **seen.outcomes, s=time.monotonic() - begun)
        run.failed |= bool(status)
        begun = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()) as text:
            status = cli.main(["doctor", "--results", folder])
    print(f"\n{text.getvalue()}")
    run.figures["doctor"] = text.getvalue().splitlines()
    run.row(what="doctor", status=int(status), s=time.monotonic() - begun)
    run.failed |= bool(status)


class Mode(NamedTuple):
    name: str
    models: int = 1
    dtype: str = "bfloat16"
    how: dict | None = None  # of the plan; None: an ordinary loop
    workers: int = 0
    batch: int = 0  # another than the network's


def loops(toy: bool) -> Iterator[Mode]:
    """The ordinary loops, lira-pytorch's first: a DataLoader of 4 processes, batches of 128."""
    yield Mode("lira-pytorch's loop, fp32", dtype="float32", workers=0 if toy else 4, batch=128)
    if not toy:
        workers = min(16, os.cpu_count() or 1)
        yield Mode("DataLoader loop, fp32, workers", dtype="float32", workers=workers)
    yield Mode("plain, fp32", dtype="float32", how={})


def modes(net: Net, device: torch.device, toy: bool) -> Iterator[Mode]:
    """Our strategies in bf16, in this order."""
    yield Mode("plain", how={"channels_last": True})
    for count in net.groups:
        yield Mode(f"stacked:{count}", count, how={"stacked": True})
    if not toy:
        yield Mode("plain+compiled", how={"channels_last": True, "compiled": True})
        count = net.groups[0]
        yield Mode(f"stacked:{count}+compiled", count, how={"stacked": True, "compiled": True})


class Measured(NamedTuple):
    rate: float  # images a second
    # seconds of the first step beyond a usual one: kernels chosen, code compiled
    first: float | None
    memory: float | None  # GiB at most, of a GPU


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
        next, ordinary_training(plans.build(recipe, images, 0), batches, recipe, str(device))
    )


def our_epochs(
    recipe: Recipe, images: Images, member: np.ndarray, device: torch.device, mode: Mode
) -> Callable:
    how = {"stacked": False, "channels_last": False, **mode.how}
    there = images._replace(x=images.x.to(device), y=images.y.to(device))
    group, history = (
        clipped.group_of(
            plans.Plan(recipe, there, member, device, **how), list(range(mode.models))
        ),
        [],
    )

    def epoch() -> None:
        group.epoch(len(history), history)
        history.append([1.0] * mode.models)

    return epoch


def measure(net: Net, mode: Mode, images: Images, device: torch.device, seconds: float) -> Measured:
    """Train for a while; the images live where the mode wants them.

    Nothing compiled is left from the row before.
    """
    compiled._FUNCTIONS.clear()
    batch = min(mode.batch or net.batch, len(images.y) // 4)
    recipe = training.placing.complete(
        Recipe(
            **net.recipe,
            batch=batch,
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
    wait, steps = partial(synchronize, device), len(images.y) // 2 // batch
    first, taken, begun = timed(epoch, wait), [], time.perf_counter()
    fewest = 3 if seconds else 1
    while len(taken) < fewest or time.perf_counter() - begun < seconds:
        taken.append(timed(epoch, wait))
    usual = statistics.median(taken)
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return Measured(mode.models * steps * batch / usual, first - usual * (1 - 1 / steps), memory)


def bf16_peak(device: torch.device, toy: bool) -> float:
    """FLOP/s of a large bf16 matrix product, the best of ten medians of three."""
    size = 256 if toy else 8192
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    repeats = 2 if toy else 20

    def products() -> None:
        for _ in range(repeats):
            a @ b

    wait = partial(synchronize, device)
    taken = [
        statistics.median(timed(products, wait) for _ in range(3)) for _ in range(2 if toy else 10)
    ]
    return 2 * size**3 * repeats / min(taken)


def counted(recipe: dict, images: Images) -> tuple[float, float]:
    """FLOP of one image: asked, and trained on (forward and backward)."""
    few = 4
    net = plans.build(Recipe(**recipe), images, 0)
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
    net: Net, images: Images, device: torch.device, models: int, toy: bool
) -> Iterator[tuple[str, Callable[[], float]]]:
    """Images a second of asking `models` models: a plain fp32 loop, and ours in fp32 and in the
    recipe's bf16.
    """
    times = 1 if toy else 3
    member = np.zeros((models, len(images.y)), bool)
    member[:, : net.batch] = True

    def rate(run: Callable[[], object]) -> float:
        run()
        wait = partial(synchronize, device)
        return models * len(images.y) / statistics.median(timed(run, wait) for _ in range(times))

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

    yield "querying, plain loop, fp32", ordinary
    yield "querying, ours, fp32", partial(ours, "float32")
    yield "querying, ours, bf16", partial(ours, "bfloat16")


def rates(run: Run, nets: dict[str, Net], compared: bool) -> None:
    """Rows of training each network, and with the ordinary loops beside ours those of querying."""
    size = "n=64,size=16" if run.toy else "n=8192,size=32"
    images = data.load(f"synthetic:classes=10,{size},channels=3")
    peak, models = bf16_peak(run.device, run.toy), 2 if run.toy else 4
    run.figures["bf16_peak"] = peak
    tf32 = f"{torch.backends.cudnn.allow_tf32}, {torch.get_float32_matmul_precision()}"
    print(
        f"bf16 peak of a matrix product: {peak / 1e12:.4g} TFLOP/s; TF32 (cuDNN, product): {tf32}"
    )
    for name, net in nets.items():
        if run.toy:
            net = Net(small(net.recipe), 16, net.groups[:1])
        asked, trained = counted(net.recipe, images)
        tried = [*(loops(run.toy) if compared else ()), *modes(net, run.device, run.toy)]
        jobs = [
            (
                mode.name,
                mode.models,
                trained,
                partial(measure, net, mode, images, run.device, run.seconds),
            )
            for mode in tried
        ]
        if compared:
            ours = asking(net, images, run.device, models, run.toy)
            jobs += [(what, models, asked, job) for what, job in ours]
        base: dict[float, float] = {}  # of the first row of each kind
        for what, count, flop, job in jobs:
            if (found := run.attempt(f"{name} {what}", job)) is None:
                continue
            found = found if isinstance(found, Measured) else Measured(found, None, None)
            speed = {"images/s": found.rate, "TFLOP/s": found.rate * flop / 1e12}
            speed["% of bf16 peak"] = 100 * found.rate * flop / peak
            speed["x first row"] = found.rate / base.setdefault(flop, found.rate)
            more = {"first step, s": found.first, "GiB": found.memory}
            run.row(net=name, mode=what, models=count, **speed, **more)


def resnet18(run: Run) -> None:
    """Part 2."""
    rates(run, RESNET18, True)


def families(run: Run) -> None:
    """Part 4."""
    rates(run, FAMILIES, False)


def accuracies(pool: training.pool.Pool, run: Run) -> tuple[object, dict]:
    """A pool's signals, and accuracies on members and others with 95 % intervals over models."""
    signals = query(pool, run.images, device=str(run.device), progress=False)
    correct, member = signals.correct[:, 0], signals.member
    sides = {"train accuracy": member, "test accuracy": ~member}
    means = {
        name: [float(c[m].mean()) for c, m in zip(correct, side, strict=True)]
        for name, side in sides.items()
    }
    return signals, {name: mean_interval(values) for name, values in means.items()}


def sixteen(run: Run) -> None:
    """Part 3."""
    pool, minutes = run.pool(POOLS["resnet18"], num_models=2)
    models, recipe = len(pool.member), pool.recipe
    rate = pool.member.sum() * recipe.epochs / (60 * minutes)
    _, found = accuracies(pool, run)
    way = execution.in_words(execution.read_execution(pool.folder))
    run.row(models=models, strategy=way, minutes=minutes, **{"images/s": float(rate)}, **found)


def signals(run: Run) -> None:
    """Part 5: beside what is shipped, whose labels and members they must have."""
    place = run.results / "shipped"
    if not run.toy and not place.exists():
        shutil.copytree(ROOT / "data/cifar10", place)
    for name in run.pools or SHIPPED:
        begun = time.monotonic()
        base, derive = evidence.DERIVED.get(name, (name, lambda pool, images: pool))

        def made(name=name, base=base, derive=derive) -> training.pool.Pool:
            pool = derive(run.pool(POOLS[base], num_models=2)[0], run.images)
            evidence.ship(name, pool, run.images, place)
            for file in ("manifest.json", f"{name}.npz"):
                shutil.copy(place / file, run.out)
            return pool

        if (pool := run.attempt(name, made)) is None:
            continue
        run.columns = None  # what it said ended the table
        run.row(pool=name, models=len(pool.member), minutes=(time.monotonic() - begun) / 60)


def recipes(run: Run) -> None:
    """Part 6."""
    for name in ("fast", "long"):
        changed = FAST | {"num_models": 8} | training.changes(name)
        if (found := run.attempt(name, partial(run.pool, changed))) is None:
            continue
        answers, accuracy = accuracies(found[0], run)
        for attack in ("loss", "rmia"):
            table = metrics.summary(attacks.score(attack, answers))
            table = table[table["attack"] != "max"].assign(recipe=name)
            run.figures.setdefault("summaries", []).extend(table.to_dict("records"))
            auc = metrics.by_attack(table, "auc").loc[attack, "value"]
            tpr = metrics.by_attack(table, "tpr", 0.01).loc[attack, "value"]
            leak = {"AUC": auc, "TPR at 1 %": tpr}
            run.row(recipe=name, attack=attack, minutes=found[1], **accuracy, **leak)


PARTS = {1: sound, 2: resnet18, 3: sixteen, 4: families, 5: signals, 6: recipes}


def done(part: int, args, device: torch.device) -> bool:
    """Run a part; whether nothing in it failed."""
    run = Run(part, args, device)

    def stop(*_) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * args.minutes + 50)  # rows are begun until minutes
    try:
        run.attempt(PARTS[part].__name__, partial(PARTS[part], run))
    except TimeUp:
        run.left.append("what was running: run the part again, and it goes on")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        run.keep()
    if run.left:
        print(f"\nNot done, the time was up: {', '.join(run.left)}.")
    return not run.failed


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--part", type=int, nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=8, help="of each part, 50 s more at most")
    parser.add_argument("--seconds", type=float, default=2, help="of a row, after its first epoch")
    parser.add_argument("--images", default="cifar10", help="of parts 3, 5 and 6")
    parser.add_argument("--pools", nargs="*", help=f"of part 5; default: {' '.join(SHIPPED)}")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    if len(args.pools or ()) > len(SHIPPED):
        parser.error(f"at most {len(SHIPPED)} --pools a run: more files do not come back")
    place = Path(tempfile.mkdtemp() if args.quick else ROOT / "build")
    args.out = args.out or Path(os.environ.get("OUT") or place / "gpu")
    args.results = args.results or place / "gpu-results"
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            "gpu.py: torch finds no CUDA device here; run it where one is, or see that it works by"
            " --device cpu --toy"
        )
        return 2
    where = torch.cuda.get_device_name() if device.type == "cuda" else "a CPU, which says little"
    good = True
    for part in args.part:
        with report(f"Part {part} on {where}", args.quick):
            good &= done(part, args, device)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
