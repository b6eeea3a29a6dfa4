"""Pools that learn from stored noisy states and randomised labels: what is proved, what is refused,
what an audit finds.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from mia_nb import accounting, attacks, auditing, data, models, query, training
from mia_nb.auditing.one_run import one_run
from mia_nb.models import neural_de
from mia_nb.training import private_sde, proof
from mia_nb.types import Recipe

DELTA = 1e-5
NETWORK = {"base_args": {"width": 8}, "channels": 8, "steps": 2, "k": 0.1}
RECIPE = Recipe(model="bottleneck", model_args=NETWORK, num_models=2, epochs=2, batch=256)
SPAN = np.linspace(-14, 20, 40_001)  # on which the slow twin integrates


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def world():
    """(public, private) digits: the classes 0 to 4, and 5 to 9."""
    digits = data.load("digits")
    low = (digits.y < 5).numpy()
    public = data.from_arrays(digits.x[low], digits.y[low], name="public")
    scale = {"mean": public.mean, "std": public.std}
    return public, data.from_arrays(digits.x[~low], digits.y[~low] - 5, name="private", **scale)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def pool(world, root):
    public, private = world
    return training.train_private(RECIPE, private, public, epsilon=8, root=root, progress=False)


# --------------------------------------------------------------------------------------------------
# the accountant


def slow_delta(epsilon, mu, p, q):
    """The hockey-stick divergence of a Gaussian and a label, summed over a grid and all labels."""
    step = SPAN[1] - SPAN[0]
    state, other = norm.pdf(SPAN, mu), norm.pdf(SPAN)
    excess = (
        np.maximum(a * state - math.exp(epsilon) * b * other, 0) for a, b in zip(p, q, strict=True)
    )
    return sum(part.sum() * step for part in excess)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("relation", ["replace", "add/remove"])
@pytest.mark.parametrize(("mu", "keep"), [(1.3, 0.7), (0.4, 0.95), (3.0, 0.6)])
def test_state_and_label_together_cost_what_a_sum_over_both_says(classes, relation, mu, keep):
    found = {"mu": mu, "keep": keep, "classes": classes, "delta": DELTA, "relation": relation}
    epsilon = accounting.stored_epsilon(**found)
    rest = (1 - keep) / (classes - 1)
    true = np.full(classes, rest)
    true[0] = keep
    if relation == "replace":
        pairs = [(true, np.roll(true, 1))]
    else:
        uniform = np.full(classes, 1 / classes)
        pairs = [(true, uniform), (uniform, true)]
    worst = max(slow_delta(epsilon, mu, *pair) for pair in pairs)
    assert worst == pytest.approx(DELTA, rel=1e-3)
    basic = accounting.gaussian_epsilon(mu, DELTA) + accounting.response_epsilon(
        keep=keep, classes=classes
    )
    assert epsilon < basic
    back = {name: found[name] for name in ("keep", "classes", "delta", "relation")}
    assert accounting.stored_mu(epsilon=epsilon, **back) == pytest.approx(mu, rel=1e-6)


def test_without_one_of_the_two_it_is_the_other_alone():
    alone = accounting.stored_epsilon(mu=1.0, keep=0.2, classes=5, delta=DELTA)
    assert alone == pytest.approx(accounting.gaussian_epsilon(1.0, DELTA), rel=1e-9)
    label = accounting.response_epsilon(keep=0.8, classes=5)
    assert accounting.stored_epsilon(mu=0, keep=0.8, classes=5, delta=0) == pytest.approx(label)
    added = accounting.stored_epsilon(mu=0, keep=0.8, classes=5, delta=0, relation="add/remove")
    assert added == pytest.approx(max(math.log(5 * 0.8), -math.log(5 * 0.05)))
    for change in ({"keep": 1.0}, {"mu": math.inf}, {"delta": 0.0}):
        given = {"mu": 1.0, "keep": 0.8, "classes": 5, "delta": DELTA} | change
        assert accounting.stored_epsilon(**given) == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relation": "swap"}, "relation='swap'"),
        ({"keep": 0.1}, "keep=0.1 of 5 classes"),
        ({"mu": -1.0}, "mu=-1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(change, message):
    given = {"mu": 1.0, "keep": 0.8, "classes": 5, "delta": DELTA} | change
    with pytest.raises(ValueError, match=message):
        accounting.stored_epsilon(**given)


@pytest.mark.parametrize("epsilon", [0.0, math.inf])
def test_no_noise_reaches_an_epsilon_of_none(epsilon):
    with pytest.raises(ValueError, match="wanted a finite epsilon and a delta, both above 0"):
        accounting.stored_mu(epsilon=epsilon, keep=0.5, classes=5, delta=DELTA)


# --------------------------------------------------------------------------------------------------
# the states


def linear(slope: float, lift: float, steps: int, k: float):
    """A bottleneck whose drift is `slope` h + `lift` on states of positive numbers."""
    args = {"channels": 4, "steps": steps, "k": k, "lipschitz": 2.0, "clip": 1.0}
    network = models.build("bottleneck", args, in_channels=1, num_classes=2, size=(8, 8), seed=0)
    with torch.no_grad():
        for conv in (network.flow.drift.first, network.flow.drift.second):
            for weight in conv.parameters():
                weight.zero_()
            conv.state.weight[..., 1, 1] = math.sqrt(slope) * torch.eye(4)
        network.flow.drift.second.time.bias.fill_(lift)
    return network.eval()


@pytest.mark.parametrize("slope", [0.0, 1.5])
def test_with_a_linear_drift_the_bound_is_an_equality(slope):
    steps, k, count = 4, 0.5, 60_000
    network = linear(
        slope, lift=40.0, steps=steps, k=k
    )  # so high that every later state is positive
    record = torch.zeros(count, 4, 1, 1)
    record[:, 0] = 7.0  # is clipped to norm 1
    neural_de.set_noise(network, True)
    with torch.no_grad():
        drawn = [
            network.flow(h, torch.Generator().manual_seed(seed))[:, 0, 0, 0].double()
            for seed, h in enumerate((record, torch.zeros_like(record)))
        ]
    spread = torch.cat([part - part.mean() for part in drawn]).std()
    measured = float((drawn[0].mean() - drawn[1].mean()) / spread)
    bound = proof.states_mu(network, "add/remove", 1)
    assert measured == pytest.approx(bound, abs=0.02)
    assert proof.states_mu(network, "replace", 1) == pytest.approx(2 * bound)
    assert proof.states_mu(network, "add/remove", 9) == pytest.approx(3 * bound)
    if slope == 0:
        assert bound == pytest.approx(1 / (k * math.sqrt(steps)), rel=1e-3)


def test_a_trained_drift_stretches_states_by_no_more_than_its_certified_constant(pool):
    drift = pool.model(0).flow.drift.double()
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 500, 8, 1, 1, generator=generator, dtype=torch.float64)
    b = a + 1e-3 * b
    with torch.no_grad():
        moved = (drift(0.3, a) - drift(0.3, b)).flatten(1).norm(dim=1)
    ratio = (moved / (a - b).flatten(1).norm(dim=1)).max()
    assert 0 < ratio <= drift.certified_lipschitz((1, 1)) <= 1 + 1e-6


def test_a_bottleneck_wants_features_before_a_linear_head():
    args = {"base": "toys:mlp"}
    with pytest.raises(ValueError, match="has no linear `head`"):
        models.build("bottleneck", args, in_channels=1, num_classes=2, size=(8, 8), seed=0)


def test_a_randomised_label_is_true_as_often_as_it_should_be():
    coins = np.random.default_rng(0)
    labels = np.full(200_000, 3)
    said = np.bincount(private_sde.randomised(labels, 5, 0.6, coins), minlength=5) / len(labels)
    assert said == pytest.approx([0.1, 0.1, 0.1, 0.6, 0.1], abs=0.004)


# --------------------------------------------------------------------------------------------------
# the pool


def test_the_pool_stays_within_epsilon_and_says_what_it_stands_on(pool):
    found = training.proved(pool)
    assert not found.failed and 7.99 < found.epsilon <= 8
    assert "added or removed, of data sets with at most" in found.line
    assert found.line.endswith("to whoever cannot know or guess the seed")
    replaced = training.proved(pool, relation="replace")
    assert replaced.mu == pytest.approx(2 * found.mu) and replaced.epsilon > found.epsilon
    row = auditing.ladder(
        delta=DELTA,
        flow=neural_de.describe(pool.model(0)),
        lipschitz={"certified": found.lipschitz},
        stored=found.stored,
    ).loc[3]
    assert row["epsilon"] == pytest.approx(found.epsilon, rel=1e-3)
    assert row["relation"] == "add/remove one record"


def test_slots_hide_how_many_records_there_are(world, root):
    public, private = world
    coins = RECIPE.replace(split="bernoulli", num_models=3)
    pool = training.train_private(coins, private, public, root=root, progress=False)
    shapes = {pool.folder.read_arrays(private_sde.stored_name(m))["states"].shape for m in range(3)}
    assert len(shapes) == 1 < len(set(pool.member.sum(1)))
    assert next(iter(shapes))[1] > pool.member.sum(1).max()
    with pytest.raises(ValueError, match="slots=5 for"):
        training.train_private(coins, private, public, slots=5, root=root, progress=False)


def test_the_same_recipe_has_the_same_bits_and_a_killed_run_goes_on_to_them(pool, world, tmp_path):
    public, private = world
    again = training.train_private(
        RECIPE, private, public, epsilon=8, root=tmp_path, progress=False
    )
    names = [
        name for name in pool.folder.files() if name.split("_")[0] in ("model", "stored", "losses")
    ]
    assert len(names) == 6
    assert all(again.folder.files()[name] == pool.folder.files()[name] for name in names)
    again.folder.remove("model_001.safetensors")  # killed after its states were stored
    resumed = training.train_private(
        RECIPE, private, public, epsilon=8, root=tmp_path, progress=False
    )
    assert all(resumed.folder.files()[name] == pool.folder.files()[name] for name in names)


def test_models_have_noise_of_their_own_and_another_seed_has_other_noise(pool, world, root):
    public, private = world
    other = training.train_private(
        RECIPE.replace(num_models=2, population=1), private, public, root=root, progress=False
    )
    states = [
        p.folder.read_arrays(private_sde.stored_name(m))["states"].ravel()
        for p in (pool, other)
        for m in range(2)
    ]
    for i, first in enumerate(states):
        for second in states[i + 1 :]:
            size = min(len(first), len(second))
            assert abs(np.corrcoef(first[:size], second[:size])[0, 1]) < 0.1


def test_behind_another_public_network_the_same_recipe_has_other_noise(world, tmp_path):
    public, private = world
    recipe = RECIPE.replace(num_models=2, model_args={**NETWORK, "k": 0.5})
    found = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        scale = {"mean": public.mean, "std": public.std}
        other = data.from_arrays(public.x[half], public.y[half], **scale)
        options = {"epsilon": None, "root": tmp_path, "progress": False}
        pool = training.train_private(recipe, private, other, **options)
        kept = pool.folder.read_arrays(private_sde.stored_name(0))
        network = pool.model(0)
        with torch.no_grad():
            embedded = private_sde._embedded(network, private)[pool.member[0]]
            quiet = network.flow(embedded).flatten(1).numpy()
        found.append((kept["states"][0], kept["labels"], quiet))
    (states, labels, quiet), (others, other_labels, other_quiet) = found
    assert (labels == other_labels).mean() < 0.5
    # with the same noise, differences of what is stored would be those of what went in
    nearest = [np.linalg.norm(states - others - step, axis=1).min() for step in quiet - other_quiet]
    assert np.median(nearest) > 0.5


def test_no_attack_finds_members_where_states_are_noise_and_labels_are_coins(world, root):
    public, private = world
    recipe = RECIPE.replace(split="bernoulli", num_models=8)
    pool = training.train_private(recipe, private, public, epsilon=0.01, root=root, progress=False)
    scores = attacks.score("rmia", query(pool, private, progress=False))
    inside = scores.value[scores.member]
    outside = scores.value[~scores.member]
    order = np.argsort(np.argsort(np.concatenate([inside, outside]))) + 1
    area = order[: len(inside)].sum() - len(inside) * (len(inside) + 1) / 2
    auc = area / (len(inside) * len(outside))
    assert abs(auc - 0.5) < 4 / math.sqrt(12 * min(len(inside), len(outside)))
    found = auditing.audit(
        auditing.score_split("rmia", query(pool, private, progress=False)), delta=DELTA
    )
    assert found.epsilon == 0


# --------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ({"clip": None}, "states are not clipped"),
        ({"lipschitz": None}, "no certified constant"),
        ({"method": "stoch_rk4"}, "no bound is known for stoch_rk4"),
        ({"order": 2, "lipschitz": None}, "second order"),
    ],
)
def test_a_network_without_a_bound_has_no_epsilon(world, root, network, reason):
    public, private = world
    recipe = RECIPE.replace(model_args={**NETWORK, **network}, epochs=1)
    pool = training.train_private(recipe, private, public, root=root, progress=False)
    found = training.proved(pool)
    assert found.epsilon == math.inf and reason in found.line and found.stored is None


def test_noise_that_is_off_has_no_epsilon(world, root):
    public, private = world
    stored = {"defense": "stored", "defense_args": {"keep": 0.9}}
    pool = training.train_private(
        RECIPE.replace(**stored), private, public, epsilon=None, noise=0, root=root, progress=False
    )
    assert "there is no noise" in training.proved(pool).line
    true = {"defense": "stored", "defense_args": {"keep": 1.0}}
    pool = training.train_private(
        RECIPE.replace(**true), private, public, epsilon=None, noise=1, root=root, progress=False
    )
    assert "labels are not randomised" in training.proved(pool).line


def test_private_images_among_the_public_ones_leave_no_epsilon(world, root):
    public, private = world
    x = torch.cat([public.x, private.x[:3]])
    leaked = data.from_arrays(x, torch.cat([public.y, private.y[:3]]), name="leaked")
    renormalised = private._replace(mean=leaked.mean, std=leaked.std)
    pool = training.train_private(RECIPE, renormalised, leaked, root=root, progress=False)
    assert "3 private images are among the public ones" in training.proved(pool).line


def test_normalisation_by_the_private_images_leaves_no_epsilon(world, root):
    public, private = world
    own = data.from_arrays(private.x, private.y, name="own")
    pool = training.train_private(RECIPE, own, public, root=root, progress=False)
    assert "normalised otherwise" in training.proved(pool).line
    everything = data.load("digits")
    both = {"mean": everything.mean, "std": everything.std}
    pool = training.train_private(
        RECIPE, private._replace(**both), public._replace(**both), root=root, progress=False
    )
    assert "not measured on the public images" in training.proved(pool).line


def test_a_network_that_mixes_a_batch_leaves_no_epsilon(world, root):
    public, private = world
    recipe = RECIPE.replace(model_args={**NETWORK, "base": "toys_flow:mixing", "base_args": {}})
    pool = training.train_private(recipe, private, public, root=root, progress=False)
    assert "states of a batch depend on each other" in training.proved(pool).line


def test_each_release_is_counted(world, root):
    public, private = world
    pool = training.train_private(
        RECIPE, private, public, epsilon=4, releases=5, root=root, progress=False
    )
    assert pool.folder.read_arrays("stored_000.npz")["states"].shape[0] == 5
    found = training.proved(pool)
    assert found.releases == 5 and found.epsilon == pytest.approx(4, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": RECIPE.replace(model="tinycnn", model_args={})}, 'wanted model="bottleneck"'),
        ({"epsilon": 8, "noise": 1.0}, "one follows"),
        ({"epsilon": 60}, "labels=0.65 of epsilon=60 leaves nothing for the states"),
        ({"relation": "swap"}, "relation='swap'"),
        ({"recipe": RECIPE.replace(split="given"), "member": np.eye(2, 896) > 0}, "wants slots"),
    ],
)
def test_what_cannot_be_trained_is_refused(world, root, change, message):
    public, private = world
    given = {"recipe": RECIPE, "images": private, "public": public, "progress": False} | change
    with pytest.raises(ValueError, match=message):
        training.train_private(**given, root=root)


def test_rows_of_any_size_are_stored_as_a_whole_so_that_nobody_is_warned(world, root, recwarn):
    public, private = world
    recipe = RECIPE.replace(split="given")
    unequal = np.arange(len(private.y)) < np.array([[60], [800]])
    training.train_private(
        recipe, private, public, member=unequal, slots=800, root=root, progress=False
    )
    assert not recwarn.list


def test_ordinary_training_does_not_take_the_defense(world, root):
    with pytest.raises(ValueError, match="train_private"):
        training.train_pool(RECIPE.replace(defense="stored"), world[1], root=root, progress=False)


def test_a_pool_that_was_trained_otherwise_has_nothing_proved(world, root):
    pool = training.train_pool(Recipe(num_models=2, epochs=1), world[1], root=root, progress=False)
    assert training.proved(pool).line == "none (infinite): not trained by train_private"


# --------------------------------------------------------------------------------------------------
# audits of what is stored


def largest_state(network, public) -> torch.Tensor:
    """An image of black and white pixels whose state is as large as climbing makes it."""

    def size(pixels):
        shown = data.normalise(pixels.view(-1, 1, 8, 8), public.mean, public.std, torch.float32)
        with torch.no_grad():
            return network.embed(shown).flatten(1).norm(dim=1)

    generator = torch.Generator().manual_seed(0)
    start = torch.randint(2, (500, 64), generator=generator).mul(255).to(torch.uint8)
    best = start[size(start).argmax()]
    for _ in range(4):
        for pixel in range(64):
            other = best.clone()
            other[pixel] = 255 - other[pixel]
            if size(other) > size(best):
                best = other
    return best.view(1, 1, 8, 8)


def audited(pool):
    """The audit of one canary that a coin put beside a known record, by the likelihood ratio of the
    two slots that are stored, noise taken as Gaussian.
    """
    network = pool.model(0)
    with torch.no_grad():
        embedded = private_sde._embedded(network, pool.images())[:2]
        states = torch.cat([embedded, torch.zeros_like(embedded[:1])])  # known, canary, empty
        centres = network.flow(states).flatten(1).numpy()
    keep = pool.recipe.defense_args["keep"]
    said = np.full((3, 5), (1 - keep) / 4)  # probabilities of a label
    said[0, 0] = said[1, 1] = keep
    said[2] = 1 / 5
    scores = np.empty(len(pool.member))
    for m in range(len(scores)):
        kept = pool.folder.read_arrays(private_sde.stored_name(m))
        away = ((kept["states"][:, :, None] - centres) ** 2).sum((0, 3))
        slot = np.log(said[:, kept["labels"]].T) - away / (2 * network.flow.noise_sd**2)
        inside, outside = (
            np.logaddexp(slot[0, 0] + slot[1, other], slot[1, 0] + slot[0, other])
            for other in (1, 2)
        )
        scores[m] = inside - outside
    return one_run(scores, pool.member[:, 1], delta=DELTA)


@pytest.mark.slow
def test_an_audit_stays_below_the_proof_and_finds_two_planted_errors(world, tmp_path, monkeypatch):
    public, private = world
    # the audit reads what is stored; heads are computed from that afterwards, and are not trained
    empty = torch.zeros(5, 8), torch.zeros(5)
    monkeypatch.setattr(private_sde, "fitted_head", lambda *_: empty)
    args = {**NETWORK, "clip": 0.03}
    recipe = RECIPE.replace(model_args=args, epochs=4, batch=32)
    # a network by itself trains faster as it is than in a stack
    options = {"root": tmp_path, "progress": False, "strategy": "plain"}
    first = training.train_private(recipe, private, public, **options)
    canary = largest_state(first.model(0), public)
    # one record that all have, the canary, one that none has
    x = torch.cat([private.x[:1], canary, private.x[1:2]])
    scale = {"mean": public.mean, "std": public.std}
    few = data.from_arrays(x, [0, 1, 2], name="few", classes=list("01234"), **scale)
    member = np.zeros((120, 3), bool)
    member[:, 0] = True
    member[:, 1] = np.random.default_rng(5).integers(0, 2, 120)
    recipe = recipe.replace(num_models=120, split="given")
    given = {"member": member, "slots": 2, **options}
    with pytest.warns(UserWarning, match="equal another"):
        # the states have most of epsilon, so that few of them show what is wrong with them
        sound = training.train_private(recipe, few, public, epsilon=2, labels=0.25, **given)
        claim = training.proved(sound).epsilon
        same = {"defense": "stored", "defense_args": sound.recipe.defense_args}
        noise = sound.recipe.model_args["k"]
        # noise drawn anew in each of 120 epochs, and one draw counted
        redrawn = training.train_private(
            recipe.replace(**same), few, public, epsilon=None, noise=noise, releases=120, **given
        )
        # without clipping a state is as large as it comes
        unclipped = training.train_private(
            recipe.replace(**same, model_args=NETWORK | {"clip": None}),
            few,
            public,
            epsilon=None,
            noise=noise,
            **given,
        )
    assert audited(sound).epsilon < claim
    assert audited(redrawn).epsilon > claim and training.proved(redrawn).epsilon > 4 * claim
    assert audited(unclipped).epsilon > claim and training.proved(unclipped).failed
