"""RMIA at a temperature that is chosen on the references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mia_nb.arguments import Anything, Array, Count
from mia_nb.attacks.inputs import combination, count_sides
from mia_nb.attacks.reading import combined, select_lazily
from mia_nb.attacks.reference import rmia
from mia_nb.attacks.summaries import Confidences, confidences_of, left_out
from mia_nb.checks import checked
from mia_nb.types import Signals, pair_ids

TEMPERATURES = (1.0, 1.5, 2.0, 3.0)
LOWEST_RATE = 0.001  # of the false positive rates that count in the choice
FEWEST_FALSE = 10  # non-members above the lowest threshold: fewer are noise
RATES = 20  # number of false positive rates that count in the choice
MOST_PLAYERS = 8  # references that play the target
MOST_SAMPLES = 25_000  # samples that a temperature is chosen on


class Tuned(NamedTuple):
    """What `rmia_tuned` reads of the references of a target."""

    temperature: float
    confidences: Confidences  # at this temperature


@checked
def rmia_tuned(
    target: Signals,
    references: Signals | None = None,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    combine: str | None = None,
    missing: str = "raise",
    seed: Count = 0,
    summary: Anything = None,
) -> np.ndarray:
    """`rmia` on margins divided by a temperature that is chosen on the references alone.

    RMIA compares probabilities, so differences of margins hardly count for samples whose
    probability is nearly 1 in every model. A temperature above 1 makes them count; how much of them
    is signal depends on the networks. To choose it, at most 8 references play the target in turn,
    on at most 25,000 samples, with their complements held out. Temperatures are compared with the
    first one by two measures: the AUC, and the mean logarithm of the true positive rate over false
    positive rates from 0.1 % (or where 10 non-members are accused) to 50 %, equally spaced on a
    logarithmic axis. Of those whose lead, averaged over the pseudo-targets, is above its standard
    error in both measures, the one with the largest mean logarithm is taken; if there is none, the
    first.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        temperatures: to choose from, each above 0; the first is preferred.
        combine: how queries are combined, as in `rmia`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        seed: of the choice of pseudo-targets and samples.
        summary: `Tuned` of the references, where it is known; None: chosen here.

    Returns:
        (N,) scores of `rmia` at the temperature chosen; at the first one, if none is clearly better
        or there are too few references or non-members to choose.

    Raises:
        ValueError: as `rmia` does, and for options out of their range.

    Source: Zarifzadeh, Liu, Shokri 2024, who use one softmax temperature for every target; choosing
    it on the references is ours. Caveat: with hardly trained networks the temperatures do not
    differ clearly, and this is plain RMIA.
    """
    if summary is None:
        count_sides("rmia_tuned", target, references, ("in", "out"), missing)
        one_unit = np.zeros(references.shape[0], int)
        options = {"temperatures": temperatures, "combine": combine, "seed": seed}
        _, summary = next(tuned_outside(references, one_unit, {-1}, **options))
    else:
        count_sides("rmia_tuned", target, references, ("in", "out"), missing, summary.confidences)
    return rmia(
        replace(target, margin=target.margin / summary.temperature),
        references,
        combine=combine,
        missing=missing,
        summary=summary.confidences,
    )


@checked
def tuned_outside(
    pool: Signals,
    unit: Array,
    wanted: Anything,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    combine: str | None = None,
    seed: Count = 0,
) -> Iterator[tuple[int, Tuned]]:
    """For every wanted unit, its number and what `rmia_tuned` reads of all models outside it.

    Parameters:
        pool: signals of all models, membership included.
        unit: (M,) number of each model's unit, as in `summaries.left_out`.
        wanted: set of numbers of units; -1 stands for a unit without models.
        temperatures, combine, seed: as in `rmia_tuned`.

    Returns:
        an iterator of pairs (number, `Tuned`), in no particular order.

    Raises:
        ValueError: for options out of their range.

    The seed draws the same few positions among the references of every unit, so that few models
    play the target in all, and units share the reading of the references: M models take about
    M log M readings, not M^2.
    """
    if not temperatures or not all(0 < temperature < np.inf for temperature in temperatures):
        raise ValueError(f"temperatures={temperatures!r}: wanted one or several numbers above 0")
    combine = combination("rmia", pool.query_kind, combine)
    pair = _pairs(pool)
    best: dict[int, float] = {}
    outside = {number: np.flatnonzero(unit != number) for number in wanted}
    for count in {len(rows) for rows in outside.values()}:
        rng = np.random.default_rng(seed)
        positions = rng.permutation(count)[:MOST_PLAYERS]
        samples = rng.permutation(np.flatnonzero(~pool.population))[:MOST_SAMPLES]
        chosen_on = pool.select(samples=np.sort(samples))
        players = {}
        for number, rows in outside.items():
            if len(rows) == count:
                players[number] = rows[positions]
        best |= _best_temperatures(chosen_on, unit, pair, players, temperatures, combine)
    return _tuned(pool, unit, best, combine)


def _tuned(
    pool: Signals, unit: np.ndarray, best: dict[int, float], combine: str
) -> Iterator[tuple[int, Tuned]]:
    """What `tuned_outside` gives, from the best temperature of each unit."""
    for temperature in sorted(set(best.values())):
        numbers = {number for number in best if best[number] == temperature}
        everyone = np.ones(len(unit), bool)
        outside = _confidences_outside(
            pool, unit, numbers, everyone, combine, temperature=temperature
        )
        for number, confidences in outside:
            yield number, Tuned(temperature, confidences)


def _pairs(pool: Signals) -> np.ndarray:
    """(M,) number of each model's pair: what is held out where it plays the target."""
    informative = ~(pool.population | pool.member.all(0))
    return pair_ids(pool.member[:, informative])


