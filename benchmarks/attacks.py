"""Attacks for few references against RMIA and LiRA, on every pool that comes with the package.

    python benchmarks/attacks.py [--confidence 0.95] [--quick] [--releases]

With --releases instead: several releases of one model against the last one alone. Three shipped
pools of the same members, trained for 12, 24 and 48 epochs, stand for updates; checkpoints of
networks on digits are releases along one training. Paired differences on the same targets and samples, with intervals that hold for all differences of
the table together (Bonferroni). Pools that options of the attacks were chosen on are marked with *.
"""

from __future__ import annotations

import tempfile
from functools import partial

import numpy as np
import pandas as pd
from common import options, report, table

import mia_nb as mia
from mia_nb import attacks, examples, metrics
from mia_nb.types import Signals

CHOSEN_ON = ("resnet14", "resnet14-long", "odenet")
COMPARED = {"rmia_tuned": ("rmia", "lira"), "lira_smooth": ("rmia", "lira")}
RATES = (0.001, 0.01)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--confidence", type=float, default=0.95, help="of all intervals together")
    parser.add_argument("--releases", action="store_true", help="several releases instead")
    args = parser.parse_args()
    if args.releases:
        return against_the_last_release(args)
    names = {name.partition("/")[2]: name for name in examples.examples()}
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


def several_releases(quick: bool) -> dict[str, list[Signals]]:
    """{name: signals of each release, the last one last}."""
    updates = [
        examples.load_example(f"cifar10/{name}").select(models=slice(8))
        for name in ("resnet14-short", "resnet14", "resnet14-long")
    ]
    if quick:
        updates = [release.select(samples=slice(2000)) for release in updates]
    epochs = (1, 2, 3) if quick else (10, 20, 40)
    images = mia.load("digits")
    recipe = mia.Recipe(
        num_models=8 if quick else 16, epochs=epochs[-1], snapshots=epochs[:-1], seed=1
    )
    with tempfile.TemporaryDirectory() as root:
        pool = mia.train(recipe, images, root=root, progress=False)
        checkpoints = []
        for epoch in epochs:
            queried = mia.query(pool.at(epoch), images, progress=False)
            checkpoints.append(queried.select(samples=np.arange(len(images.y))))  # off the disk
    return {"updates": updates, "checkpoints": checkpoints}


def against_the_last_release(args) -> None:
    """`releases`, and RMIA summed over releases, beside attacks on the last release."""
    alone = ("rmia", "rmia_tuned", "lira_smooth")
    rows = []
    differences = 2 * (len(alone) + 1) * 3
    each = 1 - (1 - args.confidence) / differences
    with report("Attacks on several releases", args.quick):
        for name, releases in several_releases(args.quick).items():
            together = Signals.of_releases(releases)
            found = attacks.score("releases", together)
            others = {f"{one} on the last": attacks.score(one, releases[-1]) for one in alone}
            summed = partial(attacks.ATTACKS["rmia"], combine="llr")
            others["rmia summed"] = attacks.score(summed, together)
            rates = RATES if name == "updates" else (0.1, 0.2)
            for other, scores in others.items():
                gain = metrics.difference(found, scores, rates, n_resamples=200, confidence=each)
                metrics_shown = ["auc", *(f"tpr@{rate:g}" for rate in rates)]
                cells = [cell(gain.loc[metric], metric) for metric in metrics_shown]
                pairs = zip(scores.value, scores.member, strict=True)
                auc = np.mean([metrics.auc(value, member) for value, member in pairs])
                rows.append([name, f"releases - {other}", f"{auc:.4f}", *cells])
        shown = "TPR at 0.1 % (checkpoints: 10 %), points | TPR at 1 % (20 %), points"
        table(f"releases | difference | AUC of the other | AUC | {shown}".split(" | "), rows)
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
