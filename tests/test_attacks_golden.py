"""Agreement with the numbers that other people's published code gives on the same inputs.

Small copies in golden/attacks.npz serve every user; the whole vectors are read from the folder
MIA_NB_GOLDEN. LiRA and difficulty calibration: TensorFlow Privacy and lira-pytorch; RMIA: the
paper's code; attack_p, attack_r and "RMIA": the SNN study's code; thresholds and accuracies: Song &
Mittal's code. A published form that is no keyword of ours is written out here.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attack_worlds import auc, signals
from scipy.special import log_expit
from scipy.stats import norm

from mia_nb import attacks
from mia_nb.types import Signals

SMALL = np.load(Path(__file__).parent / "golden" / "attacks.npz")
# the constant of log N that cancels online and that our offline form drops
HALF_LOG_TAU = np.log(2 * np.pi) / 2
pytestmark = pytest.mark.filterwarnings("ignore:difficulty calibration had")


def whole(name):
    folder = os.environ.get("MIA_NB_GOLDEN")
    if not folder:
        pytest.skip("MIA_NB_GOLDEN is not set")
    return dict(np.load(Path(folder) / f"{name}.npz"))


def small(name):
    return {key.split("/")[1]: SMALL[key] for key in SMALL.files if key.startswith(f"{name}/")}


@pytest.fixture(params=["small", "whole"])
def golden(request):
    """A function: file name -> its arrays and the member mask."""
    return (
        small
        if request.param == "small"
        else lambda name: whole(name) | {"keep": whole("inputs")["keep"]}
    )


def of_margins(phi, keep, **options):
    """(target, references) of margins (M, N, Q): row 0 against the rest, whose masks are no copies
    of it.
    """
    world = signals(np.swapaxes(phi, 1, 2), keep, **options)
    return world.select(models=[0]), world.select(models=np.arange(1, len(phi)))


@pytest.mark.parametrize("centre", ["mean", "median"])
def test_per_sample_lira_is_that_of_tensorflow_privacy(golden, centre):
    g = golden("lira_watson_tfprivacy")
    pair = of_margins(g["phi"], g["keep"], query_kind="augment")
    # queries: llr, the default for augmentations
    options = {"variance": "per_sample", "ddof": 0, "centre": centre}
    assert np.allclose(
        -attacks.likelihood.lira(*pair, **options),
        g[f"lira_both_fix0_{centre}"],
        rtol=1e-9,
        atol=1e-9,
    )
    out = attacks.likelihood.lira(*pair, offline=True, tail="two_sided", **options)
    assert np.allclose(-out, g[f"lira_out_fix0_{centre}"] + HALF_LOG_TAU, rtol=1e-9, atol=1e-9)


def test_difficulty_calibration_is_that_of_tensorflow_privacy(golden):
    g = golden("lira_watson_tfprivacy")
    pair = of_margins(g["phi"], g["keep"], query_kind="augment")
    for centre in ("mean", "median"):
        score = np.mean(
            [
                attacks.reference.watson(
                    *(s.select(queries=[q]) for s in pair), signal="margin", centre=centre
                )
                for q in range(2)
            ],
            axis=0,
        )
        assert np.allclose(score, g[f"offset_out_{centre}"], rtol=1e-9, atol=1e-9)
    assert np.allclose(
        attacks.reference.attack_r(*pair), g["offset_both_mean"], rtol=1e-9, atol=1e-9
    )


def test_online_and_offline_lira_are_those_of_lira_pytorch(golden):
    g = golden("lira_watson_tfprivacy") | golden("lira_lirapytorch")  # the same margins
    pair = of_margins(g["phi"], g["keep"], query_kind="augment")
    options = {"variance": "per_sample", "ddof": 0, "centre": "median"}
    score = attacks.likelihood.lira(*pair, **options)
    assert np.allclose(-score, g["online"], rtol=1e-9, atol=1e-9)
    offline = attacks.likelihood.lira(*pair, offline=True, tail="two_sided", **options)
    assert np.allclose(-offline, g["offline"] + HALF_LOG_TAU, rtol=1e-9, atol=1e-9)
    assert np.allclose(-attacks.single.loss(pair[0]), g["global"], rtol=1e-9)
    if "auc_online" in g:
        assert auc(score, g["keep"][0]) == pytest.approx(float(g["auc_online"]), abs=1e-12)
        assert auc(offline, g["keep"][0]) == pytest.approx(float(g["auc_offline"]), abs=1e-12)


def fixed_variance(phi, keep, *, centred):
    """(online, offline), lower = member, with one standard deviation a side over samples,
    references and queries together.

    centred (TensorFlow Privacy): of what is left around each sample's own median, a side each. Not
    centred (lira-pytorch): of the raw IN values for both sides online, of the raw OUT values
    offline, which counts unlike difficulty as noise. Ours (variance="global") is centred, per query
    and with n - 1.
    """
    target, references, inside = phi[0], phi[1:], keep[1:, :, None]
    side = [np.where(kind, references, np.nan) for kind in (inside, ~inside)]
    centre = [np.nanmedian(values, axis=0) for values in side]
    spread = [
        np.nanstd(values - c if centred else values) for values, c in zip(side, centre, strict=True)
    ]
    log_in = norm.logpdf(target, centre[0], spread[0])
    log_out = norm.logpdf(target, centre[1], spread[1] if centred else spread[0])
    return (log_out - log_in).mean(1), norm.logpdf(target, centre[1], spread[1]).mean(1)


def test_what_others_call_a_fixed_variance_is_not_one_thing_and_not_ours():
    theirs, raw, keep = (
        whole("lira_watson_tfprivacy"),
        whole("lira_lirapytorch"),
        whole("inputs")["keep"],
    )
    online, offline = fixed_variance(theirs["phi"], keep, centred=True)
    assert np.allclose(online, theirs["lira_both_fix1_median"], rtol=1e-9, atol=1e-9)
    assert np.allclose(offline, theirs["lira_out_fix1_median"], rtol=1e-9, atol=1e-9)
    online, offline = fixed_variance(raw["phi"], keep, centred=False)
    assert np.allclose(online, raw["online_fixvar"], rtol=1e-9, atol=1e-9)
    assert np.allclose(offline, raw["offline_fixvar"], rtol=1e-9, atol=1e-9)
    score = attacks.likelihood.lira(
        *of_margins(theirs["phi"], keep, query_kind="augment"),
        variance="global",
        centre="median",
        ddof=0,
    )
    for other in (theirs["lira_both_fix1_median"], raw["online_fixvar"]):
        assert np.abs(score + other).max() > 1


def rmia_world(g):
    """(target, references) of the paper's confidences, whose exact ones become a margin of 60, and
    the population.
    """
    with np.errstate(divide="ignore"):
        phi = np.minimum(np.log(g["conf_aug"]) - np.log1p(-g["conf_aug"]), 60.0)
    return (
        of_margins(phi, g["keep"], population=g["population_mask"], query_kind="augment"),
        g["population_mask"],
    )


@pytest.mark.parametrize(
    ("key", "options"),
    [
        (f"{mode}_g{gamma}_cut0.0", {"offline": mode == "offline", "gamma": gamma})
        for mode in ("offline", "online")
        for gamma in (1.0, 1.5, 2.0, 4.0)
    ]
    + [(f"offline_g2.0_a{a}", {"offline": True, "gamma": 2.0, "a": a}) for a in (0.0, 0.6, 1.0)],
)
def test_the_count_form_of_rmia_is_that_of_the_papers_code(golden, key, options):
    g = golden("rmia_paper2024")
    (target, references), population = rmia_world(g)
    pair = target.select(queries=[0]), references.select(queries=[0])
    score = attacks.reference.rmia(*pair, form="count", **options)[~population]
    off = np.abs(score + g[key][~population])
    assert off.max() <= 2 / population.sum() + 1e-6
    assert (off > 1e-6).mean() < 0.02


def test_the_vote_form_of_rmia_is_that_of_the_papers_code():
    g = whole("rmia_paper2024") | {"keep": whole("inputs")["keep"]}
    pair, population = rmia_world(g)
    off = np.abs(attacks.reference.rmia(*pair, form="vote", gamma=2.0) + g["online_aug2_g2.0"])[
        ~population
    ]
    assert off.max() <= 2 / population.sum() + 1e-6 and (off > 1e-6).mean() < 0.02


def test_the_snn_studys_formulas_are_forms_of_ours(golden):
    g = golden("snn_attacks")
    p = g["conf"].T[:5]
    with np.errstate(divide="ignore"):
        phi = np.log(p) - np.log1p(-p)
    target, references = of_margins(np.clip(phi, -700, 700)[..., None], g["keep"][:5])
    assert np.allclose(np.exp(log_expit(attacks.single.attack_p(target))), g["attack_p"], rtol=1e-9)
    assert np.array_equal(
        attacks.reference.attack_r(target, references, form="lattice"), g["attack_r"]
    )
    assert np.allclose(np.exp(attacks.reference.base(target, references)), g["rmia"], rtol=1e-9)


@pytest.fixture(params=["small", "whole"])
def song_mittal(request):
    """(target, references, golden): one shadow model, the first query."""
    if request.param == "small":
        g = small("song_mittal")
        margin, entropy, modified = g["metrics"][:, :, None]
        world = signals(margin, g["keep"], labels=g["labels"].astype(int), classes=10)
        world = replace(
            world, entropy=entropy, modified_entropy=modified, correct=g["correct"][:, None]
        )
    else:
        g, inputs = whole("song_mittal"), whole("inputs")
        world = Signals.from_logits(
            inputs["logits"][:2, :, 0], inputs["labels"], inputs["keep"][:2]
        )
    return world.select(models=[0]), world.select(models=[1]), g | {"keep": world.member}


@pytest.mark.parametrize(
    ("metric", "key"), [("confidence", "conf"), ("entropy", "entr"), ("modified", "mentr")]
)
def test_thresholds_and_accuracy_are_those_of_song_and_mittal(
    song_mittal, metric, key, monkeypatch
):
    monkeypatch.setattr(attacks.learned, "FEWEST_ROWS", 1)
    target, references, g = song_mittal
    value = {"confidence": "log_p", "entropy": "entropy", "modified": "modified_entropy"}[metric]
    sign = 1 if metric == "confidence" else -1
    known, seen = (sign * getattr(s, value)[0, 0] for s in (target, references))
    score = attacks.learned.song_mittal(target, references, metric=metric)
    for y, theirs in enumerate(
        np.log(g["thr_conf"]) if metric == "confidence" else g[f"thr_{key}"]
    ):
        rows = target.labels == y
        ours = (known - score)[rows][0]
        # two thresholds of the same accuracy: we take the smaller
        if not np.isclose(ours, theirs, rtol=1e-9):
            member = g["keep"][1, rows]
            gain = [
                (seen[rows] >= t - 1e-12)[member].mean() - (seen[rows] >= t - 1e-12)[~member].mean()
                for t in (ours, theirs)
            ]
            assert ours < theirs and gain[0] == pytest.approx(gain[1], abs=1e-12)
    member = g["keep"][0]
    assert ((score[member] >= 0).mean() + (score[~member] < 0).mean()) / 2 == pytest.approx(
        float(g[f"acc_{key}"]), abs=1e-12
    )


def test_the_correctness_attacks_accuracy_is_that_of_song_and_mittal(song_mittal):
    target, _, g = song_mittal
    right = attacks.ATTACKS["correctness"](target)
    member = g["keep"][0]
    assert (right[member].mean() + 1 - right[~member].mean()) / 2 == pytest.approx(
        float(g["acc_corr"]), abs=1e-12
    )
