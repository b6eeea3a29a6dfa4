"""Questions asked before a demonstration: the answer comes after one's own."""

from __future__ import annotations

import html
import os

import ipywidgets as W
from IPython.display import HTML, display

from mia_nb.widgets.explorer import show_live, steps

BOX = (
    '<div role="status" style="border-left:4px solid #009E73;padding:.2rem'
    ' .6rem;line-height:1.45;max-width:52rem">{}</div>'
)
QUESTION = '<div style="font-size:15px;line-height:1.45"><b>{}</b></div>'
FOLDED = "<details><summary>The answer, after you gave yours</summary><b>{}.</b> {}</details>"


class Prediction:
    """A question that is asked before a demonstration; the answer comes after one's own.

    Shown as radio buttons, or as a slider with a button. Live, neither answer nor reason leaves the
    kernel before the participant has answered; in batch mode both are folded away. `told` is the
    text of the answer, "" before one was given.

    Parameters:
        question: the text
        options: what can be chosen; (smallest, largest) or a range makes a slider
        answer: one of the options, or a number for a slider
        why: what to learn from it

    Raises:
        ValueError: for fewer than two options, and for an answer that is none of them.
    """

    def __init__(self, question: str, options, *, answer, why: str = ""):
        if len(options) == 2 and all(isinstance(end, int) for end in options):
            options = range(options[0], options[1] + 1)
        self.slides = isinstance(options, range)
        self.options = tuple(options)
        if len(self.options) < 2:
            raise ValueError(
                f"{question!r} has the options {self.options}: wanted two or more to choose from"
            )
        if not self.slides and answer not in self.options:
            raise ValueError(
                f"{question!r}: the answer {answer!r} is none of the options {self.options}"
            )
        self.question = question
        self.answer = answer
        self.why = why
        self.told = ""
        self.right = f"{answer:g}" if isinstance(answer, float | int) else str(answer)
        self._shown = W.HTML()
        heading = W.HTML(QUESTION.format(html.escape(question)))
        self.widget = W.VBox([heading, *self._controls(), self._shown])

    def __repr__(self) -> str:
        return f"{self.question} {self.told}".rstrip()

    def answered(self, value) -> str:
        """Answer as a hand would.

        Parameters:
            value: one of the options

        Returns:
            The text that is then shown.

        Raises:
            ValueError: for what is no option.
        """
        if value not in self.options:
            raise ValueError(f"{value!r} is none of the options {self.options}")
        yours = f"You said: {value}. " if self.slides or value != self.answer else "So you said. "
        self.told = f"{yours}Answer: {self.right}. {self.why}"
        yours, right, why = map(html.escape, (yours, self.right, self.why))
        self._shown.value = BOX.format(f"{yours}<b>Answer: {right}.</b> {why}")
        return self.told

    def _controls(self) -> list[W.Widget]:
        """Radio buttons, or a slider with a button: a slider moves before one has decided."""
        wide = W.Layout(width="100%", max_width="720px")
        if self.slides:
            slider = steps("", self.options, self.options[len(self.options) // 2])
            slider.layout = wide
            button = W.Button(description="that is my guess", layout=W.Layout(width="160px"))
            button.on_click(lambda _: self.answered(slider.value))
            return [slider, button]
        radio = W.RadioButtons(options=self.options, value=None, layout=wide)
        radio.observe(lambda change: self.answered(change["new"]), "value")
        return [radio]

    def _ipython_display_(self) -> None:
        if os.environ.get("MIA_NB_MODE") != "batch":
            show_live(self.widget, repr(self))
            return
        first, *_, last = self.options
        choices = f"{first} to {last}" if self.slides else " / ".join(map(str, self.options))
        print(f"{self.question}\n  {choices}")
        display(HTML(FOLDED.format(html.escape(self.right), html.escape(self.why))))
