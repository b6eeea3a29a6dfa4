"""A pool: its record, which is read from its folder and checked once, and its file names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from torch import nn

from mia_nb import escape, models, store
from mia_nb.arguments import PathLike
from mia_nb.checks import checked, row_numbers, whole
from mia_nb.training import plans
from mia_nb.training.plans import DTYPES, Plan
from mia_nb.types import Images, Recipe


@dataclass(frozen=True, eq=False)
class Pool:
    """Trained models and who their members are, read from `folder`; every checksum is verified.

    Fields:
        recipe: how the models were trained.
        key: sha256 (hex) of all that determines the models; the folder's name has twelve letters of
            it.
        member: (M, N) bool, the images that each of M models trained on.
        population: (N,) bool, images set aside before training.
        folder: the `store.Folder` of the files.
        epoch: of the weights; None for the end of training. See `at`.
    """

    recipe: Recipe
    key: str
    member: np.ndarray
    population: np.ndarray
    folder: store.Folder
    epoch: int | None = None
    # further entries of recipe.json: builder, the code of the networks; for a derived pool
    # parent_weights, a digest of the weights that it starts from
    record: dict = field(default_factory=dict)

    def __repr__(self) -> str:
        when = "" if self.epoch is None else f" after epoch {self.epoch}"
        num_models, num_images = self.member.shape
        name = escape.terminal(self.folder.path.name)
        return f"Pool {name}: {num_models} models{when}, {num_images:,} images"

    def _repr_html_(self) -> str:
        num_models, num_images = self.member.shape
        facts = {
            "pool": self.folder.path.name,
            "network": self.recipe.model,
            "models": f"{num_models:,}",
            "images": f"{num_images:,}",
            "set aside": f"{int(self.population.sum()):,}",
        }
        if self.recipe.epochs:  # a pool that starts from another's weights may have none
            facts["epochs"] = self.recipe.epochs
        if self.epoch is not None:
            facts["weights of epoch"] = self.epoch
        if self.recipe.defense is not None:
            facts["defense"] = self.recipe.defense
        return escape.html_facts(facts)

    @property
    def status(self) -> list[str]:
        """The state of each row: "trained", "diverged in epoch e", or "missing"."""
        return [self._status_of(m) for m in range(len(self.member))]

    def _status_of(self, model: int) -> str:
        files = self.folder.files()
        if diverged_name(model) in files:
            return f"diverged in epoch {self.divergence(model)['epoch']}"
        return "trained" if weights_name(model) in files else "missing"

    def divergence(self, model: int) -> dict:
        """The {"epoch", "lr"} at which a row diverged."""
        return self.folder.read_json(diverged_name(model), epoch=int, lr=int | float)

    def unfinished(self, rows: Iterable[int]) -> list[int]:
        """The rows among these that have neither intact files nor a record of divergence."""
        unfinished = []
        for m in rows:
            files = [trace_name(m), weights_name(m)]
            files += [weights_name(m, epoch) for epoch in self.recipe.snapshots]
            intact = all(self.folder.intact(name) for name in files)
            if not intact and not self.folder.has(diverged_name(m)):
                unfinished.append(m)
        return unfinished

    @property
    def sampling(self) -> dict:
        """{"sample_rate", "steps"} of a row's training up to `epoch`, see `training.sampling`."""
        done = self.recipe.replace(epochs=self.epoch or self.recipe.epochs)
        return plans.sampling(done, plans.expected_members(self.recipe, self.member))

    @property
    def held_out(self) -> np.ndarray:
        """(N,) bool: images set aside that a defense of this pool or of its ancestors looked at.

        They no longer count as population.

        Raises:
            ValueError: the parent of a derived pool is gone, so that its held-out images are
                unknown.
        """
        looked_at = np.zeros(len(self.population), bool)
        numbers = plans.held_out(self.recipe, self.population)
        if numbers is not None:
            looked_at[numbers] = True
        parent = self.parent
        if parent is not None:
            looked_at |= parent.held_out
        return looked_at

    @property
    def stopped(self) -> list[int] | None:
        """The epoch at which early stopping took each row's weights, 0 for a row that diverged.

        None for pools without early stopping.
        """
        if self.recipe.defense != "early_stopping":
            return None
        epochs = []
        for model in range(len(self.member)):
            name = stopped_name(model)
            if name in self.folder.files():
                epochs.append(self.folder.read_json(name, epoch=int)["epoch"])
            else:
                epochs.append(0)
        return epochs

    def trace(self, model: int) -> np.ndarray:
        """(E, N) float16: natural logarithms of one row's per-sample losses in each of E epochs.

        Losses below 1e-10 count as 1e-10. NaN for samples that the row did not train on in an
        epoch, and everywhere for a row that was not trained to its end.

        Parameters:
            model: the row's number, from 0.
        """
        full = np.full((self.recipe.epochs, self.member.shape[1]), np.nan, np.float16)
        if self._status_of(model) == "trained":
            members = self.member[model]
            shape = (len(full), int(members.sum()))
            full[:, members] = self.folder.read_array(trace_name(model), "f", shape)
        return full

    def at(self, epoch: int) -> Pool:
        """The same pool with the weights that it had after this epoch.

        Parameters:
            epoch: one of `recipe.snapshots`, or the last.

        Raises:
            ValueError: the weights of this epoch were not kept.
        """
        kept = [*self.recipe.snapshots, self.recipe.epochs]
        if whole("epoch", epoch, 0) not in kept:
            raise ValueError(
                f"epoch {epoch} of pool {self.folder.path.name} was not kept; there are"
                f" {', '.join(map(str, kept))} (snapshots= of the recipe says which)"
            )
        return replace(self, epoch=None if epoch == self.recipe.epochs else epoch)

    def weights_name(self, model: int) -> str:
        """Name of the file of a row's weights."""
        return weights_name(model, self.epoch)

    def state(self, model: int) -> dict[str, torch.Tensor]:
        """State dictionary of one row, on the CPU.

        Parameters:
            model: the row's number, from 0.

        Raises:
            ValueError: the row diverged, or does not exist.
            store.Corrupt: the file was altered.
        """
        model = int(row_numbers("model", model, len(self.member))[0])
        status = self._status_of(model)
        if status != "trained":
            raise ValueError(
                f"model {model} of pool {self.key[:12]} is {status}; train the pool again with"
                " another recipe"
            )
        return read_weights(self.folder, self.weights_name(model))

    def model(self, model: int) -> nn.Module:
        """One row as a module in evaluation mode, on the CPU, in the recipe's dtype.

        It takes normalised images (B, C, H, W) and gives logits (B, K).

        Parameters:
            model: the row's number, from 0.

        Raises:
            ValueError: as `state`; or the code of a builder of your own has changed.
        """
        code = models.source(self.recipe.model, self.recipe.model_args)
        if code != self.record.get("builder", ""):
            raise ValueError(
                f"the code of {self.recipe.model} is not the one pool {self.key[:12]} was trained"
                " with; train it again"
            )
        module = plans.build(self.recipe, self.images(), model).to(DTYPES[self.recipe.dtype])
        module.load_state_dict(self.state(model))
        return module.eval()

    @property
    def parent(self) -> Pool | None:
        """The pool from which this one was derived; None for a pool trained from scratch.

        Raises:
            ValueError: the parent is gone, or its weights have changed.
        """
        if self.recipe.parent is None:
            return None
        folder = store.find(self.recipe.parent, self.folder.path.parent, "pool")
        if weights_digest(folder, len(self.member)) != self.record.get("parent_weights"):
            raise ValueError(
                f"{self.folder.path.name} started from weights of {folder.path.name} that are no"
                " longer there (trained anew since?): derive the pool again from the weights of now"
            )
        return complete_pool(folder)

    @property
    def ancestor(self) -> Pool:
        """The first pool in the chain of parents: the pool itself if it was trained from scratch.

        Raises:
            ValueError: as `parent`.
        """
        parent = self.parent
        return self if parent is None else parent.ancestor

    def plan(self, images: Images, parent: Pool | None) -> Plan:
        """The plan of this pool's training, on the CPU, one model at a time.

        Parameters:
            images: the pool's.
            parent: of a derived pool, which starts from its weights.
        """
        start = None if parent is None else parent.state
        return plans.plan_of(self.recipe, images, self.member, self.population, start)

    def conversion_report(self) -> pd.DataFrame:
        """The fits of a conversion to spiking networks, a row for each model and site.

        A pool that was fine-tuned after a conversion gives the report of that conversion.

        Returns:
            `model`, and the columns of `models.snn.convert(...).report`, among them the threshold,
            the expected error, the clipped mass and the firing rate of a site.

        Raises:
            ValueError: nothing was converted.
        """
        if not self.folder.has(report_name(0)):
            parent = self.parent if self.recipe.model == "snn" else None
            if parent is not None:
                return parent.conversion_report()
            raise ValueError(
                f"pool {self.folder.path.name} was not converted: there are no fitted thresholds"
                " to report"
            )
        rows = []
        for m in range(len(self.member)):
            report = self.folder.read_json(report_name(m), columns=list, rows=list)
            rows += [[m, *row] for row in report["rows"]]
        table = pd.DataFrame(rows, columns=["model", *report["columns"]])
        return table.replace({None: np.nan}).infer_objects()

    def images(self) -> Images:
        """The images that the pool was trained on, read from its own folder."""
        return self._images

    @cached_property
    def _images(self) -> Images:
        """What `images` gives, read once."""
        return self._read_images(self.folder.read_array)

    def mapped_images(self) -> Images:
        """The same images, mapped, so that the processes of a machine share one copy; they must not
        be written to.
        """
        return self._read_images(self.folder.map_array)

    def _read_images(self, read_array: Callable[..., np.ndarray]) -> Images:
        """The images, with pixels and labels read by a method of the folder."""
        with warnings.catch_warnings(action="ignore"):  # of torch: a mapped array is not writable
            x = torch.from_numpy(read_array("images.npy", "u", (None, None, None, None)))
            y = torch.from_numpy(read_array("labels.npy", "i", (len(x),)))
        canary = None
        if self.folder.has("canary.npy"):
            canary = self.folder.read_array("canary.npy", "b", (len(x),))
        record = self.images_record
        return Images(
            x=x,
            y=y,
            canary=canary,
            name=record["name"],
            classes=tuple(record["classes"]),
            mean=tuple(record["mean"]),
            std=tuple(record["std"]),
            frames=record.get("frames", 1),
        )

    @property
    def images_record(self) -> dict:
        """The record of the images besides their pixels: classes, name, digest, mean, std, and
        `frames` if there are several.
        """
        return self.folder.read_json(
            "images.json", classes=list, name=str, digest=str, mean=list, std=list
        )

    def is_about(self, images: Images) -> bool:
        """Whether these are the pool's own images, on which its models are trained and audited."""
        return images.digest == self.images_record["digest"]


