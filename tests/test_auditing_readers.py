"""What people have is read, or refused in one line whose advice works."""

from __future__ import annotations

import re
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

import mia_nb as mia
from mia_nb.auditing import read_outputs
from mia_nb.auditing.model_outputs import logits_of, named_classes, outputs
from mia_nb.auditing.raw_inputs import numbers_of, raw_inputs_guard
from mia_nb.auditing.samples import both_sides, reads_differ, sample_of

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 8)).astype(np.float32), np.arange(200) % 2
Z = RNG.normal(size=(6, 3))
Pair = namedtuple("Pair", "logits aux")


def audit(model, x=X, y=Y, **options):
    half = len(y) // 2
    return mia.audit(model, (x[:half], y[:half]), (x[half:], y[half:]), n_resamples=20, **options)


OUTPUTS = {
    "array": Z,
    "tensor": torch.tensor(Z),
    "lists": Z.tolist(),
    "dict": {"loss": 0.3, "logits": Z},
    "record": SimpleNamespace(logits=torch.tensor(Z), hidden_states=None),
    "named tuple": Pair(Z, Z[:, :1]),
    "(logits, feature maps)": (Z, Z[:, :, None, None]),
    "(loss, logits)": (np.float64(1.5), torch.tensor(Z)),
    "(logits, None)": (Z, None),
}


@pytest.mark.parametrize("form", OUTPUTS)
def test_logits_are_found_in_what_a_model_gives(form):
    np.testing.assert_allclose(logits_of(OUTPUTS[form], 6), Z)


@pytest.mark.parametrize("z", [Z[:, 0] * 3, Z[:, :1] * 3, torch.tensor(Z[:, 0]) * 3])
def test_one_logit_is_that_of_the_second_of_two_classes(z):
    logits = logits_of(z, 6)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], np.reshape(z, -1))


REFUSED = {
    "dict without logits": ({"scores": Z, "loss": 1.0}, "dict with ['scores', 'loss']"),
    "two candidates": ((Z, Z), "wanted one entry (batch, classes) and no other"),
    "one logit and features": ((Z[:, :1], Z), "wanted one entry (batch, classes) and no other"),
    "features and one logit": ((Z, Z[:, 0]), "wanted one entry (batch, classes) and no other"),
    "no candidate": ((Z[:, 0], Z[:2]), "wanted one entry (batch, classes) and no other"),
    "too few rows": (Z[:4], "wanted (batch, classes) logits"),
    "four axes": (Z[None, None], "wanted (batch, classes) logits"),
    "a word": ("yes", "wanted (batch, classes) logits"),
    "None": (None, "wanted (batch, classes) logits"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_holds_no_logits_is_refused_in_a_line_that_says_what_came(form):
    output, reason = REFUSED[form]
    with pytest.raises(ValueError) as refused:
        logits_of(output, 6)
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_the_advice_on_one_probability_works():
    weights = RNG.normal(size=8)
    model = lambda x: 1 / (1 + np.exp(-x @ weights))  # noqa: E731
    with pytest.raises(
        ValueError, match=r"pass logits, or np\.log\(p / \(1 - p\)\) with p clipped"
    ):
        audit(model)

    def mended(x):
        p = model(x)
        p = p.clip(1e-6, 1 - 1e-6)
        return np.log(p / (1 - p))

    assert audit(mended).signals.shape == (1, 1, 200)


@pytest.mark.parametrize("batch", [1, 2, 199, 512])
def test_logits_of_one_batch_that_lie_between_0_and_1_by_chance_are_no_probabilities(batch):
    shuffled = np.random.default_rng(0).permutation(200)  # the order in which samples are queried
    z = np.full(200, -3.0)
    z[shuffled[-1]] = 0.5  # alone in the last of 199 and 1
    z[:2] = 0.5  # the second query has the first samples
    numbers = np.arange(200.0)[:, None]
    audited = audit(lambda x: z[x[:, 0].astype(int)], x=numbers, batch=batch)
    np.testing.assert_array_equal(np.abs(audited.signals.margin[0, 0]), np.abs(z))


def test_as_many_events_as_time_steps_are_no_probabilities_where_one_logit_lies_between_0_and_1():
    class Spiking(torch.nn.Module):
        timesteps = 2

        def forward(self, x):
            return x.flatten(1)[:, :1]

    events = np.full((2, 2, 1, 1, 1), 0.5, np.float32)
    events[1] = -3
    logits = outputs(Spiking(), events)
    np.testing.assert_allclose(logits, [[0, 0.5], [0, -3]])


def test_a_binary_network_of_one_output_is_audited_as_it_is():
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    audited = audit(net)
    with torch.inference_mode():
        z = net(torch.tensor(X))[:, 0].double().numpy()
    np.testing.assert_allclose(audited.signals.margin[0, 0], np.where(Y == 1, z, -z), atol=1e-5)


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), RandomForestClassifier(20, random_state=0), LinearSVC()]
)
def test_an_estimator_of_scikit_learn_is_audited_as_it_comes(estimator):
    model = estimator.fit(X[:100], Y[:100])
    right = audit(model).signals.correct[0, 0].mean()
    assert right == pytest.approx(
        (model.predict(X) == Y).mean(),
        abs=0.05,  # ties count as wrong
    )


