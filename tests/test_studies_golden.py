"""Verdicts, their evidence and the comparisons behind them are those that were frozen.

Claims, comparisons and phrases of evidence that came later are left out: what is new may stand
beside what was frozen, and may change none of it.
"""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import study_worlds as worlds

from mia_nb import studies
from mia_nb.attacks import NAMES

GOLDEN = Path(__file__).parent / "golden" / "studies"
DIGITS = "%.7g"


def snn():
    for world, settings in worlds.snn_worlds().items():
        compared = studies.comparisons("snn", settings, n_resamples=worlds.DRAWS)
        options = {"comparisons": compared, "n_resamples": worlds.DRAWS}
        yield world, studies.claims("snn", settings, **options), compared


def flow():
    for world, (settings, frontier) in worlds.flow_worlds().items():
        options = {"frontier": frontier, "n_resamples": worlds.DRAWS}
        compared = studies.comparisons("nsde", settings, **options)
        yield world, studies.claims("nsde", settings, comparisons=compared, **options), compared


def privacy():
    for world, (settings, ladders) in worlds.privacy_worlds().items():
        compared = studies.comparisons("privacy", settings, n_resamples=worlds.DRAWS)
        options = {"comparisons": compared, "n_resamples": worlds.DRAWS}
        yield world, studies.claims("privacy", settings, ladders=ladders, **options), compared


def recipes():
    for world, settings in worlds.recipe_worlds().items():
        compared = studies.comparisons("recipes", settings, n_resamples=worlds.DRAWS)
        yield world, studies.claims("recipes", settings, comparisons=compared), compared


def printed():
    for world, (study, settings) in worlds.printed_worlds().items():
        yield (
            world,
            studies.against_papers(study, settings, ours="digits", n_resamples=worlds.DRAWS),
        )


ADDED_LATER = r"[^;]*, as a share of the other side's AUC - 1/2: "  # how a phrase begins


def phrases(text: str) -> str:
    """The same phrases in one order: which claim's rows come first is of no account."""
    kept = [one for one in text.split("; ") if not re.match(ADDED_LATER, one)]
    return "; ".join(sorted(kept))


def claims_of(study) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(verdicts, comparisons) of all worlds of a study, as they are stored."""
    verdicts, comparisons = [], []
    for world, claims, table in study():
        claims = claims.reset_index().assign(world=world)
        claims[["evidence", "compared"]] = claims[["evidence", "compared"]].map(phrases)
        verdicts.append(claims.drop(columns="claim"))
        comparisons.append(table.assign(world=world))
    comparisons = pd.concat(comparisons, ignore_index=True)
    order = ["world", "claim", "part", "metric", "compared", "needed", "value"]
    return pd.concat(verdicts, ignore_index=True), comparisons.sort_values(order)


def named(text: str) -> str:
    """Attacks by their names, which take the place of their keys."""
    keys = [key for key in NAMES if key.startswith(("rmia", "lira", "nig", "attack"))]
    return re.sub(rf"\b({'|'.join(keys)})\b", lambda key: NAMES[key[0]], text)


def agree(table: pd.DataFrame, name: str):
    """The table is the frozen one: numbers to 6 digits, texts exactly; evidence, frozen with the
    keys of attacks, now has their names.
    """
    frozen_claims = pd.read_csv(GOLDEN / f"{name}.csv")
    for column in ("id", "claim"):
        if column in frozen_claims:
            table = table[table[column].isin(frozen_claims[column])]
    texts = StringIO(table.to_csv(index=False, float_format=DIGITS))
    found, wanted = (
        pd.read_csv(file, keep_default_na=False, dtype=str)
        for file in (texts, GOLDEN / f"{name}.csv")
    )
    if "evidence" in wanted:
        wanted["evidence"] = wanted["evidence"].map(named).map(phrases)
    assert set(wanted.columns) <= set(found.columns) and len(found) == len(wanted)
    for column in wanted:
        ours, frozen = (pd.to_numeric(t[column], errors="coerce") for t in (found, wanted))
        np.testing.assert_allclose(ours, frozen, rtol=2e-6, atol=1e-9, err_msg=column)
        is_text = frozen.isna()
        assert found[column][is_text].tolist() == wanted[column][is_text].tolist(), column


@pytest.mark.parametrize(
    "study",
    [snn, pytest.param(flow, marks=pytest.mark.slow), privacy, recipes],
    ids=lambda s: s.__name__,
)
def test_verdicts_and_comparisons_are_those_that_were_frozen(study):
    verdicts, comparisons = claims_of(study)
    agree(verdicts, f"{study.__name__}_claims")
    agree(comparisons, f"{study.__name__}_comparisons")


def test_printed_numbers_stand_beside_ours_as_they_were_frozen():
    for world, table in printed():
        agree(table[table["ours"].notna()], f"printed_{world}")
