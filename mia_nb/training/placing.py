"""Where a pool will be stored, before any of it is made: its recipe with all defaults written out,
its members, and the folder that its key names.
"""

from __future__ import annotations

import warnings

import numpy as np

from mia_nb import __version__, data, defenses, models, store
from mia_nb.arguments import PathLike
from mia_nb.checks import mask, one_of
from mia_nb.training.loop import OPTIMIZERS
from mia_nb.training.losses import LOSSES
from mia_nb.training.plans import expected_members
from mia_nb.training.pool import Pool, weights_digest
from mia_nb.training.seeds import mix
from mia_nb.types import Images, Recipe

# part of every key; to be raised when the same recipe starts to give other models
FORMAT = 1
# the same for DP-SGD, in whose format 1 convolutions may have learned from wrong gradients
FORMAT_OF_DP_SGD = 2
NEVER_TRAINED_ON = 0.01  # a share of a row's members that is warned of
# the fields that, with the seed, determine the members of a pool
SPLIT = ("num_models", "split", "population")


def complete(recipe: Recipe) -> Recipe:
    """The recipe with the defaults of optimiser and defense written out; ValueError for an unknown
    name.
    """
    one_of("optimizer", recipe.optimizer, OPTIMIZERS)
    one_of("loss", recipe.loss, LOSSES)
    _, defaults = OPTIMIZERS[recipe.optimizer]
    return recipe.replace(
        optimizer_args=defaults | recipe.optimizer_args,
        defense_args=defenses.arguments(recipe.defense, recipe.defense_args),
    )


def membership(
    recipe: Recipe, images: Images, member: np.ndarray | None, parent: Pool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Masks (M, N) and population (N,): the parent's, given, or drawn by the recipe's split."""
    samples = len(images.y)
    if parent is not None:
        if member is not None and not np.array_equal(member, parent.member):
            raise ValueError(
                "member differs from the parent's: a derived pool keeps its parent's members; leave"
                " member out"
            )
        return parent.member, parent.population
    if (member is not None) != (recipe.split == "given"):
        raise ValueError(
            f'split={recipe.split!r}: give a member mask with split="given", and with no other'
            " split"
        )
    if member is not None:
        member = mask("member", member, (recipe.num_models, samples))
        _check_given(member)
        unseen = ~member.any(0)
        if images.canary is not None:  # a canary that no coin chose belongs to no population
            unseen &= ~images.canary
        if recipe.population not in (0, unseen.sum()):
            raise ValueError(
                f"population={recipe.population}, but the given mask leaves {unseen.sum()} samples"
                " to no model"
            )
        return member, unseen & (recipe.population > 0)
    options = {
        "labels": images.y.cpu().numpy(),
        "num_population": recipe.population,
        "seed": mix(recipe.seed, "member"),
    }
    # both splits set the same samples aside; in pairs these are the samples that no row holds,
    # while coins may also leave others out of every row
    even = recipe.num_models + recipe.num_models % 2
    pairs = data.paired_membership(even, samples, **options)
    set_aside = ~pairs.any(0)
    if recipe.split == "pairs":
        return pairs, set_aside
    return data.bernoulli_membership(recipe.num_models, samples, **options), set_aside


def _check_given(member: np.ndarray) -> None:
    """ValueError for a mask with rows without members or non-members; a warning if some rows are
    equal.
    """
    uniform = np.flatnonzero(member.all(1) | ~member.any(1))
    if uniform.size:
        raise ValueError(
            f"rows {uniform[:5].tolist()} of member are all True or all False: each model wants"
            " members and non-members"
        )
    different = {row.tobytes() for row in np.packbits(member, axis=1)}
    repeated = len(member) - len(different)
    # equal rows throughout are meant: one training is repeated
    if 0 < repeated < len(member) - 1:
        warnings.warn(
            f"{repeated} of {len(member)} rows of member equal another: such models are no"
            " references of each other",
            stacklevel=5,
        )


def warn_of_large_rows(recipe: Recipe, member: np.ndarray) -> None:
    """A warning where the largest row is so much larger than the mean that more of its members than
    usual are never trained on, as all rows take as many steps. DP-SGD draws each member alike.
    """
    if recipe.defense == "dp_sgd":
        return
    sizes = member.sum(1)
    mean = expected_members(recipe, member)
    taken = mean // recipe.batch * recipe.batch  # in an epoch, drawn anew from all of a row
    # the share that no epoch takes; the remainder of the last batch is usual
    never = np.maximum(1 - taken / np.array([sizes.max(), mean]), 0) ** recipe.epochs
    if taken and never[0] - never[1] > NEVER_TRAINED_ON:
        warnings.warn(
            f"rows of member hold {sizes.min():,} to {sizes.max():,} images, and an epoch takes"
            f" {taken:,} of each: about {never[0]:.0%} of the largest row's members are never"
            " trained on, and count as members; give rows of about one size, or train longer",
            stacklevel=4,
        )


def place(
    recipe: Recipe,
    images: Images,
    member: np.ndarray,
    population: np.ndarray,
    root: PathLike,
    parent: Pool | None,
    **further: str,
) -> Pool:
    """The pool of a recipe, with the folder where it is or will be stored; nothing is written.
    `further` names whatever else determines its models.
    """
    extra = {"builder": models.source(recipe.model, recipe.model_args), **further}
    if parent is not None:
        extra["parent_weights"] = weights_digest(parent.folder, recipe.num_models)
    settings = recipe.to_json()
    if not recipe.snapshots:  # an empty list is not part of the key
        del settings["snapshots"]
    settings["format"] = FORMAT_OF_DP_SGD if recipe.defense == "dp_sgd" else FORMAT
    key = store.content_key(settings | extra, images.digest, np.packbits(member).tobytes())
    folder = store.place(root, "pool", f"{images.name}-{title(recipe)}", key)
    record = {"version": __version__, **extra}
    return Pool(recipe, key, member, population, folder, record=record)


def title(recipe: Recipe) -> str:
    """The title in a folder's name: model and defense, for a spiking network also its base, time
    steps and origin.
    """
    network = models.architecture(recipe.model, recipe.model_args)
    if recipe.model == "snn":
        if recipe.parent is None:
            origin = "direct"
        elif recipe.epochs:
            origin = "tuned"
        else:
            origin = "converted"
        parts = ["snn", network, f"T{recipe.model_args.get('timesteps', 4)}", origin]
    else:
        parts = [recipe.model]
        if recipe.model in models.BASES:
            parts.append(network)
        if recipe.parent:
            parts.append("tuned")
    if recipe.defense:
        parts.append(recipe.defense)
    return "_".join(part for part in parts if part)
