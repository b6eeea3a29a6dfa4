"""The tables of docs/results.md at full size, from the shipped signals: python docs/results.py

Replaces what stands between the markers of that page, and draws its pictures beside it (needs
Chromium and playwright, as pictures.py); the claims of the papers stand in docs/claims.md. With
--claims only these, in two minutes and without pictures. With --store FOLDER --images FILE, what
benchmarks/evidence.py trained, also what needs networks: tables at equal accuracy along training,
the claims that rest on them, and whether the shipped signals print the digits of the stored ones.
A store may hold some of the pools: what needs others stays as it stands on the page.
"""

from __future__ import annotations

import argparse
import math
import re
import resource
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from scipy import stats

from mia_nb import data, examples, metrics, plots, querying, studies, training
from mia_nb.attacks import NAMES, align, score
from mia_nb.store import folders
from mia_nb.studies import Setting, setting
from mia_nb.studies.paper_numbers import paper_results
from mia_nb.studies.study import load
from mia_nb.training.pool import Pool
from mia_nb.types import Recipe, Scores, Signals

PAGE = Path(__file__).parent / "results.md"
CLAIMS_PAGE = Path(__file__).parent / "claims.md"
FINDINGS_PAGE = Path(__file__).parent / "findings.md"
MARKS = ("<!-- {}: begin -->", "<!-- {}: end -->")
ATTACKS = ("rmia", "nig", "lira_global", "lira_shrunk", "attack_r", "attack_p", "loss")
OWN = "lira_smooth"  # an extension of ours, beside them
FPR = (0.01, 0.001)
SPIKING = {  # pool: its place in the study of spiking networks
    "fast-small": Setting("ann"),
    "fast-converted-T4": Setting("snn", training="convert", timesteps=4),
    "fast-hybrid-T1": Setting("snn", training="hybrid", timesteps=1),
    "fast-hybrid-T2": Setting("snn", training="hybrid", timesteps=2),
    "fast-hybrid-T4": Setting("snn", training="hybrid", timesteps=4),
    "fast-direct-T1": Setting("snn", training="direct", timesteps=1),
    "fast-direct-T4": Setting("snn", training="direct", timesteps=4),
}
# the fast network by whole trainings
WHOLE = ("fast-1-epoch", "fast-2-epochs", "fast-3-epochs", "fast-short", "fast-small", "fast-long")
EQUATIONS = ("resnet14", "odenet", "sdenet")
DEFENDED = (*EQUATIONS, "dp-sgd", "relaxloss")
CHANGES = {  # of a training, beside the network that was trained without
    "resnet14": {
        "relaxloss": "RelaxLoss",
        "dp-sgd": "DP-SGD (TinyCNN, 12 epochs, no augmentation)",
        "resnet14-short": "half as many epochs",
        "resnet14-long": "twice as many epochs",
    },
    "fast-small": {
        "fast-smoothing": "label smoothing of 0.2",
        "fast-relaxloss": "RelaxLoss, target 0.8",
        "fast-short": "half as many epochs",
        "fast-long": "twice as many epochs",
        "fast-wide": "twice as wide, 10 epochs",
        "fast-gelu": "that, with GELU and max pooling",
    },
}
IN_THE_MIDDLE = "at the point of its training where"
AT_THE_ENDS = "on the line between the ends of its whole trainings, where"
EQUAL = {  # of the pools beside trainings of equal accuracy
    "fast-relaxloss": "RelaxLoss",
    "fast-smoothing": "label smoothing",
    "fast-ode": "last group an ODE",
    "fast-sde": "last group an SDE",
    "fast-converted-T4": "spiking, converted, T = 4",
    "fast-hybrid-T1": "spiking, hybrid, T = 1",
    "fast-hybrid-T2": "spiking, hybrid, T = 2",
    "fast-hybrid-T4": "spiking, hybrid, T = 4",
    "fast-direct-T1": "spiking from the start, T = 1",
    "fast-direct-T4": "spiking from the start, T = 4",
}
LABELS = {"fast-small": "fast network"}  # which no study names
PAPERS = {"snn": "Guan et al. 2025", "nsde": "Hong, Wu, Gruber and Lee 2025"}
OURS = {"snn": "fast network of width 32", "nsde": "ResNet14 of width 16"}
ENERGIES = (5, 10, 20, 50, 100)  # µJ, ticks of a logarithmic axis
KINDS = ("multiply_", "")  # accumulate operations
DROPPED = 0.01  # share of the values set to zero, as in the spiking study's code
MASKED = ("fast-small", "fast-hybrid-T1", "fast-hybrid-T2")
MASKED_IMAGES = 10_000
DRAWN = ("fast-small", "fast-relaxloss", "resnet14", "fast-converted-T4", "odenet", "dp-sgd")
ENDS = ["value", "low", "high"]
SWIFT = ("rmia", "nig", "loss")  # along training
# a forked process would wait for the threads that loading a pool has started here
PAIR = partial(ProcessPoolExecutor, 2, mp_context=get_context("spawn"))
DATASETS = ("cifar10", "cifar100", "fashion-mnist", "tiny-imagenet")
NODES = {"table": ["III"], "model": ["odenet-16-32-64"]}
NSDES = {"table": ["III"], "model": ["sdenet-16-32-64"]}
RESNETS = {"table": ["I"], "model": ["resnet14"]}
HEURISTICS = {"table": ["XI"], "defense": ["l1", "l2", "mmd-mixup", "memguard"]}
NOISY = {"table": ["XI"], "sigma": [2.0]}
FACTORS = (  # what the second paper states: least, most, numerator, denominator, data sets, attacks
    (
        "NODEs: 1.3 to 4 times less than ResNet-14, CIFAR-10",
        (1.3, 4, RESNETS, NODES | {"table": ["I"]}, DATASETS[:1], ("lira", "rmia")),
    ),
    (
        "NODEs: 1.6 to 2.6 times less, CIFAR-100",
        (1.6, 2.6, RESNETS, NODES | {"table": ["I"]}, DATASETS[1:2], ("lira", "rmia")),
    ),
    (
        "NODEs: at most 2 times less on the two others",
        (1, 2, RESNETS, NODES | {"table": ["I"]}, DATASETS[2:], ("lira", "rmia")),
    ),
    (
        "ODENet-64: 2.5 to 6 times less than ResNet-14 (Appendix C)",
        (2.5, 6, RESNETS, {"table": ["V"], "model": ["odenet-64"]}, DATASETS[:2], ("lira",)),
    ),
    (
        "NSDEs: 1.8 to 10 times less than NODEs",
        (1.8, 10, NODES, NSDES, DATASETS, ("lira", "rmia")),
    ),
    (
        "NSDEs: 4 to 10 times less than NODEs (Section 5.1)",
        (4, 10, NODES, NSDES, DATASETS, ("lira", "rmia")),
    ),
    (
        "NSDEs: 2 to 5 times less than heuristic defenses",
        (2, 5, HEURISTICS, NOISY, DATASETS[:1], ("lira",)),
    ),
    (
        "NSDEs: 2 to 8 times less than heuristic defenses (Section 5.1)",
        (2, 8, HEURISTICS, NOISY, DATASETS[:1], ("lira",)),
    ),
    (
        "an NSDE block in place of the last group: more than 10 times less than ResNet-14",
        (10, math.inf, RESNETS, {"table": ["VII"]}, DATASETS, ("lira",)),
    ),
)
LENGTHS = {
    "resnet14-short": "12 epochs",
    "resnet14": "24 epochs",
    "resnet14-long": "48 epochs",
}


