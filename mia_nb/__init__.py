"""Membership inference attacks on ordinary, spiking and neural-ODE/SDE networks.

The main names are imported when they are used; `from mia_nb import attacks` imports one room.

Train a pool of models on known halves of some images, and save what they output:

>>> import mia_nb as mia
>>> images = mia.load("digits", limit=400)
>>> isinstance(images, mia.Images)
True
>>> recipe = mia.Recipe(num_models=4, epochs=3, snapshots=[1, 2])
>>> pool = mia.train(recipe, images, progress=False)
>>> mia.load_pool(pool.key[:12]).key == pool.key  # a beginning of the key is enough
True
>>> signals = mia.query(pool, images, progress=False)
>>> isinstance(signals, mia.Signals), signals.margin.shape  # models, queries, samples
(True, (4, 1, 400))
>>> mia.Query(queries=5, input_dropout=0.02).queries  # its fields are options of `query`
5

Attack every model in turn, and check the attacks where there is nothing to find:

>>> list(mia.suite(k=1))  # what one reference model on each side supports
['rmia', 'watson', 'nig', 'loss', 'correctness']
>>> scores = {name: mia.score(name, signals) for name in ("rmia", "loss")}
>>> isinstance(scores["rmia"], mia.Scores), scores["rmia"].value.shape  # targets, samples
(True, (4, 400))
>>> control = mia.self_test(signals, ["rmia", "loss"], n_resamples=5)
>>> table = mia.summary(scores, self_test=control)
>>> auc = table[table["metric"] == "auc"].set_index("attack")
>>> bool(auc.loc["rmia", "low"] < auc.loc["rmia", "value"] < auc.loc["rmia", "high"])
True
>>> mia.readable(table).columns[0]
'AUC'
>>> len(mia.verdict(scores, self_test=control).sentences) > 3  # the result in words
True
>>> figure = mia.roc(scores)
>>> figure = mia.histogram(scores["rmia"], target=0)

Ask whether one finished model, here one of the pool, gives its training samples away:

>>> from mia_nb.data import normalise
>>> x, seen = normalise(images.x, images.mean, images.std), pool.member[0]
>>> found = mia.audit(pool.model(0), (x[seen], images.y[seen]), (x[~seen], images.y[~seen]))
>>> found.headline.startswith("The finished model"), found.table.loc[0, ["n1", "n0"]].tolist()
(True, [200, 200])

Outputs of networks trained on 25,000 of 50,000 CIFAR-10 images ship with the package:

>>> mia.load_example("cifar10/resnet14").shape[1:]  # queries, samples
(1, 50000)

Compare along training; convert to spiking networks; set epsilons side by side; explore:

>>> early = {e: {"loss": mia.score("loss", mia.query(pool.at(e), images))} for e in (1, 2)}
>>> bool(mia.frontier({"TinyCNN": early}, n_resamples=20)["auc"].between(0, 1).all())
True
>>> mia.convert(pool, images, 2, progress=False).recipe.model  # two time steps, no training
'snn'
>>> sorted(mia.hybrid(pool, images, timesteps=1, epochs=1, progress=False))  # fine-tuned
[1]
>>> mia.ladder(delta=1e-5)["shown"].iloc[3]  # trained without DP-SGD
'none (infinite)'
>>> view = mia.explore("results")  # in JupyterLab: scores, ROC curves, samples
>>> mia.read_outputs("outputs.npz")  # models trained elsewhere
Traceback (most recent call last):
ValueError: ...
"""

from importlib import import_module

__version__ = "0.1.0"

ROOMS = (
    "types",
    "data",
    "store",
    "accounting",
    "models",
    "defenses",
    "training",
    "querying",
    "examples",
    "attacks",
    "metrics",
    "auditing",
    "studies",
    "plots",
    "widgets",
    "workshop",
    "report",
)
FACE = {  # {name in this package: module that defines it}; __init__.pyi tells editors the same
    "Images": "types:Images",
    "Query": "types:Query",
    "Recipe": "types:Recipe",
    "Scores": "types:Scores",
    "Signals": "types:Signals",
    "audit": "auditing:audit_model",
    "convert": "training:convert_pool",
    "explore": "widgets:explore",
    "frontier": "metrics:frontier",
    "histogram": "plots:histogram",
    "hybrid": "training:hybrid_pools",
    "ladder": "auditing:ladder",
    "load": "data:load",
    "load_example": "examples:load_example",
    "load_pool": "training:load_pool",
    "query": "querying:query",
    "read_outputs": "auditing:read_outputs",
    "readable": "metrics:readable",
    "roc": "plots:roc_pair",
    "score": "attacks:score",
    "self_test": "metrics:self_test",
    "suite": "attacks:suite",
    "summary": "metrics:summary",
    "train": "training:train_pool",
    "verdict": "metrics:verdict",
}
__all__ = [*FACE]


def __getattr__(name: str):
    if name in ROOMS:
        return import_module(f"mia_nb.{name}")
    if name not in FACE:
        raise AttributeError(f"mia_nb has no {name!r}; it has {', '.join(FACE)}")
    room, _, inside = FACE[name].partition(":")
    return getattr(import_module(f"mia_nb.{room}"), inside)  # not kept here: one place holds it


def __dir__() -> list[str]:
    return sorted({"__doc__", "__version__", *FACE, *ROOMS})
