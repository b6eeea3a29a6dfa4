"""Trials before anything is written: whether a recipe can be trained at all, stacked, or compiled.

Each trial takes a step by the real code and compares the result with the expected one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mia_nb import data, defenses, models
from mia_nb.defenses import dp_sgd
from mia_nb.models import neural_de
from mia_nb.training.batches import plain_images
from mia_nb.training.clipped import ClippedGroup
from mia_nb.training.compiled import CompiledGroup, forget, reason
from mia_nb.training.loop import OPTIMIZERS, Group
from mia_nb.training.losses import PER_STEP
from mia_nb.training.plans import DTYPES, Parent, Plan, begin, check_batch, expected_members
from mia_nb.training.seeds import random_state_kept
from mia_nb.training.stacking import RANDOM, keeps_gradients
from mia_nb.types import Images, Recipe

# the model_args in which a fine-tuned spiking pool may differ from its parent
MAY_CHANGE = (
    "timesteps",
    "readout",
    "encode",
    "encode_args",
    "surrogate",
    "surrogate_args",
    "learn",
    "fold",
)
# defenses that draw no random numbers and are the same in every epoch
COMPILABLE = (None, "l1", "l2", "label_smoothing", "early_stopping")
EXACT = 2**-10  # a learning rate that float32 holds exactly


def check(plan: Plan, set_aside: int, parent: Parent | None = None) -> None:
    """ValueError of one line for a plan that cannot be trained; nothing is written.

    Parameters:
        plan: of the training, on the CPU.
        set_aside: number of images of the population.
        parent: the pool that the training starts from.
    """
    recipe = plan.recipe
    images = plan.images
    _check_defense(recipe, set_aside, parent)
    _check_spiking(recipe, parent)
    _check_batch(plan)
    if images.frames > 1 and "autoaugment" in recipe.augment:
        raise ValueError(
            f"augment={recipe.augment!r}: AutoAugment changes colours, and these are"
            f" {images.frames} frames of events; take another augmentation"
        )
    if recipe.augment != "none":
        data.augment_draws(recipe.augment, 1, *images.x.shape[2:], torch.Generator())
    _try_optimizer(recipe)
    module = models.check_width(begin(recipe, images, 0, plan.start), images)
    models.check_training(module, images)
    neural_de.check_noise(module)
    if recipe.loss in PER_STEP and models.timesteps(module) is None:
        raise ValueError(
            f"loss={recipe.loss!r} wants logits for each time step, and {recipe.model} is no"
            ' spiking network: take loss="cross_entropy", or model="snn"'
        )
    if recipe.defense == "dp_sgd":
        _try_clipping(plan._replace(start=None))
    if parent is not None:
        _check_outputs(module, recipe, parent, images)


def _check_defense(recipe: Recipe, set_aside: int, parent: Parent | None) -> None:
    """ValueError for a defense that does not fit the recipe, the number of images set aside, or the
    parent's defense.
    """
    if recipe.defense is None:
        return
    if recipe.defense == "stored":
        raise ValueError(
            "defense stored wants a network that was trained on public images: take"
            " training.train_private"
        )
    defense = defenses.find(recipe.defense)
    wanted = recipe.defense_args.get("held_out", 0)
    if defense.held_out and not 1 <= wanted <= set_aside:
        raise ValueError(
            f"held_out={wanted} of {set_aside} images set aside: defense {recipe.defense}"
            " looks at images that are no members and no non-members; take population=1000, say,"
            " and defense_args={'held_out': 500}"
        )
    if defense.logits and recipe.loss != "cross_entropy":
        raise ValueError(
            f"defense {recipe.defense} changes cross_entropy, and loss={recipe.loss!r}: take one of"
            " the two"
        )
    if recipe.defense == "dp_sgd":
        before = None if parent is None else parent.recipe.defense
        dp_sgd.check_recipe(recipe.defense_args, recipe, before)


def _check_spiking(recipe: Recipe, parent: Parent | None) -> None:
    """ValueError for a spiking network whose thresholds were fitted for other neurons, or never
    fitted.
    """
    if recipe.model != "snn":
        return
    if parent is None:
        if recipe.model_args.get("calibration"):
            raise ValueError(
                "model_args names a calibration, but nothing was calibrated: thresholds come from"
                " convert_pool"
            )
        return
    if parent.recipe.model != "snn":
        return
    args = recipe.model_args
    before = parent.recipe.model_args
    names = (args.keys() | before.keys()) - set(MAY_CHANGE)
    differing = sorted(name for name in names if args.get(name) != before.get(name))
    if differing:
        raise ValueError(
            f"model_args differ from the parent's in {', '.join(differing)}: its thresholds would"
            " serve other neurons; start from {**parent.recipe.model_args, ...} and change"
            f" {', '.join(MAY_CHANGE)} at most"
        )


def _check_batch(plan: Plan) -> None:
    """ValueError if a model has fewer training samples than a batch, or fewer than 2."""
    smallest = int(plan.member.sum(1).min())
    if smallest < 2:
        raise ValueError(
            f"a model has {smallest} training sample{'' if smallest == 1 else 's'}; wanted 2 or"
            " more: take more data"
        )
    check_batch(plan.recipe, expected_members(plan.recipe, plan.member))


def _try_optimizer(recipe: Recipe) -> None:
    """ValueError for arguments that the recipe's optimiser does not take."""
    optimizer = OPTIMIZERS[recipe.optimizer][0]
    weights = [torch.zeros(1, requires_grad=True)]
    try:
        optimizer(weights, lr=recipe.lr, **recipe.optimizer_args)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"optimizer_args={recipe.optimizer_args} do not fit {recipe.optimizer}: {error}"
        ) from error


