"""Records of the parameters that many notebooks share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from mia_nb.types.recipes import Query, Recipe, Record, Whole


class Source(Record):
    """The images of a notebook."""

    dataset: str = Field(
        "digits",
        min_length=1,
        description=(
            "digits, cifar10, cifar100, mnist, fashion_mnist, tiny_imagenet, a folder of class"
            " folders, or a .npz file"
        ),
    )
    data_root: str = Field("data", description="the folder where data sets are kept")
    limit: Whole | None = Field(
        None, ge=1, le=10**9, description="a number of images from 1 up, or None for all"
    )
    size: Whole | None = Field(
        None,
        ge=1,
        description="the side in pixels to which a folder's images are cut and scaled, or None",
    )
    part: Literal["all", "train", "test"] = Field(
        "all", description="all, or the official part alone: train or test"
    )
    download: bool = Field(False, description="true or false: may the data set be downloaded?")


class Run(Record):
    """How a notebook is executed; it changes no result."""

    device: str | None = Field(
        None, min_length=1, description="cpu or cuda, or None for cuda where there is one"
    )
    strategy: str = Field(
        "auto",
        min_length=1,
        description="auto, plain, stacked or stacked:NUMBER: how models share the machine",
    )
    compiled: bool = Field(False, description="true or false: compile the steps of training?")
    workers: Whole | None = Field(
        None,
        ge=1,
        description="a number of workers from 1 up, or None for one a core or GPU",
    )
    backend: Literal["loky", "dask", "ray"] = Field(
        "loky", description="where workers run: loky (this machine), dask or ray"
    )
    force: bool = Field(False, description="true or false: compute again what is stored?")


class Analysis(Record):
    """How results are computed from scores, and how they are shown."""

    n_resamples: Whole = Field(
        400, ge=2, description="a number of resamples behind the intervals, from 2 up"
    )
    control_resamples: Whole = Field(
        200,
        ge=2,
        description="a number of redrawn memberships behind the negative control, from 2 up",
    )
    delta: float = Field(
        1e-5, ge=0, lt=1, description="a fraction in [0, 1): the delta of epsilons"
    )
    fpr: float = Field(
        0.1, ge=0, le=1, description="a fraction in [0, 1]: the false positive rate compared at"
    )
    shown: Whole = Field(10, ge=1, description="a number of rows or images shown, from 1 up")
    mode: Literal["auto", "batch", "live"] = Field(
        "auto", description="auto, batch (plain text) or live (progress bars, explorers)"
    )
    stands_for: str | list[str] = Field(
        "",
        description="the block of the papers' tables that ours is laid beside, such as cifar10",
    )
    objective: str = Field(
        "auc", min_length=1, description="auc, advantage or tpr@0.01: what options are chosen for"
    )


class Study(Record):
    """The published accounting of neural SDEs that is compared with ours."""

    sigma: float = Field(2.0, gt=0, description="a finite number above 0: the noise")
    samples: Whole = Field(25_000, ge=1, description="a number of records, from 1 up")
    batches: list[Whole] = Field([512, 256, 128], description="a list of batch sizes")
    marks: list[Whole] = Field(
        [1, 10, 30, 100, 200, 300], description="a list of epochs at which it is evaluated"
    )
    deltas: list[float] = Field(
        [1e-2, 1e-3, 1e-4, 1e-5, 1e-6], description="a list of deltas of the sweep"
    )


RECORDS: dict[str, type[Record]] = {  # a bare name belongs to the first record that has it
    "recipe": Recipe,
    "source": Source,
    "query": Query,
    "run": Run,
    "analysis": Analysis,
    "study": Study,
}


def record_of(name: str, records: Iterable[str]) -> str | None:
    """The first of these records that has a field of this name; None if none has."""
    for record, kind in RECORDS.items():
        if record in records and name in kind.model_fields:
            return record
    return None
