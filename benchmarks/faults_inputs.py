"""Bad inputs as tables: what each argument is, and the values that are not that; command lines;
files from strangers.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from faults import command
from faults_stores import TINY, World

from mia_nb import accounting, attacks, auditing, data, metrics, store, training
from mia_nb.auditing.bounds import epsilon_lower
from mia_nb.auditing.coins import check_bernoulli
from mia_nb.auditing.one_run import one_run, one_run_epsilon
from mia_nb.cli import notebooks
from mia_nb.metrics.curve import advantage, null_advantage
from mia_nb.metrics.memorised_samples import memorisation
from mia_nb.parameters import described, read_parameters
from mia_nb.querying import query
from mia_nb.types import Recipe, Signals

CYCLE: dict = {"a": 1}
CYCLE["b"] = CYCLE
NEST: list = []
for _ in range(5000):
    NEST = [NEST]
SCRAP = {
    "text": "bogus",
    "digits": "4",
    "empty": "",
    "none": None,
    "nan": math.nan,
    "inf": math.inf,
    "minus inf": -math.inf,
    "minus": -1,
    "zero": 0,
    "fraction": 1.5,
    "two": 2,
    "huge": 10**30,
    "list": [1],
    "mapping": {"a": 1},
    "array": np.zeros((2, 2)),
}
EXOTIC = {
    "true": True,
    "cycle": CYCLE,
    "nest": NEST,
    "bytes": b"a",
    "object": object(),
    "complex": 1j,
    "set": {1},
    "type": int,
}  # in recipes alone
FINE = {  # which scraps an argument of this kind may accept; all others are to be refused
    "count": "two huge",
    "count0": "two huge zero",
    "whole": "two huge zero minus",
    "n_resamples": "two",
    "n_resamples0": "two zero",
    "seed": "zero two huge digits list",
    "list": "list array",
    "limits": "empty",
    "number": "minus zero fraction two huge inf minus_inf list",
    "rate": "zero",
    "share": "zero",
    "positive": "fraction two huge",
    "positive0": "fraction two huge zero",
    "fpr": "zero list",
    "positive_inf": "fraction two huge zero inf",
    "index": "list zero minus two none",
    "device": "empty zero none",
    "mapping": "mapping",
    "info": "mapping zero empty",
    "snapshots": "list",
    "prefix": "digits",  # with which a key may begin
}
# slow; folders of that name
LEFT_OUT = {"n_resamples": "huge", "n_resamples0": "huge", "root": "text digits empty"}
MORE = {  # bad values that only this kind of argument has
    "vector": {
        "text items": ["a"] * 50,
        "NaN": [math.nan] * 50,
        "short": [0.5],
        "square": np.eye(50),
    },
    "mask": {
        "text items": ["a"] * 50,
        "shares": np.linspace(0, 1, 50),
        "NaN": [math.nan] * 50,
        "minus one": [-1, 1] * 25,
        "short": [True],
    },
    "fpr": {"above 1": (0.1, 2), "text items": ("a",), "NaN": (math.nan,), "negative": (-0.1,)},
}


def short(value) -> str:
    try:
        return " ".join(repr(value).split())[:40]
    except RecursionError:
        return "a nest"


def bad_values(kind: str, scraps: dict) -> Iterator[tuple[str, object, str]]:
    """(name, value, expectation) of the scraps for an argument of this kind; "?" at its end lets
    None pass, "*" arrays."""
    plain = kind.rstrip("?*")
    fine = (
        FINE.get(plain, "").split() + ["none"] * ("?" in kind) + ["list", "array"] * ("*" in kind)
    )
    for name, value in scraps.items():
        if name not in LEFT_OUT.get(plain, "").split():
            yield name, value, "any" if name.replace(" ", "_") in fine else "refused"
    for name, value in MORE.get(plain, {}).items():
        yield name, value, "refused"
    if plain == "fpr":
        yield "one rate", 0.1, "any"


# -------------------------------------------------------------------------------------------
# recipes

RECIPE = {  # field: its kind, good values, bad values of the right type
    "model": ("name", ["tinycnn"], ["", "bogus", "os:system", "json:loads", "a:b:c", "\0"]),
    "model_args": (
        "mapping",
        [{}],
        [
            {"bogus": 1},
            {"width": "a"},
            {"width": -1},
            {"width": 10**12},
            {1: 2},
            {"width": math.nan},
            {"width": object()},
        ],
    ),
    "num_models": ("count", [2, 4], [3, 10**30 + 1]),
    "split": ("words", ["pairs", "bernoulli"], ["given"]),
    "population": ("count0", [0, 10], [59, 60, 1000]),
    "seed": ("whole", [0, 1, 2**40], ["4", [1]]),
    "epochs": ("count", [1, 3], []),
    "snapshots": ("snapshots", [[], [1]], [[0], [-1], [1.5], ["a"], [True], [None], [[1]]]),
    "batch": ("count", [1, 7, 25], [26, 1000]),
    "lr": ("positive", [0.1, 1], []),
    "optimizer": ("words", ["sgd", "adam"], []),
    "optimizer_args": (
        "mapping",
        [{"momentum": 0.5}],
        [
            {"momentum": math.nan},
            {"momentum": "a"},
            {"bogus": 1},
            {"momentum": -1},
            {"momentum": [1]},
            {1: 1},
            {"momentum": math.inf},
        ],
    ),
    "schedule": ("words", ["one_cycle", "cosine"], []),
    "augment": (
        "words",
        ["none", "crop", "flip+crop"],
        ["cropp", "crop+", "+", "crop+bogus", "none+crop"],
    ),
    "loss": ("words", ["cross_entropy"], []),
    "dtype": ("words", ["float32", "float64"], ["int8"]),
    "defense": ("words?", ["label_smoothing", None], ["dp_sgdd"]),
    "defense_args": ("mapping", [{}], [{"bogus": 1}, {1: 1}]),
    "parent": ("name?", [None], ["bogus", "0" * 64, "", "../..", "*"]),
}


def recipes(w: World, rng) -> Iterator[tuple]:
    for field, (kind, good, bad) in RECIPE.items():
        for name, value, expect in bad_values(kind, SCRAP | EXOTIC):
            use = (
                w.train
                if type(value) in (str, dict)
                and kind in ("name", "words", "mapping", "name?", "words?")
                else type
            )
            yield (
                f"Recipe({field}={name})",
                lambda f=field, v=value, use=use: use(Recipe(**TINY | {f: v})),
                expect,
            )
        for value in bad:
            yield (
                f"train_pool(Recipe({field}={short(value)}))",
                lambda f=field, v=value: w.train(Recipe(**TINY | {f: v})),
                "refused",
            )
        for value in good:
            yield (
                f"train_pool(Recipe({field}={short(value)}))",
                lambda f=field, v=value: (w.train(Recipe(**TINY | {f: v}))) and "",
                "accepted",
            )
    for name, value in (SCRAP | EXOTIC).items():
        yield f"Recipe.from_json({name})", lambda v=value: Recipe.from_json(v), "refused"
    yield "Recipe.from_json(unknown entry)", lambda: Recipe.from_json({"bogus": 1}), "refused"


# -----------------------------------------------------------------------------------------
# functions

ARGUMENTS = {  # kind: the arguments that are of it, whatever the function
    "thing": (
        "recipe images pool scores signals target references a b values runs stated texts attacks"
        " x y labels logits population attack info"
    ),
    "prefix": "prefix",
    "vector": "score",
    "mask": "member",
    "list": "canary",
    "fpr": "fpr",
    "seed": "seed",
    "index": "models targets",
    "n_resamples": "n_resamples permutations num_models num_samples queries",
    "inside": "confidence",
    "rate": "delta input_dropout",
    "count": ("limit attempts guesses canaries n1 n0 steps batch workers samples classes epoch"),
    "count0": "tp fp positives negatives correct num_population k",
    "words": "method design scheme accountant sampling strategy mask_scope output",
    "device": "device",
    "positive": "T temperature",
    "positive0": "noise_sd lipschitz clip noise_multiplier",
    "positive_inf": "checkpoint",
    "share": "sample_rate keep",
    "number": "threshold",
    "root": "root",
}
KINDS = {name: kind for kind, names in ARGUMENTS.items() for name in names.split()}


def functions(w: World, rng) -> Iterator[tuple]:
    """Every argument of every public function with every scrap."""
    for function, good, other in signatures(w):
        like = other.pop("like", function)
        name = f"{like.__module__.split('.')[-1]}.{like.__qualname__}"
        yield f"{name} as documented", lambda f=function, g=good: f(**g), "accepted"
        for argument, parameter in inspect.signature(like).parameters.items():
            if kind := other.get(argument, KINDS.get(argument)):
                kind += "?" if parameter.default is None else ""
                for scrap, value, expect in bad_values(kind, SCRAP):
                    call = partial(function, **good | {argument: value})
                    yield f"{name}({argument}={scrap})", call, expect
    yield from masks(w)


def signatures(w: World) -> list[tuple]:
    """(function, good arguments, {argument: its kind where that is another than usual})."""
    rng, s, y = np.random.default_rng(0), w.signals, w.images.y.numpy()
    v = {"score": rng.normal(size=50), "member": np.arange(50) % 2 == 0}
    scores, few = {"scores": w.rmia}, {"n_resamples": 20}
    counts = {"tp": 8, "positives": 10, "fp": 1, "negatives": 10}
    coins, z = data.bernoulli_membership(8, 60, seed=1), rng.normal(size=(8, 60, 3))
    tossed = attacks.score("loss", Signals.from_logits(z, y, coins))
    dp = {"sample_rate": 0.1, "steps": 10, "delta": 1e-5}
    flow = {"k": 0.5, "steps": 16, "T": 1.0}
    number, ends = (
        {"k": "positive0"},
        {"mu": "positive_inf*", "epsilon": "positive_inf*", "delta": "share*"},
    )
    some = {"num_models": 2, "num_samples": 60}
    return [
        (w.train_anew, {}, {"like": training.train_pool, "member": ""}),
        (
            w.ask_anew,
            {},
            {"like": query, "seed": "whole", "per_step": "info", "output_args": "info"},
        ),
        (training.load_pool, {"prefix": w.pool.key, "root": w.results}, {}),
        (w.pool.at, {"epoch": 1}, {}),
        (w.pool.state, {"model": 0}, {"model": "index"}),
        (store.folders, {"root": w.results}, {}),
        (store.find, {"prefix": w.pool.key, "root": w.results}, {}),
        (attacks.score, {"attack": "rmia", "target": s}, {}),
        (attacks.suite, {"k": 2}, {}),
        (attacks.literature, {"k": 2}, {"query_kind": "words"}),
        (s.select, {"models": [0]}, {"queries": "index", "samples": "index"}),
        (s.hold_out, {"target": 0}, {"target": "index"}),
        (Signals.from_logits, {"logits": z, "labels": y}, {"query_kind": "words", "info": "info"}),
        (metrics.auc, v, {}),
        (metrics.roc, v, {}),
        (metrics.tpr_at, v | {"fpr": 0.1}, {"fpr": "share"}),
        (advantage, v, {}),
        (null_advantage, {"n1": 5, "n0": 6}, {}),
        (
            metrics.clopper_pearson,
            {"successes": 3, "trials": 10},
            {"successes": "positive0*", "trials": "positive*"},
        ),
        (
            metrics.ppv,
            {"tpr": 0.5, "fpr": 0.1, "prior": 0.5},
            dict.fromkeys(("tpr", "fpr", "prior"), "share*"),
        ),
        (metrics.summary, scores | few, {}),
        (metrics.per_target, scores, {}),
        (metrics.intervals, scores | few, {}),
        (metrics.difference, {"a": w.rmia, "b": w.scores} | few, {}),
        (metrics.accuracies, scores, {}),
        (metrics.class_gaps, {"signals": s}, {}),
        (
            metrics.self_test,
            {"signals": s, "attacks": ["loss"], "n_resamples": 5},
            {"seed": "seed?", "samples": "count?"},
        ),
        (
            metrics.frontier,
            {"runs": {"a": {1: {"loss": w.scores}}}, "n_resamples": 5},
            {"n_resamples": "n_resamples0"},
        ),
        (memorisation, {"signals": s}, {}),
        (epsilon_lower, counts | {"delta": 1e-5}, {}),
        (
            one_run_epsilon,
            {"canaries": 50, "guesses": 50, "correct": 40, "delta": 1e-5},
            {},
        ),
        (one_run, v | {"delta": 1e-5}, {"seed": ""}),
        (auditing.audit, {"scores": tossed, "delta": 1e-5}, {"seed": ""}),
        (check_bernoulli, {"member": coins}, {"member": "list"}),
        (auditing.limits, {"texts": ["auc>0.6"]}, {"texts": "limits"}),
        (
            auditing.judge,
            {"stated": auditing.limits(["auc>0.6"]), "scores": {"rmia": w.rmia}} | few,
            {},
        ),
        (
            auditing.shift_guard,
            {"x": w.images.x.numpy(), "labels": y, "member": s.member[0]},
            {"seed": ""},
        ),
        (
            auditing.vulnerability,
            {"scores": replace(w.scores, info={"disjoint": True})},
            {},
        ),
        (auditing.canary_member, {"num_models": 4, "canary": y == 0}, {}),
        (auditing.canary_rates, {"scores": w.scores} | few, {"share": "rate"}),
        (data.paired_membership, some, {}),
        (data.bernoulli_membership, some, {}),
        (
            data.from_arrays,
            {"x": w.images.x.numpy(), "y": y},
            {"classes": "thing", "mean": "thing", "std": "thing", "canary": "thing"},
        ),
        (
            data.load,
            {"dataset": "digits", "limit": 200},
            {"dataset": "thing", "size": "thing"},
        ),
        (
            accounting.epsilon,
            dp | {"noise_multiplier": 1.0, "accountant": "rdp"},
            {"steps": "count0"},
        ),
        (
            accounting.noise_multiplier,
            dp | {"epsilon": 8.0},
            {"epsilon": "positive", "delta": "inside"},
        ),
        (accounting.gaussian_delta, {"mu": 1.0, "epsilon": 1.0}, ends),
        (accounting.gaussian_epsilon, {"mu": 1.0, "delta": 1e-5}, ends),
        (accounting.gaussian_mu, {"epsilon": 1.0, "delta": 1e-5}, ends),
        (accounting.nsde_sigma, flow, number),
        (
            accounting.theorem_epsilon,
            {"noise_sd": 1.0, "T": 1.0, "lipschitz": 1.0, "delta": 1e-5},
            {},
        ),
        (accounting.release_mu, flow | {"lipschitz": 1.0, "clip": 1.0}, number),
        (accounting.response_epsilon, {"keep": 0.5, "classes": 3}, {}),
        (accounting.tradeoff, {"fpr": 0.1, "epsilon": 1.0}, ends | {"fpr": "share*", "mu": ""}),
    ]


def masks(w: World) -> Iterator[tuple]:
    """Given members that are none."""
    given = Recipe(**TINY | {"split": "given", "population": 0})
    pairs = data.paired_membership(4, 60)
    bad = {
        "floats": np.where(pairs, 0.7, 0.2),
        "NaN": np.where(pairs, 1, math.nan),
        "text": np.where(pairs, "yes", "no"),
        "all": np.ones((4, 60), bool),
        "nobody": np.zeros((4, 60), bool),
        "minus one": np.where(pairs, 1, -1),
        "one row": pairs[0],
        "transposed": pairs.T,
    }
    for name, member in bad.items():
        yield f"train_pool(member={name})", lambda m=member: w.train(given, member=m), "refused"
    same = np.repeat(pairs[:1], 4, 0)
    yield "train_pool(member=equal rows)", lambda: w.train(given, member=same) and "", "any"
    yield "train_pool(member=pairs)", lambda: w.train(given, member=pairs) and "", "accepted"


# -------------------------------------------------------------------------------------- command
# line

WORDS = (
    "",
    "a",
    "../..",
    "/",
    "/dev/zero",
    "\0",
    "ü" * 5000,
    "-1",
    "nan",
    "1e30",
    "*",
    "a\nb",
    "\udcff",
)
YAMLS = (
    "",
    "[",
    "a: b: c",
    "&a {b: *a}",
    "&a [*a, *a]",
    "[" * 100 + "]" * 100,
    "{a: " * 100 + "}" * 100,
    "1e30",
    "nan",
    ".inf",
    "-.inf",
    "null",
    "true",
    "-1",
    "0",
    "a",
    "2020-01-01",
    "0x10",
    "1.5",
    "{1: 2}",
    "*x",
    "!!python/object/apply:os.system ['touch victim']",
    "[1, a, {b: [2]}]",
    "'",
    "\0",
    "a" * 10**6,
    "!!binary gIGC",
    "/",
    "/dev/zero",
    "[" * 5000,
    (
        "{a: &a [x,x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c"
        " [*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c], e: [*d,*d,*d,*d,*d,*d,*d]}"
    ),
)
ABSURD = (YAMLS[1], *YAMLS[3:7], "[" * 5000, "*x", YAMLS[21])


def commands(w: World, rng) -> Iterator[tuple]:
    """Every option of `mia-nb` with words that are not what it wants."""
    at = ("--results", str(w.results))
    key = w.pool.key[:12]
    forms = {
        "show {}": "refused",
        "report {}": "refused",
        "params {}": "any",
        "run {}": "any",
        "run train --preset {}": "refused",
        "run train --workers {}": "any",
        "run train --backend {}": "refused",
        "audit --pool {}": "any",
        "audit --logits {}": "refused",
        "audit --model {} --data digits": "any",
        "audit --model tinycnn --data {}": "any",
        f"audit --pool {key} --fail-if {{}}": "refused",
        "audit --model tinycnn --data digits --epochs {}": "any",
        "audit --model tinycnn --data digits --models {}": "any",
        "clean --older-than {}": "any",
        "explore --port {} --no-browser --bogus": "refused",
        "{}": "refused",
        "run train {}": "any",
        "run --notebooks {} train": "any",
        "clean {}": "any",
    }
    for form, expect in forms.items():
        for word in WORDS:
            argv = [word if part == "{}" else part for part in form.split()]
            fine = expect if word or form in ("{}", "run train --preset {}") else "any"
            yield f"mia-nb {' '.join(argv)[:60]!r}", command(*argv, *(at if argv[0] else ())), fine
    for word in WORDS[:8] + WORDS[10:]:
        for name in ("list", "doctor", "report", "clean"):
            yield f"mia-nb {name} --results {word[:20]!r}", command(name, "--results", word), "any"
    for notebook in ("train", "audit_your_model"):
        path = notebooks.find_notebook(notebook, notebooks.folders())
        for name, kinds, *_ in described(read_parameters(path)):
            name = name.strip()  # fields of a record stand below it
            for text in YAMLS:
                whole = ("epochs", "num_models", "batch", "population")
                late = text in ABSURD and "str" not in kinds
                late |= name in whole and text in (
                    "1e30",
                    "nan",
                    ".inf",
                    "-.inf",
                    "1.5",
                    "a",
                    "true",
                )
                late |= name in ("lr", "delta") and text in ("nan", ".inf", "a")
                argv = ("run", notebook, "-p", f"{name}={text}")
                argv += ("-p", f"pool={key}") if notebook[0] == "a" and name != "pool" else ()
                yield (
                    f"mia-nb run {notebook} -p {name}={text[:40]!r}",
                    command(*argv, *at),
                    "refused" if late else "any",
                )
    for words in ("-p", "-p a", "-p epochs", "-p epochs=1 -p epochs=2", "-p =1", "-p epochs 3 4"):
        yield f"mia-nb run train {words}", command("run", "train", *words.split(), *at), "any"


CATEGORIES = {
    "recipes": (recipes, 60),
    "functions": (functions, 150),
    "commands": (commands, 60),
}
