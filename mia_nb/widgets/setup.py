"""What notebooks show while they run. Kept free of torch."""

from __future__ import annotations

import os
import types
import typing

import pandas as pd
import plotly.io as pio
import yaml

MODES = ("auto", "batch", "live")


def setup(namespace: dict) -> None:
    """First call of every notebook, `setup(globals())`: checks the parameters and picks how things are shown.

    Every annotated name of the parameters cell (`epochs: int = 20`) must hold a value of its type. Text where something else
    was wanted is read as YAML, so that `papermill -p force false` means False; the corrected value replaces the text in
    `namespace`. ValueError names what does not fit. Relative folders start at MIA_NB_HOME (set by `make lab`), else here.
    `mode` "batch" asks for plain-text progress (an executed notebook keeps no widgets), "live" for progress bars; "auto" keeps
    the runner's choice in MIA_NB_MODE, else live. Figures are stored as plotly JSON, which JupyterLab draws without a network
    and without trust; tables show long text in full.
    """
    for name, wanted in namespace.get("__annotations__", {}).items():
        if name in namespace:
            namespace[name] = coerce(name, namespace[name], wanted)
    home = os.environ.get("MIA_NB_HOME", "")
    namespace |= {
        name: os.path.join(home, namespace[name])
        for name in ("results", "data_root")
        if name in namespace
    }
    mode = namespace.get("mode", "auto")
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(MODES)}")
    if mode != "auto":
        os.environ["MIA_NB_MODE"] = mode
    pio.renderers["plotly_mimetype"].config = {"responsive": True, "displaylogo": False}
    pio.renderers.default = "plotly_mimetype"
    pd.set_option("display.max_colwidth", None, "display.max_rows", 200)


def coerce(name: str, value, wanted: type):
    """value as the annotated type `wanted` (a plain type or "type | None"); text is read as YAML. ValueError if that fails."""
    allowed = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if isinstance(value, str) and str not in allowed:
        value = yaml.safe_load(value)
    elif value == "null" and type(None) in allowed:
        value = None
    if type(value) is int and float in allowed:
        value = float(value)
    if type(value) not in allowed:
        names = " or ".join("null" if t is type(None) else t.__name__ for t in allowed)
        raise ValueError(
            f"{name}={value!r} is of type {type(value).__name__}; this parameter wants {names}"
        )
    return value


def want(holds, message: str) -> None:
    """ValueError of one line unless `holds`: for what a notebook's parameters alone can tell, before anything is trained."""
    if not holds:
        raise ValueError(message)
