"""Pools that learn from one noisy state and one randomised label of each record, behind a network
that was trained on public images: `train_private`, and what is proved of it: `proved`.

By post-processing nothing that is done with states and labels afterwards tells more of a record
than they do.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mia_nb import accounting, data, store
from mia_nb.arguments import Array, Delta, Flag, Fraction, PathLike, Positive, Real, Whole
from mia_nb.checks import checked, one_of
from mia_nb.models import neural_de
from mia_nb.models.bottleneck import Bottleneck
from mia_nb.training import loop
from mia_nb.training.loop import mix
from mia_nb.training.pool import (
    Pool,
    complete_pool,
    stored_name,
    trace_name,
    weights_digest,
    weights_name,
    write_weights,
)
from mia_nb.training.train import (
    complete,
    make_missing,
    membership,
    place,
    train_pool,
)
from mia_nb.training.work import make_each, threads
from mia_nb.types import Images, Recipe

HELD_OUT = 10  # one public image in so many is left out of the backbone's training
LABELS = 0.65  # share of epsilon that the labels get, by a sweep on public images
BATCH = 500  # images that pass through the backbone together
DECAY = 1e-3  # of the head's weights, on states of unit variance
ITERATIONS = 200  # of L-BFGS at most
SPREAD = 6  # standard deviations of the coins that slots leave room for
ROUNDING = 1 + 1e-4  # of the clipped norm and the certified constant, which float32 rounds
ALONE = 1e-3  # by which a state may differ when it is computed alone, relative to `clip`
COVERED = ("euler", "rk4")  # solvers for which `accounting.release_mu` holds


class Proof(NamedTuple):
    """What is proved of one model of a pool of `train_private`, for one record of its training set.

    Fields:
        epsilon: at delta; infinite where a condition fails.
        delta: of that epsilon.
        relation: "add/remove" or "replace".
        lipschitz: certified constant of the drift; infinite where there is none.
        mu: of the Gaussian trade-off between states, all releases together; infinite where nothing
            bounds it.
        keep: probability of the true label.
        classes: labels that there are.
        releases: states drawn of each record.
        slots: places for records, which are filled up with empty ones.
        failed: the conditions that do not hold, in words; empty where all that can be seen do.
    """

    epsilon: float
    delta: float
    relation: str
    lipschitz: float
    mu: float
    keep: float
    classes: int
    releases: int
    slots: int
    failed: tuple[str, ...]

    @property
    def line(self) -> str:
        """One line to print."""
        if self.failed:
            return f"none (infinite): {'; '.join(self.failed)}"
        relation = {"add/remove": "added or removed", "replace": "replaced"}[self.relation]
        return (
            f"epsilon {self.epsilon:.4g} at delta {self.delta:g} for one record {relation}, of data"
            f" sets with at most {self.slots:,} (mu {self.mu:.4g}, labels kept with probability"
            f" {self.keep:.4g} of {self.classes}), to whoever cannot know or guess the seed"
        )

    @property
    def stored(self) -> dict | None:
        """The argument `stored` of `auditing.ladder`, which takes `lipschitz` as its certified
        constant too; None where a condition fails.
        """
        if self.failed:
            return None
        return {
            "releases": self.releases,
            "label_epsilon": accounting.response_epsilon(keep=self.keep, classes=self.classes),
            "keep": self.keep,
            "classes": self.classes,
            "relation": self.relation,
        }


@checked
def train_private(
    recipe: Recipe,
    images: Images,
    public: Images,
    *,
    epsilon: Real | None = 8.0,
    delta: Delta = 1e-5,
    relation: str = "add/remove",
    labels: Fraction = LABELS,
    noise: Real | None = None,
    releases: Positive = 1,
    slots: Whole | None = None,
    member: Array | None = None,
    root: PathLike = "results",
    progress: Flag = True,
    force: Flag = False,
    **options: Any,
) -> Pool:
    """Train a pool whose models see of each of their records one noisy state and one randomised
    label, both drawn once and stored.

    A network with a bottleneck is trained on the public images and frozen. For each model, the
    state of every member behind the stem is clipped, goes through the stochastic differential
    equation with noise and is stored; empty slots, whose state is 0 and whose label is uniform,
    hide how many members there are. A linear head is trained on what is stored.

    Parameters:
        recipe: model "bottleneck" and how it is trained on the public images; num_models, split,
            population and seed draw the members of the private ones.
        images: the private records, normalised as the public ones (mean and std of `public`).
        public: what the network is trained on, every tenth image left out; of the same size.
        epsilon: what one model may spend on one record; it sets the noise k and the probability of
            a true label. None: `noise`, and a true label with the probability `keep` of the
            recipe's defense_args (with defense "stored").
        delta: of that epsilon.
        relation: "add/remove" or "replace", which epsilon is about.
        labels: share of epsilon that is the label's own.
        noise: k, with epsilon=None; None: that of the recipe's model_args.
        releases: states drawn of each record, all counted.
        slots: a public bound of the number of members; None: half of the images and some room, for
            coins six standard deviations; split="given" wants a number.
        member: as for `train_pool`.
        root: the folder of results; the public network lies there as a pool of its own.
        progress, force: as for `train_pool`.
        options: of `train_pool`, for the public network.

    Returns:
        A `Pool` to be queried, attacked and audited as any other; `proved(pool)` says what is
        proved of it, and which condition fails where nothing is.

    Raises:
        ValueError: for another model, an image size that differs, no slots or more members than
            slots, and as `train_pool`.

    Example:
        >>> from mia_nb import data, training
        >>> from mia_nb.types import Recipe
        >>> digits = data.load("digits", limit=600)
        >>> public = data.from_arrays(digits.x[:300], digits.y[:300])
        >>> scale = {"mean": public.mean, "std": public.std}
        >>> rest = data.from_arrays(digits.x[300:], digits.y[300:], **scale)
        >>> recipe = Recipe(model="bottleneck", num_models=2, epochs=2)
        >>> pool = training.train_private(recipe, rest, public, epsilon=8, progress=False)
        >>> training.proved(pool).epsilon <= 8
        True

    Source: the Gaussian mechanism on a state (`accounting.release_mu`), randomised response on a
    label (`accounting.stored_epsilon`), and post-processing.

    Caveats: those of DP-SGD here too: noise and labels come from seeded ordinary generators in
    floating point, so for a release the seed must be secret and one of very many, not the default:
    all else that the noise is drawn from an attacker may know. A pool's folder holds the records.
    The statement is about one model; whoever shows several spends as often.
    """
    one_of("relation", relation, accounting.RELATIONS)
    data.check_images(images)
    data.check_images(public)
    if recipe.model != "bottleneck" or recipe.parent is not None:
        raise ValueError(
            f'model={recipe.model!r}, parent={recipe.parent!r}: wanted model="bottleneck", trained'
            " from nothing"
        )
    if images.x.shape[1:] != public.x.shape[1:]:
        raise ValueError(
            f"private images have shape {tuple(images.x.shape[1:])}, public ones"
            f" {tuple(public.x.shape[1:])}: wanted the same"
        )
    backbone = _backbone(recipe, public, root, progress=progress, **options)
    members, population = membership(recipe, images, member)
    if slots is None:
        slots = _slots(recipe, images)
    most = int(members.sum(1).max())
    if most > slots:
        raise ValueError(f"slots={slots} for {most} members: wanted a public bound of their number")
    keep = recipe.defense_args.get("keep", 0.9)
    if epsilon is not None:
        if noise is not None:
            raise ValueError(f"epsilon={epsilon} and noise={noise}: one follows, name one")
        classes = len(images.classes)
        keep = _keep(epsilon * labels, classes)
        goal = {"epsilon": epsilon, "delta": delta, "relation": relation}
        mu = accounting.stored_mu(**goal, keep=keep, classes=classes)
        noise = _noise(backbone.model(0), mu, relation, releases)
    args = recipe.model_args if noise is None else {**recipe.model_args, "k": noise}
    stored = {"keep": keep, "slots": slots, "releases": releases}
    recipe = complete(recipe.replace(model_args=args, defense="stored", defense_args=stored))
    pool = place(
        recipe,
        images,
        members,
        population,
        root,
        None,
        backbone=backbone.key,
        backbone_weights=weights_digest(backbone.folder, 1),
    )

    def prepare() -> Callable[[list[int]], None]:
        return partial(_make_heads, pool, backbone.state(0), images, progress)

    pool = make_missing(pool, images, prepare, force=force, progress=progress)
    if progress:
        print(proved(pool, delta=delta, relation=relation).line, flush=True)
    return pool


def _backbone(recipe: Recipe, public: Images, root: PathLike, **options: Any) -> Pool:
    """The pool of one network that is trained on public images."""
    member = np.ones((1, len(public.y)), bool)
    member[:, ::HELD_OUT] = False
    alone = {"num_models": 1, "split": "given", "population": 0, "snapshots": []}
    if recipe.defense == "stored":
        alone |= {"defense": None, "defense_args": {}}
    return train_pool(recipe.replace(**alone), public, member=member, root=root, **options)


def _slots(recipe: Recipe, images: Images) -> int:
    """Places for members by the design alone, whoever they are: half of the images, and room for
    coins or for halves of each class.
    """
    if recipe.split == "given":
        raise ValueError(
            "split='given' wants slots: a bound of the number of members that is public, not"
            " counted from them"
        )
    half = (len(images.y) - recipe.population) / 2
    coins = recipe.split == "bernoulli"
    room = SPREAD * math.sqrt(half / 2) if coins else len(images.classes)
    return min(math.ceil(half + room), len(images.y))


def _keep(epsilon: float, classes: int) -> float:
    """The probability of a true label whose randomised response has this epsilon."""
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def _noise(network: Bottleneck, mu: float, relation: str, releases: int) -> float:
    """k for which all releases of a state have a Gaussian trade-off of this mu; the network's own
    where its states are not bounded.
    """
    of_unit = _mu(network, relation, releases, k=1.0)
    if not math.isfinite(of_unit):
        return network.flow.k
    return of_unit / mu * (1 + 1e-9)


def _mu(network: Bottleneck, relation: str, releases: int, k: float | None = None) -> float:
    """mu of all releases of a state; infinite where nothing bounds it."""
    block = network.flow
    solver = block.solver
    lipschitz = _certified(network)
    covered = solver["method"] in COVERED and block.order == 1
    if block.clip is None or math.isinf(lipschitz) or not covered:
        return math.inf
    distance = {"replace": 2.0, "add/remove": 1.0}[relation] * block.clip
    return accounting.release_mu(
        k=block.k if k is None else k,
        steps=solver["steps"],
        T=solver["T"],
        lipschitz=lipschitz * ROUNDING,
        clip=distance / 2 * ROUNDING,
        scheme=solver["method"],
        queries=releases,
    )


def _certified(network: Bottleneck) -> float:
    """The certified constant of a drift that was built with a bound, infinite for others."""
    if network.flow.drift.lipschitz is None:
        return math.inf
    return copy.deepcopy(network.flow.drift).double().certified_lipschitz((1, 1))


def _make_heads(
    pool: Pool, state: dict[str, Tensor], images: Images, progress: bool, rows: list[int]
) -> None:
    """Store states and labels of these rows, and train their heads behind the public network of
    this state.
    """
    with threads(1):
        embedded = _embedded(_frozen(pool, images, 0, state), images)
        make = partial(_make_head, pool, images, state, embedded)
        make_each(pool, rows, make, "heads", progress)


def _frozen(pool: Pool, images: Images, model: int, state: dict[str, Tensor]) -> Bottleneck:
    """A row's network with the backbone's weights before the head, in evaluation mode."""
    network = loop.build(pool.recipe, images, model)
    head = {
        name: tensor for name, tensor in network.state_dict().items() if name.startswith("head.")
    }
    network.load_state_dict(state | head)
    return network.eval()


@torch.no_grad()
def _embedded(network: Bottleneck, images: Images) -> Tensor:
    """States (N, channels, 1, 1) before clipping and noise; of non-members too, as every row has
    others.
    """
    parts = images.x.split(BATCH)
    return torch.cat([network.embed(_shown(x, images)) for x in parts])


def _shown(x: Tensor, images: Images) -> Tensor:
    return data.normalise(x, images.mean, images.std, torch.float32)


def _make_head(
    pool: Pool, images: Images, state: dict[str, Tensor], embedded: Tensor, model: int
) -> None:
    """Store a row's noisy states and labels, unless they are there, and train its head on them."""
    folder = pool.folder
    network = _frozen(pool, images, model, state)
    name = stored_name(model)
    if not folder.intact(name):
        folder.write_arrays(name, _drawn(pool, images, model, network, embedded))
    kept = folder.read_arrays(name)
    weight, bias = fitted_head(kept["states"], kept["labels"], len(images.classes))
    network.head.weight.data.copy_(weight)
    network.head.bias.data.copy_(bias)
    # losses of single members would be told apart from what is stored: there are none
    nothing = np.full((pool.recipe.epochs, int(pool.member[model].sum())), np.nan, np.float16)
    folder.write_array(trace_name(model), nothing)
    weights = {
        name: tensor.detach().contiguous().clone() for name, tensor in network.state_dict().items()
    }
    write_weights(folder, weights_name(model), weights)


