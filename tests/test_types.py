import pickle
from dataclasses import fields, replace

import mpmath
import numpy as np
import pytest

from mia_nb import attacks, metrics
from mia_nb.auditing.sentences import leading_members
from mia_nb.types import CUBES, PER_MODEL, Recipe, Scores, Signals, pair_ids

rng = np.random.default_rng(0)


def exact(z, y):
    """Margin, entropy and modified entropy in 200 digits, straight from their definitions."""
    with mpmath.workdps(200):
        e = [mpmath.exp(v) for v in z.tolist()]
        p = [v / mpmath.fsum(e) for v in e]
        rest = mpmath.fsum(v for c, v in enumerate(e) if c != y)
        margin = mpmath.log(e[y]) - mpmath.log(rest)
        entropy = -mpmath.fsum(v * mpmath.log(v) for v in p)
        not_p = [mpmath.fsum(w for d, w in enumerate(p) if d != c) for c in range(len(p))]
        modified = -not_p[y] * mpmath.log(p[y]) - mpmath.fsum(
            p[c] * mpmath.log(not_p[c]) for c in range(len(p)) if c != y
        )
        return [float(v) for v in (margin, entropy, modified)]


@pytest.mark.parametrize("scale", [0.1, 1, 10, 60])
def test_signals_equal_their_definitions_in_two_hundred_digits_even_where_softmax_saturates(scale):
    logits, labels = rng.normal(size=(2, 3, 6, 4)) * scale, rng.integers(0, 4, 6)
    signals = Signals.from_logits(logits, labels)
    for m, q, n in np.ndindex(2, 3, 6):
        wanted = exact(logits[m, q, n], labels[n])
        got = [signals.margin[m, q, n], signals.entropy[m, q, n], signals.modified_entropy[m, q, n]]
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-300)


def test_uniform_outputs_have_the_closed_form_entropies():
    k = 10
    signals = Signals.from_logits(np.zeros((1, 1, 1, k)), [3])
    assert signals.entropy.item() == pytest.approx(np.log(k))
    assert signals.modified_entropy.item() == pytest.approx(
        (k - 1) / k * (np.log(k) + np.log(k / (k - 1)))
    )
    assert not signals.correct.item(), "a tie of the argmax counts as wrong"


def test_margins_never_saturate_and_views_stay_finite():
    signals = Signals.from_logits(np.array([[[[800.0, 0.0], [-800.0, 0.0]]]]), [0, 0])
    assert signals.margin.ravel().tolist() == [800.0, -800.0]
    assert signals.loss.ravel().tolist() == [0.0, 800.0]


def test_two_classes_give_the_logit_difference_and_a_shift_changes_nothing():
    logits, labels = rng.normal(size=(3, 1, 20, 2)), rng.integers(0, 2, 20)
    signals = Signals.from_logits(logits, labels)
    sign = np.where(labels == 0, 1, -1)
    np.testing.assert_allclose(
        signals.margin[:, 0], sign * (logits[:, 0, :, 0] - logits[:, 0, :, 1]), rtol=1e-12
    )
    np.testing.assert_allclose(
        Signals.from_logits(logits + 7.5, labels).margin, signals.margin, atol=1e-12
    )


def test_the_temperature_divides_the_logits_first():
    logits, labels = rng.normal(size=(2, 1, 20, 5)), rng.integers(0, 5, 20)
    cold = Signals.from_logits(logits, labels, temperature=2.0)
    np.testing.assert_array_equal(cold.margin, Signals.from_logits(logits / 2, labels).margin)


