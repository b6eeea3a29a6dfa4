"""One explorer for outputs that differ in one or two settings: a setting beside its reference, and
a metric against the setting. `latency`, `dropout` and `noise` are this explorer on their own axes.
"""

from collections.abc import Sequence
from functools import cache

import pandas as pd
import plotly.graph_objects as go

from mia_nb import attacks, plots
from mia_nb.checks import quantity
from mia_nb.metrics.tables import rows_of
from mia_nb.plots.tables import metric_name
from mia_nb.widgets.contrast import (
    ENERGY_WORDS,
    contrast_of,
    numbers_table,
    offered_attacks,
    offered_targets,
    pictures_of,
    table_of,
)
from mia_nb.widgets.controls import END, chooser, dropdown, steps
from mia_nb.widgets.explorer import Explorer, View, message
from mia_nb.widgets.families import Family, Outputs, by_dropout, by_noise, by_time
from mia_nb.widgets.figure import plain, with_layout, with_line
from mia_nb.widgets.pictures import INSIDE
from mia_nb.widgets.stored import Source, list_of_sources

# figures and the first rows of the table fit a screen of 768 pixels
HEIGHTS = {"curve": 260, "roc": 260, "histogram": 165}
LOGARITHMIC = ("t", "queries", "outputs", "energy")
ENERGY = "energy"  # a measured quantity, no setting, for the horizontal axis
METRICS = [
    ("AUC", ("auc", None)),
    ("TPR at 0.1 % FPR", ("tpr", 0.001)),
    ("TPR at 1 % FPR", ("tpr", 0.01)),
    ("TPR at 10 % FPR", ("tpr", 0.1)),
    ("test accuracy", ("test_acc", None)),
    ("train - test accuracy", ("gap", None)),
]


def latency(sources: Sequence[Source]) -> Explorer:
    """Attack success on one output after t time steps, and the energy of that output, beside the
    ordinary network that the spiking one was made from.

    Parameters:
        sources: stored results to look for networks in, as `widgets.sources` lists them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Networks: every spiking pool that was queried step by step (query(..., per_step=True); t: the
    readout of the first t steps, or step t alone), and every set of spiking pools of one
    architecture with the same members (t: their T). The ordinary network has the same members and
    was queried in the same way, input dropout included; a parent comes before any other of the same
    architecture. Intervals are those of `mia.summary`, the difference of AUC is paired
    (`metrics.difference`). Where operations are known, as of the signals that come with the
    package, every metric also stands against the energy of the arithmetic for one image.

    Caveat: networks that differ in accuracy compare unfairly; an attacker who is shown the outputs
        of all steps has more than one. Memory, which takes most of a chip's energy, is not counted.
    """
    if_none = (
        "no spiking network is stored that was queried at several time steps; make some with:"
        " mia-nb run all --preset demo"
    )
    return settings_explorer(
        "Latency",
        "Does an attacker learn more from more time steps?",
        by_time(list_of_sources(sources)),
        {"way": "made", "t": "steps t"},
        if_none=if_none,
        against=("t", ENERGY),
        without_reference="no ordinary network with the same members was queried in this way",
    )


def dropout(sources: Sequence[Source]) -> Explorer:
    """Attack success over input dropout p and queries Q, beside the plain query.

    Parameters:
        sources: stored results to look for pools in, as `widgets.sources` lists them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Pools: those with stored signals of the plain query and of at least one p (query(...,
    input_dropout=p, queries=Q)); Q queries are the first Q of those made, so that points of one p
    share their masks. Intervals are those of `mia.summary`, the difference of AUC is paired
    (`metrics.difference`).

    Caveat: the largest of many points is the largest of many numbers; p and Q chosen on what is
        evaluated flatter the attacker, `metrics.choose` takes them from other models.
    """
    if_none = (
        "no pool is stored that was queried plainly and with input dropout; make one with:"
        " mia-nb run dropout_sweep --preset demo -p rates='[0.01, 0.02, 0.05]' -p queries=8"
    )
    return settings_explorer(
        "Dropout",
        "Does input dropout help the attacker?",
        by_dropout(list_of_sources(sources)),
        {"p": "p", "queries": "queries Q"},
        if_none=if_none,
        against=("p", "queries"),
    )


def noise(sources: Sequence[Source]) -> Explorer:
    """Networks whose outputs are random: the attack after R averaged outputs, beside the same
    networks with their noise off.

    Parameters:
        sources: stored results to look for pools in, as `widgets.sources` lists them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Pools that differ in the noise per step k alone share an entry, sigma chooses among them. The
    attack averages the margins of the first R outputs, of target and references alike; attacks that
    read how outputs differ (lira_joint) are left out. Noise off: the same models queried once
    without their noise. `metrics.query_curve` has the closed form of what averaging tends to.

    Caveat: noise that is fresh in every output averages away; what is left after it may be as
        little or as much as without it.
    """
    return settings_explorer(
        "Noise is not privacy",
        "What is left of the noise when outputs are averaged?",
        by_noise(list_of_sources(sources)),
        {"sigma": "sigma", "outputs": "outputs R"},
        if_none="no model with noise was queried twice yet; make some with:"
        " mia-nb run 09_neural_de --preset tour",
        against=("outputs", "sigma"),
        without_reference="outputs with the noise off are not stored:"
        " query(pool, images, noise=False), and all else as here",
    )


