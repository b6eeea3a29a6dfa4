"""An attack that uses a spiking network's activity beside its outputs."""

from __future__ import annotations

import warnings

import numpy as np

from mia_nb.arguments import Anything, Count
from mia_nb.attacks.inputs import Sides, count_sides
from mia_nb.attacks.reading import counts, number_blocks, vector_blocks
from mia_nb.attacks.smooth import (
    FLOOR,
    SAMPLES_A_DEGREE,
    Smoother,
    Standardised,
    lira_smooth,
    standardised,
)
from mia_nb.attacks.summaries import worlds
from mia_nb.checks import checked, one_of
from mia_nb.types import Signals

SMALLEST = 1e-6  # eigenvalue, in units of the largest, below which columns are copies
SEEN = {  # {attacker: first words of the names of the columns of `Signals.activity` that it sees}
    "answers": ("answer",),
    "power": ("accumulates",),
    "counts": ("count",),
    "times": ("first",),
    "membranes": ("rest", "charge"),
}


@checked
def spikes(
    target: Signals,
    references: Signals | None = None,
    *,
    see: Anything = "all",
    degree: Count = 6,
    missing: str = "raise",
) -> np.ndarray:
    """Likelihood ratio of the margin, and of the layers' activity given the margin.

    The numbers x_0 to x_F of a sample are its margin and the columns of the network's activity that
    this attacker sees. Their likelihood is that of the margin times that of the activity given the
    margin. The first factor is `lira_smooth`. For the second, z_r is x_r relative to the sample's
    level, in units of its spread, h_r the gap between members and others, and C the covariance of
    the references' residuals, all as in `releases`. A network's habits, by which its activity
    differs from the mean on all samples of a level, are subtracted first: the references are too
    few to estimate the covariance of habits.

        s = lira_smooth + d^T S^-1 e
        slope_r = C_r0 / C_00, S = C_rr' - slope_r C_0r'
        e_r = z_r - slope_r z_0, the part of x_r that the margin does not predict
        d_r = q_r (h_r - slope_r h_0), how much of that is due to membership

    Activity may add nothing to the margin. So d_r is shrunk by q_r, the share of its square that is
    not noise (the positive part of James and Stein's estimate): at q = 0 the score is that of
    `lira_smooth`, and the difference between the two is what activity adds.

    Parameters:
        target: signals of one spiking network, queried with activity=True.
        references: signals of others, queried likewise, membership included.
        see: what the attacker measures, one or several of

            answers    the output after each time step, as a service that streams it
            power      accumulate operations of the whole query: a power meter
            counts     spikes of each layer: activity counters, a probe a core
            times      when neurons of each layer spike first: a trace of events on the bus
            membranes  potentials after the last step: whoever reads the chip's memory

            or "all".
        degree: of the polynomials, 0 to 20, and at most one for every 10 samples.
        missing: "raise" for samples that lack a side, "nan" to leave them unscored.

    Returns:
        (N,) scores, larger = more likely a member; NaN for population samples. Signals without
        activity are scored by `lira_smooth`, with a warning.

    Raises:
        ValueError: for missing sides, activity of other columns, and where no sample has two
            references on either side.

    Source: our own; the likelihood ratio is that of Carlini et al. 2022. Caveat: activity is a
    summary of each layer, so a null result says nothing about single neurons. Habits are learned
    on all audited samples, of which about half should be members.

    Example:
        scores = score("spikes", query(pool, images, activity=True))
    """
    if target.activity is None or references is None or references.activity is None:
        warnings.warn(
            "spikes: no activity in these signals, so the margins alone were read: query spiking"
            " networks with activity=True",
            stacklevel=2,
        )
        return lira_smooth(target, references, degree=degree, missing=missing)
    sides = count_sides("spikes", target, references, ("in", "out"), missing)
    names = target.info["activity"]
    if references.info["activity"] != names:
        raise ValueError(
            f"spikes: target ({len(names)} columns of activity) and references"
            f" ({len(references.info['activity'])}) show other columns: query both alike"
        )
    score = lira_smooth(target, references, degree=degree, missing=missing)
    seen = _columns_seen(names, see)
    if not seen:
        return score
    target_activity = target.activity[0][:, seen].T
    reference_activity = references.activity[:, :, seen].swapaxes(1, 2)
    activity = _without_habits(target_activity, reference_activity, references, sides, degree)
    target_numbers = np.concatenate([target.margin[0], activity[0]])
    reference_numbers = np.concatenate([references.margin, activity[1:]], axis=1)
    numbers = number_blocks(reference_numbers, references.member)
    summary = worlds(numbers, counts(references), len(target_numbers))
    blocks = vector_blocks(reference_numbers, references.member)
    parts = standardised("spikes", target_numbers, blocks, sides, summary, degree, leading=1)
    return score + _gain_of_activity(parts, sides)


