"""The layout and behaviour that all explorers share: controls on the left, figures on the right,
the result in words on top, numbers below.
"""

import asyncio
import contextlib
import html
import inspect
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import ipywidgets as W
import pandas as pd
import plotly.graph_objects as go
import traitlets
from IPython import get_ipython
from IPython.display import HTML, display

from mia_nb._glossary import explained
from mia_nb.widgets.figure import Figure, plain, with_layout, with_title

# least seconds between two drawings: a dragged slider sends more values than can be drawn
PAUSE = 0.05
SLIDERS = (W.FloatSlider, W.IntSlider, W.SelectionSlider)
QUESTION = '<div style="line-height:1.3;opacity:.8"><i>{}</i></div>'
ALERT = '<div role="alert" style="border-left:4px solid #D55E00;padding:.2rem .6rem">{}</div>'
STATUS = """<div role="status" aria-live="polite" style="font-size:15px;line-height:1.4">
<b>{}</b>: {}</div>"""
# panes stand side by side; a long one scrolls with the page, not in a box of its own
PANE = {"min_width": "0", "overflow": "visible"}
ROW_OF_FIGURES = {"flex_flow": "row wrap", "width": "100%"}
NARROW = 300  # a figure that would be narrower, in pixels, gets a row of its own
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
SCROLLED = """<style>
.mia-nb th, .mia-nb td { text-align: left; vertical-align: top; line-height: 1.5;
  padding: .1rem .9rem .1rem 0 }
</style><div class="mia-nb" tabindex="0" style="overflow-x:auto">"""
PAIRS = """<div class="mia-nb-numbers" style="display:grid;
grid-template-columns:auto auto;gap:.1rem .7rem;line-height:1.3">{}</div>"""
PAIR = '<div style="opacity:.75">{}</div><div>{}</div>'


def show_live(widget: W.Widget, text: str) -> None:
    """Display a widget, with this text for front ends that cannot show widgets. Without IPython the
    text is printed.
    """
    if get_ipython() is None:
        print(text)
        return
    display(widget._repr_mimebundle_() | {"text/plain": text}, raw=True)


class View(NamedTuple):
    """What an explorer shows for one setting of its controls."""

    sentence: str  # the result in words
    figures: dict[str, go.Figure | dict]  # a dict is plain JSON, see `plain`
    table: pd.DataFrame | None = None
    note: str = ""  # the caveat
    long: pd.DataFrame | None = None  # what CSV saves in place of the table: a number per column

    def __repr__(self) -> str:
        return self.sentence


