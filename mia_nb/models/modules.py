"""Checks, modes and hooks for any network."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from mia_nb.data import normalise
from mia_nb.types import Images

# layers that drop some of their input in train mode and none in eval mode
DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def timesteps(module: nn.Module) -> int | None:
    """T of a spiking network, a module with `timesteps` whose forward(x, per_step=True) gives (T,
    B, K); None for any other network.
    """
    steps = getattr(module, "timesteps", None)
    if steps is None or "per_step" not in inspect.signature(module.forward).parameters:
        return None
    return steps


def check_width(module: nn.Module, images: Images) -> nn.Module:
    """The module itself, if two of the images give outputs of shape (2, num_classes), and a spiking
    network keeps its time steps apart (`SNN.check_steps`).

    Parameters:
        module: in any mode; it runs in eval mode without gradient, so neither BatchNorm statistics
            nor the module's mode change.
        images: they give the number of classes.

    Raises:
        ValueError: of one line, where the module fails, its outputs are of another shape, or it
            mixes time steps.
    """
    probe = _two_images(module, images)
    with evaluating(module):
        output = _tried(module, probe, "")
    wanted = (len(probe), len(images.classes))
    came = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if came != wanted:
        raise ValueError(
            f"the model gives {came} for two images; wanted {wanted}: one logit for each of"
            f" {wanted[1]} classes"
        )
    if hasattr(module, "check_steps"):
        module.check_steps(probe)
    return module


def _two_images(module: nn.Module, images: Images) -> torch.Tensor:
    """The first two images as the module takes them."""
    weight = next(module.parameters(), torch.zeros(()))
    return normalise(images.x[:2].to(weight.device), images.mean, images.std, weight.dtype)


def _tried(module: nn.Module, probe: torch.Tensor, mode: str) -> Any:
    """The module's output for two images; ValueError of one line, which names the mode, where it
    fails.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            return module(probe)
    except Exception as error:
        raise ValueError(
            f"the model fails{mode} on two images of shape {tuple(probe.shape[1:])}:"
            f" {first_line(error)}"
        ) from error


def main_logits(output: Any) -> torch.Tensor:
    """The logits in a network's output in training mode.

    Parameters:
        output: logits, or a record with a field `logits`. torchvision's googlenet and inception_v3
            give such a record, which also holds the logits of auxiliary heads; they are ignored.
    """
    return output if isinstance(output, torch.Tensor) else getattr(output, "logits", output)


def check_training(module: nn.Module, images: Images) -> None:
    """ValueError of one line for a module that gives no logits (2, num_classes) of two images in
    training mode.

    Parameters:
        module: runs in training mode without gradient; its mode and buffers are restored.
        images: they give the number of classes.
    """
    probe = _two_images(module, images)
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with _modes_kept(module), torch.no_grad():
            output = _tried(module.train(), probe, " in training mode")
    finally:
        for buffer, value_before in buffers:
            buffer.data = value_before
    logits = main_logits(output)
    wanted = (len(probe), len(images.classes))
    came = tuple(logits.shape) if isinstance(logits, torch.Tensor) else f"a {type(output).__name__}"
    if came != wanted:
        raise ValueError(
            f"the model gives {came} for two images in training mode; wanted logits {wanted}, or a"
            " named tuple whose field logits they are: return the logits alone"
        )


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradient; the mode of each part is restored at the end."""
    with _modes_kept(module), torch.no_grad():
        module.eval()
        yield


@contextlib.contextmanager
def _modes_kept(module: nn.Module) -> Iterator[None]:
    """At the end, each part is in the mode that it had at the start."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextlib.contextmanager
def watched(
    parts: Iterable[tuple[str, nn.Module]],
    see: Callable[[str, nn.Module, tuple, torch.Tensor], None],
) -> Iterator[None]:
    """Call a function whenever parts of a network run.

    Parameters:
        parts: (name, module) of each.
        see: called as see(name, module, inputs, output).
    """
    handles = [part.register_forward_hook(partial(see, name)) for name, part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def same_draws(device: torch.device) -> Iterator[None]:
    """Random numbers of seed 0; torch's generators, also that of this device, are restored."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_global_generator(0, device)
        yield


def seed_global_generator(seed: int, device: torch.device) -> None:
    """Seed torch's global generator, from which networks on this device draw.

    Parameters:
        seed: of the generator.
        device: of the networks. On a CPU the generators of GPUs stay as they are:
            `torch.manual_seed` seeds them all, and where no GPU was used yet it notes the whole
            call stack for later, which takes milliseconds.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def first_line(error: Exception) -> str:
    """The first line of an exception's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
