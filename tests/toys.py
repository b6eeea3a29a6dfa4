"""Model builders that tests name as "toys:function", good ones and bad ones."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn


def mlp(in_channels, num_classes, size, width=8):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(in_channels * size[0] * size[1], width),
        nn.ReLU(),
        nn.Linear(width, num_classes),
    )


def dropout_mlp(in_channels, num_classes, size, p=0.5):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(in_channels * size[0] * size[1], 16),
        nn.Dropout(p),
        nn.Linear(16, num_classes),
    )


def softmax_mlp(in_channels, num_classes, size):
    return nn.Sequential(mlp(in_channels, num_classes, size), nn.Softmax(1))


class Branching(nn.Module):
    """Data-dependent control flow: cannot be stacked."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) if x.sum() > -1e9 else self.inner(-x)


def branching(in_channels, num_classes, size):
    return Branching(mlp(in_channels, num_classes, size))


class Constant(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, x):
        return self.bias.expand(len(x), -1) + 0 * x.flatten(1).sum(1, keepdim=True)


def constant(num_classes):
    return Constant(num_classes)


class AlwaysTraining(nn.BatchNorm1d):
    def forward(self, x):
        return nn.functional.batch_norm(x, None, None, self.weight, self.bias, training=True)


def train_mode(in_channels, num_classes, size):
    features = in_channels * size[0] * size[1]
    return nn.Sequential(nn.Flatten(), AlwaysTraining(features), nn.Linear(features, num_classes))


class Noisy(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        z = self.inner(x)
        return z + torch.randn_like(z)


def noisy(in_channels, num_classes, size):
    return Noisy(mlp(in_channels, num_classes, size))


class Running(nn.Module):
    """Puts a new tensor in its buffer's place at each training step."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean() + 1
        return self.inner(x) + 0 * self.mean


def running(in_channels, num_classes, size):
    return Running(mlp(in_channels, num_classes, size))


def frozen(in_channels, num_classes, size):
    net = mlp(in_channels, num_classes, size)
    net[1].weight.requires_grad_(False)
    return net


class Tied(nn.Module):
    def __init__(self, features, num_classes):
        super().__init__()
        self.down, self.again = nn.Linear(features, features), nn.Linear(features, features)
        self.again.weight = self.down.weight
        self.head = nn.Linear(features, num_classes)
        self.register_buffer("scratch", torch.ones(()), persistent=False)

    def forward(self, x):
        return self.head(torch.relu(self.again(torch.relu(self.down(x.flatten(1)))))) * self.scratch


def tied(in_channels, num_classes, size):
    return Tied(in_channels * size[0] * size[1], num_classes)


def functional_dropout(in_channels, num_classes, size):
    return FunctionalDropout(mlp(in_channels, num_classes, size))


class FunctionalDropout(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(nn.functional.dropout(x, 0.3, self.training))


def talkative(in_channels, num_classes, size):
    print("[INFO] building " + "x" * 1000)
    return mlp(in_channels, num_classes, size)


def tracking(in_channels, num_classes, size):
    """Its norm keeps running statistics of whole batches: no gradients per sample."""
    norm = nn.InstanceNorm2d(in_channels, affine=True, track_running_stats=True)
    return nn.Sequential(
        norm, nn.Flatten(), nn.Linear(in_channels * size[0] * size[1], num_classes)
    )


class Mixed(nn.Module):
    """Centres what it sees over the batch: no buffer, no layer that says so."""

    def forward(self, x):
        return x - x.mean(0)


def mixing(in_channels, num_classes, size):
    """Every answer depends on the companions in a batch."""
    inputs = in_channels * size[0] * size[1]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), Mixed(), nn.Linear(8, num_classes))


class Fused(nn.Module):
    """An MLP that notes every training step, and kills its process at a model's eighth where it
    finds a fuse.
    """

    def __init__(self, inner, place, pause):
        super().__init__()
        self.inner, self.place, self.pause, self.steps = inner, Path(place), pause, 0

    def forward(self, x):
        time.sleep(self.pause)
        if self.training and len(x) > 3:
            with open(self.place / "steps", "a") as file:
                file.write(f"{os.getpid()}\n")
            self.steps += 1
            if self.steps == 8:
                with contextlib.suppress(FileNotFoundError):
                    (self.place / "fuse").unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)


def fused(in_channels, num_classes, size, place, pause=0.0):
    return Fused(mlp(in_channels, num_classes, size), place, pause)


class Logits(NamedTuple):
    logits: torch.Tensor
    aux_logits: torch.Tensor


class TwoHeads(nn.Module):
    """Gives something else than logits in training mode."""

    def __init__(self, inner, aside, kind):
        super().__init__()
        self.inner, self.aside, self.kind = inner, aside, kind

    def forward(self, x):
        if not self.training:
            return self.inner(x)
        kinds = {
            "record": Logits,
            "dict": lambda z, aux: {"logits": z, "aux": aux},
            "tuple": lambda z, aux: (z, aux),
            "wide": lambda z, aux: torch.cat([z, aux], 1),
            "none": lambda z, aux: None,
        }
        return kinds[self.kind](self.inner(x), self.aside(x))


def two_heads(in_channels, num_classes, size, kind="record"):
    inner = mlp(in_channels, num_classes, size)
    return TwoHeads(inner, mlp(in_channels, num_classes, size), kind)