def test_an_estimator_of_other_classes_is_refused_with_advice_that_works():
    words = np.array(["no", "yes"])[Y]
    model = LogisticRegression().fit(X[:100], words[:100])
    with pytest.raises(ValueError, match=r"classes are .*np\.unique"):
        audit(model)
    with pytest.raises(ValueError, match=r"labels .*np\.unique"):
        audit(lambda x: 3 * x[:, :2], y=words)
    numbers = np.unique(words, return_inverse=True)[1]
    assert audit(LogisticRegression().fit(X[:100], numbers[:100]), y=numbers)


NO_AUDIT = {  # an estimator, fitted or not, and what is said of it
    "not fitted": (LogisticRegression(), False, "not fitted; wanted a fitted classifier"),
    "a pipeline that is not fitted": (
        make_pipeline(StandardScaler(), LogisticRegression()),
        False,
        "not fitted; wanted a fitted classifier",
    ),
    "a regressor": (Ridge(), True, "a regressor, .* wanted a fitted classifier"),
    "a pipeline of a regressor": (
        make_pipeline(StandardScaler(), Ridge()),
        True,
        "a regressor, .* wanted a fitted classifier",
    ),
    "votes": (
        VotingClassifier([("one", LogisticRegression()), ("two", LinearSVC())]),
        True,
        "the predicted class alone; wanted predict_proba or",
    ),
    "a class": (LogisticRegression, False, "is a class; wanted a trained model of it"),
    "a class of networks": (torch.nn.Linear, False, "is a class; wanted a trained model of it"),
}


@pytest.mark.parametrize("kind", NO_AUDIT)
@pytest.mark.parametrize("words", [False, True])
def test_an_estimator_that_cannot_be_audited_is_refused_with_the_reason(kind, words):
    model, fitted, says = NO_AUDIT[kind]
    if fitted:
        model = clone(model).fit(X[:100], Y[:100])
    with pytest.raises(ValueError, match=says) as told:
        audit(model, y=np.array(["no", "yes"])[Y] if words else Y)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("classes", [3, 4])
@pytest.mark.parametrize(
    "wrap", [lambda svc: svc, lambda svc: make_pipeline(StandardScaler(), svc)]
)
def test_scores_of_pairs_of_classes_are_not_taken_for_those_of_classes(classes, wrap):
    y = np.arange(200) % classes
    model = wrap(SVC(decision_function_shape="ovo")).fit(X[:100], y[:100])
    with pytest.raises(ValueError, match=r"decides between pairs .*decision_function_shape='ovr'"):
        audit(model, y=y)
    model.set_params(**{name: "ovr" for name in model.get_params() if name.endswith("n_shape")})
    accuracy = (model.predict(X) == y).mean()
    assert audit(model, y=y).signals.correct.mean() == pytest.approx(accuracy, abs=0.05)


@pytest.mark.parametrize("wrap", [lambda search: search, make_pipeline])
def test_pairs_of_classes_are_found_where_a_search_chose_them(wrap):
    y = np.arange(200) % 3
    search = GridSearchCV(SVC(), {"decision_function_shape": ["ovo"]}, cv=2)
    with pytest.raises(ValueError, match="decides between pairs"):
        audit(wrap(search).fit(X[:100], y[:100]), y=y)


def test_an_estimator_whose_parts_decide_between_pairs_has_scores_of_its_own():
    y = np.arange(200) % 3
    model = OneVsRestClassifier(SVC(decision_function_shape="ovo")).fit(X[:100], y[:100])
    accuracy = (model.predict(X) == y).mean()
    assert audit(model, y=y).signals.correct.mean() == accuracy


def test_of_two_classes_there_is_one_pair():
    assert audit(SVC(decision_function_shape="ovo").fit(X[:100], Y[:100])).signals.shape


