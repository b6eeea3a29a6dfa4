"""Bad inputs as tables: what each argument is, and the values that are not that; command lines; files from strangers."""

from __future__ import annotations

import inspect
import json
import math
import os
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import yaml
from faults import IDLE, command
from faults_stores import TINY, World
from PIL import Image

from mia_nb import accounting, attacks, auditing, data, metrics, store, training
from mia_nb.cli import notebooks
from mia_nb.types import Recipe, Signals

CYCLE: dict = {"a": 1}
CYCLE["b"] = CYCLE
NEST: list = []
for _ in range(5000):
    NEST = [NEST]
SCRAP = {"text": "bogus", "digits": "4", "empty": "", "none": None, "nan": math.nan, "inf": math.inf,
         "minus inf": -math.inf, "true": True, "minus": -1, "zero": 0, "fraction": 1.5, "two": 2,
         "huge": 10**30, "list": [1], "mapping": {"a": 1}, "cycle": CYCLE, "nest": NEST, "bytes": b"a",
         "object": object(), "complex": 1j, "array": np.zeros((2, 2)), "set": {1}, "type": int}  # fmt: skip
EXOTIC = {"true", "cycle", "nest", "bytes", "object", "complex", "set", "type"}  # in recipes alone
COUNT = {"two", "huge"}
FINE = {  # which scraps an argument of this kind may accept; all others are to be refused
    "count": COUNT, "count0": COUNT | {"zero"}, "draws": {"two"}, "draws0": {"two", "zero"}, "seed": {"zero", "two", "huge", "digits",
    "list"}, "number": {"minus", "zero", "fraction", "two", "huge", "inf", "minus inf", "list"},
    "positive": {"fraction", "two", "huge"}, "positive0": {"fraction", "two", "huge", "zero"},
    "positive_inf": {"fraction", "two", "huge", "zero", "inf"}, "rate": {"zero"}, "share": {"zero"},
    "index": {"list", "zero", "minus", "two", "none"}, "fpr": {"zero", "list"}, "device": {"empty", "zero",
    "none"}, "mapping": {"mapping"}, "info": {"mapping", "zero", "empty"}, "snapshots": {"list"},
    "list": {"list", "array"}, "whole": COUNT | {"zero"},
}  # fmt: skip
LEFT_OUT = {"draws": {"huge"}, "draws0": {"huge"}, "root": {"text", "digits", "empty"}}  # slow as said; folders of that name
NUMBERS = ("count", "count0", "whole", "positive")
MORE = {  # bad values that only this kind of argument has
    "vector": {"text items": ["a"] * 50, "NaN": [math.nan] * 50, "short": [0.5], "square": np.eye(50)},
    "mask": {"text items": ["a"] * 50, "shares": np.linspace(0, 1, 50), "NaN": [math.nan] * 50,
             "minus one": [-1, 1] * 25, "short": [True]},
    "fpr": {"above 1": (0.1, 2), "text items": ("a",), "NaN": (math.nan,), "negative": (-0.1,)},
}  # fmt: skip


def short(value) -> str:
    try:
        return " ".join(repr(value).split())[:40]
    except RecursionError:
        return "a nest"


def bad_values(kind: str, exotic: bool = False) -> Iterator[tuple[str, object, str]]:
    """(name, value, expectation) of every scrap for an argument of this kind. "?" at its end lets None pass, "*" arrays."""
    plain = kind.rstrip("?*")
    fine = FINE.get(plain, set()) | ({"none"} if "?" in kind else set())
    fine |= {"list", "array"} if "*" in kind else set()
    for name, value in SCRAP.items():
        if name not in LEFT_OUT.get(plain, ()) and (exotic or name not in EXOTIC):
            yield name, value, "any" if name in fine else "refused"
    for name, value in MORE.get(plain, {}).items():
        yield name, value, "refused"
    if plain == "fpr":
        yield "one rate", 0.1, "any"


# ------------------------------------------------------------------------------------------- recipes

