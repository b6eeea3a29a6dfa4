"""Pools trained under a defense: what is trained, on what, resumed as it was, refused where it
would mean nothing.
"""

import hashlib
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mia_nb import data, defenses, query, training
from mia_nb.attacks import score
from mia_nb.defenses import change_output, dp_sgd
from mia_nb.training import batches, loop, placing, plans, progress, seeds
from mia_nb.training.clipped import ClippedGroup
from mia_nb.training.execution import chosen_record, with_record
from mia_nb.types import Recipe, Signals

MLP = Recipe(model="toys:mlp", num_models=4, population=30, epochs=3, batch=16, lr=0.1)
CNN = MLP.replace(model="tinycnn", model_args={"width": 4})
UNFOLDED = {"base_args": {"width": 4}, "timesteps": 2, "fold": False}
LEARNED = {**UNFOLDED, "learn": True}
CLIPPED = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
STACKABLE = {
    "l1": {"weight": 1e-3},
    "l2": {"weight": 1e-3},
    "label_smoothing": {},
    "relaxloss": {"target": 1.5},
    "mmd_mixup": {"held_out": 20, "weight": 1.0},
    "early_stopping": {"held_out": 20},
}


@pytest.mark.parametrize("strategy", ["plain", "stacked"])
@pytest.mark.parametrize(
    "objective",
    [
        lambda step: step.criterion(step.forward(step.x), step.y).mean(),
        lambda step: (step.criterion(step.forward(step.x), step.y),) * 2,
        lambda step: None,
    ],
)
def test_a_defense_that_gives_something_else_than_losses_and_a_number_is_refused_in_a_line(
    images, tmp_path, monkeypatch, strategy, objective
):
    monkeypatch.setitem(defenses.DEFENSES, "mine", defenses.Defense({}, objective))
    with pytest.raises(ValueError, match=r"objective of defense 'mine' gave .*; wanted a tuple"):
        train(MLP.replace(defense="mine"), images, tmp_path, strategy=strategy)


def test_a_defense_may_draw_held_out_images_and_has_their_number_as_an_option(
    images, tmp_path, monkeypatch
):
    def first_ones(seed, held_out, held_out_labels, y, /, **options):
        assert len(held_out) == len(held_out_labels) == options["held_out"]
        return {"held_out": torch.from_numpy(np.broadcast_to(held_out[0], y.shape).copy())}

    def on_both(step):
        losses = step.criterion(step.forward(step.x), step.y)
        return losses, losses.mean() + step.criterion(
            step.forward(step.draws["x"]), step.draws["y"]
        ).mean()

    mine = defenses.Defense({"held_out": 0}, on_both, draws=first_ones, held_out=True)
    monkeypatch.setitem(defenses.DEFENSES, "mine", mine)
    recipe = MLP.replace(population=20, defense="mine", defense_args={"held_out": 5})
    assert train(recipe, images, tmp_path).held_out.sum() == 5


def test_a_defense_may_draw_numbers_of_its_own_alone_and_stacked_models_get_them_as_plain_ones_do(
    images, tmp_path, monkeypatch
):
    def flips(seed, held_out, held_out_labels, y, *, share):
        assert y.ndim == 2  # steps, batch
        return {"flip": torch.as_tensor(np.random.default_rng(seed).random(y.shape) < share)}

    def random_labels(step):
        logits = step.forward(step.x)
        losses = step.criterion(logits, step.y)
        wrong = torch.where(step.draws["flip"], 0, step.y)
        return losses, step.criterion(logits, wrong).mean()

    mine = defenses.Defense({"share": 0.5}, random_labels, draws=flips)
    monkeypatch.setitem(defenses.DEFENSES, "mine", mine)
    recipe = MLP.replace(defense="mine", dtype="float64", num_models=2)
    plain = train(recipe, images, tmp_path / "plain", strategy="plain")
    stacked = train(recipe, images, tmp_path / "stacked", strategy="stacked")
    never = train(
        recipe.replace(defense_args={"share": 0.0}), images, tmp_path / "never", strategy="plain"
    )
    for name, tensor in plain.state(0).items():
        torch.testing.assert_close(stacked.state(0)[name], tensor, rtol=1e-10, atol=1e-10)
    assert any(not torch.equal(t, never.state(0)[n]) for n, t in plain.state(0).items())


class Centred(nn.Module):
    """Takes the batch's mean off of what it sees, in training."""

    def forward(self, x):
        return x - x.mean(0) if self.training else x


class Gain(nn.Module):
    """A branch that adds nothing at the start."""

    def __init__(self, branch):
        super().__init__()
        self.branch, self.gain = branch, nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.gain * self.branch(x)


class Mean(nn.Module):
    """Takes off a running mean of what it was trained on, which it keeps in a buffer."""

    def __init__(self, features):
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return x
        return x - self.mean


def inputs(in_channels, size):
    return in_channels * size[0] * size[1]


