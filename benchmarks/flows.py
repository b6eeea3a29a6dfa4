"""Neural ODE and SDE classifiers: one flow block by solver, a stack of networks against one by one,
an epoch of whole networks.

    python benchmarks/flows.py [--rounds 3] [--threads 1] [--only block|stack|epoch]

Rounds are interleaved after a warm-up, medians are printed. On a CPU an epoch is counted out of
single steps and the memory is that of the activations; on a GPU both are measured.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torchdiffeq
import torchsde
from common import options, report, rounds, table, timed
from ordinary import kept
from torch import Tensor, nn

from mia_nb import data, training
from mia_nb.models.neural_de import Drift
from mia_nb.models.solvers import integrate, sigma
from mia_nb.training import loop
from mia_nb.types import Images, Recipe

STEPS, K, TOLERANCE = 16, 0.5, 1e-3
SDE = {"k": K, "steps": STEPS, "method": "rk4"}
# rows of Table VI of Hong, Wu, Gruber and Lee (arXiv 2501.06686): an epoch's seconds and MB on
# their GPU
NETWORKS = {
    "ResNet-14": ("resnet14", {}, 10, 941),
    "ODENet, Euler": ("odenet", {"steps": STEPS}, 23, 1305),
    "SDENet, RK4": ("sdenet", SDE, 30, 5051),
    "ResNet-14, last group replaced, RK4": (
        "replaced",
        {"base": "resnet14", "base_args": {}, **SDE},
        15,
        1575,
    ),
}
STACKS = {  # on digits, one thread
    "odenet w8, 8 steps": ("odenet", {"width": 8, "steps": 8}),
    "odenet w16, 8 steps": ("odenet", {"width": 16, "steps": 8}),
    "sdenet w8, 8 steps": ("sdenet", {"width": 8, "steps": 8, "k": K}),
}


class Flat(nn.Module):
    """A drift with constant diffusion on states (B, d), as torchsde wants them."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self, drift: Drift, shape: torch.Size):
        super().__init__()
        self.drift, self.shape = drift, shape

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return self.drift(t, y.view(-1, *self.shape)).flatten(1)

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.full_like(y, sigma(K, STEPS))


def solvers(drift: Drift, device: torch.device) -> dict[str, Callable[[Tensor], Tensor]]:
    """h(0) -> h(1) of the same drift, the own loop first."""
    times = torch.tensor([0.0, 1.0], device=device)

    def own(method: str, k: float, h: Tensor) -> Tensor:
        return integrate(drift, h, steps=STEPS, method=method, k=k)

    def diffeq(method: str, h: Tensor, solve=torchdiffeq.odeint, **options) -> Tensor:
        return solve(drift, h, times, method=method, rtol=TOLERANCE, atol=TOLERANCE, **options)[-1]

    def sde(h: Tensor) -> Tensor:
        problem = Flat(drift, h.shape[1:])
        return torchsde.sdeint(problem, h.flatten(1), times, method="euler", dt=1 / STEPS)[
            -1
        ].view_as(h)

    grid = {"options": {"step_size": 1 / STEPS}}
    return {
        "own Euler": partial(own, "euler", 0.0),
        "torchdiffeq Euler": partial(diffeq, "euler", **grid),
        "own RK4": partial(own, "rk4", 0.0),
        "torchdiffeq RK4": partial(diffeq, "rk4", **grid),
        "torchdiffeq dopri5": partial(diffeq, "dopri5"),
        "torchdiffeq dopri5, adjoint": partial(diffeq, "dopri5", solve=torchdiffeq.odeint_adjoint),
        "own Euler-Maruyama": partial(own, "euler", K),
        "own stoch_rk4": partial(own, "stoch_rk4", K),
        "torchsde Euler": sde,
    }


def wait_for(device: torch.device) -> Callable[[], object]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def medians(work: dict, count: int, device: torch.device, warm: int = 0) -> dict:
    """Seconds by name, the rounds interleaved."""
    taken = rounds(work, count, warm=warm, wait=wait_for(device))
    return {name: statistics.median(spent) for name, spent in taken.items()}


def block(count: int, device: torch.device, quick: bool) -> None:
    """One block of 64 channels on 8x8, batch 64, 16 steps."""
    torch.manual_seed(0)
    channels, batch = (4, 2) if quick else (64, 64)
    drift, h = (
        Drift(channels, channels).to(device),
        torch.randn(batch, channels, 8, 8, device=device),
    )

    def forward(solve, h=h) -> None:
        with torch.no_grad():
            solve(h)

    def both(solve, h=h) -> None:
        solve(h.clone().requires_grad_()).square().sum().div(len(h)).backward()

    def saved(solve) -> float:
        return kept(lambda: solve(h.clone().requires_grad_()))

    ways = solvers(drift, device)
    for solve in ways.values():
        both(solve, h if device.type == "cuda" else h[:2])  # warms up
    work = {
        (name, once): partial(once, solve)
        for name, solve in ways.items()
        for once in (forward, both)
    }
    taken = medians(work, count, device)
    first, base = next(iter(ways)), saved(ways["own Euler"])
    spent = [1e3 * taken[first, once] for once in (forward, both)]
    print(
        f"block of {channels} channels, 8x8, batch {batch}, {STEPS} steps, k = {K}, tolerance"
        f" {TOLERANCE}, random weights"
    )
    print(
        f"{first}: {spent[0]:.0f} ms forward, {spent[1]:.0f} ms forward and backward, {base:.1f}"
        " MiB saved\n"
    )
    rows = []
    for name, solve in ways.items():
        factors = [taken[name, once] / taken[first, once] for once in (forward, both)]
        rows.append([name, *(f"{factor:.2f}" for factor in (*factors, saved(solve) / base))])
    table(["solver", "forward", "forward and backward", "saved for backward"], rows)