def weights_name(model: int, epoch: int | None = None) -> str:
    """File of a row's weights: the final ones, or those kept after an earlier epoch."""
    if epoch is None:
        return f"model_{model:03d}.safetensors"
    return f"snapshot_{model:03d}_{epoch:05d}.safetensors"


def trace_name(model: int) -> str:
    """File of a row's losses during training."""
    return f"losses_{model:03d}.npy"


def diverged_name(model: int) -> str:
    """File of the epoch and learning rate at which a row diverged."""
    return f"diverged_{model:03d}.json"


def stopped_name(model: int) -> str:
    """File of the epoch from which early stopping took a row's weights."""
    return f"stopped_{model:03d}.json"


def report_name(model: int) -> str:
    """File of the report on a row's conversion."""
    return f"conversion_{model:03d}.json"


def stored_name(model: int) -> str:
    """File of the noisy states and randomised labels that a row of `train_private` learned from."""
    return f"stored_{model:03d}.npz"


def read_weights(folder: store.Folder, name: str) -> dict[str, torch.Tensor]:
    """A stored state dictionary; Corrupt if the file was altered, or is no safetensors file despite
    its right checksum.
    """
    data = folder.read_bytes(name)
    try:
        return safetensors.torch.load(data)
    except Exception as error:  # SafetensorError, KeyError, RuntimeError of torch
        raise folder.corrupt(name, error) from error


