"""06_defenses from a clean kernel at a tiny size: its tables, lines and pictures are what the
stored pools give.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from test_notebook_dropout import grounds, headline, table, wanted
from test_notebook_neural_de import pictures, rows, title
from test_notebooks import Run

from mia_nb import accounting, auditing, metrics, plots, query, studies, training
from mia_nb.attacks import in_words, score
from mia_nb.studies import setting

pytestmark = [pytest.mark.notebook, pytest.mark.slow]
DP = {
    "defense": "dp_sgd",
    "epsilon": 8.0,
    "batch": 60,
    "lr": 1.0,
    "epochs": 2,
    "schedule": "cosine",
}
SIZE = {
    "limit": 260,
    "population": 20,
    "num_models": 8,
    "model_args": {"width": 4},
    "flow": {"steps": 2},
    "epochs": 4,
    "batch": 8,
    "snapshots": [1, 2],
    "queries": 2,
    "along": 2,
    "votes": 4,
    "attacks": ["rmia", "loss"],
    "n_resamples": 50,
    "control_resamples": 5,
    "outputs": ["memguard", "hamp"],
    "families": [
        {},
        {"defense": "l2", "defense_args": {"weight": 1e-3}},
        {"defense": "early_stopping", "defense_args": {"held_out": 15}},
        DP,
        {"model": "sdenet", "model_args": {"k": 0.5, "T": 0.125}, "batch": 32, "epochs": 3},
    ],
}
TRAINED = ["no defense", "L2", "early stopping", "DP-SGD", "SDENet sigma=2"]
NAMES = [*TRAINED, "MemGuard", "HAMP"]
ATTACKS = ["rmia", "loss", "correctness", "vote", "RMIA, 4 copies"]
ASKED_AGAIN = {"vote": "vote", "RMIA, 4 copies": "rmia"}  # about augmented copies
DRAWS = {"n_resamples": SIZE["n_resamples"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("defenses")


@pytest.fixture(scope="module")
def compared(folder) -> Run:
    return Run("06_defenses", folder / "results", folder / "compared.ipynb", answer=True, **SIZE)


@pytest.fixture(scope="module")
def pools(folder, compared) -> dict[str, training.pool.Pool]:
    found = {}
    for path in (folder / "results").glob("pool-*"):
        pool = training.load_pool(path.name, folder / "results")
        words = {
            None: "no defense",
            "l2": "L2",
            "early_stopping": "early stopping",
            "dp_sgd": "DP-SGD",
        }
        found["SDENet sigma=2" if pool.recipe.model == "sdenet" else words[pool.recipe.defense]] = (
            pool
        )
    assert set(found) == set(TRAINED)
    return {name: found[name] for name in TRAINED}


def ask(pools, name, **options):
    """Answers of a defended family: as the notebook says that it asks."""
    pool = pools.get(name, pools["no defense"])
    options |= {"output": name.lower()} if name not in pools else {}
    return query(pool, pool.images(), progress=False, **options)


@pytest.fixture(scope="module")
def answers(pools):
    return {name: ask(pools, name, queries=2 if "SDE" in name else 1) for name in NAMES}


@pytest.fixture(scope="module")
def scores(pools, answers):
    voted = {name: ask(pools, name, augment=True, queries=4) for name in NAMES}
    plain = [word for word in ATTACKS if word not in ASKED_AGAIN]
    return {
        name: (
            {w: score(w, one) for w in plain}
            | {w: score(attack, voted[name]) for w, attack in ASKED_AGAIN.items()}
        )
        for name, one in answers.items()
    }


@pytest.fixture(scope="module")
def best(scores) -> dict[str, str]:
    return {
        name: max(found, key=lambda word: mean_auc(found[word])) for name, found in scores.items()
    }


def mean_auc(scores) -> float:
    """Mean over targets, without what no reference could score."""
    pairs = (
        (v[~np.isnan(v)], m[~np.isnan(v)]) for v, m in zip(scores.value, scores.member, strict=True)
    )
    return np.mean([metrics.auc(*pair) for pair in pairs])


@pytest.fixture(scope="module")
def runs(pools, answers):
    """{family: {epoch: {attack: Scores}}} of the weights kept along training, votes left out."""
    kept = {name: [*pool.recipe.snapshots, pool.recipe.epochs] for name, pool in pools.items()}
    assert kept["no defense"] == [1, 2, 4] and kept["DP-SGD"] == [1, 2]
    found = {}
    for name, epochs in kept.items():
        asking = {"queries": 2} if "SDE" in name else {}
        then = {
            e: query(pools[name].at(e), pools[name].images(), progress=False, **asking)
            for e in epochs
        }
        found[name] = {
            e: {word: score(word, one) for word in ATTACKS[:-1]} for e, one in then.items()
        }
    return found


def test_no_cell_fails_warns_or_leaves_a_widget(compared):
    for cell, outputs in compared.outputs.items():
        for output in outputs:
            assert output["output_type"] != "error" and output.get("name") != "stderr", (
                cell,
                output,
            )
            assert not any("widget" in kind for kind in output.get("data", {})), cell


def test_every_picture_is_there_light_and_titled_as_the_stored_pools_say(
    compared, scores, best, runs
):
    drawn = {cell: figure for cell in compared.outputs for figure in pictures(compared, cell)}
    assert list(drawn) == ["answer", "roc", "defenses", "overfitting", "frontier"]
    assert all(len(json.dumps(figure)) < 200_000 for figure in compared.figures().values())
    strongest = {name: scores[name][word] for name, word in best.items()}
    ranked = sorted(NAMES[1:], key=lambda name: mean_auc(strongest[name]))
    # five of the six others, spread; halves round to even
    picked = ["no defense", *(ranked[i] for i in (0, 1, 2, 4, 5))]
    truth = plots.roc_pair({name: strongest[name] for name in picked})
    assert title(drawn["roc"]) == truth.layout.title.text.replace("<br>", " ")
    table = metrics.frontier({name: run for name, run in runs.items() if name in picked}, **DRAWS)
    means = metrics.frontier_means(table)
    truth = plots.against(means, "test_acc", "auc", line="family", label="epoch")
    points = drawn["frontier"]["data"]
    assert [point["name"] for point in points] == [trace.name for trace in truth.data]
    for point, trace in zip(points, truth.data, strict=True):
        assert point["x"] == pytest.approx(list(trace.x))
        assert point["y"] == pytest.approx(list(trace.y))
        assert point["error_y"]["array"] == pytest.approx(list(trace.error_y.array))


def test_every_network_is_named_by_its_defense_with_its_pool(compared, pools, answers):
    lines = [line for line in compared.text("names").splitlines() if ", pool " in line]
    for line, (name, one) in zip(lines, answers.items(), strict=True):
        label = line.removeprefix(f"{name}: ").split(", queries")[0]
        assert sorted(label.split(", ")) == sorted(setting(one.info, "").label.split(", "))
        assert f", queries {one.margin.shape[1]}" in line
        assert line.endswith(f", pool {pools.get(name, pools['no defense']).key[:12]}")
    stopped = pools["early stopping"].stopped
    assert f", stopped after epochs {min(stopped)} to {max(stopped)}, " in lines[2]


def test_all_families_have_the_same_members_and_what_a_defense_looked_at_is_asked_of_nobody(
    pools, answers
):
    assert all(np.array_equal(pool.member, pools["no defense"].member) for pool in pools.values())
    assert (
        pools["early stopping"].held_out.sum() == 15
        and answers["early stopping"].population.sum() == 5
    )
    assert answers["no defense"].population.sum() == 20


def test_dp_sgd_comes_with_epsilon_delta_relation_and_method(compared, pools):
    args, (line,) = pools["DP-SGD"].recipe.defense_args, compared.text("dp-sgd").splitlines()
    spent = {
        "noise_multiplier": args["noise_multiplier"],
        "sample_rate": 60 / 120,
        "steps": 2 * 2,
        "delta": 1e-5,
    }
    shown = re.match(r"DP-SGD: epsilon ([\d.]+) at delta 1e-05 \(add/remove one record\), ", line)
    assert abs(float(shown[1]) - accounting.epsilon(**spent)) < 0.0101  # three digits, either way
    assert "for one training; DP-SGD, PRV accountant, noise multiplier" in line
    assert f"q = {spent['sample_rate']:.4g}, {spent['steps']} steps" in line
    assert 7.9 < accounting.epsilon(**spent, accountant="rdp") <= 8  # what was aimed at


def test_accuracies_are_those_of_the_stored_models(compared, answers):
    shown = rows(compared, "accuracy")
    assert list(shown) == NAMES
    for name, one in answers.items():
        right, audited = one.correct.mean(1), ~one.population
        sides = one.member & audited, ~one.member & audited
        inside, outside = (
            np.array([r[s].mean() for r, s in zip(right, side, strict=True)]) for side in sides
        )
        found = [float(text.split()[0]) for text in shown[name]]
        assert found == pytest.approx(
            [100 * v.mean() for v in (inside, outside, inside - outside)], abs=0.06
        )
    assert shown["MemGuard"] == shown["no defense"]  # the label stays


def test_every_attack_on_every_defense_knows_the_defense_and_has_an_interval(compared, scores):
    head, *_ = table(compared.html("attacks"))
    assert head == ["AUC", *map(in_words, ATTACKS), "max"]
    shown = rows(compared, "attacks", 1)
    assert list(shown) == NAMES
    for name, found in scores.items():
        for text, word in zip(shown[name], ATTACKS, strict=False):
            low, high = metrics.intervals(found[word], **DRAWS).loc["auc", ["low", "high"]]
            assert text == f"{mean_auc(found[word]):.3f} [{low:.3f}, {high:.3f}]"
        assert shown[name][-1].split()[0] == max(text.split()[0] for text in shown[name][:-1])
    labels = [word for word in ATTACKS if word in ("correctness", "vote")]
    assert [shown["MemGuard"][ATTACKS.index(w)] for w in labels] == [
        shown["no defense"][ATTACKS.index(w)] for w in labels
    ]


def test_the_strongest_attack_is_named_and_a_rate_that_is_0_by_ties_is_no_number(
    compared, scores, best
):
    named = {name: row[0] for name, row in rows(compared, "rates", 1).items()}
    assert named == {name: in_words(word) for name, word in best.items()}
    shown = rows(compared, "lattice")
    assert list(shown) == [*map(in_words, ATTACKS)]
    found = scores["MemGuard"]
    truth = metrics.readable(metrics.summary(found, **DRAWS))
    for word, row in shown.items():
        assert row[:-1] == [
            truth.loc[word, column]
            for column in truth
            if column == "AUC" or column.startswith("TPR")
        ]
    wrongly = [
        value[~member].max()
        for value, member in zip(found["loss"].value, found["loss"].member, strict=True)
    ]
    floors = [
        (v[~m] == top).mean()
        for v, m, top in zip(found["loss"].value, found["loss"].member, wrongly, strict=True)
    ]
    tied = shown[in_words("loss")]
    assert min(floors) > 0.1 and tied[-1] == f"{np.mean(floors):.2g}"
    right = shown[in_words("correctness")]
    assert tied[-2] == right[-2] == "0: tied scores allow no lower FPR"


def test_figure_3_shows_the_strongest_attack_against_accuracy_and_gap(compared, scores, best):
    figures = pictures(compared, "defenses") + pictures(compared, "overfitting")
    for name, word in best.items():
        right = metrics.accuracies(scores[name]["correctness"])["value"]
        for figure, what in zip(figures, ("test", "gap"), strict=True):
            (point,) = (trace for trace in figure["data"] if trace["name"] == name)
            assert point["x"] == pytest.approx([right[what]])
            assert point["y"] == pytest.approx([mean_auc(scores[name][word])])
            assert max(point["error_y"]["array"]) > 0


def test_at_equal_accuracy_every_defense_has_one_line_and_a_verdict_for_all_lines_together(
    compared, runs, scores, best
):
    shown, table = rows(compared, "verdicts", 1), metrics.frontier(runs, **DRAWS)
    assert list(shown) == NAMES[1:]
    sure, compared_some = 1 - 0.05 / 6, 0
    ends = (
        table[table["attack"] == "loss"]
        .groupby(["family", "epoch"])["test_acc"]
        .mean()
        .groupby("family")
        .max()
    )
    for name in TRAINED[1:]:
        levels = min(ends["no defense"], ends[name]) - np.array([0.04, 0.02, 0.01, 0.005, 0])
        both = table[table["family"].isin(["no defense", name])]
        pair = metrics.matched(both, baseline="no defense", confidence=sure, levels=levels)
        pair = pair[(pair["family"] == name) & (pair["difference_pairs"] >= 4)]
        if not len(pair):
            assert shown[name][-1] == "no accuracy in common" and f"{name}: " in compared.text(
                "verdicts"
            )
            continue
        row, compared_some = pair.iloc[-1], compared_some + 1
        wanted = row[["level", "value", "difference", "difference_low", "difference_high"]]
        assert [float(text) for text in shown[name][:5]] == pytest.approx(wanted.tolist(), abs=6e-4)
        assert shown[name][5:7] == [str(row["difference_pairs"]), "2" if "SDE" in name else "1"]
        assert float(shown[name][7]) == pytest.approx(row["last_test_acc"], abs=6e-4) and shown[
            name
        ][8] == verdict(*wanted.iloc[3:])
    assert compared_some  # else nothing was compared
    for name in NAMES[len(TRAINED) :]:
        pools_apart = (scores[one][best[one]] for one in (name, "no defense"))
        value, low, high = metrics.difference(*pools_apart, (), confidence=sure, **DRAWS).loc["auc"]
        assert [float(text) for text in shown[name][2:5]] == pytest.approx(
            [value, low, high], abs=6e-4
        )
        assert shown[name][5:7] == ["8", "4" if best[name] in ASKED_AGAIN else "1"] and shown[name][
            8
        ] == verdict(low, high)


def verdict(low, high) -> str:
    return "resolved below" if high < 0 else "resolved above" if low > 0 else "not resolved"


def test_the_claims_are_those_of_the_same_scores_and_the_accountant(
    compared, pools, answers, scores
):
    cells = {
        setting(answers[n].info, w): one for n, found in scores.items() for w, one in found.items()
    }
    spent = {
        "noise_multiplier": pools["DP-SGD"].recipe.defense_args["noise_multiplier"],
        **pools["DP-SGD"].sampling,
    }
    ladders = {"DP-SGD": auditing.ladder(delta=1e-5, dp_sgd=spent)}
    truth = studies.claims("privacy", cells, ladders=ladders, **DRAWS).drop("D14")
    shown = rows(compared, "claims", 1)
    assert {name: row[0] for name, row in shown.items()} == {
        f"{n}. {r['claim']}": r["verdict"] for n, r in truth.iterrows()
    }
    for shown_row, wanted_row in zip(grounds(compared), wanted(truth), strict=True):
        assert list(map(words, shown_row)) == list(map(words, wanted_row))
    assert compared.text("evidence").splitlines() == headline(truth)
    assert (
        truth.loc["D8", "verdict"] != "not run"
        and "DP-SGD accounted: DP-SGD epsilon" in truth.loc["D8", "evidence"]
    )


def words(line: str) -> list[str]:
    """Sorted: a defense's options come in any order."""
    return sorted(re.split(r"[ ,]+", line))


