"""The record of a trained pool, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mia_nb import models, store
from mia_nb.checks import checked, row_numbers, whole
from mia_nb.training import loop
from mia_nb.training.loop import DTYPES
from mia_nb.training.work import (
    load_images,
    masks,
    parent_of,
    read_weights,
    recipe_of,
    stopped_name,
    trace_name,
    weights_name,
)
from mia_nb.types import Images, Recipe

TRACE_LIMIT = 2**30  # bytes of loss traces that `Pool.traces` puts into memory


@dataclass(frozen=True, eq=False)
class Pool:
    """Trained models and who their members are; everything is read from `folder`, checksums
    verified.
    """

    recipe: Recipe
    key: str
    member: np.ndarray  # (M, N) bool
    population: np.ndarray  # (N,) bool: set aside before training
    folder: store.Folder
    epoch: int | None = None  # None: the weights at the end of training

    @property
    def status(self) -> list[str]:
        """Per row: "trained", "diverged in epoch e", or "missing"."""
        files, found = self.folder.files(), []
        for m in range(len(self.member)):
            if f"diverged_{m:03d}.json" in files:
                epoch = self.folder.read_json(f"diverged_{m:03d}.json", epoch=int)["epoch"]
                found.append(f"diverged in epoch {epoch}")
            else:
                found.append("trained" if weights_name(m) in files else "missing")
        return found

    @property
    def sampling(self) -> dict:
        """{"sample_rate", "steps"} of a row's training up to `epoch`, see `training.sampling`."""
        done = self.recipe.replace(epochs=self.epoch or self.recipe.epochs)
        return loop.sampling(done, loop.expected_members(self.recipe, self.member))

    @property
    def held_out(self) -> np.ndarray:
        """(N,) bool: images set aside that a defense of this pool or of one it was derived from
        saw; no population any more.

        ValueError for a derived pool whose parent is gone: which images that one's defense saw
        stands there alone.
        """
        numbers = loop.held_out(self.recipe, self.population)
        own = np.isin(np.arange(len(self.population)), [] if numbers is None else numbers)
        try:
            parent = self.parent
        except ValueError as error:
            raise ValueError(
                f"pool {self.folder.path.name} was derived from one that must lie beside it, or"
                f" nobody knows which images its defense saw: {error}"
            ) from error
        return own if parent is None else own | parent.held_out

    @property
    def stopped(self) -> list[int] | None:
        """Per row the epoch at which early stopping took its weights; None for other pools, 0 for a
        row that diverged.
        """
        if self.recipe.defense != "early_stopping":
            return None
        files = self.folder.files()
        names = [stopped_name(m) for m in range(len(self.member))]
        return [
            self.folder.read_json(name, epoch=int)["epoch"] if name in files else 0
            for name in names
        ]

    @cached_property
    def traces(self) -> np.ndarray | None:
        """(M, E, N) float16 natural logarithms of per-sample training losses, from 1e-10 up; NaN
        where a row did not train on a sample in that epoch. None where they would take more than 1
        GiB: read `trace(m)` one by one then."""
        models, samples = self.member.shape
        if models * self.recipe.epochs * samples * 2 > TRACE_LIMIT:
            return None
        return np.stack([self.trace(m) for m in range(models)])

    def trace(self, model: int) -> np.ndarray:
        """(E, N) of one row, as `traces`; all NaN for a row that was not trained to its end."""
        full = np.full((self.recipe.epochs, self.member.shape[1]), np.nan, np.float16)
        if self.status[model] == "trained":
            own = self.member[model]
            full[:, own] = self.folder.read_array(
                trace_name(model), "f", (len(full), int(own.sum()))
            )
        return full

    def at(self, epoch: int) -> Pool:
        """The same pool with the weights that it had after this epoch; ValueError for one that was
        not kept.
        """
        if whole("epoch", epoch, 0) not in (kept := [*self.recipe.snapshots, self.recipe.epochs]):
            raise ValueError(
                f"epoch {epoch} of pool {self.folder.path.name} was not kept; there are"
                f" {', '.join(map(str, kept))} (snapshots= of the recipe says which)"
            )
        return replace(self, epoch=None if epoch == self.recipe.epochs else epoch)

    def weights_name(self, model: int) -> str:
        """Name of the file that holds a row's weights."""
        return weights_name(model, self.epoch)

    def state(self, model: int) -> dict[str, torch.Tensor]:
        """State dictionary of one row. Raises store.Corrupt where the file was altered."""
        model = int(row_numbers("model", model, len(self.member))[0])
        if (status := self.status[model]) != "trained":
            raise ValueError(
                f"model {model} of pool {self.key[:12]} is {status}; train the pool again with"
                " another recipe"
            )
        return read_weights(self.folder, self.weights_name(model))

    def fill(self, module: nn.Module, model: int) -> None:
        """Put one row's weights into a network of this pool.

        Raises store.Corrupt where they are of another network.
        """
        state = self.state(model)
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise self.folder.corrupt(self.weights_name(model), error) from error

    def model(self, model: int) -> nn.Module:
        """One row as a module in evaluation mode, on the CPU, in the recipe's dtype."""
        if self.folder.record.get("builder", "") != models.source(
            self.recipe.model, self.recipe.model_args
        ):
            raise ValueError(
                f"the code of {self.recipe.model} is not the one pool {self.key[:12]} was trained"
                " with; train it again"
            )
        module = loop.build(self.recipe, self._images, model).to(DTYPES[self.recipe.dtype])
        self.fill(module, model)
        return module.eval()

    @property
    def parent(self) -> Pool | None:
        """The pool this one was derived from; ValueError where it is gone or has other weights
        now.
        """
        folder = parent_of(self.folder)
        return None if folder is None else load_pool(folder.key, folder.path.parent)

    def images(self) -> Images:
        """The images, from the pool's own folder."""
        return self._images

    @cached_property
    def _images(self) -> Images:
        return load_images(self.folder)


@checked
def load_pool(prefix: str, root: str | Path = "results") -> Pool:
    """The pool whose key or folder name starts with the prefix.

    Raises ValueError for none, several, or an unfinished one.
    """
    folder = store.find(prefix, root, "pool")
    member, population = masks(folder)
    pool = Pool(recipe_of(folder), folder.key, member, population, folder)
    if (left := pool.status.count("missing")) > 0:
        raise ValueError(
            f"pool {folder.path.name} lacks {left} of its {len(member)} models: run its training"
            " again to finish it"
        )
    return pool


@checked
def ancestor(pool: Pool) -> Pool:
    """The pool at the start of the chain of parents: the pool itself where it was trained from
    nothing.
    """
    while (parent := pool.parent) is not None:
        pool = parent
    return pool
