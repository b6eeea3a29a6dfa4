"""One training step and one forward of a spiking ResNet18 by execution: step by step with snntorch neurons, folded, with the
static prefix, with compiled neurons. Ratios within one run, interleaved medians, and what autograd keeps for the backward pass.

    python benchmarks/spiking.py [--rounds 7] [--width 16] [--timesteps 4] [--batch 64] [--threads 2]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import snntorch
import torch
from torch import nn

from mia_nb import models
from mia_nb.models import neurons, snn


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
    base = models.build("resnet18", {"width": width}, in_channels=3, num_classes=10, size=32, seed=0)
    folded = snn.spiking(base, timesteps, beta=1.0, reset="soft", surrogate="atan", detach_reset=True)
    stepwise = copy.deepcopy(folded.net)
    for name in folded.spikes():
        setattr(stepwise, name, Leaky())
    return {
        "snntorch Leaky, step by step": snn.Stepwise(Plain(stepwise), timesteps),
        "fold": copy.deepcopy(folded),
        "fold, static prefix": copy.deepcopy(folded),
        "fold, static prefix, compiled neurons": copy.deepcopy(folded).compile_neurons(),
    }


def step(name: str, net: nn.Module, x: torch.Tensor, y: torch.Tensor, timesteps: int, backward: bool) -> float:
    """Seconds."""
    if name == "fold":  # shown as events, so that nothing counts as the same at every step
        x = x.expand(timesteps, *x.shape)
    begun = time.perf_counter()
    if backward:
        nn.functional.cross_entropy(net(x), y).backward()
        net.zero_grad()
    else:
        with torch.inference_mode():
            net(x)
    return time.perf_counter() - begun


def kept(name: str, net: nn.Module, x: torch.Tensor, timesteps: int) -> float:
    """MiB saved for the backward pass."""
    sizes: dict[int, int] = {}

    def pack(tensor):
        if not isinstance(tensor, nn.Parameter):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = net(x.expand(timesteps, *x.shape) if name == "fold" else x)  # noqa: F841  keeps the graph alive
    return sum(sizes.values()) / 2**20


def neuron_alone(rounds: int, timesteps: int) -> None:
    x = torch.randn(timesteps, 64, 16, 32, 32, requires_grad=True)
    times = {False: [], True: []}
    for _ in range(rounds + 1):
        for compiled, seconds in times.items():
            begun = time.perf_counter()
            neurons.multistep(x, torch.tensor(1.0), torch.tensor(0.5), compiled=compiled).sum().backward()
            seconds.append(time.perf_counter() - begun)
    plain, fused = (statistics.median(t[1:]) for t in times.values())
    print(f"\nneuron alone, {tuple(x.shape)}, forward and backward: {1e3 * plain:.0f} ms, compiled x{plain / fused:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("rounds", 7), ("width", 16), ("timesteps", 4), ("batch", 64), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    x, y = torch.randn(args.batch, 3, 32, 32), torch.randint(0, 10, (args.batch,))
    nets = networks(args.width, args.timesteps)
    times: dict = {(name, backward): [] for name in nets for backward in (False, True)}
    for round_ in range(args.rounds + 1):
        for (name, backward), seconds in times.items():
            spent = step(name, nets[name], x, y, args.timesteps, backward)
            seconds += [spent] if round_ else []
    first = next(iter(nets))
    print(f"ResNet18 width {args.width}, batch {args.batch}, T = {args.timesteps}, 32x32, {args.threads} threads, float32\n")
    print("| variant | forward | forward and backward | saved for backward |\n|---|---|---|---|")
    for name, net in nets.items():
        ratios = [statistics.median(times[first, b]) / statistics.median(times[name, b]) for b in (False, True)]
        print(f"| {name} | x{ratios[0]:.2f} | x{ratios[1]:.2f} | {kept(name, net, x, args.timesteps):.0f} MiB |")
    base = [1e3 * statistics.median(times[first, b]) for b in (False, True)]
    print(f"\n{first}: {base[0]:.0f} ms forward, {base[1]:.0f} ms forward and backward")
    neuron_alone(args.rounds, args.timesteps)


if __name__ == "__main__":
    main()