class Explorer:
    """Controls, and what `draw(**values) -> View` makes of their values: drawn anew whenever a
    control changes in JupyterLab, once in batch mode.

    A ValueError of `draw`, or of a function in `follow`, is shown in place, and the figures stay as
    they were. In batch mode (papermill) sentence, figures and table are displayed once. A figure
    that reacts to the mouse says how in its layout's `meta`, which only the live page adds to the
    title.

    Parameters:
        name: the title
        controls: {name: widget with a value}
        draw: function of the values of all controls and states, by name
        question: what the explorer answers, in a sentence; it stands on top
        rows: names of the figures, row by row
        follow: {control: {trait: function of other controls}}: sets traits of a control, such as
            its options or its value. Each function takes by name the values that it depends on
            (**values: all), and is called when one of them has changed. After new "options" the
            control keeps its choice if it is still offered, else takes the first. A function for
            "value" may also take the control's own value; a change of that alone does not call it.
        pools: {name: sources}: what the first control chooses from; that control stands on top, in
            full width
        heights: {figure: pixels} on a page; a report keeps the figure's own
        shares: {figure: its width relative to others in its row}; 1 if not given
        wide: names of controls that stand above the pictures, as wide as they are
        state: {name: value}: further arguments of `draw` that no control holds
        clicks: {figure: what takes the customdata of a clicked point}: the name of a control or
            state, or a function (number, values) -> {name: value}
        lassos: {figure: control or state that takes the customdata of all selected points}
        drags: {figure: function (x, values) -> {name: value}}, called when a line is dragged to x
    """

    def __init__(
        self,
        name: str,
        controls: dict[str, W.Widget],
        draw: Callable[..., View],
        *,
        question: str = "",
        rows: list[list[str]],
        follow: dict[str, dict[str, Callable]] | None = None,
        pools: dict[str, Any] | None = None,
        heights: dict[str, int] | None = None,
        shares: dict[str, int] | None = None,
        wide: Sequence[str] = (),
        state: dict[str, Any] | None = None,
        clicks: dict[str, str | Callable] | None = None,
        lassos: dict[str, str] | None = None,
        drags: dict[str, Callable] | None = None,
    ):
        self.name = name
        self.question = question
        self.controls = controls
        self._draw = draw
        self.rows = rows
        self._follow = follow or {}
        self.pools = pools or {}
        self._heights = heights or {}
        self._shares = shares or {}
        self._wide = wide
        self.state = dict(state or {})
        self.chooser = next(iter(controls.values())) if self.pools else None
        self._mouse_actions = {"click": clicks or {}, "select": lassos or {}, "drag": drags or {}}
        # (control, trait): the values that its function was last called with
        self._last_arguments: dict[tuple[str, str], dict] = {}
        self._busy = False
        self._timer = None
        self._drawn_at = 0.0
        self.error = ""
        self.view: View | None = None
        for control in controls.values():
            control.observe(self._changed, "value")
        self._refresh()

    def __repr__(self) -> str:
        return f"{self.name}: {self.error or self.view}"

    @property
    def values(self) -> dict:
        return {name: control.value for name, control in self.controls.items()} | self.state

    @property
    def settings(self) -> str:
        """The values of all controls in one line, for figures that are passed on.

        Controls that are not ticked, or have nothing chosen, are left out.
        """
        parts = []
        for name, control in self.controls.items():
            label = _label(getattr(control, "label", control.value))
            if label:
                parts.append(f"{name}: {label}")
        return "; ".join(parts)

    def set(self, **values: object) -> View:
        """Set controls or state as a user would, and return the new view.

        ValueError for a value that is refused; all values then stay as they were.
        """
        if unknown := set(values) - set(self.values):
            raise ValueError(
                f"{self.name} has no {', '.join(unknown)}; it has {', '.join(self.values)}"
            )
        before = self.values
        error = self.error
        self._guarded(lambda: self._show(**values))
        if self.error:
            refused = ValueError(self.error)
            self._guarded(lambda: self._assign(before), error)
            raise refused
        return self.view

    def csv(self) -> str:
        """The table as CSV, below the sentence and the settings as comments.

        Cells that a spreadsheet would run as formulas are quoted.
        """
        view = self._current_view()
        comments = ""
        for line in (f"{self.name}: {view.sentence}", self.settings):
            comments += f"# {' '.join(line.split())}\n"
        table = view.table if view.long is None else view.long
        if table is None:
            return comments
        return comments + table.map(_quoted_formula).to_csv(index=False)

    def _current_view(self) -> View:
        """The view; ValueError where nothing could be drawn yet."""
        if self.view is None:
            raise ValueError(f"{self.name} shows nothing yet that could be saved")
        return self.view

    def _ipython_display_(self) -> None:
        if os.environ.get("MIA_NB_MODE") != "batch":
            show_live(self.widget, repr(self))
            return
        view = self.view or View(self.error, {})
        name = html.escape(self.name)
        sentence = html.escape(self.error or view.sentence)
        question = f"<i>{html.escape(self.question)}</i><br>" if self.question else ""
        display(HTML(f"<p>{question}<b>{name}</b>: {sentence}</p>"))
        for figure in map(go.Figure, view.figures.values()):
            if figure.data or figure.layout.images:  # not one that is empty until the mouse is used
                display(figure)
        if self.view is None:
            return
        below = _table(view.table)
        for text in (view.note, self.settings):
            if text:
                below += f"<p><small>{html.escape(text)}</small></p>"
        display(HTML(below))

    @cached_property
    def widget(self) -> W.Widget:
        """The whole explorer as a widget, for JupyterLab and Voila."""
        self._figures = {
            name: Figure({"data": [], "layout": {}}) for row in self.rows for name in row
        }
        for name, figure in self._figures.items():
            figure.observe(lambda change, name=name: self._on_mouse(name, change["new"]), "event")
            share = self._shares.get(name, 1)
            figure.layout = {"flex": f"{share} 1 {share * NARROW}px", "min_width": "0"}
        self._sentence = W.HTML()
        self._numbers = W.HTML()
        self._note = W.HTML()
        self._message = W.HTML()
        exports = [
            self._button("CSV", "the table", self._save),
            self._button("PNG", "every picture", partial(self._pictures, "png")),
            self._button("SVG", "every picture for print", partial(self._pictures, "svg")),
        ]
        left = []
        right = []
        for name, control in self.controls.items():
            if name in self._wide:
                right.append(control)
            elif control is not self.chooser:
                left.append(control)
        left.append(W.HBox(exports if self.rows else []))
        for row in self.rows:
            right.append(W.HBox([self._figures[name] for name in row], layout=ROW_OF_FIGURES))
        # where there is no table yet, room is kept for one of many rows
        short = self.view is None or (self.view.table is not None and len(self.view.table) == 1)
        (left if short else right).append(self._numbers)
        right.append(self._note)
        top = [W.HTML(STYLE)]
        if self.question:
            top.append(W.HTML(QUESTION.format(html.escape(self.question))))
        if self.chooser is not None:
            top.append(self.chooser)
        top += [self._sentence, self._message]
        self._update_page()
        pane = partial(W.VBox, _dom_classes=["mia-nb-pane"])
        columns = [
            pane(left, layout={"flex": "0 0 240px"} | PANE),
            pane(right, layout={"flex": "1 1 300px"} | PANE),
        ]
        whole = W.Layout(width="100%")
        return W.VBox([*top, W.HBox(columns, layout=whole)], layout=whole)

    def _button(self, label: str, contents: str, action: Callable) -> W.Button:
        button = W.Button(
            description=label, tooltip=f"download {contents}", layout={"width": "70px"}
        )
        button.on_click(lambda _: self._guarded(action, self.error))
        return button

    @property
    def _slug(self) -> str:
        """The beginning of file names: the explorer, and the pool."""
        names = [self.name]
        if self.chooser is not None:
            names.append(self.chooser.value)
        return "-".join(re.findall(r"[^\W_]+", " ".join(names).lower()))[:150]

    def _save(self) -> None:
        file = {"name": f"{self._slug}.csv", "mime": "text/csv", "text": self.csv()}
        next(iter(self._figures.values())).send({"kind": "save"} | file)

    def _pictures(self, kind: str) -> None:
        for name, figure in self._figures.items():
            pool = "" if self.chooser is None else self.chooser.value
            figure.send({"kind": kind, "name": f"{self._slug}-{name}", "pool": pool})

    def _on_mouse(self, figure: str, event: dict) -> None:
        """Follow a click on a point, a lasso around points, or a dragged line."""
        numbers = event.get("numbers", [])
        kind = event.get("kind")
        place = self._mouse_actions.get(kind, {}).get(figure)
        if place is None or (kind == "click" and not numbers):
            return
        value = event.get("x")
        if kind == "click":
            value = numbers[0]
        elif kind == "select":
            value = tuple(numbers)

        def show() -> None:
            values = place(value, self.values) if callable(place) else {place: value}
            self._show(**values)

        self._guarded(show)

    def _changed(self, change: dict) -> None:
        """Draw anew after a control has changed.

        The first step of a slider is drawn at once, later ones of the same drag when it pauses.
        """
        if self._busy:
            return
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(change["owner"], SLIDERS) and time.monotonic() - self._drawn_at < PAUSE:
            with contextlib.suppress(RuntimeError):  # a script has no event loop
                self._timer = asyncio.get_running_loop().call_later(PAUSE, self._refresh)
                return
        self._refresh()

    def _refresh(self) -> None:
        self._guarded(self._show)
        self._drawn_at = time.monotonic()

    def _show(self, **values: object) -> None:
        """Set these values, update the controls that follow them, and draw."""
        self._assign(values)
        self.view = self._draw(**self.values)

    def _assign(self, values: dict) -> None:
        """Set values of controls and state, and update the controls that follow them."""
        self._busy = True
        try:
            for name, value in values.items():
                if name in self.state:
                    self.state[name] = value
                else:
                    _set_trait(self.controls[name], "value", value, name)
                self._update_followers()
            self._update_followers()
        finally:
            self._busy = False

    def _update_followers(self) -> None:
        """Update each control whose `follow` functions depend on a value that has changed."""
        for name, rules in self._follow.items():
            values = self.values
            for trait, rule in rules.items():
                needed = _arguments(rule, values)
                causes = {other: value for other, value in needed.items() if other != name}
                if self._last_arguments.get((name, trait)) != causes:
                    _set_trait(self.controls[name], trait, rule(**needed), name)
                    self._last_arguments[name, trait] = causes

    def _guarded(self, action: Callable, error: str = "") -> None:
        """Run an action and show its error in place; in a callback it would only reach a log.

        `error`: the message to show if the action succeeds.
        """
        self.error = error
        try:
            action()
        except Exception as error:
            text = " ".join(str(error).split())
            if not isinstance(error, ValueError | OSError):
                text = f"{type(error).__name__}: {text}; please report this"
            self.error = text
        if "widget" in self.__dict__:
            self._update_page()

    def _update_page(self) -> None:
        """Show the error, or the view where there is none."""
        self._message.value = ALERT.format(html.escape(self.error)) if self.error else ""
        if self.view is None or self.error:
            return
        # keep a number and its percent sign on one line
        sentence = explained(html.escape(self.view.sentence)).replace(" %", "&nbsp;%")
        self._sentence.value = STATUS.format(html.escape(self.name), sentence)
        self._numbers.value = explained(NUMBERS.format(_numbers(self.view.table)))
        self._note.value = explained(NOTE.format(html.escape(self.view.note)))
        for name, figure in self._figures.items():
            figure.layout.display = None if name in self.view.figures else "none"
            if name in self.view.figures:
                figure.show(self._styled(name))

    def _styled(self, name: str) -> dict:
        """A figure as the live page shows it.

        Plotly keeps the zoom while `uirevision` is the same, so it leaves out sliders and whatever
        is set by clicks.
        """
        clicked = self._mouse_actions["click"].values()
        fixed = {}
        for place, control in self.controls.items():
            if not isinstance(control, SLIDERS) and place not in clicked:
                fixed[place] = str(control.value)
        figure = plain(self.view.figures[name])
        mouse_hint = figure["layout"].get("meta")
        if mouse_hint:
            figure = with_title(figure, f"{figure['layout']['title']['text']}; {mouse_hint}")
        return with_layout(
            figure,
            uirevision=json.dumps(fixed),
            height=self._heights.get(name, figure["layout"].get("height", 400)),
        )


