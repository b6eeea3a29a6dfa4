"""The statements about epsilon beside Figure 4 of Hong, Wu, Gruber and Lee (arXiv 2501.06686),
computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mia_nb.accounting import over_epochs
from mia_nb.arguments import Array, Delta, Positive, Real, Whole
from mia_nb.checks import checked


@checked
def figure4_beside(
    settings: None = None,
    *,
    sigma: Real = 2.0,
    samples: Positive = 25_000,
    batch: Whole = 512,
    epochs: Whole = 300,
    delta: Delta = 1e-5,
    deltas: Array = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
) -> pd.DataFrame:
    """The statements on epsilon beside Figure 4, computed again: a row per statement, as in
    `studies.against_papers`. It takes seconds, mostly in the PRV accountant.

    Parameters:
        settings: not used; every comparison with a paper has this argument
        sigma: noise multiplier of DP-SGD
        samples: size of the training set; not printed
        batch: expected size of a batch; not printed: with the default and uniform batches GDP ends
            near the printed target
        epochs: length of the training
        delta: of every statement except the one on delta
        deltas: the deltas of that statement
    """
    noise = {"noise_multiplier": sigma, "samples": samples, "batch": batch}
    checkpoints = sorted({max(epochs // 30, 1), max(epochs // 3, 1), epochs})
    uniform = over_epochs(**noise, epochs=checkpoints, delta=delta, sampling="uniform")
    poisson = over_epochs(**noise, epochs=checkpoints, delta=delta, accountants=("gdp",))
    by_delta = over_epochs(
        **noise, epochs=epochs, delta=sorted(deltas), accountants=("gdp",), sampling="uniform"
    )
    gdp, rdp, prv = (
        uniform.loc[uniform["accountant"] == name, "epsilon"].to_numpy(float)
        for name in ("gdp", "rdp", "prv")
    )
    gdp_poisson = poisson["epsilon"].to_numpy(float)
    over_deltas = by_delta["epsilon"]
    after = ", ".join(map(str, checkpoints))
    all_concave = all(_is_concave(checkpoints, curve) for curve in (gdp, gdp_poisson, rdp, prv))
    rows = [
        (
            "epsilon grows with epochs, ever more slowly",
            "increasing, concave",
            _in_arrows(gdp),
            all_concave,
            f"GDP uniform after {after} epochs; the others alike",
        ),
        (
            "GDP is above RDP and PRV, at every epoch",
            "GDP > RDP > PRV",
            *_in_order({"GDP uniform": gdp, "RDP": rdp, "PRV": prv}),
            f"after {epochs} epochs, delta {delta:g}; compared after {after}",
        ),
        (
            "the same order, with GDP for the Poisson batches that RDP and PRV assume",
            "GDP > RDP > PRV",
            *_in_order({"GDP poisson": gdp_poisson, "RDP": rdp, "PRV": prv}),
            f"after {epochs} epochs, delta {delta:g}; compared after {after}",
        ),
        (
            "the distance of GDP to the others widens with epochs",
            "widening",
            _in_arrows(gdp - prv),
            _is_rising(gdp - prv),
            f"GDP uniform - PRV after {after} epochs",
        ),
        (
            "as delta increases, so does epsilon",
            "increasing",
            _in_arrows(over_deltas),
            _is_rising(over_deltas),
            f"delta from {min(deltas):g} to {max(deltas):g}, GDP uniform",
        ),
        (
            "the target is epsilon 8",
            "8",
            f"{gdp[-1]:.2f}",
            bool(gdp[-1] <= 8),
            f"after {epochs} epochs, batch {batch} of {samples:,}: neither is printed",
        ),
    ]
    return pd.DataFrame(rows, columns=["statement", "printed", "ours", "agrees", "note"])


def _in_arrows(values: Sequence[float]) -> str:
    """Values in their order: "1.20 -> 3.40"."""
    return " -> ".join(f"{value:.2f}" for value in values)


def _is_rising(values: Sequence[float]) -> bool:
    """Whether each value is above the one before."""
    return bool((np.diff(values) > 0).all())


def _is_concave(epochs: Sequence[int], curve: np.ndarray) -> bool:
    """Whether a curve from (0, 0) rises ever more slowly."""
    slope = np.diff([0, *curve]) / np.diff([0, *epochs])
    return bool((slope > 0).all() and (np.diff(slope) < 0).all())


def _in_order(curves: dict[str, np.ndarray]) -> tuple[str, bool]:
    """The last values, largest first, in words; and whether each curve given lies below the one
    before it at every epoch.
    """
    falling = sorted(curves, key=lambda name: -curves[name][-1])
    ends = " > ".join(f"{name} {curves[name][-1]:.2f}" for name in falling)
    return ends, bool((np.diff([*curves.values()], axis=0) < 0).all())