def auc_text(summary: pd.DataFrame, attack: str) -> str:
    row = metrics.by_attack(summary, "auc").loc[attack]
    return f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"


def tpr_text(summary: pd.DataFrame, attack: str, fpr: float) -> str:
    value, low, high = 100 * metrics.by_attack(summary, "tpr", fpr).loc[attack, ENDS].astype(float)
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def table(*columns: str) -> list[str]:
    """The head of a table of the page."""
    return ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def measured(name: str) -> tuple[dict[str, Scores], pd.DataFrame]:
    """The scores of every attack on one shipped pool, and their summary with negative control."""
    begun = time.perf_counter()
    signals = examples.load_example(name)
    opened = time.perf_counter() - begun
    scores = {attack: score(attack, signals) for attack in (*ATTACKS, OWN)}
    scored = time.perf_counter() - begun - opened
    control = metrics.self_test(signals, list(scores), samples=None)
    summary = metrics.summary(scores, FPR, self_test=control)
    summary = summary[summary["attack"] != "max"]
    print(
        f"{name}: opened {opened:.1f} s, {len(scores)} attacks {scored:.1f} s, negative"
        f" control and intervals {time.perf_counter() - begun - opened - scored:.1f} s,"
        f" {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB at most so far",
        flush=True,
    )
    return scores, summary


def rates(summary: pd.DataFrame, attack: str) -> str:
    few, fewer = (tpr_text(summary, attack, fpr) for fpr in (0.01, 0.001))
    return f"{auc_text(summary, attack)} | {few} | {fewer}"


def leading(
    scores: dict[str, Scores], summary: pd.DataFrame, metric: str, fpr: float | None, unit: int
) -> str:
    """Which of `ATTACKS` leads in a metric and its paired difference to the second."""
    values = metrics.by_attack(summary, metric, fpr)["value"].loc[list(ATTACKS)]
    first, second = values.nlargest(2).index
    name = metric if fpr is None else f"{metric}@{fpr:g}"
    gap = unit * metrics.difference(scores[first], scores[second], FPR).loc[name]
    resolved = "" if gap["low"] > 0 else ", not resolved"
    digits = 4 if unit == 1 else 2
    ends = ", ".join(f"{gap[end]:.{digits}f}" for end in ("low", "high"))
    return f"{NAMES[first]} over {NAMES[second]}: {gap['value']:.{digits}f} [{ends}]{resolved}"


