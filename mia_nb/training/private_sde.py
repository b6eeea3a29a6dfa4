"""`train_private`: pools that learn from one noisy state and one randomised label of each record,
behind a network that was trained on public images.

By post-processing, nothing that is computed from states and labels reveals more of a record than
they do.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mia_nb import accounting, data
from mia_nb.arguments import Array, Delta, Flag, Fraction, PathLike, Positive, Real, Whole
from mia_nb.checks import checked, one_of
from mia_nb.models import neural_de
from mia_nb.models.bottleneck import Bottleneck
from mia_nb.training.machine import threads
from mia_nb.training.making import finish, is_complete, rows_to_make
from mia_nb.training.placing import complete, membership, place
from mia_nb.training.plans import build, training_key
from mia_nb.training.pool import (
    Pool,
    stored_name,
    trace_name,
    weights_digest,
    weights_name,
    write_weights,
)
from mia_nb.training.proof import proved, states_mu
from mia_nb.training.seeds import mix
from mia_nb.training.train import train_pool
from mia_nb.training.work import make_each
from mia_nb.types import Images, Recipe

HELD_OUT = 10  # every tenth public image is left out of the backbone's training
LABELS = 0.65  # the labels' share of epsilon, by a sweep on public images
BATCH = 500  # images in one forward pass of the backbone
DECAY = 1e-3  # weight decay of the head, on states of unit variance
ITERATIONS = 200  # of L-BFGS, at most
SPREAD = 6  # standard deviations by which coins may exceed the expected number of members


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
    """Train a pool whose models see only one noisy state and one randomised label of each of their
    records. Both are drawn once and stored.

    A network with a bottleneck is trained on the public images and frozen. For each model, the
    state of every member behind the stem is clipped, passes through the stochastic differential
    equation with noise, and is stored. Empty slots, whose state is 0 and whose label is uniform,
    hide the number of members. A linear head is trained on the stored states and labels.

    Parameters:
        recipe: model "bottleneck" and how it is trained on the public images; num_models, split,
            population and seed determine the members among the private ones.
        images: the private records, normalised as the public ones (mean and std of `public`).
        public: images of the same size on which the network is trained, except every tenth.
        epsilon: of one record in one model; it sets the noise k and the probability of a true
            label. None: k is `noise`, and a label is true with the probability `keep` of the
            recipe's defense_args (with defense "stored").
        delta: of that epsilon.
        relation: "add/remove" or "replace": the neighbouring data sets that epsilon compares.
        labels: the labels' share of epsilon.
        noise: k, with epsilon=None; None: that of the recipe's model_args.
        releases: number of states that are drawn of each record; all are counted.
        slots: a public bound on the number of members; None: half of the images and some room, for
            coins six standard deviations. split="given" needs a number.
        member: as for `train_pool`.
        root: the folder of results, where the public network is stored as a pool of its own.
        progress, force: as for `train_pool`.
        options: of `train_pool`, for the public network.

    Returns:
        A `Pool` that can be queried, attacked and audited like any other. `proved(pool)` tells what
        is proved about it, or which conditions fail.

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

    Caveats: as with DP-SGD, noise and labels come from seeded ordinary generators in floating
    point. For a release the seed must be secret and one of very many, not the default, since an
    attacker may know everything else that determines the noise. A pool's folder holds the records.
    The statement is about one model; every further model that is shown spends the same again.
    """
    _check_inputs(recipe, images, public)
    one_of("relation", relation, accounting.RELATIONS)
    classes = len(images.classes)
    if epsilon is None:
        keep = recipe.defense_args.get("keep", 0.9)
        mu = None
    elif noise is not None:
        raise ValueError(f"epsilon={epsilon} and noise={noise}: one follows, name one")
    else:
        keep = _keep_probability(epsilon * labels, classes)
        mu = accounting.stored_mu(
            epsilon=epsilon, delta=delta, relation=relation, keep=keep, classes=classes
        )
        if mu == 0:
            raise ValueError(
                f"labels={labels} of epsilon={epsilon} leaves nothing for the states: give labels a"
                " smaller share"
            )
    members, population = membership(recipe, images, member)
    if slots is None:
        slots = _slots(recipe, images)
    most = int(members.sum(1).max())
    if most > slots:
        raise ValueError(f"slots={slots} for {most} members: wanted a public bound of their number")
    backbone = _backbone(recipe, public, root, progress=progress, **options)
    if mu is not None:
        noise = _noise(backbone.model(0), mu, relation, releases)
    model_args = dict(recipe.model_args)
    if noise is not None:
        model_args["k"] = noise
    stored = {"keep": keep, "slots": slots, "releases": releases}
    recipe = complete(recipe.replace(model_args=model_args, defense="stored", defense_args=stored))
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
    done = "cached"
    if force or not is_complete(pool):
        begun = time.perf_counter()
        state = backbone.state(0)  # read before models are removed: its file may be damaged
        _make_heads(pool, rows_to_make(pool, images, force), state, images, progress)
        done = f"trained in {time.perf_counter() - begun:.1f} s"
    finish(pool, done, progress)
    if progress:
        print(proved(pool, delta=delta, relation=relation).line, flush=True)
    return pool


def _check_inputs(recipe: Recipe, images: Images, public: Images) -> None:
    """ValueError for another model, a parent, and private images that are not shaped as the public
    ones.
    """
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


def _backbone(recipe: Recipe, public: Images, root: PathLike, **options: Any) -> Pool:
    """The pool of one network that is trained on public images."""
    member = np.ones((1, len(public.y)), bool)
    member[:, ::HELD_OUT] = False
    recipe = recipe.replace(num_models=1, split="given", population=0, snapshots=[])
    if recipe.defense == "stored":
        recipe = recipe.replace(defense=None, defense_args={})
    return train_pool(recipe, public, member=member, root=root, **options)


def _slots(recipe: Recipe, images: Images) -> int:
    """Number of slots for members, from the design alone: half of the images, and some room for
    coins or for odd class sizes.
    """
    if recipe.split == "given":
        raise ValueError(
            "split='given' wants slots: a bound of the number of members that is public, not"
            " counted from them"
        )
    half = (len(images.y) - recipe.population) / 2
    room = len(images.classes)
    if recipe.split == "bernoulli":
        standard_deviation = math.sqrt(half / 2)  # of the number of members
        room = SPREAD * standard_deviation
    return min(math.ceil(half + room), len(images.y))


def _keep_probability(epsilon: float, classes: int) -> float:
    """The probability of a true label for which randomised response has this epsilon."""
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def _noise(network: Bottleneck, mu: float, relation: str, releases: int) -> float:
    """The k for which all releases of a state have a Gaussian trade-off of this mu; the network's
    own k if its states are not bounded.
    """
    mu_at_1 = states_mu(network, relation, releases, k=1.0)
    if not math.isfinite(mu_at_1):
        return network.flow.k
    return mu_at_1 / mu * (1 + 1e-9)  # mu is proportional to 1 / k


def _make_heads(
    pool: Pool, rows: list[int], state: dict[str, Tensor], images: Images, progress: bool
) -> None:
    """Store the states and labels of these rows, and train their heads behind the public network
    with these weights.
    """
    with threads(1):
        # the network before the head is the same for all rows
        embedded = _embedded(_frozen(pool, images, 0, state), images)
        make = partial(_make_head, pool, images, state, embedded)
        make_each(pool, rows, make, "heads", progress)


def _frozen(pool: Pool, images: Images, model: int, state: dict[str, Tensor]) -> Bottleneck:
    """A row's network with the backbone's weights before the head, in evaluation mode."""
    network = build(pool.recipe, images, model)
    head = network.head.state_dict()
    fresh = {f"head.{name}": tensor for name, tensor in head.items()}
    network.load_state_dict(state | fresh)
    return network.eval()


@torch.no_grad()
def _embedded(network: Bottleneck, images: Images) -> Tensor:
    """States (N, channels, 1, 1) of all images, before clipping and noise."""
    states = []
    for x in images.x.split(BATCH):
        states.append(network.embed(data.normalise(x, images.mean, images.std, torch.float32)))
    return torch.cat(states)


def _make_head(
    pool: Pool, images: Images, state: dict[str, Tensor], embedded: Tensor, model: int
) -> None:
    """Store a row's noisy states and labels, unless they are stored, and train its head on them."""
    folder = pool.folder
    network = _frozen(pool, images, model, state)
    name = stored_name(model)
    if not folder.intact(name):
        folder.write_arrays(name, _states_and_labels(pool, images, model, network, embedded))
    stored = folder.read_arrays(name)
    weight, bias = fitted_head(stored["states"], stored["labels"], len(images.classes))
    network.head.weight.data.copy_(weight)
    network.head.bias.data.copy_(bias)
    # no losses of single members are kept: they would reveal more than the stored states
    nothing = np.full((pool.recipe.epochs, int(pool.member[model].sum())), np.nan, np.float16)
    folder.write_array(trace_name(model), nothing)
    write_weights(folder, weights_name(model), network.state_dict())


