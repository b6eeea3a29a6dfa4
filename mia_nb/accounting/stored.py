"""Epsilon of one stored record: a noisy state and a randomised label, both drawn once."""

from __future__ import annotations

import math

import numpy as np

from mia_nb.accounting.gaussian import bisect, gaussian_epsilon, gaussian_mu, log_delta
from mia_nb.accounting.ranges import WANTED, check
from mia_nb.checks import one_of

RELATIONS = ("replace", "add/remove")  # of neighbouring sets of stored records


def response_epsilon(*, keep: float, classes: int) -> float:
    """ln(keep (classes - 1) / (1 - keep)): epsilon, at delta 0, of a label that is randomised once
    and then kept.

    Parameters:
        keep: probability of the true label, from 1 / classes to 1; otherwise the label is one of
            the other classes, uniformly.
        classes: number of classes, from 2.

    Returns:
        Epsilon of this one label: 0 at keep 1 / classes, infinite at keep 1.

    Raises:
        ValueError: for keep outside [1 / classes, 1] and fewer than 2 classes.

    Source: randomised response (Warner 1965; Kairouz, Oh and Viswanath 2016, arXiv 1407.1338).

    Caveat: it is about the label alone, and each further draw adds as much again.
    """
    check(classes=classes, keep=keep)
    if keep < 1 / classes:
        raise ValueError(f"keep={keep} of {classes} classes: wanted {WANTED['keep'][1]}")
    if keep == 1:
        return math.inf
    return max(0.0, math.log1p(float((keep * classes - 1) / (1 - keep))))


def stored_epsilon(
    *, mu: float, keep: float, classes: int, delta: float, relation: str = "replace"
) -> float:
    """Epsilon at delta of one stored record: a state with a Gaussian trade-off and a label by
    randomised response, both drawn once, taken together exactly.

    Parameters:
        mu: of the states of neighbouring records (`release_mu` with Delta = 2 clip; where a record
            is added or removed, Delta = clip), from 0.
        keep: probability of the true label, from 1 / classes to 1, as in `response_epsilon`.
        classes: number of classes, from 2.
        delta: from 0 to below 1.
        relation: "replace": one record becomes another one. "add/remove": one record takes the
            place of an empty slot, whose state is 0 before the noise and whose label is uniform.

    With the loss l of the label (ln of its two probabilities' ratio), which is independent of that
    of the state, delta(epsilon) = E[gaussian_delta(mu, epsilon - l)]; for "add/remove" the larger
    of both directions.

    Returns:
        Epsilon, rounded up by bisection; at most gaussian_epsilon(mu, delta) + the label's own.
        Infinite where mu is infinite, keep is 1, or delta is 0 and mu is not.

    Raises:
        ValueError: for numbers out of range and an unknown relation.

    Source: the hockey-stick divergence of a product (Dong, Roth and Su, arXiv 1905.02383; Zhu, Dong
    and Wang, arXiv 2106.08567).

    Caveat: `training.proved` states the assumptions.
    """
    check(mu=mu, classes=classes, keep=keep, delta=delta)
    one_of("relation", relation, RELATIONS)
    label_epsilon = response_epsilon(keep=keep, classes=classes)
    if math.isinf(label_epsilon) or math.isinf(mu) or (delta == 0 and mu > 0):
        return math.inf
    directions = _label_losses(keep, int(classes), relation)
    if mu == 0 and delta == 0:  # the largest loss of a label
        possible = [losses[chances > 0] for chances, losses in directions]
        return max(np.concatenate(possible))

    def is_reached(epsilon: float) -> bool:
        """Whether delta(epsilon) is at most delta, in all directions."""
        deltas = [chances @ _signed_delta(mu, epsilon - losses) for chances, losses in directions]
        return all(value <= delta for value in deltas)

    if is_reached(0.0):
        return 0.0
    _, high = bisect(is_reached, 0.0, gaussian_epsilon(mu, delta) + label_epsilon)
    return high


def stored_mu(
    *, epsilon: float, keep: float, classes: int, delta: float, relation: str = "replace"
) -> float:
    """The largest mu of a stored state that stays within `epsilon` together with its label: the
    inverse of `stored_epsilon` in mu, rounded down.

    Parameters:
        epsilon: the target, finite and above 0.
        keep, classes, delta, relation: as for `stored_epsilon`.

    Returns:
        mu; 0 where the label alone takes all of epsilon.

    Raises:
        ValueError: as `stored_epsilon`; for a target that is not finite and above 0, and delta 0.
    """
    check(epsilon=epsilon)
    if not 0 < epsilon < math.inf or delta == 0:
        raise ValueError(
            f"epsilon={epsilon} at delta={delta}: wanted a finite epsilon and a delta, both above"
            " 0, say 8 and 1e-5"
        )
    fixed = {"keep": keep, "classes": classes, "delta": delta, "relation": relation}

    def exceeds_target(mu: float) -> bool:
        return stored_epsilon(mu=mu, **fixed) > epsilon

    if exceeds_target(0.0):
        return 0.0
    low, _ = bisect(exceeds_target, 0.0, gaussian_mu(epsilon, delta))
    return low


def _label_losses(keep: float, classes: int, relation: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """(probabilities, losses) of a randomised label for each direction of neighbours; a loss is the
    ln of the ratio of a label's two probabilities.
    """
    other = (1 - keep) / (classes - 1)
    if relation == "replace":  # symmetric; a third label is as probable for both
        loss = response_epsilon(keep=keep, classes=classes)
        chances = np.array([keep, other, (classes - 2) * other])
        return [(chances, np.array([loss, -loss, 0.0]))]
    losses = np.log(classes * np.array([keep, other]))
    added = np.array([keep, 1 - keep])
    removed = np.array([1 / classes, 1 - 1 / classes])
    return [(added, losses), (removed, -losses)]


def _signed_delta(mu: float, epsilon: np.ndarray) -> np.ndarray:
    """`gaussian_delta` where epsilon may be negative."""
    if mu == 0:
        return np.maximum(-np.expm1(epsilon), 0)
    with np.errstate(all="ignore"):
        return np.exp(log_delta(mu, epsilon))