@torch.no_grad()
def _drawn(
    pool: Pool, images: Images, model: int, network: Bottleneck, embedded: Tensor
) -> dict[str, np.ndarray]:
    """{"states": (releases, slots, channels) float32, "labels": (slots,)} of a row, in an order
    that is drawn too.
    """
    args = pool.recipe.defense_args
    members = torch.from_numpy(np.flatnonzero(pool.member[model]))
    empty = args["slots"] - len(members)
    h = torch.cat([embedded[members], torch.zeros(empty, *embedded.shape[1:])])
    settings = pool.recipe.to_json()
    del settings["num_models"]
    row = np.packbits(pool.member[model]).tobytes()
    # another training, or one behind another public network, has other noise: that of two could be
    # taken out, and what they spend would not add up
    settings |= {"row": model, "backbone": pool.record["backbone_weights"]}
    training = store.content_key(settings, images.digest, row)
    noise = torch.Generator().manual_seed(mix(training, "states"))
    neural_de.set_noise(network, True)
    states = torch.stack([network.flow(h, noise).flatten(1) for _ in range(args["releases"])])
    neural_de.set_noise(network, None)
    coins = np.random.default_rng(mix(training, "labels"))
    classes = len(images.classes)
    labels = randomised(images.y[members].numpy(), classes, args["keep"], coins)
    labels = np.concatenate([labels, coins.integers(classes, size=empty)])
    order = coins.permutation(args["slots"])
    return {"states": states.numpy()[:, order], "labels": labels[order]}


