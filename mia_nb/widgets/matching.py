"""Stored results that can be compared, and the networks without time steps, noise or dropout to
compare them with.
"""

import contextlib
import json
from collections.abc import Iterable, Sequence

import numpy as np

from mia_nb import store
from mia_nb.digests import digest
from mia_nb.widgets.stored import Source
from mia_nb.widgets.words import trained, way

# settings of a query where its record says nothing
PLAIN_QUERY = {
    "input_dropout": 0.0,
    "queries": 1,
    "temperature": 1.0,
    "output": None,
    "output_args": None,
    "epoch": None,
    "limit": None,
    "augment": False,
}


def query_kind(source: Source) -> str:
    """The kind of the queries, read from the record where it has it, without the signals."""
    return source.info.get("draws") or source.signals.query_kind


def query_count(source: Source) -> int:
    """The number of queries, read from the record where it has it, without the signals."""
    return int(source.info.get("queries") or source.signals.margin.shape[1])


def flow_of(source: Source) -> dict:
    """The equation of a network that solves one; {} for others."""
    return source.info.get("flow") or {}


def network_name(source: Source, timesteps: int | str, *, made: str = "") -> str:
    """The network of T = `timesteps` in words; `made` replaces the way that its recipe gives."""
    if not source.recipe:
        return f"{source.label}, T = {timesteps}"
    return trained(source.info | {"timesteps": timesteps, "pool": ""}, source.recipe, made=made)


def comparison_key(source: Source, *, ignoring: Iterable[str] = ()) -> tuple:
    """A key that is equal for sources whose scores can be compared row by row: the same members and
    samples, queried in the same way up to the ignored settings.
    """
    query = {name: source.info.get(name) or usual for name, usual in PLAIN_QUERY.items()}
    query["draws"] = "plain" if query_kind(source) == "steps" else query_kind(source)
    return *members_key(source), json.dumps(without(query, *ignoring), sort_keys=True)


def members_key(source: Source) -> tuple:
    """A key that is equal for sources with the same members and samples; the signals of stored
    sources are not read for it.
    """
    if source.folder is None:
        signals = source.signals
        return (digest(signals.member, signals.labels, signals.population),)
    member = source.pool.files().get("member.npy")
    numbers = source.folder.files().get("samples.npy")
    return member, numbers, *source.rows, source.info.get("dataset")


def key_without_dropout(source: Source) -> tuple:
    """A key that is equal for sources of one pool whose queries differ only in input dropout."""
    return source.info.get("pool"), *comparison_key(
        source, ignoring=("input_dropout", "queries", "draws")
    )


def key_without_noise(source: Source) -> tuple:
    """A key that is equal for sources that differ only in the strength of their noise; a source
    without an equation is its own key, whatever its label.
    """
    if not flow_of(source):
        return (source,)
    args = without(source.recipe.get("model_args", {}), "k")
    recipe = without(source.recipe, "snapshots") | {"model_args": args}
    equation = without(flow_of(source), "k", "sigma", "noise_sd")
    made = json.dumps([recipe, equation], sort_keys=True, default=str)
    return made, *comparison_key(source, ignoring=("queries", "draws"))


def architecture_key(source: Source) -> str:
    """A key that is equal for spiking networks of one architecture and one scope of dropout masks;
    for a network without a recipe its label.
    """
    if not source.recipe:
        return source.label
    args = source.recipe.get("model_args", {}).get("base_args")
    return json.dumps([source.info.get("base"), args, source.info.get("mask_scope")])


def training_key(source: Source, pools: dict[str, store.Folder]) -> str:
    """A key that is equal for pools of one architecture whose training differs only in the number
    of time steps.
    """
    recipe = without(source.recipe, "epochs", "model_args", "parent")
    args = without(source.recipe.get("model_args", {}), "timesteps")
    args["calibration"] = without(args.get("calibration") or {}, "fit_T")
    origin = parent_keys(source, pools)[-1:]  # the pool that the chain of parents begins with
    return json.dumps([recipe, args, way(source.recipe), origin], sort_keys=True)