def test_nothing_stands_beside_the_printed_numbers_unless_the_data_are_said_to(compared):
    assert compared.text("beside").strip() == "0 of 56 printed numbers were measured, on digits"
    assert not compared.text("notes")


def test_it_ends_in_doubt(compared, scores, best, answers):
    assert re.match(
        r"negative control (passed|FAILED): \d+ checks on no defense", compared.text("self-test")
    )
    doubts = {name: row[0] == "holds" for name, row in rows(compared, "doubts", 1).items()}
    test = {name: found["loss"].accuracy[:, 1].mean() for name, found in scores.items()}
    tables = [metrics.summary(found, **DRAWS) for found in scores.values()]
    highs = [high for table in tables for high in metrics.by_attack(table, "auc")["high"]]
    guess = np.bincount(answers["no defense"].labels).max() / 260
    assert doubts == {
        "the negative control passed": "passed" in compared.text("self-test"),
        "every family learned: twice as good as guessing": bool(min(test.values()) > 2 * guess),
        "test accuracies lie within a point of the first family's": bool(
            np.ptp(list(test.values())) < 0.01
        ),
        "every defense passed an accuracy that the first family passed": (
            "no accuracy in common" not in compared.html("verdicts")
        ),
        "no AUC lies below one half": min(highs) > 0.5,
        "stochastic families were queried 16 times or more, along training too": False,
        "the label-only attack queried augmented copies": True,
        "one attack is the strongest everywhere": len(set(best.values())) == 1,
        "at least eight models, so that intervals can be narrow": True,
        "a rate at 1 % false alarms is measurable": False,
    }


