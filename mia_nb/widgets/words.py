"""The words of explorers for networks, queries, numbers and remarks."""

from collections.abc import Iterable

import numpy as np

from mia_nb.metrics.table_text import in_digits

NO_IMAGES = "no images are stored with these signals"
ORACLE = "thresholds set with hindsight (oracle)"
NOT_MEASURABLE = "n/m"
NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "tinycnn": "TinyCNN",
    "fast": "fast network",
    "resnet14": "ResNet14",
    "resnet18": "ResNet18",
    "vgg16": "VGG16",
    "odenet": "ODENet",
    "odenet64": "ODENet64",
    "anode": "ANODE",
    "sonode": "SONODE",
    "hbnode": "HBNODE",
    "sdenet": "SDENet",
    "dp_sgd": "DP-SGD",
    "relaxloss": "RelaxLoss",
    "mmd_mixup": "mixup with MMD",
}


def label(info: dict, recipe: dict) -> str:
    """Networks and queries in words: "digits, ResNet14 (d5ec), dropout 0.02, 3 queries"."""
    return ", ".join([trained(info, recipe), *queried(info), *left_out(info, recipe)])


def left_out(info: dict, recipe: dict) -> list[str]:
    """What a query of a part of a pool was about, in words; [] for all models and images."""
    words = []
    models = len(info.get("models") or ())
    if 0 < models < recipe.get("num_models", 0):
        words.append(f"{models} of {recipe['num_models']} models")
    if info.get("limit"):
        words.append(f"limit {info['limit']:,}")
    return words


def trained(info: dict, recipe: dict, *, made: str = "") -> str:
    """The networks in words: "digits, TinyCNN as spiking network, T = 1, hybrid (d5ec)".

    Parameters:
        info: the record of the query
        recipe: the recipe of the training
        made: the way spiking networks were made; the recipe's where empty
    """
    network = " ".join(NAMES.get(word, word) for word in info.get("family", "?").split())
    if "base" in info and info.get("timesteps"):
        base = NAMES.get(info["base"], info["base"])
        network = f"{base} as spiking network, T = {info['timesteps']}, {made or way(recipe)}"
    parts = []
    for part in (info.get("dataset"), network, recipe.get("defense")):
        if part:
            parts.append(NAMES.get(part, part))
    words = ", ".join(parts)
    return f"{words} ({info['pool'][:4]})" if info.get("pool") else words


def way(recipe: dict) -> str:
    """The way spiking networks were made, in a word."""
    if not recipe.get("parent"):
        return "direct"
    return "hybrid" if recipe.get("epochs") else "converted"


def queried(info: dict) -> list[str]:
    """The query of networks, in words; [] for one plain query at the end of training."""
    words = []
    if info.get("epoch"):
        words.append(f"epoch {info['epoch']}")
    if info.get("output"):
        words.append(f"behind {info['output']}")
    kind = info.get("draws", "plain")
    how = {"steps": "step by step", "noise": "with noise", "plain": ""}.get(kind, kind)
    if info.get("noise") is False:
        how = "noise off"
    if info.get("input_dropout"):
        how += f" {info['input_dropout']:g}"
    if how:
        words.append(how)
    count = info.get("queries", 1)
    if count > 1:
        words.append(f"{count} queries")
    if info.get("activity"):
        words.append("with activity")
    return words


def with_interval(value: float, low: float, high: float, form: str = ".3f") -> str:
    """A value and its interval: "0.617 [0.547, 0.685]"; n/m for an unknown value or interval."""
    if np.isnan(value):
        return NOT_MEASURABLE
    interval = NOT_MEASURABLE
    if np.isfinite([low, high]).all():
        interval = f"{in_digits(low, form)}, {in_digits(high, form)}"
    return f"{in_digits(value, form)} [{interval}]"


def number_text(number: float, form: str = ".3g") -> str:
    """A number in a format; n/m for NaN."""
    return NOT_MEASURABLE if np.isnan(number) else in_digits(number, form)


def remarks(texts: Iterable[str]) -> str:
    """The note of a view: the texts, each once and without empty ones, joined by semicolons."""
    return "; ".join(dict.fromkeys(filter(None, texts)))
