"""11_worst_case from a clean kernel at a tiny size: what it shows is what the stored pools give."""

from __future__ import annotations

import numpy as np
import pytest
from test_notebook_dropout import table
from test_notebook_neural_de import pictures, title
from test_notebooks import Run

from mia_nb import auditing, data, query, training
from mia_nb.attacks import score

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
KINDS, ATTACKS = ["ordinary", "mislabelled"], ["rmia", "loss"]
SIZE = {
    "limit": 500, "population": 100, "kinds": KINDS, "share": 0.1, "attacks": ATTACKS, "num_models": 8, "epochs": 8,
    "listed": 8, "repeats": 3, "draws": 50, "self_test_draws": 5, "shown": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("worst")


@pytest.fixture(scope="module")
def run(folder) -> Run:
    return Run("11_worst_case", folder / "results", folder / "worst.ipynb", **SIZE)


@pytest.fixture(scope="module")
def pools(folder, run) -> dict[str, training.Pool]:
    found = [training.load_pool(path.name, folder / "results") for path in (folder / "results").glob("pool-*")]
    return {
        next((kind for kind in KINDS if f"digits_{kind}_" in pool.folder.path.name), f"{pool.recipe.split}"): pool
        for pool in found
    }


@pytest.fixture(scope="module")
def answers(pools):
    return {name: query.query(pool, pool.images(), progress=False) for name, pool in pools.items()}


@pytest.fixture(scope="module")
def on(pools, answers):
    return {kind: answers[kind].select(samples=pools[kind].images().canary | answers[kind].population) for kind in KINDS}


def cells(html: str) -> dict[str, list[str]]:
    return {row[1]: row[2:] for row in table(html) if row[1] in KINDS}


def test_no_cell_fails_warns_or_leaves_a_widget(run):
    for cell, outputs in run.outputs.items():
        for output in outputs:
            assert output["output_type"] != "error" and output.get("name") != "stderr", (cell, output)
            assert not any("widget" in kind for kind in output.get("data", {})), cell
    assert set(run.figures()) == {"sheet", "curves", "rungs", "pictures", "overlap"}


def test_canaries_alone_have_coins_and_all_other_images_are_in_every_model(pools):
    assert set(pools) == {*KINDS, "bernoulli", "given"}
    for kind in KINDS:
        pool, canary = pools[kind], pools[kind].images().canary
        assert canary.sum() == 40 and pool.population.sum() == 100 and not (canary & pool.population).any()
        assert pool.member[:, ~canary & ~pool.population].all() and not pool.member[:, pool.population].any()
        auditing.check_bernoulli(pool.member[:, canary])
    same, changed = (pools[kind].images() for kind in KINDS)
    assert (same.y != changed.y).numpy().tolist() == changed.canary.tolist()
    assert np.array_equal(same.y, data.load("digits", limit=500).y)


def test_canaries_are_found_where_ordinary_images_are_not(run, on):
    shown = cells(run.html("rates"))
    for kind in KINDS:
        best = {word: score(word, on[kind]) for word in ATTACKS}[shown[kind][0]]
        rate = auditing.canary_rates(best, fpr=0.1, draws=50).iloc[0]
        assert shown[kind][2].startswith(f"{100 * rate['tpr']:.0f} [")
        assert [int(n) for n in shown[kind][3:6]] == [rate["n1"], rate["n0"], 40]
        assert shown[kind][6] == "canaries are 5.3% of the training set, more than 2%"
    mislabelled, ordinary = (float(shown[kind][1].split()[0]) for kind in reversed(KINDS))
    assert mislabelled > 0.9 > ordinary + 0.1


def test_audits_take_half_of_the_models_together_and_pay_for_attacks_and_kinds(run, on):
    shown = cells(run.html("audits"))
    for kind in KINDS:
        each = [auditing.audit(auditing.apart(word, on[kind]), delta=1e-5, attempts=4) for word in ATTACKS]
        best = max(each, key=lambda one: one.epsilon)
        assert best.runs == 4 and best.alpha == pytest.approx(0.05 / 4 / 4)
        assert float(shown[kind][0]) == pytest.approx(best.epsilon, abs=6e-4) and best.epsilon < float(shown[kind][1])
        assert [int(n) for n in shown[kind][3:]] == [4, best.canaries, best.guesses, best.correct]
    assert float(shown["mislabelled"][0]) > 1 > float(shown["ordinary"][0])
    assert "mislabelled canaries" in run.html("ladder") and "none (infinite)" in run.html("ladder")


def test_the_ranking_says_what_eight_models_can_find(run, pools, answers):
    found = auditing.vulnerability(auditing.apart("rmia", answers["bernoulli"]), disjoint=True)
    assert f"rmia: {found['significant'].sum()} of 400 images stand out" in run.text("rank")
    assert found.attrs["resolution"] in run.text("rank") and "score more targets" in run.text("rank")
    assert all(pools["bernoulli"].member[0, int(row[0])] in (True, False) for row in table(run.html("rank"))[2:])


def test_repetitions_have_the_members_of_the_first_model_and_references_that_are_none_of_them(run, pools, answers):
    again, first = pools["given"].member, pools["bernoulli"].member[0]
    assert again.shape == (3, 500) and all(np.array_equal(row, first) for row in again)
    assert "mean Jaccard over seeds" in run.text("repeat")
    columns = [row[1] for row in table(run.html("repeat"))[1:]]
    assert columns == ["seeds"] * 2 + ["attacks"] * 3
    (figure,) = pictures(run, "overlap")
    assert "every repetition finds" in title(figure) and "falsely accused" in title(figure)


def test_the_six_lines_run_as_they_stand(pools, tmp_path):
    images = data.load("digits", limit=400)
    x, y, canary = auditing.canary_arrays(images.x.numpy(), images.y.numpy(), 10, kind="mislabelled")
    marked, inside = data.from_arrays(x, y, canary=canary), auditing.canary_member(8, canary)
    recipe = training.Recipe(num_models=8, split="given", epochs=1)
    pool = training.train_pool(recipe, marked, member=inside, root=tmp_path, progress=False)
    found = query.query(pool, marked, progress=False).select(samples=canary)
    assert auditing.canary_rates(score("rmia", found), kind="mislabelled")["canaries"].tolist() == [8] * 3
    assert auditing.audit(auditing.apart("rmia", found), delta=1e-5).runs == 4


def test_an_unknown_kind_is_refused_before_anything_is_trained(folder):
    with pytest.raises(ValueError, match="kind='loud' is not one of ordinary, mislabelled"):
        Run("11_worst_case", folder / "none", folder / "bad.ipynb", **SIZE | {"kinds": ["ordinary", "loud"]})
    assert not list((folder / "none").glob("pool-*"))


def test_without_ranking_and_repetitions_the_rest_stands(folder):
    alone = Run("11_worst_case", folder / "results", folder / "short.ipynb", **SIZE | {"listed": 0})
    assert not alone.outputs["rank"] and not alone.outputs["overlap"] and "cached" in alone.text("train")