LABELS = {  # what an estimator was trained on in place of 0 and 1
    "words": ["no", "yes"],
    "signs": [-1, 1],
    "from 1": [1, 2],
    "whole floats": [1.0, 2.0],
    "truth": [False, True],
    "far apart": [3, 10**9],
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("estimator", [LogisticRegression(), LinearSVC()])
@pytest.mark.parametrize("form", [np.array, pd.Series, list, lambda y: np.array(y)[:, None]])
def test_labels_of_an_estimator_are_numbered_as_its_classes(kind, estimator, form):
    named = np.array(LABELS[kind])[Y].tolist()
    model = clone(estimator).fit(X[:100], named[:100])
    plain = clone(estimator).fit(X[:100], Y[:100])
    parts = [(X[part], form(named[part])) for part in (slice(100), slice(100, 200))]
    known = named_classes(model)
    x, y, member = both_sides(*parts, known)
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(member, np.arange(200) < 100)
    np.testing.assert_allclose(outputs(model, x, estimator_classes=known), outputs(plain, X))


@pytest.mark.parametrize("kind", ["words", "whole floats", "truth"])
def test_an_audit_names_the_classes_of_an_estimator(kind):
    named = np.array(LABELS[kind])[Y]
    found = audit(LogisticRegression().fit(X[:100], named[:100]), y=named)
    plain = outputs(LogisticRegression().fit(X[:100], Y[:100]), X)
    margin = np.where(Y == 1, 1, -1) * (plain[:, 1] - plain[:, 0])
    np.testing.assert_allclose(found.signals.margin[0, 0], margin)
    assert [*found.by_class.index] == ([*map(str, LABELS[kind])] if kind != "truth" else ["0", "1"])


@pytest.mark.parametrize("odd", ["maybe", None, 1, float("nan")])
def test_a_label_that_an_estimator_does_not_have_is_refused_by_its_side(odd):
    words = np.array(["no", "yes"], object)[Y]
    model = LogisticRegression().fit(X[:100], words[:100].astype(str))
    words[150] = odd
    with pytest.raises(
        ValueError, match=r"classes are \['no', 'yes'\], and test has labels"
    ) as told:
        audit(model, y=words)
    assert "\n" not in str(told.value)


def test_models_beside_an_estimator_have_its_classes_or_numbers_from_0(tmp_path):
    words = np.array(["no", "yes"])[Y]
    halves = [np.random.default_rng(s).random(200) < 0.5 for s in range(4)]
    halves += [~half for half in halves]
    model = LogisticRegression().fit(X[:100], words[:100])

    def given(y):
        return [(LogisticRegression().fit(X[half], y[half]), half) for half in halves]

    found = [audit(model, y=words, references=given(y)) for y in (words, Y)]
    np.testing.assert_allclose(found[0].signals.margin, found[1].signals.margin)
    with pytest.raises(ValueError, match=r"\['a', 'b'\]; wanted \['no', 'yes'\] or class numbers"):
        audit(model, y=words, references=given(np.array(["a", "b"])[Y]))
    with pytest.raises(ValueError, match=r"classes are .*train it on np\.unique"):
        audit(MultiOutputClassifier(LogisticRegression()).fit(X[:100], np.c_[Y, Y][:100]))


def people(n=200) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"age": rng.integers(18, 80, n), "pay": rng.normal(size=n)})
    return table.assign(town=rng.choice(["a", "b", "c"], n)).set_index(rng.permutation(n) + 1000)


def by_name() -> object:
    columns = [("n", StandardScaler(), ["pay", "age"])]
    columns += [("t", OneHotEncoder(handle_unknown="ignore"), ["town"])]
    return make_pipeline(ColumnTransformer(columns), LogisticRegression())


def test_a_pipeline_that_picks_columns_by_name_gets_a_table_in_whatever_order(tmp_path):
    table = people()
    model = by_name().fit(table[:100], Y[:100])
    parts = (table[:100], Y[:100]), (table[100:], pd.Series(Y[100:], index=table.index[100:]))
    found = mia.audit(model, *parts, n_resamples=20)
    z = np.log(model.predict_proba(table))
    np.testing.assert_allclose(found.signals.margin[0, 0], np.where(Y, 1, -1) * (z[:, 1] - z[:, 0]))
    assert 0 < found.shift.auc < 1  # raw inputs were compared
    turned = (table[["town", "pay", "age"]][100:], Y[100:])
    again = mia.audit(model, parts[0], turned, n_resamples=20)
    np.testing.assert_array_equal(again.signals.margin, found.signals.margin)

    def retrain(rows, labels, seed):
        return by_name().fit(rows, labels)

    twins = mia.audit(model, *parts, retrain=retrain, root=tmp_path, models=4, n_resamples=20)
    assert twins.twins.signals.shape == (4, 1, 200)
    with pytest.raises(ValueError, match=r"columns of train are .*, of test .*; wanted the same"):
        mia.audit(model, parts[0], (table[100:].drop(columns="town"), Y[100:]))
    with pytest.raises(
        ValueError, match=r"fails on a batch \(200, 2\) of columns \['age', 'pay'\]"
    ):
        half = table.drop(columns="town")
        mia.audit(model, (half[:100], Y[:100]), (half[100:], Y[100:]))