def _cooled(signals: Signals, combine: str, temperature: float) -> Signals:
    """The signals at a temperature, with queries combined once, as `rmia` does."""
    margin = combined(signals.margin / temperature, combine)
    return replace(signals.select(queries=slice(margin.shape[1])), margin=margin)


def _confidences_outside(
    pool: Signals,
    unit: np.ndarray,
    wanted: set[int],
    kept: np.ndarray,
    combine: str,
    *,
    temperature: float | None = None,
) -> Iterator[tuple[int, Confidences | None]]:
    """For every wanted unit, its number and the confidences at a temperature of the models outside
    it that are `kept` (M,) bool; None where no model is left.
    """

    def read(rows: np.ndarray) -> Confidences:
        return confidences_of(select_lazily(pool, rows[kept[rows]], temperature), combine)

    return left_out(unit, wanted, read)


def _best_temperatures(
    signals: Signals,
    unit: np.ndarray,
    pair: np.ndarray,
    players: dict[int, np.ndarray],
    temperatures: Sequence[float],
    combine: str,
) -> dict[int, float]:
    """For every unit, the temperature at which models outside it find each other's members best.

    Parameters:
        signals: of all models, on the samples to choose on.
        unit: (M,) number of each model's unit.
        pair: (M,) number of the pair that is held out where a model plays the target.
        players: for every unit, the rows of the models outside it that play the target in turn.
        temperatures: to choose from.
        combine: how queries are combined.
    """
    units_of_player: dict[int, set[int]] = {}
    # of each player at each temperature; NaN where it cannot be measured
    area_and_rate = {}
    for number, rows in players.items():
        area_and_rate[number] = np.full((len(rows), len(temperatures), 2), np.nan)
        for row in rows.tolist():
            units_of_player.setdefault(row, set()).add(number)
    for column, temperature in enumerate(temperatures):
        cooled = _cooled(signals, combine, temperature)
        for row, numbers in units_of_player.items():
            for number, score in _scores_of_player(cooled, unit, pair, row, numbers, combine):
                measured = _area_and_log_rate(score, signals.member[row])
                area_and_rate[number][players[number] == row, column] = measured
    return {number: _clearly_best(area_and_rate[number], temperatures) for number in players}


def _scores_of_player(
    signals: Signals,
    unit: np.ndarray,
    pair: np.ndarray,
    row: int,
    numbers: set[int],
    combine: str,
) -> Iterator[tuple[int, np.ndarray]]:
    """For each of these units, its number and the `rmia` scores (N,) of the model in this row. Its
    references are the models outside the unit and its pair; a unit that leaves none is left out.
    """
    pseudo_target = signals.select(models=slice(row, row + 1)).hide()
    kept = pair != pair[row]
    for number, confidences in _confidences_outside(signals, unit, numbers, kept, combine):
        references = np.flatnonzero(kept & (unit != number))
        if not len(references):
            continue
        score = rmia(
            pseudo_target,
            select_lazily(signals, references),
            combine=combine,
            missing="nan",
            summary=confidences,
        )
        yield number, score


def _clearly_best(measured: np.ndarray, temperatures: Sequence[float]) -> float:
    """The temperature of the largest mean log rate among those clearly better than the first; the
    first if there is none.

    measured: (pseudo-targets, temperatures, 2) AUC and mean log rate, NaN where not measurable.
    """
    first = temperatures[0]
    lead = measured - measured[:, :1]
    lead = lead[np.isfinite(lead).all((1, 2))]
    if len(lead) < 2:
        return first
    error = lead.std(0, ddof=1) / np.sqrt(len(lead))
    clear = (lead.mean(0) > error).all(1)
    if not clear.any():
        return first
    log_rate = lead.mean(0)[:, 1]
    return temperatures[int(np.where(clear, log_rate, -np.inf).argmax())]


def _area_and_log_rate(score: np.ndarray, member: np.ndarray) -> tuple[float, float]:
    """(AUC; mean log true positive rate over RATES false positive rates from LOWEST_RATE to 1/2).

    NaN where too few samples are scored. The second is the area below the ROC on two logarithmic
    axes, up to a factor and a constant.
    """
    scored = np.isfinite(score)
    others = np.sort(score[scored & ~member])
    members = np.sort(score[scored & member])
    n0 = len(others)
    n1 = len(members)
    if n0 < 4 * FEWEST_FALSE or not n1:
        return np.nan, np.nan
    below = np.searchsorted(others, members, "left")
    up_to = np.searchsorted(others, members, "right")
    area = float((below + up_to).mean() / 2 / n0)  # a tie counts half
    lowest = max(LOWEST_RATE, FEWEST_FALSE / n0)
    false_positives = np.floor(np.geomspace(lowest, 0.5, RATES) * n0).astype(int)
    thresholds = others[n0 - 1 - false_positives]
    tpr = 1 - np.searchsorted(members, thresholds, "right") / n1
    return area, float(np.log(np.maximum(tpr, 1 / n1)).mean())
