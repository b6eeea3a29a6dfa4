"""The tables of docs/results.md at full size, from the shipped signals: python docs/results.py

Replaces what stands between the two markers of that page, and draws results-roc.png beside it
(needs Chromium and playwright, as pictures.py).
"""

from __future__ import annotations

import time
from pathlib import Path

from mia_nb import examples, metrics, plots
from mia_nb.attacks import score

PAGE = Path(__file__).parent / "results.md"
BEGIN, END = "<!-- full size: begin -->", "<!-- full size: end -->"
ATTACKS = ("rmia", "nig", "lira_global", "lira_shrunk", "loss")  # base ranks as rmia does
FPR = (0.01, 0.001)


def interval(row, name: str) -> str:
    return f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"


def percent(row, name: str) -> str:
    low, high = (f"{100 * row[f'{name}_{end}']:.2f}" for end in ("low", "high"))
    return f"{100 * row[name]:.2f} [{low}, {high}]"


def pool_rows(name: str) -> tuple[list[str], list[str], dict]:
    """(rows of the table, what leads by how much, scores) of one pool."""
    signals, begun = examples.load_example(name), time.perf_counter()
    scores = {attack: score(attack, signals) for attack in ATTACKS}
    control = metrics.self_test(signals, list(ATTACKS), samples=None)
    table = metrics.summary(scores, FPR, self_test=control).drop("max")
    accuracy = f"{100 * table['train_acc'].iloc[0]:.1f} / {100 * table['test_acc'].iloc[0]:.1f}"
    rows = [
        f"| {name} | {accuracy} | {attack} | {interval(row, 'auc')} | {percent(row, 'tpr@0.01')} "
        f"| {percent(row, 'tpr@0.001')} | {row['self_test']} |"
        for attack, row in table.iterrows()
    ]
    leads = []
    for metric, words, unit in (("auc", "AUC", 1), ("tpr@0.001", "TPR at 0.1 % FPR, points", 100)):
        first, second = table[metric].nlargest(2).index
        gap = unit * metrics.difference(scores[first], scores[second], FPR).loc[metric]
        sure = "" if gap["low"] > 0 else " (not resolved)"
        leads.append(
            f"| {name} | {words} | {first} | {second} "
            f"| {gap['value']:.4f} [{gap['low']:.4f}, {gap['high']:.4f}]{sure} |"
        )
    seconds = time.perf_counter() - begun
    print(f"{name}: {len(scores)} attacks, negative control and intervals, {seconds:.1f} s")
    return rows, leads, scores


def main() -> None:
    rows, leads, all_scores = [], [], {}
    for name in examples.examples():
        more, led, all_scores[name] = pool_rows(name)
        rows, leads = rows + more, leads + led
    text = "\n".join(
        [
            BEGIN,
            "| pool | train / test accuracy, % | attack | AUC | TPR at 1 % FPR, % "
            "| TPR at 0.1 % FPR, % | negative control |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            "Which attack leads, and by how much (paired difference to the second):",
            "",
            "| pool | metric | first | second | difference |",
            "|---|---|---|---|---|",
            *leads,
            END,
        ]
    )
    page = PAGE.read_text(encoding="utf-8")
    before, after = page[: page.index(BEGIN)], page[page.index(END) + len(END) :]
    PAGE.write_text(before + text + after, encoding="utf-8")
    from pictures import screenshot

    figure = plots.roc_pair({name: scores["rmia"] for name, scores in all_scores.items()})
    screenshot([figure], PAGE.with_name("results-roc.png"), [1000], 480)


if __name__ == "__main__":
    main()