def randomised(
    labels: np.ndarray, classes: int, keep: float, coins: np.random.Generator
) -> np.ndarray:
    """Labels by randomised response: each true with probability `keep`, else one of the others."""
    other = (labels + coins.integers(1, classes, size=len(labels))) % classes
    return np.where(coins.random(len(labels)) < keep, labels, other)


def fitted_head(states: np.ndarray, labels: np.ndarray, classes: int) -> tuple[Tensor, Tensor]:
    """Weight (K, d) and bias (K,) of a multinomial logistic regression on stored states.

    Parameters:
        states: (R, n, d), R states of each of n records.
        labels: (n,) class numbers from 0.
        classes: how many there are.
    """
    count, _, width = states.shape
    x = torch.tensor(states.reshape(-1, width), dtype=torch.float64)
    y = torch.tensor(labels).repeat(count)
    unit = x.square().mean(0).sqrt().clamp(min=1e-12)
    x = x / unit
    layer = nn.Linear(width, classes, dtype=torch.float64)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=ITERATIONS, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(x), y) + DECAY / 2 * layer.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return (layer.weight.detach() / unit).float(), layer.bias.detach().float()


@checked
def proved(pool: Pool, *, delta: Delta = 1e-5, relation: str = "add/remove") -> Proof:
    """What is proved of one model of a pool of `train_private`, its conditions checked on what is
    stored.

    Parameters:
        pool: of `train_private`, the public network's pool beside it.
        delta: in [0, 1).
        relation: "add/remove": one record added to, or removed from, a data set of at most `slots`
            records; "replace": one record becomes another one.

    Returns:
        A `Proof`; its epsilon is infinite, and `failed` names the conditions, where one fails:
        states clipped, a drift with a certified constant, a solver that is covered, noise, a
        network that computes the state of each record alone, weights before the head that are the
        public network's to the bit, a public network trained from nothing on images none of which
        is a private one, normalisation measured on public images, as many stored states a record
        as are counted, randomised labels.

    Raises:
        ValueError: for an unknown relation.

    Caveats: it does not see near duplicates among public and private images, choices that followed
    from a look at private records (of the clipping norm, of the network, of one model among
    several), or a seed that is known. Whether slots, where they were given, are a public number is
    for whoever gave it to say.
    """
    one_of("relation", relation, accounting.RELATIONS)
    args = pool.recipe.defense_args
    classes = len(pool.images_record["classes"])
    if pool.recipe.defense != "stored":
        unknown = {"lipschitz": math.inf, "mu": math.inf}
        nothing = unknown | {"keep": 1.0, "classes": classes, "releases": 0, "slots": 0}
        failed = ("not trained by train_private",)
        return Proof(math.inf, delta, relation, failed=failed, **nothing)
    network = pool.model(0)
    failed = (*_unbounded(network), *_not_public(pool), *_unstored(pool))
    mu = _mu(network, relation, args["releases"])
    if args["keep"] >= 1:
        failed += ("labels are not randomised",)
    epsilon = math.inf
    if not failed:
        rest = {"keep": args["keep"], "classes": classes, "delta": delta, "relation": relation}
        epsilon = accounting.stored_epsilon(mu=mu, **rest)
    return Proof(
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        lipschitz=_certified(network),
        mu=mu,
        keep=args["keep"],
        classes=classes,
        releases=args["releases"],
        slots=args["slots"],
        failed=failed,
    )


