"""DP-SGD: clipped per-sample gradients, Gaussian noise, Poisson batches. What a training spends, by
three accountants, and the noise that reaches a given epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from mia_nb.accounting.accountants import ACCOUNTANTS, SAMPLINGS, gdp_mu, spent_by
from mia_nb.accounting.gaussian import gaussian_epsilon
from mia_nb.accounting.ranges import check
from mia_nb.checks import one_of
from mia_nb.types import Recipe

NOISE_RANGE = (1e-3, 1e6)


def epsilon(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: str = "prv",
    sampling: str = "poisson",
) -> float:
    """(epsilon, delta) of DP-SGD: `steps` Gaussian steps on batches drawn at `sample_rate`, each
    clipped to norm 1.

    Parameters:
        noise_multiplier: standard deviation of the noise / clipping norm, 0 or from 1e-6 to 1e9.
        sample_rate: expected batch / records, above 0 and at most 1.
        steps: optimiser steps taken, from 1.
        delta: from 0 to below 1, as 1e-5.
        accountant: prv, rdp or gdp.
            "prv" (Gopi, Lee and Wutschitz, arXiv 2106.02848, by Opacus): privacy loss distribution,
            upper end: the tight value + about .01; some tenths of a second, more where epsilon is
            large or steps are many (5 s at 10^6). Where "rdp" gives less, as below epsilon .01,
            that is the value, since both are upper bounds. The error of .01 grows where the mesh
            would not fit into memory; where it cannot hold the loss at all (epsilon above about
            600) the value is that of "rdp".
            "rdp" (Mironov, Talwar and Zhang, arXiv 1908.10530; conversion of Balle et al., arXiv
            1905.09982): 5 to 20 % above prv in usual settings, tens of milliseconds. Its orders,
            1.1 to 63, are extended to 1.001 and 1024 when the best is at an end.
            "gdp" (Dong, Roth and Su; Bu et al., arXiv 1911.11607): closed form of `gdp_mu`, a
            central limit approximation and NO guarantee: below the true value in 23 of 32 settings
            tested, from -22 % to +83 %.
        sampling: poisson, or uniform (batches of fixed size) with gdp.

    Returns:
        Epsilon; infinite for 0 noise or delta 0.

    Raises:
        ValueError: for numbers out of range, an unknown accountant, uniform with prv or rdp, and
            prv with a delta that its arithmetic cannot resolve (below 1e-10).

    Example:
        >>> round(epsilon(noise_multiplier=1, sample_rate=0.01, steps=1000, delta=1e-5), 1)
        1.8

    Caveats: valid only for one run of DP-SGD with secret Poisson batches; for any other noise the
    number is nominal. One full-batch release (sample_rate 1) is a plain Gaussian:
    `gaussian_epsilon(sqrt(steps) / noise_multiplier, delta)` is exact there, while gdp's limit is
    not (2.140 instead of 1.993 at noise 2, one step, delta 1e-5).
    """
    check(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    one_of("sampling", sampling, SAMPLINGS)
    if sampling == "uniform" and accountant != "gdp":
        raise ValueError(
            f"sampling='uniform' with accountant={accountant!r}: only gdp has such a form; take"
            " 'poisson'"
        )
    if sampling == "uniform":
        setting = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps}
        return gaussian_epsilon(gdp_mu(**setting, sampling=sampling), delta)
    return spent_by(
        accountant, float(noise_multiplier), float(sample_rate), int(steps), float(delta)
    )


def noise_multiplier(
    *, epsilon: float, sample_rate: float, steps: int, delta: float, accountant: str = "rdp"
) -> float:
    """Smallest noise multiplier of DP-SGD whose (epsilon, delta) by `accountant` stays within
    `epsilon`, rounded up.

    Parameters:
        epsilon: the target, finite and above 0.
        sample_rate: expected batch / records, above 0 and at most 1.
        steps: optimiser steps, from 1.
        delta: above 0 and below 1.
        accountant: "rdp" takes a tenth of a second to one; "prv" starts from there, takes some ten
            calls and needs about 5 % less noise; "gdp" is no guarantee.

    Returns:
        Noise sd / clipping norm with four significant digits; checked, so that the target is never
        exceeded by that accountant.

    Raises:
        ValueError: for numbers out of range, and where none of the noise from 0.001 to 1e6 reaches
            the target, or all of it does: neither "prv" nor "rdp" goes below about
            ln(1/delta) / 1000, and delta 0 is out of reach.
    """
    check(epsilon=epsilon, sample_rate=sample_rate, steps=steps, delta=delta)
    one_of("accountant", accountant, ACCOUNTANTS)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon}: wanted a finite target above 0, say 8")
    if delta == 0:
        raise ValueError(
            f"epsilon={epsilon} at delta=0 is not reached by any noise: take a delta above 0, say"
            " 1e-5"
        )
    setting = (float(sample_rate), int(steps), float(delta))
    noise = 1.0
    # each accountant's search starts at the answer of the cheaper one before it
    for name, factor in (("gdp", 2.0), ("rdp", 1.2), ("prv", 1.05)):
        noise = _solve(name, factor, noise, float(epsilon), setting)
        if name == accountant:
            break
    return noise


def _solve(
    accountant: str, factor: float, start: float, target: float, setting: tuple[float, int, float]
) -> float:
    """The smallest noise multiplier of four digits whose epsilon stays within the target, searched
    outwards from `start` in growing strides.

    factor: of the noise in the first stride. setting: (sample_rate, steps, delta).
    """
    _, _, delta = setting

    def excess(log_noise: float) -> float:
        """ln of epsilon over the target, limited to a factor of 10."""
        spent = spent_by(accountant, math.exp(log_noise), *setting)
        return math.log(min(max(spent / target, 0.1), 10.0))

    lowest = math.log(NOISE_RANGE[0])
    highest = math.log(NOISE_RANGE[1])
    stride = math.log(factor)
    high = math.log(start)
    low = high
    while excess(high) > 0:
        low = high
        high = high + stride
        stride = 1.5 * stride
        if high > highest:
            raise ValueError(
                f"epsilon={target} at delta={delta} is not reached by any noise_multiplier up"
                f" to {NOISE_RANGE[1]:g} by {accountant}: raise epsilon or delta"
            )
    while excess(low) <= 0:
        high = low
        low = low - stride
        stride = 1.5 * stride
        if low < lowest:
            raise ValueError(
                f"epsilon={target} is met at noise_multiplier {NOISE_RANGE[0]:g} already: ask for"
                " less"
            )
    from scipy.optimize import brentq

    root = math.exp(brentq(excess, low, high, xtol=1e-5))
    fourth_digit = 10.0 ** (math.floor(math.log10(root)) - 3)
    multiple = math.ceil(root / fourth_digit)
    noise = float(f"{multiple * fourth_digit:.4g}")
    while spent_by(accountant, noise, *setting) > target:
        multiple += 1
        noise = float(f"{multiple * fourth_digit:.4g}")
    return noise


def aimed(families: Sequence[dict], recipe: Recipe, *, members: int, delta: float) -> list[dict]:
    """Changes to a recipe with "epsilon" replaced by the noise multiplier with which DP-SGD reaches
    it, by RDP.

    Parameters:
        families: dicts of recipe changes; those with defense "dp_sgd" may name the epsilon that is
            aimed at. The others are returned unchanged.
        recipe: gives the batch and epochs that a family does not name.
        members: records that a model trains on.
        delta: of that epsilon.

    Returns:
        The families, each a new dict.

    Raises:
        ValueError: for an epsilon without dp_sgd or beside a noise multiplier, and as
            `noise_multiplier` does.
    """
    aimed_families = []
    for number, given in enumerate(families):
        if not isinstance(given, dict):
            raise ValueError(
                f"family {number} is {given!r}: wanted a mapping of changes to the recipe, e.g."
                " {model: odenet}"
            )
        family = dict(given)
        target = family.pop("epsilon", None)
        if target is not None:
            _refuse_aim(number, family, target)
            batch = family.get("batch", recipe.batch)
            epochs = family.get("epochs", recipe.epochs)
            check(members=members, batch=batch, epochs=epochs)
            if batch > members:
                raise ValueError(
                    f"family {number} has batch={batch}, more than a model's {members} training"
                    " samples; take a smaller batch or more data"
                )
            noise = noise_multiplier(
                epsilon=target,
                sample_rate=batch / members,
                steps=epochs * (members // batch),  # trainings drop the remainder of an epoch
                delta=delta,
            )
            defense_args = family.get("defense_args") or {}
            family["defense_args"] = {**defense_args, "noise_multiplier": noise}
        aimed_families.append(family)
    return aimed_families


def _refuse_aim(number: int, family: dict, target: float) -> None:
    """ValueError for a family whose noise does not follow from the epsilon that it aims at."""
    if family.get("defense") != "dp_sgd":
        raise ValueError(
            f"family {number} aims at epsilon={target} without defense: dp_sgd, whose noise"
            " it would set"
        )
    if "noise_multiplier" in (family.get("defense_args") or {}):
        raise ValueError(
            f"family {number} names an epsilon and a noise_multiplier, of which one"
            " follows: name one"
        )


def over_epochs(
    *,
    noise_multiplier: float,
    samples: int,
    batch: int,
    epochs: Sequence[int],
    delta: float,
    accountants: Sequence[str] = ("prv", "rdp", "gdp"),
    sampling: str = "poisson",
) -> pd.DataFrame:
    """`epsilon` along training, a row per epoch, delta and accountant.

    Parameters:
        noise_multiplier: noise sd / clipping norm.
        samples: records trained on.
        batch: records a step, at most `samples`; sample_rate = batch / samples.
        epochs: one number or several; steps = epoch * ceil(samples / batch).
        delta: one number or several.
        accountants: of prv, rdp, gdp.
        sampling: of gdp; rows of prv and rdp are always "poisson", and say so.

    Returns:
        Columns epoch, steps, accountant, sampling, delta, epsilon. With sampling "uniform" and
        noise_multiplier 2 it is figure 4 (left) of Hong, Wu, Gruber and Lee (arXiv 2501.06686).

    Raises:
        ValueError: as `epsilon` does.

    Caveat: prv takes some tenths of a second per row, so pass a few epochs. Steps are rounded up
    here, while trainings drop the remainder of an epoch (`Pool.sampling`, `aimed`).
    """
    check(several=("epochs",), samples=samples, batch=batch, epochs=epochs)
    one_of("sampling", sampling, SAMPLINGS)
    if batch > samples:
        raise ValueError(
            f"batch={batch} is more than samples={samples}: wanted at most all records"
        )
    rows = []
    for epoch in np.ravel(epochs):
        steps = int(epoch) * math.ceil(samples / batch)
        for single_delta in np.ravel(delta).tolist():
            for accountant in accountants:
                setting = {
                    "steps": steps,
                    "accountant": accountant,
                    "sampling": sampling if accountant == "gdp" else "poisson",
                    "delta": single_delta,
                }
                spent = epsilon(
                    noise_multiplier=noise_multiplier, sample_rate=batch / samples, **setting
                )
                rows.append({"epoch": int(epoch), **setting, "epsilon": spent})
    return pd.DataFrame(
        rows, columns=["epoch", "steps", "accountant", "sampling", "delta", "epsilon"]
    )
