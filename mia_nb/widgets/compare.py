"""One explorer for whatever differs in a setting: settings side by side, and a metric against the
setting. `latency`, `dropout`, `noise` and `compare` open it on their own axes.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import pandas as pd

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.pairs import same_masks
from mia_nb.metrics.queries import UNAVERAGED
from mia_nb.metrics.tables import rates_of, rows_of
from mia_nb.plots.tables import metric_name
from mia_nb.types import Scores
from mia_nb.widgets import families
from mia_nb.widgets.explorer import (
    END,
    Explorer,
    Ticks,
    View,
    chooser,
    dropdown,
    message,
    plain,
    remarks,
    steps,
    with_line,
    worded,
)
from mia_nb.widgets.families import Family, Outputs, query_call, same_images
from mia_nb.widgets.pictures import ORACLE, ends, side_by_side
from mia_nb.widgets.stored import ALL, NOTHING, Source, list_of_sources, only

DRAWS = 200  # of the bootstrap
KEPT = 12  # Scores at once, of 7 MB each for 16 targets and 50,000 samples
LOOKS = 256  # tables and pictures at once
BESIDE = 3  # results beside the first
APART = 0.01  # of test accuracy: more is another utility
POINTER = "\N{BLACK RIGHT-POINTING TRIANGLE}"
METRICS = [
    ("AUC", ("auc", None)),
    ("TPR at 0.1 % FPR", ("tpr", 0.001)),
    ("TPR at 1 % FPR", ("tpr", 0.01)),
    ("TPR at 10 % FPR", ("tpr", 0.1)),
    ("test accuracy", ("test_acc", None)),
    ("train - test accuracy", ("gap", None)),
]
LOGARITHMIC = ("t", "queries", "outputs")
UNPAIRED = "other members or images: not paired"
TIED = 0.01  # share of scores that equal another's and are worth a word
# of info: which results these are, not how they were made
IDENTITY = ("pool", "models", "key", "family", "recipe", "classes", "images", "example")
ABSENT = "-"
MORE_RATES = "mia-nb run dropout_sweep --preset demo -p rates='[0.01, 0.02, 0.05]' -p queries=8"


def latency(sources: Sequence[Source]) -> Explorer:
    """What one output after t time steps gives away, beside the ordinary network that the spiking
    one came from.

    Parameters:
        sources: what to find the networks in, as `sources` gives them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    Networks: every spiking pool that was queried step by step (query(..., per_step=True); t: the
    readout of the first t steps, or step t alone), and every set of spiking pools with the same
    members and recipe that differ in T (t: their T). The ordinary network has the same members and
    was queried in the same way, input dropout included; a parent comes before any other of the same
    architecture. Intervals are those of `mia.summary`, the difference of AUC is paired
    (`metrics.difference`).

    Caveat: networks that differ in accuracy compare unfairly; an attacker who is shown the outputs
        of all steps has more than one.
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
        {"t": "steps t"},
        nothing=nothing,
        start=lambda family: tuple(family.outputs)[(len(family.outputs) - 1) // 2],
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
        along="outputs",
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
    found: dict[str, Family],
    axes: dict[str, str],
    *,
    nothing: str,
    start: Callable[[Family], tuple] | None = None,
    along: str = "",
    missing: Callable[[Family, Outputs], dict[str, bool]] | None = None,
) -> Explorer:
    """The explorer of families of outputs.

    Parameters:
        title: the explorer's name
        question: what it answers, in a sentence
        found: families by name
        axes: {setting: what it is called}, in the order of a family's keys; each has a slider. {}:
            the outputs of a family have no order, and are ticked
        nothing: what to say where nothing was found
        start: the settings shown first
        along: the setting on the horizontal axis at first; "": the first of the axes
        missing: remarks on what is not stored, and whether they hold, of a family and what is shown
    """
    if not found:
        return message(title, nothing)
    measured = Measurements(found, tuple(axes))

    def shown_of(pool: str, **values) -> list[Outputs]:
        """Side by side: the chosen setting and its reference, or a result and those ticked."""
        outputs = found[pool].outputs
        if not axes:
            return [outputs[(name,)] for name in (pool, *values["beside"])]
        chosen = outputs[tuple(values[name] for name in axes)]
        return [chosen] if chosen.reference is None else [chosen, chosen.reference]

    def draw(pool, target, attack, **values) -> View:
        family = found[pool]
        shown = shown_of(pool, **values)
        tables = {outputs: measured.table(outputs, attack, target) for outputs in shown}
        changes = {}
        for outputs in shown:
            if outputs.reference is not None:
                changes[outputs] = measured.change(outputs, attack, target)
        figures = dict(measured.pictures(tuple(shown), attack, target))
        if axes:
            place = {name: values[name] for name in axes}
            x = values.get("along", next(iter(axes)))
            references = [tables[outputs] for outputs in shown[1:]]
            family_table = measured.family_table(pool, attack, target)
            lines = curve(family_table, references, axes, x, values["show"], attack)
            figures["curve"] = with_line(lines, place[x]) if is_number(place[x]) else lines
            long = pd.concat([family_table, *references], ignore_index=True)
            texts = numbers(on_one_line(long, place, x), shown[0])
        else:
            changed = differing_settings(shown)
            long = pd.concat(tables.values(), ignore_index=True)
            texts = numbers(long, shown[0]).merge(changed, on="family")
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

    controls = {"pool": chooser("pool", found)}
    follow = {}
    if axes:
        first = start(next(iter(found.values())))
        for number, (name, words) in enumerate(axes.items()):
            controls[name] = steps(words, [first[number]], first[number])
            follow[name] = offered_settings(found, tuple(axes), number)
    else:
        others = tuple(found)[1:]
        controls["beside"] = Ticks("beside it", others, others[:1], limit=BESIDE, height="250px")
        follow["beside"] = {
            "options": lambda pool: all_but(found, pool),
            "value": lambda pool, beside: all_but(beside, pool) or all_but(found, pool)[:1],
        }
    controls["attack"] = dropdown("attack")
    follow["attack"] = {"options": lambda **values: worded(offered_attacks(shown_of(**values)))}
    controls["target"] = dropdown("target")
    follow["target"] = {"options": lambda **values: offered_targets(shown_of(**values))}
    if axes:
        controls["show"] = dropdown("show", METRICS, METRICS[0][1])
    if len(axes) > 1:
        options = [(words, name) for name, words in axes.items()]
        controls["along"] = dropdown("against", options, along or options[0][1])

    def clicked(number: int, values: dict) -> dict:
        place = tuple(found[values["pool"]].outputs)[number]
        return dict(zip(axes, place, strict=True))

    return Explorer(
        title,
        controls,
        draw,
        question=question,
        rows=[["curve", "histogram"], ["roc"]] if axes else [["histogram"], ["roc"]],
        follow=follow,
        pools={name: family.sources for name, family in found.items()},
        heights={"curve": 215, "histogram": 215, "roc": 275},
        clicks={"curve": clicked},
    )


