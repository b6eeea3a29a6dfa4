"""Questions asked before a demonstration: the answer comes after one's own."""

from __future__ import annotations

import html
import os

import ipywidgets as W
from IPython.display import HTML, display

from mia_nb.widgets.explorer import steps

BOX = '<div role="status" style="border-left:4px solid #009E73;padding:.2rem .6rem;line-height:1.45;max-width:52rem">{}</div>'


def predict(question: str, options, *, answer, why: str = "") -> Prediction:
    """Ask for a prediction; shown as radio buttons, or as a slider where `options` is (smallest, largest) or a range.

    answer: one of the options, or a number for a slider; why: what to learn from it. Live, neither leaves the kernel before the
    participant has answered; in batch mode both are folded away. Raises ValueError for an answer that is no option.
    """
    return Prediction(question, options, answer=answer, why=why)


class Prediction:
    """What `predict` shows. `answered(value)` does what a hand would; `told` is the text of the answer, "" before that."""

    def __init__(self, question: str, options, *, answer, why: str = ""):
        self.question, self.answer, self.why, self.told = question, answer, why, ""
        slides = isinstance(options, range) or (
            len(options) == 2 and all(isinstance(end, int) for end in options)
        )
        self.options = tuple(
            options
            if isinstance(options, range) or not slides
            else range(options[0], options[1] + 1)
        )
        self.slides = slides
        if len(self.options) < 2:
            raise ValueError(
                f"{question!r} has the options {self.options}: wanted two or more to choose from"
            )
        if not slides and answer not in self.options:
            raise ValueError(
                f"{question!r}: the answer {answer!r} is none of the options {self.options}"
            )
        self.widget = self._build()

    def answered(self, value) -> str:
        """Answer it; the text then shown. ValueError for what is no option."""
        if value not in self.options:
            raise ValueError(f"{value!r} is none of the options {self.options}")
        right = f"{self.answer:g}" if isinstance(self.answer, float | int) else str(self.answer)
        yours = f"You said: {value}. " if self.slides or value != self.answer else "So you said. "
        self.told = f"{yours}Answer: {right}. {self.why}"
        text = f"{html.escape(yours)}<b>Answer: {html.escape(right)}.</b> {html.escape(self.why)}"
        self._shown.value = BOX.format(text)
        return self.told

    def _build(self) -> W.Widget:
        wide = W.Layout(width="100%", max_width="720px")
        asked = W.HTML(
            f'<div style="font-size:15px;line-height:1.45"><b>{html.escape(self.question)}</b></div>'
        )
        self._shown = W.HTML()
        if self.slides:
            self._control = steps("", self.options, self.options[len(self.options) // 2])
            self._control.layout = wide
            button = W.Button(description="that is my guess", layout=W.Layout(width="160px"))
            button.on_click(lambda _: self.answered(self._control.value))
            return W.VBox([asked, self._control, button, self._shown])
        self._control = W.RadioButtons(options=self.options, value=None, layout=wide)
        self._control.observe(
            lambda change: change["new"] is not None and self.answered(change["new"]), "value"
        )
        return W.VBox([asked, self._control, self._shown])

    def _ipython_display_(self) -> None:
        if os.environ.get("MIA_NB_MODE") != "batch":
            display(self.widget)
            return
        choices = (
            f"{self.options[0]} to {self.options[-1]}"
            if self.slides
            else " / ".join(map(str, self.options))
        )
        right = f"{self.answer:g}" if isinstance(self.answer, float | int) else str(self.answer)
        print(f"{self.question}\n  {choices}")
        folded = f"<details><summary>The answer, after you gave yours</summary><b>{html.escape(right)}.</b> {html.escape(self.why)}"
        display(HTML(f"{folded}</details>"))
