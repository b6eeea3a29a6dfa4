"""How fast are pools trained? Strategies over a loop per model with a DataLoader; whole pools at
equal accuracy; growth.

    python benchmarks/training.py [--only strategies|pools|growth|memory] [--rounds 3] [--seconds 0.7]
    [--minutes 8]

Strategies are timed in steady state by two processes that live through all of it, in interleaved
windows of --seconds; after --minutes no further network is begun. Whole pools are fresh processes,
from their start to the last weight. Memory: processor seconds of a step of the shipped families, in a
process that gives freed memory back and in one that keeps it, as workers do.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from common import (
    exponent,
    head,
    mean_interval,
    options,
    ratios,
    report,
    rounds,
    row,
    spread,
    table,
)
from evidence import POOLS as SHIPPED
from ordinary import WAYS, loader
from ordinary import training as ordinary_training

from mia_nb import data, training
from mia_nb.training import batches, loop, machine, plans
from mia_nb.training.clipped import group_of
from mia_nb.types import Images, Recipe


class Net(NamedTuple):
    images: str
    limit: int | None
    group: int  # stacked together
    recipe: dict
    compiled: bool = False  # worth the time that compiling takes


class Way(NamedTuple):
    """A row of the table of strategies."""

    processes: int
    threads: int
    kind: str = "ours"  # or one of ordinary.WAYS
    stacked: float = 0  # share of the network's group in one stack
    channels_last: bool = False
    dtype: str = "float32"
    compiled: bool = False


def spiking(timesteps: int, compiled: bool = False) -> Net:
    return Net(
        "digits",
        512,
        16,
        {"model": "snn", "model_args": {"base": "tinycnn", "timesteps": timesteps}},
        compiled,
    )


COLOUR, FLOW = "synthetic:classes=10,n={},size=32,channels=3", {"width": 8, "steps": 4}
NETS = {
    "TinyCNN, 8x8": Net("digits", 512, 16, {}, True),
    "ResNet14 w16, 32x32": Net(
        COLOUR.format(512),
        None,
        4,
        {"model": "resnet14", "model_args": {"width": 16}, "batch": 64},
        True,
    ),
    "ResNet18 w16, 32x32": Net(
        COLOUR.format(256), None, 4, {"model": "resnet18", "model_args": {"width": 16}, "batch": 64}
    ),
    "SNN T=1": spiking(1),
    "SNN T=2": spiking(2),
    "SNN T=4": spiking(4, True),
    "ODENet w8": Net("digits", 512, 16, {"model": "odenet", "model_args": FLOW}, True),
    "SDENet w8": Net("digits", 512, 16, {"model": "sdenet", "model_args": FLOW}),
}
WAYS_TO_TRAIN = {
    "DataLoader loop, converts on access": Way(1, 2, "dataset"),
    "DataLoader loop, tensors prepared": Way(1, 2, "tensors"),
    "the same, 2 processes": Way(2, 1, "tensors"),
    "plain": Way(1, 2),
    "plain, channels-last": Way(1, 2, channels_last=True),
    "plain, 2 processes": Way(2, 1),
    "plain, 2 processes, channels-last": Way(2, 1, channels_last=True),
    "plain, 2 processes, channels-last, bf16": Way(2, 1, channels_last=True, dtype="bfloat16"),
    "plain+compiled, 2 processes, channels-last": Way(2, 1, channels_last=True, compiled=True),
    "stacked": Way(1, 2, stacked=1),
    "stacked, 2 processes": Way(2, 1, stacked=0.5),
    "stacked+compiled, 2 processes": Way(2, 1, stacked=0.5, compiled=True),
}
BASE = next(iter(WAYS_TO_TRAIN))
QUICK = (BASE, "plain", "plain, 2 processes, channels-last, bf16", "stacked, 2 processes")
POOLS = {  # trained to their end
    "TinyCNN": Recipe(epochs=20),
    "SNN T=4": Recipe(**NETS["SNN T=4"].recipe, num_models=4, epochs=8),
    "ODENet w8": Recipe(**NETS["ODENet w8"].recipe, num_models=4, epochs=6),
}


class Trained:
    """A network in training by one of the ways: `epoch` trains one and returns how many steps of a
    model that were.
    """

    def __init__(self, net: Net, way: Way):
        images = data.load(net.images, limit=net.limit)
        recipe = training.placing.complete(Recipe(**net.recipe, dtype=way.dtype, epochs=10**6))
        member = data.paired_membership(16, len(images.y), labels=images.y.numpy())
        self.done = 0
        if way.kind == "ours":
            group = max(1, int(way.stacked * net.group))
            how = {
                "stacked": way.stacked > 0,
                "channels_last": way.channels_last,
                "compiled": way.compiled,
            }
            plan = plans.Plan(recipe, images, member, torch.device("cpu"), **how)
            self.group = group_of(plan, list(range(group)))
            self.steps = plan.steps * group
        else:
            batches = loader(way.kind, images, member[0], recipe.batch)
            self.epochs, self.steps = (
                ordinary_training(plans.build(recipe, images, 0), batches, recipe),
                len(batches),
            )

    def epoch(self) -> int:
        if hasattr(self, "group"):
            self.group.epoch(self.done, [[1.0]] * self.done)
        else:
            next(self.epochs)
        self.done += 1
        return self.steps


def child(most: int) -> None:
    """Answer the parent's lines: ["begin", network, way] warms up, ["run", way, seconds] gives
    steps a second.

    most: threads, on a busy machine one.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    at_work: dict[str, Trained] = {}
    for line in sys.stdin:
        what, *words = json.loads(line)
        begun, steps = time.perf_counter(), 0
        if what == "begin":
            net, way = words
            at_work = at_work if way != BASE else {}
            torch.set_num_threads(min(WAYS_TO_TRAIN[way].threads, most))
            at_work[way] = Trained(NETS[net], WAYS_TO_TRAIN[way])
            begun = time.perf_counter()
            steps = at_work[way].epoch()
            answer = time.perf_counter() - begun
        else:
            way, seconds = words
            torch.set_num_threads(min(WAYS_TO_TRAIN[way].threads, most))
            while not steps or time.perf_counter() - begun < seconds:
                steps += at_work[way].epoch()
            answer = steps / (time.perf_counter() - begun)
        print(json.dumps([answer, at_work[way].steps]), file=answers, flush=True)


