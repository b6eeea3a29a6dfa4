"""The controls of explorers: lists to choose from, sliders and tick boxes."""

from collections.abc import Iterable

import ipywidgets as W
import traitlets

from mia_nb.attacks import in_words

END = 10**6  # above every slider: as a value it moves the slider to its upper end
LONG_LIST = 20  # names from which on a list is searched by typing, not by scrolling
SLIDERS = (W.FloatSlider, W.IntSlider, W.SelectionSlider)
LABEL = {"description_width": "72px"}
ROW = {"layout": {"width": "98%"}, "style": LABEL}


def dropdown(description: str, options: Iterable = (), value: object = None) -> W.Dropdown:
    """A list from which one of the options is chosen."""
    return W.Dropdown(description=description, options=options, value=value, **ROW)


def steps(description: str, options: Iterable, value: object) -> W.SelectionSlider:
    """A slider that stops at each of the options."""
    return W.SelectionSlider(description=description, options=options, value=value, **ROW)


def buttons(description: str, options: Iterable, value: object) -> W.ToggleButtons:
    """Buttons side by side, one of which is pressed."""
    style = LABEL | {"button_width": "auto"}
    return W.ToggleButtons(
        description=description, options=options, value=value, layout={}, style=style
    )


def chooser(description: str, names: Iterable[str]) -> W.Dropdown | W.Combobox:
    """A control that chooses one of these names and starts at the first; a long list is searched by
    typing.
    """
    names = tuple(names)
    if len(names) < LONG_LIST:
        return dropdown(description, names, names[0])
    return W.Combobox(
        description=description,
        options=names,
        value=names[0],
        placeholder="type a part of a name, or clear the field for all",
        ensure_option=True,
        **ROW,
    )


def count(description: str, low: int = 1, high: int = 1, value: int = 1) -> W.IntSlider:
    """A slider of whole numbers; `follow` may set its upper end."""
    return W.IntSlider(description=description, min=low, max=high, value=value, **ROW)


def number(description: str, value: int) -> W.IntText:
    """A field for a whole number."""
    return W.IntText(description=description, value=value, **ROW)


def tick(description: str, value: bool = False) -> W.Checkbox:
    """One tick box, at the left edge."""
    return W.Checkbox(value, description=description, indent=False, layout=W.Layout(width="98%"))


def attack_options(names: Iterable[str]) -> list[tuple[str, str]]:
    """Options of a control that chooses an attack: (name in words, key)."""
    return [(in_words(name), name) for name in names]


class Ticks(W.VBox):
    """Tick boxes; `value` is the tuple of the options that are ticked. At most `limit` can be
    ticked; one more unticks the earliest.
    """

    value = traitlets.Tuple()
    options = traitlets.Tuple()

    def __init__(
        self,
        description: str,
        options: Iterable[object] = (),
        value: Iterable[object] = (),
        *,
        limit: int = 4,
    ):
        self.limit = limit
        self.box = W.VBox(layout={"width": "100%"})
        super().__init__([W.Label(description), self.box], layout={"width": "100%"})
        self.observe(self._build, "options")
        self.observe(self._show, "value")
        self.options = tuple(options)
        self.value = tuple(value)

    @traitlets.validate("value")
    def _valid_value(self, proposal: dict) -> tuple:
        """The last `limit` options of a proposed value; TraitError for an unknown option."""
        unknown = [value for value in proposal["value"] if value not in self.options]
        if unknown:
            raise traitlets.TraitError(f"{unknown} is not offered")
        return proposal["value"][-self.limit :]

    @property
    def label(self) -> str:
        """The ticked options in words."""
        return ", ".join(in_words(str(value)) for value in self.value)

    def _build(self, _: object) -> None:
        """Make a box for each of the new options; what was ticked and is still offered stays so."""
        self.value = tuple(value for value in self.value if value in self.options)
        self._boxes = {}
        for option in self.options:
            box = W.Checkbox(
                option in self.value,
                description=in_words(str(option)),
                indent=False,
                layout={"width": "98%", "min_height": "24px", "margin": "0"},
            )
            box.observe(lambda change, option=option: self._ticked(option, change["new"]), "value")
            self._boxes[option] = box
        self.box.children = tuple(self._boxes.values())

    def _ticked(self, option: object, on: bool) -> None:
        """Update the value after the user changed a box."""
        was_on = option in self.value
        if on == was_on:  # the box was updated from the value
            return
        ticked = [value for value in self.value if value != option]
        if on:
            ticked.append(option)
        self.value = tuple(ticked[-self.limit :])

    def _show(self, _: object) -> None:
        """Tick the boxes of the value, and no others."""
        for option, box in self._boxes.items():
            box.value = option in self.value