def _unbounded(network: Bottleneck) -> tuple[str, ...]:
    """What lacks for a bound of the states' trade-off."""
    block = network.flow
    method = block.solver["method"]
    lacks = []
    if block.clip is None:
        lacks.append("states are not clipped (clip=None)")
    if block.drift.lipschitz is None:
        lacks.append("the drift has no certified constant (lipschitz=None)")
    if method not in COVERED:
        lacks.append(f"no bound is known for {method}")
    if block.order != 1:
        lacks.append("the state is of second order")
    if block.k == 0:
        lacks.append("there is no noise (k=0)")
    return tuple(lacks)


def _not_public(pool: Pool) -> tuple[str, ...]:
    """What before the head may depend on private records."""
    try:
        backbone = complete_pool(
            store.find(pool.record["backbone"], pool.folder.path.parent, "pool")
        )
    except ValueError as error:
        return (f"the public network is gone ({error})",)
    lacks = []
    images = pool.images()
    public = backbone.images()
    seen = {row.tobytes() for row in public.x.numpy()}
    shared = sum(row.tobytes() in seen for row in images.x.numpy())
    if shared > 0:
        lacks.append(f"{shared} private images are among the public ones")
    if backbone.recipe.parent is not None:
        lacks.append("the public network has a parent")
    measured = data.from_arrays(public.x, public.y, classes=public.classes)
    scale = (public.mean, public.std)
    if scale not in (((0.0,), (1.0,)), (measured.mean, measured.std)):
        lacks.append("normalisation was not measured on the public images")
    if (images.mean, images.std) != scale:
        lacks.append("private images are normalised otherwise than public ones")
    state = backbone.state(0)
    if not all(_same_frozen(pool.state(m), state) for m in range(len(pool.member))):
        lacks.append("weights before the head are not the public network's")
    if _mixes(pool.model(0), public):
        lacks.append("states of a batch depend on each other")
    return tuple(lacks)


