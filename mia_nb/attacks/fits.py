"""The two densities that `lira` and `nig` compare at a sample's margin, for figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from mia_nb.attacks.inputs import Sides, combined_margin, count_sides
from mia_nb.attacks.likelihood import nig_predictives, variance_of
from mia_nb.attacks.summaries import worlds_of
from mia_nb.checks import one_of
from mia_nb.types import Signals


class Fit(NamedTuple):
    """The two densities of each sample's margin that an attack compares: arrays (2, N), row 0 IN,
    row 1 OUT, margins in nats.

    Each is Student's t with `freedom` degrees of freedom; infinite ones make it a Gaussian. NaN
    where a side has no references.
    """

    centre: np.ndarray
    scale: np.ndarray  # standard deviation of the Gaussian, scale of Student's t
    freedom: np.ndarray
    n: np.ndarray  # references on the side

    def of(self, sample: int) -> Fit:
        """The fit of one sample, arrays (2, 1)."""
        return Fit(*(part[:, sample : sample + 1] for part in self))

    def log_density(self, phi: np.ndarray) -> np.ndarray:
        """log densities IN and OUT, (2, N), of margins phi (N,).

        In a fit of N samples, margin i belongs to sample i; in a fit of one sample (`of`), all
        margins belong to it.
        """
        z = (phi - self.centre) / self.scale
        if np.isinf(self.freedom).all():
            return -(z**2 + np.log(2 * np.pi)) / 2 - np.log(self.scale)
        a = self.freedom / 2
        log_constant = gammaln(a + 0.5) - gammaln(a) - np.log(2 * np.pi * a) / 2
        return log_constant - np.log(self.scale) - (a + 0.5) * np.log1p(z**2 / (2 * a))

    def log_ratio(self, phi: np.ndarray) -> np.ndarray:
        """log density IN - log density OUT: the attack's score of margins phi (N,)."""
        inside, outside = self.log_density(phi)
        return inside - outside


def lira_fit(
    target: Signals,
    references: Signals,
    *,
    variance: str = "shrunk",
    combine: str = "margin",
) -> tuple[np.ndarray, Fit]:
    """The target's margins (N,), and the Gaussians that `lira` compares at them.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        variance: per_sample, global or shrunk.
        combine: one margin for all queries, a name of `combine_queries`.

    The fit's log_ratio of the margins is the score of `lira` with these options, NaN where a side
    is missing. Raises ValueError for variance="auto", and where no sample has two references on a
    side, which a variance needs.
    """
    one_of("variance", variance, ("per_sample", "global", "shrunk"))
    sides = count_sides("lira", target, references, ("in", "out"), "nan")
    world_in, world_out = worlds_of(references, combine).of(0)
    v_out = variance_of("OUT", world_out, sides.audited, variance, 1)
    v_in = variance_of("IN", world_in, sides.audited, variance, 1)
    means = (world_in.mean, world_out.mean)
    return combined_margin(target, combine), _fit(sides, means, (v_in, v_out), (np.inf, np.inf))


def nig_fit(
    target: Signals,
    references: Signals,
    *,
    combine: str = "margin",
) -> tuple[np.ndarray, Fit]:
    """The target's margins (N,), and the Student t predictives that `nig` compares at them.

    Parameters:
        target: signals of one model.
        references: signals of the other models, membership included.
        combine: one margin for all queries, a name of `combine_queries`.

    The fit's log_ratio of the margins is the score of `nig` with this `combine` and
    allow_unequal=True, NaN where a side is missing.
    """
    sides = count_sides("nig", target, references, ("in", "out"), "nan")
    world_in, world_out = worlds_of(references, combine).of(0)
    centre, a, c = nig_predictives(world_in, world_out, sides.audited)
    return combined_margin(target, combine), _fit(sides, centre, c, (2 * a, 2 * a))


def _fit(
    sides: Sides,
    centre: Sequence[np.ndarray],
    variance: Sequence[np.ndarray],
    freedom: Sequence[np.ndarray | float],
) -> Fit:
    """The fit from (IN, OUT) pairs of arrays (N,); NaN where a side has no references."""
    n = np.stack([sides.n_in, sides.n_out])
    present = np.where(n > 0, 1.0, np.nan)
    freedom = np.stack([np.broadcast_to(degrees, n.shape[1:]) for degrees in freedom])
    return Fit(
        np.stack(centre) * present,
        np.sqrt(np.stack(variance)) * present,
        freedom,
        n,
    )
