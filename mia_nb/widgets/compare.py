"""One explorer for whatever differs in a setting: settings side by side, and a metric against the
setting. `latency`, `dropout`, `noise` and `compare` open it on their own axes.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import pandas as pd

from mia_nb import attacks, metrics
from mia_nb.metrics.pairs import same_masks
from mia_nb.metrics.queries import UNAVERAGED
from mia_nb.types import Scores
from mia_nb.widgets.contrast import (
    ENERGY,
    ENERGY_WORDS,
    all_but,
    change_rows,
    conditional_notes,
    curve,
    differing_settings,
    numbers,
    on_one_line,
    sentence,
    setting_text,
    short_names,
)
from mia_nb.widgets.explorer import (
    END,
    Explorer,
    Ticks,
    View,
    chooser,
    dropdown,
    message,
    remarks,
    steps,
    with_layout,
    with_line,
    worded,
)
from mia_nb.widgets.families import (
    MORE_RATES,
    Family,
    Outputs,
    by_dropout,
    by_noise,
    by_time,
    same_images,
)
from mia_nb.widgets.pictures import INSIDE, side_by_side
from mia_nb.widgets.stored import ALL, NOTHING, Source, list_of_sources, named, only

RESAMPLES = 200  # of the bootstrap
SCORES_KEPT = 12  # of 7 MB each for 16 targets and 50,000 samples
VIEWS_KEPT = 256  # tables and pictures
MOST_BESIDE = 3  # results beside the first
# with the first rows of the table they fit a screen of 768 pixels
HEIGHTS = {"curve": 260, "roc": 260, "histogram": 165}
METRICS = [
    ("AUC", ("auc", None)),
    ("TPR at 0.1 % FPR", ("tpr", 0.001)),
    ("TPR at 1 % FPR", ("tpr", 0.01)),
    ("TPR at 10 % FPR", ("tpr", 0.1)),
    ("test accuracy", ("test_acc", None)),
    ("train - test accuracy", ("gap", None)),
]


def latency(sources: Sequence[Source]) -> Explorer:
    """What an attacker learns from one output after t time steps, and what the output costs, beside
    the ordinary network that the spiking one was made from.

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
        start=lambda family: tuple(family.outputs)[(len(family.outputs) - 1) // 2],
        horizontal_axes=("t", ENERGY),
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
        f" {MORE_RATES}"
    )
    return settings_explorer(
        "Dropout",
        "Does input dropout help the attacker?",
        by_dropout(list_of_sources(sources)),
        {"p": "p", "queries": "queries Q"},
        if_none=if_none,
        start=lambda family: (min(family.outputs)[0], END),
        horizontal_axes=("p", "queries"),
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
        start=lambda family: (next(iter(family.outputs))[0], END),
        horizontal_axes=("outputs", "sigma"),
        without_reference="outputs with the noise off are not stored:"
        " query(pool, images, noise=False), and all else as here",
    )


