"""What is proved about a pool of `train_private`."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch

from mia_nb import accounting, data, store
from mia_nb.arguments import Delta
from mia_nb.checks import checked, one_of
from mia_nb.models.bottleneck import Bottleneck
from mia_nb.training.pool import Pool, complete_pool
from mia_nb.types import Images

ROUNDING = 1 + 1e-4  # margin for rounding of the clipped norm and the certified constant
ALONE = 1e-3  # largest difference that is allowed, relative to `clip`, of a state computed alone
COVERED = ("euler", "rk4")  # solvers for which `accounting.release_mu` holds


class Proof(NamedTuple):
    """What is proved about one model of a pool of `train_private`, for one record of its training
    set.

    Fields:
        epsilon: at delta; infinite if a condition fails.
        delta: of that epsilon.
        relation: "add/remove" or "replace".
        lipschitz: certified constant of the drift; infinite if there is none.
        mu: of the Gaussian trade-off between states, all releases together; infinite if nothing
            bounds it.
        keep: probability of a true label.
        classes: number of classes.
        releases: number of states drawn of each record.
        slots: places for records; those without a record hold empty ones.
        failed: the conditions that do not hold, in words; empty if all that can be checked hold.
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
        """The argument `stored` of `auditing.ladder`, to be given with `lipschitz` as the certified
        constant; None if a condition fails.
        """
        if self.failed:
            return None
        return {
            "releases": self.releases,
            "keep": self.keep,
            "classes": self.classes,
            "relation": self.relation,
        }


@checked
def proved(pool: Pool, *, delta: Delta = 1e-5, relation: str = "add/remove") -> Proof:
    """What is proved about one model of a pool of `train_private`.

    Parameters:
        pool: of `train_private`, with the public network's pool beside it.
        delta: in [0, 1).
        relation: "add/remove": one record is added to, or removed from, a data set of at most
            `slots` records; "replace": one record becomes another one.

    Returns:
        A `Proof`. If a condition fails, epsilon is infinite and `failed` names the condition. The
        conditions: states are clipped; the drift has a certified constant; the solver is covered;
        there is noise; the network computes the state of each record alone; the public network
        shares no image with the pool; the normalisation was measured on public images; labels are
        randomised.

    Raises:
        ValueError: for an unknown relation.

    Caveats: the check cannot see near duplicates among public and private images, choices that
    followed a look at private records (of the clipping norm, of the network, of one model among
    several), or a seed that is known. Whoever gave `slots` must know that it is a public number.
    """
    one_of("relation", relation, accounting.RELATIONS)
    args = pool.recipe.defense_args
    classes = len(pool.images_record["classes"])
    if pool.recipe.defense != "stored":
        return Proof(
            epsilon=math.inf,
            delta=delta,
            relation=relation,
            lipschitz=math.inf,
            mu=math.inf,
            keep=1.0,
            classes=classes,
            releases=0,
            slots=0,
            failed=("not trained by train_private",),
        )
    network = pool.model(0)
    failed = _unbounded(network)
    if network.flow.k == 0:
        failed.append("there is no noise (k=0)")
    failed += _not_public(pool)
    if args["keep"] >= 1:
        failed.append("labels are not randomised")
    mu = states_mu(network, relation, args["releases"])
    epsilon = math.inf
    if not failed:
        epsilon = accounting.stored_epsilon(
            mu=mu, keep=args["keep"], classes=classes, delta=delta, relation=relation
        )
    return Proof(
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        lipschitz=certified(network),
        mu=mu,
        keep=args["keep"],
        classes=classes,
        releases=args["releases"],
        slots=args["slots"],
        failed=tuple(failed),
    )


def states_mu(network: Bottleneck, relation: str, releases: int, k: float | None = None) -> float:
    """mu of all releases of a state, with the network's k or another; infinite if unbounded."""
    if _unbounded(network):
        return math.inf
    block = network.flow
    # states are 2 clip apart at most; from the state 0 of an empty slot, clip
    clip = block.clip if relation == "replace" else block.clip / 2
    return accounting.release_mu(
        k=block.k if k is None else k,
        steps=block.solver["steps"],
        T=block.solver["T"],
        lipschitz=certified(network) * ROUNDING,
        clip=clip * ROUNDING,
        scheme=block.solver["method"],
        queries=releases,
    )


def certified(network: Bottleneck) -> float:
    """The certified constant of a drift that was built with a bound; infinite for others."""
    if network.flow.drift.lipschitz is None:
        return math.inf
    return copy.deepcopy(network.flow.drift).double().certified_lipschitz((1, 1))


def _unbounded(network: Bottleneck) -> list[str]:
    """What is missing, besides noise, for a bound on the states' trade-off."""
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
    return lacks


def _not_public(pool: Pool) -> list[str]:
    """The ways in which the network before the head may depend on private records."""
    try:
        backbone = complete_pool(
            store.find(pool.record["backbone"], pool.folder.path.parent, "pool")
        )
    except ValueError as error:
        return [f"the public network is gone ({error})"]
    lacks = []
    images = pool.images()
    public = backbone.images()
    seen = {row.tobytes() for row in public.x.numpy()}
    shared = sum(row.tobytes() in seen for row in images.x.numpy())
    if shared > 0:
        lacks.append(f"{shared} private images are among the public ones")
    measured = data.from_arrays(public.x, public.y, classes=public.classes)
    scale = (public.mean, public.std)
    unscaled = scale == ((0.0,), (1.0,))
    if not unscaled and scale != (measured.mean, measured.std):
        lacks.append("normalisation was not measured on the public images")
    if (images.mean, images.std) != scale:
        lacks.append("private images are normalised otherwise than public ones")
    if _mixes(pool.model(0), public):
        lacks.append("states of a batch depend on each other")
    return lacks


@torch.no_grad()
def _mixes(network: Bottleneck, public: Images) -> bool:
    """Whether states of public images depend on the other images of their batch."""
    x = data.normalise(public.x[:8], public.mean, public.std, torch.float32)
    together = network.flow.entering(network.embed(x))
    alone = torch.cat([network.flow.entering(network.embed(image[None])) for image in x])
    return bool((together - alone).flatten(1).norm(dim=1).max() > ALONE * (network.flow.clip or 1))
