"""What Python callers and the command line may pass: anything else is one line that says what came
and what was wanted.
"""

import dataclasses
import inspect
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mia_nb import (  # noqa: F401
    attacks,
    auditing,
    data,
    metrics,
    query,
    querying,
    store,
    studies,
    training,
)
from mia_nb.auditing import bounds, one_run
from mia_nb.auditing.coins import check_bernoulli  # noqa: F401
from mia_nb.checks import plain
from mia_nb.cli import main, notebooks
from mia_nb.metrics import bootstrap, curve
from mia_nb.training import loop, losses, machine, placing, plans
from mia_nb.types import Recipe, Signals
from mia_nb.types.recipes import DTYPES

ROOMS = (
    attacks,
    auditing,
    bootstrap,
    bounds,
    curve,
    machine,
    one_run,
)  # what the calls below are written with
NAN, INF = float("nan"), float("inf")
CYCLE: dict = {}
CYCLE["a"] = CYCLE
DEEP: list = []
for _ in range(100):
    DEEP = [DEEP]
TINY = Recipe(num_models=2, epochs=1, batch=8, lr=0.05, model_args={"width": 2})
GIVEN = TINY.replace(split="given")


def halves(samples=40):
    first = np.arange(samples) % 2 == 0
    return np.stack([first, ~first])


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """All that the calls of the tables below are written in."""
    rng, root = np.random.default_rng(0), tmp_path_factory.mktemp("store")
    images = data.load("synthetic:classes=3,n=40,size=8,channels=1")
    member = np.stack([m for half in rng.random((3, 60)) < 0.5 for m in (half, ~half)])
    logits, labels = rng.normal(size=(6, 60, 4)), rng.integers(0, 4, 60)
    signals = Signals.from_logits(logits, labels, member)
    scores = attacks.score("loss", signals)
    where = {"progress": False, "workers": 1}
    pool = training.train_pool(TINY, images, root=root / "kept", **where)

    def train(recipe=TINY, **options):
        return training.train_pool(
            recipe, **{"images": images, "root": root / "empty", **where, **options}
        )

    def ask(**options):
        return query(pool, images, progress=False, **options)

    both = np.arange(60) % 2 == 0
    coins = dataclasses.replace(scores, member=member, info=scores.info | {"split": "bernoulli"})
    return globals() | locals()


