"""One explorer for whatever differs in a setting: settings side by side, and a metric against the
setting. `latency`, `dropout`, `noise` and `compare` open it on their own axes.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from mia_nb import attacks, metrics
from mia_nb.metrics.pairs import same_masks
from mia_nb.metrics.queries import UNAVERAGED
from mia_nb.types import Scores
from mia_nb.widgets import families
from mia_nb.widgets.contrast import (
    ENERGY,
    ENERGY_WORDS,
    all_but,
    change_rows,
    curve,
    differing_settings,
    note,
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
from mia_nb.widgets.families import Family, Outputs, query_call, same_images
from mia_nb.widgets.pictures import INSIDE, side_by_side
from mia_nb.widgets.stored import ALL, NOTHING, Source, list_of_sources, only

DRAWS = 200  # of the bootstrap
KEPT = 12  # Scores at once, of 7 MB each for 16 targets and 50,000 samples
LOOKS = 256  # tables and pictures at once
BESIDE = 3  # results beside the first
# with the first rows of the table they fit a screen of 768 pixels
HEIGHTS = {"curve": 260, "roc": 260, "histogram": 165}
OF_RESULTS = {"histogram": 200, "roc": 260}  # the same for results, whose names are long
METRICS = [
    ("AUC", ("auc", None)),
    ("TPR at 0.1 % FPR", ("tpr", 0.001)),
    ("TPR at 1 % FPR", ("tpr", 0.01)),
    ("TPR at 10 % FPR", ("tpr", 0.1)),
    ("test accuracy", ("test_acc", None)),
    ("train - test accuracy", ("gap", None)),
]
MORE_RATES = "mia-nb run dropout_sweep --preset demo -p rates='[0.01, 0.02, 0.05]' -p queries=8"


def latency(sources: Sequence[Source]) -> Explorer:
    """What one output after t time steps gives away, and what it costs, beside the ordinary network
    that the spiking one came from.

    Parameters:
        sources: what to find the networks in, as `sources` gives them

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
    nothing = (
        "no spiking network is stored that was queried at several time steps; make some with:"
        " mia-nb run all --preset demo"
    )

    def missing(family: Family, shown: Outputs) -> dict[str, bool]:
        lone = "no ordinary network with the same members was queried in this way"
        return {lone: shown.reference is None}

    return settings_explorer(
        "Latency",
        "Does an attacker learn more from more time steps?",
        families.by_time(list_of_sources(sources)),
        {"way": "made", "t": "steps t"},
        nothing=nothing,
        start=lambda family: tuple(family.outputs)[(len(family.outputs) - 1) // 2],
        against=("t", ENERGY),
        missing=missing,
    )


def dropout(sources: Sequence[Source]) -> Explorer:
    """Attack success over input dropout p and queries Q, beside the plain query.

    Parameters:
        sources: what to find the pools in, as `sources` gives them

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
    sources = list_of_sources(sources)
    nothing = (
        "no pool is stored that was queried plainly and with input dropout; make one with:"
        f" {MORE_RATES}"
    )
    unknown = []
    for source in sources:
        if families.query_kind(source) == "dropout" and not families.has_dropout(source):
            unknown.append(source.label)
    if unknown:
        nothing += (
            f"; of {', '.join(unknown)} the rate is not known: Source(label, signals,"
            " info={'draws': 'dropout', 'input_dropout': 0.02})"
        )

    def missing(family: Family, shown: Outputs) -> dict[str, bool]:
        rates = {p for p, _ in family.outputs}
        call = query_call(shown.reference.source, input_dropout=0.05, queries=8)
        again = f"only p = {min(rates):g} was queried; more: {MORE_RATES}, or of any pool {call}"
        return {again: len(rates) == 1}

    return settings_explorer(
        "Dropout",
        "Does input dropout help the attacker?",
        families.by_dropout(sources),
        {"p": "p", "queries": "queries Q"},
        nothing=nothing,
        start=lambda family: (min(family.outputs)[0], END),
        against=("p", "queries"),
        missing=missing,
    )


def noise(sources: Sequence[Source]) -> Explorer:
    """Networks whose outputs are random: the attack after R averaged outputs, beside the same
    networks with their noise off.

    Parameters:
        sources: what to find the pools in, as `sources` gives them

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

    def missing(family: Family, shown: Outputs) -> dict[str, bool]:
        call = query_call(shown.source, noise=False)
        return {f"outputs with the noise off are not stored: {call}": shown.reference is None}

    return settings_explorer(
        "Noise is not privacy",
        "What is left of the noise when outputs are averaged?",
        families.by_noise(list_of_sources(sources)),
        {"sigma": "sigma", "outputs": "outputs R"},
        nothing="no model with noise was queried twice yet; make some with:"
        " mia-nb run 09_neural_de --preset tour",
        start=lambda family: (next(iter(family.outputs))[0], END),
        against=("outputs", "sigma"),
        missing=missing,
    )


def compare(sources: Sequence[Source]) -> Explorer:
    """Up to four stored results under one attack, and the settings that differ.

    Parameters:
        sources: what to choose from, as `sources` gives them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Differences are to the pool on top. They are paired (`metrics.difference`: the same samples and
    pairs of targets in each resample) where the same images were queried and the pools share their
    member masks row by row, and are left out otherwise.

    Caveat: at unequal test accuracies a lower risk may be the price of a worse model: compare at
        equal accuracy.
    """
    return settings_explorer(
        "Run comparison",
        "Two results differ: in what, and is it more than chance?",
        families.by_result(list_of_sources(sources)),
        {},
        nothing=NOTHING,
    )


def settings_explorer(
    title: str,
    question: str,
    families: dict[str, Family],
    axes: dict[str, str],
    *,
    nothing: str,
    start: Callable[[Family], tuple] | None = None,
    against: Sequence[str] = (),
    missing: Callable[[Family, Outputs], dict[str, bool]] | None = None,
) -> Explorer:
    """The explorer of families of outputs.

    Parameters:
        title: the explorer's name
        question: what it answers, in a sentence
        families: by name
        axes: {setting: what it is called}, in the order of a family's keys; each has a slider. {}:
            the outputs of a family have no order, and are ticked
        nothing: what to say where nothing was found
        start: the settings shown first
        against: what may stand on the horizontal axis, the first at first: settings, and "energy"
            where that of all outputs is known
        missing: remarks on what is not stored, and whether they hold, of a family and what is shown
    """
    if not families:
        return message(title, nothing)
    measured = Measurements(families, tuple(axes))

    def shown_of(pool: str, **values: object) -> list[Outputs]:
        """Side by side: the chosen setting and its reference, or a result and those ticked."""
        outputs = families[pool].outputs
        if not axes:
            return [outputs[(name,)] for name in (pool, *values["beside"])]
        chosen = outputs[tuple(values[name] for name in axes)]
        return [chosen] if chosen.reference is None else [chosen, chosen.reference]

    def draw(pool: str, target: int | str, attack: str, **values: object) -> View:
        """The settings side by side, their difference, and a metric along one setting."""
        family = families[pool]
        shown = shown_of(pool, **values)
        tables = {outputs: measured.table(outputs, attack, target) for outputs in shown}
        changes = {}
        for outputs in shown:
            if outputs.reference is not None:
                changes[outputs] = measured.change(outputs, attack, target)
        figures = dict(measured.pictures(tuple(shown), attack, target))
        if axes:
            place = {name: values[name] for name in axes}
            x = values["along"]
            references = []
            for outputs in shown[1:]:
                references.append(tables[outputs].assign(energy=measured.energy(outputs)))
            family_table = measured.family_table(pool, attack, target)
            lines = curve(family_table, references, axes, x, values["show"], attack)
            figures["histogram"] = with_layout(figures["histogram"], legend=INSIDE)
            at = place.get(x, measured.energy(shown[0]))
            figures["curve"] = with_line(lines, at) if is_number(at) else lines
            long = pd.concat([family_table, *references], ignore_index=True)
            texts = numbers(on_one_line(long, place, x), shown[0])
        else:
            changed = differing_settings(shown)
            long = pd.concat(tables.values(), ignore_index=True)
            texts = numbers(long, shown[0]).merge(changed, on="family").drop(columns="")
            # a column for each result: there may be many settings
            texts["family"] = list(short_names(texts["family"]).values())
            texts = texts.set_index("family").T.rename_axis(None, axis=1).reset_index(names="")
            # a summary has the number of queries already
            new = [column for column in changed if column == "family" or column not in long]
            long = long.merge(changed[new], on="family")
        said = note(tables, changes, family, found_by_hand=bool(axes))
        if missing is not None:
            said |= missing(family, shown[0])
        flags = filter(None, tables[shown[0]]["flags"].iloc[0].split("; "))
        return View(
            sentence(tables, changes, attack),
            figures,
            texts,
            remarks(said, flags),
            pd.concat([long, change_rows(changes, attack)], ignore_index=True),
        )

    controls = {"pool": chooser("pool", families)}
    follow = {}
    if axes:
        first = start(next(iter(families.values())))
        for number, (name, words) in enumerate(axes.items()):
            controls[name] = steps(words, [first[number]], first[number])
            follow[name] = offered_settings(families, tuple(axes), number)
    else:
        follow["beside"] = {
            "options": lambda pool: all_but(families, pool),
            "value": lambda pool, beside: all_but(beside, pool) or all_but(families, pool)[:1],
        }
    controls["attack"] = dropdown("attack")
    follow["attack"] = {"options": lambda **values: worded(offered_attacks(shown_of(**values)))}
    controls["target"] = dropdown("target")
    follow["target"] = {"options": lambda **values: offered_targets(shown_of(**values))}
    if axes:
        controls["show"] = dropdown("show", METRICS, METRICS[0][1])
    else:
        others = tuple(families)[1:]
        controls["beside"] = Ticks("beside it", others, others[:1], limit=BESIDE)
    if axes:
        controls["along"] = dropdown("against")
        follow["along"] = {
            "options": lambda pool: [
                (axes.get(name, ENERGY_WORDS), name)
                for name in against
                if name != ENERGY or measured.all_energies(families[pool])
            ]
        }

    def clicked(number: int, values: dict) -> dict:
        place = tuple(families[values["pool"]].outputs)[number]
        return dict(zip(axes, place, strict=True))

    return Explorer(
        title,
        controls,
        draw,
        question=question,
        rows=[["curve", "roc"], ["histogram"]] if axes else [["histogram"], ["roc"]],
        follow=follow,
        pools={name: family.sources for name, family in families.items()},
        heights=HEIGHTS if axes else OF_RESULTS,
        shares={"roc": 2},
        clicks={"curve": clicked},
    )


class Measurements:
    """Scores, long tables and pictures of outputs, each made once."""

    def __init__(self, families: dict[str, Family], axes: tuple[str, ...]):
        self.families = families
        self.axes = axes
        self.scores = lru_cache(KEPT)(lambda outputs, attack: outputs.scores(attack))
        self.table = lru_cache(LOOKS)(self._table)
        self.change = lru_cache(LOOKS)(self._change)
        self.pictures = lru_cache(LOOKS)(self._pictures)
        self.family_table = lru_cache(KEPT)(self._family_table)

    def energy(self, outputs: Outputs) -> float | None:
        """Microjoules of the arithmetic for one image, to three figures, the mean over models; None
        where it is not known.
        """
        counted = outputs.source.info.get("operations")
        if counted is None or outputs.queries is not None:
            return None
        return float(f"{np.mean(counted['energy_nj']) / 1000:.3g}")

    def all_energies(self, family: Family) -> bool:
        """Whether the energy of every output of a family, and of its references, is known."""
        every = [*family.outputs.values()]
        every += [outputs.reference for outputs in every if outputs.reference is not None]
        return all(self.energy(outputs) is not None for outputs in every)

    def _of(self, outputs: Outputs, attack: str, target: int | str) -> Scores:
        return only(self.scores(outputs, attack), target)

    def _table(self, outputs: Outputs, attack: str, target: int | str) -> pd.DataFrame:
        """The rows of `mia.summary`, under the name of the outputs."""
        scores = self._of(outputs, attack, target)
        table = metrics.summary({attack: scores}, n_resamples=DRAWS)
        if self.energy(outputs) is not None:
            table = metrics.with_operations(table, scores, outputs.source.info["operations"])
        table = table[table["attack"] == attack].reset_index(drop=True)
        table.insert(0, "family", outputs.name)
        return table

    def _change(self, outputs: Outputs, attack: str, target: int | str) -> pd.Series | None:
        """AUC minus the reference's: value, low, high; None where the two cannot be paired."""
        reference = outputs.reference
        scores = self._of(outputs, attack, target)
        reference_scores = self._of(reference, attack, target)
        if not same_images(outputs.source, reference.source):
            return None
        if not same_masks(scores, reference_scores):
            return None
        return metrics.difference(scores, reference_scores, (), n_resamples=DRAWS).loc["auc"]

    def _pictures(self, shown: tuple[Outputs, ...], attack: str, target: int | str) -> dict:
        short = short_names(outputs.name for outputs in shown)
        scores = {short[outputs.name]: self._of(outputs, attack, target) for outputs in shown}
        return side_by_side(scores, attack)

    def _family_table(self, pool: str, attack: str, target: int | str) -> pd.DataFrame:
        """The long table of a family, with a column for each setting."""
        tables = []
        for place, outputs in self.families[pool].outputs.items():
            settings = dict(zip(self.axes, place, strict=True))
            settings[ENERGY] = self.energy(outputs)
            tables.append(self.table(outputs, attack, target).assign(**settings))
        return pd.concat(tables, ignore_index=True)


def is_number(value: object) -> bool:
    """Whether a setting lies on an axis."""
    return isinstance(value, int | float)


def offered_settings(families: dict[str, Family], axes: tuple[str, ...], number: int) -> dict:
    """What the slider of a setting follows: the pool, and the settings before it."""
    axis = axes[number]

    def options(pool: str, **values: object) -> list:
        before = tuple(values[name] for name in axes[:number])
        places = [place for place in families[pool].outputs if place[:number] == before]
        values = dict.fromkeys(place[number] for place in places)
        return [(setting_text(value), value) for value in values]

    def nearest(**values: object) -> object:
        """What was chosen, or as much of it as there is."""
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


def offered_attacks(shown: Sequence[Outputs]) -> list[str]:
    """Attacks that all of these support, the headline first; of several queries only those that
    average them.
    """
    first, *others = shown
    names = first.source.attacks()
    for outputs in others:
        supported = outputs.source.attacks()
        names = [name for name in names if name in supported]
    if first.queries is None:
        return names
    averaging = []
    for name in names:
        options = getattr(attacks.ATTACKS[name], "keywords", {})
        if options.get("combine") not in UNAVERAGED:
            averaging.append(name)
    return averaging


def offered_targets(shown: Sequence[Outputs]) -> list[int | str]:
    """All targets, or one that all of these have."""
    fewest = min(len(outputs.source.signals.margin) for outputs in shown)
    return [ALL, *range(fewest)]
