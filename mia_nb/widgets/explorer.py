"""The behaviour of all explorers: controls that follow others, redrawing, the mouse, saving."""

import asyncio
import contextlib
import html
import inspect
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import ipywidgets as W
import pandas as pd
import plotly.graph_objects as go
import traitlets
from IPython import get_ipython
from IPython.display import HTML, display

from mia_nb.widgets.controls import SLIDERS
from mia_nb.widgets.page import Page, plain_table

# least seconds between two drawings, as a dragged slider sends more values than can be drawn
PAUSE = 0.05


def show_live(widget: W.Widget, text: str) -> None:
    """Display a widget, and this text in front ends without widgets. Without IPython, print it."""
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
    long: pd.DataFrame | None = None  # saved as CSV instead of the table: numbers, not texts

    def __repr__(self) -> str:
        return self.sentence


class Explorer:
    """Controls, and the view that `draw(**values)` makes of their values. It is drawn anew whenever
    a control changes in JupyterLab, and once in batch mode (papermill).

    A ValueError of `draw`, or of a function in `follow`, is shown in place, and the figures stay as
    they were. A figure that reacts to the mouse says how in its layout's `meta`, which only the
    live page adds to the title.

    Parameters:
        name: the title
        controls: {name: widget with a value}
        draw: function of the values of all controls and states, by name
        question: the question that the explorer answers; it stands on top
        rows: names of the figures, row by row
        follow: {control: {trait: function of other controls}}: sets traits of a control, such as
            its options or its value. Each function takes by name the values that it depends on
            (**values: all), and is called when one of them has changed. After new "options" the
            control keeps its choice if it is still offered, else takes the first. A function for
            "value" may also take the control's own value; a change of that alone does not call it.
        pools: {name: sources}, the choices of the first control, which stands on top in full width
        heights: {figure: pixels} on a page; a report keeps the figure's own
        shares: {figure: its width relative to others in its row}; 1 if not given
        wide: names of controls that stand above the pictures, in their full width
        state: {name: value}: further arguments of `draw` that no control holds
        clicks: {figure: name of the control or state that takes the customdata of a clicked point,
            or a function (number, values) -> {name: value}}
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
        self.heights = heights or {}
        self.shares = shares or {}
        self.wide = wide
        self.state = dict(state or {})
        self.chooser = next(iter(controls.values())) if self.pools else None
        self.clicks = clicks or {}
        self._mouse_actions = {"click": self.clicks, "select": lassos or {}, "drag": drags or {}}
        # {(control, trait): arguments of the last call of its function}
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
        """The values of all controls in one line, saved with tables and shown below figures.

        Controls without a tick or a choice are left out.
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
        self.guarded(lambda: self._show(**values))
        if self.error:
            refused = ValueError(self.error)
            # back to the values and the error from before
            self.guarded(lambda: self._assign(before), message=error)
            raise refused
        return self.view

    def csv(self) -> str:
        """The table as CSV, below the sentence and the settings as comments.

        Cells that a spreadsheet would run as formulas are quoted.
        """
        if self.view is None:
            raise ValueError(f"{self.name} shows nothing yet that could be saved")
        comments = ""
        for text in (f"{self.name}: {self.view.sentence}", self.settings):
            line = " ".join(text.split())
            comments += f"# {line}\n"
        table = self.view.table if self.view.long is None else self.view.long
        if table is None:
            return comments
        return comments + table.map(_quoted_formula).to_csv(index=False)

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
            if figure.data or figure.layout.images:  # some are empty until the mouse is used
                display(figure)
        if self.view is None:
            return
        below = "" if view.table is None else plain_table(view.table)
        for text in (view.note, self.settings):
            if text:
                below += f"<p><small>{html.escape(text)}</small></p>"
        display(HTML(below))

    @cached_property
    def page(self) -> Page:
        """The live page of the explorer, made when it is first shown."""
        return Page(self)

    @property
    def widget(self) -> W.Widget:
        """The whole explorer as a widget, for JupyterLab and Voila."""
        return self.page.widget

    @property
    def slug(self) -> str:
        """The beginning of file names, made of the names of explorer and pool."""
        names = [self.name]
        if self.chooser is not None:
            names.append(self.chooser.value)
        return "-".join(re.findall(r"[^\W_]+", " ".join(names).lower()))[:150]

    def on_mouse(self, figure: str, event: dict) -> None:
        """Follow a click on a point, a lasso around points, or a dragged line."""
        kind = event.get("kind")
        numbers = event.get("numbers", [])
        action = self._mouse_actions.get(kind, {}).get(figure)
        if action is None or (kind == "click" and not numbers):
            return
        if kind == "click":
            value = numbers[0]
        elif kind == "select":
            value = tuple(numbers)
        else:
            value = event.get("x")

        def show() -> None:
            # an action is the name of a control or state, or a function
            values = action(value, self.values) if callable(action) else {action: value}
            self._show(**values)

        self.guarded(show)

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
        self.guarded(self._show)
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
                # the next value may be one that is offered only now
                self._update_followers()
            self._update_followers()  # also where no value is set
        finally:
            self._busy = False

    def _update_followers(self) -> None:
        """Update each control whose `follow` functions depend on a value that has changed."""
        for name, rules in self._follow.items():
            values = self.values
            for trait, rule in rules.items():
                needed = _arguments(rule, values)
                # a control's own value alone is no reason to update it
                causes = {other: value for other, value in needed.items() if other != name}
                if self._last_arguments.get((name, trait)) != causes:
                    _set_trait(self.controls[name], trait, rule(**needed), name)
                    self._last_arguments[name, trait] = causes

    def guarded(self, action: Callable, *, message: str = "") -> None:
        """Run an action and show its error in place; in a callback it would only reach a log.

        `message`: what to show in the error's place if the action succeeds.
        """
        self.error = message
        try:
            action()
        except Exception as error:
            text = " ".join(str(error).split())
            if not isinstance(error, ValueError | OSError):
                text = f"{type(error).__name__}: {text}; please report this"
            self.error = text
        if "page" in self.__dict__:
            self.page.update()