RECIPES = [
    ("Recipe(num_models='4')", "num_models='4': wanted a number of models from 1 to 100000"),
    ("Recipe(num_models=True)", "num_models=True: wanted"),
    ("Recipe(num_models=4.5)", "num_models=4.5: wanted"),
    ("Recipe(num_models=0)", "num_models=0: wanted"),
    (
        "Recipe(num_models=3)",
        "num_models=3 is odd: complementary pairs need an even number; take 4",
    ),
    ("Recipe(num_models=10**9)", "num_models=1000000000: wanted"),
    ("Recipe(batch='8')", "batch='8': wanted a number of images"),
    ("Recipe(batch=2.5)", "batch=2.5: wanted"),
    ("Recipe(batch=0)", "batch=0: wanted"),
    ("Recipe(batch=None)", "batch=None: wanted"),
    ("Recipe(lr=None)", "lr=None: wanted the peak learning rate"),
    ("Recipe(lr=INF)", "lr=inf: inf is not finite"),
    ("Recipe(lr=NAN)", "lr=nan: nan is not finite"),
    ("Recipe(lr=0)", "lr=0: wanted"),
    ("Recipe(lr=-0.1)", "lr=-0.1: wanted"),
    ("Recipe(lr='fast')", "lr='fast': wanted"),
    ("Recipe(lr=True)", "lr=True: wanted"),
    ("Recipe(lr=np.ones(2))", "lr=array([1., 1.]): wanted"),
    ("Recipe(snapshots=3)", "snapshots=3: wanted a list of epochs"),
    ("Recipe(snapshots=[1.5])", "snapshots=[1.5]: wanted"),
    ("Recipe(snapshots=['a'])", "snapshots=['a']: wanted"),
    ("Recipe(snapshots=[0])", "snapshots=[0]: wanted"),
    ("Recipe(snapshots='12')", "snapshots='12': wanted"),
    ("Recipe(optimizer_args=None)", "optimizer_args=None: wanted a mapping"),
    (
        "Recipe(optimizer_args={'momentum': NAN})",
        "optimizer_args={'momentum': nan}: nan is not finite",
    ),
    ("Recipe(optimizer_args={'a': [1, {'b': -INF}]})", "-inf is not finite"),
    ("Recipe(optimizer_args={'a': len})", "is a builtin_function_or_method"),
    ("Recipe(optimizer_args={1: 2})", "1 is a name in a mapping, and names are text"),
    ("Recipe(optimizer_args=['momentum'])", "optimizer_args=['momentum']: wanted a mapping"),
    ("Recipe(model_args=CYCLE)", "contains itself"),
    ("Recipe(model_args={'a': DEEP})", "nested more than 12 deep"),
    ("Recipe(model_args={'a': 2**63})", "too large"),
    ("Recipe(model_args={'a': object()})", "is a object; parameters are numbers"),
    ("Recipe(defense=['l1'])", "defense=['l1']: wanted the name of a defense"),
    ("Recipe(defense='')", "defense='': wanted"),
    ("Recipe(defense_args='l1')", "defense_args='l1': wanted a mapping"),
    ("Recipe(seed=NAN)", "seed=nan: nan is not finite"),
    ("Recipe(seed='a')", "seed='a': wanted a whole number"),
    ("Recipe(seed=1.5)", "seed=1.5: wanted"),
    ("Recipe(seed=None)", "seed=None: wanted"),
    ("Recipe(seed=10**400)", "too large"),
    ("Recipe(epochs=1.5)", "epochs=1.5: wanted a number of passes"),
    ("Recipe(epochs=0)", "epochs=0: a pool needs at least 1"),
    ("Recipe(epochs=-1)", "epochs=-1: wanted"),
    ("Recipe(epochs=1e30)", "epochs=1e+30: wanted"),
    ("Recipe(population=1.5)", "population=1.5: wanted"),
    ("Recipe(population=-1)", "population=-1: wanted"),
    ("Recipe(augment='cropp')", "did you mean 'crop'?"),
    ("Recipe(augment='crop+flop')", "did you mean 'flip'?"),
    ("Recipe(augment='crop+none')", "augment='crop+none': wanted none, or some of crop"),
    ("Recipe(augment=None)", "augment=None: wanted"),
    ("Recipe(augment=['crop'])", "augment=['crop']: wanted"),
    ("Recipe(model=None)", "model=None: wanted the name of a network"),
    ("Recipe(model='')", "model='': wanted"),
    ("Recipe(model=len)", "model=<built-in function len>"),
    ("Recipe(model='a\\udc80')", "model='a\\udc80': wanted"),
    ("Recipe(optimizer=None)", "optimizer=None: wanted"),
    ("Recipe(schedule='onecycle')", "did you mean 'one_cycle'?"),
    ("Recipe(schedule=7)", "schedule=7: wanted one_cycle"),
    ("Recipe(dtype='float16')", "dtype='float16': wanted float32, float64 or bfloat16"),
    ("Recipe(dtype=np.float32)", "dtype=<class 'numpy.float32'>"),
    ("Recipe(split='pair')", "did you mean 'pairs'?"),
    ("Recipe(loss=None)", "loss=None: wanted"),
    ("Recipe(parent='')", "parent='': wanted the key"),
    ("Recipe(parent=3)", "parent=3: wanted"),
    ("Recipe(epoch=3)", "a recipe has no 'epoch'; did you mean 'epochs'?"),
    ("Recipe(models=8)", "a recipe has no 'models'; did you mean 'num_models'?"),
    ("Recipe.from_json({'epochs': 3, 'colour': 1})", "a recipe has no 'colour'"),
    ("Recipe.from_json([1])", "recipe=[1]: wanted dict"),
    ("TINY.replace(lr='fast')", "lr='fast': wanted"),
    ("TINY.replace(num_models=5)", "num_models=5 is odd"),
]
TRAINING = [
    ("train({'epochs': 3})", "recipe={'epochs': 3}: wanted Recipe, such as mia.Recipe("),
    ("train(images='digits')", "images='digits': wanted Images, as data.load gives them of a name"),
    ("train(images=(images.x, images.y))", "wanted Images, as data.load gives them of a name"),
    ("data.load([images.x, images.y])", "; data.from_arrays(x, y) makes images of arrays"),
    (
        "train(TINY.replace(optimizer='sdg'))",
        "optimizer='sdg' is not one of sgd, adam, muon; did you mean 'sgd'?",
    ),
    ("train(TINY.replace(loss='tett'))", "did you mean 'tet'?"),
    (
        "train(GIVEN, member=halves() * 1.0)",
        "member holds numbers from 0.0 to 1.0: wanted booleans",
    ),
    (
        "train(GIVEN, member=np.full((2, 40), NAN))",
        "member holds numbers from nan to nan: wanted booleans",
    ),
    ("train(GIVEN, member=np.full((2, 40), 'yes'))", "member holds array("),
    ("train(GIVEN, member=halves() * 2 - 1)", "member holds numbers from -1 to 1"),
    ("train(GIVEN, member='half')", "member holds 'half'"),
    (
        "train(GIVEN, member=np.ones((2, 40), bool))",
        "rows [0, 1] of member are all True or all False",
    ),
    (
        "train(GIVEN, member=np.zeros((2, 40), bool))",
        "rows [0, 1] of member are all True or all False",
    ),
    ("train(GIVEN, member=halves()[:1])", "member has shape (1, 40); wanted (2, 40)"),
    ("train(GIVEN, member=halves(30))", "member has shape (2, 30); wanted (2, 40)"),
    ("train(member=halves())", 'give a member mask with split="given", and with no other split'),
    ("train(GIVEN)", "give a member mask"),
    ("train(device='bogus')", "device='bogus': wanted cpu, cuda or cuda:NUMBER"),
    ("train(device=['cpu'])", "device=['cpu']: wanted"),
    ("train(device='meta')", "device='meta': wanted"),
    ("train(device='cuda:99')", "this machine has"),
    ("train(strategy='fast')", "strategy='fast': wanted auto"),
    ("train(strategy=None)", "strategy=None: wanted"),
    ("train(workers=0)", "workers=0: wanted a whole number from 1 up"),
    ("train(workers=1.5)", "workers=1.5: wanted"),
    ("train(checkpoint=-1)", "checkpoint=-1: wanted a finite number from 0 up"),
    ("train(checkpoint='often')", "checkpoint='often': wanted numbers"),
    ("train(checkpoint=NAN)", "checkpoint=nan: wanted"),
    ("training.step_cost(TINY, images, repeats='5')", "repeats='5': wanted a whole number"),
    ("training.step_cost(TINY, images, device='bogus')", "device='bogus': wanted"),
    ("training.convert_pool(pool, images, 1.5)", "timesteps=1.5: wanted a whole number"),
    ("training.convert_pool(pool, images, 2, device='bogus')", "device='bogus': wanted"),
    (
        "training.conversion_quality(pool, images, [1], models=[5])",
        "models=[5]: wanted some of the rows 0..1",
    ),
    ("training.conversion_quality(pool, images, [0])", "timesteps=0: wanted"),
    ("training.label({})", "recipe={}: wanted Recipe"),
    ("machine.device_of(1.5)", "device=1.5: wanted"),
]
QUERIES = [
    ("query(None, images)", "pool=None: wanted Pool"),
    ("query(pool, 'digits')", "images='digits': wanted Images"),
    ("ask(models=[9])", "models=[9]: wanted some of the rows 0..1"),
    ("ask(models=[0.5])", "models=[0.5]: wanted some of the rows"),
    ("ask(models='0')", "models='0': wanted some of the rows"),
    ("ask(models=[])", "models=[]: wanted some of the rows"),
    ("ask(models=[True])", "models=[True]: wanted some of the rows"),
    ("ask(queries=0)", "queries=0: wanted a number of queries per model and image, from 1 up"),
    ("ask(queries='2')", "queries='2': wanted"),
    ("ask(queries=1.5)", "queries=1.5: wanted"),
    ("ask(input_dropout=1)", "input_dropout=1: wanted a fraction in [0, 1)"),
    ("ask(input_dropout='0.1')", "input_dropout='0.1': wanted a fraction in [0, 1)"),
    ("ask(input_dropout=[0.1])", "input_dropout=[0.1]: wanted a fraction"),
    (
        "ask(input_dropout=NAN)",
        "input_dropout=nan: nan is not finite, or too large; wanted a fraction",
    ),
    ("ask(augment='false')", "augment='false': wanted true or false"),
    ("ask(noise='false')", "noise='false': wanted true, false, or None"),
    ("ask(temperature=0)", "temperature=0: wanted a finite number above 0"),
    ("ask(temperature=NAN)", "temperature=nan: nan is not finite"),
    ("ask(temperature=INF)", "temperature=inf: inf is not finite"),
    ("ask(limit=0)", "limit=0: wanted a number of images from 1 up"),
    ("ask(limit=10.5)", "limit=10.5: wanted"),
    ("ask(batch=0)", "batch=0: wanted"),
    ("ask(seed='a')", "seed='a': wanted a whole number"),
    ("ask(seed=NAN)", "seed=nan: nan is not finite, or too large; wanted a whole number"),
    ("ask(per_step='all')", "per_step='all': wanted"),
    ("ask(output='memgard')", "memgard"),
    ("ask(device='bogus')", "device='bogus': wanted cpu, cuda or cuda:NUMBER"),
    ("ask(device='cuda:99')", "this machine has"),
    ("querying.firing_rates(pool, images, limit=0)", "limit=0: wanted"),
    ("querying.firing_rates(pool, images, device='bogus')", "device='bogus': wanted"),
]
SIGNALS = [
    ("signals.select(models=99)", "99 picks nothing from an axis of 6"),
    ("signals.select(models='a')", "'a' picks nothing from an axis of 6"),
    ("signals.select(queries=1.7)", "1.7 picks nothing from an axis of 1"),
    ("signals.select(samples=[True, False])", "picks nothing from an axis of 60"),
    ("signals.select(samples=slice('a', None))", "picks nothing from an axis of 60"),
    ("signals.hold_out(99)", "target=99: wanted some of the rows 0..5"),
    ("signals.hold_out('a')", "target='a': wanted some of the rows 0..5"),
    ("Signals.from_logits(logits, labels, member - 0.5)", "member holds numbers from -0.5 to 0.5"),
    ("Signals.from_logits(logits, labels, member * 2 - 1)", "member holds numbers from -1 to 1"),
    (
        "Signals.from_logits(logits, labels, member, population=both * 0.3)",
        "population holds numbers",
    ),
    ("Signals.from_logits(logits, labels + 0.5, member)", "labels of float64: wanted"),
    ("Signals.from_logits(logits.astype(str), labels)", "wanted numbers"),
    ("Signals.from_logits(logits, labels, temperature='2')", "temperature='2': wanted numbers"),
    (
        "Signals.from_logits(logits, labels, query_kind='plane')",
        "query_kind='plane' is not one of plain",
    ),
    ("dataclasses.replace(signals, member=member * 1)", "member has dtype int64; wanted booleans"),
    (
        "dataclasses.replace(scores, member=member * 2 - 1)",
        "member has dtype int64; wanted booleans",
    ),
    ("attacks.score(None, signals)", "attack=None: wanted Callable"),
    ("attacks.score(3, signals)", "attack=3: wanted Callable"),
    ("attacks.score('rmai', signals)", "did you mean 'rmia'?"),
    ("attacks.score('rmia', None)", "target=None: wanted Signals"),
    ("attacks.score('rmia', signals, {})", "references={}: wanted Signals"),
    ("attacks.score('rmia', signals, targets='0')", "targets='0': wanted some of the rows 0..5"),
    ("attacks.score('rmia', signals, targets=1.7)", "targets=1.7: wanted some of the rows 0..5"),
    (
        "attacks.score('rmia', signals, targets=[0, 6])",
        "targets=[0, 6]: wanted some of the rows 0..5",
    ),
    ("attacks.score('rmia', signals, targets=[])", "targets=[]: wanted some of the rows 0..5"),
    ("attacks.score('rmia', signals, targets=-1)", "targets=-1: wanted some of the rows 0..5"),
    (
        "attacks.score('rmia', signals, targets=[True, False])",
        "targets=[True, False]: wanted some of the rows",
    ),
    ("attacks.score('rmia', signals, targets=NAN)", "targets=nan: wanted some of the rows"),
    ("attacks.suite('a')", "k='a': wanted a whole number from 0 up"),
    ("attacks.suite(-1)", "k=-1: wanted"),
    ("attacks.suite(1.5)", "k=1.5: wanted"),
    ("attacks.suite(None)", "k=None: wanted"),
    ("attacks.literature(2, query_kind='noisy')", "query_kind='noisy' is not one of plain"),
    ("attacks.literature(2, queries='4')", "queries='4': wanted"),
]
METRICS = [
    ("metrics.auc(['a', 'b'], [True, False])", "score=['a', 'b']: wanted numbers"),
    ("metrics.auc([None, 1.0], [True, False])", "score=[None, 1.0]: wanted numbers"),
    ("metrics.auc([1j, 2], [True, False])", "wanted numbers"),
    ("metrics.auc([0.1, 0.2], [-1, 1])", "member holds numbers from -1 to 1"),
    ("metrics.auc([0.1, 0.2], [0.3, 0.9])", "member holds numbers from 0.3 to 0.9"),
    ("metrics.auc([0.1, 0.2], ['in', 'out'])", "member holds ['in', 'out']"),
    ("metrics.auc([0.1, NAN], [True, False])", "1 of 2 scores are NaN"),
    ("metrics.auc(0.1, True)", "one target at a time"),
    ("metrics.tpr_at([0.1, 0.2], [True, False], 2)", "fpr=2: wanted a fraction in [0, 1]"),
    ("metrics.tpr_at([0.1, 0.2], [True, False], 'low')", "fpr='low': wanted numbers"),
    ("metrics.tpr_at([0.1, 0.2], [True, False], (0.1,))", "fpr=(0.1,): wanted a fraction"),
    (
        "metrics.clopper_pearson(1, 2, confidence=2)",
        "confidence=2: wanted a fraction in (0, 1); 95 % is 0.95",
    ),
    ("metrics.clopper_pearson(1, 2, confidence='high')", "confidence='high': wanted numbers"),
    ("metrics.clopper_pearson(NAN, 2)", "successes=nan: wanted whole numbers from 0 up"),
    ("metrics.clopper_pearson(INF, INF)", "successes=inf: wanted whole numbers from 0 up"),
    ("metrics.clopper_pearson(2.5, 10)", "successes=2.5: wanted whole numbers from 0 up"),
    ("metrics.clopper_pearson(0.3, 1)", "of a rate pass its hits and trials"),
    ("metrics.clopper_pearson([1, 2.5, 3], 10)", "and 2.5 is none"),
    ("metrics.clopper_pearson(2, 10.5)", "trials=10.5: wanted whole numbers from 0 up"),
    ("metrics.clopper_pearson(-1, 10)", "and -1 is none"),
    ("metrics.clopper_pearson(0, 0)", "0 successes of 0 trials"),
    ("metrics.clopper_pearson('1', 2)", "successes='1': wanted numbers"),
    ("metrics.clopper_pearson(3, 2)", "3 successes of 2 trials"),
    ("metrics.ppv(0.5, 0.1, 2)", "prior=2: wanted fractions in [0, 1]"),
    ("metrics.ppv(5, 0.1, 0.5)", "tpr=5: wanted fractions"),
    ("metrics.ppv(0.5, -0.1, 0.5)", "fpr=-0.1: wanted fractions"),
    ("metrics.ppv('a', 0.1, 0.5)", "tpr='a': wanted numbers"),
    ("curve.advantage([0.1, 0.2], [-1, 1])", "member holds numbers from -1 to 1"),
    ("curve.null_advantage(0, 5)", "n1=0: wanted a whole number from 1 up"),
    ("curve.tie_mass(['a', 'a'])", "wanted numbers"),
    ("curve.thin(metrics.roc([0.1, 0.2], [0, 1]), 1.5)", "n0=1.5: wanted a whole number"),
    ("metrics.summary(None)", "scores=None: wanted Scores | dict[str, Scores]"),
    ("metrics.summary({'rmia': None})", "scores={'rmia': None}: wanted Scores | dict"),
    ("metrics.summary(scores, 0.1)", "fpr=0.1: wanted several false positive rates"),
    ("metrics.summary(scores, (2,))", "fpr=(2,): wanted fractions in [0, 1]"),
    ("metrics.summary(scores, ('a',))", "fpr=('a',): wanted numbers"),
    ("metrics.summary(scores, 'low')", "fpr='low': wanted numbers"),
    ("metrics.summary(scores, n_resamples=0)", "n_resamples=0: wanted a whole number from 2 up"),
    ("metrics.verdict(scores, n_resamples=1)", "n_resamples=1: wanted a whole number from 2 up"),
    ("metrics.frontier({'a': {1: {'loss': scores}}}, n_resamples=1)", "n_resamples=1: wanted"),
    ("metrics.summary(scores, n_resamples=1.5)", "n_resamples=1.5: wanted"),
    ("metrics.summary(scores, n_resamples='many')", "n_resamples='many': wanted"),
    ("metrics.summary(scores, seed='a')", "seed='a': wanted a whole number from 0 up"),
    ("metrics.summary(scores, seed=-1)", "seed=-1: wanted"),
    ("metrics.per_target(scores, 0.1)", "fpr=0.1: wanted several"),
    ("metrics.per_target(7)", "scores=7: wanted Scores | dict[str, Scores]"),
    ("bootstrap.bootstrap(scores, n_resamples=0)", "n_resamples=0: wanted"),
    ("metrics.intervals(None)", "scores=None: wanted Scores"),
    ("metrics.intervals(scores, confidence=95)", "confidence=95: wanted a fraction in (0, 1)"),
    ("metrics.intervals(scores, 0.1)", "fpr=0.1: wanted several"),
    ("metrics.difference(scores, None)", "b=None: wanted Scores"),
    ("metrics.interval(np.ones(4), np.arange(4), confidence=0)", "confidence=0: wanted"),
    ("metrics.self_test(None, ['loss'])", "signals=None: wanted Signals"),
    ("metrics.self_test(signals, 'loss')", "attacks='loss': wanted dict | Sequence[str]"),
    ("metrics.self_test(signals, ['los'])", "did you mean 'loss'?"),
    (
        "metrics.self_test(signals, ['loss'], n_resamples=1)",
        "n_resamples=1: wanted a whole number from 2 up",
    ),
    ("metrics.self_test(signals, ['loss'], n_resamples='10')", "n_resamples='10': wanted"),
    (
        "metrics.self_test(signals, ['loss'], samples=0)",
        "samples=0: wanted a whole number from 1 up",
    ),
    ("metrics.self_test(signals, ['loss'], seed=1.5)", "seed=1.5: wanted"),
]
AUDITS = [
    ("auditing.audit(None, delta=1e-5)", "scores=None: wanted Scores"),
    ("auditing.audit(coins, delta=2)", "delta=2: wanted a fraction in [0, 1)"),
    ("auditing.audit(coins, delta='small')", "delta='small': wanted numbers"),
    (
        "auditing.audit(coins, delta=1e-5, confidence=95)",
        "confidence=95: wanted a fraction in (0, 1)",
    ),
    (
        "auditing.audit(coins, delta=1e-5, attempts=0)",
        "attempts=0: wanted a whole number from 1 up",
    ),
    ("auditing.audit(coins, delta=1e-5, attempts='3')", "attempts='3': wanted"),
    ("one_run.one_run(['a'], [True], delta=0)", "score=['a']: wanted numbers"),
    ("one_run.one_run([0.1, 0.2], [-1, 1], delta=0)", "member holds numbers from -1 to 1"),
    (
        "one_run.one_run([0.1, 0.2], [0, 1], delta=0, guesses='2')",
        "guesses='2': wanted a whole number",
    ),
    ("one_run.one_run([0.1, 0.2], [0, 1], delta=0, guesses=3)", "guesses=3: wanted 1 to 2"),
    ("one_run.one_run([0.1, 0.2], [0, 1], delta=0, seed='a')", "seed='a': wanted"),
    (
        "one_run.one_run_epsilon(canaries=4, guesses='4', correct=4, delta=0)",
        "guesses='4': wanted a whole number",
    ),
    (
        "one_run.one_run_epsilon(canaries=4, guesses=4, correct=NAN, delta=0)",
        "correct=nan: wanted a whole number",
    ),
    ("check_bernoulli(np.full((2, 9), 0.5))", "member holds numbers from 0.5 to 0.5"),
    (
        "bounds.epsilon_lower(tp=1.5, positives=4, fp=0, negatives=4, delta=0)",
        "tp=1.5: wanted a whole number",
    ),
    (
        "bounds.epsilon_lower(tp='1', positives=4, fp=0, negatives=4, delta=0)",
        "tp='1': wanted a whole number",
    ),
    ("bounds.epsilon_lower(tp=5, positives=4, fp=0, negatives=4, delta=0)", "tp=5 of 4"),
]
CALLS = [*RECIPES, *TRAINING, *QUERIES, *SIGNALS, *METRICS, *AUDITS]


