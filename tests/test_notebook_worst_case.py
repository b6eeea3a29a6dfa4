"""11_worst_case from a clean kernel at a tiny size: what it shows is what the stored pools give."""

from __future__ import annotations

import numpy as np
import pytest
from test_notebook_dropout import table
from test_notebooks import Run

from mia_nb import auditing, data, query, training
from mia_nb.attacks import score
from mia_nb.auditing.coins import check_bernoulli
from mia_nb.types import Recipe

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
KINDS, ATTACKS = ["ordinary", "mislabelled"], ["rmia", "loss"]
SIZE = {
    "limit": 500,
    "population": 100,
    "kinds": KINDS,
    "share": 0.1,
    "attacks": ATTACKS,
    "num_models": 16,
    "epochs": 6,
    "repeats": 3,
    "n_resamples": 50,
    "control_resamples": 5,
    "shown": 6,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("worst")


@pytest.fixture(scope="module")
def run(folder) -> Run:
    return Run("11_worst_case", folder / "results", folder / "worst.ipynb", answer=True, **SIZE)


@pytest.fixture(scope="module")
def pools(folder, run) -> dict[str, training.pool.Pool]:
    found = [
        training.load_pool(path.name, folder / "results")
        for path in (folder / "results").glob("pool-*")
    ]
    again = next(pool for pool in found if len(pool.member) == 3)
    named = {
        kind: pool
        for pool in found
        for kind in KINDS
        if pool is not again and f"digits_{kind}_" in pool.folder.path.name
    }
    return named | {"again": again}


@pytest.fixture(scope="module")
def answers(pools):
    return {name: query(pool, pool.images(), progress=False) for name, pool in pools.items()}


@pytest.fixture(scope="module")
def found(pools, answers) -> dict[tuple[str, str], dict]:
    parts = {}
    for kind in KINDS:
        one, canary = answers[kind], pools[kind].images().canary
        for who, columns in (("canaries", canary | one.population), ("all others", ~canary)):
            parts[kind, who] = {
                word: auditing.score_split(word, one.select(samples=columns)) for word in ATTACKS
            }
    return parts


def cells(html: str) -> dict[tuple[str, str], list[str]]:
    return {(row[1], row[2]): row[3:] for row in table(html) if row[1] in KINDS}


def test_no_cell_fails_warns_or_leaves_a_widget(run):
    for cell, outputs in run.outputs.items():
        for output in outputs:
            assert output["output_type"] != "error" and output.get("name") != "stderr", (
                cell,
                output,
            )
            assert not any("widget" in kind for kind in output.get("data", {})), cell
    assert set(run.figures()) == {"answer", "sheet", "curves", "rungs", "pictures"}


def test_every_image_has_a_coin_in_every_model_and_canaries_alone_are_changed(pools):
    for kind in KINDS:
        pool, canary = pools[kind], pools[kind].images().canary
        assert (
            canary.sum() == 40
            and pool.population.sum() == 100
            and not (canary & pool.population).any()
        )
        check_bernoulli(pool.member[:, ~pool.population])
    same, changed = (pools[kind].images() for kind in KINDS)
    assert np.array_equal(same.canary, changed.canary) and np.array_equal(
        pools[KINDS[0]].member, pools[KINDS[1]].member
    )
    assert (same.y != changed.y).numpy().tolist() == changed.canary.tolist()
    assert np.array_equal(same.y, data.load("digits", limit=500).y)


def test_mislabelled_canaries_are_found_and_ordinary_ones_are_not_among_the_others(run, found):
    shown = cells(run.html("rates"))
    assert set(shown) == set(found)
    for key, each in found.items():
        rate = auditing.canary_rates(each["rmia"], fpr=0.1, n_resamples=50).iloc[0]
        assert shown[key][2].startswith(f"{100 * rate['tpr']:.0f} [") or shown[key][2] == "n/m"
        assert [int(n) for n in shown[key][4:6]] == [rate["n1"], rate["n0"]]
    assert (
        "canaries are 10" in shown["mislabelled", "canaries"][6]
        and shown["mislabelled", "all others"][6] == ""
    )
    auc = {key: float(shown[key][0].split()[0]) for key in shown}
    assert (
        auc["mislabelled", "canaries"]
        > 0.9
        > max(auc["ordinary", "canaries"], auc["mislabelled", "all others"]) + 0.1
    )


def test_audits_take_half_of_the_models_together_and_pay_for_every_row(run, found):
    shown = cells(run.html("audits"))
    for key, each in found.items():
        best = max(
            (auditing.audit(one, delta=1e-5, attempts=8) for one in each.values()),
            key=lambda one: one.epsilon,
        )
        assert best.runs == 8 and best.alpha <= 0.05 / 8
        assert [float(text) for text in shown[key][:2]] == pytest.approx(
            [best.epsilon, best.at_most], abs=6e-4
        )
        assert [int(n) for n in shown[key][3:]] == [8, best.canaries, best.guesses, best.correct]
    assert float(shown["mislabelled", "canaries"][0]) > 1 > float(shown["ordinary", "canaries"][0])
    assert "mislabelled, canaries" in run.html("ladder") and "none (infinite)" in run.html("ladder")


def test_names_come_with_an_exact_test_and_the_canaries_are_among_them(run, pools, answers):
    exposed = auditing.vulnerability(auditing.score_split("rmia", answers["mislabelled"]))
    canary = pools["mislabelled"].images().canary[~answers["mislabelled"].population]
    named = exposed["significant"].to_numpy()
    assert (
        f"{named.sum()} of 400 images stand out (q <= 0.1), among them {(named & canary).sum()}"
        " of 40" in run.text("rank")
    )
    assert exposed.attrs["method"].startswith("exact") and exposed.attrs["resolution"] in run.text(
        "rank"
    )


def test_repetitions_have_the_members_of_the_first_model_and_are_seen_against_false_alarms(
    run, pools, answers
):
    again, first = pools["again"].member, pools["mislabelled"].member[0]
    assert again.shape == (3, 500) and all(np.array_equal(row, first) for row in again)
    columns = ~answers["mislabelled"].population
    value = answers["again"].margin[:, 0, columns]  # what the loss threshold ranks by
    member = first[columns]
    allowed = int(0.1 * (~member).sum())
    least = np.sort(value[:, ~member])[:, -1 - allowed, None]
    head, *rows = table(run.html("repeat"))
    shown = dict(
        zip(head[1:], next(row for row in rows if row[0] == "loss threshold")[1:], strict=True)
    )
    for end, side in (("", member), ("_out", ~member)):
        lists = [set(np.flatnonzero(row & side)) for row in value > least]
        pairs = ((lists[0], lists[1]), (lists[0], lists[2]), (lists[1], lists[2]))
        overlaps = [len(a & b) / len(a | b) for a, b in pairs]
        assert float(shown[f"jaccard{end}"]) == pytest.approx(np.mean(overlaps), abs=0.006)
        assert float(shown[f"size{end}"]) == pytest.approx(np.mean([*map(len, lists)]), abs=0.006)


def test_the_six_lines_run_as_they_stand(tmp_path):
    images = data.load("digits", limit=400)
    x, y, canary = auditing.canary_arrays(
        images.x.numpy(), images.y.numpy(), 10, kind="mislabelled"
    )
    marked, inside = data.from_arrays(x, y, canary=canary), auditing.canary_member(8, canary)
    recipe = Recipe(num_models=8, split="given", epochs=1)
    pool = training.train_pool(recipe, marked, member=inside, root=tmp_path, progress=False)
    found = auditing.score_split("loss", query(pool, marked, progress=False).select(samples=canary))
    assert auditing.canary_rates(found, kind="mislabelled")["canaries"].tolist() == [8] * 3
    assert (
        auditing.audit(found, delta=1e-5).runs == 4
        and score("loss", query(pool, marked, progress=False)).value.size
    )


def test_images_that_no_coin_chose_belong_to_those_that_no_model_saw(folder):
    few = {"limit": 600, "kinds": ["ordinary"], "num_models": 8, "epochs": 1, "repeats": 0}
    run = Run("11_worst_case", folder / "few", folder / "few.ipynb", **SIZE | few)
    (path,) = (folder / "few").glob("pool-*")
    pool = training.load_pool(path.name, folder / "few")
    assert pool.population.sum() > 100  # set aside, and one of 256 others
    assert not pool.member[:, pool.population].any()
    assert not (pool.population & pool.images().canary).any()
    assert "images that no model saw" in run.html("accuracy")


def test_all_others_in_every_model_leaves_the_canaries_alone_their_coins(folder):
    size = SIZE | {"others": "in", "kinds": ["mislabelled"], "num_models": 8, "epochs": 4}
    run = Run("11_worst_case", folder / "in", folder / "in.ipynb", **size)
    (path,) = (folder / "in").glob("pool-*")
    pool = training.load_pool(path.name, folder / "in")
    canary = pool.images().canary
    assert (
        pool.member[:, ~canary & ~pool.population].all()
        and 0.3 < pool.member[:, canary].mean() < 0.7
    )
    assert (
        list(cells(run.html("rates"))) == [("mislabelled", "canaries")]
        and not run.outputs["rank"]
        and not run.outputs["repeat"]
    )
    assert (
        "of the training set, more than 2%" in run.html("rates")
        and run.html("doubts").count("not compared") == 2
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kinds": ["ordinary", "loud"]}, "kind='loud' is not one of ordinary, mislabelled"),
        ({"kinds": []}, "wanted one kind or more"),
        ({"num_models": 4}, "num_models=4"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(folder, change, says):
    with pytest.raises(ValueError, match=says):
        Run("11_worst_case", folder / "none", folder / "bad.ipynb", **SIZE | change)
    assert not list((folder / "none").glob("pool-*"))
