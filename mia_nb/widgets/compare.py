"""Stored results side by side, and the settings of recipe and query in which they differ."""

import re
from collections.abc import Iterable, Sequence

import pandas as pd

from mia_nb.widgets.contrast import (
    contrast_of,
    numbers_table,
    offered_attacks,
    offered_targets,
    pictures_of,
    short_names,
)
from mia_nb.widgets.controls import Ticks, chooser, dropdown
from mia_nb.widgets.explorer import Explorer, View, message
from mia_nb.widgets.families import Outputs
from mia_nb.widgets.matching import without
from mia_nb.widgets.stored import NOTHING, Source, list_of_sources, named

TITLE = "Run comparison"
MOST_BESIDE = 3  # results beside the first
ABSENT = "-"
# entries of info that say which results these are, not how they were made
IDENTITY = (
    "pool",
    "models",
    "key",
    "family",
    "recipe",
    "classes",
    "images",
    "example",
    "activity",
    "operations",
    "made_from",
)


def compare(sources: Sequence[Source]) -> Explorer:
    """Up to four stored results under one attack, and the settings that differ.

    Parameters:
        sources: stored results to choose from, as `widgets.sources` lists them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Differences are to the pool on top. They are paired (`metrics.difference`: the same samples and
    pairs of targets in each resample) where the same images were queried and the pools share their
    member masks row by row, and are left out otherwise.

    Caveat: at unequal test accuracies a lower risk may be the price of a worse model: compare at
        equal accuracy.
    """
    pools = named(list_of_sources(sources))
    if not pools:
        return message(TITLE, NOTHING)

    def shown_of(pool: str, beside: tuple[str, ...]) -> tuple[Outputs, ...]:
        """The result on top, and the results that are ticked beside it."""
        first = Outputs(pool, pools[pool])
        return first, *(Outputs(name, pools[name], reference=first) for name in beside)

    def draw(pool: str, attack: str, target: int | str, beside: tuple[str, ...]) -> View:
        """The results side by side, and the settings in which they differ."""
        shown = shown_of(pool, beside)
        contrast = contrast_of(shown, attack, target)
        settings = differing_settings(shown)
        long = pd.concat(contrast.tables.values(), ignore_index=True)
        texts = by_column(numbers_table(long, shown[0]).merge(settings, on="family"))
        # leave out what a summary has already, such as the number of queries
        new = [name for name in settings if name == "family" or name not in long]
        long = long.merge(settings[new], on="family")
        figures = pictures_of(shown, attack, target)
        return contrast.view(figures, texts, long, contrast.notes())

    def still_beside(pool: str, beside: tuple[str, ...]) -> tuple[str, ...]:
        """What is ticked but is not on top; the first other result if that is nothing."""
        return all_but(beside, pool) or all_but(pools, pool)[:1]

    others = tuple(pools)[1:]  # the first stands on top
    controls = {
        "pool": chooser("pool", pools),
        "attack": dropdown("attack"),
        "target": dropdown("target"),
        "beside": Ticks("beside it", others, others[:1], limit=MOST_BESIDE),
    }
    follow = {
        "beside": {
            "options": lambda pool: all_but(pools, pool),
            "value": still_beside,
        },
        "attack": {"options": lambda pool, beside: offered_attacks(shown_of(pool, beside))},
        "target": {"options": lambda pool, beside: offered_targets(shown_of(pool, beside))},
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        question="Two results differ: in what, and is it more than chance?",
        rows=[["histogram"], ["roc"]],
        follow=follow,
        pools=pools,
        heights={"histogram": 200, "roc": 260},  # names of results are long
        shares={"roc": 2},
    )


def by_column(texts: pd.DataFrame) -> pd.DataFrame:
    """The table with a column for each result, as there may be many settings."""
    texts = texts.drop(columns="")  # no arrow at the chosen result, which is the first
    texts["family"] = list(short_names(texts["family"]).values())
    return texts.set_index("family").T.rename_axis(None, axis=1).reset_index(names="")


def differing_settings(shown: Sequence[Outputs]) -> pd.DataFrame:
    """A table with the column family, and a column for each setting in which these differ."""
    records = {outputs.name: settings_of(outputs.source) for outputs in shown}
    return differences(records).T.rename_axis("family").reset_index()


def settings_of(source: Source) -> dict:
    """Recipe and query of one result as {dotted name: value}. Where both have a name with different
    values, the query's gets "query." before it.
    """
    recipe = flat(source.recipe)
    query = flat(without(source.info, *IDENTITY))
    settings = dict(recipe)
    for name, value in query.items():
        is_other = name in recipe and recipe[name] != value
        settings[f"query.{name}" if is_other else name] = value
    return settings


def flat(record: dict) -> dict:
    """{dotted name: value} of a nested record."""
    return pd.json_normalize([record]).to_dict("records")[0]


def differences(records: dict[str, dict]) -> pd.DataFrame:
    """The settings in which records {name: {setting: value}} differ, a row each; "-" where a record
    lacks one or has None.
    """
    texts = {}
    for name, record in records.items():
        texts[name] = {setting: text(value) for setting, value in record.items()}
    table = pd.DataFrame(texts).fillna(ABSENT)
    return table[table.nunique(axis=1) > 1]


def text(value: object) -> str:
    """A setting as it is printed; of a pool's key the first eight letters."""
    if value is None:
        return ABSENT
    if isinstance(value, float):
        return f"{value:.6g}"
    is_key = re.fullmatch("[0-9a-f]{64}", str(value))
    return str(value)[:8] if is_key else str(value)


def all_but(names: Iterable[str], name: str) -> tuple[str, ...]:
    """The names without this one."""
    return tuple(other for other in names if other != name)
