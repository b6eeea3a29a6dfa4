"""What 1, 2, 4, 8, 16 and 32 reference models a side buy each attack.

    python benchmarks/references.py [--images cifar10 --limit 5000] [--root results] [--quick]
    python benchmarks/references.py --images cifar10-jpeg.npz --shipped

A pool of 66 small networks in complementary pairs is trained (or found) and queried once. Of 16
pairs both models are targets; their references are the pairs that follow, 1 to 32 of them, so that
each attack sees the same targets, samples and references. One table has the AUC and the TPR of each
attack, the other its paired differences from RMIA, whose intervals hold together for all differences
of the table (Bonferroni).

With --shipped the networks are 64 of benchmarks/evidence.py, on halves of all 50,000 images of
CIFAR-10: those of the shipped pool fast-small, and three pools of the same recipe and other members,
which are trained (or found). There 8 pairs are targets, 31 the most references a side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import evidence
import numpy as np
import pandas as pd
from common import options, report, table
from joblib import Parallel, delayed

import mia_nb as mia
from mia_nb import metrics
from mia_nb.types import Signals
from mia_nb.workshop.measures import with_references

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


def joined(pools: Sequence[Signals]) -> Signals:
    """Signals of pools on the same images as of one pool, with margins and predictions alone."""
    first = pools[0]
    for one in pools[1:]:
        if not np.array_equal(one.labels, first.labels):
            raise ValueError("the pools were not trained on the same images")
    margin, member, correct = (
        np.concatenate([getattr(one, name) for one in pools])
        for name in ("margin", "member", "correct")
    )
    unknown = np.full(margin.shape, np.nan)
    return replace(
        first,
        margin=margin,
        member=member,
        correct=correct,
        entropy=unknown,
        modified_entropy=unknown,
        top_log_p=np.zeros((*member.shape, 0), np.float32),
    )


def shipped_and_more(args) -> Signals:
    """What 64 networks on halves of all images answer, 16 of them shipped."""
    images = mia.load(args.images, data_root=args.root)
    pools = [mia.load_example("cifar10/fast-small")]
    for name in evidence.MORE:
        pool = evidence.made(name, images, args.root, device=None, compiled=False)
        pools.append(mia.query(pool, images))
    return joined(pools)


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
    parser.add_argument("--shipped", action="store_true", help="networks of the shipped recipe")
    parser.add_argument("--root", default="results")
    args = parser.parse_args()
    signals = shipped_and_more(args) if args.shipped else signals_of(args)
    most = len(signals.member) // 2 - 1
    sides = [side for side in SIDES if side < most] + [most]
    # of 25,000 non-members a target smaller rates are measurable, and fewer targets tell as much
    pairs_attacked, rates = (8, (0.01, 0.001)) if args.shipped else (16, (0.1, 0.01))
    shown = ("auc", *(f"tpr@{rate:g}" for rate in rates))
    keys = list(product(ATTACKS, sides))
    with Parallel(n_jobs=-1) as side_by_side:
        found = side_by_side(
            delayed(with_references)(signals, attack, 2 * side, pairs=pairs_attacked)
            for attack, side in keys
        )
        scores = {key: one for key, one in zip(keys, found, strict=True) if one is not None}
        compared = [(attack, side) for attack, side in scores if attack != "rmia"]
        each = 1 - 0.05 / (len(compared) * len(shown))
        levels = side_by_side(
            delayed(metrics.intervals)(one, rates, n_resamples=200) for one in scores.values()
        )
        gains = side_by_side(
            delayed(metrics.difference)(
                scores[key], scores["rmia", key[1]], rates, n_resamples=200, confidence=each
            )
            for key in compared
        )
    levels = dict(zip(scores, levels, strict=True))
    gains = dict(zip(compared, gains, strict=True))
    columns = ["attack", *(f"{side} a side" for side in sides)]
    name = "CIFAR-10, 64 networks fast-small" if args.shipped else args.images
    with report(f"References, {name}", args.quick):
        first = next(iter(scores.values()))
        sizes = f"{len(first.targets)} targets, n0 = {(~first.member).sum(1).min()}"
        accuracy = float(np.mean(signals.correct[:, 0][~signals.member]))
        print(f"{sizes}; test accuracy {100 * accuracy:.1f} %; {len(signals.member)} models\n")
        for metric in shown:
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
        print(f"\n{len(gains) * len(shown)} differences, each interval at {100 * each:.3f} %")


if __name__ == "__main__":
    main()
