"""The workshop's explorers of attacks: few or many references, AUCs with membership drawn anew,
ties of Attack-R, and leakage at equal accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.curve import tie_mass
from mia_nb.metrics.frontier_table import frontier_means
from mia_nb.plots import teaching
from mia_nb.types import Scores
from mia_nb.widgets.controls import Ticks, attack_options, buttons, dropdown, slider, steps
from mia_nb.widgets.explorer import Explorer, View, message
from mia_nb.widgets.figure import MARK, plain, with_line
from mia_nb.widgets.stored import Source
from mia_nb.widgets.words import with_interval
from mia_nb.workshop.measures import (
    FAMILIES,
    METRICS,
    RACERS,
    RATE,
    frontier,
    outcome,
    p_value,
    race_table,
    redrawn,
    with_references,
)

RACE = "Budget race"
NULL = "Is it real?"
LATTICE = "The lattice"
FIGHT = "A fair fight"
PAIR_HELD_OUT = "pair held out"
LEAVE_ONE_OUT = "leave one out"
DESIGNS = {
    PAIR_HELD_OUT: "the target and its complementary model are no references",
    LEAVE_ONE_OUT: "only the target is left out: its complementary model is a reference",
}
TESTED = ("rmia", "loss", "lira_global", "nig")
SIZES = (4, 8, 16)  # numbers of models for which membership is drawn anew
LATTICE_REFERENCES = (2, 4, 8, 14, 16, 32, 64)
AT_RATE = f"TPR at {RATE:.0%}"
VERDICTS = {
    "less": "gives away less",
    "more": "gives away more",
    "cannot say": "not resolved",
}


def race(source: Source) -> Explorer:
    """Attacks with 1, 4, 16 and 64 reference models on the same targets; bars are 95 %.

    A target's complementary model is never a reference.

    Parameters:
        source: signals of complementary pairs, such as `cube["race"]`

    Returns:
        An explorer, a static figure in batch mode. With fewer than six models a message says so.
    """
    models = len(source.signals.margin)
    if models < 6:
        text = f"{source.label} has {models} models; a race needs 6 or more, better 66"
        return message(RACE, text)
    all_rows = race_table(source.signals)

    def draw(metric: str, shown: tuple[str, ...]) -> View:
        """The metric of each attack against the number of references."""
        if not shown:
            raise ValueError("tick one attack or more")
        table = all_rows[(all_rows["metric"] == metric) & all_rows["attack"].isin(shown)]
        chance = 0.5 if metric == "AUC" else RATE
        ran = table.dropna(subset="value")
        figure = plots.lines(
            ran.assign(attack=ran["attack"].map(attacks.in_words), chance=chance),
            "references",
            line="attack",
            log=True,
            x_title="reference models trained",
            y_title=metric,
            title=f"{metric} against the number of reference models",
            caption="bars: 95 %; dotted: random guessing; a line starts where the attack can run",
        )
        note = (
            "n/m: cannot run with so few; with one reference RMIA weighs models equally; the"
            " highest is chosen with hindsight"
        )
        return View(winners(table, metric), {"race": plain(figure)}, by_budget(table, shown), note)

    controls = {
        "metric": buttons("metric", list(METRICS), "AUC"),
        "shown": Ticks("attacks", RACERS, RACERS, limit=len(RACERS)),
    }
    return Explorer(RACE, controls, cache(draw), rows=[["race"]])


def winners(table: pd.DataFrame, metric: str) -> str:
    """The highest attack for each number of references, in a sentence."""
    ran = table.dropna(subset="value")
    best = []
    for row in ran.loc[ran.groupby("references")["value"].idxmax()].itertuples():
        value = with_interval(row.value, row.low, row.high)
        best.append(f"{attacks.in_words(row.attack)} with {row.references} ({value})")
    most = table.loc[table["targets"].idxmax()]
    sizes = f"{most['targets']} targets, n0 = {most['n0']}"
    return f"Highest {metric}: {'; '.join(best)}; {sizes}"


def by_budget(table: pd.DataFrame, shown: Sequence[str]) -> pd.DataFrame:
    """A row for each attack, a column for each number of references."""
    texts = list(map(with_interval, table["value"], table["low"], table["high"]))
    wide = table.assign(value=texts)
    wide = wide.pivot(index="attack", columns="references", values="value").reindex(shown)
    wide.columns = [f"{k} references" if k > 1 else "1 reference" for k in wide.columns]
    return wide.rename(attacks.NAMES).reset_index()


def null(source: Source) -> Explorer:
    """The real AUC beside AUCs with membership drawn anew, in two designs and with few or many
    models.

    With the complementary model held out, AUCs of redrawn members lie around 1/2. As a reference it
    makes a signal out of nothing: in an exactly balanced design the number of a sample's IN
    references tells whether the target was trained on it.

    Parameters:
        source: signals of complementary pairs, such as `cube["small"]`

    Returns:
        An explorer, a static figure in batch mode. With fewer than four models a message says so.
    """
    most = len(source.signals.margin)
    sizes = [size for size in SIZES if size <= most]
    if not sizes:
        text = f"{source.label} has {most} models; redrawing membership needs 4 or more"
        return message(NULL, text)

    def draw(attack: str, design: str, models: int) -> View:
        """The real AUC among those with membership drawn anew."""
        signals = source.signals
        if models < most:
            signals = signals.select(models=slice(0, models))
        real, drawn = redrawn(signals, attack, keep_complement=design == LEAVE_ONE_OUT)
        name = attacks.in_words(attack)
        mean = drawn.mean()
        error = drawn.std(ddof=1) / np.sqrt(len(drawn))
        is_biased = abs(mean - 0.5) > 4 * error + 1e-12
        p = p_value(real, drawn)

        verdict = f"the real members give {real:.3f}, p = {p:.3g}"
        if is_biased:
            verdict = f"this design makes {mean:.3f} out of nothing: no AUC from it can be believed"
        low, high = np.quantile(drawn, [0.025, 0.975])
        n0 = int((~signals.member[0, source.audited]).sum())
        sentence = (
            f"{name} on nothing: AUC {mean:.3f} (95 % of {len(drawn)} worlds:"
            f" {low:.3f}-{high:.3f}); {verdict}; {models} models, {min(4, models)} targets,"
            f" n0 = {n0:,}"
        )
        row = {
            "attack": name,
            "design": design,
            "models": models,
            "real AUC": f"{real:.4f}",
            "on nothing": f"{mean:.4f}",
            "its standard error": f"{error:.4f}",
            "p": f"{p:.3g}",
            "verdict": "FAIL" if is_biased else "pass",
        }
        figure = teaching.null_band(real, drawn, name=name, design=DESIGNS[design])
        note = f"{DESIGNS[design]}; a redrawn world keeps every output and deals the members anew"
        return View(sentence, {"null": plain(figure)}, pd.DataFrame([row]), note)

    controls = {
        "attack": dropdown("attack", attack_options(TESTED), TESTED[0]),
        "design": buttons("design", list(DESIGNS), PAIR_HELD_OUT),
        "models": steps("models", sizes, sizes[-1]),
    }
    return Explorer(NULL, controls, cache(draw), rows=[["null"]])


def lattice(source: Source) -> Explorer:
    """Attack-R with few references: its score counts the references that the target beats, so that
    k references give k + 1 values. Beside it the same comparison as a difference of margins, which
    has no ties.

    Parameters:
        source: signals of complementary pairs, such as `cube["pool"]`

    Returns:
        An explorer, a static figure in batch mode. With fewer than four models a message says so.
    """
    most = len(source.signals.margin) - 2
    budgets = [k for k in LATTICE_REFERENCES if k <= most]
    if not budgets:
        text = f"{source.label} has {most + 2} models; the lattice needs 4 or more"
        return message(LATTICE, text)

    def draw(references: int) -> View:
        """The values that scores take with this number of references, and the ROC."""
        # one pair is enough to show the ties
        counts = with_references(source.signals, "attack_r_lattice", references, pairs=1)
        differences = with_references(source.signals, "attack_r", references, pairs=1)
        scores = {"Attack-R (share beaten)": counts, "Attack-R (difference)": differences}
        rows = [_lattice_row(name, scores_of_form) for name, scores_of_form in scores.items()]
        of_counts, of_differences = rows
        lowest_fpr = float(of_counts["smallest FPR above 0"])
        sentence = (
            f"{references} references: {of_counts['different scores']} different scores, none"
            f" accuses fewer than {100 * lowest_fpr:.1f} % of non-members;"
            f" {AT_RATE} is {of_counts[AT_RATE]}, of the difference {of_differences[AT_RATE]},"
            f" n0 = {of_counts['n0']:,}"
        )
        name = f"Attack-R with {references} references"
        bars = teaching.levels(counts.value[0], counts.member[0], name=name)
        figures = {"levels": plain(bars), "roc": plain(plots.roc_pair(scores))}
        note = (
            "table: the first target; curves: a target and its complementary model; a zero made by"
            " ties is no protection"
        )
        return View(sentence, figures, pd.DataFrame(rows), note)

    controls = {"references": steps("references", budgets, 4 if 4 in budgets else budgets[0])}
    return Explorer(LATTICE, controls, cache(draw), rows=[["levels"], ["roc"]])


def _lattice_row(name: str, scores: Scores) -> dict:
    """A row of the lattice's table: scores, ties and ROC of the first target."""
    value = scores.value[0]
    member = scores.member[0]
    at = metrics.tpr_at(value, member, RATE)
    return {
        "attack": name,
        "different scores": len(np.unique(value)),
        "smallest FPR above 0": f"{at.fpr_floor:.4f}",
        AT_RATE: with_interval(at.tpr, at.low, at.high, ".4f"),
        "ties": f"{tie_mass(value):.3f}",
        "AUC": f"{metrics.auc(value, member):.3f}",
        "n0": at.n0,
    }


