"""What defenses minimise and what they let a model answer, against closed forms and slow twins."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import softmax
from torch import nn

from mia_nb import defenses
from mia_nb.defenses import OUTPUTS, change_output, objectives
from mia_nb.defenses.objectives import Step
from mia_nb.types import Signals

CRITERION = partial(F.cross_entropy, reduction="none")


def step(weight, x, y, *, epoch=0, draws=None):
    """A linear network's step; its one parameter is `weight` (K, D)."""
    return Step(lambda x: x @ weight.T, CRITERION, x, y, epoch, {"weight": weight}, draws or {})


@pytest.fixture
def problem():
    torch.manual_seed(0)
    return (
        torch.randn(5, 7, dtype=torch.float64, requires_grad=True),
        torch.randn(12, 7).double(),
        torch.arange(12) % 5,
    )


def gradient(objective, weight):
    return torch.autograd.grad(objective, weight)[0]


def test_l1_adds_the_sign_of_every_weight_and_l2_twice_its_value(problem):
    weight, *_ = problem
    plain = gradient(defenses.objectives.plain(step(*problem))[1], weight)
    sparse = gradient(objectives.l1(step(*problem), weight=0.3)[1], weight)
    small = gradient(objectives.l2(step(*problem), weight=0.3)[1], weight)
    torch.testing.assert_close(sparse - plain, 0.3 * weight.sign().detach())
    torch.testing.assert_close(small - plain, 0.6 * weight.detach())


def test_label_smoothing_is_cross_entropy_to_smoothed_labels_and_reports_the_plain_losses(problem):
    weight, x, y = problem
    losses, minimised = objectives.label_smoothing(step(*problem), smoothing=0.2)
    log_p = (x @ weight.T).log_softmax(1)
    labels = 0.8 * F.one_hot(y, 5) + 0.2 / 5
    torch.testing.assert_close(minimised, -(labels * log_p).sum(1).mean())
    torch.testing.assert_close(losses, CRITERION(x @ weight.T, y))


@pytest.mark.parametrize("epoch", [0, 1])
def test_relaxloss_descends_above_its_target(problem, epoch):
    weight, *_ = problem
    one = step(*problem, epoch=epoch)
    plain = gradient(defenses.objectives.plain(one)[1], weight)
    torch.testing.assert_close(gradient(objectives.relaxloss(one, target=0.01)[1], weight), plain)


def test_relaxloss_below_its_target_ascends_in_even_epochs_and_flattens_in_odd_ones(problem):
    weight, x, y = problem
    plain = gradient(defenses.objectives.plain(step(*problem))[1], weight)
    torch.testing.assert_close(
        gradient(objectives.relaxloss(step(*problem, epoch=2), target=50.0)[1], weight), -plain
    )
    p = (x @ weight.T).softmax(1).detach()
    flat = torch.stack([(1 - p[i, y[i]]).repeat(5) / 4 for i in range(12)])
    flat[torch.arange(12), y] = p[torch.arange(12), y]
    expected = (p - flat).T @ x / 12  # cross-entropy to fixed labels: softmax minus labels
    torch.testing.assert_close(
        gradient(objectives.relaxloss(step(*problem, epoch=3), target=50.0)[1], weight), expected
    )


def test_the_maximum_mean_discrepancy_of_classes_is_that_of_a_double_loop():
    torch.manual_seed(1)
    p, q = torch.rand(9, 4).double(), torch.rand(7, 4).double()
    # 2 and 3 on one side only
    y, other = torch.tensor([0, 0, 1, 1, 1, 2, 2, 0, 1]), torch.tensor([0, 1, 1, 3, 3, 0, 1])

    def kernel(a, b):
        return np.exp(-float(((a - b) ** 2).sum()) / (2 * 0.7**2))

    gaps = []
    for c in (0, 1):
        ours, theirs = p[y == c], q[other == c]
        within = sum(
            np.mean([[kernel(a, b) for a in side] for b in side]) for side in (ours, theirs)
        )
        gaps.append(within - 2 * np.mean([[kernel(a, b) for a in ours] for b in theirs]))
    assert float(defenses.objectives.class_mmd(p, y, q, other, 0.7)) == pytest.approx(
        np.mean(gaps), rel=1e-12
    )
    assert float(defenses.objectives.class_mmd(p, y, p, y, 0.7)) == pytest.approx(0, abs=1e-15)
    # no class in common
    assert float(defenses.objectives.class_mmd(p[:2], y[:2], q[3:5], other[3:5], 0.7)) == 0


