"""The record of a trained pool, read from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch
from torch import nn

from mia_nb import escape, models, store
from mia_nb.arguments import PathLike
from mia_nb.checks import checked, row_numbers, whole
from mia_nb.training import loop
from mia_nb.training.loop import DTYPES
from mia_nb.training.work import (
    load_images,
    masks,
    parent_of,
    read_weights,
    recipe_of,
    report_name,
    trace_name,
    weights_name,
)
from mia_nb.types import Images, Recipe

TRACE_LIMIT = 2**30  # bytes of loss traces that `Pool.traces` puts into memory


@dataclass(frozen=True, eq=False)
class Pool:
    """Trained models and who their members are, read from `folder`; every checksum is verified.

    Fields:
        recipe: what the models were trained by.
        key: sha256 (hex) of all that determines them; twelve letters of it name the folder.
        member: (M, N) bool, the images that each of M models trained on.
        population: (N,) bool, images set aside before training.
        folder: where the files lie, a `store.Folder`.
        epoch: that of the weights, None for the end of training; see `at`.
    """

    recipe: Recipe
    key: str
    member: np.ndarray
    population: np.ndarray
    folder: store.Folder
    epoch: int | None = None

    def __repr__(self) -> str:
        when = "" if self.epoch is None else f" after epoch {self.epoch}"
        models, images = self.member.shape
        name = escape.terminal(self.folder.path.name)
        return f"Pool {name}: {models} models{when}, {images:,} images"

    @property
    def status(self) -> list[str]:
        """What became of each row: "trained", "diverged in epoch e", or "missing"."""
        files = self.folder.files()
        status = []
        for m in range(len(self.member)):
            if f"diverged_{m:03d}.json" in files:
                epoch = self.folder.read_json(f"diverged_{m:03d}.json", epoch=int)["epoch"]
                status.append(f"diverged in epoch {epoch}")
            else:
                status.append("trained" if weights_name(m) in files else "missing")
        return status

    @property
    def sampling(self) -> dict:
        """{"sample_rate", "steps"} of a row's training up to `epoch`, see `training.sampling`."""
        done = self.recipe.replace(epochs=self.epoch or self.recipe.epochs)
        return loop.sampling(done, loop.expected_members(self.recipe, self.member))

    @property
    def held_out(self) -> np.ndarray:
        """(N,) bool: images set aside that a defense of this pool or of its ancestors looked at.

        They are no population any more.

        Raises:
            ValueError: the parent of a derived pool is gone, and only it knows its own.
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
        """The epoch at which early stopping took each row's weights, 0 for a row that diverged.

        None for pools without early stopping.
        """
        if self.recipe.defense != "early_stopping":
            return None
        names = [f"stopped_{m:03d}.json" for m in range(len(self.member))]
        read = partial(self.folder.read_json, epoch=int)
        return [read(name)["epoch"] if name in self.folder.files() else 0 for name in names]

    @cached_property
    def traces(self) -> np.ndarray | None:
        """(M, E, N) float16: natural logarithms of per-sample training losses in each of E epochs.

        From 1e-10 up; NaN where a row did not train on a sample in that epoch. None where they
        would take more than 1 GiB: read `trace(m)` one by one then.
        """
        models, samples = self.member.shape
        if models * self.recipe.epochs * samples * 2 > TRACE_LIMIT:
            return None
        return np.stack([self.trace(m) for m in range(models)])

    def trace(self, model: int) -> np.ndarray:
        """(E, N) of one row, as in `traces`; all NaN for a row not trained to its end.

        Parameters:
            model: the row's number, from 0.
        """
        full = np.full((self.recipe.epochs, self.member.shape[1]), np.nan, np.float16)
        if self.status[model] == "trained":
            own = self.member[model]
            full[:, own] = self.folder.read_array(
                trace_name(model), "f", (len(full), int(own.sum()))
            )
        return full

    def at(self, epoch: int) -> Pool:
        """The same pool with the weights that it had after this epoch.

        Parameters:
            epoch: one of `recipe.snapshots`, or the last.

        Raises:
            ValueError: the weights of this epoch were not kept.
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
        """State dictionary of one row, on the CPU.

        Parameters:
            model: the row's number, from 0.

        Raises:
            ValueError: the row diverged, or there is none of this number.
            store.Corrupt: the file was altered.
        """
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
        try:
            module.load_state_dict(self.state(model))
        except RuntimeError as error:
            raise self.folder.corrupt(self.weights_name(model), error) from error

    def model(self, model: int) -> nn.Module:
        """One row as a module in evaluation mode, on the CPU, in the recipe's dtype.

        It takes normalised images (B, C, H, W) and gives logits (B, K).

        Parameters:
            model: the row's number, from 0.

        Raises:
            ValueError: as `state`; or the code of a builder of your own is another one by now.
        """
        if self.folder.record.get("builder", "") != models.source(
            self.recipe.model, self.recipe.model_args
        ):
            raise ValueError(
                f"the code of {self.recipe.model} is not the one pool {self.key[:12]} was trained"
                " with; train it again"
            )
        module = loop.build(self.recipe, self.images(), model).to(DTYPES[self.recipe.dtype])
        self.fill(module, model)
        return module.eval()

    @property
    def parent(self) -> Pool | None:
        """The pool this one was derived from; None for one trained from nothing.

        Raises:
            ValueError: it is gone, or has other weights now.
        """
        folder = parent_of(self.folder)
        return None if folder is None else load_pool(folder.key, folder.path.parent)

    @property
    def ancestor(self) -> Pool:
        """The pool at the start of the chain of parents: itself where it was trained from nothing.

        Raises:
            ValueError: as `parent`.
        """
        return self if (parent := self.parent) is None else parent.ancestor

    def conversion_report(self) -> pd.DataFrame:
        """What the conversion to spiking networks fitted, a row for each model and site.

        Of a pool that was fine-tuned after a conversion, that conversion's.

        Returns:
            `model`, and the columns of `models.snn.convert(...).report`, among them the threshold,
            the expected error, the clipped mass and the firing rate of a site.

        Raises:
            ValueError: nothing was converted.
        """
        if not self.folder.has(report_name(0)):
            if self.recipe.model == "snn" and (parent := self.parent) is not None:
                return parent.conversion_report()
            raise ValueError(
                f"pool {self.folder.path.name} was not converted: there are no fitted thresholds"
                " to report"
            )
        read = partial(self.folder.read_json, columns=list, rows=list)
        reports = [read(report_name(m)) for m in range(len(self.member))]
        rows = [[m, *row] for m, report in enumerate(reports) for row in report["rows"]]
        table = pd.DataFrame(rows, columns=["model", *reports[0]["columns"]])
        return table.replace({None: np.nan}).infer_objects()

    def images(self) -> Images:
        """The images it was trained on, from the pool's own folder."""
        return self._images

    @cached_property
    def _images(self) -> Images:
        return load_images(self.folder)