def _same_frozen(state: dict[str, Tensor], public: dict[str, Tensor]) -> bool:
    """Whether two networks are equal to the bit before the head."""
    names = [name for name in state if not name.startswith("head.")]
    return all(name in public and torch.equal(state[name], public[name]) for name in names)


@torch.no_grad()
def _mixes(network: Bottleneck, public: Images) -> bool:
    """Whether states of public images change with their companions."""
    x = _shown(public.x[:8], public)
    together = network.flow.entering(network.embed(x))
    alone = torch.cat([network.flow.entering(network.embed(image[None])) for image in x])
    return bool((together - alone).flatten(1).norm(dim=1).max() > ALONE * (network.flow.clip or 1))


def _unstored(pool: Pool) -> tuple[str, ...]:
    """What differs between the states that are stored and those that are counted."""
    args = pool.recipe.defense_args
    failed = []
    for m in range(len(pool.member)):
        if not pool.folder.intact(stored_name(m)):
            failed.append(f"the states that model {m} was trained on are not stored")
            continue
        states = pool.folder.read_arrays(stored_name(m))["states"]
        if states.shape[:2] != (args["releases"], args["slots"]):
            failed.append(
                f"model {m} stores {states.shape[0]} states of {states.shape[1]} records; counted"
                f" are {args['releases']} of {args['slots']}"
            )
    return tuple(failed)