@pytest.mark.parametrize(("call", "says"), CALLS, ids=[call for call, _ in CALLS])
def test_what_is_no_argument_is_refused_in_one_line(names, call, says):
    begun = time.perf_counter()
    with pytest.raises(ValueError) as caught:
        eval(call, names)
    text = str(caught.value)
    assert says in text and "\n" not in text and len(text) < 500, text
    assert time.perf_counter() - begun < 30
    assert not list((names["root"] / "empty").glob("*")), "refused before anything was written"


COMMANDS = [
    ("model_args=&a {b: *a}", "found unconstructable recursive node"),
    ("model_args={a: " + "[" * 100 + "]" * 100 + "}", "nested more than 12 deep"),
    ("model_args=" + "[" * 2000 + "]" * 2000, "recursion"),
    ("model_args={a: .nan}", "nan is not finite"),
    ("model_args={a: !!timestamp 2001-01-01}", "is a date; parameters are"),
    ("model_args={1: 2}", "names are text"),
    ("epochs=1e30", "epochs=1e+30: wanted a number of passes"),
    ("epochs=1e9", "epochs=1000000000.0: wanted a number of passes"),
    ("epochs=0", "epochs=0: a pool needs at least 1"),
    ("epochs=.inf", "epochs=inf: inf is not finite"),
    ("num_models=5", "num_models=5 is odd"),
    ("num_models=-2", "num_models=-2: wanted"),
    ("lr=-1", "lr=-1: wanted the peak learning rate"),
    ("lr=.nan", "lr=nan: nan is not finite"),
    ("batch=0", "batch=0: wanted"),
    ("population=-5", "population=-5: wanted"),
    ("augment=cropp", "did you mean 'crop'?"),
    ("schedule=cosin", "did you mean 'cosine'?"),
    ("dtype=float46", "did you mean 'float64'?"),
    ("split=pair", "did you mean 'pairs'?"),
    ("snapshots=[a]", "snapshots=['a']: wanted a list of epochs"),
    ("limit=1e25", "limit=1e+25: wanted a number of images"),
]