def settings_explorer(
    title: str,
    question: str,
    families: dict[str, Family],
    settings: dict[str, str],
    *,
    if_none: str,
    against: Sequence[str],
    without_reference: str = "",
) -> Explorer:
    """The explorer of families of outputs that differ in one or two settings: a setting beside its
    reference, and a metric against a setting.

    Parameters:
        title: the explorer's name
        question: the question that it answers
        families: {name: family}
        settings: {setting: its label}, in the order of a family's keys; each has a slider
        if_none: the message where there is no family
        against: settings for the horizontal axis, the default first, and perhaps "energy", which is
            offered where it is known for all outputs
        without_reference: a remark beside outputs that have no reference

    A setting has one name everywhere: it names its slider, so the functions below get its value
    under this name; and it names its column in the long table. The keys of a family's outputs hold
    the values in the order of `settings`.
    """
    if not families:
        return message(title, if_none)

    def shown_of(pool: str, **values: object) -> tuple[Outputs, ...]:
        """The chosen outputs, and their reference if they have one."""
        key = tuple(values[name] for name in settings)
        chosen = families[pool].outputs[key]
        return (chosen,) if chosen.reference is None else (chosen, chosen.reference)

    @cache  # as a family may have more outputs than `table_of` keeps tables
    def family_table(pool: str, attack: str, target: int | str) -> pd.DataFrame:
        """The long table of a family, with a column for each setting and for the energy."""
        tables = []
        for key, outputs in families[pool].outputs.items():
            columns = dict(zip(settings, key, strict=True))
            table = table_of(outputs, attack, target)
            tables.append(table.assign(**columns, energy=outputs.energy))
        return pd.concat(tables, ignore_index=True)

    def draw(
        pool: str,
        attack: str,
        target: int | str,
        show: tuple[str, float | None],
        along: str,
        **values: object,
    ) -> View:
        """The outputs with these values of the settings beside their reference, and a metric along
        one setting.
        """
        family = families[pool]
        shown = shown_of(pool, **values)
        chosen, *others = shown
        contrast = contrast_of(shown, attack, target)
        table = family_table(pool, attack, target)
        references = [contrast.tables[other].assign(energy=other.energy) for other in others]

        lines = curve(table, references, settings, along, show, attack)
        chosen_x = chosen.energy if along == ENERGY else values[along]
        if is_number(chosen_x):
            lines = with_line(lines, chosen_x)
        figures = pictures_of(shown, attack, target)
        histogram = with_layout(figures["histogram"], legend=INSIDE)
        figures = figures | {"histogram": histogram, "curve": lines}

        long = pd.concat([table, *references], ignore_index=True)
        texts = numbers_table(on_one_line(long, values, along), chosen)
        notes = contrast.notes(caption=family.caption, tried=len(family.outputs))
        if not references:
            notes.append(without_reference)
        return contrast.view(figures, texts, long, notes)

    def clicked(number: int, values: dict) -> dict:
        """The settings of a point of the curve."""
        key = tuple(families[values["pool"]].outputs)[number]
        return dict(zip(settings, key, strict=True))

    # the first setting starts at its first value, the other at its last: END is lowered to the
    # largest value there is, such as that of the most queries
    first_family = next(iter(families.values()))
    first_key = next(iter(first_family.outputs))
    controls = {"pool": chooser("pool", families)}
    follow = {}
    for number, (name, words) in enumerate(settings.items()):
        start = first_key[0] if number == 0 else END
        controls[name] = steps(words, [start], start)
        follow[name] = offered_settings(families, tuple(settings), number)
    controls |= {
        "attack": dropdown("attack"),
        "target": dropdown("target"),
        "show": dropdown("show", METRICS, METRICS[0][1]),
        "along": dropdown("against"),
    }
    follow |= {
        "attack": {"options": lambda **values: offered_attacks(shown_of(**values))},
        "target": {"options": lambda **values: offered_targets(shown_of(**values))},
        "along": {"options": lambda pool: offered_axes(families[pool], settings, against)},
    }
    return Explorer(
        title,
        controls,
        draw,
        question=question,
        rows=[["curve", "roc"], ["histogram"]],
        follow=follow,
        pools={name: family.sources for name, family in families.items()},
        heights=HEIGHTS,
        shares={"roc": 2},
        clicks={"curve": clicked},
    )


