"""lira, its joint forms and nig against plain loops over their definitions, and in worlds with a
closed form.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attack_worlds import auc, gaussian, null_se, pairs, signals
from scipy.special import digamma, polygamma
from scipy.stats import multivariate_normal, norm, spearmanr
from scipy.stats import t as student

from mia_nb import attacks

pytestmark = pytest.mark.filterwarnings("ignore:LiRA has")
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def uneven(models=12, samples=40, queries=1, seed=0, query_kind="plain"):
    """Target and references whose numbers of IN references differ from sample to sample, at least
    two a side.
    """
    world = gaussian(models, samples, queries=queries, seed=seed, query_kind=query_kind)
    member = np.random.default_rng(seed).random(world.member.shape) < 0.5
    member[1:3], member[3:5] = True, False
    world = replace(world, member=member)
    return world.select(models=[0]), world.select(models=np.arange(1, models))


def moments(references, ddof, centre, query=0):
    """For each sample and side: number, centre, sum of squares around the mean."""
    phi, rows = references.margin[:, query], []
    for i in range(phi.shape[1]):
        inside = references.member[:, i]
        rows.append(
            [
                (len(x), getattr(np, centre)(x), ((x - x.mean()) ** 2).sum())
                for x in (phi[inside, i], phi[~inside, i])
            ]
        )
    return rows


def lira_twin(
    target,
    references,
    *,
    variance="per_sample",
    centre="mean",
    ddof=1,
    share=False,
    offline=False,
    tail="one_sided",
    query=0,
):
    rows = moments(references, ddof, centre, query)
    sides = (0, 1)
    overall = [sum(r[w][2] for r in rows) / sum(r[w][0] - ddof for r in rows) for w in sides]
    both = sum(r[w][2] for r in rows for w in sides) / sum(
        r[w][0] - ddof for r in rows for w in sides
    )
    score = []
    for phi, row in zip(target.margin[0, query], rows, strict=True):
        (n_in, m_in, ss_in), (n_out, m_out, ss_out) = row
        if share:
            n, ss = n_in + n_out - 2, ss_in + ss_out
            v_in = v_out = {
                "global": both,
                "per_sample": ss / (n + 2 - 2 * ddof),
                "shrunk": (6 * both + ss) / (6 + n),
            }[variance]
        else:
            v_in, v_out = (
                {"global": g, "per_sample": ss / (n - ddof), "shrunk": (6 * g + ss) / (6 + n - 1)}[
                    variance
                ]
                for g, (n, _, ss) in zip(overall, row, strict=True)
            )
        if offline:
            score.append(
                (phi - m_out) / np.sqrt(v_out)
                if tail == "one_sided"
                else -norm.logpdf(phi, m_out, np.sqrt(v_out)) - np.log(2 * np.pi) / 2
            )
        else:
            score.append(
                norm.logpdf(phi, m_in, np.sqrt(v_in)) - norm.logpdf(phi, m_out, np.sqrt(v_out))
            )
    return np.array(score)


@pytest.mark.parametrize("variance", ["per_sample", "global", "shrunk"])
@pytest.mark.parametrize(("centre", "ddof"), [("mean", 1), ("median", 0)])
def test_lira_equals_a_loop_over_samples(variance, centre, ddof):
    target, references = uneven()
    options = {"variance": variance, "centre": centre, "ddof": ddof}
    score = attacks.likelihood.lira(target, references, **options)
    assert np.allclose(score, lira_twin(target, references, **options), **CLOSE)


@pytest.mark.parametrize("variance", ["per_sample", "global", "shrunk"])
@pytest.mark.parametrize("tail", ["one_sided", "two_sided"])
def test_offline_lira_equals_a_loop_over_samples(variance, tail):
    target, references = uneven()
    score = attacks.likelihood.lira(target, references, offline=True, variance=variance, tail=tail)
    assert np.allclose(
        score, lira_twin(target, references, variance=variance, offline=True, tail=tail), **CLOSE
    )


def test_auto_takes_the_variance_per_sample_from_32_references_a_side():
    for models, variance in ((64, "shrunk"), (66, "per_sample")):
        target, references = gaussian(models, 50).hold_out(0)
        assert np.array_equal(
            attacks.likelihood.lira(target, references),
            attacks.likelihood.lira(target, references, variance=variance),
        )


def test_augmented_queries_average_the_log_ratio_and_noisy_ones_the_margin():
    target, references = uneven(queries=3, query_kind="augment")
    twins = [lira_twin(target, references, variance="shrunk", query=q) for q in range(3)]
    assert np.allclose(attacks.likelihood.lira(target, references), np.mean(twins, 0), **CLOSE)
    noisy = [replace(s, query_kind="noise") for s in (target, references)]
    mean = [replace(s.select(queries=[0]), margin=s.margin.mean(1, keepdims=True)) for s in noisy]
    assert np.allclose(
        attacks.likelihood.lira(*noisy), lira_twin(*mean, variance="shrunk"), **CLOSE
    )


def test_swapping_the_worlds_flips_the_sign_of_lira():
    target, references = uneven()
    for variance in ("per_sample", "global", "shrunk"):
        score, swapped = (
            attacks.likelihood.lira(target, r, variance=variance)
            for r in (references, replace(references, member=~references.member))
        )
        assert np.allclose(score, -swapped, **CLOSE)


def test_one_reference_on_a_side_takes_the_global_variance_and_one_everywhere_is_refused():
    target, references = uneven()
    member = references.member.copy()
    member[:, 0] = False
    member[4, 0] = True
    lonely = replace(references, member=member)
    with pytest.warns(UserWarning, match="one reference on a side take the global variance"):
        score = attacks.likelihood.lira(target, lonely, variance="per_sample")
    rows = moments(lonely, 1, "mean")
    overall = sum(r[0][2] for r in rows) / sum(r[0][0] - 1 for r in rows)
    (_, m_in, _), (n, m_out, ss) = rows[0]
    phi = target.margin[0, 0, 0]
    twin = norm.logpdf(phi, m_in, np.sqrt(overall)) - norm.logpdf(phi, m_out, np.sqrt(ss / (n - 1)))
    assert np.isclose(score[0], twin, **CLOSE)
    with pytest.raises(ValueError, match=r"no sample has two OUT references.*rmia"):
        attacks.likelihood.lira(*gaussian(4).hold_out(0))


def test_a_ddof_that_is_not_0_or_1_is_refused():
    pair = uneven()
    assert np.isfinite(attacks.likelihood.lira(*pair, ddof=0)).all()
    with pytest.raises(ValueError, match="ddof=2; wanted 0 or 1"):
        attacks.likelihood.lira(*pair, ddof=2)
    with pytest.raises(ValueError, match="ddof=-100: wanted a whole number from 0 up"):
        attacks.likelihood.lira(*pair, ddof=-100)


def test_constant_references_keep_lira_finite():
    target, references = uneven()
    flat = replace(references, margin=np.where(references.member, 2.0, 1.0)[:, None])
    for variance in ("per_sample", "global", "shrunk"):
        assert np.isfinite(attacks.likelihood.lira(target, flat, variance=variance)).all()


def known_world(samples, delta, sigma, seed=0):
    """Four references, on either side the true mean plus and minus sigma, and a target drawn from
    the model.
    """
    rng = np.random.default_rng(seed)
    member, mu = pairs(6, samples, seed=seed), rng.normal(0, 3, samples)
    phi = mu + delta * member + sigma * np.array([0, 0, 1, 1, -1, -1])[:, None]
    phi[0] = mu + delta * member[0] + sigma * rng.normal(size=samples)
    world = signals(phi, member)
    return *world.hold_out(0), member[0]


@pytest.mark.parametrize("delta", [0.5, 1.0, 2.0])
def test_with_known_means_and_spread_likelihood_ratios_reach_the_closed_form_auc(delta):
    sigma, samples = 0.8, 20_000
    target, references, member = known_world(samples, delta, sigma)
    exact = norm.cdf(delta / (sigma * np.sqrt(2)))
    attack = {
        "lira": attacks.likelihood.lira(target, references, variance="global"),
        "lira offline": attacks.likelihood.lira(
            target, references, variance="global", offline=True
        ),
        "nig": attacks.likelihood.nig(target, references),
        "shift": attacks.reference.attack_r(target, references),
    }
    for name, score in attack.items():
        assert abs(auc(score, member) - exact) < 3 * null_se(samples // 2, samples // 2), name


@pytest.mark.parametrize("models", [4, 8, 20])
def test_reference_attacks_reach_the_closed_form_auc_for_their_number_of_references(models):
    delta, sigma, samples, k = 1.2, 0.7, 20_000, models // 2 - 1
    world = gaussian(models, samples, delta=delta, sigma=sigma, difficulty=4)
    target, references = world.hold_out(0)
    for score, share in (
        (attacks.reference.attack_r(target, references), 1 / (2 * k)),
        (attacks.reference.watson(target, references, signal="margin"), 1 / k),
    ):
        exact = norm.cdf(delta / (sigma * np.sqrt(2 * (1 + share))))
        assert abs(auc(score, world.member[0]) - exact) < 3 * null_se(samples // 2, samples // 2)


def joint_twin(target, references, rho=0.1):
    margin, member = references.margin, references.member
    dims, samples = margin.shape[1:]
    cross, free, centres = np.zeros((dims, dims)), 0, []
    for i in range(samples):
        centres.append([margin[side, :, i].mean(0) for side in (member[:, i], ~member[:, i])])
        for side, centre in zip((member[:, i], ~member[:, i]), centres[-1], strict=True):
            residual = margin[side, :, i] - centre
            cross, free = cross + residual.T @ residual, free + side.sum() - 1
    pooled = cross / free
    pooled = (1 - rho) * pooled + rho * np.diag(np.diag(pooled))
    log = [
        [multivariate_normal.logpdf(target.margin[0, :, i], m, pooled) for m in centres[i]]
        for i in range(samples)
    ]
    return np.subtract(*np.transpose(log))


def test_the_joint_form_is_the_gaussian_log_ratio_of_the_query_vector():
    target, references = uneven(queries=3, query_kind="steps")
    assert np.allclose(
        attacks.likelihood.lira(target, references, combine="joint"),
        joint_twin(target, references),
        rtol=1e-8,
        atol=1e-8,
    )


def test_the_mean_and_log_spread_of_queries_are_a_joint_signal():
    target, references = uneven(queries=6, query_kind="noise")
    score = attacks.likelihood.lira(target, references, combine="mean_sd")

    def two(s):
        margin = np.stack([s.margin.mean(1), np.log(s.margin.std(1, ddof=1))], axis=1)
        return replace(s.select(queries=[0, 1]), margin=margin)

    assert np.allclose(score, joint_twin(two(target), two(references)), rtol=1e-8, atol=1e-8)


def test_with_one_step_joint_last_and_llr_agree():
    target, references = uneven(query_kind="steps")
    llr, last = (
        attacks.likelihood.lira(target, references, variance="global", combine=how)
        for how in ("llr", "last")
    )
    assert np.array_equal(llr, last)
    joint = attacks.likelihood.lira(target, references, combine="joint")  # one variance for both
    twin = lira_twin(target, references, variance="global", share=True)
    assert np.allclose(joint, twin, rtol=1e-9, atol=1e-9)


def test_duplicated_steps_do_not_change_llr():
    target, references = uneven(queries=3, query_kind="steps")
    twice = [s.select(queries=[0, 0, 1, 1, 2, 2]) for s in (target, references)]
    assert np.allclose(
        attacks.likelihood.lira(*twice), attacks.likelihood.lira(target, references), **CLOSE
    )


def test_the_joint_form_refuses_what_its_references_cannot_support():
    with pytest.raises(
        ValueError, match="needs 60 degrees of freedom on a side and the references leave 0"
    ):
        attacks.likelihood.lira(
            *gaussian(4, 100, queries=3, query_kind="steps").hold_out(0), combine="joint"
        )
    with pytest.raises(ValueError, match="these do not differ"):
        attacks.likelihood.lira(*gaussian(8, 100).hold_out(0), combine="mean_sd")


def nig_twin(target, references, *, offline=False):
    """The formulas of the docstring, one sample at a time."""
    kappa0 = 1.0
    rows = [[np.array(side) for side in row] for row in moments(references, 1, "mean")]
    free = np.array([[side[0] - 1 for side in row] for row in rows])
    ss = np.array([[side[2] for side in row] for row in rows])
    if offline:
        free[:, 0] = ss[:, 0] = 0
    pooled, d = ss[:, 0] + ss[:, 1], free.sum(1)
    e = np.log(pooled / d) - digamma(d / 2) + np.log(d / 2)
    excess, low, high = e.var() - polygamma(1, d / 2).mean(), 1e-3, 5000.0
    for _ in range(200):
        a0 = (low + high) / 2
        low, high = (a0, high) if polygamma(1, a0) > excess else (low, a0)
    b0 = a0 * np.exp(e.mean() + digamma(a0) - np.log(a0))
    gap = np.mean([row[0][1] - row[1][1] for row in rows])
    score = []
    for phi, row in zip(target.margin[0, 0], rows, strict=True):
        (n_in, mean_in, ss_in), (n_out, mean_out, ss_out) = row
        kappa, mu0 = kappa0 + n_in, mean_out + gap
        m_in = (kappa0 * mu0 + n_in * mean_in) / kappa
        a, b = a0 + (n_out - 1) / 2, b0 + ss_out / 2
        if not offline:
            a = a + n_in / 2
            b = b + (ss_in + kappa0 * n_in * (mean_in - mu0) ** 2 / kappa) / 2
        c_in, c_out = b * (kappa + 1) / (a * kappa), b * (n_out + 1) / (a * n_out)
        world = student(2 * a)
        z_in, z_out = (phi - m_in) / np.sqrt(c_in), (phi - mean_out) / np.sqrt(c_out)
        if offline:
            score.append(world.logcdf(z_out))
        else:
            ratio = world.logpdf(z_in) - world.logpdf(z_out)
            score.append(ratio + (np.log(c_out) - np.log(c_in)) / 2)
    return np.array(score)


def spread_out(models=14, samples=300):
    """References with unlike variances, so that the prior is informative; even counts."""
    world = gaussian(models, samples)
    rng = np.random.default_rng(5)
    scale = np.exp(rng.normal(0, 0.8, samples))
    return replace(
        world, margin=world.margin.mean((0, 1)) + scale * (world.margin - world.margin.mean((0, 1)))
    )


@pytest.mark.parametrize("offline", [False, True])
def test_nig_equals_a_loop_over_samples(offline):
    target, references = spread_out().hold_out(0)
    twin = nig_twin(target, references, offline=offline)
    assert np.allclose(attacks.likelihood.nig(target, references, offline=offline), twin, **CLOSE)


def test_the_students_log_cdf_continues_where_the_distribution_function_underflows():
    from mia_nb.attacks.likelihood import _log_t_cdf

    nu = 40.0
    z = -np.geomspace(1e6, 1e12, 60)  # far out, log cdf = log density + log(-z / nu)
    tail = student.logpdf(z, nu) + np.log(-z / nu)
    assert np.allclose(_log_t_cdf(z, np.full(60, nu)), tail, rtol=1e-9)
    near = np.linspace(-30, 30, 61)
    assert np.allclose(_log_t_cdf(near, np.full(61, nu)), student.logcdf(near, nu), rtol=1e-10)


def test_nig_goes_over_into_lira_with_a_shared_variance_per_sample():
    world = spread_out(models=600, samples=200)
    target, references = world.hold_out(0)
    lira = lira_twin(target, references, variance="per_sample", share=True)
    assert spearmanr(attacks.likelihood.nig(target, references), lira).statistic > 0.9995


def test_with_one_pair_nig_measures_the_variance_between_samples():
    target, references = gaussian(4, 500).hold_out(0)
    with pytest.warns(UserWarning, match="one pair only"):
        score = attacks.likelihood.nig(target, references)
    inside, phi = references.member, references.margin[:, 0]
    x_in, x_out = (np.where(inside == kind, phi, 0).sum(0) for kind in (True, False))
    gap = x_in - x_out
    b0 = 2 * gap.var() / 2
    m_in, c_scale = (x_out + gap.mean() + x_in) / 2, (b0 + (gap - gap.mean()) ** 2 / 4) / 3.5
    t = target.margin[0, 0]
    twin = student.logpdf(t, 7, m_in, np.sqrt(c_scale * 1.5)) - student.logpdf(
        t, 7, x_out, np.sqrt(c_scale * 2)
    )
    assert np.allclose(score, twin, **CLOSE)


def test_nig_refuses_counts_that_differ_between_samples_unless_allowed():
    target, references = uneven()
    with pytest.raises(ValueError, match=r"leaks the design.*allow_unequal"):
        attacks.likelihood.nig(target, references)
    assert np.isfinite(attacks.likelihood.nig(target, references, allow_unequal=True)).all()


@pytest.mark.parametrize("name", ["lira", "nig"])
def test_references_that_all_saw_every_sample_are_refused_in_a_line(name):
    target, references = gaussian(6, 60).hold_out(0)
    seen = replace(references, member=np.ones_like(references.member))
    with pytest.raises(ValueError, match=f"^{name}: no sample has"):
        attacks.ATTACKS[name](target, seen, missing="nan")


def test_nig_offline_with_one_reference_is_refused():
    with pytest.raises(ValueError, match="rmia\\(offline=True\\)"):
        attacks.likelihood.nig(*gaussian(4).hold_out(0), offline=True)