def compare(sources: Sequence[Source]) -> Explorer:
    """Up to four stored results under one attack, and the settings that differ.

    Parameters:
        sources: stored results to choose from, as `widgets.sources` lists them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Differences are to the pool on top. They are paired (`metrics.difference`: the same samples and
    pairs of targets in each resample) where the same images were queried and the pools share their
    member masks row by row, and are left out otherwise.

    Caveat: at unequal test accuracies a lower risk may be the price of a worse model: compare at
        equal accuracy.
    """
    pools = named(list_of_sources(sources))
    if not pools:
        return message("Run comparison", NOTHING)
    measured = Measurements()

    def shown_of(pool: str, beside: tuple[str, ...]) -> list[Outputs]:
        """The result on top, and those that are ticked."""
        first = Outputs(pool, pools[pool])
        return [first, *(Outputs(name, pools[name], reference=first) for name in beside)]

    def draw(pool: str, attack: str, target: int | str, beside: tuple[str, ...]) -> View:
        """The results side by side, and the settings in which they differ."""
        shown = shown_of(pool, beside)
        tables, changes = measured.beside(shown, attack, target)
        settings = differing_settings(shown)
        long = pd.concat(tables.values(), ignore_index=True)
        texts = by_column(numbers(long, shown[0]).merge(settings, on="family"))
        # a summary has the number of queries already
        new = [name for name in settings if name == "family" or name not in long]
        long = long.merge(settings[new], on="family")
        figures = measured.pictures(tuple(shown), attack, target)
        return view_of(tables, changes, attack, figures, texts, long, conditional_notes(tables))

    others = tuple(pools)[1:]
    controls = {
        "pool": chooser("pool", pools),
        "attack": dropdown("attack"),
        "target": dropdown("target"),
        "beside": Ticks("beside it", others, others[:1], limit=MOST_BESIDE),
    }
    follow = {
        "beside": {
            "options": lambda pool: all_but(pools, pool),
            "value": lambda pool, beside: all_but(beside, pool) or all_but(pools, pool)[:1],
        },
        "attack": {"options": lambda pool, beside: offered_attacks(shown_of(pool, beside))},
        "target": {"options": lambda pool, beside: offered_targets(shown_of(pool, beside))},
    }
    return Explorer(
        "Run comparison",
        controls,
        draw,
        question="Two results differ: in what, and is it more than chance?",
        rows=[["histogram"], ["roc"]],
        follow=follow,
        pools=pools,
        heights={"histogram": 200, "roc": 260},  # names of results are long
        shares={"roc": 2},
    )