RECIPE = {  # field: its kind, good values, bad values of the right type
    "model": ("name", ["tinycnn"], ["", "bogus", "os:system", "json:loads", "a:b:c", "\0"]),
    "model_args": ("mapping", [{}], [{"bogus": 1}, {"width": "a"}, {"width": -1}, {"width": 10**12},
                                     {1: 2}, {"width": math.nan}, {"width": object()}]),
    "num_models": ("count", [2, 4], [3, 10**30 + 1]),
    "split": ("words", ["pairs", "bernoulli"], ["given"]),
    "population": ("count0", [0, 10], [59, 60, 1000]),
    "seed": ("whole", [0, 1, 2**40], ["4", [1]]),
    "epochs": ("count", [1, 3], []),
    "snapshots": ("snapshots", [[], [1]], [[0], [-1], [1.5], ["a"], [True], [None], [[1]]]),
    "batch": ("count", [1, 7, 25], [26, 1000]),
    "lr": ("positive", [0.1, 1], []),
    "optimizer": ("words", ["sgd", "adam"], []),
    "optimizer_args": ("mapping", [{"momentum": 0.5}], [{"momentum": math.nan}, {"momentum": "a"},
                       {"bogus": 1}, {"momentum": -1}, {"momentum": [1]}, {1: 1}, {"momentum": math.inf}]),
    "schedule": ("words", ["one_cycle", "cosine"], []),
    "augment": ("words", ["none", "crop", "flip+crop"], ["cropp", "crop+", "+", "crop+bogus", "none+crop"]),
    "loss": ("words", ["cross_entropy"], []),
    "dtype": ("words", ["float32", "float64"], ["int8"]),
    "defense": ("words?", ["label_smoothing", None], ["dp_sgdd"]),
    "defense_args": ("mapping", [{}], [{"bogus": 1}, {1: 1}]),
    "parent": ("name?", [None], ["bogus", "0" * 64, "", "../..", "*"]),
}  # fmt: skip


def recipes(w: World, rng) -> Iterator[tuple]:
    for field, (kind, good, bad) in RECIPE.items():
        for name, value, expect in bad_values(kind, exotic=True):
            use = w.train if type(value) in (str, dict) and kind not in NUMBERS else type
            yield (f"Recipe({field}={name})",
                   lambda f=field, v=value, use=use: use(Recipe(**TINY | {f: v})), expect)  # fmt: skip
        for value in bad:
            yield (f"train_pool(Recipe({field}={short(value)}))",
                   lambda f=field, v=value: w.train(Recipe(**TINY | {f: v})), "refused")  # fmt: skip
        for value in good:
            yield (f"train_pool(Recipe({field}={short(value)}))", lambda f=field, v=value: (
                w.train(Recipe(**TINY | {f: v}))) and "", "accepted")  # fmt: skip
    for name, value in SCRAP.items():
        yield f"Recipe.from_json({name})", lambda v=value: Recipe.from_json(v), "refused"
    yield "Recipe.from_json(unknown entry)", lambda: Recipe.from_json({"bogus": 1}), "refused"


# ----------------------------------------------------------------------------------------- functions


def functions(w: World, rng) -> Iterator[tuple]:
    """Every argument of every public function with every scrap."""
    for where, good, kinds in signatures(w):
        function, name = where, where.__module__.split(".")[-1] + "." + where.__qualname__
        yield f"{name} as documented", lambda f=function, g=good: run_through(f(**g)), "accepted"
        for argument, kind in kinds.items():
            for scrap, value, expect in bad_values(kind):
                yield (f"{name}({argument}={scrap})",
                       lambda f=function, g=good, a=argument, v=value: run_through(f(**g | {a: v})),
                       expect)  # fmt: skip
    yield from masks(w)


def run_through(result):
    """The result; of an iterator all of it."""
    return list(result) if inspect.isgenerator(result) else result


