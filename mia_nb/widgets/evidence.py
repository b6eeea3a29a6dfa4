"""What reference models say about a sample: fits of its margins in models that trained on it and in
models that did not, beside the target's own margin.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mia_nb.attacks.fits import Fit, lira_fit, nig_fit
from mia_nb.attacks.likelihood import NU0
from mia_nb.metrics.pairs import units
from mia_nb.types import Signals
from mia_nb.widgets.stored import Source

# variances of the Gaussians: {name on the page: name in `lira`}
VARIANCES = {"global": "global", "shrunk": "shrunk", "per sample": "per_sample"}
# their degrees of freedom beyond those of the references
PRIOR_FREEDOM = {"global": np.inf, "shrunk": NU0, "per sample": 0.0}
DRAWS = 2000  # draws of fits given the references


class Evidence(NamedTuple):
    """The evidence of k references a side about every sample of one target, as arrays over the
    columns of the signals, population included.
    """

    references: Signals
    target_margins: np.ndarray  # (N,)
    gaussian: Fit | None  # None: too few references for a variance
    student: Fit
    log_ratios: np.ndarray  # (N,) of the Gaussians, or of Student's t where there are none
    flags: list[str]


class SampleEvidence(NamedTuple):
    """The evidence about one sample; intervals are NaN where the references are too few."""

    target_margin: float
    n_in: int  # references that trained on it
    n_out: int
    gap: float  # centre of the IN margins less the centre of the OUT margins
    gap_low: float
    gap_high: float
    log_ratio: float  # of the Gaussians, or of Student's t where there are none
    ratio_low: float
    ratio_high: float
    is_gaussian: bool
    student_log_ratio: float


@lru_cache(4)
def references(source: Source, target: int) -> np.ndarray:
    """(R,) the places of the target's references in the signals, pair by pair."""
    members = source.signals.member[:, source.audited]
    models = source.signals.reference_rows(target)
    if members.all() or not members.any():
        raise ValueError(
            f"either all models of {source.label} or none were trained on these samples: query"
            " images that only some saw"
        )
    if not len(models):
        raise ValueError(
            f"target {target} of {source.label} has no references but its complementary model:"
            " train two pairs or more"
        )
    return models[np.argsort(units(members[models]), kind="stable")]


@lru_cache(64)
def evidence_of(source: Source, target: int, k: int, variance: str) -> Evidence:
    """The evidence of the first k references a side; its flags are the warnings of its fits, and
    the reason if there is no Gaussian.

    Parameters:
        source: source of the signals
        target: the target's place in the signals
        k: references a side
        variance: one of `VARIANCES`
    """
    target_signals = source.signals.select(models=[target]).hide()
    used = source.signals.select(models=references(source, target)[: 2 * k])
    combine = "last" if used.query_kind == "steps" else "margin"
    margins, student, flags = with_warnings(nig_fit, target_signals, used, combine=combine)
    gaussian = None
    try:
        _, gaussian, lira_flags = with_warnings(
            lira_fit, target_signals, used, variance=VARIANCES[variance], combine=combine
        )
    except ValueError as error:  # one reference a side
        lira_flags = [str(error)]
    log_ratios = (gaussian or student).log_ratio(margins)
    return Evidence(used, margins, gaussian, student, log_ratios, [*flags, *lira_flags])


def with_warnings(
    fit: Callable[..., tuple[np.ndarray, Fit]], *signals: Signals, **options: str
) -> tuple[np.ndarray, Fit, list[str]]:
    """(the target's margins, the fit, the texts of its warnings, each once) of one attack's fit."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", UserWarning)
        margins, densities = fit(*signals, **options)
    texts = [str(warning.message) for warning in raised]
    return margins, densities, list(dict.fromkeys(texts))


def of_sample(evidence: Evidence, column: int, variance: str) -> SampleEvidence:
    """The evidence about the sample in this column of the signals."""
    margin = float(evidence.target_margins[column])
    student = evidence.student.of(column)
    fit = student if evidence.gaussian is None else evidence.gaussian.of(column)
    n = fit.n[:, 0]
    n_in, n_out = n
    centre_in, centre_out = fit.centre[:, 0]
    freedom = n - 1.0 + PRIOR_FREEDOM[variance]
    gap_low, gap_high, ratio_low, ratio_high = np.full(4, np.nan)
    if evidence.gaussian is not None and n.min() > 0 and freedom.min() > 0:
        (gap_low, gap_high), (ratio_low, ratio_high) = intervals_of_fit(fit, margin, freedom)
    return SampleEvidence(
        target_margin=margin,
        n_in=n_in,
        n_out=n_out,
        gap=float(centre_in - centre_out),
        gap_low=gap_low,
        gap_high=gap_high,
        log_ratio=float(evidence.log_ratios[column]),
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        is_gaussian=evidence.gaussian is not None,
        student_log_ratio=float(student.log_ratio(margin)[0]),
    )


def intervals_of_fit(fit: Fit, margin: float, freedom: np.ndarray) -> np.ndarray:
    """95 % intervals of m_in - m_out and of the log likelihood ratio at a margin, for the Gaussians
    of one sample; (2, 2), a row per interval.

    For both worlds v = s^2 freedom / chi2(freedom) and m ~ N(centre, v / n) are drawn. freedom
    (2,): the degrees of freedom of each world, above 0, infinite where v is known.
    """
    rng = np.random.default_rng(0)
    is_known = np.isinf(freedom)[:, None]
    degrees = np.where(is_known, 1.0, freedom[:, None])
    factor = np.where(is_known, 1.0, degrees / rng.chisquare(degrees, (2, DRAWS)))
    scale = fit.scale * np.sqrt(factor)
    centre = fit.centre + scale / np.sqrt(fit.n) * rng.standard_normal((2, DRAWS))
    ratio = Fit(centre, scale, np.full_like(scale, np.inf), fit.n).log_ratio(margin)
    return np.quantile([centre[0] - centre[1], ratio], [0.025, 0.975], axis=1).T
