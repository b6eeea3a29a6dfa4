"""Questions before a demonstration: participants see the answer after giving their own."""

import html
import os
from collections.abc import Sequence

import ipywidgets as W
from IPython.display import HTML, display

from mia_nb.widgets.controls import steps
from mia_nb.widgets.explorer import show_live

BOX = (
    '<div role="status" style="border-left:4px solid #009E73;padding:.2rem'
    ' .6rem;line-height:1.45;max-width:52rem">{}</div>'
)
QUESTION = '<div style="font-size:15px;line-height:1.45"><b>{}</b></div>'
FOLDED = "<details><summary>The answer, after you gave yours</summary><b>{}.</b> {}</details>"
WIDE = {"width": "100%", "max_width": "720px"}


class Prediction:
    """A question before a demonstration; participants see the answer after giving their own.

    It is shown as radio buttons, or as a slider with a button. Live, neither answer nor reason
    leaves the kernel before the participant has answered; in batch mode both are folded away.
    `shown_answer` is the text shown after an answer, "" before.

    Parameters:
        question: the text
        options: the choices; (smallest, largest) makes a slider
        answer: one of the options, or a number for a slider
        why: what to learn from it

    Raises:
        ValueError: for fewer than two options, and for an answer that is not among them.

    Example: `Prediction("Which attack wins?", ["loss threshold", "RMIA"], answer="RMIA")`
    """

    def __init__(
        self,
        question: str,
        options: Sequence[str] | tuple[int, int],
        *,
        answer: str | float,
        why: str = "",
    ) -> None:
        self.is_slider = isinstance(options[0], int)
        if self.is_slider:
            options = range(options[0], options[1] + 1)
        self.options = tuple(options)
        if len(self.options) < 2:
            raise ValueError(
                f"{question!r} has the options {self.options}: wanted two or more to choose from"
            )
        if not self.is_slider and answer not in self.options:
            raise ValueError(
                f"{question!r}: the answer {answer!r} is none of the options {self.options}"
            )
        self.question = question
        self.answer = answer
        self.why = why
        self.shown_answer = ""
        self._box = W.HTML()
        heading = W.HTML(QUESTION.format(html.escape(question)))
        controls = self._slider() if self.is_slider else [self._radio_buttons()]
        self.widget = W.VBox([heading, *controls, self._box])

    def _answered(self, value: str | int) -> None:
        """Show the answer after the participant's."""
        self.shown_answer = f"You said: {value}. Answer: {self.answer}. {self.why}"
        self._box.value = BOX.format(html.escape(self.shown_answer))

    def _radio_buttons(self) -> W.RadioButtons:
        radio = W.RadioButtons(options=self.options, value=None, layout=WIDE)
        radio.observe(lambda change: self._answered(change["new"]), "value")
        return radio

    def _slider(self) -> list[W.Widget]:
        """A slider with a button, as a slider moves before its user has decided."""
        slider = steps("", self.options, self.options[len(self.options) // 2])
        slider.layout = WIDE
        button = W.Button(description="that is my guess", layout={"width": "160px"})
        button.on_click(lambda _: self._answered(slider.value))
        return [slider, button]

    def _ipython_display_(self) -> None:
        if os.environ.get("MIA_NB_MODE") != "batch":
            show_live(self.widget, self.question)
            return
        if self.is_slider:
            choices = f"{self.options[0]} to {self.options[-1]}"
        else:
            choices = " / ".join(map(str, self.options))
        print(f"{self.question}\n  {choices}")
        display(HTML(FOLDED.format(html.escape(str(self.answer)), html.escape(self.why))))