def _arguments(rule: Callable, values: dict) -> dict:
    """The values that a function takes by name; all values for one that takes **values."""
    parameters = inspect.signature(rule).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return values
    return {name: values[name] for name in parameters}


def _set_trait(control: W.Widget, trait: str, value: object, name: str) -> None:
    """Set a trait of the control of this name; ValueError for a value that it refuses.

    After new options the choice stays if it is still offered, else the first option is chosen.
    """
    if trait == "options" and tuple(value) == tuple(control.options):
        return
    chosen = control.value
    chooses = trait == "value" and isinstance(control, W.Dropdown | W.Combobox | W.SelectionSlider)
    if chooses and value not in _values(control):
        values = list(map(str, _values(control)))
        more = ", ..." if len(values) > 12 else ""
        raise ValueError(f"{name}={value!r}: wanted one of {', '.join(values[:12])}{more}")
    try:
        setattr(control, trait, value)
    except traitlets.TraitError as error:
        raise ValueError(f"{name}={value!r}: {error}") from error
    if trait == "options":
        with contextlib.suppress(traitlets.TraitError):
            control.value = chosen
        if control.value is None:
            control.index = 0


def _values(control: W.Widget) -> list:
    """The values that a control lets its user choose from."""
    values = []
    for option in control.options:
        values.append(option[1] if isinstance(option, tuple) else option)
    return values


def _label(value: object) -> str:
    """A control's value as text for the settings; empty where nothing is ticked or chosen."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def _table(table: pd.DataFrame | None) -> str:
    """The table as HTML, empty for None."""
    if table is None:
        return ""
    return table.to_html(index=False, border=0, na_rep="n/m", float_format="{:.4g}".format)


def _quoted_formula(cell: object) -> object:
    """The cell, with an apostrophe before text that a spreadsheet would take for a formula."""
    if isinstance(cell, str) and re.match(r"[=@]|[+-](?![\d.])", cell):
        return f"'{cell}"
    return cell


def _numbers(table: pd.DataFrame | None) -> str:
    """The table as HTML: a single row as labels beside values, more rows in a scrolling table."""
    if table is None or len(table) != 1:
        return f"{SCROLLED}{_table(table)}</div>"
    pairs = ""
    for name, value in table.iloc[0].items():
        pairs += PAIR.format(html.escape(str(name)), html.escape(str(value)))
    return PAIRS.format(pairs)


def message(name: str, text: str) -> Explorer:
    """An explorer with nothing to show, and why."""

    def nothing():
        raise ValueError(text)

    return Explorer(name, {}, nothing, rows=[])
