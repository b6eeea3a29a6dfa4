"""09_neural_de, and asking again in 03_attack, from a clean kernel at a tiny size: what they show
is what stored pools give.
"""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
from test_notebook_dropout import grounds, headline, table, wanted
from test_notebooks import FIGURE, Run

from mia_nb import metrics, query, studies, training
from mia_nb.attacks import in_words, score
from mia_nb.studies import Setting

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
K, SD = {"k": 0.5}, "sigma=0.707"
SIZE = {
    "limit": 240,
    "num_models": 8,
    "network": {"width": 4},
    "flow": {"steps": 2},
    "epochs": 3,
    "snapshots": [1, 2],
    "queries": 4,
    "along": 2,
    "finetune": {"epochs": 2, "lr": 0.02},
    "attacks": ["rmia", "loss"],
    "n_resamples": 50,
    "control_resamples": 5,
    "families": [
        {"model": "resnet14"},
        {"model": "odenet"},
        {"model": "odenet", "model_args": {"method": "rk4"}},
        {"model": "sdenet", "model_args": K},
        {"weights_of": 1, "model": "sdenet", "model_args": {**K, "noise_train": False}},
        {"replace": 0, "model_args": K},
    ],
}
CELLS = {
    "ResNet-14": Setting("resnet14", 3),
    "ODENet, 2 steps": Setting("odenet", steps=2),
    "ODENet, rk4, 2 steps": Setting("odenet", method="rk4", steps=2),
    f"SDENet {SD}, 2 steps": Setting("sdenet", k=0.5, steps=2),
    f"SDENet {SD}, 2 steps, trained without noise": Setting(
        "sdenet", k=0.5, steps=2, noise_train=False
    ),
    f"ResNet+SDENet {SD}, 2 steps": Setting("replaced", k=0.5, steps=2),
}
STOCHASTIC = list(CELLS)[3:]
DRAWS = {"n_resamples": SIZE["n_resamples"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("neural_de")


@pytest.fixture(scope="module")
def compared(folder) -> Run:
    return Run("09_neural_de", folder / "results", folder / "compared.ipynb", answer=True, **SIZE)


@pytest.fixture(scope="module")
def pools(folder, compared) -> dict[str, training.pool.Pool]:
    found = {}
    for path in (folder / "results").glob("pool-*"):
        pool = training.load_pool(path.name, folder / "results")
        args = pool.recipe.model_args
        cell = next(
            cell
            for cell in CELLS.values()
            if (cell.model, cell.method, cell.noise_train)
            == (pool.recipe.model, args.get("method", "euler"), args.get("noise_train", True))
        )
        found[cell.label] = pool
    assert set(found) == set(CELLS)
    return {name: found[name] for name in CELLS}


def ask(pool, **options):
    return query(pool, pool.images(), progress=False, **options)


@pytest.fixture(scope="module")
def answers(pools):
    return {name: ask(pool, queries=4 if name in STOCHASTIC else 1) for name, pool in pools.items()}


@pytest.fixture(scope="module")
def silent(pools):
    return {name: ask(pools[name], noise=False) for name in STOCHASTIC}


@pytest.fixture(scope="module")
def scores(answers):
    return {
        name: {word: score(word, one) for word in SIZE["attacks"]} for name, one in answers.items()
    }


@pytest.fixture(scope="module")
def best(scores) -> dict[str, str]:
    means = {
        name: {word: mean_auc(one) for word, one in found.items()} for name, found in scores.items()
    }
    return {name: max(found, key=found.get) for name, found in means.items()}


@pytest.fixture(scope="module")
def runs(pools):
    """{family: {epoch: {attack: Scores}}} of the weights kept along training; nothing was trained
    with borrowed ones.
    """
    kept = {name: [1, 2, 3] for name in list(CELLS)[:4]} | {list(CELLS)[5]: [1, 2]}
    return {
        name: {
            epoch: {
                w: score(w, ask(pools[name].at(epoch), queries=2 if name in STOCHASTIC else 1))
                for w in SIZE["attacks"]
            }
            for epoch in epochs
        }
        for name, epochs in kept.items()
    }


def mean_auc(scores) -> float:
    return np.mean(
        [
            metrics.auc(value, member)
            for value, member in zip(scores.value, scores.member, strict=True)
        ]
    )


def pictures(run, cell) -> list[dict]:
    return [
        plain(output["data"][FIGURE])
        for output in run.outputs[cell]
        if FIGURE in output.get("data", {})
    ]


def plain(node):
    """A figure's JSON with plotly's packed arrays as lists."""
    if isinstance(node, dict) and "bdata" in node:
        return np.frombuffer(base64.b64decode(node["bdata"]), node["dtype"]).tolist()
    if isinstance(node, dict):
        return {"name": None, **{key: plain(value) for key, value in node.items()}}
    return [plain(value) for value in node] if isinstance(node, list) else node


def picture(run, cell) -> dict:
    (figure,) = pictures(run, cell)
    return figure


def title(figure) -> str:
    return figure["layout"]["title"]["text"].replace("<br>", " ")


def rows(run, cell, skip=2) -> dict[str, list[str]]:
    """{first column: the others} below so many lines of a head."""
    return {row[0]: row[1:] for row in table(run.html(cell))[skip:]}


def test_no_cell_fails_warns_or_leaves_a_widget(compared):
    for cell, outputs in compared.outputs.items():
        for output in outputs:
            assert output["output_type"] != "error" and output.get("name") != "stderr", (
                cell,
                output,
            )
            assert not any("widget" in kind for kind in output.get("data", {})), cell


def test_every_picture_is_there_and_light(compared):
    counts = {cell: len(found) for cell in compared.outputs if (found := pictures(compared, cell))}
    assert counts == {
        "answer": 1,
        "roc": 1,
        "gap": 1,
        "frontier": 1,
        "matched": 3,  # one family shares no accuracy with the first
        "queries": 1,
        "risk-against": 2,
    }
    most = dict.fromkeys(counts, 100_000) | {"answer": 200_000}  # of 50,000 images, not of few
    assert all(
        len(json.dumps(figure)) < most[cell]
        for cell in counts
        for figure in pictures(compared, cell)
    )


def test_every_family_is_named_by_its_equation_with_noise_outputs_and_key(compared, pools, answers):
    lines = [line for line in compared.text("answers").splitlines() if " queries, " in line]
    for line, (name, pool) in zip(lines, pools.items(), strict=True):
        about = "no equation" if name == "ResNet-14" else CELLS[name].method
        noise = ", sigma 0.707, noise sd 0.707" if name in STOCHASTIC else ""
        assert (
            line
            == f"{name}: {about}{noise}, {answers[name].margin.shape[1]} queries, {pool.key[:12]}"
        )
        assert answers[name].query_kind == ("noise" if name in STOCHASTIC else "plain")


def test_a_replaced_family_goes_on_from_its_parent_by_the_recipe_of_fine_tuning(pools):
    first, *_, replaced = pools.values()
    recipe = replaced.recipe
    assert recipe.parent == first.key and (recipe.epochs, recipe.lr, recipe.snapshots) == (
        2,
        0.02,
        [1],
    )
    assert recipe.model_args == {
        "base": "resnet14",
        "base_args": {"width": 4},
        "freeze": False,
        "steps": 2,
        "k": 0.5,
    }
    assert all(
        np.array_equal(pool.member, first.member) for pool in pools.values()
    ) and first.member.shape == (8, 240)


def test_accuracies_are_those_of_the_stored_models(compared, answers):
    shown = rows(compared, "accuracy")
    assert list(shown) == list(CELLS)
    for name, one in answers.items():
        right = one.correct.mean(1)
        inside, outside = (
            np.array([r[s].mean() for r, s in zip(right, side, strict=True)])
            for side in (one.member, ~one.member)
        )
        found = [float(text.split()[0]) for text in shown[name]]
        assert found == pytest.approx(
            [100 * v.mean() for v in (inside, outside, inside - outside)], abs=0.06
        )
        facts = metrics.accuracies(score("correctness", one))
        ends = [f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}]" for _, row in facts.iterrows()]
        assert [text.split(" ", 1)[1] for text in shown[name]] == ends


def test_every_attack_on_every_family_has_its_auc_with_an_interval_and_the_last_column_is_the_strongest(
    compared, scores
):
    head, *_ = table(compared.html("attacks"))
    assert head == ["AUC", "RMIA", "loss threshold", "max"]
    shown = rows(compared, "attacks", 1)
    assert list(shown) == list(CELLS)
    for name, found in scores.items():
        for text, word in zip(shown[name], SIZE["attacks"], strict=False):
            low, high = metrics.intervals(found[word], **DRAWS).loc["auc", ["low", "high"]]
            assert text == f"{mean_auc(found[word]):.3f} [{low:.3f}, {high:.3f}]"
        assert float(shown[name][2].split()[0]) == max(
            float(text.split()[0]) for text in shown[name][:2]
        )


def test_the_strongest_attack_of_each_family_is_the_one_that_is_drawn(compared, scores, best):
    shown = rows(compared, "rates", 1)
    assert {name: row[0] for name, row in shown.items()} == {
        name: in_words(word) for name, word in best.items()
    }
    drawn = {trace["name"]: trace for trace in picture(compared, "gap")["data"][1:]}
    for name, word in best.items():
        one = scores[name][word]
        assert drawn[name]["x"] == pytest.approx(one.accuracy[:, 0] - one.accuracy[:, 1])
        aucs = [
            metrics.auc(value, member) for value, member in zip(one.value, one.member, strict=True)
        ]
        assert drawn[name]["y"] == pytest.approx(aucs)


def test_points_along_training_are_those_of_the_weights_that_were_kept(compared, runs):
    drawn = {trace["name"]: trace for trace in picture(compared, "frontier")["data"]}
    assert list(drawn) == list(runs)
    for name, epochs in runs.items():
        assert [int(text) for text in drawn[name]["text"]] == list(epochs)
        assert drawn[name]["x"] == pytest.approx(
            [found["loss"].accuracy[:, 1].mean() for found in epochs.values()]
        )
        assert drawn[name]["y"] == pytest.approx(
            [max(map(mean_auc, found.values())) for found in epochs.values()]
        )


def test_differences_at_equal_accuracy_are_to_the_first_family_or_say_why_there_are_none(
    compared, runs
):
    (first, *others), drawn = runs, 0
    figures = iter(pictures(compared, "matched"))
    for name in others:
        truth = metrics.matched(
            metrics.frontier({first: runs[first], name: runs[name]}, **DRAWS), baseline=first
        )
        wanted = truth[(truth["family"] == name) & truth["difference"].notna()]
        if not len(wanted):
            assert f"{name}: {truth.attrs['reason']}" in compared.text("matched")
            continue
        (points,) = next(figures)["data"]
        assert points["name"] == f"{name} - {first}"
        assert points["y"] == pytest.approx(wanted["difference"].tolist())
        drawn += len(wanted)
    assert drawn and next(figures, None) is None  # else nothing was compared


def test_the_curve_over_queries_is_that_of_the_stored_outputs_and_its_level_that_of_no_noise(
    compared, answers, silent, scores, best
):
    drawn = picture(compared, "queries")["data"]
    for name in STOCHASTIC:
        asked, limit = (trace for trace in drawn if trace["name"] == name)
        truth = metrics.query_curve(answers[name], best[name], queries=(1, 4), **DRAWS)
        assert [*asked["customdata"], *limit["customdata"]] == [1, 4, "∞"]
        auc = truth.loc[truth["metric"] == "auc", "value"].tolist()
        assert [*asked["y"], *limit["y"]] == pytest.approx(auc, nan_ok=True)
        once = mean_auc(score(best[name], answers[name].select(queries=[0])))
        assert asked["y"] == pytest.approx([once, mean_auc(scores[name][best[name]])])
        (level,) = (trace for trace in drawn if trace["name"] == f"{name}, noise off")
        assert level["y"] == pytest.approx([mean_auc(score(best[name], silent[name]))] * 2)
    assert {trace["name"] for trace in drawn if trace["name"]} == {
        *STOCHASTIC,
        *(f"{name}, noise off" for name in STOCHASTIC),
    }


def test_the_margins_variance_is_split_as_the_stored_outputs_say(compared, answers):
    shown = rows(compared, "split", 1)
    assert list(shown) == STOCHASTIC
    for name, (between_queries, between_models) in shown.items():
        noise = answers[name].margin.var(1, ddof=1).mean()
        assert between_queries.startswith(f"{noise:.3g} [")
        truth = metrics.variance_split(answers[name])
        assert (
            between_models == f"{truth.between_models:.3g} [{truth.between_models_low:.3g},"
            f" {truth.between_models_high:.3g}]"
        )


@pytest.fixture(scope="module")
def cells(answers, silent):
    """Every setting with every attack, named by hand; stochastic networks with 1 and 4 answers, and
    silent.
    """
    found = {}
    for name, one in answers.items():
        for word in SIZE["attacks"]:
            for count in (1, 4) if name in STOCHASTIC else (1,):
                cell = CELLS[name]._replace(queries=count, attack=word)
                found[cell] = score(word, one.select(queries=slice(0, count)))
            if name in STOCHASTIC:
                found[CELLS[name]._replace(noise=False, attack=word)] = score(word, silent[name])
    return found


def test_noise_in_training_and_in_queries_stand_side_by_side(compared, cells):
    shown = rows(compared, "flags", 1)
    off = [f"{name}, noise off" for name in STOCHASTIC]
    assert list(shown) == [*CELLS, *off]
    for name, row in shown.items():
        setting = CELLS[name.removesuffix(", noise off")]
        setting = setting._replace(noise=name not in off, queries=4 if name in STOCHASTIC else 1)
        both = [cells[setting._replace(attack=word)] for word in SIZE["attacks"]]
        train, test = both[0].accuracy.mean(0)
        truth = [test, train - test, max(map(mean_auc, both))]
        assert [float(text) for text in row[:3]] == pytest.approx(truth, abs=6e-5)
        assert float(row[3]) < float(row[2]) < float(row[4])


def test_only_settings_that_families_differ_in_are_drawn_each_at_its_families_risk(
    compared, scores, best
):
    assert compared.text("settings").strip() == "method, k"
    risk = {name: mean_auc(scores[name][word]) for name, word in best.items()}
    euler, rk4, noisy = (risk[name] for name in list(CELLS)[1:4])
    wanted = {"method": ([0, 1], [euler, rk4]), "k": ([0, 0.5], [euler, noisy])}
    for figure, (what, (places, values)) in zip(
        pictures(compared, "risk-against"), wanted.items(), strict=True
    ):
        (auc,) = (trace for trace in figure["data"] if trace["xaxis"] == "x")
        assert auc["y"] == pytest.approx(values) and auc["x"] == pytest.approx(places), what
    assert figure["layout"]["xaxis3"]["title"]["text"] == "k"


def test_costs_are_of_networks_as_large_as_the_stored_ones(compared, pools):
    shown = rows(compared, "cost", 1)
    # what was trained
    assert list(shown) == [name for name, pool in pools.items() if pool.recipe.epochs]
    for name in shown:
        parameters, seconds, memory = map(float, shown[name][:3])
        assert (
            parameters == sum(p.numel() for p in pools[name].model(0).parameters())
            and seconds >= 0 < memory
        )
    memory = {name: float(row[2]) for name, row in shown.items()}
    assert memory["ODENet, rk4, 2 steps"] > memory["ODENet, 2 steps"]
    assert list(map(float, next(iter(shown.values()))[3:])) == [1, 1]  # times the first


def test_the_claims_are_those_of_the_same_scores_and_checkpoints(compared, cells, runs):
    truth = studies.claims("nsde", cells, frontier=metrics.frontier(runs, **DRAWS), **DRAWS)
    shown = rows(compared, "claims", 1)
    assert {name: row[0] for name, row in shown.items()} == {
        f"{name}. {row['claim']}": row["verdict"] for name, row in truth.iterrows()
    }
    not_run = {name.split(".")[0] for name, row in shown.items() if row[0] == "not run"}
    assert not_run == {"D4", "D5", "D6", "D7", "D12", "D13", "D18", "D21"}
    assert [row[1] for row in shown.values()] == truth["as_printed"].tolist()
    assert grounds(compared) == wanted(truth)
    assert compared.text("evidence").splitlines() == headline(truth)


def test_nothing_stands_beside_the_printed_numbers_unless_the_data_are_said_to(compared):
    assert compared.text("beside").strip() == "0 of 1177 printed numbers were measured, on digits"


def test_it_ends_in_doubt(compared, scores, best, answers):
    assert re.match(
        rf"negative control (passed|FAILED): \d+ checks on {re.escape(STOCHASTIC[-1])}",
        compared.text("self-test"),
    )
    doubts = {name: row[0] == "holds" for name, row in rows(compared, "doubts", 1).items()}
    test = {name: found["loss"].accuracy[:, 1].mean() for name, found in scores.items()}
    tables = [metrics.summary(found, **DRAWS) for found in scores.values()]
    highs = [high for table in tables for high in metrics.by_attack(table, "auc")["high"]]
    guess = np.bincount(answers["ResNet-14"].labels).max() / 240
    assert doubts == {
        "the negative control passed": "passed" in compared.text("self-test"),
        "every family learned: twice as good as guessing": bool(min(test.values()) > 2 * guess),
        "test accuracies of the families lie within a point": bool(
            np.ptp(list(test.values())) < 0.01
        ),
        "no AUC lies below one half": min(highs) > 0.5,
        "every stochastic family was queried 16 times or more": False,
        "one attack is the strongest on every family": len(set(best.values())) == 1,
        "at least four pairs of targets, so that intervals can be narrow": True,
        "a rate at 1 % false alarms is measurable": False,
    }


def written(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("model_*.safetensors")}


def test_a_bad_family_fails_in_one_clear_line_and_nothing_is_lost(folder, compared):
    before = written(folder / "results")
    with pytest.raises(
        ValueError, match=r"family 1: a recipe has no 'modell'; did you mean 'model'\?"
    ) as caught:
        Run(
            "09_neural_de",
            folder / "results",
            folder / "bad.ipynb",
            **SIZE | {"families": [{"model": "resnet14"}, {"modell": "odenet"}]},
        )
    assert "\n" not in str(caught.value)
    assert written(folder / "results") == before and len(before) == 6 * 8


def test_one_question_to_a_stochastic_family_draws_no_curve(folder, compared, pools):
    size = SIZE | {"queries": 1, "along": 1, "families": SIZE["families"][:4:3]}
    run = Run("09_neural_de", folder / "results", folder / "once.ipynb", **size)
    assert run.text("pools").count("cached") == 2 and "1 queries" in run.text("answers")
    assert not pictures(run, "queries") and "queries is 1" in run.text("split")
    name = STOCHASTIC[0]
    once = mean_auc(score("loss", ask(pools[name])))
    assert float(rows(run, "attacks", 1)[name][1].split()[0]) == pytest.approx(once, abs=6e-4)
    assert list(rows(run, "flags", 1)) == ["ResNet-14", name, f"{name}, noise off"]


def test_families_without_noise_are_compared_without_querying_again(folder, compared, scores):
    size = SIZE | {"families": SIZE["families"][:2], "queries": 16}
    run = Run("09_neural_de", folder / "results", folder / "silent.ipynb", **size)
    assert "no family has noisy outputs" in run.text("split") and not pictures(run, "queries")
    assert rows(run, "attacks", 1) == {
        name: rows(compared, "attacks", 1)[name] for name in list(CELLS)[:2]
    }
    assert run.text("settings").strip() == "the families differ in no single setting"
    doubts = {name: row[0] for name, row in rows(run, "doubts", 1).items()}
    assert doubts["every stochastic family was queried 16 times or more"] == "holds"
    assert run.text("self-test").strip().endswith("on ODENet, 2 steps")


def attacked(folder, pool, name, **parameters):
    options = {
        "pool": pool.key[:12],
        "attacks": ["rmia", "loss"],
        "n_resamples": 50,
        "control_resamples": 5,
        **parameters,
    }
    return Run("03_attack", folder / "results", folder / f"{name}.ipynb", **options)


def test_asking_a_stored_stochastic_pool_again_shows_its_curve(
    folder, pools, answers, scores, best
):
    name = STOCHASTIC[0]
    run = attacked(folder, pools[name], "again", queries=4)
    assert "cached" in run.text("signals") and f"8 models sdenet {SD}" in run.text("signals")
    asked, limit = picture(run, "again")["data"]
    truth = metrics.query_curve(answers[name], best[name], queries=(1, 4), **DRAWS)
    auc = truth.loc[truth["metric"] == "auc", "value"].tolist()
    assert [*asked["y"], *limit["y"]] == pytest.approx(auc, nan_ok=True)
    assert "not run" not in run.text("again")
    for word, one in scores[name].items():
        assert f"<td>{mean_auc(one):.3f} [" in run.html("result"), word


def test_a_stochastic_pool_can_be_queried_without_its_noise_with_references_that_were_trained_without_it(
    folder, pools, silent
):
    name, other = STOCHASTIC[:2]
    run = attacked(folder, pools[name], "quiet", noise=False, references=pools[other].key[:12])
    assert "the outputs carry no noise" in run.text("again") and "again" not in run.figures()
    assert silent[name].query_kind == silent[
        other
    ].query_kind == "plain" and "compare with the run without" in run.text("references")
    truth = metrics.summary(
        {w: score(w, silent[name], silent[other]) for w in ("rmia", "loss")}, **DRAWS
    )
    assert all(
        f"<td>{text}</td>" in run.html("result")
        for text in metrics.readable(truth[truth["attack"] != "max"])["AUC"]
    )
