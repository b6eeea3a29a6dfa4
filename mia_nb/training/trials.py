"""Trials before anything is written: whether a recipe can be trained, stacked, or compiled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mia_nb import data, defenses, models
from mia_nb.checks import quantity
from mia_nb.defenses import dp_sgd
from mia_nb.training.batches import plain_images
from mia_nb.training.clipped import ClippedGroup
from mia_nb.training.compiled import CompiledGroup, compiler_error
from mia_nb.training.loop import OPTIMIZERS, Group, model_losses
from mia_nb.training.losses import PER_STEP
from mia_nb.training.plans import Plan, begin, check_batch, expected_members
from mia_nb.training.seeds import random_state_kept
from mia_nb.training.stacking import RANDOM, keeps_gradients
from mia_nb.types import Recipe

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
TRIAL_BATCH = 8  # images in a trial step of a model
EXACT = 2**-10  # a learning rate that float32 holds exactly
CLOSE = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}


def check(plan: Plan, set_aside: int, parent: Recipe | None = None) -> None:
    """ValueError of one line for a plan that cannot be trained; nothing is written.

    Parameters:
        plan: of the training, on the CPU.
        set_aside: number of images of the population.
        parent: the recipe of the pool that the training starts from.
    """
    recipe = plan.recipe
    images = plan.images
    _check_defense(recipe, set_aside)
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
    if recipe.loss in PER_STEP and models.timesteps(module) is None:
        raise ValueError(
            f"loss={recipe.loss!r} wants logits for each time step, and {recipe.model} is no"
            ' spiking network: take loss="cross_entropy", or model="snn"'
        )
    if recipe.defense == "dp_sgd":
        _try_clipping(plan._replace(start=None))
    elif recipe.defense is not None:
        _try_objective(plan)


def _check_defense(recipe: Recipe, set_aside: int) -> None:
    """ValueError for a defense that does not fit the recipe or the number of images set aside."""
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
        dp_sgd.check_recipe(recipe)


def _check_spiking(recipe: Recipe, parent: Recipe | None) -> None:
    """ValueError for a spiking network whose thresholds were fitted for other neurons, or never
    fitted.
    """
    if recipe.model != "snn":
        return
    args = recipe.model_args
    if parent is None and args.get("calibration"):
        raise ValueError(
            "model_args names a calibration, but nothing was calibrated: thresholds come from"
            " convert_pool"
        )
    if parent is None or parent.model != "snn":
        return
    before = parent.model_args
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
            f"a model has {quantity(smallest, 'training sample')}; wanted 2 or more: take more data"
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
    """Take gradients per sample of two images, in float64. ValueError for a network where they are
    not those of single losses, so that clipping them would bound nothing, and for one with buffers
    that learn of members without clipping.
    """
    group = ClippedGroup(plan._replace(recipe=plan.recipe.replace(dtype="float64")), [0])
    x = plain_images(group.plan, slice(2))
    y = plan.images.y[:2]

    def losses_of(network: nn.Module) -> Tensor:
        models.seed_global_generator(0, plan.device)
        return group.criterion(models.main_logits(network(x)), y)

    before = {name: buffer.clone() for name, buffer in group.module.named_buffers()}
    with random_state_kept(plan.device):
        mixed = dp_sgd.mismatch(group.clipped.hooked, losses_of)
    if mixed:
        raise ValueError(
            f"{plan.recipe.model} has no gradients per sample at {mixed}: samples mix in a batch,"
            " or its layer does not use it alone, so DP-SGD would clip something else"
        )
    for name, buffer in group.module.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ValueError(
                f"{plan.recipe.model}: buffer {name} is computed from members without clipping and"
                " noise, as a forward pass of training changes it; take a layer that keeps no"
                " statistics"
            )


def _try_objective(plan: Plan) -> None:
    """ValueError for a defense whose objective gives something else than the losses of the samples
    and a number.
    """
    with random_state_kept(plan.device):
        group = Group(plan, [0])
        x = plain_images(plan, slice(2))
        y = plan.images.y[:2]
        draws = next(group.draws(0, 1, y[None]))
        draws_of_model = {name: value[0] for name, value in draws.items()}
        result = model_losses(
            plan,
            group.module,
            group.objective,
            group.trained,
            0,
            group.params,
            None,
            x,
            y,
            draws_of_model,
        )
    parts = result if isinstance(result, tuple) else (result,)
    shapes = [_shape(part) for part in parts]
    if shapes != [tuple(y.shape), ()]:
        raise ValueError(
            f"the objective of defense {plan.recipe.defense!r} gave {shapes} for two samples;"
            f" wanted a tuple of their losses {tuple(y.shape)} and one number, which is minimised"
        )


def _shape(value: object) -> tuple:
    """The shape of a tensor; of anything else the name of its type, in a tuple."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return (type(value).__name__,)


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
    second = min(1, len(plan.member) - 1)
    rows = [0, second]
    trial = plan._replace(recipe=plan.recipe.replace(dtype="float64"), channels_last=False)
    with random_state_kept(plan.device):
        alone = [Group(trial._replace(stacked=False), [row]) for row in rows]
        try:
            together = Group(trial._replace(stacked=True), rows)
            return _difference(together, alone, "stacked")
        except Exception as error:  # anything that vmap does not support
            return RANDOM if "random" in str(error) else models.first_line(error)


