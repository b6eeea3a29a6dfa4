"""What is stated beside Figure 4 of Hong, Wu, Gruber and Lee (arXiv 2501.06686), computed again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from mia_nb.accounting import over_epochs
from mia_nb.arguments import Array, Delta, Positive, Real, Whole
from mia_nb.checks import checked

FIGURE4 = {
    "grows": ("epsilon grows with epochs, ever more slowly", "increasing, concave"),
    "uniform": ("GDP is above RDP and PRV, at every epoch", "GDP > RDP > PRV"),
    "poisson": (
        "the same order, with GDP for the Poisson batches that RDP and PRV assume",
        "GDP > RDP > PRV",
    ),
    "widens": ("the distance of GDP to the others widens with epochs", "widening"),
    "delta": ("as delta increases, so does epsilon", "increasing"),
    "target": ("the target is epsilon 8", "8"),
    "utility": ("test accuracy of 80 % at epsilon 2 (GDP)", "80 %"),
    "spread": ("at epsilon 2 test accuracy ranges from 65 to 82 % over models", "65 to 82 %"),
}  # what the text beside Figure 4 of Hong, Wu, Gruber and Lee (arXiv 2501.06686) states, and prints
UTILITY_AT = 2.0
PRINTED_UTILITY = 0.80
PRINTED_SPREAD = (0.65, 0.82)
HALF_A_POINT = 0.005


@checked
def figure4_beside(
    accuracy: pd.DataFrame | None = None,
    *,
    sigma: Real = 2.0,
    samples: Positive = 25_000,
    batch: Whole = 512,
    epochs: Whole = 300,
    delta: Delta = 1e-5,
    deltas: Array = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
) -> pd.DataFrame:
    """What the text beside Figure 4 states, computed again: a row per statement, see
    `studies.against_papers`.

    Batch size, samples and the sampling of GDP are not printed; with the defaults and uniform
    batches GDP ends near the target. Takes seconds, for PRV.
    """
    noise = {"noise_multiplier": sigma, "samples": samples, "batch": batch}
    gdp = partial(over_epochs, **noise, accountants=("gdp",))
    marks = sorted({max(epochs // 30, 1), max(epochs // 3, 1), epochs})
    after = ", ".join(map(str, marks))
    others = over_epochs(**noise, epochs=marks, delta=delta, accountants=("prv", "rdp"))
    curves = {
        f"GDP {form}": gdp(epochs=marks, delta=delta, sampling=form)["epsilon"].to_numpy(float)
        for form in ("uniform", "poisson")
    } | {
        name.upper(): others.loc[others["accountant"] == name, "epsilon"].to_numpy(float)
        for name in ("rdp", "prv")
    }
    uniform = curves["GDP uniform"]
    end = curves["GDP uniform"][-1]
    slopes = [np.diff([0, *curve]) / np.diff([0, *marks]) for curve in curves.values()]
    concave = all((slope > 0).all() and (np.diff(slope) < 0).all() for slope in slopes)
    apart = uniform - curves["PRV"]
    over = gdp(epochs=epochs, delta=sorted(deltas), sampling="uniform")["epsilon"]
    every = gdp(epochs=range(1, epochs + 1), delta=delta, sampling="uniform")
    statements = {
        "grows": (_arrow(uniform), concave, f"GDP uniform after {after} epochs; the others alike"),
        "widens": (_arrow(apart), _rises(apart), f"GDP uniform - PRV after {after} epochs"),
        "delta": (
            _arrow(over),
            _rises(over),
            f"delta from {min(deltas):g} to {max(deltas):g}, GDP uniform",
        ),
        "target": (
            f"{end:.2f}",
            bool(end <= 8),
            f"after {epochs} epochs, batch {batch} of {samples:,}: neither is printed",
        ),
    }
    for form in ("uniform", "poisson"):
        three = {name: curves[name] for name in (f"GDP {form}", "RDP", "PRV")}
        falling = sorted(three, key=lambda name: -curves[name][-1])
        statements[form] = (
            " > ".join(f"{name} {curves[name][-1]:.2f}" for name in falling),
            bool((np.diff([*three.values()], axis=0) < 0).all()),
            f"after {epochs} epochs, delta {delta:g}; compared after {after}",
        )
    statements |= _at_two(every, accuracy)
    rows = [(*FIGURE4[name], *statements[name]) for name in FIGURE4]
    table = pd.DataFrame(rows, columns=["statement", "printed", "ours", "agrees", "note"])
    return table.astype({"agrees": "boolean"})


def _arrow(values: Sequence[float]) -> str:
    return " -> ".join(f"{value:.2f}" for value in values)


def _rises(values: Sequence[float]) -> bool:
    return bool((np.diff(values) > 0).all())


def _at_two(curve: pd.DataFrame, accuracy: pd.DataFrame | None) -> dict:
    """The two statements about accuracy at epsilon 2, and the epoch that this is."""
    if accuracy is not None and not {"epoch", "test_acc"} <= set(accuracy):
        lacks = ", ".join(name for name in ("epoch", "test_acc") if name not in accuracy)
        raise ValueError(
            f"accuracy lacks {lacks}: wanted columns epoch and test_acc, and model for several"
        )
    spent = curve[curve["epsilon"] <= UTILITY_AT]
    end = curve["epsilon"].max()
    epoch = 0 if spent.empty else int(spent["epoch"].max())
    where = (
        f"GDP uniform reaches epsilon 2 after epoch {epoch}: accuracy along epochs on a relabelled"
        " axis"
    )
    seen = pd.DataFrame() if accuracy is None else accuracy[accuracy["epoch"] <= epoch]
    if spent.empty:
        return _not_run("epsilon 2 is exceeded in the first epoch")
    if end < UTILITY_AT:
        return _not_run(f"GDP uniform ends at epsilon {end:.3g}, below 2")
    if accuracy is None:
        return _not_run(where)
    if seen.empty:
        return _not_run(f"{where}; no accuracy up to there")
    last = seen["epoch"].max()
    at = seen.loc[seen["epoch"] == last, "test_acc"]
    note = f"{where}; accuracy of epoch {int(last)}, {len(at)} model{'s' * (len(at) != 1)}"
    useful = bool(at.mean() >= PRINTED_UTILITY - HALF_A_POINT)
    least = PRINTED_SPREAD[0] - HALF_A_POINT
    most = PRINTED_SPREAD[1] + HALF_A_POINT
    inside = bool(at.between(least, most).all())
    statements = (
        {"spread": (f"{at.min():.1%} to {at.max():.1%}", inside, note)} if len(at) > 1 else {}
    )
    statements["utility"] = (f"{at.mean():.1%}", useful, note)
    return _not_run(f"{note}: one shows no range") | statements


def _not_run(reason: str) -> dict:
    return dict.fromkeys(("utility", "spread"), ("not run", pd.NA, reason))