def _without_habits(
    target_activity: np.ndarray,
    reference_activity: np.ndarray,
    references: Signals,
    sides: Sides,
    degree: int,
) -> np.ndarray:
    """(1 + M, R, N) activity of target and references without the habits of each network.

    A habit is a difference from the mean of the references that is the same on all samples of a
    level, so it says nothing about the membership of a single sample.
    """
    margin = np.mean(references.margin[:, 0], axis=0)
    audited = sides.audited
    degree = min(degree, int(audited.sum()) // SAMPLES_A_DEGREE)
    curves = Smoother(margin[audited], degree)
    usual = reference_activity.mean(0, dtype=float)
    networks = (target_activity, *reference_activity)
    without_habits = np.empty((len(networks), *target_activity.shape))
    for row, activity in enumerate(networks):
        for number, difference in enumerate(activity - usual):
            habit = curves.fitted(difference[audited], margin)
            without_habits[row, number] = activity[number] - habit
    return without_habits


def _gain_of_activity(parts: Standardised, sides: Sides) -> np.ndarray:
    """(N,) log-likelihood ratio of the activity given the margin, d^T S^-1 e."""
    slopes = parts.shared[1:, 0] / parts.shared[0, 0]
    covariance = parts.shared[1:, 1:] - np.outer(slopes, parts.shared[0, 1:])  # S
    unit = np.sqrt(np.maximum(np.diag(covariance), FLOOR))[:, None]
    unpredicted = (parts.target[1:] - slopes[:, None] * parts.target[0]) / unit  # e
    gap = (parts.gap[1:] - slopes[:, None] * parts.gap[0]) / unit
    learned = parts.learned
    gap_variance = (1 / sides.n_in[learned] + 1 / sides.n_out[learned]).mean()
    # mean square of a fitted gap where the true one is 0
    noise = gap_variance * (parts.degree + 1) / learned.sum()
    mean_square = (gap[:, learned] ** 2).mean(1)
    shrinkage = np.maximum(1 - noise / np.maximum(mean_square, FLOOR), 0)  # q
    gap *= shrinkage[:, None]  # d
    # a pseudo-inverse, since columns may be copies of each other
    inverse = np.linalg.pinv(covariance / unit / unit.T, rcond=SMALLEST, hermitian=True)
    return np.einsum("rn,rn->n", inverse @ gap, unpredicted)


def _columns_seen(names: list[str], see: str | list[str] | tuple[str, ...]) -> list[int]:
    """The numbers of the columns that this attacker sees; ValueError for an unknown word."""
    if see == "all":
        attackers = list(SEEN)
    elif isinstance(see, str):
        attackers = [see]
    else:
        attackers = see
    measures: list[str] = []
    for attacker in attackers:
        measures += SEEN[one_of("see", attacker, (*SEEN, "all"))]
    seen = []
    for number, name in enumerate(names):
        measure = name.split(" ")[0]
        if measure in measures:
            seen.append(number)
    return seen