class Measurements:
    """Scores, long tables and pictures of outputs, each made once."""

    def __init__(self, found: dict[str, Family], axes: tuple[str, ...]):
        self.found = found
        self.axes = axes
        self.scores = lru_cache(KEPT)(lambda outputs, attack: outputs.scores(attack))
        self.table = lru_cache(LOOKS)(self._table)
        self.change = lru_cache(LOOKS)(self._change)
        self.pictures = lru_cache(LOOKS)(self._pictures)
        self.family_table = lru_cache(KEPT)(self._family_table)

    def _of(self, outputs: Outputs, attack: str, target: int | str) -> Scores:
        return only(self.scores(outputs, attack), target)

    def _table(self, outputs: Outputs, attack: str, target: int | str) -> pd.DataFrame:
        """The rows of `mia.summary`, under the name of the outputs."""
        scores = self._of(outputs, attack, target)
        table = metrics.summary({attack: scores}, n_resamples=DRAWS)
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
        scores = {outputs.name: self._of(outputs, attack, target) for outputs in shown}
        return side_by_side(scores, attack)

    def _family_table(self, pool: str, attack: str, target: int | str) -> pd.DataFrame:
        """The long table of a family, with a column for each setting."""
        tables = []
        for place, outputs in self.found[pool].outputs.items():
            settings = dict(zip(self.axes, place, strict=True))
            tables.append(self.table(outputs, attack, target).assign(**settings))
        return pd.concat(tables, ignore_index=True)


def is_number(value: object) -> bool:
    """Whether a setting lies on an axis."""
    return isinstance(value, int | float)


