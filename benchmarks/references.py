"""What 1, 2, 4, 8, 16 and 32 reference models a side buy each attack.

    python benchmarks/references.py [--images cifar10 --limit 5000] [--root results] [--quick]

A pool of 66 small networks in complementary pairs is trained (or found) and queried once. Of 16
pairs both models are targets; their references are the pairs that follow, 1 to 32 of them, so that
each attack sees the same targets, samples and references. One table has the AUC and the TPR of each
attack, the other its paired differences from RMIA, whose intervals hold together for all differences
of the table (Bonferroni).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from common import options, report, table

import mia_nb as mia
from mia_nb import metrics
from mia_nb.types import Scores, Signals
from mia_nb.workshop.measures import with_references

PAIRS = 16
SIDES = (1, 2, 4, 8, 16, 32)
ATTACKS = (
    "rmia",
    "rmia_tuned",
    "lira_global",
    "lira_shrunk",
    "lira_per_sample",
    "lira_smooth",
    "nig",
    "attack_r",
    "watson",
)
RATES = (0.1, 0.01)
SHOWN = ("auc", *(f"tpr@{rate:g}" for rate in RATES))
DIGITS = {"epochs": 30}
IMAGES = {  # of colour: the networks of the families at comparable accuracy, narrower
    "model": "fast",
    "epochs": 10,
    "batch": 125,
    "lr": 0.12,
    "optimizer": "muon",
    "schedule": "linear",
    "augment": "translate+alternate",
    "seed": 0,
}


def signals_of(args) -> Signals:
    """What 66 networks answer about every sample."""
    images = mia.load(args.images, limit=args.limit)
    recipe = DIGITS if args.images == "digits" else IMAGES
    if args.quick:
        recipe = recipe | {"epochs": 2}
    models = 10 if args.quick else 66
    pool = mia.train(
        mia.Recipe(num_models=models, model_args={"width": 16}, **recipe), images, root=args.root
    )
    return mia.query(pool, images)


def cell(found: pd.Series, form: str) -> str:
    """A value and its interval; in bold a difference whose interval leaves 0 out."""
    value, low, high = found[["value", "low", "high"]]
    if np.isnan(value):
        return "n/m"
    text = f"{value:{form}} [{low:{form}}, {high:{form}}]"
    is_resolved = form.startswith("+") and (low > 0 or high < 0)
    return f"**{text}**" if is_resolved else text


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--images", default="digits")
    parser.add_argument("--limit", type=int, help="so many images")
    parser.add_argument("--root", default="results")
    args = parser.parse_args()
    signals = signals_of(args)
    sides = [side for side in SIDES if 2 * side <= len(signals.member) - 2]
    scores: dict[tuple[str, int], Scores] = {}
    for attack in ATTACKS:
        for side in sides:
            found = with_references(signals, attack, 2 * side, pairs=PAIRS)
            if found is not None:
                scores[attack, side] = found
    pairs = [key for key in scores if key[0] != "rmia"]
    each = 1 - 0.05 / (len(pairs) * len(SHOWN))

    levels = {
        key: metrics.intervals(found, RATES, n_resamples=200) for key, found in scores.items()
    }
    gains = {
        (attack, side): metrics.difference(
            scores[attack, side], scores["rmia", side], RATES, n_resamples=200, confidence=each
        )
        for attack, side in pairs
    }
    columns = ["attack", *(f"{side} a side" for side in sides)]
    with report(f"References, {args.images}", args.quick):
        first = next(iter(scores.values()))
        sizes = f"{len(first.targets)} targets, n0 = {(~first.member).sum(1).min()}"
        accuracy = float(np.mean(signals.correct[:, 0][~signals.member]))
        print(f"{sizes}; test accuracy {100 * accuracy:.1f} %; {len(signals.member)} models\n")
        for metric in SHOWN:
            for title, found, form in (("", levels, ".3f"), ("less RMIA's", gains, "+.4f")):
                print(f"\n{metric} {title}\n")
                rows = []
                for attack in dict.fromkeys(name for name, _ in found):
                    cells = [
                        cell(found[attack, side].loc[metric], form)
                        if (attack, side) in found
                        else "-"
                        for side in sides
                    ]
                    rows.append([attack, *cells])
                table(columns, rows)
        print(f"\n{len(pairs) * len(SHOWN)} differences, each interval at {100 * each:.3f} %")


if __name__ == "__main__":
    main()