def zero_head(in_channels, num_classes, size):
    head = nn.Linear(8, num_classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs(in_channels, size), 8), Centred(), head)


def zero_branch(in_channels, num_classes, size):
    branch = Gain(nn.Sequential(nn.Linear(8, 8), Centred()))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs(in_channels, size), 8), branch, nn.Linear(8, num_classes)
    )


def honest_zeros(in_channels, num_classes, size):
    net = zero_head(in_channels, num_classes, size)
    return nn.Sequential(*net[:2], Gain(nn.Linear(8, 8)), net[3])


def pixel_means(in_channels, num_classes, size):
    norm = nn.InstanceNorm2d(in_channels, affine=False, track_running_stats=True)
    return nn.Sequential(norm, nn.Flatten(), nn.Linear(inputs(in_channels, size), num_classes))


def running_mean(in_channels, num_classes, size):
    features = inputs(in_channels, size)
    return nn.Sequential(nn.Flatten(), Mean(features), nn.Linear(features, num_classes))


HERE = "test_training_defenses:"


@pytest.fixture(scope="module")
def images():
    return data.load("digits", limit=200)


def train(recipe, images, root, **options):
    return training.train_pool(
        recipe, images, root=root, progress=False, **{"workers": 1, "strategy": "plain", **options}
    )


def under(recipe, name, **args):
    return recipe.replace(defense=name, defense_args={**STACKABLE.get(name, {}), **args})


def bytes_of(pool):
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in pool.folder.path.glob("[mls]*_*")
    }


@pytest.mark.parametrize("name", [*STACKABLE])
def test_models_trained_together_under_a_defense_are_those_trained_alone(name, images, tmp_path):
    recipe = under(CNN.replace(dtype="float64"), name)
    alone = train(recipe, images, tmp_path / "plain")
    together = train(recipe, images, tmp_path / "stacked", strategy="stacked:4")
    assert together.folder.read_json("execution.json")["stacked"]
    assert together.stopped == alone.stopped
    for m in range(4):
        for key, tensor in alone.state(m).items():
            torch.testing.assert_close(together.state(m)[key], tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["relaxloss", "mmd_mixup", "dropout", "early_stopping", "dp_sgd"])
def test_a_pool_stopped_under_a_defense_resumes_to_the_same_bytes(
    name, images, tmp_path, monkeypatch
):
    recipe = under(MLP.replace(epochs=4), name)
    whole = train(recipe, images, tmp_path / "whole")

    class Stopped(Exception):
        pass

    seen = []

    def stop(*event):
        seen.append(event)
        if len(seen) == 3:
            raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(progress.Advance, "report", stop)
        with pytest.raises(Stopped):
            train(recipe, images, tmp_path / "stopped", checkpoint=0)
    assert list((tmp_path / "stopped").glob("*/part_*"))
    assert bytes_of(train(recipe, images, tmp_path / "stopped", checkpoint=0)) == bytes_of(whole)


def test_l2_of_sgd_is_weight_decay_of_twice_its_weight(images, tmp_path):
    recipe = MLP.replace(dtype="float64")
    penalised = train(under(recipe, "l2", weight=1e-2), images, tmp_path)
    decayed = train(recipe.replace(optimizer_args={"weight_decay": 5e-4 + 2e-2}), images, tmp_path)
    for name, tensor in decayed.state(1).items():
        torch.testing.assert_close(penalised.state(1)[name], tensor, rtol=1e-9, atol=1e-12)


def test_early_stopping_takes_the_weights_of_the_epoch_that_did_best_on_images_nobody_else_sees(
    images, tmp_path
):
    recipe = CNN.replace(epochs=8, lr=0.3)
    pool = train(under(recipe, "early_stopping"), images, tmp_path)
    free = train(recipe.replace(snapshots=list(range(1, 8))), images, tmp_path)
    assert (
        pool.held_out.sum() == 20
        and not (pool.held_out & ~pool.population).any()
        and not free.held_out.any()
    )
    x, y = data.normalise(images.x[pool.held_out], images.mean, images.std), images.y[pool.held_out]
    for m in range(4):
        with torch.inference_mode():
            losses = [
                float(F.cross_entropy((free.at(e) if e < 8 else free).model(m)(x), y))
                for e in range(1, 9)
            ]
        best = int(np.argmin(losses)) + 1
        assert pool.stopped[m] == best
        then = (free.at(best) if best < 8 else free).state(m)
        assert all(torch.equal(tensor, then[name]) for name, tensor in pool.state(m).items())
    assert len(set(pool.stopped)) > 1 and free.stopped is None


