"""Makes `data/digits`: what three families of networks output along their training, for part 10 of
the workshop.

    python benchmarks/workshop.py [data/digits]
"""

import platform
import sys
from pathlib import Path

import shipping

from mia_nb import accounting, data, querying, training
from mia_nb.types import Recipe

SHARED = Recipe(
    model="tinycnn", num_models=16, epochs=12, batch=64, snapshots=[1, 2, 3, 5, 8], seed=0
)
PRIVATE = {"batch": 128, "epochs": 20, "snapshots": [4, 8, 14], "lr": 2.0, "schedule": "cosine"}
FAMILIES = {
    "ordinary": {},
    "relaxloss": {"defense": "relaxloss", "defense_args": {"target": 0.3}},
    "dp_sgd": {"defense": "dp_sgd", "epsilon": 8.0, **PRIVATE},
}
DELTA = 1e-5


def main(place: Path, results: str = "results") -> None:
    images = data.load("digits")
    members = len(images.y) // 2
    planned = accounting.aimed(list(FAMILIES.values()), SHARED, members=members, delta=DELTA)
    pools = training.family_pools(planned, SHARED, images, model_args={"width": 16}, root=results)
    for name, pool in zip(FAMILIES, pools, strict=True):
        for epoch in [*pool.recipe.snapshots, pool.recipe.epochs]:
            then = pool.at(epoch)
            signals = querying.query(then, images)
            info = {**signals.info, "epoch": epoch, "recipe": pool.recipe.to_json()}
            info["classes"] = [str(digit) for digit in range(10)]
            if pool.recipe.defense == "dp_sgd":
                noise = pool.recipe.defense_args["noise_multiplier"]
                spent = accounting.epsilon(noise_multiplier=noise, **then.sampling, delta=DELTA)
                info |= {"epsilon": round(float(spent), 4), "delta": DELTA}
            machine = f"{platform.machine()}, digits of scikit-learn"
            about = {"info": info, "machine": machine}
            about["test_accuracy"] = round(
                float(signals.correct[~signals.member[:, None]].mean()), 4
            )
            shipping.write(place, f"{name}-{epoch:02d}", signals, about)
            print(f"{name}, epoch {epoch}: test accuracy {about['test_accuracy']:.1%}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data/digits"))
