"""A claim or a study of one's own is an entry of YAML and no code."""

from __future__ import annotations

import textwrap

import pytest
import test_studies_nsde as nsde
import yaml

from mia_nb import metrics, studies
from mia_nb.studies.study import FOLDER

OWN = """
    models: [resnet14, sdenet]
    claims:
      X1:
        sentence: More queries find more (in AUC).
        needs: one network queried twice
        joins:
          - {a: {model: sdenet}, along: queries, which: ends, compare: [{part: queries}]}
      X2:
        sentence: ResNet-14 is more exposed than any SDENet, attack by attack.
        needs: one attack on both
        parts: [lira_global, rmia]
        equal: true
        joins:
          - a: {model: resnet14}
            b: {model: sdenet, k: {from: 0.5}}
            compare: [{part: "{attack}", attacks: each, compared: "{a.label} over {b.counted}"}]
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "own.yaml"
    path.write_text(textwrap.dedent(OWN))
    return path


@pytest.fixture(scope="module")
def settings():
    found = nsde.study(
        lambda one: 2.0 if one.model == "resnet14" else 0.1 * one.queries,
        settings=[nsde.RESNET, *nsde.ASKED[:2]],
    )
    return {one: scores for one, scores in found.items() if one.model != "odenet"}


def test_a_study_of_ones_own_gets_comparisons_and_verdicts(own, settings):
    table = studies.comparisons(own, settings, n_resamples=50)
    auc = table[table["metric"] == "auc"].set_index("part")
    mean = {one: metrics.per_target(scores)["auc"].mean() for one, scores in settings.items()}
    once, often = (nsde.ASKED[0], nsde.ASKED[1])
    assert auc.loc["queries", "value"] == pytest.approx(mean[often] - mean[once])
    assert list(auc.loc["lira_global", "compared"]) == [
        "ResNet-14 over 1 query",
        "ResNet-14 over 16 queries",
    ]
    claims = studies.claims(own, settings, n_resamples=50)
    assert claims["verdict"].to_dict() == {"X1": "holds", "X2": "not resolved"}
    assert "RMIA: not run" in claims.loc["X2", "evidence"]
    assert studies.claims(own, {}, n_resamples=50)["verdict"].eq("not run").all()


def test_a_claim_is_added_to_a_study_by_an_entry(tmp_path, settings):
    entries = yaml.safe_load(textwrap.dedent(OWN))
    entries["claims"]["X3"] = {
        "sentence": "An SDENet that is queried once leaks nothing.",
        "needs": "one attack on it",
        "design_check": 0,
        "joins": [
            {
                "a": {"model": "sdenet", "queries": 1},
                "compare": [{"part": "chance", "minus": "chance", "margin": 0.01}],
            }
        ],
    }
    path = tmp_path / "more.yaml"
    path.write_text(yaml.safe_dump(entries))
    assert list(studies.claims(path, settings, n_resamples=50).index) == ["X1", "X2", "X3"]
    assert studies.claims(path, settings, n_resamples=50).loc["X3", "verdict"] == "does not hold"


def test_what_a_study_does_not_have_is_refused_in_one_line(own, settings):
    with pytest.raises(
        ValueError, match="'odenet' is no model of this study: wanted one of resnet"
    ):
        studies.claims(own, {nsde.ODENET: next(iter(settings.values()))})
    with pytest.raises(ValueError, match=r"no study 'nope': wanted a YAML file or one of \['nsde'"):
        studies.claims("nope", settings)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "claims:",
            "verdict: as printed\nclaims:",
            "a study has no 'verdict'; it has claims, models",
        ),
        (
            "needs: one network",
            "need: one network",
            "claim [A-Z0-9]+ has no 'need'; did you mean 'needs'",
        ),
        (
            "which: ends",
            "steps: ends",
            "a join of claim [A-Z0-9]+ has no 'steps'; it has compare, a, b",
        ),
        (
            "part: queries",
            "part: queries, need: false",
            "a comparison of claim [A-Z0-9]+ has no 'need'; did you mean 'needed'",
        ),
        ("part: queries", "sides: [], part: queries", "has no 'sides'; it has part, compared"),
        ("needs: one network", "place: here", "claim [A-Z0-9]+ lacks 'needs'"),
        (
            "along: queries",
            "along: lr",
            "claim [A-Z0-9]+: a setting has no 'lr'; it has model, blocks",
        ),
        (
            "a: {model: sdenet}",
            "a: {modle: sdenet}",
            "a setting has no 'modle'; did you mean 'model'",
        ),
        (
            "which: ends",
            "which: ends, instead_of: {k: sigma2}",
            "a setting has no 'sigma2'",
        ),
        (
            "part: queries",
            "part: queries, beyond: {atack: rmia}",
            "a setting has no 'atack'; did you mean 'attack'",
        ),
        (
            "part: queries",
            "part: queries, minus: chance, beyond: {attack: rmia}",
            "queries has minus and beyond: wanted one of them",
        ),
        ("compare: [{part: queries}]", "compare:", "compare of claim X1=None: wanted list"),
        (
            "- {a: {model: sdenet}, along: queries, which: ends, compare: [{part: queries}]}",
            "# none",
            "joins of claim X1=None: wanted list",
        ),
    ],
)
def test_an_entry_that_no_study_has_is_refused_in_one_line(tmp_path, before, after, words):
    path = tmp_path / "typo.yaml"
    text = textwrap.dedent(OWN)
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(ValueError, match=rf"typo\.yaml is no study: .*{words}") as refused:
        studies.claims(path, {})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("selections", ["", "{c: &c {part: p, attack: rmia}}", "{d: [rmia, lira]}"])
def test_selections_hold_whatever_the_rest_of_a_file_refers_to(tmp_path, settings, selections):
    path = tmp_path / "own.yaml"
    path.write_text(f"selections: {selections}\n{textwrap.dedent(OWN)}")
    assert list(studies.claims(path, settings, n_resamples=50).index) == ["X1", "X2"]


def test_one_attack_may_stand_for_a_list_of_one(tmp_path, settings):
    rows = []
    for attacks in ("lira_global", "[lira_global]", "[[lira_global, lira_global]]"):
        path = tmp_path / "own.yaml"
        path.write_text(textwrap.dedent(OWN).replace("attacks: each", f"attacks: {attacks}"))
        rows.append(studies.comparisons(path, settings, n_resamples=50).query("claim == 'X2'"))
    assert len(rows[0]) and all(one.equals(rows[0]) for one in rows)


def test_a_copy_of_a_published_study_has_one_verdict(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text((FOLDER / "nsde.yaml").read_text())
    table = studies.claims(path, {}, n_resamples=50)
    assert "as_printed" not in table and table["verdict"].eq("not run").any()


@pytest.mark.parametrize("one_sided", ["minus: chance", "beyond: {queries: 1}"])
def test_at_equal_accuracy_only_comparisons_of_two_sides_are_repeated(
    tmp_path, settings, one_sided
):
    text = textwrap.dedent(OWN).replace("equal: true", "matched: gap")
    text = text.replace("attacks: each", f"metric: gap, {one_sided}")
    path = tmp_path / "own.yaml"
    path.write_text(text)
    frontier = nsde.curves_of(0.5)
    rows = studies.comparisons(path, settings, frontier=frontier, n_resamples=50)
    assert "at equal gap" not in set(rows["part"])