def groups(model: str, args: dict, device: torch.device) -> dict[str, Callable[[], object]]:
    """One optimiser step of eight networks on digits, together and one after another."""
    images, count = data.load("digits"), 8
    images = images._replace(x=images.x.to(device), y=images.y.to(device))
    recipe = training.train.complete(
        Recipe(model=model, model_args=args, num_models=count, batch=32)
    )
    member = data.paired_membership(count, len(images.y), labels=images.y.cpu().numpy())
    plan = loop.Plan(recipe, images, member, device, False, device.type == "cpu")
    stacked = loop.Group(plan._replace(stacked=True, channels_last=False), list(range(count)))
    plain = [loop.Group(plan, [m]) for m in range(count)]
    x = data.normalise(images.x[:32], images.mean, images.std).expand(count, -1, -1, -1, -1)
    y = images.y[:32].expand(count, -1)
    for group in (stacked, *plain):
        group.seed_noise(0)
    return {
        "plain": lambda: [group.step(x[:1], y[:1], 1e-3) for group in plain],
        "stacked": lambda: stacked.step(x.contiguous(), y, 1e-3),
    }


def stack(count: int, device: torch.device, quick: bool) -> None:
    """Stacked training against one by one, in one process."""
    print("eight networks on digits, batch 32, one process: ms per model and step\n")
    rows = []
    for name, (model, args) in list(STACKS.items())[: 1 if quick else None]:
        taken = medians(groups(model, args, device), 3 * count, device, warm=1)
        each = [1e3 * taken[kind] / 8 for kind in ("plain", "stacked")]
        rows.append([name, f"{each[0]:.1f}", f"{each[1]:.1f}", f"{each[0] / each[1]:.2f}"])
    table(["network", "one by one", "stacked by 8", "ratio"], rows)


def measured_epoch(recipe: Recipe, images: Images, device: torch.device) -> tuple[float, float]:
    """Seconds of a whole epoch of one model after another one, and the most MiB that were allocated
    during it.
    """
    recipe = training.train.complete(recipe)
    images = images._replace(x=images.x.to(device), y=images.y.to(device))
    member = np.arange(len(images.y))[None] < len(images.y) // 2
    group = loop.Group(loop.Plan(recipe, images, member, device, False, True), [0])
    group.epoch(0, [])
    torch.cuda.reset_peak_memory_stats(device)
    taken = timed(lambda: group.epoch(1, [[1.0]]), wait_for(device))
    return taken, torch.cuda.max_memory_allocated(device) / 2**20


def epoch(count: int, device: torch.device, quick: bool) -> None:
    """Whole networks on 32x32 colour images, 25,000 of them an epoch: Table VI of the study."""
    gpu, costs = device.type == "cuda", {name: [] for name in NETWORKS}
    batch = 2 if quick else 512 if gpu else 32
    images = data.load(
        f"synthetic:n={50_000 if gpu and not quick else 200},size=32,channels=3,classes=10"
    )
    recipes = {
        name: Recipe(
            model=m, model_args=args, num_models=1, split="bernoulli", epochs=300, batch=batch
        )
        for name, (m, args, *_) in NETWORKS.items()
    }
    for _ in range(count):
        for name, recipe in recipes.items():
            if gpu:
                costs[name].append(measured_epoch(recipe, images, device))
            else:
                cost = training.step_cost(recipe, images, samples=25_000, repeats=1, device="cpu")
                costs[name].append((cost["seconds"], cost["memory_mib"]))
    how = (
        "an epoch of 25,000 images, measured"
        if gpu
        else "one step in each round, times the steps of 25,000 images"
    )
    print(
        f"whole networks, 32x32, width 32, batch {batch}: {how}; memory:"
        f" {'peak' if gpu else 'activations of one step'}\n"
    )
    found, rows = (
        {
            name: [statistics.median(side) for side in zip(*each, strict=True)]
            for name, each in costs.items()
        },
        [],
    )
    (base, room), (_, _, first, most) = found["ResNet-14"], NETWORKS["ResNet-14"]
    for name, (spent, memory) in found.items():
        _, _, theirs, mb = NETWORKS[name]
        published = f"{theirs}, {mb} ({theirs / first:.1f}, {mb / most:.1f})"
        rows.append(
            [
                name,
                f"{spent:.0f}",
                f"{spent / base:.1f}",
                f"{memory:.0f}",
                f"{memory / room:.1f}",
                published,
            ]
        )
    table(
        ["network", "seconds an epoch", "ratio", "MiB", "ratio", "published s, MB (ratios)"], rows
    )


PARTS = {"block": block, "stack": stack, "epoch": epoch}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=PARTS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with report(f"Flows, {args.threads} of {os.cpu_count()} cores", args.quick):
        for name in [args.only] if args.only else PARTS:
            PARTS[name](1 if args.quick else args.rounds, device, args.quick)


if __name__ == "__main__":
    main()