def fight(sources: Sequence[Source]) -> Explorer:
    """Leakage (strongest of three attacks) against test accuracy along training, and families
    compared at one accuracy.

    A vertical line marks an accuracy. The table reads every curve there, by linear interpolation
    and without extrapolation, and gives the difference to the first family with its 95 % interval
    (`metrics.matched`). The accounted epsilon of DP-SGD is written beside its points.

    Parameters:
        sources: families queried at several epochs, such as `cube.group("fight")`

    Returns:
        An explorer, a static figure in batch mode.
    """
    table = frontier(sources)
    means = frontier_means(table)
    last = means.sort_values("epoch").groupby("family", sort=False).tail(1).set_index("family")
    names = tuple(table["family"].unique())

    @cache  # one figure for all positions of the line
    def picture(shown: tuple[str, ...]) -> dict:
        figure = plots.against(
            means[means["family"].isin(shown)],
            "test_acc",
            "auc",
            line="family",
            label="epoch",
            title="AUC of the strongest attack against test accuracy, along training",
            caption="numbers: epochs; large: the last; bars 95 %; down and right is good",
        )
        _add_epsilons(figure, means, shown, sources)
        return plain(figure)

    def draw(shown: tuple[str, ...], accuracy: float) -> View:
        """The curves of the families, read at this accuracy."""
        if not shown:
            raise ValueError("tick one family or more")
        families = list(dict.fromkeys((names[0], *shown)))
        curves = table[table["family"].isin(families)]
        matched = metrics.matched(curves, levels=[accuracy], baseline=names[0])
        matched = matched.set_index("family").loc[families]
        verdicts = []
        rows = []
        for name, row in matched.iterrows():
            rows.append(_family_row(row, last.loc[name]))
            if row["difference_pairs"] >= 2:
                side = outcome(row["difference_low"], row["difference_high"])
                verdicts.append(f"{name} {VERDICTS[side]} ({_difference(row)})")
        sentence = (
            f"At {accuracy:.0%} test accuracy, against {names[0]}:"
            f" {'; '.join(verdicts) or 'nothing can be compared here'}"
        )
        note = (
            f"{table['target'].nunique()} targets, n0 = {table['n0'].min()}; strongest attack at"
            " each epoch, with hindsight; n/m: fewer than two targets came so far; 95 %, not"
            " corrected for several families"
        )
        figure = with_line(picture(shown), accuracy, line=MARK)
        return View(sentence, {"fight": figure}, pd.DataFrame(rows), note)

    low = float(np.floor(100 * means["test_acc"].min()) / 100)
    high = float(np.ceil(100 * means["test_acc"].max()) / 100)
    controls = {
        "shown": Ticks("families", names, names, limit=len(names)),
        "accuracy": slider("accuracy", low, high, min(max(0.95, low), high), 0.01, form=".0%"),
    }
    return Explorer(FIGHT, controls, cache(draw), rows=[["fight"]])