@pytest.mark.parametrize(("given", "says"), COMMANDS, ids=[given[:40] for given, _ in COMMANDS])
def test_parameters_that_no_recipe_takes_are_refused_before_a_kernel_starts(
    tmp_path, monkeypatch, capsys, given, says
):
    monkeypatch.chdir(tmp_path)
    begun = time.perf_counter()
    assert main(["run", "train", "-p", given]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1 and time.perf_counter() - begun < 30
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["n_resamples", "control_resamples"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_notebook_refuses_so_few_resamples_that_no_variance_is_known(
    tmp_path, monkeypatch, capsys, name, number
):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "attack", "-p", f"{name}={number}"]) == 2
    err = capsys.readouterr().err
    assert f"{name}={number}: wanted a number of re" in err and "from 2 up" in err
    assert err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_every_function_that_resamples_for_intervals_wants_two_resamples():
    """But `frontier`, of which 0 means no intervals; `null_scores` are those of single masks."""
    wants = {
        name: inspect.signature(function).parameters["n_resamples"].annotation
        for room in (auditing, metrics, studies)
        for name, function in vars(room).items()
        if inspect.isfunction(function) and "n_resamples" in inspect.signature(function).parameters
    }
    assert {name for name in wants if wants[name] != "Several"} == {"frontier", "null_scores"}
    assert len(wants) > 10


