"""What privacy costs in time: a training step under each defense over an undefended one,
accountants, audits.

    python benchmarks/privacy.py [--rounds 3]

Rounds are interleaved after a warm-up, one thread, medians are printed.
"""

from __future__ import annotations

import statistics
import warnings
from functools import partial

import numpy as np
import torch
from common import options, report, rounds, table

from mia_nb import accounting, data, training
from mia_nb.auditing.one_run import one_run
from mia_nb.types import Recipe

warnings.filterwarnings("ignore", module="opacus")
TRAINED = ("l1", "l2", "dropout", "label_smoothing", "relaxloss", "mmd_mixup", "dp_sgd")
DEFENSES = {None: {}} | {name: {} for name in TRAINED} | {"mmd_mixup": {"held_out": 1}}
NETWORKS = {  # name: (model, arguments, batch, a CIFAR-sized image?)
    "TinyCNN, digits": ("tinycnn", {"width": 16}, 64, False),
    "ResNet-14 w16, 32x32": ("resnet14", {"width": 16}, 64, True),
    "SDENet w8, 8 steps, digits": ("sdenet", {"width": 8, "steps": 8}, 64, False),
}
# noise multiplier, sample rate, steps
SETTINGS = ((2.0, 512 / 25000, 14700), (1.0, 0.00512, 19600), (0.8, 0.01, 1000))


def medians(runs: dict, count: int) -> list[float]:
    return [statistics.median(seconds) for seconds in rounds(runs, count).values()]


def steps(count: int, networks: dict) -> None:
    """Seconds of one optimiser step, as factors over the undefended one of the same network."""
    factors: dict = {name: [] for name in DEFENSES}
    digits = data.load("digits")
    coloured = data.load("synthetic:classes=10,n=400,size=32,channels=3")
    for model, args, batch, colour in networks.values():
        taken: dict = {name: [] for name in DEFENSES}
        for _ in range(count):
            for name, settings in DEFENSES.items():
                recipe = Recipe(
                    model=model, model_args=args, batch=batch, defense=name, defense_args=settings
                )
                cost = training.step_cost(
                    recipe, coloured if colour else digits, samples=batch, device="cpu"
                )
                taken[name].append(cost["seconds"])
        for name, values in taken.items():
            factors[name].append(
                (
                    statistics.median(values) / statistics.median(taken[None]),
                    statistics.median(values),
                )
            )
    rows = [
        [
            name or "*none*",
            *(
                f"{1e3 * seconds:.1f} ms" if name is None else f"{factor:.2f}"
                for factor, seconds in values
            ),
        ]
        for name, values in factors.items()
    ]
    table(["defense", *networks], rows)


def accountants(count: int) -> None:
    rows = []
    for noise, rate, steps in SETTINGS:
        runs = {
            name: partial(account, noise, rate, steps, 1e-5)
            for name, account in accounting.ACCOUNTANTS.items()
        }
        rows.append(
            [
                f"{noise:g}, {rate:.5f}, {steps}",
                *(f"{1e3 * seconds:.0f} ms" for seconds in medians(runs, count)),
            ]
        )
    table(["noise, rate, steps (delta 1e-5)", *accounting.ACCOUNTANTS], rows)


def audits(count: int) -> None:
    """Seconds of a one-run audit of 50,000 canaries, the grid of guesses included."""
    rng = np.random.default_rng(0)
    member = rng.random(50_000) < 0.5
    score = rng.normal(size=50_000) + member
    runs = {
        name: partial(one_run, score, member, delta=1e-5, method=name)
        for name in ("steinke", "fdp")
    }
    taken = ", ".join(
        f"{name} {1e3 * seconds:.0f} ms"
        for name, seconds in zip(runs, medians(runs, count), strict=True)
    )
    print(f"One-run audit, 50,000 canaries: {taken}")


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    count = 1 if args.quick else args.rounds
    torch.set_num_threads(1)
    with report("What privacy costs in time", args.quick):
        steps(count, dict(list(NETWORKS.items())[:1]) if args.quick else NETWORKS)
        accountants(count)
        audits(count)
