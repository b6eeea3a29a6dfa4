"""Plain models of one pool in one CUDA graph, each on a stream of its own: where one small network
leaves most of a GPU idle, several run side by side, and a step of all of them is one launch.

The step is the plain one, model after model, with the learning rate in a tensor. Without a graph,
on any device, the same step runs as it is. Noise comes from the device's own generator, which a
graph draws on anew at each replay, in the order of the models: one model in a graph has the noise
of a plain one, the others are equal in law. Sources: PyTorch's notes on CUDA semantics,
"Whole-network capture", and its Note [CUDA Graph-safe RNG states] (graphed draws are bitwise those
of eager code); NVIDIA's guide to CUDA graphs in PyTorch. Caveat: fused optimisers read a
learning rate tensor in float32, also of float64 weights.
"""

import contextlib
import math
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from mia_nb.checks import first_of
from mia_nb.defenses import Defense
from mia_nb.training.compiled import reason
from mia_nb.training.loop import Group, Plan, mismatch, random_state_kept, short_of_memory

WARM_UP = 3  # steps before a capture, as PyTorch's notes have it
TRIAL = 32  # images of a step that is compared in float64, at most
# defenses whose step is the same in every epoch
SAME = (None, "l1", "l2", "label_smoothing", "dropout")


@lru_cache
def streams(device: torch.device, count: int) -> tuple[torch.cuda.Stream, ...]:
    """The same streams for every group: the allocator keeps memory for each that there ever was."""
    return tuple(torch.cuda.Stream(device) for _ in range(count))


@contextlib.contextmanager
def never_waiting() -> Iterator[None]:
    """On a GPU, what waits for it inside is an error that says so; in a capture it would be one
    that says nothing.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # that this is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        raise RuntimeError(
            "its step waits for the GPU (.item(), a branch on a value), which a graph cannot"
        ) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


class GraphGroup(Group):
    """Plain models `ids` of a plan that take their steps together; captured at the first step,
    where `plan.graph` says so.
    """

    def __init__(self, plan: Plan, ids: list[int]):
        self.plan, self.ids, self.defense, self.generators = plan, ids, Defense({}), []
        self.best, self.stopped, self.kept = (
            torch.full((len(ids),), math.inf),
            torch.zeros(len(ids), dtype=torch.int64),
            {},
        )
        recipe, size, on_gpu = plan.recipe, plan.images.x.shape[1:], plan.device.type == "cuda"
        self.each = [
            Group(plan._replace(stacked=False, compiled=False, graph=False), [m]) for m in ids
        ]
        self.rate = torch.full((), recipe.lr, dtype=torch.float32, device=plan.device)
        capturable = {"capturable": True} if recipe.optimizer == "adam" and on_gpu else {}
        for one in self.each:
            one.optimizer = one.new_optimizer(self.rate, **capturable)
        weight = next(iter(self.each[0].params.values()))
        self.x = torch.zeros(
            (len(ids), recipe.batch, *size), dtype=weight.dtype, device=plan.device
        )
        self.y = torch.zeros((len(ids), recipe.batch), dtype=torch.int64, device=plan.device)
        # one for each stream: none writes into memory of another
        self.out = [torch.empty_like(self.y[0], dtype=weight.dtype) for _ in ids]
        self.streams = streams(plan.device, len(ids) + 1)[:-1] if on_gpu else [None] * len(ids)
        self.begun, self.graph = False, None

    def step(
        self, x: Tensor, y: Tensor, lr: float, *, epoch: int = 0, draws: dict | None = None
    ) -> Tensor:
        """One optimiser step of every model; the losses (G, B)."""
        self.x.copy_(x)
        self.y.copy_(y)
        self.rate.fill_(lr)
        if not self.begun:
            self.begun, self.graph = True, self.capture_or_not() if self.plan.graph else None
        self.graph.replay() if self.graph else self.run()
        return torch.stack(self.out)

    def run(self) -> None:
        """Every model's step on its own stream, which leaves the current one and joins it again,
        whatever happens.
        """
        here = torch.cuda.current_stream(self.plan.device) if self.streams[0] else None
        forked = []
        try:
            for slot, (one, stream) in enumerate(zip(self.each, self.streams, strict=True)):
                if stream:
                    stream.wait_stream(here)
                    forked.append(stream)
                with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
                    self.out[slot].copy_(
                        one.descend(self.x[slot, None], self.y[slot, None], draws={})[0]
                    )
        finally:
            for stream in forked:
                # of a capture that is invalid by now: the first error says more
                with contextlib.suppress(RuntimeError):
                    here.wait_stream(stream)

    def capture_or_not(self) -> torch.cuda.CUDAGraph | None:
        """The graph; None, with one line, where it cannot be captured.

        A lack of memory is for the caller to mend.
        """
        try:
            return self.capture()
        except Exception as error:
            if short_of_memory(error):
                raise
            print(f"training without a CUDA graph: {reason(error)}", file=sys.stderr)
            return None

    def capture(self) -> torch.cuda.CUDAGraph:
        """A graph of `run`; nothing is trained by this, also where it fails."""
        device, failed = self.plan.device, None
        *_, origin = streams(device, len(self.ids) + 1)
        origin.wait_stream(torch.cuda.current_stream(device))
        # and on the models' own streams, which the capture uses again
        with torch.cuda.stream(origin):
            self.warm_up()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        # a capture that fails to end would leave its stream the current one; and its error would
        # hide the one before it
        with self.untouched(), torch.cuda.stream(origin):
            try:
                with torch.cuda.graph(graph, stream=origin, capture_error_mode="thread_local"):
                    try:
                        self.run()
                    except Exception as error:
                        failed = error
                        raise
            except Exception as error:
                raise (failed or error) from None
            finally:
                failed = None  # its traceback holds tensors, and this frame
        return graph

    def warm_up(self) -> None:
        """Steps that leave no trace: libraries choose their kernels, the optimisers make their
        state, all is put back.
        """
        with self.untouched():
            for _ in range(WARM_UP - 1):
                self.run()
            on_gpu = self.plan.device.type == "cuda"
            with never_waiting() if on_gpu else contextlib.nullcontext():
                self.run()

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Steps inside leave no trace, also those that fail: weights, buffers and random generators
        are put back, and so is the optimisers' state.

        Of that, what was not there before becomes 0, from which the first step comes out as from
        none.
        """
        # of weights that are in a graph's memory, or that a graph must not read
        torch.clear_autocast_cache()
        before = [(tensor, tensor.clone()) for tensor in self.tensors()]
        known = {id(tensor) for tensor in self.memories()}
        owners = [owner._buffers for one in self.each for owner in one.module.modules()]
        places = [(owner, name, tensor) for owner in owners for name, tensor in owner.items()]
        try:
            with random_state_kept(self.plan.device):
                yield
        finally:
            torch.clear_autocast_cache()
            if self.plan.device.type == "cuda":
                torch.cuda.synchronize(self.plan.device)
            for owner, name, tensor in places:  # a forward may have put another one there
                owner[name] = tensor
            for tensor, value in before:
                tensor.copy_(value)
            for tensor in self.memories():
                if id(tensor) not in known:
                    tensor.zero_()

    def tensors(self) -> list[Tensor]:
        """All that a step changes: weights, buffers, and then the optimisers' state where there is
        some.
        """
        return [
            t.detach() for one in self.each for t in (*one.params.values(), *one.buffers.values())
        ] + self.memories()

    def memories(self) -> list[Tensor]:
        """The optimisers' state."""
        entries = (one.optimizer.state.get(p, {}) for one in self.each for p in one.params.values())
        return [value for entry in entries for value in entry.values() if isinstance(value, Tensor)]

    def state(self) -> dict[str, Tensor]:
        """What a resumed group needs: that of each model, behind its place in the group."""
        return {
            f"{slot}.{name}": tensor
            for slot, one in enumerate(self.each)
            for name, tensor in one.state().items()
        }

    def load(self, flat: dict[str, Tensor]) -> None:
        """Go on from what `state` gave; before the first step."""
        for slot, one in enumerate(self.each):
            start = f"{slot}."
            one.load(
                {
                    name.removeprefix(start): tensor
                    for name, tensor in flat.items()
                    if name.startswith(start)
                }
            )

    def weights(self, slot: int) -> dict[str, Tensor]:
        """State dictionary of one model, on the CPU."""
        return self.each[slot].weights(0)


