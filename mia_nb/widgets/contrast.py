"""What settings differ in, read from the long table: the sentence, the curve, the numbers and the
remarks.
"""

import re
from collections.abc import Iterable, Sequence

import pandas as pd
import plotly.graph_objects as go

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.tables import rates_of, rows_of
from mia_nb.plots.tables import metric_name
from mia_nb.widgets import families
from mia_nb.widgets.explorer import plain
from mia_nb.widgets.families import Outputs
from mia_nb.widgets.pictures import ORACLE, with_interval
from mia_nb.widgets.stored import Source

APART = 0.01  # of test accuracy: more is another utility
POINTER = "\N{BLACK RIGHT-POINTING TRIANGLE}"
LOGARITHMIC = ("t", "queries", "outputs", "energy")
ENERGY = "energy"  # no setting but a measured quantity that may stand on the horizontal axis
ENERGY_WORDS = "energy for an image, µJ"
UNPAIRED = "other members or images: not paired"
TIED = 0.01  # share of scores that equal another's and are worth a word
ABSENT = "-"
# of info: which results these are, not how they were made
IDENTITY = (
    *("pool", "models", "key", "family", "recipe", "classes", "images", "example", "activity"),
    *("operations", "made_from"),
)


def headline(tables: Sequence[pd.DataFrame]) -> tuple[str, float | None]:
    """The metric that a sentence tells: the TPR at the smallest rate that is measurable in all of
    the tables and not 0 by ties; the AUC where there is none.
    """
    for fpr in rates_of(tables[0]):
        rows = [rows_of(table, "tpr", fpr).iloc[0] for table in tables]
        if all(row["measurable"] and (row["fpr_floor"] <= fpr or row["value"] > 0) for row in rows):
            return "tpr", fpr
    return "auc", None


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Names by what they differ in: parts between commas that all of them have are left out, but
    where nothing would be left of one.
    """
    parts = {name: name.split(", ") for name in names}
    shared = set.intersection(*map(set, parts.values()))
    short = {}
    for name, words in parts.items():
        short[name] = ", ".join(word for word in words if word not in shared)
    return short if all(short.values()) else {name: name for name in parts}


def sentence(
    tables: dict[Outputs, pd.DataFrame], changes: dict[Outputs, pd.Series | None], attack: str
) -> str:
    """ "after 2 of 4 steps: RMIA finds 12.0 % (95 %: 10.1-14.0) of members at 10 % false positives;
    ordinary network: ...; the difference: AUC +0.004 [...], paired; n0 = 898"
    """
    metric, fpr = headline(list(tables.values()))
    short = short_names(outputs.name for outputs in tables)
    parts = []
    for outputs, table in tables.items():
        words = rate_with_interval(rows_of(table, metric, fpr).iloc[0], fpr)
        if not parts and fpr is None:
            words = f"{attacks.in_words(attack)} has {words}"
        elif not parts:
            at = f"of members at {100 * fpr:g} % false positives"
            words = f"{attacks.in_words(attack)} finds {words} {at}"
        parts.append(f"{short[outputs.name]}: {words}")
    for outputs, change in changes.items():
        who = "the difference"
        if len(changes) > 1:
            reference = outputs.reference.name
            who = f"{short[outputs.name]} minus {short.get(reference, reference)}"
        if change is None:
            parts.append(f"{who}: {UNPAIRED}")
            continue
        nothing = ", which may be nothing" if change["low"] <= 0 <= change["high"] else ""
        parts.append(f"{who}: AUC {with_interval(*change, '+.3f')}, paired{nothing}")
    sizes = [int(table["n0"].min()) for table in tables.values()]
    size = f"n0 = {min(sizes):,}"
    if max(sizes) > min(sizes):
        size += f" to {max(sizes):,}"
    parts.append(size)
    return "; ".join(parts)


def rate_with_interval(row: pd.Series, fpr: float | None) -> str:
    """A TPR in per cent, or for no fpr an AUC, with its interval."""
    if fpr is None:
        return f"AUC {row['value']:.3f} (95 %: {row['low']:.3f}-{row['high']:.3f})"
    value, low, high = 100 * row[["value", "low", "high"]]
    form = ".2f" if fpr < 0.01 else ".1f"
    return f"{value:{form}} % (95 %: {low:{form}}-{high:{form}})"


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
    is dashed. Against energy, where the reference has its place too, points say their last setting.
    """
    rows = rows_of(table, *show)
    others = all_but(axes, x)
    names = [""] * len(rows)
    if others:
        names = [_line_name(axes[others[0]], value) for value in rows[others[0]]]
    rows = rows.assign(line=names)
    levels = None
    if references:
        levels = rows_of(pd.concat(references), *show)
        levels = levels.assign(line=levels["family"])
    drawn = rows
    if x == ENERGY:
        drawn = pd.concat([rows, levels])
        levels = None
    x_title = axes.get(x, ENERGY_WORDS)
    metric = metric_name(*show) if show[1] else metric_name(show[0])
    sizes = f"{rows['targets'].iloc[0]} targets, n0 = {rows['n0'].min():,}"
    figure = plots.lines(
        drawn,
        x,
        levels=levels,
        log=x in LOGARITHMIC,
        shares=show[0] != "auc",
        x_title=x_title,
        y_title=metric,
        title=f"{metric} of {attacks.in_words(attack)} against {x_title}",
        caption=f"bars and bands 95 %; {sizes}",
        height=440,
    ).update_layout(meta="click a point")
    _number_points(figure, rows, x, last=next(reversed(axes)))
    return plain(figure)