def why_not_compiled(plan: Plan) -> str | None:
    """One line that says why this plan's step cannot be compiled, or None.

    A step in float64, compiled and eager, must give the same losses, weights and buffers to 1e-10.
    Compiling can lose gradients silently (those of a custom autograd function under vmap, in torch
    2.13), and a forward may depend on being compiled. The trial uses another model than the one
    whose module was compiled.
    """
    recipe = plan.recipe
    if recipe.defense not in COMPILABLE:
        return f"the defense {recipe.defense} draws numbers, or is another one from epoch to epoch"
    trial = plan._replace(recipe=recipe.replace(dtype="float64"), compiled=True)
    second = min(1, len(plan.member) - 1)
    rows = [0, second] if plan.stacked else [second]
    try:
        with random_state_kept(plan.device):
            fast = CompiledGroup(trial, rows)
            if plan.device.type == "cpu" and not keeps_gradients(fast.module):
                return "a CPU may lose gradients of its strided 1 x 1 convolutions of < 8 channels"
            eager = Group(trial._replace(compiled=False), rows)
            # a step in float64 is compiled once for its trial and the training
            batch = recipe.batch if recipe.dtype == "float64" else TRIAL_BATCH
            return _difference(fast, [eager], "compiled", batch)
    except Exception as error:  # anything that the compiler does not support
        return compiler_error(error)


def _difference(fast: Group, plain: list[Group], kind: str, batch: int = TRIAL_BATCH) -> str | None:
    """How a step of a group differs from that of plain ones, in one line; None if they agree to ten
    digits.

    Parameters:
        fast: the group, in float64.
        plain: eager groups with the same models in the same order.
        kind: the word for the group's step.
        batch: images of each model.
    """
    for group in (fast, *plain):
        _stir(group)
    numbers = torch.arange(batch * len(fast.ids)).remainder(len(fast.plan.images.y))
    index = numbers.view(-1, batch)
    parts = index.split([len(group.ids) for group in plain])
    plain_losses = [_trial_step(group, part) for group, part in zip(plain, parts, strict=True)]
    if not torch.allclose(_trial_step(fast, index), torch.cat(plain_losses), **CLOSE):
        return f"the losses of its {kind} step differ from those of a plain one"
    plain_weights = []
    for group in plain:
        plain_weights += [group.weights(slot) for slot in range(len(group.ids))]
    for slot, expected in enumerate(plain_weights):
        for name, tensor in fast.weights(slot).items():
            if not torch.allclose(tensor, expected[name], **CLOSE):
                return f"its {kind} step changes {name} differently from a plain one"
    return None


def _stir(group: Group) -> None:
    """Add the same noise to the weights of each model: behind weights of 0 all gradients are 0."""
    trained = [group.params[name].detach() for name in group.trained]
    if not group.plan.stacked:
        dp_sgd.stir(trained)
        return
    for slot in range(len(group.ids)):
        dp_sgd.stir([of_models[slot] for of_models in trained])


def _trial_step(group: Group, index: Tensor) -> Tensor:
    """Take a step on images with these numbers (G, B); its losses (G, B)."""
    group.seed_noise(0)
    x = plain_images(group.plan, index)
    return group.step(x, group.plan.images.y[index], EXACT)