def _try_clipping(plan: Plan) -> None:
    """Refuse a network whose clipping would bound nothing, or whose buffers learn of its members
    without clipping.

    Gradients per sample of three images are compared with those of single losses, in float64 at
    weights of which none is 0, and buffers before with those after; then one clipped step is taken.
    """
    group = ClippedGroup(plan._replace(recipe=plan.recipe.replace(dtype="float64")), [0])
    x = plain_images(group.plan, torch.arange(3))
    y = plan.images.y[:3]
    module = group.clipped.hooked.to_standard_module()
    dp_sgd.stir(group.params)

    def losses_of(network: nn.Module) -> Tensor:
        torch.manual_seed(0)
        return group.criterion(models.main_logits(network(x)), y)

    with random_state_kept(plan.device):
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        mixed = dp_sgd.mismatch(module, losses_of, group.params)
        changed = dp_sgd.rewritten(module, before)
        if mixed:
            raise ValueError(
                f"{plan.recipe.model} has no gradients per sample at {mixed}: samples mix in a"
                " batch, or its layer does not use it alone, so DP-SGD would clip something else"
            )
        if changed:
            raise ValueError(
                f"{plan.recipe.model}: buffer {changed} is computed from members without clipping"
                " and noise, as a forward pass of training changes it; take a layer that keeps no"
                " statistics"
            )
        clipped = ClippedGroup(plan, [0])
        clipped.seed_noise(0)
        copies = [0] * clipped.multiplicity
        clipped.step(x[None, copies].to(DTYPES[plan.recipe.dtype]), y[None, copies], 1e-6)


def _check_outputs(module: nn.Module, recipe: Recipe, parent: Parent, images: Images) -> None:
    """ValueError if a network with its parent's weights computes something else than its parent."""
    before = parent.recipe
    if (recipe.model, recipe.model_args, recipe.dtype) != (
        before.model,
        before.model_args,
        before.dtype,
    ):
        return
    outputs = _outputs(module, images)
    of_parent = _outputs(parent.model(0), images)
    if not torch.allclose(outputs, of_parent, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            f"{recipe.model} with the parent's weights gives other outputs than the parent: it"
            " computes with what its state dictionary does not hold; register that as persistent"
            " buffers"
        )


def _outputs(module: nn.Module, images: Images) -> Tensor:
    """Logits (2, K) of the first two images, with the same random draws in every call."""
    dtype = next(module.parameters(), torch.zeros(())).dtype
    x = data.normalise(images.x[:2].cpu(), images.mean, images.std, dtype)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return module.eval()(x).double()