def test_a_function_gets_arrays_of_a_table():
    table = people()[["age", "pay"]]
    shapes = []

    def model(batch):
        shapes.append(type(batch))
        return np.stack([0 * batch[:, 1], batch[:, 1]], axis=1)

    mia.audit(model, (table[:100], Y[:100]), (table[100:], Y[100:]), n_resamples=20)
    assert {*shapes} == {np.ndarray}


@pytest.mark.parametrize("array", [False, True])
def test_the_shift_guard_sees_towns_that_only_one_side_has(array):
    table = people()
    model = lambda x: np.stack([0 * x[:, 1], x[:, 1]], 1).astype(float)  # noqa: E731
    shifted = table.assign(town=np.where(np.arange(200) < 100, table.town, "elsewhere"))
    for frame, passed in ((table, True), (shifted, False)):
        x = frame.to_numpy() if array else frame
        assert audit(model, x=x).shift.passed is passed


def test_numbers_of_a_mixed_table_are_its_numbers_and_one_column_a_word():
    table = pd.DataFrame({"a": [1, 2, None], "b": ["x", "y", "x"], "c": [True, False, True]})
    numbers = numbers_of(table)
    assert numbers.shape == (3, 4)
    assert numbers[:, 1].tolist() == [1, 0, 1] and numbers[:, 2].tolist() == [0, 1, 0]
    assert np.isnan(numbers[2, 0])
    assert numbers_of(np.array(["some", "texts"])) is None
    assert numbers_of(pd.DataFrame({"id": [f"p{i}" for i in range(99)]})).shape == (99, 20)


