"""The tables of docs/results.md at full size, from the shipped signals: python docs/results.py

Replaces what stands between the two markers of that page, and draws results-roc.png beside it
(needs Chromium and playwright, as pictures.py).
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd

from mia_nb import examples, metrics, plots, studies
from mia_nb.attacks import align, score
from mia_nb.metrics.verdict import METHODS
from mia_nb.studies import Setting, setting
from mia_nb.types import Recipe, Scores, Signals

PAGE = Path(__file__).parent / "results.md"
BEGIN, END = "<!-- full size: begin -->", "<!-- full size: end -->"
NAMES = METHODS | {"lira_global": "LiRA, one variance", "lira_shrunk": "LiRA, shrunken variances"}
ATTACKS = ("rmia", "nig", "lira_global", "lira_shrunk", "attack_r", "attack_p", "loss")
FPR = (0.01, 0.001)
SPIKING = {  # pool: its place in the study of spiking networks
    "resnet14": Setting("ann"),
    "snn-converted-T4": Setting("snn", training="convert", timesteps=4),
    "snn-hybrid-T1": Setting("snn", training="hybrid", timesteps=1),
    "snn-hybrid-T2": Setting("snn", training="hybrid", timesteps=2),
    "snn-direct-T1": Setting("snn", training="direct", timesteps=1),
}
EQUATIONS = ("resnet14", "odenet", "sdenet")
LENGTHS = {
    "resnet14-short": "12 epochs",
    "resnet14": "24 epochs",
    "resnet14-long": "48 epochs",
}


def interval(row, name: str) -> str:
    return f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"


def percent(row, name: str) -> str:
    low, high = (f"{100 * row[f'{name}_{end}']:.2f}" for end in ("low", "high"))
    return f"{100 * row[name]:.2f} [{low}, {high}]"


def table(*columns: str) -> list[str]:
    """The head of a table of the page."""
    return ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def measured(name: str) -> tuple[dict[str, Scores], pd.DataFrame]:
    """The scores of every attack on one shipped pool, and their summary with negative control."""
    signals, begun = examples.load_example(name), time.perf_counter()
    opened = time.perf_counter() - begun
    scores = {attack: score(attack, signals) for attack in ATTACKS}
    scored = time.perf_counter() - begun - opened
    control = metrics.self_test(signals, list(ATTACKS), samples=None)
    summary = metrics.summary(scores, FPR, self_test=control).drop("max")
    print(
        f"{name}: opened {opened:.1f} s, {len(scores)} attacks {scored:.1f} s, negative"
        f" control and intervals {time.perf_counter() - begun - opened - scored:.1f} s"
    )
    return scores, summary


def rates(row) -> str:
    return f"{interval(row, 'auc')} | {percent(row, 'tpr@0.01')} | {percent(row, 'tpr@0.001')}"


def leading(scores: dict[str, Scores], summary: pd.DataFrame, metric: str, unit: int) -> str:
    """Which attack leads in a metric and its paired difference to the second."""
    first, second = summary[metric].nlargest(2).index
    gap = unit * metrics.difference(scores[first], scores[second], FPR).loc[metric]
    resolved = "" if gap["low"] > 0 else ", not resolved"
    digits = 4 if unit == 1 else 2
    ends = ", ".join(f"{gap[end]:.{digits}f}" for end in ("low", "high"))
    return f"{NAMES[first]} over {NAMES[second]}: {gap['value']:.{digits}f} [{ends}]{resolved}"


def pools(all_scores: dict, summaries: dict[str, pd.DataFrame]) -> list[str]:
    """A row for every pool, by RMIA; then the attacks on the first; then what leads where."""
    lines = table(
        "pool",
        "models",
        "train / test accuracy, %",
        "AUC of RMIA",
        "TPR at 1 % FPR, %",
        "TPR at 0.1 % FPR, %",
        "negative control",
    )
    for name, summary in summaries.items():
        row = summary.loc["rmia"]
        right = f"{100 * row['train_acc']:.1f} / {100 * row['test_acc']:.1f}"
        count = len(all_scores[name]["rmia"].targets)
        lines.append(f"| {name} | {count} | {right} | {rates(row)} | {row['self_test']} |")
    first = next(iter(summaries))
    lines += ["", f"Every attack on `{first}`:"]
    lines += table("attack", "AUC", "TPR at 1 % FPR, %", "TPR at 0.1 % FPR, %")
    lines += [f"| {NAMES[attack]} | {rates(row)} |" for attack, row in summaries[first].iterrows()]
    lines += ["", "Which attack leads, and by how much (paired difference to the second):"]
    lines += table("pool", "in AUC", "in TPR at 0.1 % FPR, points")
    for name, summary in summaries.items():
        leads = (
            leading(all_scores[name], summary, metric, unit)
            for metric, unit in (("auc", 1), ("tpr@0.001", 100))
        )
        lines.append(f"| {name} | {' | '.join(leads)} |")
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
        for attack in ("rmia", "attack_r", "attack_p")
    }
    foreign = own[Setting("ann")]
    for spot, one in own.items():
        if spot.model == "snn":
            for attack in ("rmia", "attack_r"):
                there = spot._replace(attack=attack, references="ann")
                settings[there] = score(attack, one, foreign)
                there = spot._replace(attack=attack, references="ann, aligned")
                settings[there] = score(attack, align(one), align(foreign))
    return settings


def equations(signals: dict[str, Signals]) -> dict[Setting, Scores]:
    return {
        setting(one.info, attack, study="nsde"): score(attack, one)
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


def verdicts() -> list[str]:
    """Claims of the studies that the shipped pools can decide."""
    there = {name.removeprefix("cifar10/") for name in examples.examples()}
    lines = []
    studied = (("snn", spiking, SPIKING), ("nsde", equations, EQUATIONS))
    for study, settings_of, names in (*studied, ("recipes", lengths, LENGTHS)):
        present = [name for name in names if name in there]
        if len(present) < 2:
            continue
        signals = alike({name: examples.load_example(f"cifar10/{name}") for name in present})
        found = studies.claims(study, settings_of(signals))
        for number, row in found[found["verdict"] != "not run"].iterrows():
            evidence = row["evidence"].replace("|", "/")
            lines.append(f"| {number}. {row['claim']} | {row['verdict']} | {evidence} |")
    says = ["", "What published claims, and ours on recipes, come to at this size:"]
    return [*says, *table("claim", "at this size", "evidence"), *lines] if lines else []


def main() -> None:
    all_scores, summaries = {}, {}
    for name in examples.examples():
        all_scores[name], summaries[name] = measured(name)
    text = "\n".join([BEGIN, *pools(all_scores, summaries), *verdicts(), END])
    page = PAGE.read_text(encoding="utf-8")
    before, after = page[: page.index(BEGIN)], page[page.index(END) + len(END) :]
    PAGE.write_text(before + text + after, encoding="utf-8")
    from pictures import screenshot

    figure = plots.roc_pair({name: scores["rmia"] for name, scores in all_scores.items()})
    screenshot([figure], PAGE.with_name("results-roc.png"), [1000], 480)


if __name__ == "__main__":
    main()
