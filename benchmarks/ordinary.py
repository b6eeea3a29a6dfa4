"""The base of comparison: a training loop as an ordinary user of PyTorch writes it; what a step
keeps for its backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from mia_nb import data
from mia_nb.types import Images, Recipe

# a Dataset that converts on access; a TensorDataset, converted and normalised beforehand
WAYS = ("dataset", "tensors")


class Pictures(Dataset):
    """One image at a time, converted and normalised on access, as a data set class usually is."""

    def __init__(self, images: Images, transform: Callable[[Tensor], Tensor] = lambda x: x):
        self.images, self.transform = images, transform
        self.mean, self.std = (
            torch.tensor(values)[:, None, None] for values in (images.mean, images.std)
        )

    def __len__(self) -> int:
        return len(self.images.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = self.transform(self.images.x[index]).float().div(255)
        return (x - self.mean) / self.std, self.images.y[index]


def loader(way: str, images: Images, member: np.ndarray, batch: int, **options) -> DataLoader:
    """Shuffled batches of a model's members, member (N,) bool; options: of DataLoader, and
    `transform`.
    """
    if way == "dataset":
        transform = {"transform": options.pop("transform")} if "transform" in options else {}
        source = Subset(Pictures(images, **transform), np.flatnonzero(member).tolist())
    else:
        source = TensorDataset(
            data.normalise(images.x[member], images.mean, images.std), images.y[member]
        )
    return DataLoader(source, batch, shuffle=True, drop_last=True, **options)


def training(
    net: nn.Module, batches: DataLoader, recipe: Recipe, device: str = "cpu"
) -> Iterator[float]:
    """Train by the recipe's SGD and one-cycle schedule; yields the mean loss after each epoch."""
    settings = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    optimizer = torch.optim.SGD(net.to(device).train().parameters(), lr=recipe.lr, **settings)
    total = {
        "total_steps": recipe.epochs * len(batches),
        "cycle_momentum": False,
        "final_div_factor": 400,
    }
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.lr, **total)
    for _ in range(recipe.epochs):
        running = 0.0
        for x, y in batches:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            running += loss.item()
        yield running / len(batches)


def kept(work: Callable[[], object]) -> float:
    """MiB that autograd holds for the backward pass of what `work` returns; parameters do not
    count.
    """
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = work()  # noqa: F841  keeps the graph alive
    return sum(sizes.values()) / 2**20