def test_names_that_a_notebook_uses_for_something_else_are_not_taken_for_a_recipes(tmp_path):
    cell = {
        "cell_type": "code",
        "id": "a",
        "metadata": {"tags": ["parameters"]},
        "outputs": [],
        "execution_count": None,
    }
    cell["source"] = "epochs: list = [1, 2]\nseed: str = 'a'\nlr: float = 0.1"
    path = tmp_path / "mine.ipynb"
    path.write_text(
        json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    (step,) = notebooks.plan(str(path), None, [("epochs", "[0]"), ("lr", "-1")], [])
    assert step.parameters == {"epochs": [0], "seed": "a", "lr": -1.0}
    assert main(["params", str(path)]) == 0


def test_numpys_numbers_whole_floats_and_tuples_become_pythons():
    recipe = Recipe(
        num_models=np.int64(4),
        epochs=np.float64(3),
        lr=np.float32(0.5),
        batch=8.0,
        snapshots=np.arange(1, 9),
        seed=np.uint8(7),
        model_args={"a": (1, np.int8(2))},
    )
    assert recipe == Recipe(
        num_models=4, epochs=3, lr=0.5, batch=8, snapshots=[1, 2], seed=7, model_args={"a": [1, 2]}
    )
    assert [type(getattr(recipe, name)) for name in ("num_models", "epochs", "lr", "batch")] == [
        int,
        int,
        float,
        int,
    ]
    assert json.loads(json.dumps(recipe.to_json())) == recipe.to_json()
    assert pickle.loads(pickle.dumps(recipe)) == recipe == recipe.replace(num_models=4)
    with pytest.raises(ValueError):
        recipe.lr = 3


def test_masks_of_zeros_and_ones_are_masks(names):
    want = names["signals"].member
    assert np.array_equal(
        Signals.from_logits(names["logits"], names["labels"], want.astype(int)).member, want
    )
    assert (
        metrics.auc([0.1, 0.2, 0.3], [0, 0, 1])
        == metrics.auc([0.1, 0.2, 0.3], [False, False, True])
        == 1
    )
    images, given = names["images"], GIVEN.replace(num_models=2)
    member, _ = placing.membership(given, images, halves().astype(np.uint8))
    assert member.dtype == bool and np.array_equal(member, halves())


def test_rows_alike_are_told_unless_one_training_is_repeated(names, recwarn):
    recipe, images = GIVEN.replace(num_models=4), names["images"]
    placing.membership(
        recipe, images, np.concatenate([halves(), ~halves()[:, ::-1] ^ (np.arange(40) < 4)])
    )
    placing.membership(recipe, images, np.repeat(halves()[:1], 4, axis=0))
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match="2 of 4 rows of member equal another: such models are no references"
    ):
        placing.membership(recipe, images, np.concatenate([halves(), halves()]))


