"""RMIA at a temperature that is chosen on the references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mia_nb.arguments import Count, Positive, Several
from mia_nb.attacks.inputs import sides
from mia_nb.attacks.reference import rmia
from mia_nb.checks import checked
from mia_nb.types import Signals

TEMPERATURES = (1.0, 1.5, 2.0, 3.0)
LOWEST_RATE = 0.001  # of the false positive rates that count in the choice
FEWEST_FALSE = 10  # non-members above the lowest threshold: fewer are noise
RATES = 20


@checked
def rmia_tuned(
    target: Signals,
    references: Signals | None = None,
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    pseudo: Several = 8,
    max_rows: Positive = 200_000,
    combine: str | None = None,
    missing: str = "raise",
    seed: Count = 0,
) -> np.ndarray:
    """`rmia` on margins divided by a temperature, which is chosen without looking at the target.

    RMIA compares probabilities: samples whose probability is nearly 1 in every model hardly count,
    whatever their margins say. Divided by a temperature above 1, margins keep more of what they
    say; how much of it is signal depends on the networks. So references play the target in turn,
    their own complements held out, and the temperature at which their members are found best is
    taken: by the mean logarithm of the true positive rate over false positive rates from 0.1 % (or
    where 10 non-members are accused) to 50 %, equally spaced on a logarithmic axis. Another
    temperature than the first is taken only where its lead over the first, averaged over the
    pseudo-targets, is above its standard error in that measure and in the AUC.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        temperatures: to choose from, each above 0; the first is preferred.
        pseudo: most references that play the target, 2 or more.
        max_rows: most pairs (pseudo-target, sample) to choose on; the same samples for each.
        combine: how queries are combined, as in `rmia`.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.
        seed: of the choice of pseudo-targets and samples.

    Returns:
        (N,) scores of `rmia` at the temperature chosen; at the first one, if that one is the best
        or there are too few references or non-members to choose.

    Raises:
        ValueError: as `rmia` does, and for options out of their range.

    Source: Zarifzadeh, Liu, Shokri 2024, whose temperature is that of the softmax and is the same
    for every target; choosing it on the references is ours. Caveat: with hardly trained networks
    differences between temperatures are not resolved, and this is plain RMIA.
    """
    if not temperatures or not all(0 < one < np.inf for one in temperatures):
        raise ValueError(f"temperatures={temperatures!r}: wanted one or several numbers above 0")
    sides("rmia_tuned", target, references, ("in", "out"), missing)
    best = _best_temperature(references, temperatures, pseudo, max_rows, combine, seed)
    return rmia(_cooled(target, best), _cooled(references, best), combine=combine, missing=missing)


def _cooled(signals: Signals, temperature: float) -> Signals:
    return replace(signals, margin=signals.margin / temperature)


def _best_temperature(
    references: Signals,
    temperatures: Sequence[float],
    pseudo: int,
    max_rows: int,
    combine: str | None,
    seed: int,
) -> float:
    """The temperature at which these references' own members are found best."""
    first = temperatures[0]
    rng = np.random.default_rng(seed)
    audited = np.flatnonzero(~references.population)
    pseudo_targets = rng.permutation(references.shape[0])[:pseudo]
    samples = rng.permutation(audited)[: max_rows // pseudo]
    known = references.select(samples=np.sort(samples))
    measured = []  # a pair (AUC, mean log rate) for every temperature and pseudo-target
    for row in pseudo_targets:
        pseudo_target, others = known.hold_out(int(row))
        if not others.shape[0]:
            continue
        member = known.member[row]
        measured.append([])
        for temperature in temperatures:
            score = rmia(
                _cooled(pseudo_target, temperature),
                _cooled(others, temperature),
                combine=combine,
                missing="nan",
            )
            measured[-1].append(_area_and_log_rate(score, member))
    if not measured:
        return first
    lead = np.array(measured) - np.array(measured)[:, :1]
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

    NaN where too few samples are scored to say. The second is the area below the ROC on two
    logarithmic axes, up to a factor and a constant.
    """
    scored = np.isfinite(score)
    outside = np.sort(score[scored & ~member])
    inside = np.sort(score[scored & member])
    if len(outside) < 4 * FEWEST_FALSE or not len(inside):
        return np.nan, np.nan
    below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
    area = float(below.mean() / 2 / len(outside))
    lowest = max(LOWEST_RATE, FEWEST_FALSE / len(outside))
    accused = np.floor(np.geomspace(lowest, 0.5, RATES) * len(outside)).astype(int)
    thresholds = outside[len(outside) - 1 - accused]
    rate = 1 - np.searchsorted(inside, thresholds, "right") / len(inside)
    return area, float(np.log(np.maximum(rate, 1 / len(inside))).mean())