def test_mixup_mixes_images_and_losses_and_reports_the_losses_of_unmixed_images(problem):
    weight, x, y = problem
    other = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    draws = {
        "lam": torch.tensor(0.3),
        "other": other,
        "x": torch.randn(4, 7).double(),
        "y": torch.tensor([0, 1, 2, 3]),
    }
    losses, minimised = objectives.mmd_mixup(step(*problem, draws=draws), weight=2.0, bandwidth=0.5)
    mixed = (0.3 * x + 0.7 * x[other]) @ weight.T
    gap = defenses.objectives.class_mmd(
        (x @ weight.T).softmax(1), y, (draws["x"] @ weight.T).softmax(1), draws["y"], 0.5
    )
    expected = (0.3 * CRITERION(mixed, y) + 0.7 * CRITERION(mixed, y[other])).mean() + 2 * gap
    torch.testing.assert_close(minimised, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(losses, CRITERION(x @ weight.T, y))


def test_nothing_is_learned_towards_held_out_images(problem):
    y = problem[2]
    answers, held_out = (
        torch.randn(12, 5).double().requires_grad_(),
        torch.randn(6, 5).double().requires_grad_(),
    )
    draws = {
        "lam": torch.tensor(1.0),
        "other": torch.arange(12),
        "x": held_out,
        "y": torch.arange(6) % 5,
    }
    one = Step(lambda x: x, CRITERION, answers, y, 0, {}, draws)
    found = torch.autograd.grad(
        objectives.mmd_mixup(one, weight=1.0, bandwidth=1.0)[1], [answers, held_out]
    )
    assert (found[1] == 0).all()
    fixed = defenses.objectives.class_mmd(
        answers.softmax(1), y, held_out.detach().softmax(1), draws["y"], 1.0
    )
    pull = gradient(fixed, answers)
    assert float(pull.abs().max()) > 1e-3
    torch.testing.assert_close(
        found[0], gradient(CRITERION(answers, y).mean(), answers) + pull, rtol=1e-6, atol=1e-9
    )


def test_mixup_draws_are_betas_permutations_and_held_out_numbers_of_the_same_class():
    numbers, known = np.array([3, 8, 20, 31]), np.array([2, 0, 1, 0])
    y = np.random.default_rng(0).integers(0, 4, (400, 16))
    drawn = objectives.mixup_draws(5, numbers, known, y, alpha=2.0)
    # Beta(2, 2): 1/20
    assert (
        abs(float(drawn["lam"].mean()) - 0.5) < 0.03
        and abs(float(drawn["lam"].var()) - 0.05) < 0.01
    )
    assert (drawn["other"].sort(1).values == torch.arange(16)).all() and (
        drawn["other"][0] != drawn["other"][1]
    ).any()
    # class 3 is not held out
    for label, there in ((0, {8, 31}), (1, {20}), (2, {3}), (3, {3, 8, 20, 31})):
        mine, count = np.unique(drawn["held_out"].numpy()[y == label], return_counts=True)
        assert set(mine.tolist()) == there and count.min() > 0.8 * count.mean()
    again = objectives.mixup_draws(5, numbers, known, y, alpha=2.0)
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)


LOGITS = np.random.default_rng(0).normal(0, 3, (2, 3, 40, 6))
RANDOM = np.random.default_rng(1).normal(0, 3, (2, 3, 40, 6))


@pytest.mark.parametrize("spread", [1.0, 0.1, 20.0])  # unsure answers round to ties
@pytest.mark.parametrize("name", [*OUTPUTS])
def test_no_output_defense_changes_the_predicted_label(name, spread):
    logits = LOGITS * spread
    logits[..., 0, :] = 0.0  # and some are ties before
    change, options, random = OUTPUTS[name]
    changed = change_output(name, logits, RANDOM.round(), **options)
    assert changed.shape == LOGITS.shape and np.isfinite(changed).all()
    assert (changed.argmax(-1) == logits.argmax(-1)).all()
    assert (np.diff(np.sort(changed, -1)[..., -2:]) > 0).all()
    np.testing.assert_allclose(
        changed,
        change(logits, **options, **({"random": RANDOM.round()} if random else {})),
        atol=2e-9,
    )


def test_memguard_leaves_two_scores_right_and_wrong():
    labels = np.arange(40) % 6
    signals = Signals.from_logits(change_output("memguard", LOGITS[0], confidence=0.5), labels)
    assert len(np.unique(signals.margin.round(12))) == 2
    assert signals.margin[signals.correct].min() > signals.margin[~signals.correct].max()
    assert np.allclose(signals.margin[signals.correct], 0)  # p = .5: log p - log(1 - p) = 0
    with pytest.raises(ValueError, match="wanted more than 1/6"):
        change_output("memguard", LOGITS, confidence=0.1)