def why_no_graph(plan: Plan, models: int) -> str | None:
    """One line that says why a plan's models cannot be trained in a CUDA graph, or None.

    Three steps of two models in float64 must give what eager plain ones give, weights, buffers and
    losses to 1e-10, with the noise in the graph's order; and then a capture of all of them must
    come about in the recipe's own precision.
    """
    recipe = plan.recipe
    obstacles = {
        f"CUDA graphs need a GPU, and this is {plan.device}": plan.device.type != "cuda",
        "the plateau schedule needs a learning rate per model": (
            recipe.schedule == "plateau" and models > 1
        ),
        f"the defense {recipe.defense} is not the same step every time": recipe.defense not in SAME,
        "dampening makes an optimiser's first step another one than those after it": (
            recipe.optimizer_args.get("dampening")
        ),
    }
    if reason_why := first_of(obstacles):
        return reason_why
    plan, models, alike = plan._replace(graph=True), min(models, len(plan.member)), False
    try:
        reason_why = difference(plan, min(models, 2))
        if (alike := reason_why is None) and recipe.dtype != "float64":
            with random_state_kept(plan.device):
                GraphGroup(plan, list(range(models))).capture()
        return reason_why
    except Exception as error:  # whatever a capture does not support; training halves the models
        return None if alike and short_of_memory(error) else reason(error)


def difference(plan: Plan, models: int) -> str | None:
    """What three steps of a group change differently from eager plain ones in float64; None for
    nothing.
    """
    recipe = plan.recipe.replace(dtype="float64", batch=min(plan.recipe.batch, TRIAL))
    group = GraphGroup(plan._replace(recipe=recipe), list(range(models)))
    alone = [Group(group.plan._replace(graph=False), [m]) for m in group.ids]
    with random_state_kept(plan.device):
        group.begun, group.graph = True, group.capture() if plan.graph else None
        return mismatch(group, alone, 3, recipe.batch, "captured")