def without(record: dict, *names: str) -> dict:
    """The record without some entries."""
    return {name: value for name, value in record.items() if name not in names}


def same_images(first: Source, second: Source) -> bool:
    """Whether the same samples of the same images were queried, by their numbers and labels, and by
    the digests of the images where they are stored.
    """
    digests = set()
    for source in (first, second):
        if source.pool is not None and source.pool.has("images.json"):
            digests.add(source.pool.read_json("images.json", digest=str)["digest"])
    if len(digests) > 1:
        return False
    labels = [source.signals.labels[source.audited] for source in (first, second)]
    return np.array_equal(first.numbers, second.numbers) and np.array_equal(*labels)


def noise_off(source: Source, sources: Sequence[Source]) -> Source | None:
    """The newest plain outputs of the same models on the same samples, at the same epoch and with
    the noise switched off.
    """
    pool = source.info.get("pool")
    if not pool:
        return None
    wanted = comparison_key(source, ignoring=("queries", "draws"))
    for other in reversed(sources):
        if other.info.get("pool") != pool or other.info.get("noise") is not False:
            continue
        if query_kind(other) != "plain":
            continue
        if comparison_key(other, ignoring=("queries", "draws")) == wanted:
            return other
    return None


def ordinary_network(
    spiking: Sequence[Source], sources: Sequence[Source], pools: dict[str, store.Folder]
) -> Source | None:
    """The ordinary network to compare with these spiking ones, queried in the same way: one that
    any of them was made from, else the newest of the same architecture.
    """
    newest_first = [source for source in reversed(sources) if not source.info.get("timesteps")]
    for network in spiking:
        parents = parent_keys(network, pools)
        for source in newest_first:
            parent = as_parent(source, network, parents)
            if parent is not None and comparison_key(parent) == comparison_key(network):
                return parent

    wanted = comparison_key(spiking[-1])
    base = spiking[-1].info.get("base")
    for source in newest_first:
        if source.recipe.get("defense"):
            continue
        family = source.info.get("family")
        is_same_base = base is None or family is None or family == base
        if is_same_base and comparison_key(source) == wanted:
            return source
    return None


def as_parent(source: Source, network: Source, parents: Sequence[str]) -> Source | None:
    """The source as the parent of a spiking network, with as many models; None if the network was
    not made from it. `parents` are the keys of the network's stored parents.
    """
    # shipped networks have no stored parent, but the recipe of one, which may have more models
    made_from = without(network.info.get("made_from") or {}, "num_models")
    if made_from and without(source.recipe, "num_models") == made_from:
        return first_models(source, len(network.signals.margin))
    return source if source.info.get("pool") in parents else None


def first_models(source: Source, count: int) -> Source:
    """The source with only its first `count` models, as targets and as references."""
    if len(source.signals.margin) == count:
        return source
    signals = source.signals.select(models=slice(0, count))
    return Source(source.label, signals, info=source.info, classes=source.classes)


def parent_keys(source: Source, pools: dict[str, store.Folder]) -> list[str]:
    """Keys of the pools that this one was derived from, the nearest first."""
    keys: list[str] = []
    folder = source.pool
    # the chain ends at a parent that is gone or damaged
    with contextlib.suppress(ValueError, OSError):
        while folder is not None and (key := folder.recipe.get("parent")):
            keys.append(key)
            folder = pools.get(key[:12])
    return keys


def pools_beside(sources: Sequence[Source]) -> dict[str, store.Folder]:
    """{first twelve letters of its key: pool} of every pool in the folders of these sources, as a
    parent may lack queries.
    """
    pools = {}
    for root in {source.pool.path.parent for source in sources if source.pool is not None}:
        pools |= {folder.short_key: folder for folder in store.folders(root, "pool")}
    return pools