@pytest.mark.parametrize("zone", [None, "Europe/Rome"])
def test_dates_are_compared_as_numbers(zone):
    days = pd.Series(pd.date_range("2020-01-01", periods=200, tz=zone))
    days[3] = None
    numbers = numbers_of(pd.DataFrame({"day": days}))
    assert numbers.shape == (200, 1) and np.isnan(numbers).sum() == 1
    later = np.arange(200) >= 100
    for member, passed in ((~later, False), (np.arange(200) // 2 % 2 == 0, True)):
        assert raw_inputs_guard(pd.DataFrame({"day": days}), Y, member, 0).passed is passed


def test_an_infinite_number_hides_no_shift_of_its_column():
    x = np.random.default_rng(2).normal(size=(400, 2))
    member = np.arange(400) < 200
    x[member] += 1
    x[7, 0], x[9, 1], x[300, 1] = np.inf, -np.inf, np.nan
    assert not raw_inputs_guard(x, np.arange(400) % 2, member, 0).passed


@pytest.mark.parametrize(
    ("names", "others"),
    [(["a", "a"], ["a", "a"]), ([0, 1], ["0", "1"]), (["a", "b"], ["a", "a"]), ([0, 1], [0, 1, 2])],
)
def test_columns_of_both_sides_are_the_same_names_each_once(names, others):
    sides = [(pd.DataFrame(np.ones((4, len(n))), columns=n), [0, 1] * 2) for n in (names, others)]
    with pytest.raises(ValueError, match="wanted the same names, each once"):
        both_sides(*sides)


class Items:
    """A data set whose items have this form."""

    def __init__(self, form, part):
        self.form, self.rows = form, np.arange(200)[part]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.form(X[self.rows[i]], int(Y[self.rows[i]]), i)


FORMS = {
    "pair": lambda x, y, i: (x, y),
    "list": lambda x, y, i: [x, y],
    "with its number": lambda x, y, i: (x, y, i),
    "image and label": lambda x, y, i: {"image": x, "label": y},
    "img and fine_label": lambda x, y, i: {"img": x, "fine_label": y, "id": i},
    "pixel_values and labels": lambda x, y, i: {"pixel_values": torch.tensor(x), "labels": y},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loader", [False, True])
def test_items_of_every_usual_form_are_the_same_samples(form, loader):
    parts = [Items(FORMS[form], slice(0, 100)), Items(FORMS[form], slice(100, 200))]
    if loader:
        parts = [torch.utils.data.DataLoader(part, 16, shuffle=True) for part in parts]
    x, y, member = both_sides(*parts)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(member, np.arange(200) < 100)


class Odd(torch.utils.data.Sampler):
    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        return iter(self.numbers)


EVERY_THIRD = np.arange(0, 150, 3)
SHUFFLED = RNG.permutation(EVERY_THIRD).tolist()
BATCHES = torch.utils.data.BatchSampler(
    torch.utils.data.SubsetRandomSampler(SHUFFLED), 7, drop_last=False
)
LOADERS = {  # how a DataLoader draws from the data set, and the numbers of what it draws
    "a subset": ({"sampler": torch.utils.data.SubsetRandomSampler(SHUFFLED)}, EVERY_THIRD),
    "a subset in a tensor": (
        {"sampler": torch.utils.data.SubsetRandomSampler(torch.tensor(SHUFFLED))},
        EVERY_THIRD,
    ),
    "a subset by batches": ({"batch_sampler": BATCHES}, EVERY_THIRD),
    "a subset without batches": (
        {"sampler": torch.utils.data.SubsetRandomSampler(SHUFFLED), "batch_size": None},
        EVERY_THIRD,
    ),
    "a subset by batches of batches": (
        {"sampler": BATCHES, "batch_size": None},
        EVERY_THIRD,
    ),
    "a list": ({"sampler": SHUFFLED}, EVERY_THIRD),
    "a tensor": ({"sampler": torch.tensor(SHUFFLED)}, EVERY_THIRD),
    "a list of batches": ({"batch_sampler": [SHUFFLED[:7], SHUFFLED[7:]]}, EVERY_THIRD),
    "weights": (
        {"sampler": torch.utils.data.WeightedRandomSampler(np.arange(100) % 2.0, 30)},
        np.arange(1, 100, 2),
    ),
    "a shorter range": ({"sampler": torch.utils.data.RandomSampler(range(40))}, np.arange(40)),
    "few of all": (
        {"sampler": torch.utils.data.RandomSampler(range(150), num_samples=9)},
        np.arange(150),
    ),
    "shuffled": ({"shuffle": True, "drop_last": True, "batch_size": 64}, np.arange(150)),
}


@pytest.mark.parametrize("how", LOADERS)
def test_what_a_loader_does_not_draw_is_no_sample_of_its_side(how):
    options, numbers = LOADERS[how]
    data = Items(FORMS["pair"], slice(0, 150))
    drawn = torch.utils.data.DataLoader(data, **options)
    x, _, member = both_sides(drawn, Items(FORMS["pair"], slice(150, 200)))
    np.testing.assert_array_equal(x[member], X[numbers])


@pytest.mark.parametrize("options", [{"sampler": Odd([1, 2])}, {"batch_sampler": Odd([[1, 2]])}])
def test_a_loader_that_may_draw_anything_is_refused_with_what_to_pass(options):
    data = Items(FORMS["pair"], slice(0, 150))
    drawn = torch.utils.data.DataLoader(data, **options)
    with pytest.raises(
        ValueError, match=r"test cannot be read .*draws is not known; pass .*Subset"
    ):
        both_sides(data, drawn)


@pytest.mark.parametrize(
    "item", [{"a": 1, "b": 2}, {"image": 1, "x": 2, "label": 0}, (1,), np.ones(4)]
)
def test_an_item_without_one_input_and_one_label_is_refused(item):
    with pytest.raises(ValueError, match="wanted"):
        sample_of(item)


AUGMENTED = "for the same samples when it is read again. Random augmentation"


@pytest.mark.parametrize("sides", [(), ("train",), ("test",), ("train", "test")])
@pytest.mark.parametrize("loader", [False, True])
def test_random_augmentation_that_was_left_on_is_said_first(sides, loader):
    rng = np.random.default_rng(0)

    def augmented(x, y, i):
        return (x[::-1].copy() if rng.random() < 0.2 else x), y

    parts = {"train": slice(0, 100), "test": slice(100, 200)}
    sets = []
    for side, part in parts.items():
        data = Items(augmented if side in sides else FORMS["pair"], part)
        sets.append(torch.utils.data.DataLoader(data, shuffle=True) if loader else data)
    found = mia.audit(lambda x: 3 * x[:, :2], *sets, n_resamples=20)
    said = f"Look at the inputs first: {' and '.join(sides)} gives others {AUGMENTED}"
    remarks = [remark for remark in found.remarks if AUGMENTED in remark]
    assert len(remarks) == bool(sides) and all(remark.startswith(said) for remark in remarks)


def test_rounding_that_differs_between_two_readings_is_no_augmentation():
    rng = np.random.default_rng(0)

    def rounded(x, y, i):
        return (1 + 1e-6 * rng.normal(size=x.shape)) * x, y

    assert not reads_differ(Items(rounded, slice(0, 20)))


class Masked(torch.nn.Module):
    """Means over the tokens that a mask shows; without it over all, as of transformers."""

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        mean = (input_ids * attention_mask).sum(1) / attention_mask.sum(1)
        return {"logits": torch.stack([mean, 3 - mean], 1)}


IDS = RNG.integers(0, 6, (200, 5))
MASK = (np.arange(5) < RNG.integers(1, 6, (200, 1))).astype(int)


@pytest.mark.parametrize("kind", [torch.tensor, np.array, np.ndarray.tolist])
@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids"])
def test_a_mask_that_a_model_would_not_be_given_is_refused_with_advice_that_works(kind, name):
    items = [
        {"input_ids": kind(ids), name: kind(mask), "labels": int(label)}
        for ids, mask, label in zip(IDS, MASK, Y, strict=True)
    ]
    with pytest.raises(ValueError, match=rf"items hold {name}.*; stack them .*unbind\(1\)") as told:
        mia.audit(Masked(), items[:100], items[100:])
    assert "\n" not in str(told.value)
    told_apart = audit(
        lambda x: Masked()(*torch.as_tensor(x).unbind(1)), np.stack([IDS, MASK], 1)
    ).signals
    wanted = Masked()(torch.tensor(IDS), torch.tensor(MASK))["logits"].numpy()
    margin = np.where(Y == 1, 1, -1) * (wanted[:, 1] - wanted[:, 0])
    np.testing.assert_allclose(told_apart.margin[0, 0], margin, atol=1e-5)


def test_a_mask_that_changes_nothing_is_let_pass():
    usual = {"attention_mask": np.ones(5, int), "token_type_ids": [0] * 5}
    items = [usual | {"input_ids": ids, "labels": label} for ids, label in zip(IDS, Y, strict=True)]
    np.testing.assert_array_equal(both_sides(items[:100], items[100:])[0], IDS)


@pytest.mark.parametrize(
    "x",
    [
        (IDS, MASK),
        [torch.tensor(IDS), torch.tensor(MASK)],
        (IDS, MASK, MASK),
        {"input_ids": IDS, "attention_mask": MASK},
    ],
)
def test_several_inputs_in_place_of_samples_are_refused_with_advice(x):
    with pytest.raises(ValueError, match=r"train cannot be read .*stack them .*unbind\(1\)"):
        mia.audit(Masked(), (x, Y), (IDS, Y))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_one_number_that_is_not_finite_does_not_end_an_audit(kind, value):
    x = X.astype(kind)
    x[7, 2] = value
    assert audit(lambda rows: 3 * np.tanh(rows[:, :2]), x=x).shift.auc > 0


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), ZeroDivisionError("by zero")])
def test_what_a_model_or_a_training_raises_is_said_with_its_cause(error, tmp_path):
    def fails(*_):
        raise error

    with pytest.raises(ValueError, match="the model fails on a batch") as refused:
        audit(fails)
    assert refused.value.__cause__ is error
    with pytest.raises(ValueError, match=r"retrain\(images, labels, seed\) fails") as refused:
        audit(lambda x: 3 * x[:, :2], retrain=fails, key="fails", root=tmp_path, models=4)
    assert refused.value.__cause__ is error


