"""What people have is read, or refused in one line whose advice works."""

from __future__ import annotations

import json
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import mia_nb as mia
from mia_nb.auditing.readers import logits_of, numpy_of, sample_of, without_extremes

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
    "(logits, features)": (Z, Z[:, :1]),
    "(loss, logits)": (np.float64(1.5), torch.tensor(Z)),
    "(logits, None)": (Z, None),
    "an axis of one": Z[:, :, None],
}


@pytest.mark.parametrize("form", OUTPUTS)
def test_logits_are_found_in_what_a_model_gives(form):
    np.testing.assert_allclose(logits_of(OUTPUTS[form], 6), Z)


@pytest.mark.parametrize("z", [Z[:, 0] * 3, Z[:, :1] * 3, torch.tensor(Z[:, 0]) * 3])
def test_one_logit_is_that_of_the_second_of_two_classes(z):
    logits = logits_of(z, 6)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], np.reshape(z, -1))


REFUSED = {
    "probabilities": (1 / (1 + np.exp(-Z[:, 0])), "a probability p"),
    "dict without logits": ({"scores": Z, "loss": 1.0}, "dict with scores, loss"),
    "empty dict": ({}, "dict with nothing"),
    "two candidates": ((Z, Z), "2 can be logits"),
    "no candidate": ((Z[:, 0], Z[:2]), "0 can be logits"),
    "too few rows": (Z[:4], "wanted (batch, classes) logits"),
    "four axes": (Z[None, None], "wanted (batch, classes) logits"),
    "a word": ("yes", "wanted (batch, classes) logits"),
    "None": (None, "wanted (batch, classes) logits"),
    "masked": (np.ma.masked_less(Z, 0), "masked array"),
    "complex": (Z + 1j, "complex numbers"),
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
    with pytest.raises(ValueError, match=r"return np\.log\(p / \(1 - p\)\)"):
        audit(model)

    def mended(x):
        p = model(x)
        p = p.clip(1e-6, 1 - 1e-6)
        return np.log(p / (1 - p))

    assert audit(mended).signals.shape == (1, 1, 200)


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
        audit(model, y=words)
    numbers = np.unique(words, return_inverse=True)[1]
    assert audit(LogisticRegression().fit(X[:100], numbers[:100]), y=numbers)


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
    model = lambda x: 3 * x[:, :2]  # noqa: E731
    audited = mia.audit(model, *parts, n_resamples=20)
    np.testing.assert_array_equal(audited.signals.margin, audit(model).signals.margin)


@pytest.mark.parametrize(
    "item", [{"a": 1, "b": 2}, {"image": 1, "x": 2, "label": 0}, (1,), np.ones(4)]
)
def test_an_item_without_one_input_and_one_label_is_refused(item):
    with pytest.raises(ValueError, match="wanted"):
        sample_of(item)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_one_number_that_is_not_finite_does_not_end_an_audit(kind, value):
    x = X.astype(kind)
    x[7, 2] = value
    assert audit(lambda rows: 3 * np.tanh(rows[:, :2]), x=x).shift.auc > 0


def test_extremes_become_the_largest_number_that_can_be_compared():
    given = np.array([[1.0, np.inf, -np.inf, np.nan, 1e300, -4.0]])
    assert without_extremes(given).tolist() == [[1.0, 1e15, -1e15, 0.0, 1e15, -4.0]]
    assert without_extremes(np.array([np.inf, 3.0])).tolist() == [3.0, 3.0]
    assert without_extremes(np.array([np.nan])).tolist() == [0.0]


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


def test_groups_may_be_numbers_and_text_together():
    groups = np.array([1, "b", None, 2.5] * 50, object)
    table = audit(lambda x: 3 * x[:, :2], groups=groups).by_group
    assert sorted(table.index) == ["1", "2.5", "None", "b"]


def test_complex_inputs_are_refused():
    with pytest.raises(ValueError, match="complex"):
        audit(lambda x: x[:, :2].real, x=X + 1j)
    assert json.dumps(numpy_of([1, 2]).tolist()) == "[1, 2]"
