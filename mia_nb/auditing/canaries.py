"""Canaries: samples made to be remembered, each in or out of a model by a coin."""

from __future__ import annotations

import numpy as np

from mia_nb.arguments import Array, Count, Fraction, Mask, Positive, Whole
from mia_nb.checks import checked, mask, one_of

KINDS = ("ordinary", "mislabelled", "mislabelled_near_duplicate", "ood")
JITTER = 2.0  # standard deviation of a near duplicate's pixels, of 255
SHIFTS = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])  # of a near duplicate, in pixels


@checked
def canary_arrays(
    x: Array,
    y: Array,
    classes: Whole,
    *,
    share: Fraction = 0.02,
    kind: str = "mislabelled",
    population: Array | None = None,
    seed: Count = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, y, canary): copies of images and labels with some samples turned into canaries.

    Parameters:
        x: (N, C, H, W) images, whole numbers from 0 to 255; returned as uint8.
        y: (N,) labels, whole numbers from 0 to classes - 1.
        classes: the number of classes.
        share: round(share n) samples become canaries, n the number outside `population`. With coins
            or pairs, a model trains on half of the canaries: share / (2 - share) of its training
            set, 1 % of it at .02.
        kind: of the canaries, see below.
        population: (N,) bool, samples that no model trains on and that become no canaries; None:
            there are none.
        seed: of the choice of samples and of their changes.

    Kinds:
        ordinary: image and label are unchanged: the average case, to compare the others with.
        mislabelled: the image is unchanged, its label is wrong.
        mislabelled_near_duplicate: the image becomes a near copy, moved by one pixel and with noise
            of 2/255, of a sample that is no canary, is in every model and keeps its right label;
            the canary's label is wrong for that sample.
        ood: the image's pixels are shuffled, its label is drawn from all classes.

    Returns:
        x uint8 (N, C, H, W), y (N,), canary (N,) bool.

    A defense that is known to treat one kind well must be tested with another: name the kind with
    every result (Aerni, Zhang and Tramèr 2024, arXiv 2404.17399).

    Raises:
        ValueError: for an unknown kind, wrong labels with a single class, pixels that are no whole
            numbers from 0 to 255, labels that are none from 0 to classes - 1, shapes that differ,
            and a share that leaves no canary or fewer others than canaries.

    Caveat: report accuracy with and without canaries beside their rates; keep their share at 2 % or
    less.
    """
    one_of("kind", kind, KINDS)
    mislabelled = kind.startswith("mislabelled")
    if mislabelled and classes < 2:
        raise ValueError(f"classes={classes}: wrong labels need 2 classes or more")
    x = _whole("x", x, 255).astype(np.uint8)
    y = _whole("y", y, classes - 1).astype(np.int64)
    eligible = np.ones(len(y), bool)
    if population is not None:
        eligible = ~np.asarray(population, bool)
    size = round(share * int(eligible.sum()))
    if x.ndim != 4 or y.shape != x.shape[:1] or eligible.shape != y.shape:
        raise ValueError(
            f"x {x.shape}, y {y.shape}: wanted images (N, C, H, W) with a label each (and a"
            " population mask (N,))"
        )
    if not 1 <= size <= eligible.sum() // 2:
        raise ValueError(
            f"share={share} of {eligible.sum()} samples makes {size} canaries: wanted at least 1,"
            " at most half of them"
        )
    rng = np.random.default_rng([8, seed])
    shuffled = rng.permutation(np.flatnonzero(eligible))
    chosen = np.sort(shuffled[:size])
    copied = shuffled[size : 2 * size]  # of which near duplicates are made
    canary = np.isin(np.arange(len(y)), chosen)
    if kind == "ood":
        flat = x[chosen].reshape(size, x.shape[1], -1)
        x[chosen] = rng.permuted(flat, axis=2).reshape(x[chosen].shape)
        y[chosen] = rng.integers(classes, size=size)
    elif kind == "mislabelled_near_duplicate":
        x[chosen] = _near_copies(x[copied], rng)
        y[chosen] = y[copied]
    if mislabelled:
        step = np.random.default_rng([7, seed]).integers(1, classes, size)
        y[chosen] = (y[chosen] + step) % classes
    return x, y, canary


def _whole(name: str, values: object, last: int) -> np.ndarray:
    """The values, where they are whole numbers from 0 to `last`."""
    values = np.asarray(values)
    wanted = f"wanted whole numbers from 0 to {last}"
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {values.dtype}: {wanted}; round and convert them first")
    if values.min(initial=0) < 0 or values.max(initial=0) > last:
        raise ValueError(f"{name} runs from {values.min()} to {values.max()}: {wanted}")
    return values


def _near_copies(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The images (n, C, H, W), each moved by one pixel up, down, left or right, with noise."""
    shifts = SHIFTS[rng.integers(len(SHIFTS), size=len(images))]
    moved = np.stack([np.roll(x, shift, (1, 2)) for x, shift in zip(images, shifts, strict=True)])
    noisy = np.rint(moved + rng.normal(0, JITTER, moved.shape))
    return np.clip(noisy, 0, 255).astype(np.uint8)


@checked
def canary_member(
    num_models: Positive,
    canary: Mask,
    *,
    population: Array | None = None,
    seed: Count = 0,
) -> np.ndarray:
    """(M, N) bool: canaries by coins, all other samples in every model, the population in none.

    Parameters:
        num_models: M.
        canary: (N,) bool.
        population: (N,) bool, samples no model trains on; None: there are none.
        seed: of the coins.

    Returns:
        The mask to train with, split="given". Coins are independent and fair, as a one-run audit
        requires; those of row m depend on (seed, m) only. Score on the canaries alone,
        `signals.select(samples=canary | signals.population)`: samples that all references saw
        carry no information.

    Raises:
        ValueError: for no models, no canaries, and canaries in the population.
    """
    in_population = np.zeros(canary.shape, bool)
    if population is not None:
        in_population = mask("population", population, canary.shape)
    size = int(canary.sum())
    in_both = int((canary & in_population).sum())
    if canary.ndim != 1 or not size or in_both:
        raise ValueError(
            f"{size} canaries, {in_both} of them in the population: wanted 1 or more, outside it"
        )
    member = np.tile(~in_population, (num_models, 1))
    for m in range(num_models):
        coins = np.random.default_rng([9, m, seed]).integers(2, size=size, dtype=bool)
        member[m, canary] = coins
    return member
