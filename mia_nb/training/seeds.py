"""Random numbers of a training: each generator is seeded anew from words such as (seed, row, epoch,
purpose), so that a model depends neither on its companions nor on where a training was resumed.
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
    """A context that leaves torch's generators as it found them, those of all GPUs too, which
    `torch.manual_seed` seeds wherever a model lies.
    """
    on_gpu = device.type == "cuda" or torch.cuda.is_initialized()
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpu else [])