def test_a_row_so_large_that_members_are_never_trained_on_is_told(names, tmp_path, recwarn):
    recipe, images = GIVEN.replace(num_models=2, batch=4, epochs=2), names["images"]
    unequal = np.arange(40) < np.array([[6], [36]])  # 5 batches an epoch, of the mean of 21
    says = "hold 6 to 36 images, and an epoch takes 20 of each: about 20% of the largest row's"
    with pytest.warns(UserWarning, match=says):
        pool = training.train_pool(recipe, images, member=unequal, root=tmp_path, progress=False)
    never = np.isnan(pool.trace(1)).all(0)[:36]
    assert 0.05 < never.mean() < 0.4
    recwarn.clear()
    private = {"defense": "dp_sgd", "defense_args": {"noise_multiplier": 1.0}}
    for changes in ({"epochs": 9}, private):
        placing.warn_of_large_rows(recipe.replace(**changes), unequal)
    # 16 of 20 in the only epoch, as in any pool
    placing.warn_of_large_rows(recipe.replace(epochs=1, batch=8), halves())
    assert not recwarn.list


# keys of pools as they were before recipes were pydantic models; other keys would lose all that is
# stored
STORED = [
    ({}, "2736937817286508b661347872c198f12f25ec383baff9674e0d79f5d2c24574"),
    (
        {
            "model": "snn",
            "model_args": {"base": "tinycnn", "base_args": {"width": 4}, "timesteps": 4},
            "num_models": 4,
            "population": 12,
            "seed": 3,
            "loss": "tet",
            "batch": 8,
        },
        "958f774921976f6ed2268b9c913a5a2af6ded5497d92f27d71973700e52cd4b7",
    ),
    (
        {
            "split": "bernoulli",
            "num_models": 3,
            "epochs": 9,
            "snapshots": [5, 2, 2, 20],
            "lr": 1,
            "optimizer": "adam",
            "optimizer_args": {"weight_decay": 0.01},
            "schedule": "cosine",
            "augment": "crop+flip",
            "dtype": "bfloat16",
        },
        "ab85090fdfa2e6da53db152f987042e0d71ac26a33fc2da3b83ae5e3957f5634",
    ),
    (
        {
            "split": "given",
            "num_models": 4,
            "defense": "label_smoothing",
            "optimizer_args": {"nesterov": False},
            "seed": -1,
        },
        "6e141d34d1c90d57256e7707ede852312461e9da90342ffa0b16f5545ab975a3",
    ),
]