def why_not_stacked(plan: Plan) -> str | None:
    """One line that says why this recipe cannot be trained stacked, or None.

    Two models take one step in float64, together and one by one; losses, weights and buffers must
    agree to 1e-10. This finds what stacking would change silently: buffers that a forward replaces,
    random draws, control flow that depends on values.
    """
    if plan.recipe.schedule == "plateau":
        return "the plateau schedule needs a learning rate per model"
    if plan.recipe.defense == "dp_sgd":
        return "gradients per sample are taken of one model at a time"
    rows = [0, min(1, len(plan.member) - 1)]
    trial = plan._replace(recipe=plan.recipe.replace(dtype="float64"), channels_last=False)
    with random_state_kept(plan.device):
        alone = [Group(trial._replace(stacked=False), [row]) for row in rows]
        try:
            together = Group(trial._replace(stacked=True), rows)
            return _difference(together, alone, 1, 8, "stacked")
        except Exception as error:  # anything that vmap does not support
            return RANDOM if "random" in str(error) else models.first_line(error)


def why_not_compiled(plan: Plan) -> str | None:
    """One line that says why this plan's step cannot be compiled, or None.

    Two steps in float64, compiled and eager, must give the same losses, weights and buffers to
    1e-10. Compiling can lose gradients silently (those of a custom autograd function under vmap, in
    torch 2.13), and a forward may depend on being compiled. The trial uses other models than the
    one whose module was compiled.
    """
    recipe = plan.recipe
    if recipe.defense not in COMPILABLE:
        return f"the defense {recipe.defense} draws numbers, or is another one from epoch to epoch"
    builder = models.architecture(recipe.model, recipe.model_args)
    if ":" in builder:
        forget(builder)
    trial = plan._replace(recipe=recipe.replace(dtype="float64"), compiled=True)
    last = min(2, len(plan.member)) - 1
    rows = [0, last] if plan.stacked else [last]
    try:
        with random_state_kept(plan.device):
            fast = CompiledGroup(trial, rows)
            if plan.device.type == "cpu" and not keeps_gradients(fast.module):
                return "a CPU may lose gradients of its strided 1 x 1 convolutions of < 8 channels"
            eager = Group(trial._replace(compiled=False), rows)
            return _difference(fast, [eager], 2, recipe.batch, "compiled")
    except Exception as error:  # anything that the compiler does not support
        return reason(error)


def _difference(fast: Group, plain: list[Group], steps: int, batch: int, kind: str) -> str | None:
    """How the steps of a group differ from those of plain ones, in one line; None if they agree.

    Parameters:
        fast: the group, in float64.
        plain: eager groups with the same models.
        steps: number of steps.
        batch: images per model and step.
        kind: the word for the group's steps.
    """

    def losses_of(group: Group, index: Tensor) -> Tensor:
        group.seed_noise(0)
        x = plain_images(group.plan, index)
        return group.step(x, group.plan.images.y[index], EXACT)

    num_models = len(fast.ids)
    samples = len(fast.plan.images.y)
    sizes = [len(group.ids) for group in plain]
    for step in range(steps):
        index = (torch.arange(num_models * batch) + step).remainder(samples)
        index = index.view(num_models, batch)
        parts = zip(plain, index.split(sizes), strict=True)
        expected = torch.cat([losses_of(group, part) for group, part in parts])
        if not _equal(losses_of(fast, index), expected):
            return f"the losses of its {kind} step {step + 1} differ from those of a plain one"
    weights = [group.weights(slot) for group in plain for slot in range(len(group.ids))]
    for slot, expected in enumerate(weights):
        for name, tensor in fast.weights(slot).items():
            if not _equal(tensor, expected[name]):
                return f"its {kind} step changes {name} differently from a plain one"
    return None


def _equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors in float64 are equal to ten digits."""
    return torch.allclose(first, second, rtol=1e-10, atol=1e-10, equal_nan=True)