@pytest.mark.parametrize(
    "change, message",
    [
        ({"outputs": ["memgard"]}, r"output='memgard' is .*; output defenses are memguard, "),
        (
            {"families": [{}, {"epsilon": 8.0}]},
            r"family 1 aims at epsilon=8.0 without defense: dp_sgd",
        ),
    ],
)
def test_a_bad_parameter_stops_it_in_one_line_before_anything_is_trained(tmp_path, change, message):
    with pytest.raises(ValueError, match=message) as caught:
        Run("06_defenses", tmp_path / "results", tmp_path / "bad.ipynb", **SIZE | change)
    assert "\n" not in str(caught.value) and not list((tmp_path / "results").glob("pool-*"))


def test_one_family_without_output_defenses_and_votes_is_attacked_all_the_same(
    folder, compared, scores
):
    size = SIZE | {"families": [{}], "outputs": [], "votes": 0}
    run = Run("06_defenses", folder / "results", folder / "alone.ipynb", **size)
    assert run.text("pools").count(
        "cached"
    ) == 1 and "none of these trainings has a guarantee" in run.text("dp-sgd")
    head, *_ = table(run.html("attacks"))
    assert head == ["AUC", *(in_words(word) for word in ATTACKS if word not in ASKED_AGAIN), "max"]
    before = rows(compared, "attacks", 1)["no defense"]
    assert rows(run, "attacks", 1)["no defense"][:3] == before[:3] and not run.html("lattice")
    assert {row[0] for row in rows(run, "claims", 1).values()} == {"not run"}
