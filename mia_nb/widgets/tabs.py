"""All explorers on one page, each built when its tab is opened."""

import os
from collections.abc import Callable, Sequence
from functools import partial

import ipywidgets as W
from IPython.display import Markdown, display

from mia_nb.widgets.compare import compare
from mia_nb.widgets.dropout import dropout
from mia_nb.widgets.explorer import Explorer, message
from mia_nb.widgets.exposed import exposed
from mia_nb.widgets.ladder import ladder
from mia_nb.widgets.latency import latency
from mia_nb.widgets.noise import noise
from mia_nb.widgets.sample import sample
from mia_nb.widgets.scores import scores
from mia_nb.widgets.stored import Source

WHOLE_TITLES = (
    "<style>.jupyter-widget-tab > .lm-TabBar .lm-TabBar-tab { flex: 0 0 auto !important; max-width:"
    " none }</style>"
)


class Tabs:
    """Explorers under tabs, {title: function without arguments that makes one}; in batch mode one
    after the other.

    Live, an explorer is made when its tab is first opened: a page of two dozen pictures would be
    slow to appear and to follow.
    """

    def __init__(self, makers: dict[str, Callable[[], Explorer]]):
        self.makers, self.made = makers, {}

    def __getitem__(self, title: str) -> Explorer:
        if title not in self.made:
            try:
                self.made[title] = self.makers[title]()
            # a damaged result must not take the other tabs with it
            except (ValueError, OSError) as error:
                return message(title, str(error))
        return self.made[title]

    def _ipython_display_(self) -> None:
        if os.environ.get("MIA_NB_MODE") == "batch":
            for title in self.makers:
                display(Markdown(f"## {title}"))
                self[title]._ipython_display_()
        else:
            display(self._widget())

    def _widget(self) -> W.Widget:
        titles = tuple(self.makers)
        tab = W.Tab([W.VBox() for _ in titles], titles=titles, layout=W.Layout(width="100%"))

        def opened(change) -> None:
            place = tab.children[change["new"]] if change["new"] is not None else None
            if place is not None and not place.children:
                place.children = [W.Label("reading ...")]
                place.children = [self[titles[change["new"]]].widget]

        tab.observe(opened, "selected_index")
        tab.selected_index = 0
        opened({"new": 0})
        return W.VBox([W.HTML(WHOLE_TITLES), tab], layout=W.Layout(width="100%"))


def explore(sources: Sequence[Source]) -> Tabs:
    """Every explorer on the same sources, each under a tab and built when it is first opened.

    Parameters:
        sources: what to choose from, as `sources` gives them

    Returns:
        tabs; `explore(found)["Dropout"]` is the explorer of that title. In batch mode all are shown
        one after the other.
    """
    explorers = {
        "Scores and ROC": scores,
        "One sample, two worlds": sample,
        "Vulnerable samples": exposed,
        "Latency": latency,
        "Dropout": dropout,
        "Noise is not privacy": noise,
        "Privacy ladder": ladder,
        "Run comparison": compare,
    }
    return Tabs({title: partial(make, sources) for title, make in explorers.items()})
