"""What privacy costs in time: a training step under each defense over an undefended one, accountants, audits.

    python benchmarks/privacy.py [--rounds 3]

Rounds are interleaved after a warm-up, one thread, medians are printed.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import warnings
from functools import partial

import numpy as np
import torch

from mia_nb import accounting, auditing, data, training
from mia_nb.types import Recipe

warnings.filterwarnings("ignore", module="opacus")
TRAINED = ("l1", "l2", "dropout", "label_smoothing", "relaxloss", "mmd_mixup", "dp_sgd")
DEFENSES = {None: {}} | {name: {} for name in TRAINED} | {"mmd_mixup": {"held_out": 1}}
NETWORKS = {  # name: (model, arguments, batch, a CIFAR-sized image?)
    "TinyCNN, digits": ("tinycnn", {"width": 16}, 64, False),
    "ResNet-14 w16, 32x32": ("resnet14", {"width": 16}, 64, True),
    "SDENet w8, 8 steps, digits": ("sdenet", {"width": 8, "steps": 8}, 64, False),
}
SETTINGS = ((2.0, 512 / 25000, 14700), (1.0, 0.00512, 19600), (0.8, 0.01, 1000))  # noise multiplier, sample rate, steps


def timed(run) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def medians(runs: dict, rounds: int) -> dict:
    """Median seconds of each of `runs`, interleaved, after one warm-up."""
    taken: dict = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            seconds = timed(run)
            if turn:
                taken[name].append(seconds)
    return {name: statistics.median(values) for name, values in taken.items()}


def steps(rounds: int) -> None:
    """Seconds of one optimiser step, as factors over the undefended one of the same network."""
    print("| defense | " + " | ".join(NETWORKS) + " |\n|---|" + "---|" * len(NETWORKS))
    factors: dict = {name: [] for name in DEFENSES}
    digits = data.load("digits")
    coloured = data.load("synthetic:classes=10,n=400,size=32,channels=3")
    for model, args, batch, colour in NETWORKS.values():
        taken: dict = {name: [] for name in DEFENSES}
        for _ in range(rounds):
            for name, options in DEFENSES.items():
                recipe = Recipe(model=model, model_args=args, batch=batch, defense=name, defense_args=options)
                cost = training.step_cost(recipe, coloured if colour else digits, samples=batch, device="cpu")
                taken[name].append(cost["seconds"])
        for name, values in taken.items():
            factors[name].append((statistics.median(values) / statistics.median(taken[None]), statistics.median(values)))
    for name, values in factors.items():
        cells = [f"{1e3 * seconds:.1f} ms" if name is None else f"{factor:.2f}" for factor, seconds in values]
        print(f"| {name or '*none*'} | {' | '.join(cells)} |")


def accountants(rounds: int) -> None:
    print("\n| noise, rate, steps (delta 1e-5) | " + " | ".join(accounting.ACCOUNTANTS) + " |\n|---|" + "---|" * 3)
    for noise, rate, count in SETTINGS:
        runs = {name: partial(account, noise, rate, count, 1e-5) for name, account in accounting.ACCOUNTANTS.items()}
        cells = [f"{1e3 * seconds:.0f} ms" for seconds in medians(runs, rounds).values()]
        print(f"| {noise:g}, {rate:.5f}, {count} | {' | '.join(cells)} |")


def audits(rounds: int) -> None:
    """Seconds of a one-run audit of 50,000 canaries, the grid of guesses included."""
    rng = np.random.default_rng(0)
    member = rng.random(50_000) < 0.5
    score = rng.normal(size=50_000) + member
    runs = {name: partial(auditing.one_run, score, member, delta=1e-5, method=name) for name in ("steinke", "fdp", "xiang")}
    taken = ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in medians(runs, rounds).items())
    print(f"\nOne-run audit, 50,000 canaries: {taken}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}\n")
    steps(rounds)
    accountants(rounds)
    audits(rounds)