def test_held_out_images_are_no_population_and_no_candidates(images, tmp_path):
    pool = train(under(MLP, "early_stopping"), images, tmp_path)
    signals = query(pool, images, progress=False)
    shown = np.flatnonzero(~pool.held_out)
    assert signals.margin.shape[2] == len(shown) == 180 and signals.population.sum() == 10
    assert np.array_equal(signals.labels, images.y[shown].numpy()) and np.array_equal(
        signals.member, pool.member[:, shown]
    )
    few = query(pool, images, limit=40, progress=False)
    free = query(train(MLP, images, tmp_path), images, limit=40, progress=False)
    assert few.population.sum() == 10  # of the 40 wanted, all that are not held out
    fewer = query(pool, images, limit=5, progress=False)
    assert fewer.population.sum() == (~fewer.population).sum() == 5
    # the same candidates as without
    assert np.array_equal(few.member[:, ~few.population], free.member[:, ~free.population])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"defense": "early_stopping"}, "held_out=0 of 30 images set aside"),
        ({"defense": "mmd_mixup", "defense_args": {"held_out": 31}}, "held_out=31 of 30"),
        ({"defense": "dp_sgd", "schedule": "plateau"}, "looks at the training loss"),
        ({"defense": "dp_sgd", "defense_args": {"max_grad_norm": 0.0}}, "wanted a number above 0"),
        (
            {"defense": "dp_sgd", "defense_args": {"multiplicity": 4}, "augment": "none"},
            "multiplicity=4 without augmentation",
        ),
        ({"defense": "dp_sgd", "defense_args": {"multiplicity": 0}}, "multiplicity=0"),
        ({"defense": "dp_sgd", "defense_args": {"average": 1.0}}, "average=1.0"),
        (
            {"defense": "dp_sgd", "defense_args": {"noise_multiplier": float("inf")}},
            "is not finite",
        ),
        (
            {"defense": "dp_sgd", "model": "odenet", "model_args": {"method": "dopri5"}},
            "method='dopri5' gives wrong",
        ),
        (
            {"defense": "dp_sgd", "model": "sdenet", "model_args": {"lipschitz": 1.0}},
            "lipschitz gives wrong",
        ),
        (
            {"defense": "dp_sgd", "model": "snn", "model_args": {"base_args": {"width": 4}}},
            "build with fold=False",
        ),
        ({"defense": "dp_sgd", "model": "toys:tracking"}, "no gradients per sample"),
        ({"defense": "dp_sgd", "model": "toys:mixing"}, "samples mix in a batch"),
        (
            {"defense": "dp_sgd", "model": "snn", "model_args": LEARNED},
            "its layer does not use it alone",
        ),
        (
            {"defense": "dp_sgd", "model": "snn", "loss": "tet", "model_args": UNFOLDED},
            "wanted cross_entropy",
        ),
        (
            {
                "defense": "relaxloss",
                "model": "snn",
                "loss": "tet",
                "model_args": {"base_args": {"width": 4}},
            },
            "take one of the two",
        ),
        ({"defense": "dropout", "defense_args": {"rate": 0.0}}, "between 0 and 1"),
        ({"defense": "dp_sgd", "model": HERE + "zero_head"}, "no gradients per sample at 1.weight"),
        (
            {"defense": "dp_sgd", "model": HERE + "zero_branch"},
            "no gradients per sample at 1.weight",
        ),
        (
            {"defense": "dp_sgd", "model": HERE + "pixel_means"},
            "buffer 0.running_mean is computed from members without clipping and noise",
        ),
        (
            {"defense": "dp_sgd", "model": HERE + "running_mean"},
            "buffer 1.mean is computed from members without clipping",
        ),
        (
            {"defense": "label_smoothing", "defense_args": {"smoothing": 1.5}},
            "smoothing=1.5; wanted .* below 1",
        ),
        ({"defense": "dp_sgd", "batch": 86}, "batch=86 is more than a model's 85 training samples"),
    ],
)
def test_defenses_that_would_mean_nothing_are_refused_before_anything_is_written(
    images, tmp_path, change, says
):
    with pytest.raises(ValueError, match=says) as error:
        train(MLP.replace(**{"model_args": {}, **change}), images, tmp_path)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("entry", [len, "l2", defenses.Defense(len), ({"weight": 1.0}, len)])