def ask(children: list[subprocess.Popen], *words) -> list[list[float]]:
    """The same line to several of them at once."""
    for process in children:
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
    return [json.loads(process.stdout.readline()) for process in children]


def strategies(args) -> None:
    """Steps a second of all processes of a way together, over the base's."""
    with tempfile.TemporaryDirectory() as cache:
        command, pipe = [sys.executable, __file__, "--child", str(args.threads)], subprocess.PIPE
        # nothing is compiled yet
        places = [{**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{cache}/{n}"} for n in range(2)]
        children = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=place)
            for place in places
        ]
        rates, compiling, begun, left = {}, {}, time.monotonic(), []
        for net in [
            n for n in NETS if not args.nets or any(n.startswith(wanted) for wanted in args.nets)
        ]:
            if time.monotonic() - begun > 60 * args.minutes:
                left.append(net)
                continue
            print(f"{net} after {time.monotonic() - begun:.0f} s", file=sys.stderr)
            one, first = {}, {}
            for name, way in WAYS_TO_TRAIN.items():
                if name in QUICK if args.quick else NETS[net].compiled or not way.compiled:
                    first[name], one[name] = ask(children[: way.processes], "begin", net, name), []
            for _ in range(args.rounds):
                for name, found in one.items():
                    answers = ask(
                        children[: WAYS_TO_TRAIN[name].processes], "run", name, args.seconds
                    )
                    found.append(sum(rate for rate, _ in answers))
            rates[net] = one
            for name, answers in first.items():
                if WAYS_TO_TRAIN[name].compiled:  # the first epoch but its training
                    usual = 2 * answers[0][1] / statistics.median(one[name])
                    compiling.setdefault(name, {})[net] = max(s for s, _ in answers) - usual
        for process in children:
            process.stdin.close()
            process.wait()
    show(rates, compiling, left)


def show(rates: dict, compiling: dict, left: list[str]) -> None:
    names = [name for name in WAYS_TO_TRAIN if any(name in r for r in rates.values())]
    print(
        "Steps of a model in a second, as factors over the first row, median (lowest-highest) of"
        " interleaved rounds:\n"
    )
    table(
        ["way", *rates],
        [
            [n, *(spread(ratios(r[n], r[BASE])) if n in r else "-" for r in rates.values())]
            for n in names
        ],
    )
    print(
        "The same as milliseconds for a step of one model, and seconds to compile, which come"
        " once:\n"
    )
    rows = []
    for name in names:
        taken = (
            "; ".join(
                f"{net.partition(',')[0]} {seconds:.0f}"
                for net, seconds in compiling.get(name, {}).items()
            )
            or "-"
        )
        cells = (
            f"{1e3 / statistics.median(r[name]):.2f}" if name in r else "-" for r in rates.values()
        )
        rows.append([name, *cells, taken])
    table(["way", *rates, "compiling, s"], rows)
    sizes = ", ".join(
        f"{net}: batch {Recipe(**NETS[net].recipe).batch}, stacks of {NETS[net].group}"
        for net in rates
    )
    print(f"{sizes}; two processes take half a stack each. Flows take {FLOW['steps']} Euler steps.")
    if left:
        print(f"Not begun, the time was up: {', '.join(left)}.")