def own_beside(scores: dict[str, Scores], attack: str) -> str:
    """The paired difference in AUC of our own attack to another."""
    gap = metrics.difference(scores[OWN], scores[attack], FPR).loc["auc"]
    resolved = "" if gap["low"] > 0 or gap["high"] < 0 else ", not resolved"
    return f"{gap['value']:+.4f} [{gap['low']:+.4f}, {gap['high']:+.4f}]{resolved}"


def pools(all_scores: dict, summaries: dict[str, pd.DataFrame]) -> list[str]:
    """A row for every pool, by RMIA; then the attacks on the first; then what leads where."""
    lines = table(
        "pool",
        "models (references a side)",
        "train / test accuracy, %",
        "AUC of RMIA",
        "TPR at 1 % FPR, %",
        "TPR at 0.1 % FPR, %",
        "negative control",
    )
    for name, summary in summaries.items():
        train, test = (
            100 * metrics.by_attack(summary, side).loc["rmia", "value"]
            for side in ("train_acc", "test_acc")
        )
        right = f"{train:.1f} / {test:.1f}"
        control = metrics.by_attack(summary, "auc").loc["rmia", "self_test"]
        count, pool = len(all_scores[name]["rmia"].targets), name.removeprefix("cifar10/")
        models = f"{count} ({count // 2 - 1})"
        lines.append(f"| {pool} | {models} | {right} | {rates(summary, 'rmia')} | {control} |")
    for name in (f"cifar10/{network}" for network in CHANGES):
        lines += ["", f"Every attack on `{name}`:"]
        lines += table("attack", "AUC", "TPR at 1 % FPR, %", "TPR at 0.1 % FPR, %")
        for attack in dict.fromkeys(summaries[name]["attack"]):
            lines.append(f"| {NAMES[attack]} | {rates(summaries[name], attack)} |")
    lines += [
        "",
        f"Which attack leads, and by how much (paired difference to the second). {NAMES[OWN]}, an"
        " extension of ours, stands apart: its AUC less that of RMIA.",
    ]
    lines += table("pool", "in AUC", "in TPR at 0.1 % FPR, points", f"{NAMES[OWN]} - RMIA")
    for name, summary in summaries.items():
        leads = (
            leading(all_scores[name], summary, metric, fpr, unit)
            for metric, fpr, unit in (("auc", None, 1), ("tpr", 0.001, 100))
        )
        own = own_beside(all_scores[name], "rmia")
        lines.append(f"| {name.removeprefix('cifar10/')} | {' | '.join((*leads, own))} |")
    return lines


def alike(signals: dict[str, Signals]) -> dict[str, Signals]:
    """The same number of models of each, so that targets and references are the same masks."""
    count = min(len(one.margin) for one in signals.values())
    return {name: one.select(models=slice(0, count)) for name, one in signals.items()}


def spiking(signals: dict[str, Signals]) -> dict[Setting, Scores]:
    own = {SPIKING[name]: one for name, one in signals.items()}
    settings = {
        spot._replace(attack=attack): score(attack, one)
        for spot, one in own.items()
        for attack in ("rmia", "attack_r", "attack_r_lattice", "attack_p")
    }
    foreign = own[Setting("ann")]
    for spot, one in own.items():
        if spot.model == "snn":
            for attack in ("rmia", "attack_r", "attack_r_lattice"):
                there = spot._replace(attack=attack, references="ann")
                settings[there] = score(attack, one, foreign)
                there = spot._replace(attack=attack, references="ann, aligned")
                settings[there] = score(attack, align(one), align(foreign))
    return settings


def equations(signals: dict[str, Signals]) -> dict[Setting, Scores]:
    return {
        setting(one.info, attack): score(attack, one)
        for one in signals.values()
        for attack in ATTACKS
    }


def lengths(signals: dict[str, Signals]) -> dict[Setting, Scores]:
    recipes = {name: Recipe.from_json(one.info["recipe"]) for name, one in signals.items()}
    recipes = {
        name: recipe.model_copy(update={"num_models": len(signals[name].margin)})
        for name, recipe in recipes.items()
    }
    return {
        setting(recipes[name], attack, label=LENGTHS[name]): score(attack, one)
        for name, one in signals.items()
        for attack in ATTACKS
    }


def defended(signals: dict[str, Signals]) -> dict[Setting, Scores]:
    return {
        setting(one.info, attack): score(attack, one)
        for one in signals.values()
        for attack in ATTACKS
    }


STUDIES = {  # study: its settings from signals, the pools that it takes
    "snn": (spiking, SPIKING),
    "nsde": (equations, EQUATIONS),
    "privacy": (defended, DEFENDED),
    "recipes": (lengths, LENGTHS),
}


def there(names) -> dict[str, Signals]:
    """The shipped signals of these pools, those that there are."""
    known = {name.removeprefix("cifar10/") for name in examples.examples()}
    return {name: examples.load_example(f"cifar10/{name}") for name in names if name in known}