def test_a_training_of_one_argument_is_refused_by_what_it_is_called_with(tmp_path):
    with pytest.raises(ValueError, match=r"retrain\(images, labels, seed\) fails"):
        audit(lambda x: 3 * x[:, :2], retrain=lambda x: x, root=tmp_path, models=4)


def test_whole_numbers_in_a_column_of_objects_are_labels():
    model = lambda x: 3 * x[:, :2]  # noqa: E731
    plain = audit(model).signals.margin
    for labels in (pd.Series(Y, dtype=object), np.array([int(y) for y in Y], object)):
        np.testing.assert_array_equal(audit(model, y=labels).signals.margin, plain)
    for odd in ("1", None, 0.5):
        labels = np.array([*Y[:-1], odd], object)
        with pytest.raises(ValueError, match="test has labels"):
            audit(model, y=labels)


@pytest.mark.parametrize("kind", ["csr_matrix", "coo_array"])
def test_a_sparse_matrix_is_refused_with_advice_that_works(kind):
    model = LogisticRegression().fit(getattr(sparse, kind)(X[:100]), Y[:100])
    x = getattr(sparse, kind)(X)
    parts = [(getattr(sparse, kind)(X[part]), Y[part]) for part in (slice(100), slice(100, 200))]
    with pytest.raises(ValueError, match=rf"x is a sparse {kind}; pass x.toarray\(\)"):
        mia.audit(model, *parts)
    assert audit(model, x=x.toarray()).signals.shape == (1, 1, 200)


