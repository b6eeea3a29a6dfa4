"""Whether a membership mask may have been drawn by independent fair coins."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtr, bdtrc, chdtr, chdtrc, gammaln

from mia_nb.arguments import Mask
from mia_nb.checks import checked
from mia_nb.types import pair_ids

# at most about so often fair coins are refused
CHANCE = 1e-6  # by each check but that for halves
HALVES = 1e-4  # by that for halves


@checked
def check_bernoulli(member: Mask) -> None:
    """ValueError if a mask was visibly not drawn by independent fair coins.

    Parameters:
        member: (M, N) bool, or (N,) of one model.

    It refuses rows that are equal or complementary (pairs), numbers of members that differ by at
    most one between rows (exact halves, also within strata), numbers of models per sample that vary
    less or more than with coins (balanced designs, fixed samples), and shares of members far from
    1/2. Each check refuses true coins with a probability of about 1e-4 at most. Caveat: the exact
    half of a single row of few samples looks like a coin's, and dependence between samples, such as
    duplicates, is not seen: that the coins were independent is for whoever drew them to say.
    """
    if fault := coin_fault(member):
        raise ValueError(fault)


def coin_fault(member: np.ndarray) -> str:
    """Why a mask (M, N) or (N,) was visibly not drawn by fair coins, and what to do; "" if it may
    have been.
    """
    member = np.atleast_2d(member)
    models, samples = member.shape
    if not models or samples < 2:
        columns = f"{samples} columns" if models else "no rows"
        return f"member has {columns}: coins cannot be judged on less than 2 samples"
    advice = "a one-run audit needs independent fair coins; train the pool with split='bernoulli'"

    repeated = models - len(np.unique(pair_ids(member)))
    if repeated and samples > math.log2(models**2 / CHANCE):
        return f"{repeated} of {models} masks equal another or its complement (pairs): {advice}"

    members = member.sum(1)
    furthest = (samples + int(np.abs(2 * members - samples).max())) // 2
    # probability that a row of coins lies as near to one half as the row that is furthest from it
    as_near = float(bdtr(furthest, samples, 0.5) - bdtrc(furthest, samples, 0.5))
    if models * math.log(max(as_near, 1e-300)) < math.log(HALVES):
        sizes = f"{members.min()} to {members.max()} members of {samples} (exact halves)"
        return f"all {models} masks have {sizes}: {advice}"

    total = int(member.sum())
    if bdtr(min(total, member.size - total), member.size, 0.5) < CHANCE / 2:
        share = f"{total / member.size:.1%} of the mask are members, too far from one half"
        return f"{share}: {advice}"

    # with coins, the number of models that saw a sample has the variance models / 4
    spread = float(((member.sum(0) - models / 2) ** 2).sum() / (models / 4))
    too_large = chdtrc(samples, spread) < CHANCE / 2
    too_small = chdtr(samples, spread) < CHANCE / 2
    # few samples are often as near to one half as they can be, where chi-square has probability 0
    if samples * _log_share_of_halves(models) >= math.log(CHANCE):
        too_small = False
    if models > 1 and (too_large or too_small):
        varies = f"varies {spread / samples:.2f} times as much as with coins"
        return f"the number of models that saw a sample {varies}: {advice}"
    return ""


def _log_share_of_halves(models: int) -> float:
    """Logarithm of the probability that coins give a sample to half of the models; of an odd
    number, to one half model more or fewer.
    """
    half = models // 2
    ways = gammaln(models + 1) - gammaln(half + 1) - gammaln(models - half + 1)
    return float(ways) + (models % 2 - models) * math.log(2)