def signatures(w: World) -> list[tuple]:
    """(function, good arguments, {argument: kind})."""
    rng = np.random.default_rng(0)
    score, member = rng.normal(size=50), np.arange(50) % 2 == 0
    pair = {"score": "vector", "member": "mask"}
    v = {"score": score, "member": member}
    s, logits = w.signals, rng.normal(size=(2, 60, 3))
    labels, two = w.images.y.numpy(), {"draws": 20, "seed": 0}
    drawn = {"draws": "draws", "seed": "seed"}
    counts = {"tp": 8, "positives": 10, "fp": 1, "negatives": 10}
    whole = dict.fromkeys(counts, "count0")
    level = {"confidence": "inside"}
    dp = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5}
    dp_kinds = {"noise_multiplier": "positive0", "sample_rate": "share", "steps": "count0", "delta": "rate"}
    coins = data.bernoulli_membership(8, 60, seed=1)
    margin = rng.normal(size=(8, 1, 60)) + coins[:, None]
    bernoulli = attacks.score("loss", Signals.from_logits(
        np.stack([margin[:, 0], -margin[:, 0], 0 * margin[:, 0]], -1), np.zeros(60, int), coins))  # fmt: skip
    nsde = {"k": 0.5, "steps": 16, "T": 1.0}
    flows = {"k": "positive0", "steps": "count", "T": "positive"}
    theorem = {"noise_sd": 1.0, "T": 1.0, "lipschitz": 1.0, "delta": 1e-5}
    of = {"noise_sd": "positive0", "T": "positive", "lipschitz": "positive0", "delta": "rate"}
    return [
        (w.train_anew, {}, {"recipe": "thing", "images": "thing", "root": "root", "device": "device",
         "strategy": "words", "workers": "count?", "checkpoint": "positive_inf"}),
        (w.ask_anew, {}, {"pool": "thing", "images": "thing", "models": "index", "limit": "count?",
         "queries": "draws", "input_dropout": "rate", "mask_scope": "words", "per_step": "info",
         "temperature": "positive", "output": "words?", "output_args": "info?", "batch": "count",
         "seed": "whole", "device": "device"}),
        (training.load_pool, {"prefix": w.pool.key, "root": w.results}, {"prefix": "thing", "root": "thing"}),
        (training.estimate, {"recipe": w.recipe, "images": w.images, "limit": 0.2}, {"recipe": "thing",
         "images": "thing", "device": "device", "strategy": "words"}),
        (w.pool.at, {"epoch": 1}, {"epoch": "count"}),
        (w.pool.state, {"model": 0}, {"model": "index"}),
        (store.folders, {"root": w.results}, {"root": "root"}),
        (store.find, {"prefix": w.pool.key, "root": w.results}, {"prefix": "thing", "kind": "words?"}),
        (attacks.score, {"attack": "rmia", "target": s}, {"attack": "words", "target": "thing",
         "references": "thing?", "targets": "index"}),
        (attacks.suite, {"k": 2}, {"k": "count0"}),
        (attacks.literature, {"k": 2}, {"k": "count0", "queries": "count", "draws": "words"}),
        (s.select, {"models": [0]}, {"models": "index", "queries": "index", "samples": "index"}),
        (s.hold_out, {"target": 0}, {"target": "index"}),
        (Signals.from_logits, {"logits": logits, "labels": labels}, {"logits": "thing", "labels": "thing",
         "member": "thing?", "population": "thing?", "temperature": "positive", "draws": "words",
         "info": "info?"}),
        (metrics.auc, v, pair), (metrics.roc, v, pair),
        (metrics.tpr_at, v | {"fpr": 0.1}, pair | {"fpr": "share"}),
        (metrics.advantage, v, pair | {"threshold": "number?"}),
        (metrics.balanced_accuracy, v, pair | {"threshold": "number?"}),
        (metrics.null_advantage, {"n1": 5, "n0": 6}, {"n1": "count", "n0": "count"}),
        (metrics.auc_null_error, {"n1": 5, "n0": 6}, {"n1": "count", "n0": "count"}),
        (metrics.clopper_pearson, {"successes": 3, "trials": 10}, {"successes": "positive0*",
         "trials": "positive*", "confidence": "inside"}),
        (metrics.ppv, {"tpr": 0.5, "fpr": 0.1, "prior": 0.5}, dict.fromkeys(("tpr", "fpr", "prior"), "share*")),
        (metrics.summary, {"scores": w.rmia, **two}, {"scores": "thing", "fpr": "fpr", **drawn}),
        (metrics.per_target, {"scores": w.rmia}, {"scores": "thing", "fpr": "fpr"}),
        (metrics.intervals, {"scores": w.rmia, **two}, {"scores": "thing", "fpr": "fpr", **level, **drawn}),
        (metrics.difference, {"a": w.rmia, "b": w.scores, **two}, {"a": "thing", "b": "thing", **drawn}),
        (metrics.accuracies, {"scores": w.rmia}, {"scores": "thing"}),
        (metrics.class_gaps, {"signals": s}, {"signals": "thing"}),
        (metrics.self_test, {"signals": s, "attacks": ["loss"], "draws": 5}, {"signals": "thing",
         "attacks": "thing", "draws": "draws", "seed": "seed?", "samples": "count?"}),
        (metrics.frontier, {"runs": {"a": {1: {"loss": w.scores}}}, "draws": 5}, {"runs": "thing",
         "fpr": "fpr", "draws": "draws0", "seed": "seed"}),
        (metrics.exposure, {"signals": s}, {"signals": "thing", "attack": "words?"}),
        (auditing.epsilon_lower, counts | {"delta": 1e-5}, whole | level | {"delta": "rate"}),
        (auditing.mu_lower, counts, whole | level),
        (auditing.population_level, {"scores": w.scores, "delta": 1e-5}, {"scores": "thing", "fpr": "fpr",
         "delta": "rate", **level}),
        (auditing.one_run_epsilon, {"canaries": 50, "guesses": 50, "correct": 40, "delta": 1e-5},
         {"canaries": "count", "guesses": "count", "correct": "count0", "delta": "rate",
          "method": "words", **level}),
        (auditing.one_run, v | {"delta": 1e-5}, pair | {"delta": "rate", "guesses": "count?",
         "method": "words", **level}),
        (auditing.audit, {"scores": bernoulli, "delta": 1e-5}, {"scores": "thing", "delta": "rate",
         "method": "words", "attempts": "count", "guesses": "count?", "canary": "thing?", **level}),
        (auditing.check_bernoulli, {"member": coins}, {"member": "list"}),
        (auditing.limits, {"texts": ["auc>0.6"]}, {"texts": "thing"}),
        (auditing.judge, {"stated": auditing.limits(["auc>0.6"]), "scores": {"rmia": w.rmia}, "draws": 20},
         {"stated": "thing", "scores": "thing", "delta": "rate", **drawn}),
        (auditing.shift_guard, {"x": w.images.x.numpy(), "labels": labels, "member": s.member[0]},
         {"x": "thing", "labels": "thing", "member": "thing", "components": "count", "folds": "count",
          "seed": "seed?", "samples": "count?"}),
        (auditing.stability, {"values": {"a": rng.normal(size=(3, 50))}, "member": member},
         {"values": "thing", "member": "mask", "fpr": "inside"}),
        (auditing.vulnerability, {"scores": w.scores, "permutations": 20, "disjoint": True}, {"scores": "thing",
         "rate": "inside", "permutations": "draws"}),
        (auditing.canary_labels, {"labels": labels, "canary": labels == 0, "classes": 3},
         {"labels": "thing", "canary": "thing", "classes": "count", "seed": "seed"}),
        (auditing.canary_member, {"num_models": 4, "canary": labels == 0}, {"num_models": "draws",
         "canary": "list", "design": "words", "population": "thing?", "seed": "seed"}),
        (auditing.canary_rates, {"scores": w.scores, "draws": 20}, {"scores": "thing", "fpr": "fpr",
         "canary": "thing?", "share": "inside?", **drawn}),
        (data.paired_membership, {"num_models": 2, "num_samples": 60}, {"num_models": "draws",
         "num_samples": "draws", "labels": "thing?", "num_population": "count0", "seed": "seed"}),
        (data.bernoulli_membership, {"num_models": 2, "num_samples": 60}, {"num_models": "draws",
         "num_samples": "draws", "labels": "thing?", "num_population": "count0", "seed": "seed"}),
        (data.from_arrays, {"x": w.images.x.numpy(), "y": labels}, {"x": "thing", "y": "thing",
         "classes": "thing?", "mean": "thing?", "std": "thing?", "canary": "thing?"}),
        (data.load, {"name_or_path": "digits", "limit": 200}, {"name_or_path": "thing", "limit": "count?",
         "size": "thing?", "seed": "seed?"}),
        (accounting.epsilon, dp | {"accountant": "rdp"}, dp_kinds | {"accountant": "words",
         "sampling": "words"}),
        (accounting.noise_multiplier, {"epsilon": 8.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5},
         {"epsilon": "positive", "sample_rate": "share", "steps": "count", "delta": "inside"}),
        (accounting.gaussian_delta, {"mu": 1.0, "epsilon": 1.0}, {"mu": "positive_inf*",
         "epsilon": "positive_inf*"}),
        (accounting.gaussian_epsilon, {"mu": 1.0, "delta": 1e-5}, {"mu": "positive_inf*", "delta": "share*"}),
        (accounting.gaussian_mu, {"epsilon": 1.0, "delta": 1e-5}, {"epsilon": "positive_inf*",
         "delta": "share*"}),
        (accounting.nsde_sigma, nsde, flows),
        (accounting.theorem_epsilon, theorem, of),
        (accounting.release_mu, nsde | {"lipschitz": 1.0, "clip": 1.0}, flows | {"lipschitz": "positive0",
         "clip": "positive0", "scheme": "words", "queries": "count"}),
        (accounting.response_epsilon, {"keep": 0.5, "classes": 3}, {"keep": "share", "classes": "count"}),
        (accounting.tradeoff, {"fpr": 0.1, "epsilon": 1.0}, {"fpr": "share*", "epsilon": "positive_inf*",
         "delta": "share"}),
    ]  # fmt: skip