def setting_text(value: object) -> str:
    """A setting on a slider or in a legend."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def all_but(names: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)


def offered_settings(found: dict[str, Family], axes: tuple[str, ...], number: int) -> dict:
    """What the slider of a setting follows: the pool, and the settings before it."""
    axis = axes[number]

    def options(pool, **values) -> list:
        before = tuple(values[name] for name in axes[:number])
        places = [place for place in found[pool].outputs if place[:number] == before]
        values = dict.fromkeys(place[number] for place in places)
        return [(setting_text(value), value) for value in values]

    def nearest(**values) -> object:
        """What was chosen, or as much of it as there is."""
        there = [value for _, value in options(**values)]
        wanted = values[axis]
        if wanted in there:
            return wanted
        below = []
        if is_number(wanted):
            below = [value for value in there if is_number(value) and value <= wanted]
        return max(below, default=there[0])

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


def headline(tables: Sequence[pd.DataFrame]) -> tuple[str, float | None]:
    """The metric that a sentence tells: the TPR at the smallest rate that is measurable in all of
    the tables and not 0 by ties; the AUC where there is none.
    """
    for fpr in rates_of(tables[0]):
        rows = [rows_of(table, "tpr", fpr).iloc[0] for table in tables]
        if all(row["measurable"] and (row["fpr_floor"] <= fpr or row["value"] > 0) for row in rows):
            return "tpr", fpr
    return "auc", None


def sentence(
    tables: dict[Outputs, pd.DataFrame], changes: dict[Outputs, pd.Series | None], attack: str
) -> str:
    """ "after 2 of 4 steps: RMIA finds 12.0 % (95 %: 10.1-14.0) of members at 10 % false positives;
    ordinary network: ...; the difference: AUC +0.004 [...], paired; n0 = 898"
    """
    metric, fpr = headline(list(tables.values()))
    parts = []
    for outputs, table in tables.items():
        row = rows_of(table, metric, fpr).iloc[0]
        if fpr is None:
            words = f"AUC {row['value']:.3f} (95 %: {row['low']:.3f}-{row['high']:.3f})"
        else:
            value, low, high = 100 * row[["value", "low", "high"]]
            words = f"{value:.1f} % (95 %: {low:.1f}-{high:.1f})"
        if not parts:
            name = attacks.in_words(attack)
            at = f" of members at {100 * fpr:g} % false positives" if fpr is not None else ""
            words = f"{name} {'has' if fpr is None else 'finds'} {words}{at}"
        parts.append(f"{outputs.name}: {words}")
    for outputs, change in changes.items():
        who = "the difference"
        if len(changes) > 1:
            who = f"{outputs.name} minus {outputs.reference.name}"
        if change is None:
            parts.append(f"{who}: {UNPAIRED}")
            continue
        nothing = ", which may be nothing" if change["low"] <= 0 <= change["high"] else ""
        parts.append(f"{who}: AUC {ends(*change, '+.3f')}, paired{nothing}")
    sizes = sorted({int(table["n0"].min()) for table in tables.values()})
    parts.append(f"n0 = {' to '.join(f'{n0:,}' for n0 in (sizes[0], sizes[-1])[: len(sizes)])}")
    return "; ".join(parts)


def change_rows(changes: dict[Outputs, pd.Series | None], attack: str) -> pd.DataFrame:
    """Paired differences as rows of the long table."""
    rows = []
    for outputs, change in changes.items():
        if change is not None:
            name = f"auc minus {outputs.reference.name}"
            row = {"family": outputs.name, "attack": attack, "metric": name, **change}
            rows.append(row)
    return pd.DataFrame(rows)


def curve(
    table: pd.DataFrame,
    references: Sequence[pd.DataFrame],
    axes: dict[str, str],
    x: str,
    show: tuple[str, float | None],
    attack: str,
) -> dict:
    """A metric against a setting, a line for each value of the other setting; the reference's level
    is dashed.
    """
    rows = rows_of(table, *show)
    others = all_but(axes, x)
    names = [""] * len(rows)
    if others:
        names = [f"{axes[others[0]]} = {setting_text(value)}" for value in rows[others[0]]]
    levels = None
    if references:
        levels = rows_of(pd.concat(references), *show)
        levels = levels.assign(line=levels["family"])
    metric = metric_name(*show) if show[1] else metric_name(show[0])
    sizes = f"{rows['targets'].iloc[0]} targets, n0 = {rows['n0'].min():,}"
    figure = plots.lines(
        rows.assign(line=names),
        x,
        levels=levels,
        log=x in LOGARITHMIC,
        shares=show[0] != "auc",
        x_title=axes[x],
        y_title=metric,
        title=f"{metric} of {attacks.in_words(attack)} against {axes[x]}",
        caption=f"bars and bands 95 %; {sizes}",
        height=440,
    ).update_layout(meta="click a point")
    # a click tells which outputs, a hover still says the setting
    places = {}
    for number, (line, value) in enumerate(zip(names, rows[x], strict=True)):
        places[line, value] = number
    for trace in figure.data:
        if trace.customdata is not None:
            trace.text = [setting_text(value) for value in trace.customdata]
            trace.customdata = [places[trace.name or "", value] for value in trace.customdata]
            trace.hovertemplate = trace.hovertemplate.replace("%{customdata}", "%{text}")
    return plain(figure)


def on_one_line(table: pd.DataFrame, place: dict, x: str) -> pd.DataFrame:
    """The rows that share all settings but x with this place, and those of references."""
    for name, value in place.items():
        if name != x:
            table = table[table[x].isna() | (table[name] == value)]
    return table


def numbers(table: pd.DataFrame, chosen: Outputs) -> pd.DataFrame:
    """The long table for a reader: a row for each family, an arrow at the one chosen."""
    view = metrics.readable(table.assign(attack=table["family"]), full=True)
    view = view.drop(columns=["train / test accuracy", "gap", "flags"])
    for fpr in rates_of(table):
        if not rows_of(table, "tpr", fpr)["measurable"].any():
            view = view.drop(columns=f"TPR at FPR {fpr:g}")
    for metric in ("train_acc", "test_acc", "gap"):
        rows = rows_of(table, metric).set_index("family")[["value", "low", "high"]]
        view[metric_name(metric)] = [ends(*row) for row in rows.to_numpy()]
    view = view.rename_axis("family").reset_index()
    view.insert(0, "", [POINTER if name == chosen.name else "" for name in view["family"]])
    return view


def note(
    tables: dict[Outputs, pd.DataFrame],
    changes: dict[Outputs, pd.Series | None],
    family: Family,
    *,
    found_by_hand: bool,
) -> dict[str, bool]:
    """What the numbers rest on and what they do not say: remarks, and whether they hold."""
    first = next(iter(tables.values())).iloc[0]
    right = {o.name: rows_of(table, "test_acc")["value"].iloc[0] for o, table in tables.items()}
    apart = max(right.values()) - min(right.values())
    worst = min(right, key=right.get)
    tied = max(table["tie_mass"].iloc[0] for table in tables.values())
    count = len(family.outputs)
    targets = "target" if first["targets"] == 1 else "targets"
    return {
        f"{first['targets']} {targets} with {first['n1']:,} members and {first['n0']:,} non-members"
        " each": True,
        family.caption: bool(family.caption),
        f"test accuracies lie {100 * apart:.1f} points apart, {worst} has the lowest: at unequal"
        " accuracy risks compare unfairly": apart > APART,
        f"{100 * tied:.0f} % of scores equal another's: few outputs hide without protecting": tied
        > TIED,
        f"one of {count} settings tried on the same targets: to pick the best by this picture"
        " flatters the attacker; metrics.choose picks on other models": found_by_hand and count > 2,
        ORACLE: True,
    }


def differing_settings(shown: Sequence[Outputs]) -> pd.DataFrame:
    """Column family, and one for each setting of recipe or query in which these differ."""
    records = {outputs.name: settings_of(outputs.source) for outputs in shown}
    return differences(records).T.rename_axis("family").reset_index()


def settings_of(source: Source) -> dict:
    """Recipe and query of one result as {dotted name: value}; a query's words for other things get
    "query." before them.
    """
    recipe = flat(source.recipe)
    found = dict(recipe)
    for name, value in flat(families.without(source.info, *IDENTITY)).items():
        same = recipe.get(name, value) == value
        found[name if same else f"query.{name}"] = value
    return found


def flat(record: dict) -> dict:
    """{dotted name: value} of a nested record."""
    return pd.json_normalize([record]).to_dict("records")[0]


def differences(records: dict[str, dict]) -> pd.DataFrame:
    """The settings in which records {name: {setting: value}} differ, a row each; "-" where a record
    lacks one.

    None counts as absent. Of settings whose last words agree and that take the same values
    everywhere, the first is kept (model_args.k and flow.k).
    """
    texts = {}
    for name, record in records.items():
        texts[name] = {setting: text(value) for setting, value in record.items()}
    table = pd.DataFrame(texts).fillna(ABSENT)
    changed = table[table.nunique(axis=1) > 1]
    restated = changed.assign(word=[name.rsplit(".", 1)[-1] for name in changed.index])
    return changed[~restated.duplicated()]


def text(value: object) -> str:
    """A setting as it is printed; keys of pools by their first eight letters."""
    if value is None:
        return ABSENT
    words = f"{value:.6g}" if isinstance(value, float) else str(value)
    return words[:8] if re.fullmatch("[0-9a-f]{64}", words) else words
