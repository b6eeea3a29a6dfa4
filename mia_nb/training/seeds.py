"""Random numbers of a training. Each generator is seeded by words such as (seed, row, epoch,
purpose), so that a model depends neither on the other models nor on where a training was resumed.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager

import torch


def mix(*words: object) -> int:
    """A stable 63-bit seed from any words, e.g. mix(seed, model, epoch, "order")."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8], "big") >> 1


def generator(*words: object) -> torch.Generator:
    """A generator on the CPU, seeded by `mix` of the words."""
    return torch.Generator().manual_seed(mix(*words))


def random_state_kept(device: torch.device) -> AbstractContextManager:
    """A context that restores torch's generators afterwards: that of the CPU, and those of all GPUs
    where the model or anything else of this process uses them.
    """
    on_gpu = device.type == "cuda" or torch.cuda.is_initialized()
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpu else [])