def write_weights(folder: store.Folder, name: str, tensors: dict[str, torch.Tensor]) -> None:
    """Store a state dictionary as safetensors, which can hold no executable code."""
    # tied weights become copies: safetensors refuses tensors that share memory
    copies = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    folder.write_bytes(name, safetensors.torch.save(copies))


def weights_digest(folder: store.Folder, num_models: int) -> str:
    """One checksum of the recorded checksums of all models; equal weights give equal checksums."""
    files = folder.files()
    return store.content_key({}, *(files.get(weights_name(m), "") for m in range(num_models)))


@checked
def load_pool(
    prefix: str, root: PathLike = "results", *, builders: str | Sequence[str] = ()
) -> Pool:
    """The trained pool whose key or folder name starts with a prefix.

    Parameters:
        prefix: first letters of the key, or of the folder's name.
        root: the folder of results.
        builders: names of modules of yours that may build its networks. They are allowed from then
            on for other pools too, in this process and its children. Networks of this package,
            torchvision and snntorch, of this script or notebook, and of modules that you imported
            need not be named.

    Returns:
        A `Pool`.

    Raises:
        ValueError: there is none, several, or an unfinished one; or its recipe names a builder that
            is not allowed, which is then not run.
    """
    if prefix.startswith("example:"):
        raise ValueError(
            f"{prefix} is signals alone, for mia-nb run attack -p pool={prefix}; a pool with images"
            " and weights is made by: mia-nb run train --preset cifar10 -p download=true"
        )
    if isinstance(builders, str):
        builders = [builders]
    models.allow(*builders)
    return complete_pool(store.find(prefix, root, "pool"))


def complete_pool(folder: store.Folder) -> Pool:
    """The finished pool of a folder; ValueError if models are missing, else as `open_pool`."""
    pool = open_pool(folder)
    missing = pool.status.count("missing")
    if missing > 0:
        raise ValueError(
            f"pool {folder.path.name} lacks {missing} of its {len(pool.member)} models: run its"
            " training again to finish it"
        )
    return pool


def open_pool(folder: store.Folder) -> Pool:
    """The pool of a folder, finished or not. Recipe and masks are read here and nowhere else.

    Raises:
        Corrupt: a file was altered, or the masks do not fit the recipe or each other.
        ValueError: its recipe names a builder that is not allowed here.
    """
    record = folder.record
    recipe = Recipe.from_json(record.pop("recipe"))
    models.check_allowed(recipe.model, recipe.model_args, f"pool {folder.path.name}")
    member = folder.read_array("member.npy", "b", (recipe.num_models, None))
    population = folder.read_array("population.npy", "b", member.shape[1:])
    return Pool(recipe, record["key"], member, population, folder, record=record)