@pytest.mark.parametrize(("fields", "key"), STORED, ids=["defaults", "spiking", "coins", "given"])
def test_the_keys_of_stored_pools_stay(fields, key, tmp_path):
    images = data.load("synthetic:classes=3,n=60,size=8,channels=1")
    member = (
        np.arange(60)[None] % 4 == np.arange(4)[:, None] if fields.get("split") == "given" else None
    )
    recipe = placing.complete(Recipe(**fields))
    pool = placing.place(
        recipe, images, *placing.membership(recipe, images, member), tmp_path, None
    )
    assert pool.key == key


def test_the_json_of_a_recipe_stays():
    defaults = (
        '{"model": "tinycnn", "model_args": {}, "num_models": 16, "split": "pairs", "population":'
        ' 0, "seed": 0, "epochs": 20, "snapshots": [], "batch": 32, "lr": 0.1, "optimizer": "sgd",'
        ' "optimizer_args": {}, "schedule": "one_cycle", "augment": "none", "loss":'
        ' "cross_entropy", "dtype": "float32", "defense": null, "defense_args": {}, "parent": null}'
    )
    assert json.dumps(Recipe().to_json()) == defaults
    assert store.content_key(Recipe.from_json(json.loads(defaults)).to_json()) == store.content_key(
        Recipe().to_json()
    )