@torch.no_grad()
def _states_and_labels(
    pool: Pool, images: Images, model: int, network: Bottleneck, embedded: Tensor
) -> dict[str, np.ndarray]:
    """Draw {"states": (releases, slots, channels) float32, "labels": (slots,)} of a row, the slots
    in random order.
    """
    args = pool.recipe.defense_args
    classes = len(images.classes)
    members = torch.from_numpy(np.flatnonzero(pool.member[model]))
    empty = args["slots"] - len(members)
    settings = pool.recipe.to_json()
    del settings["num_models"]
    # every public network needs noise of its own, too: else their epsilons would not add up
    settings["backbone"] = pool.record["backbone_weights"]
    training = training_key(settings, images, pool.member, model)
    h = torch.cat([embedded[members], torch.zeros(empty, *embedded.shape[1:])])
    noise = torch.Generator().manual_seed(mix(training, "states"))
    neural_de.set_noise(network, True)
    states = torch.stack(network.flow.solutions(h, args["releases"], noise)).flatten(2)
    neural_de.set_noise(network, None)
    coins = np.random.default_rng(mix(training, "labels"))
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
        classes: K.
    """
    releases, _, width = states.shape
    x = torch.tensor(states.reshape(-1, width), dtype=torch.float64)
    y = torch.tensor(labels).repeat(releases)
    scale = x.square().mean(0).sqrt().clamp(min=1e-12)
    x = x / scale
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
    return (layer.weight.detach() / scale).float(), layer.bias.detach().float()
