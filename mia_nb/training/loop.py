"""The training loop: a `Plan` says what a pool's models are trained on, a `Group` trains some of
them.

A group of one model is an ordinary module; the tensors of several are stacked along a leading model
axis, and one forward pass serves all.

Every generator is seeded anew from (seed, row, epoch, purpose): initialisation, order of samples
and augmentation never depend on the strategy, on the other models of a group or on where a training
was resumed. So a pool can grow and keep its first models.

In shapes, G is models of a group, B images of a batch, M models of a pool, N images, T time steps,
K classes.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from mia_nb import data, defenses, models
from mia_nb.arguments import Whole
from mia_nb.checks import checked
from mia_nb.models import fast
from mia_nb.training.muon import Muon
from mia_nb.training.stacking import Stacking, keeps_gradients
from mia_nb.types import Images, Recipe

OPTIMIZERS = {
    "sgd": (
        partial(torch.optim.SGD, fused=True),
        {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
    ),
    "adam": (partial(torch.optim.Adam, fused=True), {"weight_decay": 0.0}),
    "muon": (
        Muon,
        {
            "momentum": 0.6,
            "matrix_lr": 80.0,
            "vector_lr": 6.0,
            "sgd_momentum": 0.85,
            "decay": 1e-3,
        },
    ),
}
WHITENING_IMAGES = 5000  # of a model's training images, from which its first layer is computed
# of weights and images; "bfloat16" keeps them in float32 and computes under autocast
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}
# why a model is not stacked
RANDOM = "its forward draws random numbers, which would depend on the group"
NO_MEMORY = "can't allocate memory|out of memory|ALLOC_FAILED"  # in a message of PyTorch
TRACE_FLOOR = 1e-10  # a float32 loss can be exactly 0; its logarithm is stored from here up


def tet(logits: Tensor, labels: Tensor, *, lamb: float = 0.05, means: float = 1.0) -> Tensor:
    """Loss of temporal efficient training: (1 - lamb) mean_t CE(z_t, y) + lamb mean_{t,k} (z_tk -
    means)^2.

    Parameters:
        logits: z (T, B, K), of each time step.
        labels: y (B,).
        lamb: weight of the second term, which keeps the logits near the firing threshold.
        means: that threshold.

    Returns:
        (B,) losses: every time step has to answer for itself.

    Source: Deng, Li, Zhang and Gu (ICLR 2022).
    """
    steps = len(logits)
    of_steps = F.cross_entropy(logits.flatten(0, 1), labels.repeat(steps), reduction="none")
    cross_entropy = of_steps.view(steps, -1).mean(0)
    return (1 - lamb) * cross_entropy + lamb * (logits - means).square().mean((0, 2))


# logits (B, K), labels (B,) -> (B,)
LOSSES = {"cross_entropy": partial(F.cross_entropy, reduction="none"), "tet": tet}
PER_STEP = ("tet",)  # losses of (T, B, K), the logits of each time step


def mix(*words: object) -> int:
    """A stable 63-bit seed from any words, e.g. mix(seed, model, epoch, "order")."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8], "big") >> 1


def generator(*words: object) -> torch.Generator:
    """A generator on the CPU, seeded by `mix` of the words."""
    return torch.Generator().manual_seed(mix(*words))


def random_state_kept(device: torch.device) -> AbstractContextManager:
    """A context that leaves torch's generators as it found them, those of all GPUs too, which
    `torch.manual_seed` seeds wherever a model lies.
    """
    on_gpu = device.type == "cuda" or torch.cuda.is_initialized()
    return torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpu else [])


def short_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: PyTorch has a type for that on a GPU, and words
    only elsewhere.
    """
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and bool(re.search(NO_MEMORY, str(error)))
    )


def fitting(run: Callable[[int], Any], size: int, least: int) -> Any:
    """run(size), tried again with half the size where memory runs out.

    Sizes stay multiples of `least`; ValueError where even that does not fit.
    """
    while True:
        try:
            return run(size)
        except RuntimeError as error:
            if not short_of_memory(error):
                raise
            reason = " ".join(str(error).split())[:160]
        torch.cuda.empty_cache()  # outside of the handler, whose traceback holds tensors
        if size <= least:
            raise ValueError(
                f"batch={size} images at a time do not fit into memory ({reason}), and fewer are"
                ' not queried: free some, take a larger device, or device="cpu"'
            )
        size = max(size // 2 // least, 1) * least


Start = Callable[[int], dict[str, Tensor]]  # row -> the parent's weights, from which it starts


class Parent(Protocol):
    """What is asked of the pool that another starts from, trained or not yet."""

    recipe: Recipe

    def model(self, model: int) -> nn.Module:
        """A row as a module, in evaluation mode."""

    def state(self, model: int) -> dict[str, Tensor]:
        """A row's weights."""


