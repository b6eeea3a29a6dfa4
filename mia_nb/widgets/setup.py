"""The first call of every notebook: its parameters, and how figures are shown; and figures that
follow controls, and evidence that a click unfolds. Free of torch.
"""

import os
import re
from collections.abc import Callable

import ipywidgets as W
import pandas as pd
import plotly.io as pio
from IPython.display import HTML, display
from plotly.io.base_renderers import PlotlyRenderer

from mia_nb import escape, parameters
from mia_nb.checks import shown

MODES = ("auto", "batch", "live")
# the text in a figure's place where it cannot be drawn
FIGURE_WORDS = "<p>[Figure: {}. JupyterLab and Voila draw it, and so does the report of a run.]</p>"


class WithWords(PlotlyRenderer):
    """Figures as JupyterLab draws them, each with a line for programs that cannot draw it: its
    title, and where to see it. Without that line nbconvert leaves a figure out in silence.
    """

    def to_mimebundle(self, fig_dict: dict) -> dict:
        """The figure as a notebook keeps it."""
        layout = fig_dict.get("layout", {})
        title = layout.get("title") or {}
        words = title.get("text", "") if isinstance(title, dict) else str(title)
        words = escape.html(re.sub(r"<[^>]*>", " ", words or "A figure"))
        return super().to_mimebundle(fig_dict) | {"text/html": FIGURE_WORDS.format(words)}


def setup(namespace: dict) -> None:
    """The first call of every notebook: check its parameters and choose how it shows results.

    Parameters:
        namespace: `globals()` of the notebook; its annotated names (`attacks: list = []`) are
            checked, and replaced where they change

    Raises:
        ValueError: that names a value that does not fit, or an unknown name.

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
    if "source" in values:
        source = namespace["source"]
        namespace["source"] = source.replace(data_root=os.path.join(home, source.data_root))
    mode = values.get("analysis", values).get("mode", "auto")
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(MODES)}")
    if mode != "auto":
        os.environ["MIA_NB_MODE"] = mode
    pio.renderers["mia_nb"] = WithWords(config={"responsive": True, "displaylogo": False})
    pio.renderers.default = "mia_nb"
    pd.set_option("display.max_colwidth", None, "display.max_rows", 200)
    pd.set_option("display.html.use_mathjax", False)  # a name with two $ is no mathematics


def interact(function: Callable, **controls: object) -> None:
    """`ipywidgets.interact`: what a function shows follows its controls. In batch mode, where no
    control can be moved, it is shown once, for their first values.

    Parameters:
        function: shows something; its ValueError is shown in a line
        controls: for each of its arguments a widget, or what `ipywidgets.interact` makes one of

    Example: `widgets.interact(lambda noise: display(figures[noise]), noise=[1, 2, 4])`
    """

    def show(**values: object) -> None:
        try:
            function(**values)
        except ValueError as error:
            print(error)

    if os.environ.get("MIA_NB_MODE") == "batch":
        # shows nothing itself, but makes the controls and reads their first values
        unshown = W.interactive(lambda **_: None, clear_output=False, **controls)
        function(**unshown.kwargs)
    else:
        display(W.interactive(show, **controls))


def folded(summary: str, evidence: pd.DataFrame) -> HTML:
    """A line that a click unfolds into a list: each claim with its verdicts, and below each verdict
    the phrases that it rests on.

    Parameters:
        summary: the line
        evidence: the table of `studies.evidence_readable`

    Example: `widgets.folded("What the verdicts rest on", studies.evidence_readable(claims))`
    """
    # a list needs no style, which trust and exporters take away: its text wraps at the left edge
    parts = [f"<summary>{escape.html(summary)}</summary>"]
    for claim, of_claim in evidence["evidence"].groupby(level="claim", sort=False):
        parts.append(f"<p><b>{escape.html(claim)}</b></p><ul>")
        for verdict, phrases in of_claim.groupby(level="verdict", sort=False):
            items = "".join(f"<li>{escape.html(phrase)}</li>" for phrase in phrases)
            parts.append(f"<li>{escape.html(verdict)}<ul>{items}</ul></li>")
        parts.append("</ul>")
    return HTML(f"<details>{''.join(parts)}</details>")