def masks(w: World) -> Iterator[tuple]:
    """Given members that are none."""
    given = replace(w.recipe, split="given", population=0)
    pairs = data.paired_membership(4, 60)
    bad = {"floats": np.where(pairs, 0.7, 0.2), "NaN": np.where(pairs, 1, math.nan), "text":
           np.where(pairs, "yes", "no"), "all": np.ones((4, 60), bool), "nobody": np.zeros((4, 60), bool),
           "minus one": np.where(pairs, 1, -1), "one row": pairs[0], "transposed": pairs.T}  # fmt: skip
    for name, member in bad.items():
        yield f"train_pool(member={name})", lambda m=member: w.train(given, member=m), "refused"
    same = np.repeat(pairs[:1], 4, 0)
    yield "train_pool(member=equal rows)", lambda: w.train(given, member=same) and "", "told"
    yield "train_pool(member=pairs)", lambda: w.train(given, member=pairs) and "", "accepted"


# -------------------------------------------------------------------------------------- command line

WORDS = ("", "a", "../..", "/", "/dev/zero", "\0", "ü" * 5000, "-1", "nan", "1e30", "0", "*", "a\nb", "\udcff")
YAMLS = ("", "[", "a: b: c", "&a {b: *a}", "&a [*a, *a]", "[" * 100 + "]" * 100, "{a: " * 100 + "}" * 100,
         "1e30", "nan", ".inf", "-.inf", "null", "true", "-1", "0", "a", "2020-01-01", "0x10", "1.5", "{1: 2}",
         "*x", "!!python/object/apply:os.system ['touch victim']", "[1, a, {b: [2]}]", "'", "\0", "a" * 10**6,
         "!!binary gIGC", "/", "/dev/zero", "[" * 5000,
         "{a: &a [x,x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b],"
         " d: &d [*c,*c,*c,*c,*c,*c,*c,*c], e: &e [*d,*d,*d,*d,*d,*d,*d], f: [*e,*e,*e,*e,*e,*e,*e]}")  # fmt: skip
