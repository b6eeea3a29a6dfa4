"""The settings of a query, which determine the outputs of a pool. A query that does not fit the
pool is refused.
"""

from __future__ import annotations

from typing import Any

from mia_nb import defenses
from mia_nb.models import FLOWS, architecture, neural_de, snn, timesteps
from mia_nb.training.plans import build
from mia_nb.training.pool import Pool
from mia_nb.types import Images, Query


def check_size(pool: Pool, images: Images) -> None:
    """ValueError for images of another size than those that the pool was trained on."""
    frames = pool.images_record.get("frames", 1)
    if images.frames != frames:
        raise ValueError(
            f"images of frames={images.frames}; the pool was trained on frames={frames}: load them"
            " with the same number of frames"
        )
    shape = tuple(images.x.shape[1:])
    trained = pool.folder.map_array("images.npy", "u", (None, None, None, None)).shape[1:]
    if shape != trained:
        raise ValueError(
            f"images of {shape} pixels; the pool was trained on {trained}: load them with the same"
            " size"
        )


def settings_and_kind(
    pool: Pool, images: Images, rows: list[int], query: Query
) -> tuple[dict, str]:
    """(the settings that determine the outputs, the kind of the queries); ValueError for a query
    that does not fit this pool.
    """
    output_args = query.output_args
    if query.output is not None or output_args:
        output_args = defenses.output_arguments(query.output, output_args, len(images.classes))
    noise = query.noise
    if noise is None and pool.recipe.model in FLOWS:
        # True where noise is built in, so that the settings name it; None where there is none
        noise = neural_de.is_noisy(build(pool.recipe, pool.images(), 0)) or None
    query_kind = _query_kind(query, _noise_as_source(pool, query, noise))
    if query.mask_scope != "query" or query.per_step:
        _check_steps(pool, rows[0], query)
    if query.activity:
        _check_activity(pool, rows[0], query, query_kind)
    augment = False
    if query.augment:
        augment = "crop+flip" if pool.recipe.augment == "none" else pool.recipe.augment
    settings = {
        "queries": query.queries,
        "input_dropout": query.input_dropout,
        "augment": augment,
        "noise": noise,
        "temperature": query.temperature,
        "seed": query.seed if query_kind not in ("plain", "steps") else 0,
        "models": rows,
        **_options_in_key(
            per_step="cumulative" if query.per_step is True else query.per_step,
            mask_scope=query.mask_scope if query.input_dropout else "query",
            activity=query.activity,
            limit=query.limit,
            epoch=pool.epoch,
            output=query.output,
            output_args=output_args,
        ),
    }
    return settings, query_kind


def _noise_as_source(pool: Pool, query: Query, noise: bool | None) -> bool | None:
    """The noise as a source of randomness, of which a query may have one.

    Noise of SDE blocks alone may come on top of masks and augmentation, and does not count beside
    them; noise of dropout layers does.
    """
    masked_or_augmented = query.input_dropout > 0 or query.augment
    if masked_or_augmented and noise_of_blocks_alone(pool):
        return None
    return noise


def _check_steps(pool: Pool, model: int, query: Query) -> None:
    """ValueError for a query about time steps, of a model that has none or where an encoding makes
    them.
    """
    module = pool.model(model)
    if timesteps(module) is None:
        raise ValueError(
            "mask_scope='step' and per_step are for spiking networks;"
            f" {pool.recipe.model} has one output per image: use mask_scope='query',"
            " per_step=False"
        )
    encode = getattr(module, "encode", "constant")
    if query.mask_scope == "step" and encode != "constant":
        raise ValueError(
            f"mask_scope='step' masks what enters at each step, and encode={encode!r} makes that"
            " from one image: use mask_scope='query'"
        )


def _check_activity(pool: Pool, model: int, query: Query, query_kind: str) -> None:
    """Refuse activity=True for networks that do not spike or spike at random, and for queries that
    are not plain.
    """
    module = pool.model(model)
    if not isinstance(module, snn.SNN) or module.stochastic:
        raise ValueError(
            "activity=True looks at the layers of a spiking network (models.snn.SNN) that does the"
            f" same at every call; {pool.recipe.model} is none: use activity=False"
        )
    if query_kind != "plain" or query.output is not None:
        raise ValueError(
            f"activity=True with {query.output or query_kind}: who measures the device sees one"
            " plain query; leave the other option out"
        )


def _options_in_key(**options: Any) -> dict:
    """The options that are not at their default, which is None, False or, for the scope of masks,
    "query": they enter the key of the stored signals.

    The others are left out, so that a new option of `Query` changes no key.
    """
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != "query"
    }


def _query_kind(query: Query, noise: bool | None) -> str:
    """What makes the queries of one image differ, a word of types.QUERY_KINDS; ValueError for
    several sources at once, and for several queries that would all be alike.
    """
    sources = []
    if query.input_dropout > 0:
        sources.append("dropout")
    if query.augment:
        sources.append("augment")
    if noise is True:
        sources.append("noise")
    queries = query.queries
    if query.per_step and (queries > 1 or sources):
        raise ValueError(
            f"per_step with queries={queries} and {' and '.join(sources) or 'nothing random'}: the"
            " query axis holds the time steps then; take one plain query"
        )
    if query.per_step:
        return "steps"
    if len(sources) > 1:
        raise ValueError(
            f"{' and '.join(sources)} at once: take one source of randomness at a time"
        )
    if query.augment and queries == 1:
        raise ValueError(
            "augment=True with queries=1 shows the plain image only: take more queries, or"
            " augment=False"
        )
    if queries > 1 and not sources:
        raise ValueError(
            f"queries={queries} without input_dropout, augment or noise: all outputs would be the"
            " same; use queries=1"
        )
    return sources[0] if sources else "plain"


def noise_of_blocks_alone(pool: Pool) -> bool:
    """Whether only SDE blocks are noisy in the pool's models. Each block of images can then have
    its own generator; dropout layers draw from the global one.
    """
    return pool.recipe.model in FLOWS and is_built_in(pool) and pool.recipe.defense != "dropout"


def is_built_in(pool: Pool) -> bool:
    """Whether the pool's network, or the one that it is made from, is one of `models.MODELS`."""
    return ":" not in architecture(pool.recipe.model, pool.recipe.model_args)
