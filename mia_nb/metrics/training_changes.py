"""What changes of the training achieved in this project's own studies, as table and sentences."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from mia_nb._yaml import read_yaml_file
from mia_nb.types import Recipe

ROWS = 2  # of `advice` that become sentences
UNKNOWN_TRAINING = (
    "What lowers a leak at equal accuracy depends on how the model was trained: the page Results of"
    " the documentation lists what changes of the training bought in this project's own studies of"
    " images, which promise nothing for yours."
)


def advice(recipe: Recipe | None = None) -> pd.DataFrame:
    """What changes of the training achieved in this project's own studies; changes that cost no
    accuracy come first.

    Parameters:
        recipe: of the models to change. Only changes are given that were measured on such networks
            and start from such epochs, augmentation and defense. None: all changes.

    Returns:
        columns change, found, price, recipe, source, read from `advice.yaml` beside this file,
        where each row quotes the committed lines that its numbers come from.

    Caveat: measured on these recipes and images; no promise for others.
    """
    entries = read_yaml_file(Path(__file__).with_name("advice.yaml"))
    if recipe is not None:
        entries = [entry for entry in entries if _applies(entry["applies"], recipe)]
    columns = ["change", "found", "price", "recipe", "source"]
    return pd.DataFrame(entries, columns=columns)


def _applies(start: dict, recipe: Recipe) -> bool:
    """Whether a recipe is one that a change starts from.

    start: {model: names, epochs: the fewest, augment, defense}; a missing entry allows any value.
    """
    if recipe.model not in start["model"] or recipe.epochs < start.get("epochs", 0):
        return False
    if recipe.augment != start.get("augment", recipe.augment):
        return False
    defense = recipe.defense or "none"
    return defense == start.get("defense", defense)


def measured_advice(recipe: Recipe | None = None) -> list[str]:
    """The first rows of `advice` for a recipe as sentences; one general sentence where the recipe
    is not known, or no study is on models trained like that.
    """
    if recipe is None:
        return [UNKNOWN_TRAINING]
    table = advice(recipe)
    if table.empty:
        return [UNKNOWN_TRAINING]
    sentences = [
        f"{row.change[0].upper() + row.change[1:]}: {row.found}; price: {row.price};"
        f" measured on {row.recipe}."
        for row in table.head(ROWS).itertuples()
    ]
    promise = "These are this project's own studies, which promise nothing for yours"
    if len(table) > ROWS:
        promise += f"; the page Results of the documentation lists all {len(table)} that fit"
    return [*sentences, f"{promise}."]
