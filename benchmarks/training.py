"""How fast are pools trained? Strategies against one model at a time, and the demo's pool against a loop with a DataLoader.

    python benchmarks/training.py [--rounds 3] [--seconds 3] [--demo-only | --table-only]

Every figure is a ratio within one run: rounds are interleaved, medians are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from mia_nb import data, models, training
from mia_nb.training import loop
from mia_nb.types import Recipe

NETS = {
    "MLP": ("digits", Recipe(model="__main__:mlp", model_args={"width": 128}, batch=64)),
    "TinyCNN 8x8": ("digits", Recipe(batch=32)),
    "SNN TinyCNN T=1": ("digits", Recipe(model="snn", model_args={"base": "tinycnn", "timesteps": 1}, batch=32)),
    "SNN TinyCNN T=4": ("digits", Recipe(model="snn", model_args={"base": "tinycnn", "timesteps": 4}, batch=32)),
    "ResNet14 w16 32x32": ("synthetic:n=300,size=32,channels=3", Recipe(model="resnet14", model_args={"width": 16}, batch=64)),
}
ROWS = {  # processes, threads, group (0 = plain), channels last, dtype
    "one at a time, 2 threads": (1, 2, 0, False, "float32"),
    "channels-last": (1, 2, 0, True, "float32"),
    "2 processes x 1 thread": (2, 1, 0, False, "float32"),
    "2 processes, channels-last": (2, 1, 0, True, "float32"),
    "2 processes, channels-last, bf16": (2, 1, 0, True, "bfloat16"),
    "stacked 16, 2 threads": (1, 2, 16, False, "float32"),
    "2 processes x stacked 8": (2, 1, 8, False, "float32"),
    "2 processes x stacked 4": (2, 1, 4, False, "float32"),
}


def mlp(in_channels, num_classes, size, width):
    features = in_channels * size[0] * size[1]
    return nn.Sequential(nn.Flatten(), nn.Linear(features, width), nn.ReLU(), nn.Linear(width, num_classes))


def steps_per_second(
    net: str, group: int, channels_last: bool, dtype: str, threads: int, seconds: float, start: float
) -> float:
    """Model-steps a second of this process in a window that opens at the wall-clock time `start`."""
    torch.set_num_threads(threads)
    name, recipe = NETS[net]
    images = data.load(name)
    recipe = training.complete(Recipe(**{**recipe.to_json(), "dtype": dtype, "epochs": 10**6}))
    member = data.paired_membership(16, len(images.y), labels=images.y.numpy())
    plan = loop.Plan(recipe, images, member, torch.device("cpu"), group > 0, channels_last)
    trained = loop.Group(plan, list(range(max(group, 1))))
    trained.epoch(0, [])
    late = time.time() - start
    if late > 0:
        raise SystemExit(f"the window opened {late:.1f} s too early for this machine; raise START")
    time.sleep(-late)
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        trained.epoch(1 + done, [[1.0]])
        done += 1
    return done * plan.steps * len(trained.ids) / (time.perf_counter() - begun)


# seconds to import and warm up before a window opens
START = {
    "MLP": 6.0,
    "TinyCNN 8x8": 6.0,
    "SNN TinyCNN T=1": 14.0,
    "SNN TinyCNN T=4": 22.0,
    "ResNet14 w16 32x32": 13.0,
}  # seconds to import and warm up before a window opens


def throughput(net: str, row: str, seconds: float) -> float:
    """Model-steps a second of all processes of a row together."""
    processes, threads, group, channels_last, dtype = ROWS[row]
    arguments = json.dumps([net, group, channels_last, dtype, threads, seconds, time.time() + START[net]])
    command = [sys.executable, __file__, "--child", arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(processes)]
    return sum(float(child.communicate()[0]) for child in children)


class Digits(Dataset):
    """One image at a time, converted and normalised on access, as a data set class usually is."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images.y)

    def __getitem__(self, index):
        x = self.images.x[index].float().div(255)
        return (x - self.images.mean[0]) / self.images.std[0], self.images.y[index]


def plain_loop(models_to_train: int) -> float:
    """Seconds of the ordinary way for all 16 models of the demo, from `models_to_train` of them, all threads."""
    images, recipe = data.load("digits"), Recipe()
    member = data.paired_membership(16, len(images.y), labels=images.y.numpy())
    begun = time.perf_counter()
    for m in range(models_to_train):
        net = models.build("tinycnn", {}, in_channels=1, num_classes=10, size=8, seed=m).train()
        loader = DataLoader(
            Subset(Digits(images), np.flatnonzero(member[m]).tolist()), recipe.batch, shuffle=True, drop_last=True
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=recipe.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, total_steps=recipe.epochs * len(loader))
        for _ in range(recipe.epochs):
            total = 0.0
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.item()
    return (time.perf_counter() - begun) * 16 / models_to_train


def demo_pool() -> float:
    """Seconds of our training of the demo's pool, worker start-up included."""
    images = data.load("digits")
    with tempfile.TemporaryDirectory() as root:
        begun = time.perf_counter()
        training.train_pool(Recipe(), images, root=root, progress=False)
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--demo-only", action="store_true")
    parser.add_argument("--table-only", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(steps_per_second(*json.loads(options.child)))
        return
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}\n")
    if not options.table_only:
        runs = [(demo_pool(), plain_loop(3)) for _ in range(options.rounds)]
        ours, theirs = (statistics.median(side) for side in zip(*runs, strict=True))
        ratio = statistics.median(b / a for a, b in runs)
        print(f"demo pool (16 TinyCNN, digits, 20 epochs): {ours:.1f} s, a DataLoader loop each {theirs:.1f} s, {ratio:.1f}x\n")
    if not options.demo_only:
        rates = {(net, row): [] for net in NETS for row in ROWS}
        for _ in range(options.rounds):
            for net, row in rates:
                rates[net, row].append(throughput(net, row, options.seconds))
        print(f"| strategy | {' | '.join(NETS)} |\n|---|{'---|' * len(NETS)}")
        base = next(iter(ROWS))
        for row in ROWS:
            factors = [statistics.median(a / b for a, b in zip(rates[n, row], rates[n, base], strict=True)) for n in NETS]
            print(f"| {row} | {' | '.join(f'{f:.2f}' for f in factors)} |")
        shown = [f"{16e3 / statistics.median(rates[n, base]):.1f}" for n in NETS]
        print(f"| *one at a time, ms per step of all 16* | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
