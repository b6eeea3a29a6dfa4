"""Compiled training: one function (weights, buffers, images, labels) -> losses is compiled once
for many models.

The weights are inputs of that function, so that a second model of the same shapes needs no
compilation. Before any pool is trained this way, a compiled and an eager step in float64 are
compared, to find silent changes by the compiler.
"""

import re
import types
from collections.abc import Callable
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.func import vmap

from mia_nb import models, store
from mia_nb.training.loop import Group, model_losses
from mia_nb.training.plans import Plan, begin
from mia_nb.training.stacking import RANDOM

KEPT = 4  # compiled functions that a process keeps
OPTIONS = {"options": {"fallback_random": True}}  # random numbers as eager code draws them
# the fields of a recipe on which a forward, its loss and their gradients depend; a parent may give
# a network other constants
MATTERS = ("model", "model_args", "dtype", "loss", "batch", "defense", "defense_args", "parent")
# keys: digests of all that the function depends on besides its inputs
_FUNCTIONS: dict[str, Callable] = {}


class CompiledGroup(Group):
    """A group whose forward, loss and backward pass are compiled; all else is as in an eager
    group.
    """

    @cached_property
    def function(self) -> Callable:
        """(params, buffers, x, y) -> (per-sample losses, what is minimised), compiled."""
        return function_of(self)

    def losses(
        self,
        x: Tensor,
        y: Tensor,
        *,
        epoch: int = 0,
        draws: dict[str, Tensor] | None = None,
        objective: Callable | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As in an eager group. Losses for another objective, which need no gradient, are computed
        eagerly.
        """
        if objective is not None:
            return super().losses(x, y, epoch=epoch, draws=draws, objective=objective)
        if self.plan.stacked:
            return self.function(self.params, self.buffers, x, y)
        losses, minimised = self.function(self.params, self.buffers, x[0], y[0])
        return losses[None], minimised[None]


def function_of(group: Group) -> Callable:
    """The compiled function for all groups like this one, in other pools too."""
    plan = group.plan
    recipe = plan.recipe
    settings = {name: getattr(recipe, name) for name in MATTERS}
    settings["shapes"] = [
        list(plan.images.x.shape[1:]),
        plan.images.frames,
        len(plan.images.classes),
        len(group.ids) if plan.stacked else 1,
    ]
    settings["how"] = [
        str(plan.device),
        plan.stacked,
        plan.channels_last,
        torch.get_num_threads(),
        plan.images.mean,
        plan.images.std,
    ]
    key = store.content_key(settings, models.source(recipe.model, recipe.model_args))
    if key not in _FUNCTIONS:
        while len(_FUNCTIONS) >= KEPT:
            oldest = next(iter(_FUNCTIONS))
            del _FUNCTIONS[oldest]
        _FUNCTIONS[key] = compile_losses(plan, group.trained, group.objective)
    return _FUNCTIONS[key]


def compile_losses(plan: Plan, trained: list[str], objective: Callable) -> Callable:
    """A newly compiled function (params, buffers, x, y) -> (per-sample losses, what is minimised)
    for a plan.

    Its module is a copy of row 0, whose own weights are never used.
    """
    module = begin(plan.recipe, plan.images, 0, plan.start).to(plan.device).train()
    if plan.channels_last:
        module = module.to(memory_format=torch.channels_last)
    # the function outlives the pool, and must not keep its data in memory
    plan = plan._replace(images=None, member=None, start=None, held_out=None)

    def losses(
        params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        of_model = partial(model_losses, plan, module, objective, trained, 0)
        if plan.stacked:
            return vmap(of_model, randomness="error")(params, buffers, x, y, {})
        return of_model(params, buffers, x, y, {})

    # Dynamo counts recompilations by code object: with a copy, no other plan's count against this
    # one's limit
    copy = types.FunctionType(
        losses.__code__.replace(), losses.__globals__, losses.__name__, None, losses.__closure__
    )
    return torch.compile(copy, fullgraph=True, dynamic=False, **OPTIONS)


def compiler_error(error: Exception) -> str:
    """The error of a compilation in one line."""
    error = getattr(error, "inner_exception", None) or error
    if "random operation" in str(error):
        return RANDOM
    # where tracing met an error, Dynamo quotes it: ... got RuntimeError('...')
    quoted = re.search(r"got \w+\(['\"](.+?)['\"]\)", str(error))
    line = quoted[1] if quoted else models.first_line(error)
    return line.strip()[:200]