def test_top_log_probabilities_are_the_sorted_query_mean():
    logits, labels = rng.normal(size=(2, 4, 7, 12)), rng.integers(0, 12, 7)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(
        Signals.from_logits(logits, labels).top_log_p,
        -np.sort(-log_p.mean(1), axis=-1)[..., :10],
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((1, 1, 2, 1)), [0, 0], "two or more"),
        (np.zeros((1, 1, 2, 3)), [0, 3], "labels run from 0 to 3"),
        (
            np.array([[[[0.0, 1], [np.nan, 0]]]]),
            [0, 0],
            "model 0 gives a non-finite output for sample 1",
        ),
        (np.full((1, 1, 3, 4), 0.25), [0, 1, 2], "probabilities were passed"),
        (np.zeros((1, 1, 3, 4)), [0, 1], "labels"),
    ],
)
def test_outputs_that_mean_nothing_are_refused(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        Signals.from_logits(logits, labels)


def test_holding_out_drops_the_target_and_its_complementary_model_and_hides_membership():
    half = rng.random((3, 40)) < 0.5
    member = np.stack([m for row in half for m in (row, ~row)])
    signals = Signals.from_logits(rng.normal(size=(6, 40, 3)), rng.integers(0, 3, 40), member)
    target, references = signals.hold_out(2)
    assert target.member is None and np.array_equal(target.margin[0], signals.margin[2])
    assert np.array_equal(references.margin, signals.margin[[0, 1, 4, 5]])
    assert np.array_equal(
        signals.hold_out(2, keep_complement=True)[1].margin, signals.margin[[0, 1, 3, 4, 5]]
    )


def test_recipes_survive_json_and_refuse_what_they_do_not_know():
    recipe = Recipe(model_args={"width": 8}, epochs=3)
    assert Recipe.from_json(recipe.to_json()) == recipe
    with pytest.raises(ValueError, match="epoch_count"):
        Recipe.from_json({"epoch_count": 3})
    for bad in ({"epochs": 0}, {"split": "halves"}, {"lr": 0.0}, {"population": -1}):
        with pytest.raises(ValueError):
            Recipe(**bad)


def world():
    member = rng.random((6, 40)) < 0.5
    return Signals.from_logits(
        rng.normal(size=(6, 3, 40, 4)), rng.integers(0, 4, 40), member, query_kind="noise"
    )


HOLES = {  # array, where, what
    "a NaN": ("margin", (2, 1, 7), np.nan, "margin of model 2 is nan for sample 7, the first of 1"),
    "infinity": ("margin", (0, 0, 3), -np.inf, "margin of model 0 is -inf for sample 3"),
    "both infinities": (
        "margin",
        ([1, 5], 0, 2),
        [np.inf, -np.inf],
        "margin of model 1 is inf for sample 2, the first of 2",
    ),
    "a model": ("margin", 4, np.nan, "margin of model 4 is nan for sample 0, the first of 120"),
    "a sample": ("margin", (..., 39), np.nan, "model 0 is nan for sample 39, the first of 18"),
    "some entropies": ("entropy", (1, 0, 5), np.nan, "entropy of model 1 is nan for sample 5"),
    "of one model": ("modified_entropy", 3, np.nan, "modified_entropy of model 3"),
    "a probability": ("top_log_p", (1, 6, 2), np.nan, "top_log_p of model 1 is nan for sample 6"),
}


@pytest.mark.parametrize("shape", [(6, 39, 4), (5, 40, 4), (6, 40), ()])
def test_sorted_probabilities_of_other_models_or_samples_are_refused(shape):
    with pytest.raises(ValueError, match="top_log_p has shape"):
        replace(world(), top_log_p=np.zeros(shape, np.float32))


@pytest.mark.parametrize("what", HOLES)
def test_what_is_missing_in_signals_is_refused_with_its_place_and_how_many(what):
    name, where, value, says = HOLES[what]
    whole = world()
    array = getattr(whole, name).copy()
    array[where] = value
    with pytest.raises(ValueError, match=says) as refused:
        replace(whole, **{name: array})
    assert "\n" not in str(refused.value)


def test_a_hole_that_was_made_later_is_refused_by_every_score_and_leaving_it_out_helps():
    signals = world()
    signals.margin[2, :, 7] = np.nan
    for given in ((signals,), (world(), signals)):
        given = [replace(one, labels=signals.labels) for one in given[:-1]] + [given[-1]]
        with pytest.raises(ValueError, match="margin of model 2 is nan for sample 7, the first of"):
            attacks.score("rmia", *given)
    rest = signals.select(samples=np.arange(40) != 7)
    assert np.isfinite(attacks.score("loss", rest).value).all()


def test_finite_margins_whose_sum_is_infinite_are_allowed():
    signals = world()
    replace(signals, margin=np.full_like(signals.margin, 1e308))


def test_entropies_that_are_not_there_at_all_are_allowed():
    signals = world()
    replace(signals, entropy=np.full_like(signals.entropy, np.nan))


PICKS = {
    "nothing": (None, None, None),
    "lists": ([4, 1, 1], [2, 0], [7, 3, 39]),
    "slices": (slice(1, 5), slice(None, None, 2), slice(5, -1, 3)),
    "backwards": (slice(None, None, -1), slice(None, 1), slice(30, None, -7)),
    "masks": (np.arange(6) > 2, [True, False, True], np.arange(40) % 3 == 1),
    "numbers": (2, 1, 5),
    "none of them": (slice(0, 0), slice(0, 0), slice(9, 2)),
}


@pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS)
@pytest.mark.parametrize(
    "again", [(None, None, None), ([1, 0], None, slice(0, 2)), (slice(0, 1), [0], None)]
)
def test_a_selection_of_a_selection_is_numpys_own(pick, again):
    whole = world()
    if min(whole.select(*pick).shape) < 2:  # nothing left to choose from
        again = (None, None, None)
    m, q, n = (
        slice(None) if i is None else np.atleast_1d(i) if not isinstance(i, slice) else i
        for i in pick
    )
    m2, q2, n2 = (slice(None) if i is None else i for i in again)
    part = whole.select(*pick).select(*again)
    for name in PER_MODEL:
        value = getattr(whole, name)
        if name in CUBES:
            expected = value[m][:, q][:, :, n][m2][:, q2][:, :, n2]
            assert part.shape == expected.shape
        else:
            expected = value[m][:, n][m2][:, n2]
        assert np.array_equal(getattr(part, name), expected)
    assert np.array_equal(part.labels, whole.labels[n][n2])