def test_groups_may_be_numbers_and_text_together():
    groups = np.array([1, "b", None, 2.5] * 50, object)
    table = audit(lambda x: 3 * x[:, :2], groups=groups).by_group
    assert sorted(table.index) == ["1", "2.5", "None", "b"]


# --------------------------------------------------------------------------------------------------
# tables of outputs


def outputs_table(samples=120) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    z = 3 * rng.normal(size=(samples, 3))
    table = pd.DataFrame(z, columns=["cat", "dog", "eel"])
    return table.assign(label=z.argmax(1), member=np.arange(samples) % 2 == 0)


WRITTEN = {  # a table that says the same, and how it is written
    "plain": (lambda t: t, {}),
    "ones and zeros": (lambda t: t.assign(member=t.member.astype(int)), {}),
    "ones and zeros in floats": (lambda t: t.assign(member=t.member.astype(float)), {}),
    "in another order": (lambda t: t[["member", "cat", "label", "dog", "eel"]], {}),
    "of a spreadsheet": (lambda t: t, {"encoding": "utf-8-sig", "lineterminator": "\r\n"}),
    "quoted": (lambda t: t, {"quoting": 1}),
    "labels by name": (lambda t: t.assign(label=t.columns[t.label]), {}),
    "whole floats": (lambda t: t.assign(label=t.label.astype(float)), {}),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_a_table_of_one_models_outputs_is_the_npz_of_the_same_arrays(tmp_path, how):
    table = outputs_table()
    change, options = WRITTEN[how]
    change(table).to_csv(tmp_path / "x.csv", index=False, **options)
    read = read_outputs(tmp_path / "x.csv")
    logits = table[["cat", "dog", "eel"]].to_numpy()[None]
    labels = table.label.astype(float)
    arrays = {"logits": logits, "labels": labels, "member": table.member.to_numpy()[None]}
    np.savez(tmp_path / "x.npz", **arrays)
    same = read_outputs(tmp_path / "x.npz")
    assert read.classes == ("cat", "dog", "eel") and read.signals.info["family"] == "x"
    for field in ("margin", "labels", "member"):
        np.testing.assert_array_equal(getattr(read.signals, field), getattr(same.signals, field))


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("classes", [range(12), range(7, 10), (30, 4)])
def test_labels_that_are_numbers_of_named_columns_are_names_in_whatever_order_columns_stand(
    tmp_path, classes, kind
):
    rng = np.random.default_rng(1)
    label = rng.integers(0, len(classes), 90)
    z = rng.normal(size=(90, len(classes))) + 20 * np.eye(len(classes))[label]
    z = pd.DataFrame(z, columns=[*map(str, classes)])
    table = z[sorted(z.columns)]  # as text: 0, 1, 10, 11, 2
    table = table.assign(label=np.array(classes, kind)[label], member=np.arange(90) % 2)
    table.to_csv(tmp_path / "x.csv", index=False)
    read = read_outputs(tmp_path / "x.csv")
    assert (read.signals.margin > 0).all()  # every sample's largest logit is that of its label
    wanted = [str(classes[number]) for number in label]
    assert [read.classes[number] for number in read.signals.labels] == wanted


def test_labels_beside_other_numbers_of_columns_are_their_places(tmp_path):
    table = outputs_table().rename(columns={"cat": "1", "dog": "2", "eel": "3"})
    table.to_csv(tmp_path / "x.csv", index=False)
    np.testing.assert_array_equal(read_outputs(tmp_path / "x.csv").signals.labels, table.label)


EXTRA = {  # columns beside cat, dog and eel, and the names that are asked about
    "none": ([], ""),
    "a number of each sample": (["age"], "['age']"),
    "two of them": (["age", "prob_cat"], "['age', 'prob_cat']"),
    "classes that are rare, it seems": (["fox", "gnu", "hen"], ""),
}


def test_a_class_by_number_that_no_sample_has_is_no_column_to_leave_out(tmp_path):
    labels = RNG.permutation(np.arange(200) % 97)
    table = pd.DataFrame(RNG.normal(size=(200, 100))).assign(label=labels, member=labels % 2)
    table.to_csv(tmp_path / "x.csv", index=False)
    assert "no sample has" not in "".join(read_outputs(tmp_path / "x.csv").signals.info["remarks"])


@pytest.mark.parametrize("what", EXTRA)
@pytest.mark.parametrize("in_front", [False, True])
def test_a_column_that_no_label_names_is_asked_about(tmp_path, what, in_front):
    names, asked = EXTRA[what]
    table = outputs_table()
    table["label"] = table.columns[table.label]
    others = pd.DataFrame({name: RNG.normal(size=len(table)) - 9 for name in names})
    parts = [others, table] if in_front else [table, others]
    pd.concat(parts, axis=1).to_csv(tmp_path / "x.csv", index=False)
    remarks = read_outputs(tmp_path / "x.csv").signals.info["remarks"]
    assert (f"no sample has the label {asked}; a column" in "".join(remarks)) == bool(asked)


COLUMNS = "wanted label (class names or numbers), member"
ODD = {  # a table, options, what is said
    "row numbers": (lambda t: t, {"index": True}, "column Unnamed: 0 holds no class's logits"),
    "named numbers": (lambda t: t.assign(n=range(5, 125)), {}, "column n holds no class's logits"),
    "an id": (lambda t: t.assign(id=t.cat), {}, "column id holds no class's logits, it seems"),
    "a loss": (lambda t: t.assign(Loss=t.cat), {}, "column Loss holds no class's logits"),
    "a flag": (lambda t: t.assign(easy=t.cat > 0), {}, "column easy holds no class's logits"),
    "text": (lambda t: t.assign(who="anna"), {}, "column who holds no class's logits"),
    "a label of no class": (
        lambda t: t.assign(label=np.where(t.label, t.columns[t.label], "Cat")),
        {},
        "no column is called 'Cat', which is a label; the columns of logits are ['cat', 'dog', ",
    ),
    "a label left empty": (
        lambda t: t.assign(label=t.columns[t.label].where(t.index != 7)),
        {},
        "no column is called nan, which is a label",
    ),
    "yes and no": (
        lambda t: t.assign(member=np.where(t.member, "yes", "no")),
        {},
        "member holds ['yes', 'no']; wanted 1 for samples of the training set, else 0",
    ),
    "members left empty": (
        lambda t: t.assign(member=t.member.where(t.member)),
        {},
        "member holds [True, nan]; wanted 1 for samples of the training set, else 0",
    ),
    "semicolons": (lambda t: t, {"sep": ";"}, "separated by commas"),
    "no names": (lambda t: t, {"header": False}, COLUMNS),
    "no member": (lambda t: t.drop(columns="member"), {}, COLUMNS),
    "neither": (lambda t: t[["cat", "dog"]], {}, COLUMNS),
    "one class": (lambda t: t.drop(columns=["dog", "eel"]), {}, COLUMNS),
    "an empty cell": (lambda t: t.assign(dog=t.dog.where(t.index != 7)), {}, "for sample 7"),
    "half a label": (lambda t: t.assign(label=t.label + 0.5), {}, "a vector of whole numbers"),
    "infinity": (lambda t: t.assign(cat=t.cat.where(t.index != 3, np.inf)), {}, "for sample 3"),
    "two labels": (lambda t: t.assign(labels=t.label), {}, "column labels holds no class's logits"),
    "a name twice": (
        lambda t: t.rename(columns={"dog": "cat"}),
        {},
        "two columns are called 'cat'",
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_a_table_that_holds_anything_else_is_refused_by_the_name_of_its_column(tmp_path, what):
    change, options, says = ODD[what]
    change(outputs_table()).to_csv(tmp_path / "x.csv", **{"index": False} | options)
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        read_outputs(tmp_path / "x.csv")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["", "\0", "label,member,a,b", "a,b\n1,2\n3\n", "a,b\n1,2\n1,2,3\n", 'a,"b\n1,2\n'],
)
def test_a_broken_table_is_refused_in_one_line_with_its_path(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=r"x\.csv") as refused:
        read_outputs(tmp_path / "x.csv")
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=r"gone\.csv cannot be read as a table"):
        read_outputs(tmp_path / "gone.csv")