@checked
def load_pool(
    prefix: str, root: PathLike = "results", *, builders: str | Sequence[str] = ()
) -> Pool:
    """The trained pool whose key or folder name starts with a prefix.

    Parameters:
        prefix: first letters of the key, or of the folder's name.
        root: the folder of results that it lies in.
        builders: names of modules of yours that may build its networks (and those of other pools
            from now on, in this process and those that it starts). Networks of this package,
            torchvision and snntorch, of this script or notebook, and of modules that you imported
            need no name.

    Returns:
        A `Pool`.

    Raises:
        ValueError: there is none, several, or an unfinished one; or its recipe names another
            builder, of which nothing is run.
    """
    if str(prefix).startswith("example:"):
        raise ValueError(
            f"{prefix} is signals alone, for mia-nb run attack -p pool={prefix}; a pool with images"
            " and weights is made by: mia-nb run train --preset cifar10 -p download=true"
        )
    models.allow(*([builders] if isinstance(builders, str) else builders))
    folder = store.find(prefix, root, "pool")
    member, population = masks(folder)
    pool = Pool(recipe_of(folder), folder.key, member, population, folder)
    if (left := pool.status.count("missing")) > 0:
        raise ValueError(
            f"pool {folder.path.name} lacks {left} of its {len(member)} models: run its training"
            " again to finish it"
        )
    return pool
