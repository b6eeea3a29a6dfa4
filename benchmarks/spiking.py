"""One training step and one forward of a spiking ResNet18 by execution: step by step with snntorch
neurons, folded, and with the static prefix. Ratios within one run, interleaved
medians, and what autograd keeps for the backward pass.

    python benchmarks/spiking.py [--rounds 7] [--width 16] [--timesteps 4] [--batch 64] [--threads
    2]
"""

from __future__ import annotations

import copy
import statistics
from functools import partial

import snntorch
import torch
from common import options, report, rounds, table
from ordinary import kept
from torch import nn

from mia_nb import models
from mia_nb.models import snn


class Leaky(nn.Module):
    """snntorch's neuron at a site of our traced network."""

    def __init__(self):
        super().__init__()
        self.neuron = snntorch.Leaky(beta=1.0, init_hidden=True)

    def forward(self, x, timesteps, static):
        return self.neuron(x)


class Plain(nn.Module):
    """A traced network that is called with images only."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x, 1, False)


def networks(width: int, timesteps: int) -> dict[str, nn.Module]:
    """The same weights in every way of running them."""
    base = models.build(
        "resnet18", {"width": width}, in_channels=3, num_classes=10, size=32, seed=0
    )
    folded = snn.spiking(
        base, timesteps, beta=1.0, reset="soft", surrogate="atan", detach_reset=True
    )
    stepwise = copy.deepcopy(folded.net)
    for name in folded.spikes():
        setattr(stepwise, name, Leaky())
    return {
        "snntorch Leaky, step by step": snn.Stepwise(Plain(stepwise), timesteps),
        "fold": copy.deepcopy(folded),
        "fold, static prefix": copy.deepcopy(folded),
    }


def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor, backward: bool) -> None:
    if backward:
        nn.functional.cross_entropy(net(x), y).backward()
        net.zero_grad()
    else:
        with torch.inference_mode():
            net(x)


def main() -> None:
    parser = options(__doc__)
    for name, value in (
        ("rounds", 7),
        ("width", 16),
        ("timesteps", 4),
        ("batch", 64),
        ("threads", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.width, args.batch, args.threads = 1, 2, 2, 1
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    x, y = torch.randn(args.batch, 3, 32, 32), torch.randint(0, 10, (args.batch,))
    nets = networks(args.width, args.timesteps)
    # shown as events, so that nothing counts as the same at every step
    shown = {name: x.expand(args.timesteps, *x.shape) if name == "fold" else x for name in nets}
    with report("Spiking networks, one step", args.quick):
        runs = {
            (name, b): partial(step, net, shown[name], y, b)
            for name, net in nets.items()
            for b in (False, True)
        }
        middle = {
            run: statistics.median(seconds) for run, seconds in rounds(runs, args.rounds).items()
        }
        print(
            f"ResNet18 width {args.width}, batch {args.batch}, T = {args.timesteps}, 32x32,"
            f" {args.threads} threads, float32\n"
        )
        first, rows = next(iter(nets)), []
        for name, net in nets.items():
            factors = [f"x{middle[first, b] / middle[name, b]:.2f}" for b in (False, True)]
            rows.append([name, *factors, f"{kept(partial(net, shown[name])):.0f} MiB"])
        table(["variant", "forward", "forward and backward", "saved for backward"], rows)
        base = [1e3 * middle[first, b] for b in (False, True)]
        print(f"{first}: {base[0]:.0f} ms forward, {base[1]:.0f} ms forward and backward")


if __name__ == "__main__":
    main()