class Plan(NamedTuple):
    """What a worker needs to train any row, that is any model, of a pool."""

    recipe: Recipe
    images: Images
    member: np.ndarray  # (M, N) bool: who trains on what
    device: torch.device
    stacked: bool = False  # several models in one forward pass
    channels_last: bool = False  # memory format of images and weights
    start: Start | None = None  # of a derived pool: the weights that its models start from
    held_out: np.ndarray | None = None  # numbers of the images that only the defense sees
    compiled: bool = False  # forward, loss and backward pass by torch.compile

    def on(self, device: torch.device) -> Plan:
        """The plan with its images on this device."""
        images = self.images._replace(x=self.images.x.to(device), y=self.images.y.to(device))
        return self._replace(images=images, device=device)

    @property
    def steps(self) -> int:
        """Optimiser steps in an epoch, the same for all rows: expected members // batch."""
        return expected_members(self.recipe, self.member) // self.recipe.batch


def plan_of(
    recipe: Recipe,
    images: Images,
    member: np.ndarray,
    population: np.ndarray,
    parent: Parent | None = None,
) -> Plan:
    """What there is to train, on the CPU, one model at a time.

    Parameters:
        recipe, images: of the pool.
        member: (M, N) bool.
        population: (N,) bool.
        parent: whose weights a derived pool starts from.
    """
    return Plan(
        recipe,
        images,
        member,
        torch.device("cpu"),
        start=None if parent is None else parent.state,
        held_out=held_out(recipe, population),
    )


