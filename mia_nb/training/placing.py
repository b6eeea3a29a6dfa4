"""Where a pool lies, before anything of it is made: its recipe with all defaults written out, who
its members are, and the folder that its key names.
"""

from __future__ import annotations

import warnings

import numpy as np

from mia_nb import __version__, data, defenses, models, store
from mia_nb.arguments import PathLike
from mia_nb.checks import mask, one_of
from mia_nb.training.loop import OPTIMIZERS
from mia_nb.training.losses import LOSSES
from mia_nb.training.pool import Pool, weights_digest
from mia_nb.training.seeds import mix
from mia_nb.types import Images, Recipe

# enters every key; raise it when the same recipe starts to mean other models
FORMAT = 1
# 1: on a CPU, and on a GPU one by one, convolutions learned from wrong gradients
FORMAT_OF_DP_SGD = 2
# what, with the seed, draws the members of a pool
SPLIT = ("num_models", "split", "population")


def complete(recipe: Recipe) -> Recipe:
    """The recipe with the optimiser's defaults written out; ValueError for a name that is not
    known.
    """
    for name, table in {"optimizer": OPTIMIZERS, "loss": LOSSES}.items():
        one_of(name, getattr(recipe, name), table)
    return recipe.replace(
        optimizer_args={**OPTIMIZERS[recipe.optimizer][1], **recipe.optimizer_args},
        defense_args=defenses.arguments(recipe.defense, recipe.defense_args),
    )


def membership(
    recipe: Recipe, images: Images, member: np.ndarray | None, parent: Pool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Masks (M, N) and population (N,): the parent's, drawn by the recipe's split, or given."""
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
        member = _given(mask("member", member, (recipe.num_models, samples)))
        unseen = ~member.any(0)
        if images.canary is not None:  # canaries are members by their coins
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
    # both splits set the same samples aside, and only in pairs is "in no row" the same as "set
    # aside"
    even = recipe.num_models + recipe.num_models % 2
    pairs = data.paired_membership(even, samples, **options)
    if recipe.split == "pairs":
        return pairs, ~pairs.any(0)
    return data.bernoulli_membership(recipe.num_models, samples, **options), ~pairs.any(0)


def _given(member: np.ndarray) -> np.ndarray:
    """The mask itself; ValueError for rows without members or non-members, a warning where some
    rows are alike.
    """
    uniform = np.flatnonzero(member.all(1) | ~member.any(1))
    if uniform.size:
        raise ValueError(
            f"rows {uniform[:5].tolist()} of member are all True or all False: each model wants"
            " members and non-members"
        )
    different = {row.tobytes() for row in np.packbits(member, axis=1)}
    repeated = len(member) - len(different)
    # one mask for all rows says that one training is to be repeated
    if 0 < repeated < len(member) - 1:
        warnings.warn(
            f"{repeated} of {len(member)} rows of member equal another: such models are no"
            " references of each other",
            stacklevel=4,
        )
    return member


def place(
    recipe: Recipe,
    images: Images,
    member: np.ndarray,
    population: np.ndarray,
    root: PathLike,
    parent: Pool | None,
    **further: str,
) -> Pool:
    """The pool of a recipe where it lies or would lie; nothing is written. What else determines its
    models is named in `further`.
    """
    extra = {"builder": models.source(recipe.model, recipe.model_args), **further}
    if parent is not None:
        extra["parent_weights"] = weights_digest(parent.folder, recipe.num_models)
    settings = recipe.to_json()
    if not recipe.snapshots:  # older keys stay
        del settings["snapshots"]
    number = FORMAT_OF_DP_SGD if recipe.defense == "dp_sgd" else FORMAT
    key = store.content_key(
        {"format": number, **extra, **settings}, images.digest, np.packbits(member).tobytes()
    )
    folder = store.place(root, "pool", f"{images.name}-{title(recipe)}", key)
    record = {"version": __version__, **extra}
    return Pool(recipe, key, member, population, folder, record=record)


def title(recipe: Recipe) -> str:
    """What a folder is called by: the model and its defense, of a spiking network also its network,
    time steps and origin.
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