def claims(study: str, frontier: pd.DataFrame | None = None) -> list[str]:
    """Those of a study's claims that the shipped pools can decide, and what was printed beside.

    frontier: along training, for those that compare at equal accuracy.
    """
    settings_of, names = STUDIES[study]
    settings = settings_of(alike(there(names)))
    along = {} if frontier is None else {"frontier": frontier}
    found, lines = studies.claims(study, settings, **along), []
    for number, row in found[found["verdict"] != "not run"].iterrows():
        evidence = folded(row["evidence"])
        lines.append(f"| {number}. {row['claim']} | {row['verdict']} | {evidence} |")
    printed = printed_beside(study, settings) if study in PAPERS else []
    return [*table("claim", "at this size", "evidence"), *lines, *printed]


def folded(evidence: str) -> str:
    """The evidence of a claim as a cell of a table, of which its first part alone is open."""
    first, _, rest = evidence.replace("|", "/").partition("; ")
    return f"<details><summary>{first}</summary>{rest}</details>" if rest else first


def one_number(page: str) -> list[str]:
    """The claims that the shipped pools decide, each with its verdict and the one number that it
    rests on: from the tables of evidence of the page of claims.
    """
    lines = table("claim", "here, extended", "the number that decides")
    for study in STUDIES:
        begin, end = (mark.format(f"claims: {study}") for mark in MARKS)
        _, _, rest = page.partition(begin)
        for row in re.findall(r"^\| ([A-Z]\d+\. .*) \|$", rest.partition(end)[0], re.MULTILINE):
            claim, verdict, evidence = row.split(" | ", 2)
            shown = re.sub(r"</summary>.*|<[^>]+>", "", evidence)
            lines.append(f"| {claim} | {verdict} | {shown} |")
    return lines


