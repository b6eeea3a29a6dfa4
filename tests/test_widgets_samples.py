"""One sample in two worlds, and which samples are exposed: explorers against the attacks they
show.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import sys
import warnings

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from attack_worlds import save_signals
from scipy.stats import beta, norm
from scipy.stats import t as student
from worlds import bernoulli, world

from mia_nb import attacks, auditing, store, widgets
from mia_nb.attacks.fits import Fit, lira_fit, nig_fit
from mia_nb.widgets.evidence import SampleEvidence, intervals_of_fit
from mia_nb.widgets.losses import losses_of, losses_picture
from mia_nb.widgets.ranking import separations
from mia_nb.widgets.sample import number_cells, result_words

RNG = np.random.default_rng(5)
X = RNG.integers(0, 256, (220, 1, 8, 8), dtype=np.uint8)


def source(signals, *, images=True, label="here"):
    return widgets.stored.Source(
        label,
        signals,
        images=X[: len(signals.labels)] if images else None,
        classes=("a", "b", "c", "d"),
    )


@pytest.fixture(scope="module")
def signals():
    return world(8, 200, leak=1.5, population=20)


@pytest.fixture(scope="module")
def explorer(signals):
    explorer = widgets.sample([source(signals)])
    explorer.set(sample=3)
    return explorer


def numbers(trace, axis="x"):
    values = trace[axis]
    return np.frombuffer(
        base64.b64decode(values["bdata"]), {"f4": np.float32, "i4": np.int32}[values["dtype"]]
    )


def drawn(view, start):
    return next(t for t in view.figures["margins"]["data"] if t.get("name", "").startswith(start))


def cell(view, name):
    return view.table.iloc[0][name]


@pytest.mark.parametrize("variance", ["global", "shrunk", "per_sample"])
@pytest.mark.parametrize("design", ["pairs", "bernoulli"])
def test_the_fitted_densities_are_those_that_the_attacks_compare(variance, design):
    world_of = world(8, 120, leak=1.0, **({"design": bernoulli} if design == "bernoulli" else {}))
    target, references = world_of.hold_out(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        phi, fit = lira_fit(target, references, variance=variance)
        score = attacks.likelihood.lira(
            target, references, variance=variance, combine="margin", missing="nan"
        )
        assert np.allclose(fit.log_ratio(phi), score, rtol=1e-9, atol=1e-9, equal_nan=True)
        phi, fit = nig_fit(target, references)
        options = {"combine": "margin", "missing": "nan", "allow_unequal": True}
        score = attacks.likelihood.nig(target, references, **options)
        assert np.allclose(fit.log_ratio(phi), score, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_log_densities_are_the_gaussian_and_students_t():
    fit = Fit(
        *(np.array(part, float)[:, None] for part in ([1, -1], [0.5, 2], [np.inf, np.inf], [3, 3]))
    )
    x = np.linspace(-4, 4, 9)
    wanted = [norm.logpdf(x, 1, 0.5), norm.logpdf(x, -1, 2)]
    assert np.allclose(fit.log_density(x), wanted)
    heavy = fit._replace(freedom=np.array([[3.0], [7.5]]))
    assert np.allclose(
        heavy.log_density(x), [student.logpdf(x, 3, 1, 0.5), student.logpdf(x, 7.5, -1, 2)]
    )


@pytest.mark.parametrize(
    ("choice", "attack"),
    [("global", "lira_global"), ("shrunk", "lira_shrunk"), ("per sample", "lira_per_sample")],
)
@pytest.mark.parametrize("target", [0, 5])
def test_with_all_references_the_ratios_shown_are_the_scores_of_lira_and_nig(
    explorer, signals, choice, attack, target
):
    view = explorer.set(variance=choice, target=target, sample=11, k=3)
    for column, name in (("log LR", attack), ("log LR (Student-t LiRA)", "nig")):
        wanted = attacks.score(name, signals, targets=target).value[0, 11]
        assert float(cell(view, column).split(" ")[0]) == pytest.approx(wanted, rel=6e-3)


def test_large_ratios_stand_without_powers_of_ten():
    about = SampleEvidence(
        target_margin=-9.0,
        n_in=3,
        n_out=3,
        gap=114.0,
        gap_low=96.0,
        gap_high=1234.0,
        log_ratio=-112.0,
        ratio_low=-284.0,
        ratio_high=-23.0,
        is_gaussian=True,
        student_log_ratio=-1234.0,
    )
    sentence = result_words(about, 3)
    assert "differ by 110 nats [96, 1,200]" in sentence
    assert "log likelihood ratio is -110 [-280, -23]: looks like a non-member" in sentence
    cells = number_cells(about)
    assert cells["m IN - m OUT"] == "114 [96, 1,230]"
    assert cells["log LR (Student-t LiRA)"] == "-1,230"


def test_the_curves_drawn_are_the_fit_at_the_drawn_margins(explorer, signals):
    view = explorer.set(variance="shrunk", target=2, sample=7, k=3)
    target, references = signals.hold_out(2)
    _, fit = lira_fit(target, references, variance="shrunk")
    data = view.figures["margins"]["data"]
    lines = [t for t in data if t.get("line", {}).get("dash") == "dash" and "name" not in t]
    density = np.exp(fit.of(7).log_density(numbers(lines[0]).astype(float)))
    heights = np.stack([numbers(lines[1], "y") - 1, numbers(lines[0], "y")])
    assert np.allclose(heights[1] / heights[1].max(), density[1] / density[1].max(), atol=1e-3)
    assert np.isclose(
        heights[0].max() / heights[1].max(), fit.scale[1, 7] / fit.scale[0, 7], rtol=0.02
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_references_a_side_are_drawn_and_neither_the_target_nor_its_complementary_model_is_one(
    explorer, signals, k
):
    target = 4
    view = explorer.set(target=target, sample=9, k=k, variance="shrunk")
    inside, outside = drawn(view, "IN"), drawn(view, "OUT")
    rows = [int(n) for n in (*inside["text"], *outside["text"])]
    assert len(inside["text"]) == len(outside["text"]) == k
    assert not {4, 5} & set(rows) and len(set(rows)) == 2 * k
    assert signals.member[rows, 9].tolist() == [True] * k + [False] * k
    assert np.allclose(
        numbers(inside), [signals.margin[int(n), 0, 9] for n in inside["text"]], rtol=1e-6
    )
    assert np.allclose(numbers(drawn(view, "target")), signals.margin[target, 0, 9])


def test_one_reference_a_side_leaves_no_gaussian_and_says_so(explorer):
    view = explorer.set(k=1, target=0, sample=3)
    assert "only Student-t LiRA gives a ratio" in view.sentence and "no interval" in view.sentence
    assert not any(t.get("name") == "Gaussian" for t in view.figures["margins"]["data"])
    assert "no variance estimate" in view.note


def test_the_note_holds_every_warning_of_the_fits_that_are_drawn_once():
    lopsided = source(world(8, 120, leak=1.0, design=bernoulli))
    explorer = widgets.sample([lopsided])
    warning = "samples with one reference on a side take the global variance"
    assert explorer.set(variance="per sample", k=2).note.count(warning) == 1
    assert warning not in explorer.set(variance="shrunk", k=2).note

    pairs = widgets.sample([source(world(8, 120, leak=1.0))])
    note = pairs.set(variance="per sample", k=1).note
    assert note.count("Student-t LiRA has one pair only") == 1
    assert note.count("no variance estimate") == 1
    assert warning not in note  # no Gaussian is drawn


def test_a_click_is_the_same_as_the_number_and_a_lasso_fills_the_state(explorer):
    explorer.set(sample=3, k=3)
    explorer.on_mouse("scatter", {"kind": "click", "numbers": [17]})
    clicked = explorer.view
    assert explorer.values["sample"] == 17
    explorer.set(sample=3)
    assert explorer.set(sample=17).sentence == clicked.sentence
    ring = explorer.view.figures["scatter"]["data"][-1]
    # or the points would cover it
    assert {t["type"] for t in explorer.view.figures["scatter"]["data"]} == {"scattergl"}
    assert np.isclose(ring["x"][0], float(cell(explorer.view, "target's margin")), atol=1e-3)
    explorer.on_mouse("scatter", {"kind": "select", "numbers": [1, 2, 3]})
    assert cell(explorer.view, "lasso") == "3 samples"
    explorer.on_mouse("scatter", {"kind": "select", "numbers": []})
    assert "lasso" not in explorer.view.table


def test_a_lassoed_subset_is_counted_and_shown(explorer, signals):
    columns = (150, 4, 8, 15, 16, 23, 42)
    view = explorer.set(target=1, attack="rmia", subset=columns, sample=3)
    inside = int(signals.member[1, list(columns)].sum())
    sheet = view.figures["subset"]["layout"]
    assert cell(view, "lasso") == "7 samples" and sheet["title"]["text"].startswith(
        f"7 samples, {inside} members (●) and {7 - inside} non-members (◇)"
    )
    marked = {note["text"].split("<br>")[0] for note in sheet["annotations"]}
    assert marked == {f"{'●' if signals.member[1, n] else '◇'} {n}" for n in columns}
    explorer.set(subset=())


def test_a_sample_that_is_not_there_is_answered_in_place(explorer):
    with pytest.raises(
        ValueError, match="sample 200 is not among the 200 audited ones; near it are 197, 198, 199"
    ):
        explorer.set(sample=200)
    explorer.controls["sample"].value = -1
    assert (
        explorer.error.startswith("sample -1 is not among the 200 audited")
        and explorer.view is not None
    )
    explorer.set(sample=3)


def test_an_explorer_without_images_or_losses_says_so_and_still_works(signals):
    view = widgets.sample([source(signals, images=False)]).set(subset=(1, 2))
    assert "no images are stored" in view.figures["image"]["layout"]["title"]["text"]
    assert "2 samples" in view.figures["subset"]["layout"]["title"]["text"]
    assert "no training losses" in view.figures["traces"]["layout"]["title"]["text"]
    seen = widgets.exposed([source(signals, images=False)]).view
    assert "no images are stored" in seen.figures["sheet"]["layout"]["title"]["text"]


def test_bad_sources_give_a_message_and_no_stack_trace(signals):
    for make in (widgets.sample, widgets.exposed):
        assert "mia-nb run all" in make([]).error
        assert "member is None" in make([source(dataclasses.replace(signals, member=None))]).error
    alone = signals.select(models=[0, 1])
    assert (
        "has no references but its complementary model: train two pairs or more"
        in widgets.sample([source(alone)]).error
    )


def unusable(signals):
    """Signals that no explorer of samples can show, and a word of what each must be told."""
    foreign = dataclasses.replace(signals, member=np.zeros_like(signals.member))
    return {
        "hidden": (dataclasses.replace(signals, member=None), "member is None", "member is None"),
        "foreign": (
            foreign,
            "all models of bad or none were trained on these samples",
            "no sample of bad is scored",
        ),
        "everyone": (
            dataclasses.replace(signals, member=~foreign.member),
            "all models of bad or none",
            "no sample of bad",
        ),
        "alone": (
            signals.select(models=[0]),
            "train two pairs or more",
            "no sample of bad is scored in one target and out of another",
        ),
        "pair": (signals.select(models=[0, 1]), "train two pairs or more", None),
    }


@pytest.mark.parametrize("kind", ["hidden", "foreign", "everyone", "alone", "pair"])
def test_a_bad_first_source_is_answered_in_place_and_the_next_one_works(signals, kind):
    bad, *words = unusable(signals)[kind]
    for make, word in zip((widgets.sample, widgets.exposed), words, strict=True):
        explorer = make([source(bad, label="bad"), source(signals, label="good")])
        if word is not None:
            assert (
                word in explorer.error
                and "report this" not in explorer.error
                and explorer.view is None
            )
        view = explorer.set(pool="good", attack="rmia")
        assert (
            view.sentence == make([source(signals, label="good")]).set(attack="rmia").sentence
            and not explorer.error
        )


def test_a_damaged_file_is_answered_in_place_and_the_next_source_works(signals, tmp_path):
    pool = store.open_folder(tmp_path, "pool", "here", "ab" * 32, {"model": "tinycnn"})
    pool.write_json("images.json", {"classes": ["a", "b", "c", "d"]})
    pool.write_array("member.npy", signals.member)
    info = {"pool": "ab" * 32, "family": "tinycnn"}
    save_signals(
        store.open_folder(tmp_path, "signals", "here", "cd" * 32, {}),
        dataclasses.replace(signals, info=info),
    )
    (bad,) = widgets.sources(tmp_path, shipped=False)
    file = bad.folder.path / "margin.npy"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 255
    file.write_bytes(raw)
    for make in (widgets.sample, widgets.exposed):
        explorer = make([bad, source(signals, label="good")])
        assert "margin.npy" in explorer.error and explorer.view is None
        assert "sample" in explorer.set(pool="good").sentence.lower()


@pytest.fixture(scope="module")
def scattered(tmp_path_factory):
    """(a Source of 50 of a pool's 60 images in another order, 10 of them set aside, numbers of its
    audited columns).
    """
    root, key, whole = tmp_path_factory.mktemp("results"), "ef" * 32, planted(8, 60, where=31)
    samples = np.random.default_rng(8).permutation(60)[:50]
    samples[20] = 31 if 31 not in samples else samples[20]
    aside = np.arange(50) % 5 == 2
    aside[samples == 31] = False
    part = whole.select(samples=samples)
    member = part.member & ~aside
    part = dataclasses.replace(
        part, population=aside, member=member, info={"pool": key, "family": "tinycnn"}
    )
    pool = store.open_folder(root, "pool", "here", key, {"model": "tinycnn"})
    full = np.zeros((8, 60), bool)
    full[:, samples] = member
    pool.write_array("member.npy", full)
    pool.write_array("images.npy", X[:60])
    pool.write_array("canary.npy", np.arange(60) % 3 == 1)
    pool.write_json("images.json", {"classes": ["a", "b", "c", "d"]})
    for m in range(8):
        values = np.where(np.arange(60) == 31, -9.0, -2.0)[full[m]] + np.zeros((3, 1))
        pool.write_array(f"losses_{m:03d}.npy", values.astype(np.float32))
    folder = store.open_folder(root, "signals", "here", "cd" * 32, {})
    save_signals(folder, part, samples)
    (found,) = widgets.sources(root, shipped=False)
    return found, samples[~aside], samples[aside]


def test_a_sample_is_called_by_its_number_in_the_pools_images_everywhere(scattered):
    found, audited, aside = scattered
    view = widgets.sample([found]).set(sample=31)
    assert view.sentence.startswith("Sample 31 (labelled d,") and cell(view, "who") == "sample 31"
    assert view.figures["scatter"]["data"][-1]["name"] == "sample 31"
    dots = np.concatenate([numbers(t, "customdata") for t in view.figures["scatter"]["data"][:-1]])
    assert sorted(dots) == sorted(audited)
    memory = widgets.stored.Source(
        "x", found.signals, images=X[found.samples], classes=("a", "b", "c", "d")
    )
    place = int(np.flatnonzero(found.samples == 31)[0])
    assert (
        view.figures["image"]["data"][0]["source"]
        == widgets.sample([memory]).set(sample=place).figures["image"]["data"][0]["source"]
    )
    assert np.allclose(numbers(drawn(view, "target")), found.signals.margin[0, 0, place])
    traces = {t.get("name"): numbers(t, "y") for t in view.figures["traces"]["data"]}
    assert np.allclose(traces["their median"], np.exp(-9.0))
    ranked = widgets.exposed([found])
    assert "sample 31 (labelled d)" in ranked.view.sentence and ranked.values["sample"] == 31
    sheet = ranked.view.figures["sheet"]
    assert numbers(sheet["data"][1], "customdata")[0] == 31 and cell(ranked.view, "sample") == 31
    assert sheet["layout"]["annotations"][0]["text"] == "31<br>d"
    for number in (int(aside[0]), 4000):
        for explorer in (ranked, widgets.sample([found])):
            with pytest.raises(
                ValueError, match=f"sample {number} is not among the 40 audited ones; near it are"
            ):
                explorer.set(sample=number)


def test_it_starts_with_the_pools_number_of_the_sample_whose_worlds_differ_most(scattered):
    found, audited, _ = scattered
    _, fit = nig_fit(*found.signals.hold_out(0))
    apart = ((fit.centre[0] - fit.centre[1]) / fit.scale[1])[found.audited]
    assert widgets.sample([found]).values["sample"] == audited[np.nanargmax(apart)]


def test_canaries_are_looked_up_by_number(scattered):
    found, audited, _ = scattered
    explorer = widgets.exposed([found])
    said = {n for n in audited if cell(explorer.set(sample=int(n)), "canary") == "yes"}
    assert said == set(audited[audited % 3 == 1])


def test_clicks_and_lassos_carry_the_same_numbers(scattered):
    found, audited, _ = scattered
    explorer = widgets.sample([found])
    explorer.on_mouse("scatter", {"kind": "click", "numbers": [31]})
    assert explorer.view.sentence.startswith("Sample 31 (")
    chosen = [int(n) for n in audited[[3, 17, 30]]]
    explorer.on_mouse("scatter", {"kind": "select", "numbers": chosen})
    assert cell(explorer.view, "lasso") == "3 samples"
    sheet = explorer.view.figures["subset"]
    assert sorted(numbers(sheet["data"][1], "customdata")) == sorted(chosen)
    ranked = widgets.exposed([found])
    ranked.on_mouse("sheet", {"kind": "click", "numbers": [chosen[0]]})
    assert cell(ranked.view, "sample") == chosen[0]


def test_the_interval_of_the_shrunk_variance_has_six_more_degrees_of_freedom_than_references(
    explorer, signals
):
    rng, ratios = np.random.default_rng(2), []
    for one in (7, 19, 60, 111):
        view = explorer.set(variance="shrunk", target=2, sample=one, k=3)
        low, high = map(float, cell(view, "m IN - m OUT").split("[")[1].rstrip("]").split(","))
        _, fit = lira_fit(*signals.hold_out(2), variance="shrunk")
        worlds = [
            fit.scale[w, one] / np.sqrt(3) * student.rvs(6 + 3 - 1, size=100_000, random_state=rng)
            for w in (0, 1)
        ]
        wanted = np.quantile(worlds[0] - worlds[1], [0.025, 0.975])
        ratios.append((high - low) / (wanted[1] - wanted[0]))
    assert np.mean(ratios) == pytest.approx(1, abs=0.06)  # with a known variance it would be 0.85


def test_non_members_as_high_are_counted_among_all_scores_of_the_attack_shown(explorer, signals):
    counts = []
    for one in (7, 60, 111):
        view = explorer.set(variance="shrunk", target=2, sample=one, k=3)
        scores = attacks.score("lira_shrunk", signals, targets=2)
        others = scores.value[0][~scores.member[0]]
        high, n = int((others >= scores.value[0, one]).sum()), len(others)
        ends = beta.ppf([0.025, 0.975], [high, high + 1], [n - high + 1, n - high])
        assert (
            cell(view, "non-members as high") == f"{high:,} of {n:,} [{ends[0]:.2%}, {ends[1]:.2%}]"
        )
        counts.append(high)
    assert max(counts) > 2


def test_without_a_ratio_every_cell_that_rests_on_it_is_not_measurable():
    lopsided = world(8, 60, leak=1.0, design=bernoulli)
    member = lopsided.member.copy()
    member[1:, 5] = False
    view = widgets.sample([source(dataclasses.replace(lopsided, member=member))]).set(
        sample=5, target=0, k=2
    )
    for name in (
        "m IN - m OUT",
        "log LR",
        "log LR (Student-t LiRA)",
        "score",
        "non-members as high",
    ):
        assert cell(view, name) == "n/m", name
    assert "nan" not in view.sentence + view.table.to_string()


def test_one_reference_on_a_side_leaves_a_ratio_without_an_interval():
    explorer = widgets.sample([source(world(8, 120, leak=1.0, design=bernoulli))])
    found = 0
    for one in range(60):
        view = explorer.set(sample=one, variance="per sample", k=2)
        assert "nan" not in view.sentence + view.table.to_string()
        if min(int(cell(view, "n IN")), int(cell(view, "n OUT"))) == 1:
            found += 1
            assert view.sentence.split(", no interval: ")[1].startswith("one reference on a side")
            assert cell(view, "log LR").endswith("[n/m]") and cell(view, "m IN - m OUT").endswith(
                "[n/m]"
            )
    assert found > 10


def test_without_pairs_k_stands_for_2k_models_and_a_missing_side_is_named():
    lopsided = world(8, 60, leak=1.0, design=bernoulli)
    member = lopsided.member.copy()
    member[1:, 5] = False
    view = widgets.sample([source(dataclasses.replace(lopsided, member=member))]).set(
        sample=5, target=0, k=2
    )
    assert (
        "none of these references is IN" in view.sentence
        and "k = 2 stands for 4 models" in view.note
    )
    assert len(drawn(view, "OUT")["text"]) == 4 and not drawn(view, "IN")["text"]


def test_intervals_cover_the_true_ratio_about_as_often_as_they_say():
    rng, n, hits = np.random.default_rng(0), 4, 0
    truth = norm.logpdf(0.3, 1, 1) - norm.logpdf(0.3, -0.5, 1)
    for _ in range(400):
        x = rng.normal([[1.0], [-0.5]], 1, (2, n))
        fit = Fit(
            x.mean(1)[:, None],
            x.std(1, ddof=1)[:, None],
            np.full((2, 1), np.inf),
            np.full((2, 1), n),
        )
        low, high = intervals_of_fit(fit, 0.3, np.full(2, n - 1.0))[1]
        hits += low <= truth <= high
    assert 0.92 <= hits / 400 <= 0.995


def planted(models=12, samples=200, where=77, seed=3):
    """No leak but for one sample, which nobody answers right unless it is a member: then its margin
    rises by 12.
    """
    quiet = world(models, samples, leak=0.0, spread=0.0, seed=seed)
    margin = quiet.margin.copy()
    margin[:, 0, where] += 12 * quiet.member[:, where] - margin[:, 0, where].mean() - 6
    return dataclasses.replace(quiet, margin=margin)


@pytest.mark.parametrize("attack", ["loss", "rmia", "nig"])
def test_a_planted_sample_leads_the_list_and_its_thumbnail_comes_first(attack):
    explorer = widgets.exposed([source(planted())])
    view = explorer.set(attack=attack)
    assert (
        "sample 77 (" in view.sentence
        and cell(view, "rank") == "1 of 200"
        and explorer.values["sample"] == 77
    )
    assert numbers(view.figures["sheet"]["data"][1], "customdata")[0] == 77
    margins = view.figures["margins"]["data"]
    assert [len(t["text"]) for t in margins if t["mode"] == "markers"] == [6, 6]


def test_the_test_shows_what_vulnerability_says_with_redrawn_masks():
    signals = planted()
    explorer = widgets.exposed([source(signals)], n_resamples=40)
    assert "significance not tested" in explorer.view.sentence
    view = explorer.set(attack="loss", test=True)
    scores = attacks.score("loss", signals)
    table = auditing.vulnerability(
        scores, null=auditing.null_scores("loss", signals, n_resamples=40)
    )
    line = table.iloc[77]
    assert cell(view, "p").startswith(f"{line['p']:.3g} ") and cell(view, "q") == f"{line['q']:.3g}"
    assert (
        cell(view, "AUC over targets")
        == f"{line['auc']:.3f} (redrawn masks: {line['null_auc']:.3f})"
    )
    assert table.attrs["resolution"] in view.note and "40 redrawn masks" in view.note
    assert any(t["name"] == "redrawn masks" for t in view.figures["ranking"]["data"])


def test_of_many_samples_those_not_redrawn_count_against_the_others(monkeypatch):
    module = sys.modules["mia_nb.widgets.ranking"]
    monkeypatch.setattr(module, "ALL_TESTED", 100)
    monkeypatch.setattr(module, "FIRST_TESTED", 10)
    monkeypatch.setattr(module, "OTHERS_TESTED", 30)
    view = widgets.exposed([source(planted())], n_resamples=40).set(attack="loss", test=True)
    tested = int(view.note.split("masks redrawn for ")[1].split(" ")[0])
    assert 30 <= tested <= 40
    p, q = float(cell(view, "p").split(" ")[0]), float(cell(view, "q"))
    assert q >= min(1, p * 200 / tested) - 1e-9 and "of 200 samples" in view.note


@pytest.mark.parametrize("test", [False, True])
def test_a_leader_by_luck_gets_no_interval_and_the_caveat_stays(test):
    view = widgets.exposed(
        [source(world(12, 200, leak=0.0, spread=0.0, seed=4))], n_resamples=40
    ).set(attack="loss", test=test)
    assert (
        "[" not in view.sentence and "no interval, as it was chosen for being high" in view.sentence
    )
    assert "who leads a list leads by luck too" in view.note
    assert ("no sample of 200 exposed beyond chance" in view.sentence) == test
    assert ("unless 49 stand out together" in view.sentence) == test  # p is 1/41 or more


def test_a_test_that_can_find_nobody_does_not_say_that_nobody_is_exposed():
    for leak in (0.0, 3.0):  # eight masks are too few whatever there is to find
        one = source(world(12, 200, leak=leak, spread=0.0, seed=4))
        view = widgets.exposed([one], n_resamples=8).set(attack="loss", test=True)
        assert "nothing can be found at a rate of 0.1" in view.note
        assert "too coarse to find any sample of 200" in view.sentence
        assert "no sample" not in view.sentence


def test_samples_whose_scores_lack_a_side_are_said_to_and_are_not_ranked():
    coins = world(8, 200, leak=1.0, design=bernoulli)
    explorer = widgets.exposed([source(coins)])
    view = explorer.set(attack="rmia")
    scores = attacks.score("rmia", coins)
    known = ~np.isnan(scores.value)
    lacking = ~(known & scores.member).any(0) | ~(known & ~scores.member).any(0)
    alike = coins.member.all(0) | ~coins.member.any(0)
    assert lacking.sum() > alike.sum() > 0  # those in one target alone have no reference with them
    assert f"{lacking.sum()} samples lack a scored target on one side: not ranked" in view.note
    for one in (np.flatnonzero(lacking & ~alike)[0], np.flatnonzero(coins.member.all(0))[0]):
        view = explorer.set(sample=int(one))
        assert (
            cell(view, "rank").startswith("not ranked") and cell(view, "separation (sd)") == "n/m"
        )
        assert (
            "nan"
            not in view.sentence
            + view.table.to_string()
            + view.figures["margins"]["layout"]["title"]["text"]
        )
    assert cell(view, "OUT models right") == "n/m of 0"


def test_separation_is_the_mean_gap_of_standardised_scores_over_pairs():
    scores = attacks.score("loss", world(6, 50, leak=1.0))
    z = (scores.value - scores.value.mean(1, keepdims=True)) / scores.value.std(1, keepdims=True)
    sign = np.where(scores.member, 1, -1)
    gaps = np.array([sign[a] * (z[a] - z[a + 1]) for a in (0, 2, 4)])
    value, half, based_on = separations(scores)
    assert np.allclose(value, gaps.mean(0)) and based_on == "3 pairs of targets"
    assert np.allclose(half, student.ppf(0.9875, 2) * gaps.std(0, ddof=1) / np.sqrt(3))
    assert separations(attacks.score("loss", world(2, 50, leak=1.0)))[2] == "1 pair of targets"


def test_without_pairs_the_separation_is_students_two_sample_comparison():
    from scipy.stats import ttest_ind

    scores = attacks.score("loss", world(8, 40, leak=1.0, design=bernoulli))
    z = (scores.value - scores.value.mean(1, keepdims=True)) / scores.value.std(1, keepdims=True)
    value, half, _ = separations(scores)
    for i in range(40):
        inside, outside = z[scores.member[:, i], i], z[~scores.member[:, i], i]
        if min(len(inside), len(outside)) == 0:
            assert np.isnan(value[i])
            continue
        between = ttest_ind(inside, outside).confidence_interval()
        assert np.allclose([value[i] - half[i], value[i] + half[i]], between)


def test_filters_leave_only_what_they_name():
    signals = planted()
    explorer = widgets.exposed([source(signals)])
    right = np.array([signals.correct[~signals.member[:, i], 0, i].mean() for i in range(200)])
    wrong = numbers(
        explorer.set(outputs="most OUT models wrong").figures["sheet"]["data"][1], "customdata"
    )
    assert len(wrong) == min(24, (right < 0.5).sum()) and (right[wrong] < 0.5).all()
    explorer.set(outputs="all")
    first, second = (
        numbers(explorer.set(page=p).figures["sheet"]["data"][1], "customdata") for p in (1, 2)
    )
    assert len(first) == len(second) == 24 and not set(first) & set(second)


def test_a_thumbnail_that_is_clicked_is_the_sample_looked_at():
    explorer = widgets.exposed([source(planted())])
    explorer.on_mouse("sheet", {"kind": "click", "numbers": [9]})
    assert explorer.values["sample"] == 9 and cell(explorer.view, "sample") == 9
    with pytest.raises(ValueError, match="sample 4000 is not among the 200 audited ones"):
        explorer.set(sample=4000)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """(a Source read from disk, log losses (M, E, N) that its pool kept, canaries)."""
    signals, root, key = planted(8, 60, where=11), tmp_path_factory.mktemp("results"), "ab" * 32
    signals, canary = (
        dataclasses.replace(signals, info={"pool": key, "family": "tinycnn"}),
        np.arange(60) % 20 == 11,
    )
    log = np.where(
        signals.member[:, None], np.random.default_rng(1).normal(-2, 1, (8, 5, 60)), np.nan
    ).astype(np.float32)
    pool = store.open_folder(root, "pool", "here", key, {"model": "tinycnn"})
    pool.write_array("member.npy", signals.member)
    pool.write_array("images.npy", X[:60])
    pool.write_array("canary.npy", canary)
    pool.write_json("images.json", {"classes": ["a", "b", "c", "d"]})
    for m in range(8):
        pool.write_array(f"losses_{m:03d}.npy", log[m][:, signals.member[m]])
    save_signals(store.open_folder(root, "signals", "here", "cd" * 32, {}), signals)
    (found,) = widgets.sources(root, shipped=False)
    return found, log, canary


def test_losses_are_those_of_references_that_trained_on_the_sample_beside_all_members(stored):
    found, log, _ = stored
    member = found.signals.member
    view = widgets.sample([found]).set(target=0, sample=4)
    lines = {t.get("name", ""): numbers(t, "y") for t in view.figures["traces"]["data"]}
    rows = [m for m in range(2, 8) if member[m, 4]]
    drawn_lines = lines[f"this sample ({len(rows)})"].reshape(len(rows), 6)[:, :5]
    assert np.allclose(np.sort(drawn_lines, 0), np.sort(np.exp(log[rows, :, 4]), 0), rtol=1e-5)
    middle = np.exp(np.mean([np.median(log[m][:, member[m]], axis=1) for m in range(8)], axis=0))
    assert np.allclose(lines["all members"], middle, rtol=1e-5)
    assert ("target" in lines) == bool(member[0, 4])
    assert "non-members have no training loss" in view.note


def test_losses_of_a_pool_are_read_once_for_all_explorers_and_of_two_pools_at_most(
    stored, monkeypatch
):
    read, trace = [], widgets.stored.Source.trace
    monkeypatch.setattr(
        widgets.stored.Source, "trace", lambda self, model: read.append(self) or trace(self, model)
    )
    losses_of.cache_clear()
    losses_picture.cache_clear()
    for make in (widgets.sample, widgets.exposed, widgets.sample):
        make([stored[0]])
    once = len(read)
    assert 0 < once <= 9  # the first is looked at, then all
    others = [widgets.stored.Source(name, stored[0].signals, pool=stored[0].pool) for name in "ab"]
    for one in (*others, stored[0]):
        losses_of(one)
    assert len(read) == 4 * once


def test_the_models_own_image_is_shown_with_its_label(stored):
    found, _, _ = stored
    view = widgets.sample([found]).set(sample=7)
    source_of = view.figures["image"]["data"][0]["source"]
    assert (
        source_of
        == widgets.sample([source(found.signals)])
        .set(sample=7)
        .figures["image"]["data"][0]["source"]
    )
    assert view.figures["image"]["layout"]["title"]["text"].startswith("labelled d;")


def test_a_sample_is_said_to_be_a_canary_where_that_is_known(stored):
    found, _, canary = stored
    explorer = widgets.exposed([found])
    for sample in (11, 12):
        assert canary[sample] == (cell(explorer.set(sample=sample), "canary") == "yes")
    assert canary[11] and not canary[12]
    assert "canary" not in widgets.exposed([source(planted())]).view.table


def test_in_batch_mode_both_are_shown_once_with_every_figure_that_needs_no_hand(
    stored, monkeypatch
):
    shown = []
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    monkeypatch.setattr("mia_nb.widgets.explorer.display", shown.append)
    for make, title in (
        (widgets.sample, "One sample, two worlds"),
        (widgets.exposed, "Vulnerable samples"),
    ):
        shown.clear()
        make([stored[0]])._ipython_display_()
        assert sum(isinstance(one, go.Figure) for one in shown) == 4
        assert title in shown[0].data


def saved(explorer) -> pd.DataFrame:
    """What its CSV holds."""
    return pd.read_csv(io.StringIO(explorer.csv()), comment="#")


def test_what_each_model_says_of_a_sample_is_saved_a_number_per_column(explorer, signals):
    explorer.set(target=2, sample=3)
    table = saved(explorer)
    np.testing.assert_allclose(table["margin"], signals.margin[:, 0, 3], rtol=1e-6)
    assert table["member"].tolist() == signals.member[:, 3].tolist()


def test_the_whole_ranking_is_saved_a_number_per_column(signals):
    explorer = widgets.exposed([source(signals)])
    table = saved(explorer)
    assert len(table) == 200 and table["sample"].iloc[0] == explorer.values["sample"]
    assert table["separation"].is_monotonic_decreasing
    assert (table["low"] < table["separation"]).all() and (
        table["separation"] < table["high"]
    ).all()


def test_what_a_threshold_finds_is_saved_a_number_per_column(signals):
    explorer = widgets.scores([source(signals)])
    (row,) = saved(explorer).to_dict("records")
    assert row["tpr"] == pytest.approx(row["true_positives"] / row["members"])
    assert row["tpr_low"] < row["tpr"] < row["tpr_high"] and row["auc_low"] < row["auc"]
    numeric = [value for name, value in row.items() if name != "attack"]
    assert not any(isinstance(value, str) for value in numeric)
