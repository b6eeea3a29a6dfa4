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
from mia_nb.widgets.stored import Source, pools_of


class Tabs:
    """Explorers under tabs, {title: function without arguments that makes one}; in batch mode one
    after the other.

    Live, an explorer is made when its tab is first opened: a page of two dozen pictures would be
    slow to appear and to follow. The pool that is chosen in one is chosen in all.
    """

    def __init__(self, makers: dict[str, Callable[[], Explorer]]):
        self.makers, self.made, self._pool, self._following = makers, {}, ("", set()), False

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
        tab = W.Tab([W.VBox() for _ in titles], titles=titles, layout=W.Layout(margin="0"))

        def opened(change) -> None:
            if change["new"] is None:
                return
            place, title = tab.children[change["new"]], titles[change["new"]]
            if not place.children:
                place.children = [W.Label("reading ...")]
                explorer = self[title]
                place.children = [explorer.widget]
                if explorer.pools:
                    explorer.chooser.observe(partial(self._chosen, explorer), "value")
            if title in self.made:
                self._follow(self.made[title])

        tab.observe(opened, "selected_index")
        tab.selected_index = 0
        opened({"new": 0})
        return tab

    def _chosen(self, explorer: Explorer, change: dict) -> None:
        """A hand chose a pool: the other tabs turn to it when they are opened."""
        if not self._following:
            self._pool = change["new"], pools_of(explorer.pools[change["new"]])

    def _follow(self, explorer: Explorer) -> None:
        """Turn to the pool chosen elsewhere, if this explorer has something of it."""
        name, keys = self._pool
        near = [one for one, entry in explorer.pools.items() if pools_of(entry) & keys]
        if near:
            self._following = True
            likely = [one for one in (name, explorer.chooser.value) if one in near]
            explorer.chooser.value = [*likely, *near][0]
            self._following = False


def explore(sources: Sequence[Source]) -> Tabs:
    """Every explorer on the same sources, each under a tab and built when it is first opened.

    Parameters:
        sources: what to choose from, as `sources` gives them

    Returns:
        tabs; `explore(found)["Dropout"]` is the explorer of that title. In batch mode all are shown
        one after the other.
    """
    return Tabs(
        {
            title: partial(make, sources)
            for title, make in {
                "Scores and ROC": scores,
                "One sample, two worlds": sample,
                "Vulnerable samples": exposed,
                "Latency": latency,
                "Dropout": dropout,
                "Noise is not privacy": noise,
                "Privacy ladder": ladder,
                "Run comparison": compare,
            }.items()
        }
    )
