"""Controls on the left, pictures on the right, a verdict in words on top, numbers below: the frame of every explorer."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import textwrap
import time
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import ipywidgets as W
import pandas as pd
import plotly.graph_objects as go
import traitlets
from IPython.display import HTML, display

from mia_nb.widgets.figure import Figure, plain

PAUSE = 0.05  # seconds between pictures while a slider is dragged, which sends more values than can be drawn
SLIDERS = (W.FloatSlider, W.IntSlider, W.SelectionSlider)


class View(NamedTuple):
    """What an explorer shows for one setting of its controls."""

    sentence: str  # the result in words
    figures: dict[str, go.Figure | dict]  # a dict is a figure's plain JSON (`plain`)
    table: pd.DataFrame | None = None
    note: str = ""  # the caveat

    def __repr__(self) -> str:
        return self.sentence


class Explorer:
    """A function of its controls, drawn: `draw(**values) -> View`, live in JupyterLab, once in batch mode.

    controls: {name: widget with a value}; rows: names of the figures, row by row. adjust(values) -> {control: {property:
    value}} runs before `draw` and keeps controls in step (a threshold's range follows the attack). state: further arguments
    of `draw` that no control holds. clicks, lassos: {figure: control or state} that take the customdata of a clicked point,
    or of all selected. A ValueError of `draw` or `adjust` is shown in place and the pictures stay as they were.
    In batch mode (papermill) sentence, figures and table are displayed once. `set(name=value)` does what a hand would.
    """

    def __init__(
        self, name, controls, draw, *, rows, adjust=None, state=None, clicks=None, lassos=None
    ):
        self.name, self.controls, self._draw, self.rows = name, controls, draw, rows
        self._adjust, self.state = adjust or (lambda values: {}), dict(state or {})
        self._clicks, self._lassos = clicks or {}, lassos or {}
        self._busy, self._timer, self._drawn, self.error = False, None, 0.0, ""
        self.view: View | None = None
        for control in controls.values():
            control.observe(self._changed, "value")
        self._refresh()

    @property
    def values(self) -> dict:
        return {name: control.value for name, control in self.controls.items()} | self.state

    @property
    def settings(self) -> str:
        """What the controls say, in a line: a picture that is passed on must tell what it is of."""
        told = {
            name: getattr(control, "label", control.value)
            for name, control in self.controls.items()
        }
        told = {
            name: ", ".join(map(str, value)) if isinstance(value, tuple) else value
            for name, value in told.items()
        }
        return "; ".join(
            f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}"
            for name, value in told.items()
        )

    def set(self, **values) -> View:
        """Set controls or state, as a hand would; the new view. ValueError for what is refused: all stays as it was."""
        if unknown := set(values) - set(self.values):
            raise ValueError(
                f"{self.name} has no {', '.join(unknown)}; it has {', '.join(self.values)}"
            )
        before = self.values
        self._assign(values)
        self._refresh()
        if self.error:
            error = ValueError(self.error)
            self._assign(before)
            self._refresh()
            raise error
        return self.view

    def _assign(self, values: dict) -> None:
        before, self._busy = self.values, True
        try:
            for name, value in values.items():
                if name in self.state:
                    self.state[name] = value
                    continue
                try:
                    self.controls[name].value = value
                except traitlets.TraitError as error:
                    self._assign(before)
                    raise ValueError(f"{name}={value!r}: {error}") from error
                self._fit()
        finally:
            self._busy = False

    def csv(self) -> str:
        """The table as CSV, under sentence and settings as comments. What a spreadsheet would run is quoted."""
        if self.view is None:
            raise ValueError(f"{self.name} shows nothing yet that could be saved")
        comments = [
            " ".join(line.split()) for line in (f"{self.name}: {self.view.sentence}", self.settings)
        ]
        table = pd.DataFrame() if self.view.table is None else self.view.table.map(_inert)
        return "".join(f"# {line}\n" for line in comments) + (
            table.to_csv(index=False) if len(table) else ""
        )

    def html(self) -> str:
        """Sentence, settings, figures and table as one page that opens without a network."""
        if (view := self.view) is None:
            raise ValueError(f"{self.name} shows nothing yet that could be saved")
        parts = [
            go.Figure(figure).to_html(
                full_html=False, include_plotlyjs=i == 0, config={"displaylogo": False}
            )
            for i, figure in enumerate(view.figures.values())
        ]
        body = [
            f"<h1>{html.escape(self.name)}</h1><p>{html.escape(view.sentence)}</p>",
            *parts,
            _table(view.table),
        ]
        body += [f"<p>{html.escape(text)}</p>" for text in (view.note, self.settings)]
        style = "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        head = f"<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>{html.escape(self.name)}</title>"
        return f"{head}<style>{style}</style>{''.join(body)}</html>"

    def _ipython_display_(self) -> None:
        if os.environ.get("MIA_NB_MODE") == "batch":
            told = self.error or self.view.sentence
            display(HTML(f"<p><b>{html.escape(self.name)}</b>: {html.escape(told)}</p>"))
            if self.view is None:
                return
            for figure in map(go.Figure, self.view.figures.values()):
                if figure.data or figure.layout.images:  # not one that waits for a hand
                    display(figure)
            small = "".join(
                f"<p><small>{html.escape(text)}</small></p>"
                for text in (self.view.note, self.settings)
                if text
            )
            display(HTML(_table(self.view.table) + small))
        else:
            display(self.widget)

    @cached_property
    def widget(self) -> W.Widget:
        """What JupyterLab and Voila show."""
        self._figures = {
            name: Figure({"data": [], "layout": {}}) for row in self.rows for name in row
        }
        for name, figure in self._figures.items():
            figure.observe(lambda change, name=name: self._pointed(name, change["new"]), "event")
        self._sentence, self._numbers, self._message = W.HTML(), W.HTML(), W.HTML()
        buttons = [self._button(label, *rest) for label, *rest in self._exports()]
        left = W.VBox(
            [*self.controls.values(), W.HBox(buttons)],
            layout=W.Layout(width="260px", min_width="260px"),
        )
        right = []
        for row in self.rows:
            figures = [self._figures[name] for name in row]
            columns = f"repeat(auto-fit, minmax(min(100%, {360 if len(figures) > 1 else 0}px), 1fr))"  # side by side where wide
            right.append(
                W.GridBox(figures, layout=W.Layout(grid_template_columns=columns, width="100%"))
            )
        right = W.VBox([*right, self._numbers], layout=W.Layout(flex="1 1 480px", min_width="0"))
        body = W.HBox([left, right], layout=W.Layout(width="100%", flex_flow="row wrap"))
        widget = W.VBox([self._sentence, self._message, body], layout=W.Layout(width="100%"))
        self._tell()
        return widget

    def _exports(self) -> list[tuple[str, str, Callable]]:
        return [
            ("CSV", "the table", lambda: self._save("csv", "text/csv", self.csv())),
            ("PNG", "every picture", self._pictures),
            ("HTML", "one page for a reader", lambda: self._save("html", "text/html", self.html())),
        ]

    _slug = property(
        lambda self: "-".join("".join(c if c.isalnum() else " " for c in self.name.lower()).split())
    )

    def _button(self, label: str, what: str, action: Callable) -> W.Button:
        button = W.Button(
            description=label, tooltip=f"download {what}", layout=W.Layout(width="76px")
        )
        button.on_click(lambda _: self._guarded(action, self.error))
        return button

    def _save(self, suffix: str, mime: str, text: str) -> None:
        message = {"kind": "save", "name": f"{self._slug}.{suffix}", "mime": mime, "text": text}
        next(iter(self._figures.values())).send(message)

    def _pictures(self) -> None:
        for name, figure in self._figures.items():
            figure.send({"kind": "png", "name": f"{self._slug}-{name}"})

    def _pointed(self, figure: str, event: dict) -> None:
        numbers = event.get("numbers", [])
        place = (
            self._clicks.get(figure) if event.get("kind") == "click" else self._lassos.get(figure)
        )
        if place is None or (event["kind"] == "click" and not numbers):
            return
        value = numbers[0] if event["kind"] == "click" else tuple(numbers)
        if place in self.controls:
            self._guarded(lambda: setattr(self.controls[place], "value", value), self.error)
        else:
            self.state[place] = value
            self._refresh()

    def _changed(self, change: dict) -> None:
        """A hand moved a control. A slider's first step is followed at once, the flood of a drag when it pauses."""
        if self._busy:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(change["owner"], SLIDERS) and time.monotonic() - self._drawn < PAUSE:
            try:
                self._timer = asyncio.get_running_loop().call_later(PAUSE, self._refresh)
                return
            except RuntimeError:  # no loop: a script
                pass
        self._refresh()

    def _refresh(self) -> None:
        self._guarded(self._update)
        self._drawn = time.monotonic()

    def _update(self) -> None:
        self._fit()
        self.view = self._draw(**self.values)

    def _fit(self) -> None:
        busy, self._busy = self._busy, True
        try:
            for name, properties in self._adjust(self.values).items():
                _set(self.controls[name], properties)
        finally:
            self._busy = busy

    def _guarded(self, action: Callable, error: str = "") -> None:
        """An error in a callback would go to a log that nobody reads. `error`: one that stands if none is added."""
        self.error = error
        try:
            action()
        except Exception as error:
            known = isinstance(error, ValueError | OSError | traitlets.TraitError)
            text = " ".join(str(error).split())
            self.error = text if known else f"{type(error).__name__}: {text}; please report this"
        if "widget" in self.__dict__:
            self._tell()

    def _tell(self) -> None:
        alert = (
            '<div role="alert" style="border-left:4px solid #D55E00;padding:.2rem .6rem">{}</div>'
        )
        self._message.value = alert.format(html.escape(self.error)) if self.error else ""
        if self.view is None or self.error:
            return
        words = f"<b>{html.escape(self.name)}</b>: {html.escape(self.view.sentence)}"
        self._sentence.value = f'<div role="status" aria-live="polite" style="font-size:15px;line-height:1.4">{words}</div>'
        note = f'<div style="opacity:.75;line-height:1.4;margin-top:.5rem">{html.escape(self.view.note)}</div>'
        # a wide table scrolls in its column, it does not widen it
        self._numbers.value = (
            f'<div style="width:0;min-width:100%">{_numbers(self.view.table)}{note}</div>'
        )
        for name, figure in self._figures.items():
            figure.layout.display = None if name in self.view.figures else "none"
            if name in self.view.figures:
                figure.show(self._styled(name))

    def _shown(self) -> dict:
        return self.view.figures if self.view is not None else {}

    def _styled(self, name: str) -> dict:
        """For a column of a page: a short title. The zoom stays while only sliders move or points are clicked."""
        moving = {n for n, c in self.controls.items() if isinstance(c, SLIDERS)} | set(
            self._clicks.values()
        )
        fixed = {n: str(c.value) for n, c in self.controls.items() if n not in moving}
        figure, lines = plain(self._shown()[name]), []
        for line in (figure["layout"].get("title", {}).get("text") or "").split("<br>"):
            lines += textwrap.wrap(line, 78)
        title = {"text": "<br>".join(lines), "font": {"size": 12}}
        return figure | {
            "layout": figure["layout"] | {"uirevision": json.dumps(fixed), "title": title}
        }


def _set(control: W.Widget, properties: dict) -> None:
    """Change ranges and values together: in between, a value may lie outside the range."""
    if "options" in properties and tuple(properties["options"]) == tuple(control.options):
        properties = {name: value for name, value in properties.items() if name != "options"}
    if "max" in properties and properties["max"] < control.min:
        control.min = properties.get("min", properties["max"])
    if "max" in properties:
        control.max = properties["max"]
    for name, value in properties.items():
        if getattr(control, name) != value:
            setattr(control, name, value)


def _table(table: pd.DataFrame | None) -> str:
    return (
        ""
        if table is None
        else table.to_html(index=False, border=0, na_rep="n/m", float_format="{:.4g}".format)
    )


def _inert(cell):
    """Text that a spreadsheet would take for a formula gets an apostrophe."""
    return f"'{cell}" if isinstance(cell, str) and re.match(r"[=@]|[+-](?![\d.])", cell) else cell


LOOK = """<style>.mia-nb th, .mia-nb td { text-align: left; padding: .1rem .9rem .1rem 0; line-height: 1.5 }</style>"""


def _numbers(table: pd.DataFrame | None) -> str:
    """For a narrow column: one row as labels over values that flow, more as a table that scrolls."""
    if table is None or len(table) != 1:
        return f'{LOOK}<div class="mia-nb" style="overflow-x:auto;white-space:nowrap">{_table(table)}</div>'
    cell = '<div><div style="opacity:.7">{}</div><div>{}</div></div>'
    cells = [
        cell.format(html.escape(str(name)), html.escape(str(value)))
        for name, value in table.iloc[0].items()
    ]
    return f'<div style="display:flex;flex-wrap:wrap;gap:.3rem 1.6rem;line-height:1.3">{"".join(cells)}</div>'


class Ticks(W.VBox):
    """Tick boxes; `value` is the tuple of what is ticked. At most `limit` at once: the first ticked goes."""

    value = traitlets.Tuple()
    options = traitlets.Tuple()

    def __init__(
        self, description: str, options=(), value=(), *, limit: int = 4, height: str = "auto"
    ):
        self.heading, self.limit = W.Label(description), limit
        super().__init__(layout=W.Layout(width="100%"))
        self.box = W.VBox(layout=W.Layout(width="100%", max_height=height, overflow="auto"))
        self.observe(self._build, "options")
        self.observe(self._show, "value")
        self.children = [self.heading, self.box]
        self.options = tuple(options)
        self.value = tuple(value)

    @traitlets.validate("value")
    def _known(self, proposal):
        if unknown := [value for value in proposal["value"] if value not in self.options]:
            raise traitlets.TraitError(f"{unknown} is not offered")
        return proposal["value"][-self.limit :]

    def _build(self, _) -> None:
        boxes = [
            W.Checkbox(
                description=str(o), indent=False, layout=W.Layout(width="98%", min_height="26px")
            )
            for o in self.options
        ]
        for box, option in zip(boxes, self.options, strict=True):
            box.value = option in self.value
            box.observe(lambda change, option=option: self._ticked(option, change["new"]), "value")
        self.box.children = boxes
        self.value = tuple(v for v in self.value if v in self.options)

    def _ticked(self, option, on: bool) -> None:
        kept = tuple(v for v in self.value if v != option)
        self.value = (*kept, option)[-self.limit :] if on else kept

    def _show(self, _) -> None:
        for box, option in zip(self.box.children, self.options, strict=True):
            box.value = option in self.value


ROW = {"layout": {"width": "98%"}, "style": {"description_width": "72px"}}


def dropdown(description: str, options=(), value=None) -> W.Dropdown:
    return W.Dropdown(description=description, options=options, value=value, **ROW)


def slider(
    description: str, low: float, high: float, value: float, step: float, *, form: str = ".3g"
) -> W.FloatSlider:
    limits = {"min": low, "max": high, "value": value, "step": step}
    return W.FloatSlider(description=description, readout_format=form, **limits, **ROW)


def steps(description: str, options, value) -> W.SelectionSlider:
    return W.SelectionSlider(description=description, options=options, value=value, **ROW)


def buttons(description: str, options, value) -> W.ToggleButtons:
    style = ROW["style"] | {"button_width": "auto"}
    return W.ToggleButtons(description=description, options=options, value=value, style=style)


def message(name: str, text: str) -> Explorer:
    """An explorer with nothing to show, and why."""

    def nothing():
        raise ValueError(text)

    return Explorer(name, {}, nothing, rows=[])
