"""What notebooks show while they run. Kept free of torch."""

import os

import pandas as pd
import plotly.io as pio

from mia_nb import parameters
from mia_nb.checks import shown

MODES = ("auto", "batch", "live")


def setup(namespace: dict) -> None:
    """First call of every notebook: checks its parameters and picks how things are shown.

    Parameters:
        namespace: `globals()` of the notebook; its annotated names (`attacks: list = []`) are
            checked, and replaced where they change

    Raises:
        ValueError: that names what does not fit, and what is nobody's.

    Every annotated name must hold a value of its type; text where something else was wanted is read
    as YAML, so that `papermill -p force false` means False. The mappings `recipe`, `source`,
    `query`, `run`, `analysis` and `study` become records (`parameters.RECORDS`), with the fields
    that were given by their bare names and the defaults of all others. Relative folders start at
    MIA_NB_HOME (set by `make lab`), else here. `mode` "batch" asks for plain-text progress (an
    executed notebook keeps no widgets), "live" for progress bars; "auto" keeps the runner's choice
    in MIA_NB_MODE, else live. Figures are stored as plotly JSON, which JupyterLab n_resamples
    without a network and without trust; tables show long text in full.

    Example: `widgets.setup(globals())`
    """
    if not isinstance(namespace, dict):
        raise ValueError(f"namespace={shown(namespace)}: wanted globals() of the notebook")
    values = parameters.of_namespace(namespace)
    records = parameters.RECORDS.items()
    namespace |= values | {name: kind(**values[name]) for name, kind in records if name in values}
    home = os.environ.get("MIA_NB_HOME", "")
    if "results" in namespace:
        namespace["results"] = os.path.join(home, namespace["results"])
    if source := values.get("source"):
        place = os.path.join(home, source["data_root"])
        namespace["source"] = namespace["source"].replace(data_root=place)
    mode = values.get("analysis", values).get("mode", "auto")
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(MODES)}")
    if mode != "auto":
        os.environ["MIA_NB_MODE"] = mode
    pio.renderers["plotly_mimetype"].config = {"responsive": True, "displaylogo": False}
    pio.renderers.default = "plotly_mimetype"
    pd.set_option("display.max_colwidth", None, "display.max_rows", 200)
    pd.set_option("display.html.use_mathjax", False)  # a name with two $ is no mathematics