def settings_explorer(
    title: str,
    question: str,
    families: dict[str, Family],
    axes: dict[str, str],
    *,
    if_none: str,
    start: Callable[[Family], tuple],
    horizontal_axes: Sequence[str],
    without_reference: str = "",
) -> Explorer:
    """The explorer of families of outputs that differ in one or two settings: a setting beside its
    reference, and a metric against a setting.

    Parameters:
        title: the explorer's name
        question: what it answers, in a sentence
        families: by name
        axes: {setting: what it is called}, in the order of a family's keys; each has a slider
        if_none: the message where there is no family
        start: gives the settings that are shown first of a family
        horizontal_axes: settings that may stand on the horizontal axis, the default first, and
            "energy", which is offered where it is known of all outputs
        without_reference: a remark beside outputs that have no reference
    """
    if not families:
        return message(title, if_none)
    measured = Measurements()

    @lru_cache(SCORES_KEPT)
    def family_table(pool: str, attack: str, target: int | str) -> pd.DataFrame:
        """The long table of a family, with a column for each setting."""
        tables = []
        for place, outputs in families[pool].outputs.items():
            settings = dict(zip(axes, place, strict=True))
            table = measured.table(outputs, attack, target)
            tables.append(table.assign(**settings, energy=outputs.energy))
        return pd.concat(tables, ignore_index=True)

    def shown_of(pool: str, **values: object) -> list[Outputs]:
        """The chosen setting, and its reference if it has one."""
        chosen = families[pool].outputs[tuple(values[name] for name in axes)]
        return [chosen] if chosen.reference is None else [chosen, chosen.reference]

    def draw(
        pool: str,
        attack: str,
        target: int | str,
        show: tuple[str, float | None],
        along: str,
        **place: object,
    ) -> View:
        """The setting beside its reference, their difference, and a metric along one setting."""
        family = families[pool]
        shown = shown_of(pool, **place)
        tables, changes = measured.beside(shown, attack, target)
        along_all = family_table(pool, attack, target)
        references = [tables[outputs].assign(energy=outputs.energy) for outputs in shown[1:]]

        lines = curve(along_all, references, axes, along, show, attack)
        chosen = place.get(along, shown[0].energy)  # of a setting, or the energy
        if is_number(chosen):
            lines = with_line(lines, chosen)
        figures = measured.pictures(tuple(shown), attack, target)
        histogram = with_layout(figures["histogram"], legend=INSIDE)
        figures = figures | {"histogram": histogram, "curve": lines}

        long = pd.concat([along_all, *references], ignore_index=True)
        texts = numbers(on_one_line(long, place, along), shown[0])
        notes = conditional_notes(tables, caption=family.caption, tried=len(family.outputs))
        notes[without_reference] = len(shown) == 1
        return view_of(tables, changes, attack, figures, texts, long, notes)

    def clicked(number: int, values: dict) -> dict:
        """The settings of a point of the curve."""
        place = tuple(families[values["pool"]].outputs)[number]
        return dict(zip(axes, place, strict=True))

    controls = {"pool": chooser("pool", families)}
    follow = {}
    first = start(next(iter(families.values())))
    for number, (name, words) in enumerate(axes.items()):
        controls[name] = steps(words, [first[number]], first[number])
        follow[name] = offered_settings(families, tuple(axes), number)
    controls |= {
        "attack": dropdown("attack"),
        "target": dropdown("target"),
        "show": dropdown("show", METRICS, METRICS[0][1]),
        "along": dropdown("against"),
    }
    follow |= {
        "attack": {"options": lambda **values: offered_attacks(shown_of(**values))},
        "target": {"options": lambda **values: offered_targets(shown_of(**values))},
        "along": {"options": lambda pool: offered_axes(families[pool], axes, horizontal_axes)},
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


def view_of(
    tables: dict[Outputs, pd.DataFrame],
    changes: dict[Outputs, pd.Series | None],
    attack: str,
    figures: dict[str, dict],
    texts: pd.DataFrame,
    long: pd.DataFrame,
    notes: dict[str, bool],
) -> View:
    """The view of results side by side: its sentence, figures, table and notes, and what CSV saves,
    which has the paired differences too.

    Parameters:
        tables: the long table of each result, the one on top first
        changes: what the AUC of a result gains on its reference; None where they are not paired
        attack: name of an attack
        figures: by their place
        texts: the table that is shown
        long: the rows that CSV saves
        notes: {remark: whether it holds}
    """
    flags = filter(None, next(iter(tables.values()))["flags"].iloc[0].split("; "))
    return View(
        sentence(tables, changes, attack),
        figures,
        texts,
        remarks(notes, flags),
        pd.concat([long, change_rows(changes, attack)], ignore_index=True),
    )


def by_column(texts: pd.DataFrame) -> pd.DataFrame:
    """A column for each result: there may be many settings."""
    texts = texts.drop(columns="")  # the arrow at the one chosen: it is the first
    texts["family"] = list(short_names(texts["family"]).values())
    return texts.set_index("family").T.rename_axis(None, axis=1).reset_index(names="")


class Measurements:
    """Scores, long tables and pictures of outputs, each made once."""

    def __init__(self):
        self.scores = lru_cache(SCORES_KEPT)(lambda outputs, attack: outputs.scores(attack))
        self.table = lru_cache(VIEWS_KEPT)(self._table)
        self.change = lru_cache(VIEWS_KEPT)(self._change)
        self.pictures = lru_cache(VIEWS_KEPT)(self._pictures)

    def beside(
        self, shown: Sequence[Outputs], attack: str, target: int | str
    ) -> tuple[dict[Outputs, pd.DataFrame], dict[Outputs, pd.Series | None]]:
        """The summary of each of these, and the change of each from its reference."""
        tables = {}
        changes = {}
        for outputs in shown:
            tables[outputs] = self.table(outputs, attack, target)
            if outputs.reference is not None:
                changes[outputs] = self.change(outputs, attack, target)
        return tables, changes

    def _target_scores(self, outputs: Outputs, attack: str, target: int | str) -> Scores:
        return only(self.scores(outputs, attack), target)

    def _table(self, outputs: Outputs, attack: str, target: int | str) -> pd.DataFrame:
        """The rows of `mia.summary`, under the name of the outputs."""
        scores = self._target_scores(outputs, attack, target)
        table = metrics.summary({attack: scores}, n_resamples=RESAMPLES)
        if outputs.energy is not None:
            table = metrics.with_operations(table, scores, outputs.source.info["operations"])
        table = table[table["attack"] == attack].reset_index(drop=True)
        table.insert(0, "family", outputs.name)
        return table

    def _change(self, outputs: Outputs, attack: str, target: int | str) -> pd.Series | None:
        """AUC minus the reference's: value, low, high; None where the two cannot be paired."""
        reference = outputs.reference
        scores = self._target_scores(outputs, attack, target)
        reference_scores = self._target_scores(reference, attack, target)
        if not same_images(outputs.source, reference.source):
            return None
        if not same_masks(scores, reference_scores):
            return None
        return metrics.difference(scores, reference_scores, (), n_resamples=RESAMPLES).loc["auc"]

    def _pictures(self, shown: tuple[Outputs, ...], attack: str, target: int | str) -> dict:
        short = short_names(outputs.name for outputs in shown)
        scores = {
            short[outputs.name]: self._target_scores(outputs, attack, target) for outputs in shown
        }
        return side_by_side(scores, attack)


def offered_axes(
    family: Family, axes: dict[str, str], horizontal_axes: Sequence[str]
) -> list[tuple[str, str]]:
    """What may stand on the horizontal axis of this family, in words and by key."""
    offered = []
    for name in horizontal_axes:
        if name != ENERGY or has_all_energies(family):
            offered.append((axes.get(name, ENERGY_WORDS), name))
    return offered


def has_all_energies(family: Family) -> bool:
    """Whether the energy of every output of a family, and of its references, is known."""
    for outputs in family.outputs.values():
        if outputs.energy is None:
            return False
        if outputs.reference is not None and outputs.reference.energy is None:
            return False
    return True


def is_number(value: object) -> bool:
    """Whether a setting lies on an axis."""
    return isinstance(value, int | float)


def offered_settings(families: dict[str, Family], axes: tuple[str, ...], number: int) -> dict:
    """What the slider of a setting follows: the pool, and the settings before it."""
    axis = axes[number]

    def options(pool: str, **values: object) -> list:
        """The values that outputs of this pool take at the settings chosen before."""
        before = tuple(values[name] for name in axes[:number])
        places = [place for place in families[pool].outputs if place[:number] == before]
        offered = dict.fromkeys(place[number] for place in places)
        return [(setting_text(value), value) for value in offered]

    def nearest(**values: object) -> object:
        """The value chosen before; where it is not offered the largest offered value below it, or
        else the first.
        """
        offered = [value for _, value in options(**values)]
        wanted = values[axis]
        if wanted in offered:
            return wanted
        below = []
        if is_number(wanted):
            below = [value for value in offered if is_number(value) and value <= wanted]
        return max(below, default=offered[0])

    return {
        "options": options,
        "value": nearest,
        "disabled": lambda **values: len(options(**values)) == 1,
    }


def offered_attacks(shown: Sequence[Outputs]) -> list[tuple[str, str]]:
    """Attacks that all of these support, in words and by key, the headline first; for several
    queries only attacks that average them.
    """
    first, *others = shown
    names = first.source.attacks()
    for outputs in others:
        supported = outputs.source.attacks()
        names = [name for name in names if name in supported]
    if first.queries is not None:
        names = [name for name in names if averages(name)]
    return worded(names)


def averages(attack: str) -> bool:
    """Whether an attack takes the mean of several queries."""
    options = getattr(attacks.ATTACKS[attack], "keywords", {})
    return options.get("combine") not in UNAVERAGED


def offered_targets(shown: Sequence[Outputs]) -> list[int | str]:
    """Choices of a target: all of them, or one that all of these have."""
    fewest = min(len(outputs.source.signals.margin) for outputs in shown)
    return [ALL, *range(fewest)]