ABSURD = (YAMLS[1], *YAMLS[3:7], "[" * 5000, "*x", YAMLS[21])


def commands(w: World, rng) -> Iterator[tuple]:
    """Every option of `mia-nb` with words that are not what it wants."""
    at = ("--results", str(w.results))
    key = w.pool.key[:12]
    forms = {"show {}": "refused", "report {}": "refused", "params {}": "any", "run {}": "any",
             "run train --preset {}": "refused", "run train --workers {}": "any",
             "run train --engine {}": "refused", "estimate --preset {}": "refused", "audit --pool {}": "any",
             "audit --logits {}": "refused", "audit --model {} --data digits": "any",
             "audit --model tinycnn --data {}": "any", f"audit --pool {key} --fail-if {{}}": "refused",
             "audit --model tinycnn --data digits --epochs {}": "any",
             "audit --model tinycnn --data digits --models {}": "any", "clean --older-than {}": "any",
             "explore --port {} --no-browser --bogus": "refused", "{}": "refused", "run train {}": "any",
             "run --notebooks {} train": "any", "clean {}": "any"}  # fmt: skip
    for form, expect in forms.items():
        for word in WORDS:
            argv = [word if part == "{}" else part for part in form.split()]
            fine = expect if word or form in ("{}", "run train --preset {}") else "any"
            yield f"mia-nb {' '.join(argv)[:60]!r}", command(*argv, *(at if argv[0] else ())), fine
    for word in WORDS[:8] + WORDS[11:]:
        for name in ("list", "doctor", "report", "clean"):
            yield f"mia-nb {name} --results {word[:20]!r}", command(name, "--results", word), "any"
    for notebook in ("train", "audit_your_model"):
        path = notebooks.find_notebook(notebook, notebooks.folders())
        for name, parameter in notebooks.read_parameters(path).items():
            for text in YAMLS:
                whole = ("epochs", "num_models", "batch", "population", "limit", "queries", "draws")
                late = text in ABSURD and parameter.kinds != ("str",) and "str" not in parameter.kinds
                late |= name in whole and text in ("1e30", "nan", ".inf", "-.inf", "-1", "1.5", "a", "true")
                late |= name in ("lr", "delta") and text in ("nan", ".inf", "-1", "a")
                argv = ("run", notebook, "-p", f"{name}={text}")
                argv += ("-p", f"pool={key}") if notebook[0] == "a" and name != "pool" else ()
                yield (f"mia-nb run {notebook} -p {name}={text[:40]!r}", command(*argv, *at),
                       "refused" if late else "any")  # fmt: skip
    for words in ("-p", "-p a", "-p epochs", "-p epochs=1 -p epochs=2", "-p =1", "-p epochs 3 4"):
        yield f"mia-nb run train {words}", command("run", "train", *words.split(), *at), "any"


# ---------------------------------------------------------------------------------------------- files


def files(w: World, rng) -> Iterator[tuple]:
    """Image folders, archives and outputs of strangers; each is made just before it is read."""
    made = w.place / "tmp" / "made"
    for name, (make, expect, *rest) in folders().items():
        size = rest[0] if rest else None
        yield (f"a folder with {name}", partial(read_folder, made, size), expect, partial(start, made, make))
    for name, (make, expect, seconds) in archives().items():
        yield (f"an npz with {name}", lambda: data.load(made.with_suffix(".npz"), root=w.place / "cache")
               and "", expect, partial(make, made.with_suffix(".npz")), seconds)  # fmt: skip
    for name, (make, expect) in outputs().items():
        yield (f"outputs with {name}", lambda: read(made.with_suffix(".npz")), expect,
               partial(make, made.with_suffix(".npz")))  # fmt: skip
    for name in ("synthetic:n=-1", "synthetic:size=100000", "synthetic:a=1", "synthetic:n=a", "synthetic:n",
                 "synthetic:n=1e3", "synthetic:noise=nan", "synthetic:noise=inf", "synthetic:channels=9",
                 "synthetic:n=100000000000", "synthetic:classes=1", "synthetic:seed=-1", "imagenet", "",
                 "/dev/zero", "\0", "a.npz", "cifar10", "tiny_imagenet"):  # fmt: skip
        yield f"data.load({name!r})", lambda n=name: data.load(n, root=w.place / "cache"), "refused"


