"""All explorers on one page, each built when its tab is opened."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import ipywidgets as W
from IPython.display import HTML, Markdown, display

from mia_nb import escape
from mia_nb.checks import shown
from mia_nb.widgets.compare import compare
from mia_nb.widgets.explorer import Explorer, message, show_live
from mia_nb.widgets.exposed import exposed
from mia_nb.widgets.sample import sample
from mia_nb.widgets.scores import scores
from mia_nb.widgets.settings import dropout, latency, noise
from mia_nb.widgets.stored import NOTHING, WANTED, Source, list_of_sources, pools_of
from mia_nb.widgets.stored import sources as sources_of

LINE = '<p style="margin:.2rem 0">{}</p>'


class Tabs:
    """Explorers under tabs, {title: function without arguments that makes one}; in batch mode one
    after the other.

    Live, an explorer is made when its tab is first opened, as a page of two dozen pictures would be
    slow. A pool that is chosen in one explorer is chosen in all. `note` is a line above the tabs.
    """

    def __init__(self, makers: dict[str, Callable[[], Explorer]], note: str = ""):
        self.makers = makers
        self.note = note
        self.made: dict[str, Explorer] = {}
        self._pool: tuple[str, set[str]] = ("", set())  # the user's choice: name, keys of pools
        self._following = False  # whether a choice is not the user's

    def __repr__(self) -> str:
        note = f"; {self.note}" if self.note else ""
        return f"Tabs: {', '.join(self.makers) or 'nothing to explore'}{note}"

    def __getitem__(self, title: str) -> Explorer:
        if title not in self.makers:
            raise KeyError(f"no tab {title!r}; there are {', '.join(self.makers)}")
        if title not in self.made:
            try:
                self.made[title] = self.makers[title]()
            # a damaged result must not take the other tabs with it
            except (ValueError, OSError) as error:
                return message(title, str(error))
        return self.made[title]

    def _ipython_display_(self) -> None:
        if self.note:
            display(HTML(LINE.format(escape.html(self.note))))
        if not self.makers:
            return
        if os.environ.get("MIA_NB_MODE") == "batch":
            for title in self.makers:
                display(Markdown(f"## {title}"))
                self[title]._ipython_display_()
        else:
            show_live(self._widget(), repr(self))

    def _widget(self) -> W.Widget:
        titles = tuple(self.makers)
        tab = W.Tab([W.VBox() for _ in titles], titles=titles, layout=W.Layout(margin="0"))

        def opened(change: dict) -> None:
            """Make the explorer of a tab that is opened for the first time."""
            number = change["new"]
            if number is None:
                return
            place = tab.children[number]
            title = titles[number]
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
        """Remember a pool that the user chose; the other tabs turn to it when they are opened."""
        if not self._following:
            self._pool = change["new"], pools_of(explorer.pools[change["new"]])

    def _follow(self, explorer: Explorer) -> None:
        """Turn an explorer to the pool chosen in another tab, if it offers that pool."""
        chosen, keys = self._pool
        of_pool = [name for name, entry in explorer.pools.items() if pools_of(entry) & keys]
        if not of_pool:
            return
        name = of_pool[0]
        if chosen in of_pool:
            name = chosen
        elif explorer.chooser.value in of_pool:
            name = explorer.chooser.value
        self._following = True
        explorer.chooser.value = name
        self._following = False


EXPLORERS = {
    "Scores and ROC": scores,
    "One sample, two worlds": sample,
    "Vulnerable samples": exposed,
    "Latency": latency,
    "Dropout": dropout,
    "Noise is not privacy": noise,
    "Run comparison": compare,
}


def explore(sources: str | Path | Sequence[Source] = "results") -> Tabs:
    """Every explorer on the same sources, each under a tab and built when it is first opened.

    Parameters:
        sources: a folder of results, in which `widgets.sources` finds the sources; or a source, or
            a list of them

    Returns:
        The tabs; `explore("results")["Dropout"]` is the explorer of that title. In batch mode all
        are shown one after the other. If the folder is missing or empty, the signals that come with
        the package are shown under a line that says so; for an empty list only a line is shown.

    Raises:
        ValueError: for a file, and for anything else that is neither folder nor sources.

    Example:
        >>> explore("results")["Scores and ROC"].name
        'Scores and ROC'
    """
    if isinstance(sources, str | Path) and str(sources):
        listed, note = _of_folder(Path(sources))
    else:
        listed = list_of_sources(sources)
        note = ""
    if not listed:
        return Tabs({}, note or f"Nothing to explore: {NOTHING}.")
    return Tabs({title: partial(make, listed) for title, make in EXPLORERS.items()}, note)


def _of_folder(folder: Path) -> tuple[list[Source], str]:
    """The sources of a folder of results, and a line to show above them ("" for none)."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"sources={shown(str(folder))} is a file; {WANTED}")
    sources = sources_of(folder)
    if any(source.folder is not None for source in sources):
        return sources, ""
    missing = "holds no signals that can be scored" if folder.is_dir() else "is not there"
    note = (
        f"The folder {folder} {missing}: these are the signals that come with the package. Make"
        " your own with: mia-nb run all --preset demo"
    )
    return sources, note
