"""Minutes of one core for one shadow model on half of CIFAR-10: the usual loop, a ResNet18 for 100
epochs as lira-pytorch's run.sh has it, beside the fast network for 8.

    python benchmarks/shadows.py cifar10.npz [--steps 4]

Of the usual loop some steps are timed, after as many that are not, and multiplied; of ours an epoch,
and the whitening layer that a model begins with. CPU seconds of one thread, so that other work on
the machine matters little; those of the processes that load images are left out.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from common import header, options
from evidence import SMALL
from gpu import crop_and_flip
from ordinary import loader, training

from mia_nb import data
from mia_nb.training import clipped, plans
from mia_nb.training.placing import complete
from mia_nb.types import Images, Recipe

BATCH, EPOCHS = 128, 100  # of the usual loop


def usual(images: Images, member: np.ndarray, steps: int) -> float:
    """Seconds a step: float32, single images cropped and flipped by two processes."""
    few = np.zeros(len(member), bool)
    few[np.flatnonzero(member)[: BATCH * steps]] = True
    recipe = complete(Recipe(model="resnet18", batch=BATCH, epochs=2, dtype="float32"))
    how = {"transform": crop_and_flip, "num_workers": 2, "persistent_workers": True}
    batches = loader("dataset", images, few, BATCH, **how)
    epochs = training(plans.build(recipe, images, 0), batches, recipe)
    next(epochs)
    begun = time.process_time()
    next(epochs)
    return (time.process_time() - begun) / steps


def fast(images: Images, member: np.ndarray, epochs: int) -> tuple[float, float]:
    """Seconds until training begins, and seconds an epoch."""
    recipe = complete(Recipe(**SMALL))
    begun = time.process_time()
    plan = plans.Plan(
        recipe, images, member, torch.device("cpu"), stacked=False, channels_last=True
    )
    group = clipped.group_of(plan, [0])
    ready = time.process_time()
    history: list[list[float]] = []
    for epoch in range(epochs):
        group.epoch(epoch, history)
        history.append([1.0])
    return ready - begun, (time.process_time() - ready) / epochs


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("images")
    parser.add_argument("--steps", type=int, default=4, help="of the usual loop that are timed")
    given = parser.parse_args()
    images = data.load(given.images)
    member = data.paired_membership(SMALL["num_models"], len(images.y), labels=images.y.numpy())
    torch.set_num_threads(1)
    print(header(), flush=True)
    members = int(member[0].sum())
    step = usual(images, member[0], given.steps)
    whole = step * (members // BATCH) * EPOCHS / 60
    print(
        f"ResNet18: {step:.2f} s a step, {whole / EPOCHS:.1f} minutes an epoch, {whole:,.0f} whole"
    )
    first, epoch = fast(images, member, 1)
    ours = (first + epoch * SMALL["epochs"]) / 60
    print(f"fast network: {epoch:.1f} s an epoch, {ours:.2f} minutes whole")
    print(
        f"whole trainings: {whole / ours:,.0f} times as long; one epoch: {whole / EPOCHS / ours:.1f}"
    )


if __name__ == "__main__":
    main()