def read(path: Path) -> str:
    """Outputs as the audit takes them; what was doubted about them is said by a warning or beside them."""
    import warnings

    found = auditing.read_outputs(path)
    for doubt in found.signals.info.get("doubts", ()):
        warnings.warn(doubt, stacklevel=2)
    return ""


def read_folder(path: Path, size: int | None) -> str:
    images = data.load(path, root=path.parent, size=size)
    if "turned" in os.listdir(path) and images.x.shape[2:] != (8, 4):
        raise AssertionError(f"stored turned, read as {tuple(images.x.shape)}")
    return ""


def start(path: Path, make) -> None:
    """Two classes of three pictures each, and then something else."""
    rng = np.random.default_rng(0)
    for n in range(6):
        file = path / f"class{n % 2}" / f"{n}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8)).save(file)
    make(path)


def folders() -> dict[str, tuple]:
    """{what: (how to put it there, expectation, size)}."""

    def put(name: str, content: bytes):
        return lambda p: (p / "class0" / name).write_bytes(content)

    def picture(image: Image.Image, **how) -> bytes:
        image.save(buffer := BytesIO(), how.pop("format", "PNG"), **how)
        return buffer.getvalue()

    def png(width: int, height: int) -> bytes:  # of one colour, written without holding it
        def chunk(kind: bytes, body: bytes) -> bytes:
            return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

        packer, row = zlib.compressobj(1), b"\0" * (1 + width * 3)
        body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")

    def twins(first: str, second: str):
        def make(p: Path):
            os.rename(p / "class0", p / first)
            os.rename(p / "class1", p / second)

        return make

    def turned(p: Path):
        for file in list(p.glob("*/*.png")):
            exif = Image.Exif()
            exif[0x0112] = 6
            Image.fromarray(np.zeros((4, 8, 3), np.uint8)).save(file.with_suffix(".jpg"), exif=exif)
            file.unlink()
        (p / "turned").touch()

    small = picture(Image.new("RGB", (4, 4)))
    accent = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    frames = [Image.new("P", (4, 4), n) for n in range(3)]
    return {
        "nothing odd": (lambda p: None, "accepted"), "a size": (lambda p: None, "accepted", 8),
        "a truncated picture": (put("x.png", small[:40]), "refused"),
        "an empty picture": (put("x.png", b""), "refused"),
        "text named png": (put("x.png", b"hello"), "refused"),
        "a FIFO": (lambda p: os.mkfifo(p / "class0" / "x.png"), "refused"),
        "a FIFO as a class": (lambda p: os.mkfifo(p / "class9"), "any"),
        "a link to itself": (lambda p: (p / "class0" / "x.png").symlink_to("x.png"), "refused"),
        "a link to /dev/zero": (lambda p: (p / "class0" / "x.png").symlink_to("/dev/zero"), "refused"),
        "a class that links to its parent": (lambda p: (p / "loop").symlink_to(p), "refused"),
        "a folder named png": (lambda p: (p / "class0" / "x.png").mkdir(), "any"),
        "13,000 x 13,000 pixels": (put("x.png", png(13_000, 13_000)), "refused"),
        "13,000 x 13,000 pixels and a size": (put("x.png", png(13_000, 13_000)), "any", 8),
        "30,000 x 30,000 pixels": (put("x.png", png(30_000, 30_000)), "refused"),
        "other sizes": (put("x.png", picture(Image.new("RGB", (5, 4)))), "refused"),
        "other sizes and a size": (put("x.png", picture(Image.new("RGB", (5, 4)))), "accepted", 4),
        "a size of 10^9": (lambda p: None, "refused", 10**9), "a size of 0": (lambda p: None, "refused", 0),
        "16 bits": (put("x.png", picture(Image.fromarray(np.ones((4, 4), np.uint16)))), "refused"),
        "CMYK": (put("x.jpg", picture(Image.new("CMYK", (4, 4)), format="JPEG")), "any"),
        "moving pictures": (put("x.gif", picture(frames[0], format="GIF", save_all=True,
                                                 append_images=frames[1:])), "any"),
        "transparency": (put("x.png", picture(Image.new("RGBA", (4, 4)))), "any"),
        "EXIF orientation": (turned, "accepted"), "an empty class": (lambda p: (p / "z").mkdir(), "refused"),
        "case twins": (twins("Cat", "cat"), "told"), "Unicode twins": (twins(*accent), "told"),
        "a name with a line break": (put("x\ny.png", b"hello"), "refused"),
        "a name that is not UTF-8": (put("\udcff.png", small), "accepted"),
        "a bad name that is not UTF-8": (put("\udcff.png", b"hello"), "refused"),
        "classes inside a class": (lambda p: os.rename(p / "class0", p / "class1" / "class0"), "refused"),
        "a name of 200 letters": (put("x" * 200 + ".png", b"a"), "refused"),
        "10,000 hidden files": (lambda p: [(p / "class0" / f".{n}.png").touch() for n in range(10_000)],
                                "accepted"),
    }  # fmt: skip