def test_signals_are_a_plain_record():
    whole = world()
    part = whole.select(models=slice(0, 4, 2))
    assert part.shape == (2, 3, 40) and set(vars(part)) == {f.name for f in fields(Signals)}
    assert all(np.shares_memory(getattr(part, name), getattr(whole, name)) for name in PER_MODEL)
    assert part.hide().member is None and part.member is not None
    assert part.hide().select(models=[0]).member is None
    with pytest.raises(AttributeError):
        part.marginal  # noqa: B018
    with pytest.raises(ValueError, match="picks nothing from an axis of 2"):
        part.select(models=[2])


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.float16])
def test_scores_of_any_numbers_are_float64_and_rank_as_they_did(dtype):
    info = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else None
    low, high = (info.min, info.max) if info else (0, 1)
    value = np.array([[low, high, low, high, high, low]]).astype(dtype)
    member = np.array([[False, True, False, True, True, True]])
    nothing = np.full((1, 2), np.nan)
    scores = Scores(value, member, np.arange(1), np.arange(1), nothing, nothing, {})
    assert scores.value.dtype == np.float64 and scores.value.tolist() == [[*map(float, value[0])]]
    assert metrics.auc(scores.value[0], member[0]) == 0.875
    assert leading_members(scores.value[0], member[0]) == 3
    for wrong in (value.astype(complex), value.astype(str), value.astype(object)):
        with pytest.raises(ValueError, match="value="):
            replace(scores, value=wrong)


def test_a_pair_has_one_number_in_order_of_appearance():
    half, other = rng.random((2, 40)) < 0.5
    assert pair_ids(np.array([half, other, ~half, half, ~other])).tolist() == [0, 1, 0, 0, 1]
    assert pair_ids(np.zeros((2, 0), bool)).tolist() == [0, 0]


def test_a_selection_survives_pickling_without_the_rest():
    whole = world()
    raw = pickle.dumps(whole.select(models=[1]))
    again = pickle.loads(raw)
    assert len(raw) < len(pickle.dumps(whole)) / 4
    assert all(
        np.array_equal(getattr(again, name), getattr(whole, name)[1:2]) for name in PER_MODEL
    )
