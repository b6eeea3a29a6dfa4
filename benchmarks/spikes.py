"""Does what a spiking network does tell more than what it answers, and what do its answers cost?

    python benchmarks/spikes.py [--images cifar10 --limit 5000] [--root results] [--quick]
    python benchmarks/spikes.py --images cifar10.npz --limit 5000 --root results --pools KEY ...

One family of ordinary networks in complementary pairs is trained (or found), converted, and
fine-tuned with spikes; on small images a family is also trained with spikes from the start, on the
images and on frames of events made from them. With --pools the families are stored ones, trained
on all of the images, of which so many are queried. Each network is queried once, with its activity.
The table has accuracy, leakage and operations of every family; then the paired differences between
the attack that also sees the activity and the one that sees the answers alone, whose intervals hold
together for all differences (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from common import options, report, table
from references import DIGITS, IMAGES, cell

import mia_nb as mia
from mia_nb import data, metrics, querying, training
from mia_nb.attacks import ATTACKS
from mia_nb.attacks.spikes import SEEN
from mia_nb.training.pool import Pool
from mia_nb.types import Images, Scores

ATTACKERS = (*SEEN, "all")
COUNTED = 500  # images on which operations are counted
RATE = 0.01


def families(args) -> Iterator[tuple[str, Pool, Images]]:
    """(name, pool, its images) of every family."""
    if args.pools:
        images = mia.load(args.images, data_root=args.root)
        for key in args.pools:
            pool = training.load_pool(key, args.root)
            yield stored_name(pool), pool, images
        return
    images = mia.load(args.images, limit=args.limit)
    small = args.images == "digits"
    recipe = (DIGITS | {"epochs": 20}) if small else (IMAGES | {"model_args": {"width": 16}})
    if args.quick:
        recipe = recipe | {"epochs": 2}
    models = 8 if args.quick else 16
    train = partial(mia.train, root=args.root)
    networks = train(mia.Recipe(num_models=models, **recipe), images)
    yield "ordinary", networks, images
    for timesteps in (4,) if small else (4, 8):
        converted = mia.convert(networks, images, timesteps)
        yield f"converted, T = {timesteps}", converted, images
    tuned = mia.hybrid(networks, images, timesteps=2, epochs=1 if args.quick else 4)
    for timesteps, pool in tuned.items():
        yield f"fine-tuned, T = {timesteps}", pool, images
    if not small:
        return
    events = data.events_from_images(images)
    for name, shown, timesteps in (("images", images, 4), ("events", events, events.frames)):
        spiking = {"base": "tinycnn", "timesteps": timesteps}
        pool = train(
            mia.Recipe(model="snn", model_args=spiking, num_models=models, epochs=recipe["epochs"]),
            shown,
        )
        yield f"trained with spikes on {name}, T = {timesteps}", pool, shown


def stored_name(pool: Pool) -> str:
    """How the networks of a stored pool were made."""
    if pool.recipe.model != "snn":
        return "ordinary"
    way = "trained with spikes"
    if pool.recipe.parent:
        way = "fine-tuned" if pool.recipe.epochs else "converted"
    return f"{way}, T = {pool.recipe.model_args['timesteps']}"


def differences(scores: dict[str, Scores], confidence: float) -> list[list[str]]:
    """A row for AUC and TPR: what each attacker gains over the one who sees the answers alone."""
    rows = []
    for metric in ("auc", f"tpr@{RATE:g}"):
        cells = []
        for see in ATTACKERS:
            gain = metrics.difference(
                scores[see], scores["lira_smooth"], (RATE,), n_resamples=400, confidence=confidence
            )
            cells.append(cell(gain.loc[metric], "+.4f"))
        rows.append([metric, *cells])
    return rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--images", default="digits")
    parser.add_argument("--limit", type=int, help="so many images")
    parser.add_argument("--root", default="results")
    parser.add_argument("--pools", nargs="+", metavar="KEY", help="stored pools, the first letters")
    args = parser.parse_args()
    found, about = {}, []
    for name, pool, images in families(args):
        spikes = name != "ordinary"
        limit = args.limit if args.pools else None
        signals = mia.query(pool, images, activity=spikes, limit=limit)
        scores = {attack: mia.score(attack, signals) for attack in ("rmia", "lira_smooth")}
        if spikes:
            attack = ATTACKS["spikes"]
            seen = {see: mia.score(partial(attack, see=see), signals) for see in ATTACKERS}
            found[name] = scores | seen
        audited = ~signals.population
        right = signals.correct[:, 0][:, audited]
        member = signals.member[:, audited]
        work = querying.operations(pool, images, limit=COUNTED).mean()
        leaks = [
            cell(metrics.intervals(one, (RATE,), n_resamples=400).loc["auc"], ".3f")
            for one in scores.values()
        ]
        about.append(
            [
                name,
                f"{100 * right[member].mean():.1f} / {100 * right[~member].mean():.1f}",
                *leaks,
                f"{work['multiply_accumulates'] / 1e6:.3f}",
                f"{work['accumulates'] / 1e6:.3f}",
                f"{work['energy_nj'] / 1e3:.2f}",
            ]
        )
    comparisons = 2 * len(ATTACKERS) * len(found)
    each = 1 - 0.05 / comparisons
    with report(f"Spikes as signals, {args.images}", args.quick):
        first = next(iter(found.values()))["rmia"]
        count = len(first.targets)
        print(f"{count} targets a family, n0 = {(~first.member).sum(1).min()}\n")
        table(
            [
                "family",
                "train / test, %",
                "AUC of RMIA",
                "AUC of smoothed LiRA",
                "million MAC",
                "million AC",
                "uJ",
            ],
            about,
        )
        for name, scores in found.items():
            print(f"\n{name}: with the activity less without it\n")
            table(["", *ATTACKERS], differences(scores, each))
        print(f"\n{comparisons} differences, each interval at {100 * each:.3f} %")


if __name__ == "__main__":
    main()