def _number_points(figure: go.Figure, rows: pd.DataFrame, x: str, *, last: str) -> None:
    """Let a click on a point tell which row it is of; a hover still says the setting."""
    places = {}
    for number, (line, value) in enumerate(zip(rows["line"], rows[x], strict=True)):
        places[line, value] = number
    for trace in figure.data:
        if trace.customdata is None:
            continue
        chosen = [places.get((trace.name or "", value)) for value in trace.customdata]
        trace.text = [setting_text(value) for value in trace.customdata]
        trace.hovertemplate = trace.hovertemplate.replace("%{customdata}", "%{text}")
        trace.customdata = None if None in chosen else chosen
        if x == ENERGY and trace.customdata is not None:
            settings = rows[last].iloc[chosen]
            trace.text = [f"{last} = {setting_text(value)}" for value in settings]
            trace.update(mode="lines+markers+text", textposition="middle right")


def _line_name(setting: str, value: object) -> str:
    """What a line is called: words say themselves what they are, numbers of what."""
    return value if isinstance(value, str) else f"{setting} = {setting_text(value)}"


def on_one_line(table: pd.DataFrame, place: dict, x: str) -> pd.DataFrame:
    """The rows that share all settings but x with this place, and those of references; against
    what is measured, all rows.
    """
    for name, value in place.items():
        if x in place and name != x:
            table = table[table[x].isna() | (table[name] == value)]
    return table


def numbers(table: pd.DataFrame, chosen: Outputs) -> pd.DataFrame:
    """The long table for a reader: a row for each family, an arrow at the one chosen."""
    view = metrics.readable(table.assign(attack=table["family"]), full=True)
    view = view.drop(columns=["train / test accuracy", "gap", "flags"])
    for fpr in rates_of(table):
        if not rows_of(table, "tpr", fpr)["measurable"].any():
            view = view.drop(columns=f"TPR at {100 * fpr:g} % FPR")
    for metric in ("train_acc", "test_acc", "gap"):
        rows = rows_of(table, metric).set_index("family")[["value", "low", "high"]]
        view[metric_name(metric)] = [with_interval(*row) for row in rows.to_numpy()]
    if (table["metric"] == "energy_uj").any():
        rows = rows_of(table, "energy_uj").set_index("family").reindex(view.index)
        view[ENERGY_WORDS] = [
            with_interval(*row, ".3g") for row in rows[["value", "low", "high"]].to_numpy()
        ]
    view = view.rename_axis("family").reset_index()
    view.insert(0, "", [POINTER if name == chosen.name else "" for name in view["family"]])
    return view


def conditional_notes(
    tables: dict[Outputs, pd.DataFrame], *, caption: str = "", tried: int = 0
) -> dict[str, bool]:
    """{remark: whether it holds}: what the numbers rest on, and what they do not say.

    Parameters:
        tables: the long table of each result that is shown
        caption: what the attacker is given
        tried: number of settings that a reader can choose among
    """
    first = next(iter(tables.values())).iloc[0]
    accuracies = {}
    for outputs, table in tables.items():
        accuracies[outputs.name] = rows_of(table, "test_acc")["value"].iloc[0]
    apart = max(accuracies.values()) - min(accuracies.values())
    worst = min(accuracies, key=accuracies.get)
    tied = max(table["tie_mass"].iloc[0] for table in tables.values())
    targets = "target" if first["targets"] == 1 else "targets"
    return {
        f"{first['targets']} {targets} with {first['n1']:,} members and {first['n0']:,} non-members"
        " each": True,
        caption: bool(caption),
        f"test accuracies lie {100 * apart:.1f} points apart, {worst} has the lowest: at unequal"
        " accuracy risks compare unfairly": apart > APART,
        f"{100 * tied:.0f} % of scores equal another's: few outputs hide without protecting": tied
        > TIED,
        f"one of {tried} settings tried on the same targets: to pick the best by this picture"
        " flatters the attacker; metrics.choose picks on other models": tried > 2,
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
    settings = dict(recipe)
    for name, value in flat(families.without(source.info, *IDENTITY)).items():
        same = recipe.get(name, value) == value
        settings[name if same else f"query.{name}"] = value
    return settings


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


def setting_text(value: object) -> str:
    """A setting on a slider or in a legend."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def all_but(names: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)