def test_every_field_says_what_it_is_and_its_words_are_those_of_training():
    schema = Recipe.model_json_schema()["properties"]
    assert list(schema) == list(Recipe().to_json()) and all(
        len(field["description"]) > 10 for field in schema.values()
    )
    assert schema["batch"]["minimum"] == 1 and schema["schedule"]["enum"] == [
        "one_cycle",
        "cosine",
        "linear",
        "plateau",
        "constant",
    ]
    assert set(plans.DTYPES) == set(DTYPES)
    for name, known in {"optimizer": loop.OPTIMIZERS, "loss": losses.LOSSES}.items():
        assert all(word in schema[name]["description"] for word in known)


def test_plain_values_stay_and_all_else_is_refused():
    assert plain({"a": (1, None, True), "b": Path("x/y"), "c": np.arange(2)}) == {
        "a": [1, None, True],
        "b": "x/y",
        "c": [0, 1],
    }
    for wrong in (CYCLE, DEEP, NAN, {1, 2}, b"a", 2**64):
        with pytest.raises(ValueError):
            plain(wrong)


def test_types_do_not_import_torch():
    code = "import sys, mia_nb.types; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1]).returncode == 0
    )


def test_what_was_asked_for_before_needs_no_device_that_is_gone(names):
    pool, images = names["pool"], names["images"]
    before = query(pool, images, progress=False)
    assert np.array_equal(
        query(pool, images, progress=False, device="cuda:99").margin, before.margin
    )
    again = training.train_pool(
        TINY, images, root=pool.folder.path.parent, progress=False, device="cuda:99"
    )
    assert again.key == pool.key


def test_false_positive_rates_may_be_a_list_an_array_or_none_at_all():
    assert (
        curve.rates([0.1, np.float64(0.2)]) == curve.rates(np.array([0.1, 0.2])) == (0.1, 0.2)
        and curve.rates(()) == ()
    )
