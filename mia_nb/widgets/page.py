"""An explorer on a live page: controls on the left, figures on the right, the sentence on top,
numbers below.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import ipywidgets as W
import pandas as pd

from mia_nb._glossary import explained
from mia_nb.widgets.controls import SLIDERS
from mia_nb.widgets.figure import Figure, plain, with_layout, with_title

if TYPE_CHECKING:
    from mia_nb.widgets.explorer import Explorer

QUESTION = '<div style="line-height:1.3;opacity:.8"><i>{}</i></div>'
ALERT = '<div role="alert" style="border-left:4px solid #D55E00;padding:.2rem .6rem">{}</div>'
STATUS = """<div role="status" aria-live="polite" style="font-size:15px;line-height:1.4">
<b>{}</b>: {}</div>"""
# panes stand side by side; a long one scrolls with the page, not on its own
PANE = {"min_width": "0", "overflow": "visible"}
ROW_OF_FIGURES = {"flex_flow": "row wrap", "width": "100%"}
NARROW = 300  # pixels; a figure that would be narrower gets a row of its own
STYLE = """<style>
.jupyter-widget-tab > .lm-TabBar > .lm-TabBar-content { flex-wrap: wrap }
.jupyter-widget-tab > .lm-TabBar .lm-TabBar-tab {
  flex: 0 0 auto !important; max-width: none; color: var(--jp-ui-font-color1) !important
}
.mia-nb-pane > * { flex-shrink: 0 }
.mia-nb-pane .widget-toggle-buttons { flex-wrap: nowrap }
.mia-nb-pane .widget-toggle-button { padding: 0 .5rem; margin: 1px }
.mia-nb-pane .widget-checkbox { height: auto; line-height: 1.3; flex-shrink: 0 }
.mia-nb-pane .widget-checkbox .widget-label-basic {
  white-space: normal; padding: .2rem 0; line-height: 1.3
}
.mia-nb-pane ::-webkit-scrollbar { width: 10px; height: 10px }
.mia-nb-pane ::-webkit-scrollbar-thumb { background: #8888; border-radius: 5px }
</style>"""
# width 0: a wide table scrolls inside its column instead of widening it
NUMBERS = '<div style="width:0;min-width:100%">{}</div>'
NOTE = '<div style="width:0;min-width:100%;opacity:.75;line-height:1.4">{}</div>'
TABLE_STYLE = """<style>
.mia-nb th, .mia-nb td { text-align: left; vertical-align: top; line-height: 1.5;
  padding: .1rem .9rem .1rem 0 }
</style>"""
SCROLLED = '<div class="mia-nb" tabindex="0" style="overflow-x:auto">{}</div>'
PAIRS = """<div class="mia-nb-numbers" style="display:grid;
grid-template-columns:auto auto;gap:.1rem .7rem;line-height:1.3">{}</div>"""
PAIR = '<div style="opacity:.75">{}</div><div>{}</div>'


class Page:
    """The widgets of an explorer. `update` shows its view, or its error."""

    def __init__(self, explorer: Explorer):
        self.explorer = explorer
        self.figures = {}
        for name in chain.from_iterable(explorer.rows):
            figure = Figure({"data": [], "layout": {}})
            figure.observe(
                lambda change, name=name: explorer.on_mouse(name, change["new"]), "event"
            )
            share = explorer.shares.get(name, 1)
            figure.layout = {"flex": f"{share} 1 {share * NARROW}px", "min_width": "0"}
            self.figures[name] = figure
        self.sentence = W.HTML()
        self.numbers = W.HTML()
        self.note = W.HTML()
        self.message = W.HTML()
        self.widget = self._layout()
        self.update()

    def _layout(self) -> W.VBox:
        """The whole page: controls, figures and texts in their places."""
        explorer = self.explorer
        left = []
        right = []
        for name, control in explorer.controls.items():
            if name in explorer.wide:
                right.append(control)
            elif control is not explorer.chooser:
                left.append(control)
        left.append(W.HBox(self._export_buttons() if explorer.rows else []))
        for row in explorer.rows:
            right.append(W.HBox([self.figures[name] for name in row], layout=ROW_OF_FIGURES))
        # a table of one row is shown as pairs, on the left; a table that is not there yet may have
        # many rows, on the right
        view = explorer.view
        if view is None or (view.table is not None and len(view.table) == 1):
            left.append(self.numbers)
        else:
            right.append(self.numbers)
        right.append(self.note)
        top = [W.HTML(STYLE)]
        if explorer.question:
            top.append(W.HTML(QUESTION.format(html.escape(explorer.question))))
        if explorer.chooser is not None:
            top.append(explorer.chooser)
        top += [self.sentence, self.message]
        pane = partial(W.VBox, _dom_classes=["mia-nb-pane"])
        columns = [
            pane(left, layout={"flex": "0 0 240px"} | PANE),
            pane(right, layout={"flex": "1 1 300px"} | PANE),
        ]
        whole = W.Layout(width="100%")
        return W.VBox([*top, W.HBox(columns, layout=whole)], layout=whole)

    def _export_buttons(self) -> list[W.Button]:
        return [
            self._button("CSV", "the table", self._save_table),
            self._button("PNG", "every picture", self._save_pictures),
        ]

    def _button(self, label: str, contents: str, action: Callable) -> W.Button:
        button = W.Button(
            description=label, tooltip=f"download {contents}", layout={"width": "70px"}
        )
        button.on_click(lambda _: self.explorer.guarded(action, message=self.explorer.error))
        return button

    def _save_table(self) -> None:
        name = f"{self.explorer.slug}.csv"
        file = {"name": name, "mime": "text/csv", "text": self.explorer.csv()}
        next(iter(self.figures.values())).send({"kind": "save"} | file)

    def _save_pictures(self) -> None:
        chooser = self.explorer.chooser
        pool = "" if chooser is None else chooser.value
        for name, figure in self.figures.items():
            figure.send({"kind": "png", "name": f"{self.explorer.slug}-{name}", "pool": pool})

    def update(self) -> None:
        """Show the error, or the view where there is none."""
        error = self.explorer.error
        view = self.explorer.view
        self.message.value = ALERT.format(html.escape(error)) if error else ""
        if view is None or error:
            return
        # keep a number and its percent sign on one line
        sentence = explained(html.escape(view.sentence)).replace(" %", "&nbsp;%")
        self.sentence.value = STATUS.format(html.escape(self.explorer.name), sentence)
        self.numbers.value = explained(NUMBERS.format(_numbers(view.table)))
        self.note.value = explained(NOTE.format(html.escape(view.note)))
        for name, figure in self.figures.items():
            figure.layout.display = None if name in view.figures else "none"
            if name in view.figures:
                figure.show(self.styled(name))

    def styled(self, name: str) -> dict:
        """A figure as the page shows it.

        Plotly keeps the zoom while `uirevision` is the same, so it leaves out sliders and controls
        that clicks set.
        """
        set_by_clicks = self.explorer.clicks.values()
        fixed = {}
        for control_name, control in self.explorer.controls.items():
            if not isinstance(control, SLIDERS) and control_name not in set_by_clicks:
                fixed[control_name] = str(control.value)
        figure = plain(self.explorer.view.figures[name])
        mouse_hint = figure["layout"].get("meta")
        if mouse_hint:
            figure = with_title(figure, f"{figure['layout']['title']['text']}; {mouse_hint}")
        height = self.explorer.heights.get(name, figure["layout"].get("height", 400))
        return with_layout(figure, uirevision=json.dumps(fixed), height=height)


def plain_table(table: pd.DataFrame) -> str:
    """The table as HTML, without rules and row numbers."""
    return table.to_html(index=False, border=0, na_rep="n/m", float_format="{:.4g}".format)


def _numbers(table: pd.DataFrame | None) -> str:
    """The table as HTML: a single row as labels beside values, more rows in a scrolling table; ""
    for None.
    """
    if table is None:
        return ""
    if len(table) != 1:
        return TABLE_STYLE + SCROLLED.format(plain_table(table))
    pairs = ""
    for name, value in table.iloc[0].items():
        pairs += PAIR.format(html.escape(str(name)), html.escape(str(value)))
    return PAIRS.format(pairs)