@checked
def sampling(recipe: Recipe, members: Whole) -> dict:
    """Sampling rate and steps of a training, as an accountant of differential privacy wants them.

    Parameters:
        recipe: its batch and epochs count.
        members: images that a model trains on.

    Returns:
        {"sample_rate": batch / members, "steps": optimiser steps}.

    Caveat: only under dp_sgd are batches Poisson draws at that rate; of any other training these
    numbers are nominal.

    Example:
        >>> from mia_nb.types import Recipe
        >>> sampling(Recipe(epochs=10, batch=50), 500)
        {'sample_rate': 0.1, 'steps': 100}
    """
    if members < 1:
        raise ValueError(f"members={members}: wanted a number of images from 1 up")
    return {
        "sample_rate": recipe.batch / members,
        "steps": recipe.epochs * (members // recipe.batch),
    }


def expected_members(recipe: Recipe, member: np.ndarray) -> int:
    """Members of a row on average; under coin flips what is expected, so that a pool can grow."""
    if recipe.split == "bernoulli":
        return (member.shape[1] - recipe.population) // 2
    return int(member.sum(1).mean())


def learning_rate(recipe: Recipe, fraction: float, history: list[float]) -> float:
    """The recipe's learning rate at a fraction of training in [0, 1).

    Parameters:
        recipe: its lr and schedule count.
        fraction: t, the share of the training that is over.
        history: mean train loss of each epoch so far, for plateau.

    Schedules:
        one_cycle: half a cosine from lr/25 to lr over the first 30 %, then to lr/10^4 (Smith and
            Topin 2018, as in torch's OneCycleLR).
        cosine: lr (1 + cos(pi t)) / 2.
        linear: lr (1 - t).
        plateau: lr, times 0.1 after more than 10 epochs in which the loss did not fall by 2 %, down
            to 1e-5.
        constant: lr.
    """
    lr = recipe.lr
    if recipe.schedule == "one_cycle":
        return _one_cycle(lr, fraction)
    if recipe.schedule == "cosine":
        return lr * (1 + math.cos(math.pi * fraction)) / 2
    if recipe.schedule == "linear":
        return lr * (1 - fraction)
    if recipe.schedule == "plateau":
        return _plateau(lr, history)
    return lr


def _one_cycle(lr: float, fraction: float) -> float:
    """The schedule one_cycle of `learning_rate`."""
    if fraction < 0.3:
        start = lr / 25
        end = lr
        t = fraction / 0.3
    else:
        start = lr
        end = lr / 1e4
        t = (fraction - 0.3) / 0.7
    return end + (start - end) * (1 + math.cos(math.pi * t)) / 2


def _plateau(lr: float, history: list[float]) -> float:
    """The schedule plateau of `learning_rate`."""
    least = min(1e-5, lr)
    best = math.inf
    waited = 0
    for loss in history:
        if loss < 0.98 * best:
            best = loss
            waited = 0
        else:
            waited += 1
        if waited > 10:
            lr = max(lr * 0.1, least)
            waited = 0
    return lr


def epoch_order(plan: Plan, model: int, epoch: int) -> Tensor:
    """(steps * batch,) numbers of a row's images in the order of an epoch.

    They are permutations of its members one after another, cut off at the end: under coin flips
    (split "bernoulli") a row can have fewer members than an epoch has images.
    """
    members = torch.from_numpy(np.flatnonzero(plan.member[model]))
    draw = generator(plan.recipe.seed, model, epoch, "order")
    wanted = plan.steps * plan.recipe.batch
    rounds = math.ceil(wanted / len(members))
    orders = [torch.randperm(len(members), generator=draw) for _ in range(rounds)]
    return members[torch.cat(orders)[:wanted]]


def held_out(recipe: Recipe, population: np.ndarray) -> np.ndarray | None:
    """Numbers of the images that only the recipe's defense sees, drawn from the population; None
    where it wants none.
    """
    if recipe.defense is None or not defenses.find(recipe.defense).held_out:
        return None
    candidates = np.flatnonzero(population)
    draw = generator(recipe.seed, "held_out")
    order = torch.randperm(len(candidates), generator=draw).numpy()
    return np.sort(candidates[order[: recipe.defense_args["held_out"]]])


class Group:
    """The models of some rows of a plan in training: parameters, buffers, optimiser and defense.

    Call `epoch` once an epoch; `state` and `load` carry a training over an interruption, and
    `weights` gives a finished model.

    Stacked: every tensor has a leading model axis and the forward runs under vmap; the losses are
    averaged per model and summed over models, so each model gets its own gradient and elementwise
    optimisers need no change.
    """

    def __init__(self, plan: Plan, ids: list[int]) -> None:
        """ids: numbers of the rows."""
        self.ids = ids
        recipe = plan.recipe
        images = plan.images
        modules = [begin(recipe, images, m, plan.start).to(plan.device).train() for m in ids]
        if plan.device.type == "cpu" and not keeps_gradients(modules[0]):
            plan = plan._replace(channels_last=False)
        self.plan = plan
        if plan.start is None:
            for model, module in zip(ids, modules, strict=True):
                self.whiten(module, model)
        self.module = modules[0]
        if plan.channels_last:
            self.module = self.module.to(memory_format=torch.channels_last)
        if plan.stacked:
            params, self.stacked_buffers = stack_module_state(modules)
            self.params = {
                name: p.detach().requires_grad_(p.requires_grad) for name, p in params.items()
            }
        else:
            self.params = dict(self.module.named_parameters())
        self.optimizer = self.new_optimizer(recipe.lr)
        self.generators: list[torch.Generator] = []
        self.criterion = LOSSES[recipe.loss]
        self.defense = defenses.Defense({})
        if recipe.defense:
            self.defense = defenses.find(recipe.defense)
        self.trained = [name for name, p in self.params.items() if p.requires_grad]
        # Early stopping: each model's lowest loss on held-out images, and after how many epochs.
        self.best = torch.full((len(ids),), math.inf)
        self.stopped = torch.zeros(len(ids), dtype=torch.int64)
        # The weights that `weights` gives in place of the last ones: those of that epoch, or under
        # dp_sgd an average.
        self.kept: dict[str, Tensor] = {}

    def new_optimizer(self, lr: float | Tensor) -> torch.optim.Optimizer:
        """The recipe's optimiser of this group's parameters."""
        kind, defaults = OPTIMIZERS[self.plan.recipe.optimizer]
        options = defaults | self.plan.recipe.optimizer_args
        if kind is Muon:
            options["stacked"] = self.plan.stacked
        return kind(self.params.values(), lr=lr, **options)

    def whiten(self, module: nn.Module, model: int) -> None:
        """Compute the first layer of a fresh network from its own training images, if it has such
        a layer.
        """
        if not fast.whitened(module):
            return
        members = torch.from_numpy(np.flatnonzero(self.plan.member[model]))
        draw = generator(self.plan.recipe.seed, model, "whitening")
        chosen = members[torch.randperm(len(members), generator=draw)[:WHITENING_IMAGES]]
        fast.whiten(module, self.shown(chosen.to(self.plan.device), {}))

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers as they are now: a forward may put another tensor in a buffer's place."""
        return self.stacked_buffers if self.plan.stacked else dict(self.module.named_buffers())

    def losses(
        self,
        x: Tensor,
        y: Tensor,
        *,
        epoch: int = 0,
        draws: dict[str, Tensor] | None = None,
        objective: Callable | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Per-sample losses (G, B), and what each model minimises (G,).

        Parameters:
            x: normalised images (G, B, C, H, W).
            y: labels (G, B).
            epoch: which may change what a defense minimises.
            draws: the defense's random numbers, each (G, ...); None: those of a first step.
            objective: what is minimised; None: the defense's objective.
        """
        if draws is None:
            draws = self.draws(epoch, 1, y)(0)
        losses_of = partial(
            model_losses, self.plan, self.module, objective or self.objective, self.trained, epoch
        )
        if not self.plan.stacked:
            alone = {name: value[0] for name, value in draws.items()}
            losses, minimised = losses_of(self.params, None, x[0], y[0], alone)
            return losses[None], minimised[None]
        # Channels-last must keep gradients right: it does for convolutions of several models, which
        # are grouped.
        right = len(self.ids) > 1 or keeps_gradients(self.module)
        with Stacking(self.generators, channels_last=right and self.plan.device.type == "cpu"):
            # Random numbers that `Stacking` does not draw are refused: one draw for the whole group
            # would make a model depend on its companions.
            of_group = vmap(losses_of, randomness="error")
            return of_group(self.params, self.buffers, x, y, draws)

    @property
    def objective(self) -> Callable:
        """The defense's objective, with those of the recipe's defense_args that it takes."""
        wanted = inspect.signature(self.defense.objective).parameters
        args = self.plan.recipe.defense_args
        options = {name: value for name, value in args.items() if name in wanted}
        return partial(self.defense.objective, **options)

    def draws(self, epoch: int, steps: int, y: Tensor) -> Callable[[int], dict[str, Tensor]]:
        """The defense's random numbers of an epoch, as a function of the step.

        y (G, steps * batch): labels of the epoch's images. A step's draws are (G, ...) each; where
        the defense draws held-out images, they come as the network sees them.
        """
        if self.defense.draws is None:
            return lambda _: {}
        plan = self.plan
        recipe = plan.recipe
        held_out_labels = plan.images.y.cpu().numpy()[plan.held_out]
        labels = y.view(len(y), steps, -1).cpu().numpy()
        of_models = []
        for model, model_labels in zip(self.ids, labels, strict=True):
            seed = mix(recipe.seed, model, epoch, "defense")
            of_models.append(
                self.defense.draws(
                    seed, plan.held_out, held_out_labels, model_labels, **recipe.defense_args
                )
            )
        # all steps' draws go to the device at once: a copy in each step would wait for it
        drawn = stack_draws(of_models, plan.device)
        numbers = drawn.pop("held_out")
        batch = labels.shape[2]
        augments = self.augments(epoch, steps * batch, "held_out augment")

        def at(step: int) -> dict[str, Tensor]:
            """The images, labels and draws of one step."""
            cut = slice(step * batch, (step + 1) * batch)
            index = numbers[:, step]
            augment = {name: value[:, cut].flatten(0, 1) for name, value in augments.items()}
            x = self.shown(index.reshape(-1), augment)
            draws = {name: value[:, step] for name, value in drawn.items()}
            return {"x": x.view(*index.shape, *x.shape[1:]), "y": plan.images.y[index]} | draws

        return at

    def augments(self, epoch: int, size: int, purpose: str = "augment") -> dict[str, Tensor]:
        """An epoch's augmentation draws (G, size, ...) of all rows, on the device.

        Only AutoAugment's operations stay on the CPU, which sorts the images by them.
        """
        of_models = [augmentation(self.plan, m, epoch, size, purpose) for m in self.ids]
        drawn = stack_draws(of_models)
        for name, value in drawn.items():
            if name != "operations":
                drawn[name] = value.to(self.plan.device)
        return drawn

    def alternate(self, augments: dict[str, Tensor], order: Tensor, epoch: int) -> None:
        """Mirror each image in every other epoch, where the recipe says so, by changing
        `augments` in place. A coin for each image decides whether it begins mirrored.

        order (G, samples): numbers of the epoch's images.
        """
        if "alternate" not in self.plan.recipe.augment.split("+"):
            return
        for slot, model in enumerate(self.ids):
            coins = generator(self.plan.recipe.seed, model, "alternate")
            first = torch.randint(0, 2, (len(self.plan.images.y),), generator=coins).bool()
            augments["flip"][slot] = first[order[slot]] ^ (epoch % 2 == 1)

    def shown(self, index: Tensor, augment: dict[str, Tensor]) -> Tensor:
        """Images of these numbers as the network sees them: augmented and normalised."""
        images = self.plan.images
        x = images.x[index]
        if augment:
            x = data.apply_augment(x, augment)
        return data.normalise(x, images.mean, images.std, DTYPES[self.plan.recipe.dtype])

    def seed_noise(self, epoch: int, purpose: str = "noise") -> None:
        """Seed the generators of an epoch's noise.

        A plain model draws from torch's global generator, a stacked one from its own: the same
        numbers.
        """
        seeds = [mix(self.plan.recipe.seed, m, epoch, purpose) for m in self.ids]
        torch.manual_seed(seeds[0])
        self.generators = [torch.Generator(self.plan.device).manual_seed(s) for s in seeds]

    def step(
        self, x: Tensor, y: Tensor, lr: float, *, epoch: int = 0, draws: dict | None = None
    ) -> Tensor:
        """One optimiser step; the detached losses (G, B). Nothing in it waits for the device."""
        self.optimizer.param_groups[0]["lr"] = lr
        losses, minimised = self.losses(x, y, epoch=epoch, draws=draws)
        self.optimizer.zero_grad(set_to_none=True)
        minimised.sum().backward()
        self.optimizer.step()
        return losses.detach()

    def order(self, epoch: int) -> tuple[Tensor, list[int]]:
        """An epoch's image numbers (G, samples), and how many of them each step takes."""
        order = torch.stack([epoch_order(self.plan, m, epoch) for m in self.ids])
        return order, [self.plan.recipe.batch] * self.plan.steps

    def epoch(self, epoch: int, history: list[list[float]]) -> tuple[Tensor, Tensor]:
        """Train one epoch.

        Parameters:
            epoch: its number, from 0.
            history: for each earlier epoch the mean train losses of the group's models.

        Returns:
            numbers of the images in their order (G, samples), and their losses, both on the CPU.
        """
        plan = self.plan
        recipe = plan.recipe
        order, sizes = self.order(epoch)
        augments = self.augments(epoch, order.shape[1])
        self.alternate(augments, order, epoch)
        augments_of_steps = {name: value.split(sizes, 1) for name, value in augments.items()}
        order_on_device = order.to(plan.device)
        # The first model's losses serve the plateau schedule, which is never stacked.
        past = [of_models[0] for of_models in history]
        draws = self.draws(epoch, plan.steps, plan.images.y[order_on_device])
        losses = []
        with random_state_kept(plan.device):
            self.seed_noise(epoch)
            for step, index in enumerate(order_on_device.split(sizes, 1)):
                augment = {
                    name: of_steps[step].flatten(0, 1)
                    for name, of_steps in augments_of_steps.items()
                }
                x = self.shown(index.reshape(-1), augment)
                x = x.view(*index.shape, *plan.images.x.shape[1:])
                lr = learning_rate(recipe, (epoch + step / plan.steps) / recipe.epochs, past)
                y = plan.images.y[index]
                losses.append(self.step(x, y, lr, epoch=epoch, draws=draws(step)))
            if recipe.defense == "early_stopping":
                self.keep_best(epoch)
        return order, torch.cat(losses, 1).cpu()

    def keep_best(self, epoch: int) -> None:
        """Early stopping: each model keeps its weights of the epoch with the lowest mean loss on
        the held-out images.
        """
        models = len(self.ids)
        total = torch.zeros(models, device=self.plan.device)
        self.seed_noise(epoch, "held_out")
        self.module.eval()
        for numbers in torch.from_numpy(self.plan.held_out).to(self.plan.device).split(256):
            x = self.shown(numbers, {})
            y = self.plan.images.y[numbers]
            with torch.no_grad():
                losses, _ = self.losses(
                    x.expand(models, *x.shape),
                    y.expand(models, -1),
                    objective=defenses.objectives.plain,
                    draws={},
                )
            total += losses.sum(1)
        self.module.train()
        mean = total.cpu() / len(self.plan.held_out)
        better = mean < self.best
        self.best = torch.where(better, mean, self.best)
        self.stopped = torch.where(better, epoch + 1, self.stopped)
        for name, tensor in (self.params | self.buffers).items():
            now = tensor.detach()
            chosen = better.to(now.device)
            if self.plan.stacked:
                further_axes = [1] * (now.ndim - 1)
                chosen = chosen.view(-1, *further_axes)
            else:
                chosen = chosen[0]
            self.kept[name] = torch.where(chosen, now, self.kept.get(name, now))

    def state(self) -> dict[str, Tensor]:
        """What a resumed group needs, in one flat dictionary: `p.*` parameters, `b.*` buffers,
        `o.*` the optimiser's state, `k.*` the weights that are kept.
        """
        flat = {f"p.{name}": tensor.detach() for name, tensor in self.params.items()}
        for name, tensor in self.buffers.items():
            flat[f"b.{name}"] = tensor
        for name, parameter in self.params.items():
            for entry, value in self.optimizer.state[parameter].items():
                if value is not None:
                    flat[f"o.{name}.{entry}"] = torch.as_tensor(value)
        if self.kept:
            for name, tensor in self.kept.items():
                flat[f"k.{name}"] = tensor
            flat["best"] = self.best
            flat["stopped"] = self.stopped
        return {name: tensor.contiguous().cpu() for name, tensor in flat.items()}

    def load(self, flat: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        with torch.no_grad():
            for name, parameter in self.params.items():
                parameter.copy_(flat[f"p.{name}"])
            for name, buffer in self.buffers.items():
                buffer.copy_(flat[f"b.{name}"])
        for name, parameter in self.params.items():
            prefix = f"o.{name}."
            state = {}
            for key, value in flat.items():
                if not key.startswith(prefix):
                    continue
                entry = key.removeprefix(prefix)
                # Adam's count of steps keeps its own type, although a weight that is one number has
                # its shape.
                if value.shape == parameter.shape and entry != "step":
                    state[entry] = torch.empty_like(parameter).copy_(value)
                else:
                    state[entry] = value.to(parameter.device)
            self.optimizer.state[parameter] = state
        if "best" in flat:
            self.best = flat["best"]
            self.stopped = flat["stopped"]
            for key, value in flat.items():
                if key.startswith("k."):
                    self.kept[key.removeprefix("k.")] = value.to(self.plan.device)

    def weights(self, slot: int) -> dict[str, Tensor]:
        """State dictionary of the model in this place of the group, on the CPU.

        With early stopping it is that of the best epoch so far, under dp_sgd the average where one
        is kept.
        """
        tensors = self.module.state_dict(keep_vars=True)
        # Tensors are found by identity, since tied weights have several names and one tensor.
        if self.plan.stacked or self.kept:
            named = (*self.module.named_parameters(), *self.module.named_buffers())
            names = {id(tensor): name for name, tensor in named}
            current = self.kept or (self.params | self.buffers)
            tensors = {name: current[names[id(tensor)]] for name, tensor in tensors.items()}
        if self.plan.stacked:
            tensors = {name: tensor[slot] for name, tensor in tensors.items()}
        return {
            name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()
        }


def model_losses(
    plan: Plan,
    module: nn.Module,
    objective: Callable,
    trained: list[str],
    epoch: int,
    params: dict[str, Tensor],
    buffers: dict[str, Tensor] | None,
    x: Tensor,
    y: Tensor,
    draws: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Per-sample losses (B,) of one model, and the number that it minimises.

    Parameters:
        plan: of the training.
        module: the network.
        objective: gives both from a `defenses.objectives.Step`.
        trained: names of the parameters that learn.
        epoch: which may change what is minimised.
        params, buffers: tensors that take the place of the module's; with buffers None the module
            is called as it is.
        x, y: images (B, C, H, W) and labels (B,).
        draws: the defense's random numbers.
    """
    options = {"per_step": True} if plan.recipe.loss in PER_STEP else {}

    def call(x: Tensor) -> Tensor:
        if buffers is None:
            return module(x, **options)
        return functional_call(module, (params, buffers), (x,), options)

    forward = partial(logits_of, plan, call)
    learning = {name: params[name] for name in trained}
    criterion = LOSSES[plan.recipe.loss]
    return objective(defenses.objectives.Step(forward, criterion, x, y, epoch, learning, draws))


def logits_of(plan: Plan, call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Logits of images, in the recipe's precision."""
    dtype = plan.recipe.dtype
    if plan.channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.autocast(plan.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        logits = models.main_logits(call(x))
    return logits.to(DTYPES[dtype])


def begin(recipe: Recipe, images: Images, model: int, start: Start | None = None) -> nn.Module:
    """Row `model` before its first step, in the recipe's dtype: freshly initialised, or with the
    weights that `start` gives.
    """
    module = build(recipe, images, model).to(DTYPES[recipe.dtype])
    if start is not None:
        try:
            state = start(model)
            if hasattr(module, "adopt") and state.keys() != module.state_dict().keys():
                state = module.adopt(state)
            module.load_state_dict(state)
        except RuntimeError as error:
            details = " ".join(str(error).split("\n\t")[1:2])[:160].strip()
            reason = details or str(error).splitlines()[0]
            raise ValueError(
                f"model {model} of pool {recipe.parent[:12]} does not fit {recipe.model} with"
                f" {recipe.model_args} ({reason}): take the parent's model and model_args, or"
                " convert_pool for a spiking network"
            ) from error
    return module


def build(recipe: Recipe, images: Images, model: int) -> nn.Module:
    """Row `model` of the pool, freshly initialised; of a derived pool without the seed where all it
    has is its parent's.
    """
    fresh = recipe.parent is None or recipe.model == "replaced"
    _, channels, height, width = images.x.shape
    module = models.build(
        recipe.model,
        recipe.model_args,
        in_channels=channels,
        num_classes=len(images.classes),
        size=(height, width),
        seed=mix(recipe.seed if fresh else None, model, "init"),
        mean=images.mean,
        std=images.std,
        frames=images.frames,
    )
    return defenses.adapt(module, recipe.defense, recipe.defense_args)


def augmentation(
    plan: Plan, model: int, epoch: int, size: int, purpose: str = "augment"
) -> dict[str, Tensor]:
    """One epoch's augmentation draws of a row, each tensor with `size` entries along its first
    axis; empty without augmentation.
    """
    recipe = plan.recipe
    if recipe.augment == "none":
        return {}
    height, width = plan.images.x.shape[2:]
    draw = generator(recipe.seed, model, epoch, purpose)
    return data.augment_draws(recipe.augment, size, height, width, draw)


def stack_draws(
    draws: list[dict[str, Tensor]], device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """The draws of several models along a leading model axis, on a device."""
    stacked = {}
    for name in draws[0]:
        of_models = [of_model[name] for of_model in draws]
        stacked[name] = torch.stack(of_models).to(device)
    return stacked


def saved_bytes(plan: Plan) -> int:
    """Bytes of activations that one model keeps for the backward pass of one batch."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    group = Group(plan._replace(stacked=False, channels_last=False), [0])
    batch = slice(plan.recipe.batch)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        random_state_kept(plan.device),
    ):
        group.losses(group.shown(batch, {})[None], plan.images.y[None, batch])
    return sum(kept.values())
