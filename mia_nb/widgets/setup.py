"""What notebooks show while they run. Kept free of torch."""

import os
import re

import pandas as pd
import plotly.io as pio
from plotly.io.base_renderers import PlotlyRenderer

from mia_nb import escape, parameters
from mia_nb.checks import shown

MODES = ("auto", "batch", "live")
# what stands in a figure's place where it cannot be drawn
FIGURE_WORDS = "<p>[Figure: {}. JupyterLab and Voila draw it, and so does the report of a run.]</p>"


class WithWords(PlotlyRenderer):
    """Figures as JupyterLab draws them, and beside each a line for programs that cannot: what it
    shows, and where it can be seen. Without it nbconvert leaves a figure out in silence.
    """

    def to_mimebundle(self, fig_dict: dict) -> dict:
        """The figure as a notebook keeps it."""
        layout = fig_dict.get("layout", {})
        title = layout.get("title") or {}
        words = title.get("text", "") if isinstance(title, dict) else str(title)
        words = escape.html(re.sub(r"<[^>]*>", " ", words or "A figure"))
        return super().to_mimebundle(fig_dict) | {"text/html": FIGURE_WORDS.format(words)}


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
    in MIA_NB_MODE, else live. Figures are stored as plotly JSON, which JupyterLab draws
    without a network and without trust; tables show long text in full.

    Example: `widgets.setup(globals())`
    """
    if not isinstance(namespace, dict):
        raise ValueError(f"namespace={shown(namespace)}: wanted globals() of the notebook")
    values = parameters.of_namespace(namespace)
    namespace |= values
    for name, record in parameters.RECORDS.items():
        if name in values:
            namespace[name] = record(**values[name])
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
    pio.renderers["mia_nb"] = WithWords(config={"responsive": True, "displaylogo": False})
    pio.renderers.default = "mia_nb"
    pd.set_option("display.max_colwidth", None, "display.max_rows", 200)
    pd.set_option("display.html.use_mathjax", False)  # a name with two $ is no mathematics