def test_what_is_entered_as_a_defense_and_is_none_is_refused_in_a_line(
    entry, images, tmp_path, monkeypatch
):
    monkeypatch.setitem(defenses.DEFENSES, "mine", entry)
    says = r"DEFENSES\['mine'\] is .*: wanted a defenses.Defense, such as Defense\("
    with pytest.raises(ValueError, match=says):
        train(MLP.replace(defense="mine"), images, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_output_defense_lies_between_attacker_and_models_and_has_its_own_signals(
    images, tmp_path
):
    pool = train(MLP, images, tmp_path)
    plain, ask = query(pool, images, progress=False), {"progress": False}
    with torch.inference_mode():
        x = data.normalise(images.x, images.mean, images.std)
        logits = np.stack([pool.model(m)(x).double().numpy() for m in range(4)])
    for name, args in (
        ("memguard", {"confidence": 0.7}),
        ("rounding", {"decimals": 2}),
        ("top", {"classes": 3}),
    ):
        found = query(pool, images, output=name, output_args=args, **ask)
        made = Signals.from_logits(change_output(name, logits, **args), images.y.numpy())
        np.testing.assert_allclose(found.margin, made.margin, rtol=1e-4, atol=1e-4)
        assert (
            found.info["output"] == name
            and found.info["output_args"] == args
            and "output" not in plain.info
        )
    labels = query(pool, images, output="memguard", **ask)
    assert (labels.correct == plain.correct).all()
    assert np.array_equal(score("correctness", labels).value, score("correctness", plain).value)
    random = query(pool, images, output="hamp", **ask)
    assert (random.correct == plain.correct).all() and not np.allclose(random.margin, plain.margin)
    with pytest.raises(ValueError, match="give it to Recipe"):
        query(pool, images, output="l1", **ask)
    coarse = query(
        pool, images, output="rounding", output_args={"decimals": 1}, temperature=4.0, **ask
    )
    assert (coarse.correct == plain.correct).all()
    with pytest.raises(ValueError, match="confidence='x': wanted more than 1/10 and less than 1"):
        query(pool, images, output="memguard", output_args={"confidence": "x"}, **ask)


def test_of_two_classes_memguard_shows_a_label(tmp_path):
    two = data.load("synthetic:classes=2,n=200")
    pool = train(MLP.replace(num_models=2, epochs=1), two, tmp_path)
    plain, shown = (query(pool, two, output=word, progress=False) for word in (None, "memguard"))
    assert (
        shown.info["output_args"] == {"confidence": 0.75} and (shown.correct == plain.correct).all()
    )
    np.testing.assert_allclose(np.abs(shown.margin), np.log(3))
    with pytest.raises(ValueError, match="wanted more than 1/2"):
        query(pool, two, output="memguard", output_args={"confidence": 0.5}, progress=False)


def group_of(pool, images):
    return ClippedGroup(plans.plan_of(pool.recipe, images, pool.member, pool.population), [0])


def group(images, *, recipe=CNN, **args):
    """A model as a pool trains it: by the rule, which would have convolutions channels last."""
    recipe = placing.complete(
        recipe.replace(defense="dp_sgd", defense_args={**CLIPPED, **args}, dtype="float64")
    )
    member, population = placing.membership(recipe, images, None)
    plan = plans.plan_of(recipe, images, member, population)
    how = chosen_record(plan, "cpu", "auto", False, 1)
    return ClippedGroup(with_record(plan, how), [0])


def batch(group, count):
    index = torch.arange(count)
    return batches.plain_images(group.plan, index), group.plan.images.y[index]


def clipped_step(group, x, y, lr):
    """One step on a Poisson batch (B, ...) with seeded noise; the losses (B,)."""
    group.noise = torch.Generator().manual_seed(0)
    return group.step(x[None], y[None], lr)[0]


def test_a_clipped_step_sums_gradients_of_single_samples_each_cut_to_the_norm(images):
    one = group(images, noise_multiplier=0.0, max_grad_norm=0.5)
    one.optimizer.param_groups[0].update(momentum=0.0, nesterov=False, weight_decay=0.0)
    x, y = batch(one, 7)
    before = {name: p.detach().clone() for name, p in one.params.items()}
    expected, cut = {name: torch.zeros_like(p) for name, p in one.params.items()}, 0
    for i in range(7):
        alone = group(images, noise_multiplier=0.0, max_grad_norm=0.5)
        losses = F.cross_entropy(alone.clipped.hooked(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(losses, list(alone.params.values()))
        norm = torch.sqrt(sum(g.square().sum() for g in grads))
        cut += norm > 0.5
        for (name, total), g in zip(expected.items(), grads, strict=True):
            expected[name] = total + g * min(1.0, 0.5 / float(norm))
    assert cut > 0 and any(p.ndim == 4 for p in one.params.values())
    clipped_step(one, x, y, 0.3)
    for name, p in one.params.items():
        torch.testing.assert_close(
            p.detach(), before[name] - 0.3 * expected[name] / 16, rtol=1e-5, atol=1e-9
        )


def test_copies_of_an_image_are_clipped_as_one_record(images):
    """A step on three copies of each of five images, against autograd record by record."""
    recipe = CNN.replace(augment="crop+flip")
    options = {"noise_multiplier": 0.0, "max_grad_norm": 0.5, "multiplicity": 3}
    one = group(images, recipe=recipe, **options)
    one.optimizer.param_groups[0].update(momentum=0.0, nesterov=False, weight_decay=0.0)
    x, y = batch(one, 15)
    y = y[::3].repeat_interleave(3)
    before = {name: p.detach().clone() for name, p in one.params.items()}
    expected = {name: torch.zeros_like(p) for name, p in one.params.items()}
    alone = group(images, recipe=recipe, **options)
    for record in range(5):
        copies = slice(3 * record, 3 * record + 3)
        loss = F.cross_entropy(alone.clipped.hooked(x[copies]), y[copies])
        grads = torch.autograd.grad(loss, list(alone.params.values()))
        norm = float(torch.sqrt(sum(g.square().sum() for g in grads)))
        for (name, total), g in zip(expected.items(), grads, strict=True):
            expected[name] = total + g * min(1.0, 0.5 / norm)
    one.clipped.chunk = 6  # two records at a time
    losses = clipped_step(one, x, y, 0.3)
    assert losses.shape == (15,)
    for name, p in one.params.items():
        torch.testing.assert_close(
            p.detach(), before[name] - 0.3 * expected[name] / 16, rtol=1e-5, atol=1e-9
        )


def test_an_epoch_shows_every_drawn_image_in_as_many_augmented_copies(images):
    recipe = CNN.replace(augment="crop+flip")
    single, triple = (group(images, recipe=recipe, multiplicity=k) for k in (1, 3))
    assert single.training != triple.training  # the same noise could be taken out of the two
    order, sizes = triple.order(0)
    assert len(order[0]) == sum(sizes) and all(size % 3 == 0 for size in sizes)
    assert (order.view(-1, 3) == order.view(-1, 3)[:, :1]).all()
    augments = batches.augmentations(triple.plan, [0], 0, sum(sizes))
    shown = batches.augmented_images(triple.plan, order, augments)[0]
    copies = shown.view(-1, 3, *shown.shape[1:])
    assert (copies[:, 0] != copies[:, 1]).flatten(1).any(1).float().mean() > 0.9
    _, losses = triple.epoch(0, [])
    assert losses.shape == order.shape


def test_a_pool_is_trained_on_augmented_copies(images, tmp_path):
    """Its trial step is of a whole record: all copies of one image."""
    copies = {**CLIPPED, "multiplicity": 2, "average": 0.9}
    recipe = CNN.replace(defense="dp_sgd", defense_args=copies, augment="crop+flip", epochs=1)
    pool = train(recipe, images, tmp_path)
    assert set(pool.status) == {"trained"}


def test_weights_are_averaged_as_a_loop_over_the_steps_does(images, monkeypatch):
    plain, averaged = group(images), group(images, average=0.9)
    assert plain.training == averaged.training
    weights, taken = {}, 0
    original = plain.clipped.step

    def step(*args):
        nonlocal taken
        losses = original(*args)
        taken += 1
        decay = min(0.9, taken / (taken + 10))
        for name, p in plain.params.items():
            now = p.detach().clone()
            weights[name] = decay * weights[name] + (1 - decay) * now if name in weights else now
        return losses

    monkeypatch.setattr(plain.clipped, "step", step)
    for epoch in range(2):
        plain.epoch(epoch, [])
        averaged.epoch(epoch, [])
    assert taken > 4
    kept = averaged.weights(0)
    for name, p in plain.params.items():
        torch.testing.assert_close(averaged.params[name], p)
        torch.testing.assert_close(kept[name], weights[name], rtol=1e-12, atol=1e-14)
        assert not torch.equal(kept[name], p.detach())


def test_an_averaged_training_goes_on_as_if_it_had_not_been_interrupted(images):
    recipe = CNN.replace(augment="crop+flip")
    whole, first, second = (
        group(images, recipe=recipe, average=0.9, multiplicity=2) for _ in range(3)
    )
    for epoch in range(2):
        whole.epoch(epoch, [])
    first.epoch(0, [])
    second.load(first.state())
    second.epoch(1, [])
    for name, tensor in whole.weights(0).items():
        assert torch.equal(second.weights(0)[name], tensor)


def flat(group):
    return torch.cat([p.detach().flatten().clone() for p in group.params.values()])


def test_a_plan_that_would_have_convolutions_channels_last_is_trained_channels_first(images):
    """Opacus' gradients per sample of a convolution are others than autograd's on activations that
    lie channels last, and say nothing.
    """
    first = group(images, noise_multiplier=0.0, max_grad_norm=0.5)
    last = ClippedGroup(first.plan._replace(channels_last=True), [0])
    last.training = first.training
    for one in (first, last):
        one.epoch(0, [])
    for name, p in first.params.items():
        torch.testing.assert_close(p, last.params[name], rtol=0, atol=0)


@pytest.mark.parametrize(("count", "chunk"), [(0, None), (12, None), (12, 5), (1, 1)])
def test_what_noise_adds_to_a_step_has_the_promised_size_whatever_the_batch_and_its_chunks(
    count, chunk, images
):
    moved = []
    for multiplier, size in ((2.0, count), (0.0, count), (2.0, 0)):
        one = group(images, noise_multiplier=multiplier, max_grad_norm=0.5)
        one.optimizer.param_groups[0].update(momentum=0.0, nesterov=False, weight_decay=0.0)
        one.clipped.chunk = chunk or one.clipped.chunk
        before = flat(one)
        losses = clipped_step(one, *batch(one, size), 1.0)
        moved.append(flat(one) - before)
        assert losses.shape == (size,)
    noise = moved[0] - moved[1]
    assert len(noise) > 1000 and (noise != 0).all()
    # the numbers of the generator that was given
    torch.testing.assert_close(noise, moved[2], rtol=1e-6, atol=1e-12)
    assert abs(float(noise.std()) / (2.0 * 0.5 / 16) - 1) < 4 / np.sqrt(2 * len(noise))
    assert abs(float(noise.mean())) < 4 * 2.0 * 0.5 / 16 / np.sqrt(len(noise))


def noise_of(recipe, images, member, row, epoch=0):
    """(steps, weights) of an epoch of a row: what its own noise adds in each step, in units of
    itself, and its batches.
    """
    plan = plans.plan_of(placing.complete(recipe), images, member, np.zeros(len(images.y), bool))
    one, steps = ClippedGroup(plan, [row]), []
    one.optimizer.param_groups[0].update(momentum=0.0, nesterov=False, weight_decay=0.0)
    take = one.step

    def alone(x, y, lr, **_):
        before = flat(one)
        losses = take(x[:, :0], y[:, :0], 1.0)
        steps.append(flat(one) - before)
        return losses

    one.step = alone
    order, _ = one.epoch(epoch, [])
    drawn = torch.stack(steps)
    return drawn / drawn.std(1, keepdim=True), order


def test_steps_epochs_rows_and_recipes_have_noise_and_batches_of_their_own(images):
    """Shared noise is taken out by a difference of two models: no two noises of these weights
    correlate.
    """
    recipe = CNN.replace(
        split="given",
        population=0,
        num_models=2,
        defense="dp_sgd",
        defense_args=CLIPPED,
        dtype="float64",
    )
    member = np.tile(np.arange(len(images.y)) % 2 == 0, (2, 1))
    other = {
        "max_grad_norm": {"defense_args": {**CLIPPED, "max_grad_norm": 0.5}},
        "lr": {"lr": 0.2},
        "seed": {"seed": 1},
    }
    runs = [
        (recipe, 0, 0),
        (recipe, 1, 0),
        (recipe, 0, 1),
        *((recipe.replace(**change), 0, 0) for change in other.values()),
    ]
    found = [noise_of(one, images, member, row, epoch) for one, row, epoch in runs]
    noise = torch.cat([steps for steps, _ in found])
    assert noise.shape == (6 * 6, len(noise[0])) and noise.shape[1] > 1000
    alike = noise @ noise.T / noise.shape[1] - torch.eye(len(noise))
    assert float(alike.abs().max()) < 5.5 / np.sqrt(noise.shape[1])
    assert len({tuple(order.flatten().tolist()) for _, order in found}) == len(runs)
    again, order = noise_of(recipe, images, member, 0)
    assert torch.equal(again, found[0][0]) and torch.equal(order, found[0][1])


def test_networks_that_start_at_zero_and_keep_their_samples_apart_are_trained(images, tmp_path):
    recipe = MLP.replace(
        model=HERE + "honest_zeros", epochs=1, num_models=2, defense="dp_sgd", defense_args=CLIPPED
    )
    assert train(recipe, images, tmp_path).status == ["trained"] * 2


@pytest.mark.parametrize("defense", [None, "dp_sgd"])
def test_under_coin_flips_a_batch_is_measured_by_the_expected_members(defense, images, tmp_path):
    recipe = MLP.replace(
        split="bernoulli",
        epochs=2,
        batch=85,
        defense=defense,
        defense_args=CLIPPED if defense else {},
    )
    sizes = {
        seed: placing.membership(recipe.replace(seed=seed), images, None)[0].sum(1)
        for seed in range(20)
    }
    few, many = (
        next(seed for seed, n in sizes.items() if fits(n.mean()))
        for fits in (lambda m: m < 84, lambda m: m >= 87)
    )
    pool = train(recipe.replace(seed=few), images, tmp_path)
    assert pool.status == ["trained"] * 4 and pool.sampling == {"sample_rate": 1.0, "steps": 2}
    with pytest.raises(ValueError, match="batch=87 is more than a model's 85 training samples"):
        train(recipe.replace(seed=many, batch=87), images, tmp_path)


def test_a_batch_in_chunks_takes_the_step_of_the_whole(images):
    whole, parts = group(images), group(images)
    parts.clipped.chunk = 3
    for one in (whole, parts):
        clipped_step(one, *batch(one, 10), 0.3)
    for name, p in whole.params.items():
        torch.testing.assert_close(parts.params[name], p, rtol=1e-9, atol=1e-12)


def test_batches_are_poisson_draws_at_the_rate_and_number_that_are_accounted_for(images, tmp_path):
    recipe = MLP.replace(epochs=30, snapshots=[3], defense="dp_sgd", defense_args=CLIPPED)
    pool = train(recipe, images, tmp_path)
    members = int(pool.member.sum(1).mean())
    assert pool.sampling == {"sample_rate": 16 / members, "steps": 30 * (members // 16)}
    assert pool.at(3).sampling["steps"] == 3 * (members // 16)
    sizes = []
    training_of_first = group_of(pool, images).training
    for epoch in range(30):
        coins = seeds.generator(training_of_first, epoch, "order")
        drawn = torch.rand(members // 16, members, generator=coins) < 16 / members
        sizes += drawn.sum(1).tolist()
        seen = np.isfinite(pool.trace(0)[epoch]) & pool.member[0]
        assert np.array_equal(
            np.flatnonzero(seen), np.flatnonzero(pool.member[0])[drawn.any(0).numpy()]
        )
    expected = members * (16 / members) * (1 - 16 / members)
    assert len(set(sizes)) > 5 and abs(np.mean(sizes) - 16) < 4 * np.sqrt(expected / len(sizes))


def test_batch_norm_becomes_group_norm_before_anything_is_trained_and_keys_stay_the_networks_own(
    images, tmp_path
):
    pool = train(CNN.replace(epochs=1, defense="dp_sgd", defense_args=CLIPPED), images, tmp_path)
    kinds = {type(layer) for layer in pool.model(0).modules()}
    assert torch.nn.GroupNorm in kinds and torch.nn.BatchNorm2d not in kinds
    assert not any(name.startswith("_module") or "running" in name for name in pool.state(0))
    groups = dp_sgd.without_batch_norm(
        torch.nn.Sequential(torch.nn.BatchNorm2d(48), torch.nn.BatchNorm2d(6))
    )
    assert [layer.num_groups for layer in groups] == [12, 1]  # groups of four channels at least


@pytest.mark.parametrize(
    ("model", "args"),
    [
        ("resnet14", {"width": 4, "blocks": 1}),
        ("odenet", {"width": 4, "steps": 2}),
        ("sdenet", {"width": 4, "steps": 2, "k": 0.3}),
        ("sonode", {"width": 4, "steps": 2}),
        ("hbnode", {"width": 4, "steps": 2}),
        ("snn", {"base_args": {"width": 4}, "timesteps": 2, "fold": False}),
    ],
)
def test_every_kind_of_network_trains_and_is_attacked_under_dp_sgd(model, args, images, tmp_path):
    recipe = MLP.replace(
        model=model, model_args=args, epochs=1, num_models=2, defense="dp_sgd", defense_args=CLIPPED
    )
    pool = train(recipe, images, tmp_path)
    assert pool.status == ["trained"] * 2 and pool.folder.path.name.rpartition("-")[0].endswith(
        "_dp_sgd"
    )
    signals = query(pool, images, progress=False)
    assert signals.info["defense"] == "dp_sgd" and np.isfinite(signals.margin).all()
    assert score("loss", signals).value.shape == (2, 170)


def test_what_is_learned_is_bounded_by_the_clipping(images, tmp_path):
    """Without noise the weights move at most lr * (drawn / batch) * norm a step: a rate that
    nothing unclipped would keep.
    """
    one = group(images, noise_multiplier=0.0, max_grad_norm=1e-3)
    one.optimizer.param_groups[0].update(momentum=0.0, nesterov=False, weight_decay=0.0)
    before = torch.cat([p.detach().flatten().clone() for p in one.params.values()])
    clipped_step(one, *batch(one, 12), 1.0)
    moved = torch.cat([p.detach().flatten() for p in one.params.values()]) - before
    assert 0 < float(moved.norm()) <= 12 / 16 * 1e-3 * (1 + 1e-6)


def test_under_autocast_no_sample_counts_for_more_than_the_norm(images):
    """Norms are taken in the precision of the weights: in bfloat16 they would be exceeded by half a
    per cent and more.
    """
    recipe = placing.complete(CNN.replace(defense="dp_sgd", defense_args=CLIPPED, dtype="bfloat16"))
    member, population = placing.membership(recipe, images, None)
    plan = plans.plan_of(recipe, images, member, population)
    for i in range(5):
        one = ClippedGroup(plan, [0])
        one.clipped.optimizer.noise_multiplier, one.clipped.optimizer.max_grad_norm = 0.0, 0.01
        one.optimizer.param_groups[0].update(momentum=0.0, nesterov=False, weight_decay=0.0)
        before = torch.cat([p.detach().flatten().clone().double() for p in one.params.values()])
        clipped_step(
            one, batches.plain_images(one.plan, torch.tensor([i])), images.y[i : i + 1], 1024.0
        )
        moved = torch.cat([p.detach().flatten().double() for p in one.params.values()]) - before
        assert float(moved.norm()) / 1024 * 16 == pytest.approx(0.01, rel=1e-4)


def test_two_trainings_have_neither_noise_nor_batches_in_common(images, tmp_path):
    recipe = MLP.replace(defense="dp_sgd", defense_args=CLIPPED)
    other = recipe.replace(defense_args={**CLIPPED, "max_grad_norm": 0.5})
    pools = [train(one, images, tmp_path) for one in (recipe, other)]
    words = {group_of(pool, images).training for pool in pools}
    shifted = pools[0].member.copy()
    shifted[0, np.flatnonzero(shifted[0])[0]] = False
    words.add(
        ClippedGroup(
            plans.plan_of(pools[0].recipe, images, shifted, pools[0].population), [0]
        ).training
    )
    assert len(words) == 3
    grown = train(recipe.replace(num_models=6), images, tmp_path)
    assert np.array_equal(grown.member[:4], pools[0].member)
    # a pool still grows
    assert all(torch.equal(t, grown.state(0)[name]) for name, t in pools[0].state(0).items())


def test_two_rows_of_the_same_members_have_neither_noise_nor_batches_in_common(images):
    recipe = placing.complete(
        MLP.replace(
            split="given", population=0, num_models=2, defense="dp_sgd", defense_args=CLIPPED
        )
    )
    member = np.tile(np.arange(len(images.y)) % 2 == 0, (2, 1))
    plan = plans.plan_of(recipe, images, member, np.zeros(len(images.y), bool))
    assert ClippedGroup(plan, [0]).training != ClippedGroup(plan, [1]).training


def test_what_is_made_of_a_defended_pool_is_not_called_defended(images, tmp_path):
    watched = train(under(CNN, "early_stopping"), images, tmp_path)
    converted = training.convert_pool(watched, images, 2, progress=False)
    tuned = training.train.finetune_pool(
        watched, CNN.replace(epochs=1), images, progress=False, workers=1
    )
    for pool in (converted, tuned):
        assert (
            pool.recipe.defense is None
            and pool.stopped is None
            and "stopping" not in pool.folder.path.name
        )
        # they chose its first weights
        assert np.array_equal(pool.held_out, watched.held_out) and pool.held_out.sum() == 20


def test_from_networks_that_only_a_defense_makes_nothing_is_derived_without_it(images, tmp_path):
    pool = train(CNN.replace(defense="dp_sgd", defense_args=CLIPPED, epochs=1), images, tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match="trained under dp_sgd, which changes the network"):
        training.convert_pool(pool, images, 2, progress=False)
    with pytest.raises(ValueError, match="trained under dp_sgd, which changes the network"):
        training.train.finetune_pool(pool, CNN.replace(epochs=1), images, progress=False, workers=1)
    assert sorted(tmp_path.iterdir()) == before


def test_dp_sgd_starts_from_no_weights_that_saw_the_members(images, tmp_path):
    again = MLP.replace(epochs=1, defense="dp_sgd", defense_args=CLIPPED)
    for parent in (train(again, images, tmp_path), train(MLP, images, tmp_path)):
        with pytest.raises(ValueError, match="its weights saw the members"):
            training.train.finetune_pool(parent, again, images, progress=False, workers=1)


def test_a_derived_pool_without_its_parent_cannot_be_asked(images, tmp_path):
    parent = train(MLP, images, tmp_path)
    child = training.train.finetune_pool(
        parent, MLP.replace(epochs=1), images, progress=False, workers=1
    )
    shutil.rmtree(parent.folder.path)
    with pytest.raises(ValueError, match="no pool in"):
        query(child, images, progress=False)


def test_the_held_out_batch_of_mmd_has_the_classes_of_the_training_batch(images):
    recipe = placing.complete(under(CNN.replace(epochs=1), "mmd_mixup", held_out=30))
    member, population = placing.membership(recipe, images, None)
    one, seen = loop.Group(plans.plan_of(recipe, images, member, population), [0]), []
    there = set(images.y[torch.from_numpy(one.plan.held_out)].tolist())
    one.step = lambda x, y, lr, *, epoch, draws: (
        seen.append((y, draws["y"])) or torch.zeros(y.shape)
    )
    one.epoch(0, [])
    assert len(there) == 10 and len(seen) == one.plan.steps > 1
    assert all(torch.equal(y, other) and y.shape == (1, 16) for y, other in seen)


def test_a_changed_default_of_a_defense_is_another_pool(images, tmp_path):
    def key(**args):
        recipe = placing.complete(under(CNN, "mmd_mixup", **args))
        return placing.place(
            recipe, images, *placing.membership(recipe, images, None), tmp_path, None
        ).key

    assert key() == key(bandwidth=1) != key(bandwidth=0.5)


def test_narrow_networks_take_batches_of_one_and_still_see_features_of_one_pixel(images, tmp_path):
    recipe = MLP.replace(
        model="resnet14", model_args={"width": 8, "blocks": 1}, batch=4, epochs=1, num_models=2
    )
    pool = train(recipe.replace(defense="dp_sgd", defense_args=CLIPPED), images, tmp_path)
    x = data.normalise(images.x[:20], images.mean, images.std)
    with torch.inference_mode():
        assert float(pool.model(0)(x).std(0).min()) > 1e-4