def test_hamp_shows_the_probabilities_of_random_images_in_the_order_of_the_answer():
    changed = change_output("hamp", LOGITS, RANDOM)
    assert (changed.argsort(-1) == LOGITS.argsort(-1)).all()
    np.testing.assert_allclose(np.sort(np.exp(changed), -1), np.sort(softmax(RANDOM, -1), -1))


def test_rounding_and_top_show_what_they_say():
    logits = np.log(np.array([[0.62, 0.31, 0.07], [0.96, 0.03, 0.01]]))
    rounded = np.exp(change_output("rounding", logits, decimals=1))
    np.testing.assert_allclose(rounded, [[0.6, 0.3, 0.1], [1.0, 0.025, 0.025]])
    np.testing.assert_allclose(
        np.exp(change_output("top", logits, classes=1)), [[0.62, 0.19, 0.19], [0.96, 0.02, 0.02]]
    )
    np.testing.assert_allclose(
        np.exp(change_output("top", logits, classes=2)), [[0.62, 0.31, 0.07], [0.96, 0.03, 0.01]]
    )
    even = np.log(np.array([[0.26, 0.25, 0.25, 0.24]]))
    # what is not shown never gets more than what is
    assert change_output("top", even, classes=1).argmax() == 0
    with pytest.raises(ValueError, match="fewer than the model's 3"):
        change_output("top", logits, classes=3)
    with pytest.raises(ValueError, match="whole number"):
        change_output("rounding", logits, decimals=0.5)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("mixup", {}, "did you mean .mmd_mixup."),
        ("memguard", {}, "output defense"),
        ("l1", {"lamb": 1}, "has no option lamb; it has weight"),
        ("l1", {"weight": -1.0}, "at least 0"),
        ("l1", {"weight": True}, "at least 0"),
        (
            "label_smoothing",
            {"smoothing": 1.5},
            "smoothing=1.5; wanted a number of at least 0 and below 1",
        ),
        ("mmd_mixup", {"bandwidth": 0}, "bandwidth=0; wanted a number above 0"),
        (None, {"weight": 1.0}, "without a defense"),
    ],
)
def test_defenses_and_options_that_do_not_exist_are_refused_in_one_line(name, given, says):
    with pytest.raises(ValueError, match=says) as error:
        defenses.arguments(name, given)
    assert "\n" not in str(error.value)


def test_output_defenses_that_do_not_exist_are_refused_in_one_line():
    cases = [
        ("l1", {}, "changes the training"),
        ("noise", {}, "is none"),
        (None, {"classes": 2}, "is none"),
    ]
    cases += [
        ("top", {"k": 1}, "has no option k"),
        ("memguard", {"confidence": "x"}, "confidence='x': wanted more than 1/5"),
    ]
    cases += [
        ("top", {"classes": 5}, "fewer than the model's 5"),
        ("rounding", {"decimals": "1"}, "wanted a whole number"),
    ]
    for name, given, says in cases:
        with pytest.raises(ValueError, match=says) as error:
            defenses.output_arguments(name, given, 5)
        assert "\n" not in str(error.value)


def test_memguard_shows_half_for_the_label_and_of_two_classes_three_quarters():
    assert [defenses.output_arguments("memguard", {}, k)["confidence"] for k in (2, 3, 100)] == [
        0.75,
        0.5,
        0.5,
    ]
    assert defenses.output_arguments("memguard", {"confidence": 0.6}, 2) == {"confidence": 0.6}


def test_defaults_are_written_out_and_one_and_one_point_nought_are_the_same():
    assert defenses.arguments("mmd_mixup", {"held_out": 5, "alpha": 1}) == {
        "weight": 5e-4,
        "alpha": 1.0,
        "bandwidth": 1.0,
        "held_out": 5,
    }
    assert repr(defenses.arguments("l1", {"weight": 1})) == repr(
        defenses.arguments("l1", {"weight": 1.0})
    )


def test_the_dropout_defense_drops_the_features_before_the_last_linear_layer_in_training_only():
    net = nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 4))
    features = net[:2](x := torch.randn(2, 3))
    net = defenses.adapt(net, "dropout", {"rate": 0.5})
    kept = net.eval()(x)
    torch.testing.assert_close(kept, net[2][1](features))
    assert not torch.equal(net.train()(x), kept) and torch.equal(net.eval()(x), kept)
    with pytest.raises(ValueError, match="no linear layer"):
        defenses.adapt(nn.Conv2d(1, 1, 1), "dropout", {"rate": 0.5})
    with pytest.raises(ValueError, match="between 0 and 1"):
        defenses.adapt(nn.Linear(1, 1), "dropout", {"rate": 1.0})
