"""The training loop: a `Group` trains the models of some rows of a plan, epoch by epoch.

A group of one model is an ordinary module; the tensors of several are stacked along a leading model
axis, and one forward pass serves all.

In shapes, G is the number of models of a group, B of images in a batch, T of time steps, K of
classes.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from mia_nb import defenses, models
from mia_nb.models import fast
from mia_nb.training.batches import (
    alternate,
    augmentations,
    augmented_images,
    epoch_order,
    plain_images,
    split_draws,
    stack_draws,
)
from mia_nb.training.losses import LOSSES, PER_STEP
from mia_nb.training.muon import Muon
from mia_nb.training.plans import DTYPES, Plan, begin
from mia_nb.training.schedules import learning_rate
from mia_nb.training.seeds import generator, mix, random_state_kept
from mia_nb.training.stacking import Stacking, keeps_gradients

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
WHITENING_IMAGES = 5000  # training images of a model from which its first layer is computed


class Group:
    """The models of some rows of a plan in training: parameters, buffers, optimiser and defense.

    Call `epoch` once per epoch: it takes its batches in `order`, calls `step` for each, and that
    computes `losses`. `state` and `load` serve to resume a training, and `weights` gives a finished
    model.

    If stacked, every tensor has a leading model axis and the forward runs under vmap. The losses
    are averaged per model and summed over models, so that each model gets its own gradient and
    elementwise optimisers need no change.
    """

    def __init__(self, plan: Plan, ids: list[int]) -> None:
        """ids: numbers of the rows."""
        self.ids = ids
        recipe = plan.recipe
        modules = []
        for model in ids:
            module = begin(recipe, plan.images, model, plan.start)
            modules.append(module.to(plan.device).train())
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
            # a parameter that is frozen in the modules stays frozen in the stack
            self.params = {
                name: p.detach().requires_grad_(p.requires_grad) for name, p in params.items()
            }
        else:
            self.params = dict(self.module.named_parameters())
        self.optimizer = self.new_optimizer()
        self.generators: list[torch.Generator] = []
        self.criterion = LOSSES[recipe.loss]
        self.defense = defenses.Defense({})
        if recipe.defense is not None:
            self.defense = defenses.find(recipe.defense)
        self.objective = self.new_objective()
        self.trained = [name for name, p in self.params.items() if p.requires_grad]
        # Early stopping: each model's lowest loss on held-out images, and after how many epochs.
        self.best = torch.full((len(ids),), math.inf)
        self.stopped = torch.zeros(len(ids), dtype=torch.int64)
        # The weights that `weights` gives instead of the last ones: those of the best epoch, or
        # under dp_sgd an average.
        self.kept: dict[str, Tensor] = {}

    def new_optimizer(self) -> torch.optim.Optimizer:
        """The recipe's optimiser for this group's parameters."""
        recipe = self.plan.recipe
        kind, defaults = OPTIMIZERS[recipe.optimizer]
        options = defaults | recipe.optimizer_args
        if kind is Muon:
            options["stacked"] = self.plan.stacked
        return kind(self.params.values(), lr=recipe.lr, **options)

    def new_objective(self) -> Callable:
        """The defense's objective with those of the defense's options that it takes: others are for
        its draws, its network or its held-out images.
        """
        objective = self.defense.objective
        options = {}
        for name, value in self.plan.recipe.defense_args.items():
            if name in inspect.signature(objective).parameters:
                options[name] = value
        return partial(objective, **options)

    def whiten(self, module: nn.Module, model: int) -> None:
        """Compute the first layer of a fresh network from its own training images, if the network
        has a whitening layer.
        """
        if not fast.whitened(module):
            return
        members = torch.from_numpy(np.flatnonzero(self.plan.member[model]))
        draw = generator(self.plan.recipe.seed, model, "whitening")
        chosen = members[torch.randperm(len(members), generator=draw)[:WHITENING_IMAGES]]
        fast.whiten(module, plain_images(self.plan, chosen.to(self.plan.device)))

    def epoch(self, epoch: int, history: list[list[float]]) -> tuple[Tensor, Tensor]:
        """Train one epoch.

        Parameters:
            epoch: its number, from 0.
            history: for each earlier epoch the mean training losses of the group's models.

        Returns:
            numbers of the images in order (G, samples), and their losses, both on the CPU.
        """
        plan = self.plan
        recipe = plan.recipe
        order, sizes = self.order(epoch)
        augments = augmentations(plan, self.ids, epoch, order.shape[1])
        alternate(plan, self.ids, augments, order, epoch)
        order_on_device = order.to(plan.device)
        steps = zip(
            order_on_device.split(sizes, 1),
            split_draws(augments, sizes),
            self.draws(epoch, plan.steps, plan.images.y[order_on_device]),
            strict=True,
        )
        # The first model's losses serve the plateau schedule, which is never stacked.
        past = [of_models[0] for of_models in history]
        losses = []
        with random_state_kept(plan.device):
            self.seed_noise(epoch)
            for step, (index, augment, draws) in enumerate(steps):
                x = augmented_images(plan, index, augment)
                y = plan.images.y[index]
                share_done = (epoch + step / plan.steps) / recipe.epochs
                lr = learning_rate(recipe, share_done, past)
                losses.append(self.step(x, y, lr, epoch=epoch, draws=draws))
            if recipe.defense == "early_stopping":
                self.keep_best(epoch)
        return order, torch.cat(losses, 1).cpu()

    def order(self, epoch: int) -> tuple[Tensor, list[int]]:
        """The image numbers (G, samples) of an epoch in order, and the batch size of each step."""
        order = torch.stack([epoch_order(self.plan, m, epoch) for m in self.ids])
        return order, [self.plan.recipe.batch] * self.plan.steps

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

    def losses(
        self,
        x: Tensor,
        y: Tensor,
        *,
        epoch: int = 0,
        draws: dict[str, Tensor] | None = None,
        objective: Callable | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Per-sample losses (G, B), and the value that each model minimises (G,).

        Parameters:
            x: normalised images (G, B, C, H, W).
            y: labels (G, B).
            epoch: number of the epoch, on which a defense's objective may depend.
            draws: the defense's random numbers, each (G, ...); None: those of a first step.
            objective: the objective that is minimised; None: the defense's.
        """
        if draws is None:
            draws = next(self.draws(epoch, 1, y))
        if objective is None:
            objective = self.objective
        losses_of_model = partial(
            model_losses, self.plan, self.module, objective, self.trained, epoch
        )
        if not self.plan.stacked:
            draws_of_model = {name: value[0] for name, value in draws.items()}
            losses, minimised = losses_of_model(self.params, None, x[0], y[0], draws_of_model)
            return losses[None], minimised[None]
        # Channels-last order serves a CPU, which must compute right gradients in it. It does for
        # several models: their convolutions are grouped.
        on_cpu = self.plan.device.type == "cpu"
        channels_last = on_cpu and (len(self.ids) > 1 or keeps_gradients(self.module))
        with Stacking(self.generators, channels_last=channels_last):
            # Random numbers that `Stacking` does not draw are refused: one draw for the whole group
            # would make a model depend on its companions.
            losses_of_group = vmap(losses_of_model, randomness="error")
            return losses_of_group(self.params, self.buffers, x, y, draws)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The present buffers: a forward may put another tensor in a buffer's place."""
        return self.stacked_buffers if self.plan.stacked else dict(self.module.named_buffers())

    def seed_noise(self, epoch: int, purpose: str = "noise") -> None:
        """Seed the generators of an epoch's noise.

        A plain model draws from torch's global generator, a stacked one from its own generator;
        both draw the same numbers.
        """
        seeds = [mix(self.plan.recipe.seed, m, epoch, purpose) for m in self.ids]
        models.seed_global_generator(seeds[0], self.plan.device)
        self.generators = [torch.Generator(self.plan.device).manual_seed(s) for s in seeds]

    def draws(self, epoch: int, steps: int, y: Tensor) -> Iterator[dict[str, Tensor]]:
        """The defense's random numbers for one step of an epoch after another.

        y (G, steps * batch): labels of the epoch's images. Each number of a step is (G, ...). Where
        the defense draws held-out images, "x" and "y" are these images, normalised and augmented,
        and their labels.
        """
        if self.defense.draws is None:
            return itertools.repeat({}, steps)
        numbers = self.draw_numbers(epoch, y.unflatten(1, (steps, -1)).cpu().numpy())
        augments: dict[str, Tensor] = {}
        if "held_out" in numbers:
            drawn = augmentations(self.plan, self.ids, epoch, y.shape[1], "held_out augment")
            augments = {name: value.unflatten(1, (steps, -1)) for name, value in drawn.items()}
        return (self.draws_of_step(numbers, augments, step) for step in range(steps))

    def draw_numbers(self, epoch: int, labels: np.ndarray) -> dict[str, Tensor]:
        """The numbers (G, steps, ...) that the defense draws for an epoch, on the device.

        labels (G, steps, batch): of the epoch's images.
        """
        plan = self.plan
        recipe = plan.recipe
        held_out_labels = plan.images.y.cpu().numpy()[plan.held_out]
        of_models = []
        for model, model_labels in zip(self.ids, labels, strict=True):
            seed = mix(recipe.seed, model, epoch, "defense")
            of_models.append(
                self.defense.draws(
                    seed, plan.held_out, held_out_labels, model_labels, **recipe.defense_args
                )
            )
        # the draws of all steps are copied to the device at once: each copy would wait for it
        return {name: value.to(plan.device) for name, value in stack_draws(of_models).items()}

    def draws_of_step(
        self, numbers: dict[str, Tensor], augments: dict[str, Tensor], step: int
    ) -> dict[str, Tensor]:
        """One step's part of the numbers that `draw_numbers` gave, with the held-out images that
        they name, augmented by draws (G, steps, batch, ...).
        """
        of_step = {name: value[:, step] for name, value in numbers.items()}
        if "held_out" not in of_step:
            return of_step
        index = of_step.pop("held_out")
        augment = {name: value[:, step] for name, value in augments.items()}
        x = augmented_images(self.plan, index, augment)
        return {"x": x, "y": self.plan.images.y[index]} | of_step

    def keep_best(self, epoch: int) -> None:
        """Early stopping: each model keeps its weights of the epoch with the lowest mean loss on
        the held-out images.
        """
        loss = self.held_out_loss(epoch)
        better = loss < self.best
        self.best = torch.where(better, loss, self.best)
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

    @torch.no_grad()
    def held_out_loss(self, epoch: int) -> Tensor:
        """(G,) mean losses on the held-out images after an epoch, without the defense, on the
        CPU.
        """
        total = torch.zeros(len(self.ids), device=self.plan.device)
        self.seed_noise(epoch, "held_out")
        self.module.eval()
        for index in torch.from_numpy(self.plan.held_out).to(self.plan.device).split(256):
            x = plain_images(self.plan, index)
            y = self.plan.images.y[index]
            losses, _ = self.losses(
                x.expand(len(self.ids), *x.shape),
                y.expand(len(self.ids), -1),
                objective=defenses.objectives.plain,
                draws={},
            )
            total += losses.sum(1)
        self.module.train()
        return total.cpu() / len(self.plan.held_out)

    def state(self) -> dict[str, Tensor]:
        """The state from which a group is resumed, in one flat dictionary: `p.*` parameters, `b.*`
        buffers, `o.*` the optimiser's state, `k.*` the weights that are kept.
        """
        flat = {"best": self.best, "stopped": self.stopped}
        for name, parameter in self.params.items():
            flat[f"p.{name}"] = parameter.detach()
            for entry, value in self.optimizer.state[parameter].items():
                if value is not None:
                    flat[f"o.{name}.{entry}"] = torch.as_tensor(value)
        for kind, tensors in {"b": self.buffers, "k": self.kept}.items():
            for name, tensor in tensors.items():
                flat[f"{kind}.{name}"] = tensor
        return flat

    def load(self, flat: dict[str, Tensor]) -> None:
        """Resume from a dictionary that `state` gave."""
        self.best = flat.pop("best", self.best)
        self.stopped = flat.pop("stopped", self.stopped)
        buffers = self.buffers
        for key, value in flat.items():
            kind, _, name = key.partition(".")
            if kind == "p":
                self.params[name].data.copy_(value)
            elif kind == "b":
                buffers[name].copy_(value)
            elif kind == "o":
                self.load_optimizer_entry(*name.rsplit(".", 1), value)
            else:
                self.kept[name] = value.to(self.plan.device)

    def load_optimizer_entry(self, name: str, entry: str, value: Tensor) -> None:
        """Put an entry of the optimiser's state, say momentum_buffer, back to its parameter."""
        parameter = self.params[name]
        # Adam's count of steps is one number, all else has the shape of the weight
        if entry == "step":
            value = value.to(parameter.device)
        else:
            value = torch.empty_like(parameter, requires_grad=False).copy_(value)
        self.optimizer.state[parameter][entry] = value

    def weights(self, slot: int) -> dict[str, Tensor]:
        """State dictionary of the model in this place of the group, on the CPU.

        With early stopping it is that of the best epoch so far, under dp_sgd the average if one is
        kept.
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
        objective: computes both from a `defenses.objectives.Step`.
        trained: names of the parameters that are trained.
        epoch: number of the epoch, on which the objective may depend.
        params, buffers: tensors that replace the module's; with buffers None the module is called
            as it is.
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
    step = defenses.objectives.Step(forward, criterion, x, y, epoch, learning, draws)
    return objective(step)


def logits_of(plan: Plan, call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Logits of images, in the recipe's precision."""
    dtype = plan.recipe.dtype
    if plan.channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.autocast(plan.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        logits = models.main_logits(call(x))
    return logits.to(DTYPES[dtype])