def in_fresh_process(option: str, jobs: list[list]) -> list:
    """What this script, started with the option, answers to each of the jobs."""
    command = [sys.executable, __file__, option, json.dumps(jobs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()[-len(jobs) :]]


def processes(kinds: list, quick: bool) -> list[list]:
    """Which kinds of a job share a process: none, or at toy size, where loading torch takes longer
    than what is measured, all.
    """
    return [kinds] if quick else [[kind] for kind in kinds]


def train_whole(name: str, way: str, quick: bool, begun: float | None) -> None:
    """In a fresh process: train a whole pool, print [seconds since the process began, test accuracy
    of each model, how]. begun: when that was; None: seconds of this pool alone, where several pools
    share the process.
    """
    started = time.time() if begun is None else begun
    images, recipe = data.load("digits"), shortened(POOLS[name]) if quick else POOLS[name]
    member = data.paired_membership(recipe.num_models, len(images.y), labels=images.y.numpy())
    if way == "ours":
        with tempfile.TemporaryDirectory() as root:
            recipe = Recipe(**{**recipe.to_json(), "split": "given"})
            pool = training.train_pool(
                recipe,
                images,
                member=member,
                root=root,
                workers=1 if quick else None,
                progress=False,
            )
            seconds, how = time.time() - started, pool.folder.read_json("execution.json")
            nets = [pool.model(m) for m in range(recipe.num_models)]
        kind = f"stacked {how['group']}" if how["stacked"] else "plain"
        told = (
            f"{kind}, {how['threads']} threads a"
            f" process{', compiled' if how.get('compiled') else ''}"
        )
    else:
        nets, told = (
            [plans.build(recipe, images, m) for m in range(recipe.num_models)],
            f"{torch.get_num_threads()} threads",
        )
        for net, mask in zip(nets, member, strict=True):
            list(ordinary_training(net, loader(way, images, mask, recipe.batch), recipe))
        seconds = time.time() - started
    print(
        json.dumps(
            [
                seconds,
                [accuracy(net, images, ~mask) for net, mask in zip(nets, member, strict=True)],
                told,
            ]
        )
    )


@torch.inference_mode()
def accuracy(net: torch.nn.Module, images: Images, rows) -> float:
    x = data.normalise(images.x[rows], images.mean, images.std)
    return float((net.eval()(x).argmax(1) == images.y[rows]).double().mean())


def shortened(recipe: Recipe) -> Recipe:
    return Recipe(**{**recipe.to_json(), "num_models": 2, "epochs": 1})


def pools(args) -> None:
    """Whole pools, each in a fresh process: seconds and accuracy on what a model was not trained
    on.
    """
    print(
        "Whole pools on digits, a fresh process each: median (lowest-highest) of interleaved"
        " rounds; accuracy of the last"
    )
    print(
        "round, mean over models with its 95 % interval, differences model by model on the same"
        " members.\n"
    )
    head(["pool", "way", "how", "seconds", "factor", "test accuracy", "difference from the first"])
    for name, recipe in list(POOLS.items())[: 1 if args.quick else None]:
        recipe = shortened(recipe) if args.quick else recipe
        found: dict[str, list] = {way: [] for way in (*(WAYS[:1] if args.quick else WAYS), "ours")}
        for _ in range(args.rounds):
            for ways in processes(list(found), args.quick):
                begun = None if args.quick else time.time()
                jobs = [[name, way, args.quick, begun] for way in ways]
                for way, answer in zip(ways, in_fresh_process("--whole", jobs), strict=True):
                    found[way].append(answer)
        base, title = (
            found["dataset"],
            f"{name}, {recipe.num_models} models, epochs: {recipe.epochs}",
        )
        for way, answers in found.items():
            said = {
                "dataset": "DataLoader, converts on access",
                "tensors": "DataLoader, tensors prepared",
            }.get(way, way)
            seconds, factor = (
                [a[0] for a in answers],
                ratios([b[0] for b in base], [a[0] for a in answers]),
            )
            reached, how = answers[-1][1:]
            away = [a - b for a, b in zip(reached, base[-1][1], strict=True)]
            row(
                [
                    title,
                    said,
                    how,
                    spread(seconds, ".1f"),
                    spread(factor),
                    mean_interval(reached),
                    mean_interval(away),
                ]
            )
    print(flush=True)


def grown(models: int, epochs: int, images: Images, workers: int | None = None) -> None:
    with tempfile.TemporaryDirectory() as root:
        training.train_pool(
            Recipe(num_models=models, epochs=epochs),
            images,
            root=root,
            workers=workers,
            progress=False,
        )


def growth(args) -> None:
    """Seconds of TinyCNN pools against the number of models and of images."""
    digits = data.load("digits", limit=400 if args.quick else None)
    sizes, counts = ([2, 4], [200, 400]) if args.quick else ([16, 64, 256], [1000, 4000, 16000])
    many = {n: data.load(f"synthetic:classes=10,n={n},size=8,channels=1") for n in counts}
    epochs, models, workers = (1, 2, 1) if args.quick else (5, 16, None)
    grown(2, 1, digits, workers)  # what torch imports with the first optimiser
    for title, runs in (
        (
            f"models M, digits, {epochs} epochs",
            {m: partial(grown, m, epochs, digits, workers) for m in sizes},
        ),
        (
            f"images N, 8x8, {models} models, 2 epochs",
            {n: partial(grown, models, 2, many[n], workers) for n in counts},
        ),
    ):
        taken = rounds(runs, min(args.rounds, 2), warm=0)
        middle = [statistics.median(seconds) for seconds in taken.values()]
        cells = [spread(v, ".2f") for v in taken.values()]
        table(
            [title, *taken, "exponent"],
            [["seconds", *cells, f"{exponent(list(taken), middle):.2f}"]],
        )


FAMILIES = ("fast-small", "fast-ode", "fast-direct-T1", "fast-direct-T4")


def step_seconds(name: str, keep: bool, steps: int, quick: bool) -> None:
    """Print the processor seconds of one training step of a shipped family on random images; of
    a few images where it need only be shown that it runs.
    """
    torch.set_num_threads(1)
    if keep:
        machine.keep_freed_memory()
    recipe = Recipe(**SHIPPED[name])
    if quick:
        recipe = recipe.replace(batch=20)
    pixels = torch.randint(0, 256, (2000, 3, 32, 32), dtype=torch.uint8)
    images = data.from_arrays(pixels.numpy(), torch.arange(2000).numpy() % 10)
    member = torch.arange(2000).numpy()[None] % 2 == 0
    plan = plans.plan_of(recipe, images, member, ~member[0] & False)
    group = loop.Group(plan._replace(channels_last=True), [0])
    x = batches.plain_images(group.plan, torch.arange(recipe.batch))[None]
    y = images.y[None, : recipe.batch]
    group.step(x, y, 0.01)
    begun = time.process_time()
    for _ in range(steps):
        group.step(x, y, 0.01)
    print((time.process_time() - begun) / steps)


def memory(args) -> None:
    """The table of steps with memory given back and kept."""
    rows = []
    for name in FAMILIES[:1] if args.quick else FAMILIES:
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(args.rounds):
            for ways in processes(list(seconds), args.quick):
                jobs = [[name, keep, 1 if args.quick else 3, args.quick] for keep in ways]
                for keep, answer in zip(ways, in_fresh_process("--step", jobs), strict=True):
                    seconds[keep].append(answer)
        given_back, kept = (statistics.median(times) for times in seconds.values())
        rows.append([name, f"{given_back:.2f}", f"{kept:.2f}", f"{given_back / kept:.2f}"])
    table(["family", "given back, s", "kept, s", "ratio"], rows)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--nets", nargs="*", help="only networks that begin so")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="of a way that has one process; 1 where others use the cores too",
    )
    parser.add_argument("--child", type=int)
    parser.add_argument("--whole")
    parser.add_argument("--step")
    args = parser.parse_args()
    if args.child:
        return child(args.child)
    if args.whole or args.step:
        for job in json.loads(args.whole or args.step):
            train_whole(*job) if args.whole else step_seconds(*job)
        return None
    if args.quick:
        args.rounds, args.seconds, args.threads, args.nets = 1, 0.05, 1, args.nets or ["TinyCNN"]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        p or os.getcwd() for p in (str(Path(__file__).parents[1]), *sys.path)
    )
    with report("Training pools", args.quick):
        for name in [args.only] if args.only else PARTS:
            PARTS[name](args)


PARTS = {"strategies": strategies, "pools": pools, "growth": growth, "memory": memory}

if __name__ == "__main__":
    main()