def verdicts(study: str) -> list[str]:
    """A row per claim of a study for docs/claims.md: the paper's sentence, the rule, and what the
    print and the shipped pools say of it.
    """
    settings_of, names = STUDIES[study]
    rules = load(study)
    here = studies.claims(study, settings_of(alike(there(names))))
    printed = studies.claims_on_print(study)
    lines = table(
        "claim", "the paper's sentence", "rule", "on print", "here, as printed", "here, extended"
    )
    for name, claim in rules.claims.items():
        row = printed.loc[name]
        quote = f'"{claim.quote}" ({claim.place})' if claim.quote else "none"
        rule = claim.sentence
        if claim.extends:
            rule += f" *Extended*: {claim.extends}."
        on_print = row["verdict"]
        if row["comparisons"]:
            on_print += f": {row['agree']} of {row['comparisons']}, least {row['least']}"
        cells = (
            name,
            quote,
            rule,
            on_print,
            here.loc[name, "as_printed"],
            here.loc[name, "verdict"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def factors() -> list[str]:
    """What Hong, Wu, Gruber and Lee say in times, beside the ratios of the TPRs that they print:
    how many lie within the statement, half of its last digit allowed.
    """
    printed = pd.DataFrame([record | record["setting"] for record in paper_results("nsde2025")])
    rates = printed[printed["metric"].isin(["tpr@0.001", "tpr@0.01"])]
    lines = table("stated", "ratios within", "smallest", "largest")
    for statement, (least, most, above, below, datasets, attacks) in FACTORS:
        rows = rates[rates["dataset"].isin(datasets) & rates["attack"].isin(attacks)]
        both = with_entries(rows, above).merge(
            with_entries(rows, below), on=["dataset", "attack", "metric"]
        )
        both = both[(both["value_x"] > 0) | (both["value_y"] > 0)]  # 0 / 0 is no ratio
        ratios = both["value_x"] / both["value_y"]
        within = (ratios >= least - half_a_digit(least)) & (ratios < most + half_a_digit(most))
        lines.append(
            f"| {statement} | {within.sum()} of {len(ratios)} | {ratios.min():.2f} |"
            f" {ratios.max():.2f} |"
        )
    return lines


def with_entries(rows: pd.DataFrame, entries: dict[str, list]) -> pd.DataFrame:
    """The rows that have one of the values in each of these columns."""
    for column, values in entries.items():
        rows = rows[rows[column].isin(values)]
    return rows


def half_a_digit(limit: float) -> float:
    """Half of the last digit of a limit as the paper writes it: 2 or 1.3."""
    return 0.5 if limit == math.inf or limit == int(limit) else 0.05


def printed_beside(study: str, settings: dict[Setting, Scores]) -> list[str]:
    """What the study's paper printed, ours beside it."""
    ours = studies.against_papers(study, settings, ours=f"{OURS[study]}, 25,000 members")
    measured = ours[ours["ours"].notna()]
    if not len(measured):
        return []
    rows = studies.against_papers_readable(measured).drop(columns="dataset")
    rows = rows.loc[:, (rows != "").any()].replace({"attack": NAMES})
    cells = [
        [str(value).replace("|", "/") for value in row] for row in rows.itertuples(index=False)
    ]
    count = len(next(iter(settings.values())).targets)
    lines = [
        "",
        f"Printed by {PAPERS[study]} / measured here, on smaller networks, shorter recipes and the"
        f" first {count} models of each pool:",
    ]
    return [*lines, *table(*rows.columns), *(f"| {' | '.join(row)} |" for row in cells)]


def changes(network: str) -> list[str]:
    """What changes of the training leave to find, beside this network of the same masks."""
    signals = alike(there((network, *CHANGES[network])))
    found = {name: score("rmia", one) for name, one in signals.items()}
    plain, rows = found.pop(network), []
    for name, one in found.items():
        right = f"{100 * (one.accuracy - plain.accuracy)[:, 1].mean():+.1f}"
        cells = [right, *gaps(one, plain, 0.001)]
        rows.append(f"| {CHANGES[network][name]} | {' | '.join(cells)} |")
    head = ["", f"What RMIA finds, beside `{network}` of the same masks, 8 models each:"]
    columns = ("change", "test accuracy, points", "AUC", "TPR at 0.1 % FPR, points")
    return [*head, *table(*columns), *rows] if rows else []


def trained(name: str, store: str) -> Pool | None:
    """The pool in a store of which a shipped one has the signals, or its first eight models."""
    info = examples.load_example(f"cifar10/{name}").info
    with suppress(ValueError):
        return training.load_pool(info["pool"], root=store)
    eight = Recipe.from_json(info["recipe"]).replace(num_models=8)
    for folder in folders(store, "pool"):
        with suppress(ValueError):  # of pools that are not finished
            pool = training.load_pool(folder.path.name, root=store)
            if pool.recipe == eight:
                return pool
    return None


def stored(store: str) -> list[str]:
    """The shipped pools that the store holds with all their models, or the first eight."""
    names = (*SPIKING, *EQUATIONS, *CHANGES["resnet14"], *CHANGES["fast-small"])
    return [name for name in there(names) if trained(name, store)]


def along(store: str, images, names) -> pd.DataFrame:
    """The frontier of pools that have snapshots: the first 8 models at every epoch kept."""
    runs = {}
    for name, one in there(names).items():
        pool = trained(name, store)
        family = LABELS.get(name) or setting(one.info, "rmia").label
        runs[family] = {}
        for epoch in (*pool.recipe.snapshots, pool.recipe.epochs):
            signals = querying.query(pool.at(epoch), images, models=range(8), progress=False)
            runs[family][epoch] = {word: score(word, signals) for word in SWIFT}
    return metrics.frontier(runs, FPR)


def at_equal_accuracy(frontier: pd.DataFrame) -> list[str]:
    """What was found on families where, along training, they were equally accurate."""
    first, *others = frontier["family"].unique()
    picture = "AUC against test accuracy along training, networks and differential equations"
    lines = ["", f"![{picture}](results-equations.png)"]
    lines += ["", f"At equal test accuracy along training, against {first}, paired:"]
    lines += table("family", "test accuracy, %", "AUC", f"AUC minus {first}'s", "pairs")
    for name in others:
        pair = frontier[frontier["family"].isin([first, name])]
        matched = metrics.matched(pair, baseline=first)
        for _, row in matched[matched["family"] == name].dropna(subset="difference").iterrows():
            ends = f"[{row['difference_low']:+.3f}, {row['difference_high']:+.3f}]"
            lines.append(
                f"| {name} | {100 * row['level']:.1f} | {row['value']:.3f} [{row['low']:.3f},"
                f" {row['high']:.3f}] | {row['difference']:+.3f} {ends} |"
                f" {row['difference_pairs']} |"
            )
    return lines


def along_training(frontier: pd.DataFrame) -> go.Figure:
    """What was found against accuracy, along the training of each family."""
    return plots.against(
        metrics.frontier_means(frontier),
        "test_acc",
        "auc",
        line="family",
        label="epoch",
        title="AUC against test accuracy along training",
        caption="numbers: epochs; large: the last; bars 95 %; down and right is good",
    )


def trained_for_less() -> pd.DataFrame:
    """What was found on other families at their end, beside the line between the ends of whole
    trainings of the fast network, from the shortest to the longest that ship.
    """
    runs = {}
    for one in alike(there(WHOLE)).values():
        runs[Recipe.from_json(one.info["recipe"]).epochs] = {"rmia": score("rmia", one)}
    ends = metrics.frontier({LABELS["fast-small"]: dict(sorted(runs.items()))}, FPR)
    return beside(ends, EQUAL)


def together(found: pd.DataFrame) -> list[str]:
    """How much wider the intervals of a table must be to hold all at once, and which of its
    differences are then resolved.
    """
    degrees, share = found["pairs"] - 1, 0.05 / len(found)
    wider = stats.t.isf(share / 2, degrees) / stats.t.isf(0.025, degrees)
    halves = wider * (found["difference_high"] - found["difference_low"]) / 2
    resolved = found.loc[found["difference"].abs() > halves, "pool"]
    return [
        "",
        f"Each interval holds by itself. For all {len(found)} to hold together they must be"
        f" {wider.min():.1f} times as wide with {found['pairs'].max()} pairs (Student's t,"
        " Bonferroni);",
        f"{len(resolved)} differences are then still resolved: {', '.join(resolved)}.",
    ]


def equal_picture(found: pd.DataFrame) -> go.Figure:
    """The differences from the fast network of equal accuracy, a row for each family."""
    rows = found.sort_values("difference", ascending=False)
    value = rows["difference"]
    names = [
        f"{EQUAL[name]}, {100 * level:.0f} %"
        for name, level in zip(rows["pool"], rows["level"], strict=True)
    ]
    bars = plots.marks.bars(value, rows["difference_low"], rows["difference_high"])
    figure = go.Figure(go.Scatter(x=value, y=names, mode="markers", error_x=bars))
    figure.update_traces(marker_size=10)
    figure.add_vline(0, line_dash="dash")
    figure.update_layout(xaxis_title="AUC of RMIA, minus that of the fast network as accurate")
    return plots.style.finish(
        figure,
        "Left of the line: less exposed than the same network trained for less long",
        "8 models each, 4 pairs; bars 95 %, each by itself; beside the names: test accuracy",
    )


def with_energy() -> pd.DataFrame:
    """What RMIA finds of the shipped families of one skeleton, and what they compute: the long
    tables of the first eight models of each, with columns pool, line (how they were made) and T.
    """
    tables = []
    for name, one in alike(there((*SPIKING, "fast-short"))).items():
        place = SPIKING.get(name, Setting("ann"))
        scores = score("rmia", one)
        summary = metrics.summary({"rmia": scores}, FPR)
        summary = metrics.with_operations(summary, scores, one.info["operations"])
        line = {"": "ordinary", "convert": "converted"}.get(place.training, place.training)
        labels = {"pool": name, "line": line, "T": place.timesteps}
        tables.append(summary[summary["attack"] == "rmia"].assign(**labels))
    return pd.concat(tables, ignore_index=True)


def energies(long: pd.DataFrame) -> list[str]:
    """A row for each family: accuracy, leak, operations and energy."""
    lines = ["", "What each family computes for an image (8 models each, RMIA with 3 references):"]
    columns = ("test accuracy, %", "AUC of RMIA", "TPR at 0.1 % FPR, %")
    lines += table("pool", *columns, "million MAC", "million AC", "energy, µJ")
    for name, rows in long.groupby("pool", sort=False):
        of = partial(metrics.by_attack, rows)
        right = 100 * of("test_acc").loc["rmia", ENDS].astype(float)
        million = [of(f"{kind}accumulates").loc["rmia", "value"] / 1e6 for kind in KINDS]
        energy = of("energy_uj").loc["rmia", ENDS].astype(float)
        cells = (
            "{:.1f} [{:.1f}, {:.1f}]".format(*right),
            auc_text(rows, "rmia"),
            tpr_text(rows, "rmia", 0.001),
            *(f"{count:.1f}" for count in million),
            "{:.1f} [{:.1f}, {:.1f}]".format(*energy),
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def energy_picture(long: pd.DataFrame) -> go.Figure:
    """Test accuracy and AUC against energy, a line for each way that the networks were made."""
    rows = long[long["metric"].isin(("test_acc", "auc")) & (long["pool"] != "fast-short")]
    energy = long[long["metric"] == "energy_uj"].set_index("pool")["value"]
    rows = rows.assign(energy=[float(f"{energy[pool]:.3g}") for pool in rows["pool"]])
    figure = plots.lines(
        rows,
        "energy",
        panel="metric",
        log=True,
        x_title="energy of the arithmetic for an image, µJ",
        title="Spiking networks take less energy, leak less and are less accurate",
        caption="8 models each, RMIA; bars 95 %; at the marks: time steps T",
    )
    # plain ticks: those at the networks' own energies would overlap
    figure.update_xaxes(tickvals=ENERGIES, ticktext=[str(energy) for energy in ENERGIES])
    steps = dict(zip(rows["energy"], rows["T"], strict=True))
    for trace in figure.data:
        if trace.customdata is not None:
            known = [steps[energy] for energy in trace.customdata]
            trace.text = [f"T = {T}" if T else "" for T in known]
            trace.update(mode="lines+markers+text", textposition="bottom right")
    return figure


def beside(frontier: pd.DataFrame, others: Iterable[str]) -> pd.DataFrame:
    """Pools at their end, and one network where, along a frontier, it was equally accurate: by
    RMIA, 8 models each, paired. Of pools that are outside the frontier there is no row.
    """
    each, rows = [one for _, one in frontier.groupby("pair")], []
    for name, one in alike(there(others)).items():
        scores = score("rmia", one)
        summary = metrics.summary({"rmia": scores}, FPR)
        level = metrics.by_attack(summary, "test_acc").loc["rmia", "value"]
        then = metrics.matched(frontier, levels=[level], attack="rmia").iloc[0]
        if then["pairs"] < 2:
            continue
        end = metrics.frontier({name: {0: {"rmia": scores}}}, FPR, n_resamples=0)
        ways = [metrics.matched(one, levels=[level], attack="rmia") for one in each]
        before = [float(way["value"].iloc[0]) if len(way) else math.nan for way in ways]
        gap = (end.groupby("pair")["auc"].mean() - before).dropna()
        low, high = metrics.uncertainty.interval(gap, gap.index)
        rows.append(
            {
                "pool": name,
                "level": level,
                "auc": auc_text(summary, "rmia"),
                "then": f"{then['value']:.3f} [{then['low']:.3f}, {then['high']:.3f}]",
                "difference": gap.mean(),
                "difference_low": low,
                "difference_high": high,
                "pairs": then["pairs"],
            }
        )
    return pd.DataFrame(rows)


def as_lines(found: pd.DataFrame, network: str, where: str) -> list[str]:
    """The table of `beside` as lines of the page."""
    lines = [
        "",
        f"Networks at their end, and {network} {where} it was equally accurate (RMIA; differences"
        " paired, their intervals over the pairs of\nmodels):",
    ]
    columns = ("pool", "test accuracy, %", "AUC", f"AUC of {network} then", "difference", "pairs")
    lines += table(*columns)
    for row in found.itertuples():
        ends = f"[{row.difference_low:+.3f}, {row.difference_high:+.3f}]"
        lines.append(
            f"| {row.pool} | {100 * row.level:.1f} | {row.auc} | {row.then} |"
            f" {row.difference:+.3f} {ends} | {row.pairs} |"
        )
    return [*lines, *together(found)] if len(found) else lines


def masked_signals(store: str, images) -> dict[str, tuple[Signals, Signals]]:
    """By pool, answers of 8 models to one plain query and to ten with some values set to zero."""
    options = {"models": range(8), "limit": MASKED_IMAGES, "progress": False}
    found = {}
    for name in MASKED:
        queried = partial(querying.query, trained(name, store), images, **options)
        found[name] = queried(), queried(queries=10, input_dropout=DROPPED)
    return found


def masked(answers: dict[str, tuple[Signals, Signals]]) -> list[str]:
    """What RMIA finds by ten queries with input dropout, beside one plain query."""
    lines = [
        "",
        f"RMIA with ten queries of which {100 * DROPPED:g} % of the values are set to zero (input"
        f" dropout), against one plain query, of the first 8 models and {MASKED_IMAGES:,} images:",
    ]
    lines += table("pool", "AUC", "AUC, difference", "TPR at 1 % FPR, points")
    for name, (plain, damaged) in answers.items():
        found = score("rmia", damaged)
        area = auc_text(metrics.summary({"rmia": found}, FPR), "rmia")
        differences = " | ".join(gaps(found, score("rmia", plain), 0.01))
        lines.append(f"| {name} | {area} | {differences} |")
    return lines


def masked_claims(answers: dict[str, tuple[Signals, Signals]]) -> list[str]:
    """The spiking study's claims about input dropout, on the pools that were queried with it."""
    settings, ordinary = {}, answers["fast-small"]
    attacks = {name: name for name in ("rmia", "attack_r", "attack_p")}
    attacks["attack_r_lattice"] = studies.SPIKING_ATTACKS["attack_r_lattice"]  # by Eq. 8
    for name, both in answers.items():
        for dropped, target, foreign in zip((False, True), both, ordinary, strict=True):
            spot = SPIKING[name]._replace(input_dropout=dropped)
            for attack, how in attacks.items():
                settings[spot._replace(attack=attack)] = score(how, target)
                if spot.model == "snn" and attack != "attack_p":
                    there = spot._replace(attack=attack, references="ann")
                    settings[there] = score(how, target, foreign)
    verdicts = studies.claims("snn", settings)
    lines = table("claim", "as printed", "extended", "evidence")
    for number in ("S3", "S4", "S5", "S10"):
        row = verdicts.loc[number]
        cells = f"{number}. {row['claim']}", row["as_printed"], row["verdict"]
        lines.append(f"| {' | '.join(cells)} | {folded(row['evidence'])} |")
    return lines


def gaps(one: Scores, other: Scores, rate: float) -> list[str]:
    """Paired differences in AUC and in TPR at a rate, in points, with their intervals."""
    found = metrics.difference(one, other, FPR)
    return [
        f"{gap['value']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]"
        for gap in (found.loc["auc"], 100 * found.loc[f"tpr@{rate}"])
    ]


def round_trip(name: str, store: str, path: str) -> str:
    """Whether the shipped signals of a pool print what the stored ones print: as the package prints
    them, and as this page does, with two decimals of a per cent.
    """
    shipped = examples.load_example(name)
    pool = training.load_pool(shipped.info["pool"], root=store)
    full = querying.query(pool, data.load(path, data_root=store), progress=False)
    plain, fine = [], []
    for signals in (full, shipped):
        summary = metrics.summary({word: score(word, signals) for word in ATTACKS}, FPR)
        plain.append(metrics.readable(summary, full=True).to_numpy().tolist())
        fine.append([rates(summary, attack) for attack in dict.fromkeys(summary["attack"])])
    counts = [sum(a != b for a, b in zip(*texts, strict=True)) for texts in (plain, fine)]
    return (
        f"{name} ({len(full.margin)} models), of {len(fine[0])} rows: {counts[0]} differ as"
        f" `metrics.readable` prints them, {counts[1]} as this page does"
    )


def replace(page: str, mark: str, lines: list[str]) -> str:
    """The page with other lines between two markers."""
    begin, end = (one.format(mark) for one in MARKS)
    before, after = page[: page.index(begin)], page[page.index(end) + len(end) :]
    return "\n".join([before + begin, *lines, end + after])


def to_findings(mark: str, lines: list[str]) -> None:
    """Other lines between two markers of the page of findings."""
    page = FINDINGS_PAGE.read_text(encoding="utf-8")
    FINDINGS_PAGE.write_text(replace(page, mark, lines), encoding="utf-8")


def drawn(figure, name: str) -> None:
    """A picture beside the page."""
    from pictures import screenshot

    screenshot([figure], PAGE.with_name(name), [1000], 480)


def write_claims(frontier: pd.DataFrame | None = None) -> None:
    """docs/claims.md: verdicts, and the evidence of those that the shipped pools decide; the table
    of claims of docs/findings.md. frontier: along training, without which claims on
    differential equations stay as they stand there.
    """
    page = CLAIMS_PAGE.read_text(encoding="utf-8")
    for study in ("snn", "nsde", "privacy"):
        page = replace(page, f"verdicts: {study}", verdicts(study))
    page = replace(page, "factors", factors())
    for study in ("snn", "recipes"):
        page = replace(page, f"claims: {study}", claims(study))
    if frontier is not None:
        page = replace(page, "claims: nsde", claims("nsde", frontier))
    CLAIMS_PAGE.write_text(page, encoding="utf-8")
    to_findings("claims", one_number(page))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", help="results folder of benchmarks/evidence.py")
    parser.add_argument("--images", help="the images of that training")
    parser.add_argument("--claims", action="store_true", help="only the claims of the papers")
    given = parser.parse_args()
    if given.claims:
        write_claims()
        return
    page = PAGE.read_text(encoding="utf-8")
    frontier = None
    if given.store:
        images = data.load(given.images, data_root=given.store)
        compared = partial(round_trip, store=given.store, path=given.images)
        kept = stored(given.store)
        # fast-small is there as its first eight models, trained again on another machine
        shipped = [f"cifar10/{name}" for name in kept if name != "fast-small"]
        with PAIR() as pair:
            for line in pair.map(compared, shipped):
                print(line, flush=True)
        if "fast-small" in kept:
            found = along(given.store, images, ["fast-small"])
            rows = beside(found, [*CHANGES["fast-small"], *list(SPIKING)[1:]])
            lines = as_lines(rows, LABELS["fast-small"], IN_THE_MIDDLE)
            page = replace(page, "stopped earlier: fast-small", lines)
        if "resnet14" in kept:
            found = along(given.store, images, [name for name in EQUATIONS if name in kept])
            lines = as_lines(beside(found, CHANGES["resnet14"]), "ResNet-14", IN_THE_MIDDLE)
            page = replace(page, "stopped earlier: resnet14", lines)
        if {*kept}.issuperset(EQUATIONS):
            frontier = found
            page = replace(page, "equal accuracy", at_equal_accuracy(frontier))
            drawn(along_training(frontier), "results-equations.png")
        if {*kept}.issuperset(MASKED):
            answers = masked_signals(given.store, images)
            page = replace(page, "masked images", [*masked(answers), *masked_claims(answers)])
    names = list(examples.examples())
    with PAIR() as pair:
        found = dict(zip(names, pair.map(measured, names), strict=True))
    all_scores, summaries = ({name: one[i] for name, one in found.items()} for i in (0, 1))
    found = [line for network in CHANGES for line in changes(network)]
    page = replace(page, "full size", [*pools(all_scores, summaries), *found])
    equal = trained_for_less()
    lines = as_lines(equal, LABELS["fast-small"], AT_THE_ENDS)
    page = replace(page, "trained for less", lines)
    to_findings("equal", lines)
    long = with_energy()
    page = replace(page, "energy", energies(long))
    PAGE.write_text(page, encoding="utf-8")
    write_claims(frontier)
    drawn(plots.shipped_roc(list(DRAWN)), "results-roc.png")
    drawn(energy_picture(long), "results-energy.png")
    drawn(equal_picture(equal), "results-equal.png")


if __name__ == "__main__":
    main()