def _difference(row: pd.Series) -> str:
    """The difference to the first family, with its interval."""
    return with_interval(*row[["difference", "difference_low", "difference_high"]], "+.3f")


def _family_row(at: pd.Series, last: pd.Series) -> dict:
    """A row of the fight's table: the end of a family's training (`last`), and its leakage at the
    chosen accuracy (`at`).
    """
    if at["difference_pairs"] >= 2:
        difference = _difference(at)
    elif at.name == at["baseline"] or not at["pairs"]:
        difference = ""  # the first family, or one that never reaches this accuracy
    else:
        difference = "n/m"
    return {
        "family": at.name,
        "ends at accuracy": f"{last['test_acc']:.1%}",
        "AUC there": f"{last['auc']:.3f}",
        "AUC at this accuracy": with_interval(*at[["value", "low", "high"]]),
        "difference": difference,
        "targets": f"{at['pairs']:.0f}",
    }


def _add_epsilons(
    figure: go.Figure, means: pd.DataFrame, shown: Sequence[str], sources: Sequence[Source]
) -> None:
    """Write the accounted epsilons of DP-SGD beside the points of its curve."""
    private = [source.info for source in sources if "epsilon" in source.info]
    if not private or FAMILIES["dp_sgd"] not in shown:
        return
    rows = means[means["family"] == FAMILIES["dp_sgd"]].set_index("epoch")
    for number, info in enumerate(private):
        figure.add_annotation(
            text=f"ε {info['epsilon']:.1f}",
            x=rows.loc[info["epoch"], "test_acc"],
            y=rows.loc[info["epoch"], "auc"],
            showarrow=False,
            yshift=-24 - 14 * (number % 2),  # two lines, so that neighbours do not overlap
            font={"size": 11},
        )
    delta = f"; ε: accounted for DP-SGD so far, at delta {private[0]['delta']:g}"
    figure.layout.title.subtitle.text += delta
