"""The privacy ladder of one network, with controls for its noise, its steps and delta."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

import ipywidgets as W
import pandas as pd
from IPython.display import HTML, display

from mia_nb import auditing, escape, plots
from mia_nb.auditing.one_run import Audit
from mia_nb.types import Scores

ACCOUNTANTS = {
    "GDP fixed": ("gdp", "uniform"),
    "GDP Poisson": ("gdp", "poisson"),
    "RDP": ("rdp", "poisson"),
}
FACTORS = (0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 4, 10)
DELTAS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
COLUMNS = ["shown", "relation", "verdict", "method", "note", "remark"]
AS_TRAINED = "row 5 is of the stored training: set noise and steps to 1"
WORDS = '<div role="status"><b>Privacy ladder</b>: {}</div>'


def ladder(
    networks: Mapping[str, dict],
    splits: Mapping[str, Scores] | None = None,
    *,
    delta: float = 1e-5,
    attempts: int = 1,
) -> W.interactive | None:
    """`auditing.ladder` of a network under `ipywidgets.interactive`: figure and table follow the
    noise, the number of steps, delta and the accountant.

    Parameters:
        networks: {name: arguments of `auditing.ladder`}, without delta, audited, accountant and
            sampling
        splits: {name: scores of `auditing.score_split`} of those networks that are audited
        delta: where the slider of delta starts, above 0 and below 1
        attempts: number of attacks tried before the one in `splits` was picked

    Returns:
        The controls with their output. In batch mode None: the first network is shown as it was
        trained.

    Raises:
        ValueError: for a delta outside (0, 1), and for no network.

    "noise" multiplies the strength of the noise in a network's equation, or DP-SGD's noise
    multiplier in a network without one; "steps" multiplies the steps of the training. Row 5 is
    left out unless both are 1, as an audit speaks about the training that took place. GDP is an
    approximation and no guarantee; the rows of a network that was trained by DP-SGD are always
    RDP's, an upper statement.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: wanted a number above 0 and below 1, say 1e-5")
    if not networks:
        raise ValueError("networks is empty: wanted {name: arguments of auditing.ladder}")
    splits = splits or {}

    @cache
    def audit_of(network: str, delta: float) -> Audit:
        return auditing.audit(splits[network], delta=delta, attempts=attempts)

    def draw(network: str, noise: float, steps: float, delta: float, accountant: str) -> None:
        """Show the figure and the table of these settings."""
        as_trained = noise == steps == 1
        audited = None
        if as_trained and network in splits:
            audited = audit_of(network, delta)
        table = rows(networks[network], noise, steps, delta, accountant, audited)
        if not as_trained:
            table.loc[4, "note"] = AS_TRAINED
        sentence = f"{network}, noise x {noise:g}, steps x {steps:g}, delta {delta:g}"
        display(HTML(WORDS.format(escape.html(sentence))))
        display(plots.ladder(table))
        display(table.set_index("label")[COLUMNS])

    factors = [(f"x {factor:g}", factor) for factor in FACTORS]
    deltas = [(f"{mark:g}", mark) for mark in sorted({*DELTAS, delta})]
    controls = {
        "network": W.Dropdown(options=list(networks)),
        "noise": W.SelectionSlider(options=factors, value=1),
        "steps": W.SelectionSlider(options=factors, value=1),
        "delta": W.SelectionSlider(options=deltas, value=delta),
        "accountant": W.Dropdown(options=list(ACCOUNTANTS)),
    }
    if os.environ.get("MIA_NB_MODE") == "batch":
        draw(**{name: control.value for name, control in controls.items()})
        return None
    return W.interactive(draw, **controls)


def rows(
    arguments: dict,
    noise: float,
    steps: float,
    delta: float,
    accountant: str,
    audited: Audit | None = None,
) -> pd.DataFrame:
    """`auditing.ladder` of a network whose noise and number of steps are multiplied.

    Parameters:
        arguments: arguments of `auditing.ladder` for the network as it was trained
        noise, steps: factors, above 0
        delta: delta of all rows
        accountant: a name in ACCOUNTANTS
        audited: the audit at this delta, or None
    """
    moved = {name: value for name, value in arguments.items() if value is not None}
    for name in ("nominal", "dp_sgd"):
        if name in moved:
            moved[name] = moved[name] | {"steps": max(1, round(steps * moved[name]["steps"]))}
    if "flow" in moved:
        moved["flow"] = moved["flow"] | {"k": noise * moved["flow"]["k"]}
    elif "dp_sgd" in moved:
        multiplier = noise * moved["dp_sgd"]["noise_multiplier"]
        moved["dp_sgd"] = moved["dp_sgd"] | {"noise_multiplier": multiplier}
    if "dp_sgd" in moved:
        accountant = "RDP"  # PRV, the default of the ladder, takes seconds
    method, sampling = ACCOUNTANTS[accountant]
    return auditing.ladder(
        **moved, delta=delta, audited=audited, accountant=method, sampling=sampling
    )