def archives() -> dict[str, tuple]:
    """{what: (how to write the .npz, expectation, seconds)}."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (30, 8, 8), np.uint8), np.arange(30) % 3
    fine = {"train_images": x, "train_labels": y}

    def saved(pickled: bool = False, **arrays):
        given = {k: v for k, v in (fine | arrays).items() if v is not None}
        return lambda path: np.savez(path, allow_pickle=pickled, **given)

    def member(name: str, shape: tuple, content: bytes = b"", times: int = 1):
        def make(path: Path):
            saved(**{name: None} if name in fine else {})(path)
            head = {"descr": "|u1", "fortran_order": False, "shape": shape}
            with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, \
                    archive.open(f"{name}.npy", "w", force_zip64=True) as file:  # fmt: skip
                np.lib.format.write_array_header_1_0(file, head)
                for _ in range(times):
                    file.write(content)

        return make

    def raw(content: bytes):
        return lambda path: path.write_bytes(content)

    def text_member(path: Path):
        saved(train_labels=None)(path)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("train_labels", "hello")

    def cut(path: Path):
        saved()(path)
        os.truncate(path, path.stat().st_size // 2)

    np.save(buffer := BytesIO(), x)
    block, soon = b"\0" * (1 << 20), 20.0
    table = {
        "nothing odd": (saved(), "accepted"), "big-endian labels": (saved(train_labels=y.astype(">i4")), "accepted"),
        "labels (N, 1)": (saved(train_labels=y[:, None]), "accepted"),
        "column order": (saved(train_images=np.asfortranarray(x)), "accepted"),
        "16-bit numbers below 256": (saved(train_images=x.astype(np.uint16)), "accepted"),
        "class names": (saved(classes=np.array(["a", "b", "c"])), "accepted"),
        "float images to 1": (saved(train_images=x / 255), "accepted"),
        "a claim of 300 TB": (member("train_images", (10**9, 300, 1000)), "refused"),
        "an unrelated claim of 300 TB": (member("other", (10**9, 300, 1000)), "accepted"),
        "a negative shape": (member("train_images", (-3, 8, 8)), "refused"),
        "an .npy's content": (raw(buffer.getvalue()), "refused"), "no content": (raw(b""), "refused"),
        "junk": (raw(b"\xff" * 1000), "refused"), "half of it": (cut, "refused"),
        "a FIFO's place": (os.mkfifo, "refused"), "a folder's place": (Path.mkdir, "refused"),
        "a link to /dev/zero": (lambda path: path.symlink_to("/dev/zero"), "refused"),
        "a member that is no array": (text_member, "refused"),
        "bool labels": (saved(train_labels=y > 0), "told"),
        "dark floats": (saved(train_images=x / 255 * 1.5), "told"),
        "classes without dimension": (saved(classes=np.array("a")), "refused"),
        "too few classes": (saved(classes=np.array(["a", "b"])), "refused"),
        "the same class twice": (saved(classes=np.array(["a", "a", "b"])), "told"),
        "pickled labels": (saved(True, train_labels=np.array([{}] * 30, object)), "refused"),
        "pickled classes": (saved(True, classes=np.array([{}] * 3, object)), "refused"),
    }  # fmt: skip
    images = {"NaN": np.full((30, 8, 8), math.nan), "infinite": np.full((30, 8, 8), math.inf), "negative": x - 300.0,
              "too large": x * 3.0, "complex": x * 1j, "text": np.full((30, 8, 8), "a"), "flat": x.reshape(30, 64),
              "five axes": x[:, None, None, None], "7 channels": np.repeat(x[..., None], 7, 3), "no": x[:0],
              "no pixels": x[:, :0], "fewer": x[:-1], "scalar": np.float64(3), "dates": x.astype("M8[s]"),
              "records": np.zeros((30, 8, 8), "i4,f4"), "bool": x > 9}  # fmt: skip
    labels = {"fractional": y + 0.5, "text": y.astype(str), "NaN": y * math.nan, "negative": y - 1, "gaps": y * 2,
              "huge": y + 10**15, "one class": y * 0, "more": np.arange(31), "one-hot": np.eye(3)[y], "complex": y * 1j,
              "scalar": np.int64(3), "dates": y.astype("M8[s]"), "unsigned": (y - 1).astype(np.uint64)}  # fmt: skip
    table |= {f"{name} images": (saved(train_images=value), "refused") for name, value in images.items()}
    table |= {f"{name} labels": (saved(train_labels=value), "refused") for name, value in labels.items()}
    table |= {f"no {name}": (saved(**{name: None}), "refused") for name in fine}
    table |= {f"val {k}": (saved(val_images=v, val_labels=y[: len(v)]), "refused") for k, v in (
        ("of another shape", x[:, :4]), ("without axes", x[0, 0]), ("with NaN", x * math.nan))}  # fmt: skip
    found = {name: (*entry, soon) for name, entry in table.items()}
    found["2 GB in 2 MB"] = (member("train_images", (2048, 1024, 1024), block, 2048), "refused", 60.0)
    found["2 GB beside it"] = (member("other", (2048, 1024, 1024), block, 2048), "accepted", 60.0)
    return found


def outputs() -> dict[str, tuple]:
    """{what: (how to write the .npz of outputs, expectation)}."""
    rng = np.random.default_rng(0)
    m, n, k = 4, 400, 10
    member, labels = data.paired_membership(m, n, seed=1), rng.integers(0, k, n)
    z = rng.normal(size=(m, n, k)) + 4 * np.eye(k)[labels] * (0.6 + 0.4 * member[..., None])
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    sigmoid, mixed = 1 / (1 + np.exp(-z)), np.concatenate([p[:2], z[2:]])
    fine = {"logits": z, "labels": labels, "member": member}

    def saved(pickled: bool = False, **arrays):
        given = {name: v for name, v in (fine | arrays).items() if v is not None}
        return lambda path: np.savez(path, allow_pickle=pickled, **given)

    def claim(path: Path):
        saved(logits=None)(path)
        with zipfile.ZipFile(path, "a") as archive, archive.open("logits.npy", "w") as file:
            shape = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6, 300)}
            np.lib.format.write_array_header_1_0(file, shape)

    good = {
        "nothing odd": {},
        "log-probabilities": {"logits": np.log(p)},
        "float16": {"logits": z.astype("f2")},
        "queries": {"logits": z[:, None]},
        "0 and 1": {"member": member * 1},
        "split": {"split": "pairs"},
    }
    told = {"percentages": {"logits": 100 * p}, "sigmoids": {"logits": sigmoid}, "a mixture": {"logits": mixed},
            "negated log-probabilities": {"logits": -np.log(p)}, "shuffled labels": {"labels": rng.permutation(labels)},
            "permuted members": {"member": member[[2, 3, 0, 1]]}, "duplicates across sides":
            {"logits": np.repeat(z[:, ::2], 2, 1), "labels": np.repeat(labels[::2], 2)}}  # fmt: skip
    bad = {"probabilities": {"logits": p}, "labels from 1": {"labels": labels + 1}, "NaN": {"logits": z * math.nan},
           "infinite": {"logits": z * math.inf}, "swapped axes": {"logits": z.swapaxes(0, 1)},
           "one class": {"logits": z[..., :1]}, "no models": {"logits": z[:0], "member": member[:0]},
           "no samples": {"logits": z[:, :0], "labels": labels[:0], "member": member[:, :0]},
           "the same model twice": {"logits": np.repeat(z[:1], m, 0)}, "constant": {"logits": 0 * z},
           "inverted members": {"member": ~member}, "member as shares": {"member": member * 0.7},
           "member as text": {"member": member.astype(str)}, "member NaN": {"member": member * math.nan},
           "member -1": {"member": np.where(member, 1, -1)}, "all members": {"member": member | True},
           "text": {"logits": z.astype(str)}, "complex": {"logits": z * 1j}, "bool": {"logits": z > 0},
           "dates": {"logits": z.astype("i8").astype("M8[s]")}, "text labels": {"labels": labels.astype(str)},
           "fractional labels": {"labels": labels + 0.5}, "one-hot labels": {"labels": np.eye(k)[labels]},
           "an odd split": {"split": "bogus"}, "a false split": {"split": "bernoulli"}, "a list split": {"split": [[]]},
           "odd draws": {"logits": np.stack([z, z + 1], 1), "draws": "bogus"}, "classes short": {"classes": ["a"]},
           "float images": {"images": np.zeros((n, 4, 4))}, "few images": {"images": np.zeros((3, 4, 4), "u1")},
           "population in use": {"population": member[0]}, "population short": {"population": [True]},
           "population text": {"population": ["a"] * n}, "scalar logits": {"logits": np.float64(3)}}  # fmt: skip
    table = {name: (saved(**arrays), "accepted") for name, arrays in good.items()}
    table |= {name: (saved(**arrays), "told") for name, arrays in told.items()}
    table |= {name: (saved(**arrays), "refused") for name, arrays in bad.items()}
    table |= {f"no {name}": (saved(**{name: None}), "refused") for name in fine}
    table |= {f"pickled {name}": (saved(True, **{name: np.array([{}], object)}), "refused")
              for name in (*fine, "split", "draws", "classes", "population")}  # fmt: skip
    return table | {"a claim of 300 TB": (claim, "refused"), "a FIFO's place": (os.mkfifo, "refused"),
                    "no content": (lambda path: path.write_bytes(b""), "refused"),
                    "junk": (lambda path: path.write_bytes(b"\xff" * 99), "refused")}  # fmt: skip


CATEGORIES = {
    "recipes": (recipes, 60, 10**6),
    "functions": (functions, 150, 10**6),
    "commands": (commands, 60, 10**6),
    "files": (files, 60, 10**6),
}