def offered_settings(families: dict[str, Family], settings: tuple[str, ...], number: int) -> dict:
    """The rules by which the slider of setting `number` follows the pool and earlier settings."""
    setting = settings[number]

    def options(pool: str, **values: object) -> list:
        """The values of this setting among the pool's outputs with the chosen earlier settings."""
        earlier = tuple(values[name] for name in settings[:number])
        offered = [key[number] for key in families[pool].outputs if key[:number] == earlier]
        return [(setting_text(value), value) for value in dict.fromkeys(offered)]

    def nearest(**values: object) -> object:
        """The chosen value if it is offered, else the largest offered value below it, else the
        first.
        """
        offered = [value for _, value in options(**values)]
        wanted = values[setting]
        if wanted in offered:
            return wanted
        if not is_number(wanted):
            return offered[0]
        below = [value for value in offered if is_number(value) and value <= wanted]
        return max(below, default=offered[0])

    return {
        "options": options,
        "value": nearest,
        "disabled": lambda **values: len(options(**values)) == 1,
    }


def offered_axes(
    family: Family, settings: dict[str, str], against: Sequence[str]
) -> list[tuple[str, str]]:
    """(label, key) of what may stand on the horizontal axis of this family."""
    offered = []
    for name in against:
        if name != ENERGY or family.has_energies:
            offered.append((axis_label(name, settings), name))
    return offered


def axis_label(along: str, settings: dict[str, str]) -> str:
    """The label of a setting, or of the energy, on the horizontal axis."""
    return ENERGY_WORDS if along == ENERGY else settings[along]


def curve(
    table: pd.DataFrame,
    references: Sequence[pd.DataFrame],
    settings: dict[str, str],
    along: str,
    show: tuple[str, float | None],
    attack: str,
) -> dict:
    """A metric against a setting, a line for each value of the other setting; the reference is a
    dashed level. Against energy the reference is a point, and points show their last setting.
    """
    rows = rows_of(table, *show)
    rows = rows.assign(line=line_names(rows, settings, along))
    levels = None
    if references:
        levels = rows_of(pd.concat(references), *show)
        levels = levels.assign(line=levels["family"])
    drawn = rows
    if along == ENERGY:
        drawn = pd.concat([rows, levels])
        levels = None
    x_title = axis_label(along, settings)
    metric = metric_name(*show)
    targets = quantity(rows["targets"].iloc[0], "target")
    sizes = f"{targets}, n0 = {rows['n0'].min():,}"
    figure = plots.lines(
        drawn,
        along,
        levels=levels,
        log=along in LOGARITHMIC,
        shares=show[0] != "auc",
        x_title=x_title,
        y_title=metric,
        title=f"{metric} of {attacks.in_words(attack)} against {x_title}",
        caption=f"bars and bands 95 %; {sizes}",
        height=440,
    ).update_layout(meta="click a point")
    number_points(figure, rows, along)
    if along == ENERGY:
        label_points(figure, rows, list(settings)[-1])
    return plain(figure)


def line_names(rows: pd.DataFrame, settings: dict[str, str], along: str) -> list[str]:
    """The name of each row's line: the value of the first setting that is not the axis."""
    other = next((name for name in settings if name != along), None)
    if other is None:
        return [""] * len(rows)
    names = []
    for value in rows[other]:
        if isinstance(value, str):  # a word needs no name of its setting
            names.append(value)
        else:
            names.append(f"{settings[other]} = {setting_text(value)}")
    return names


def number_points(figure: go.Figure, rows: pd.DataFrame, along: str) -> None:
    """Make a click on a point give the number of its row, and a hover its setting. References have
    no row, and clicks on them give nothing.
    """
    number_of_point = {}
    for number, point in enumerate(zip(rows["line"], rows[along], strict=True)):
        number_of_point[point] = number
    for trace in figure.data:
        if trace.customdata is None:
            continue
        line = trace.name or ""
        numbers = [number_of_point.get((line, value)) for value in trace.customdata]
        trace.text = [setting_text(value) for value in trace.customdata]
        trace.hovertemplate = trace.hovertemplate.replace("%{customdata}", "%{text}")
        trace.customdata = None if None in numbers else numbers


def label_points(figure: go.Figure, rows: pd.DataFrame, setting: str) -> None:
    """Write the setting of its row beside each point that has a number."""
    for trace in figure.data:
        if trace.customdata is None:
            continue
        values = rows[setting].iloc[list(trace.customdata)]
        trace.text = [f"{setting} = {setting_text(value)}" for value in values]
        trace.update(mode="lines+markers+text", textposition="middle right")


def on_one_line(table: pd.DataFrame, values: dict, along: str) -> pd.DataFrame:
    """The rows with these values of all settings but `along`, and the references' rows; all rows if
    `along` is no setting.
    """
    if along not in values:
        return table
    keep = pd.Series(True, table.index)
    for name, value in values.items():
        if name != along:
            keep &= table[name] == value
    is_reference = table[along].isna()  # references have no settings
    return table[keep | is_reference]


def setting_text(value: object) -> str:
    """A setting on a slider or in a legend."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def is_number(value: object) -> bool:
    """Whether a setting lies on an axis."""
    return isinstance(value, int | float)