def _arguments(rule: Callable, values: dict) -> dict:
    """The values that a function takes by name; all values if it takes **values."""
    parameters = inspect.signature(rule).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return values
    return {name: values[name] for name in parameters}


def _set_trait(control: W.Widget, trait: str, value: object, name: str) -> None:
    """Set a trait of the control of this name; ValueError for a value that it refuses."""
    if trait == "value":
        _refuse_what_is_not_offered(control, value, name)
    try:
        if trait == "options":
            _set_options(control, value)
        else:
            setattr(control, trait, value)
    except traitlets.TraitError as error:
        raise ValueError(f"{name}={value!r}: {error}") from error


def _refuse_what_is_not_offered(control: W.Widget, value: object, name: str) -> None:
    """ValueError that lists the first options where the control offers some, but not this value."""
    if not isinstance(control, W.Dropdown | W.Combobox | W.SelectionSlider):
        return
    offered = []
    for option in control.options:  # a value, or a pair of its label and the value
        offered.append(option[1] if isinstance(option, tuple) else option)
    if value not in offered:
        more = ", ..." if len(offered) > 12 else ""
        first = ", ".join(map(str, offered[:12]))
        raise ValueError(f"{name}={value!r}: wanted one of {first}{more}")


def _set_options(control: W.Widget, options: Sequence) -> None:
    """Set the options of a control. Its choice stays if it is still offered, else the first option
    is chosen.
    """
    if tuple(options) == tuple(control.options):
        return
    chosen = control.value
    control.options = options
    with contextlib.suppress(traitlets.TraitError):
        control.value = chosen
    if control.value is None:
        control.index = 0


def _label(value: object) -> str:
    """A control's value as text for the settings; empty where nothing is ticked or chosen."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def _quoted_formula(cell: object) -> object:
    """The cell; text that a spreadsheet would run as a formula gets an apostrophe before it. A
    number is none, nor is the dash of a missing value.
    """
    if isinstance(cell, str) and re.match(r"[=@]|[+-](?![\d.]|$)", cell):
        return f"'{cell}"
    return cell


def message(name: str, text: str) -> Explorer:
    """An explorer that shows only this text."""

    def draw():
        raise ValueError(text)

    return Explorer(name, {}, draw, rows=[])
