"""Attacks for few references against RMIA and LiRA, on every pool that comes with the package and
on those in benchmarks/families.

    python benchmarks/attacks.py [--confidence 0.95] [--quick]

Paired differences on the same targets and samples, with intervals that hold for all differences of
the table together (Bonferroni). Pools that options of the attacks were chosen on are marked with *.
"""

from __future__ import annotations

import pandas as pd
from common import ROOT, options, report, table

from mia_nb import attacks, examples, metrics

CHOSEN_ON = ("resnet14", "resnet14-long", "snn-hybrid-T4", "odenet")
COMPARED = {"rmia_tuned": ("rmia", "lira"), "lira_smooth": ("rmia", "lira")}
RATES = (0.001, 0.01)


def pools() -> dict[str, str]:
    """{pool: name of the example}."""
    shipped = {name.partition("/")[2]: name for name in examples.examples()}
    examples.PLACES = (*examples.PLACES, ROOT / "benchmarks")
    ours = {name.partition("/")[2]: name for name in examples.examples("families")}
    return shipped | ours


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--confidence", type=float, default=0.95, help="of all intervals together")
    args = parser.parse_args()
    names = pools()
    if args.quick:
        names = dict(list(names.items())[-1:])
    metrics_shown = ["auc", *(f"tpr@{rate:g}" for rate in RATES)]
    differences = len(names) * len(metrics_shown) * sum(map(len, COMPARED.values()))
    each = 1 - (1 - args.confidence) / differences
    rows = []
    with report("Attacks for few references", args.quick):
        for pool, name in names.items():
            signals = examples.load_example(name)
            if args.quick:
                signals = signals.select(samples=slice(0, 2000))
            scores = {one: attacks.score(one, signals) for one in (*COMPARED, "rmia", "lira")}
            mark = "*" if pool in CHOSEN_ON else ""
            for attack, others in COMPARED.items():
                for other in others:
                    found = metrics.difference(
                        scores[attack], scores[other], RATES, n_resamples=200, confidence=each
                    )
                    cells = [cell(found.loc[metric], metric) for metric in metrics_shown]
                    rows.append([pool + mark, f"{attack} - {other}", *cells])
        table(["pool", "difference", "AUC", "TPR at 0.1 %, points", "TPR at 1 %, points"], rows)
        print(f"{differences} differences, each interval at {100 * each:.3f} %")


def cell(found: pd.Series, metric: str) -> str:
    """The difference and its interval, in bold where the interval leaves 0 out."""
    value, low, high = found[["value", "low", "high"]]
    if metric == "auc":
        return bold(f"{value:+.4f} [{low:+.4f}, {high:+.4f}]", low, high)
    return bold(f"{100 * value:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]", low, high)


def bold(text: str, low: float, high: float) -> str:
    return f"**{text}**" if low > 0 or high < 0 else text


if __name__ == "__main__":
    main()
