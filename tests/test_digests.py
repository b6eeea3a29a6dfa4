"""One digest for any content and for what a function computes with."""

import dataclasses
import datetime
import decimal
import enum
import functools
import importlib
import itertools
import json
import logging
import math
import os
import pathlib
import pickle
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import mia_nb as mia
from mia_nb.digests import digest, digest_of_function


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Setting:
    strength: float = 1.0
    more: Any = None


class Pair(NamedTuple):
    left: int
    right: list


class Words(set):
    pass


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.layer, self.scale = nn.Linear(width, 2), width

    def forward(self, x):
        return self.layer(x) * self.scale


def network(width=3, seed=0, **changes):
    torch.manual_seed(seed)
    made = Net(width)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def long_objects(place=None):
    """Objects of more values than NumPy prints."""
    rows = np.empty(3, object)
    rows[:] = [np.zeros(2000) for _ in range(3)]
    if place is not None:
        rows[1][place] = 1e-9
    return rows


def ragged(value):
    return [np.zeros((40 + n, 44)) + (n == 1) * value for n in range(3)]


def fitted(C):
    x = np.random.default_rng(0).normal(size=(40, 3))
    return LogisticRegression(C=C).fit(x, np.arange(40) % 2)


STORED = pathlib.Path(__file__).parent / "golden" / "digests.json"
FRAME = {"age": [1, 2], "job": ["a", "b"]}
# makers of contents of which no two are equal
CONTENTS = {
    "none": lambda: None,
    "true": lambda: True,
    "one": lambda: 1,
    "float one": lambda: 1.0,
    "text one": lambda: "1",
    "bytes one": lambda: b"1",
    "numpy one": lambda: np.int64(1),
    "array one": lambda: np.array(1),
    "large number": lambda: 10**5000,
    "another large number": lambda: 10**5000 + 1,
    "nan": lambda: math.nan,
    "decimal": lambda: decimal.Decimal("1.0"),
    "decimal with two digits": lambda: decimal.Decimal("1.00"),
    "fraction": lambda: Fraction(1, 3),
    "empty text": lambda: "",
    "half a character": lambda: "\ud800",
    "empty tuple": tuple,
    "empty list": list,
    "empty mapping": dict,
    "empty set": set,
    "list": lambda: ["ab", "c"],
    "list cut elsewhere": lambda: ["a", "bc"],
    "tuple": lambda: ("ab", "c"),
    "set": lambda: {"ab", "c"},
    "set of a class": lambda: Words(["ab", "c"]),
    "frozen set": lambda: frozenset(["ab", "c"]),
    "nested": lambda: [["ab"], ["c"]],
    "nested otherwise": lambda: [["ab", "c"]],
    "mapping": lambda: {"a": 1, "b": 2},
    "mapping with a number": lambda: {1: 1, "b": 2},
    "ordered": lambda: OrderedDict(a=1, b=2),
    "ordered otherwise": lambda: OrderedDict(b=2, a=1),
    "counted": lambda: Counter("ab"),
    "with a default": lambda: defaultdict(list, a=1),
    "with another default": lambda: defaultdict(set, a=1),
    "path": lambda: pathlib.PurePosixPath("a"),
    "date": lambda: datetime.date(2020, 1, 1),
    "time": lambda: datetime.datetime(2020, 1, 1),
    "time of a zone": lambda: datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "range": lambda: range(3),
    "array": lambda: np.arange(6),
    "array of floats": lambda: np.arange(6.0),
    "array of halves": lambda: np.arange(6, dtype=np.float16),
    "array, big end first": lambda: np.arange(6, dtype=">i8"),
    "array of rows": lambda: np.arange(6).reshape(2, 3),
    "array of columns": lambda: np.arange(6).reshape(3, 2),
    "turned array": lambda: np.arange(6).reshape(2, 3).T,
    "matrix": lambda: np.matrix([[1]]),
    "one row": lambda: np.array([[1]]),
    "no rows": lambda: np.zeros((0, 3)),
    "no columns": lambda: np.zeros((3, 0)),
    "texts": lambda: np.array(["ab", "c"]),
    "texts of objects": lambda: np.array(["ab", "c"], object),
    "texts of any length": lambda: np.array(["ab", "c"], np.dtypes.StringDType()),
    "other texts of any length": lambda: np.array(["a", "bc"], np.dtypes.StringDType()),
    "texts longer than a word": lambda: np.array(["a" * 100], np.dtypes.StringDType()),
    "days": lambda: np.array(["2020-01-01"], "M8[D]"),
    "seconds": lambda: np.array(["2020-01-01"], "M8[s]"),
    "spans": lambda: np.array([1], "m8[s]"),
    "structured": lambda: np.array([(1, 2.0)], [("a", int), ("b", float)]),
    "structured under other names": lambda: np.array([(1, 2.0)], [("a", int), ("c", float)]),
    "structured objects": lambda: np.array([(1, [2])], [("a", int), ("b", object)]),
    "masked": lambda: np.ma.array([1, 2], mask=[True, False]),
    "masked elsewhere": lambda: np.ma.array([1, 2], mask=[False, True]),
    "complex": lambda: np.array([1j]),
    "objects": long_objects,
    "objects, one changed where nobody prints": lambda: long_objects(700),
    "ragged": lambda: ragged(0),
    "ragged, changed inside": lambda: ragged(1e-9),
    "table": lambda: pd.DataFrame(FRAME),
    "table with other names": lambda: pd.DataFrame({"age": [1, 2], "work": ["a", "b"]}),
    "table in another order": lambda: pd.DataFrame(FRAME)[["job", "age"]],
    "table with another index": lambda: pd.DataFrame(FRAME, index=[5, 6]),
    "table of categories": lambda: pd.DataFrame(FRAME).astype({"job": "category"}),
    "table of other categories": lambda: pd.DataFrame(FRAME).astype(
        {"job": pd.CategoricalDtype(["b", "a"])}
    ),
    "table of floats": lambda: pd.DataFrame(FRAME).astype({"age": float}),
    "table of nullable numbers": lambda: pd.DataFrame(FRAME).astype({"age": "Int64"}),
    "column": lambda: pd.Series([1, 2]),
    "column with a name": lambda: pd.Series([1, 2], name="age"),
    "column of times": lambda: pd.Series(pd.date_range("2020", periods=2)),
    "column of times of a zone": lambda: pd.Series(pd.date_range("2020", periods=2, tz="UTC")),
    "index": lambda: pd.Index([1, 2]),
    "two levels": lambda: pd.MultiIndex.from_tuples([(1, 2)]),
    "missing": lambda: pd.NA,
    "tensor": lambda: torch.arange(6),
    "tensor of floats": lambda: torch.arange(6.0),
    "tensor of halves": lambda: torch.arange(6.0).bfloat16(),
    "tensor of rows": lambda: torch.arange(6).reshape(2, 3),
    "turned tensor": lambda: torch.arange(6).reshape(2, 3).T,
    "sparse tensor": lambda: torch.eye(3).to_sparse(),
    "sparse matrix": lambda: scipy.sparse.eye(3).tocsr(),
    "sparse matrix of columns": lambda: scipy.sparse.eye(3).tocsc(),
    "device": lambda: torch.device("cpu"),
    "dtype": lambda: torch.float32,
    "network": network,
    "network of other weights": lambda: network(seed=1),
    "network with another attribute": lambda: network(scale=5),
    "network that trains no more": lambda: network().eval(),
    "estimator": lambda: LogisticRegression(C=1.0),
    "estimator of another strength": lambda: LogisticRegression(C=2.0),
    "fitted estimator": lambda: fitted(1.0),
    "otherwise fitted estimator": lambda: fitted(0.1),
    "enumeration": lambda: Colour.RED,
    "enumeration's other": lambda: Colour.BLUE,
    "record": Setting,
    "record with another value": lambda: Setting(2.0),
    "record that holds arrays": lambda: Setting(more=[np.zeros(2)]),
    "named tuple": lambda: Pair(1, [2]),
    "plain pair": lambda: (1, [2]),
    "slots": lambda: Slotted(1),
    "other slots": lambda: Slotted(2),
    "recipe": mia.Recipe,
    "recipe of more epochs": lambda: mia.Recipe(epochs=3),
    "generator": lambda: np.random.default_rng(0),
    "generator of another seed": lambda: np.random.default_rng(1),
    "logger": lambda: logging.getLogger("one"),
    "type": lambda: int,
    "generic type": lambda: list[int],
    "union": lambda: int | None,
    "ufunc": lambda: np.add,
    "module": lambda: math,
    "bound": lambda: functools.partial(max, 1),
    "bound otherwise": lambda: functools.partial(max, 2),
    "bound by name": lambda: functools.partial(max, default=2),
    "method": lambda: Slotted(1).__init__,
    "method of another": lambda: Slotted(2).__init__,
    "installed function": lambda: torch.nn.functional.relu,
    "another installed function": lambda: torch.nn.functional.gelu,
}
# a module is not pickled, NumPy gives an array back in the machine's byte order, and a masked one
# with a fill value that it had not before; pandas lays nullable numbers out anew
NOT_PICKLED = {
    "module",
    "array, big end first",
    "masked",
    "masked elsewhere",
    "table of nullable numbers",
}


def test_digests_of_values_are_those_under_which_results_are_stored():
    frozen = json.loads(STORED.read_text())
    assert {name: digest(CONTENTS[name]()) for name in frozen} == frozen


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_no_two_of_many_contents_have_one_digest():
    found = {name: digest(make()) for name, make in CONTENTS.items()}
    twins = [pair for pair in itertools.combinations(found, 2) if found[pair[0]] == found[pair[1]]]
    assert twins == []


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of numpy.matrix
def test_equal_contents_have_one_digest_made_again_and_after_pickling(name):
    first = digest(CONTENTS[name]())
    assert digest(CONTENTS[name]()) == first
    if name not in NOT_PICKLED:
        assert digest(pickle.loads(pickle.dumps(CONTENTS[name]()))) == first


def in_another_process(code, seed):
    """What a few lines that import this module print, with other hashes of text."""
    here = os.pathsep.join([str(pathlib.Path(__file__).parent), os.getcwd()])
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": here}
    command = [sys.executable, "-c", f"import test_digests as t\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return done.stdout


@pytest.mark.slow
def test_digests_are_the_same_in_every_process():
    code = "print({n: t.digest(make()) for n, make in t.CONTENTS.items()}, t.digest(t.Net))"
    here = f"{ {name: digest(make()) for name, make in CONTENTS.items()} } {digest(Net)}\n"
    assert in_another_process(code, seed=1) == here and len(here) > 64 * len(CONTENTS)


def test_where_contents_are_cut_into_parts_counts():
    assert digest("ab", "c") != digest("a", "bc") != digest(("a", "bc"))
    assert digest() != digest(None) != digest(None, None)


def test_how_a_value_lies_in_memory_does_not_count():
    rows = np.arange(24.0).reshape(4, 6)
    assert (
        digest(rows[::2, 1:4])
        == digest(rows[::2, 1:4].copy())
        == digest(np.asfortranarray(rows[::2, 1:4]))
    )
    assert digest(torch.arange(6).reshape(2, 3).T) == digest(
        torch.arange(6).reshape(2, 3).T.contiguous()
    )
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    aligned = np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True))
    other = aligned.copy()
    other.view(np.uint8)[1] = 7  # between the two fields
    assert digest(aligned) == digest(other)
    table = pd.concat([pd.DataFrame(FRAME), pd.DataFrame(FRAME)])
    assert digest(table) == digest(table.copy(deep=True))


def test_what_is_changed_in_place_has_another_digest():
    rows = long_objects()
    before = digest(rows)
    rows[2][1234] += 1
    assert digest(rows) != before


def test_what_holds_itself_has_a_digest():
    first, second = [1], [1]
    first.append(first)
    second.append([1, second])
    assert digest(first) == digest(first) != digest(second)


@pytest.mark.parametrize(
    "make",
    [
        threading.Lock,
        lambda: sys.stdout,
        lambda: (n for n in ()),
        lambda: np.frompyfunc(lambda x: x, 1, 1),
        lambda: functools.reduce(lambda inner, _: [inner], range(10_000), 1),
    ],
)
def test_what_has_no_content_is_refused_in_one_line_that_names_it(make):
    with pytest.raises(ValueError, match="compared") as caught:
        digest({"setting": make()})
    assert "setting" in str(caught.value) and "\n" not in str(caught.value)


# --------------------------------------------------------------------------------------------------
# functions


def made(text, name="f", **world):
    """A function as a cell of a notebook defines it, among these globals."""
    world = {"__name__": "__main__", **world}
    exec(text, world)
    return world[name]


def of(text, name="f", **world):
    return digest_of_function(made(text, name, **world))


CALLS = "def f(x):\n    return helper(x) + LIMIT\n"
# two texts of one function, of which the second computes something else
PAIRS = {
    "code": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "constant": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "sign of zero": ("def f(x): return x * 0.0", "def f(x): return x * -0.0"),
    "type of a constant": ("def f(x): return (x, 1)", "def f(x): return (x, 1.0)"),
    "name of an attribute": ("def f(x): return x.real", "def f(x): return x.imag"),
    "default": ("def f(x, y=1): return y", "def f(x, y=2): return y"),
    "default of an array": (
        "import numpy as np\ndef f(x, y=np.zeros(3)): return y",
        "import numpy as np\ndef f(x, y=np.ones(3)): return y",
    ),
    "keyword's default": ("def f(x, *, y=1): return y", "def f(x, *, y=2): return y"),
    "order of arguments": ("def f(x, y): return x", "def f(y, x): return x"),
    "a function within": (
        "def f(x):\n    def g(): return 1\n    return g",
        "def f(x):\n    def g(): return 2\n    return g",
    ),
    "what a function calls": (
        "def helper(x): return x\nLIMIT = 1\n" + CALLS,
        "def helper(x): return -x\nLIMIT = 1\n" + CALLS,
    ),
    "what its helper's helper does": (
        "def last(x): return x\ndef helper(x): return last(x)\nLIMIT = 1\n" + CALLS,
        "def last(x): return -x\ndef helper(x): return last(x)\nLIMIT = 1\n" + CALLS,
    ),
    "a global number": (
        "def helper(x): return x\nLIMIT = 1\n" + CALLS,
        "def helper(x): return x\nLIMIT = 2\n" + CALLS,
    ),
    "a global's entry": (
        "SET = {'C': [1, 2]}\ndef f(x): return SET['C'][1]",
        "SET = {'C': [1, 3]}\ndef f(x): return SET['C'][1]",
    ),
    "a global class": (
        "class A:\n    C = 1\ndef f(x): return A.C",
        "class A:\n    C = 2\ndef f(x): return A.C",
    ),
    "a method of a base": (
        "class B:\n    def g(self): return 1\nclass A(B): pass\ndef f(x): return A().g()",
        "class B:\n    def g(self): return 2\nclass A(B): pass\ndef f(x): return A().g()",
    ),
    "a property": (
        "class A:\n    @property\n    def g(self): return 1\ndef f(x): return A().g",
        "class A:\n    @property\n    def g(self): return 2\ndef f(x): return A().g",
    ),
    "an instance": (
        "class A:\n    def __init__(self, c): self.c = c\na = A(1)\ndef f(x): return a.c",
        "class A:\n    def __init__(self, c): self.c = c\na = A(2)\ndef f(x): return a.c",
    ),
    "a global read by a function within": (
        "LIMIT = 1\ndef f(x): return [LIMIT for _ in x]",
        "LIMIT = 2\ndef f(x): return [LIMIT for _ in x]",
    ),
    "a lambda": ("f = lambda x: x + 1", "f = lambda x: x + 2"),
    "a decorator": (
        "def d(g):\n    return lambda x: g(x) + 1\n@d\ndef f(x): return x",
        "def d(g):\n    return lambda x: g(x) + 2\n@d\ndef f(x): return x",
    ),
    "what a decorator wraps": (
        "import functools\n@functools.lru_cache\ndef f(x): return x",
        "import functools\n@functools.lru_cache\ndef f(x): return -x",
    ),
    "what a decorator of torch wraps": (
        "import torch\n@torch.no_grad()\ndef f(x): return x",
        "import torch\n@torch.no_grad()\ndef f(x): return -x",
    ),
    "an exception": (
        "def f(x):\n    try: return x\n    except ValueError: return 0",
        "def f(x):\n    try: return x\n    except TypeError: return 0",
    ),
    "a name that is missing": (
        "def f(x): return one_that_is_missing",
        "def f(x): return another_that_is_missing",
    ),
    "a set of constants": (
        "def f(x): return x in {'a', 'b', 'c'}",
        "def f(x): return x in {'a', 'b', 'd'}",
    ),
    "a slope that an installed function holds": (
        "from snntorch import surrogate\nslope = surrogate.fast_sigmoid(25)\ndef f(x): return slope(x)",
        "from snntorch import surrogate\nslope = surrogate.fast_sigmoid(5)\ndef f(x): return slope(x)",
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_functions_that_compute_otherwise_have_other_digests(what):
    first, second = PAIRS[what]
    assert of(first) == of(first)
    assert of(first) != of(second)


def test_where_a_function_stands_and_what_is_beside_it_does_not_count():
    text = "def helper(x): return x\nLIMIT = 1\n"
    moved = "\n\n# a remark\nOTHER = 3\n" + text + "\ndef another(): pass\n" + CALLS
    assert of(text + CALLS) == of(moved, unrelated=threading.Lock())


def test_functions_that_call_each_other_have_a_digest():
    text = "def f(x): return g(x)\ndef g(x): return f(x) + {}\n"
    assert of(text.format(1)) == of(text.format(1)) != of(text.format(2))
    held = "TABLE = {{}}\ndef f(x): return TABLE, {}\nTABLE[f] = 1\n"
    assert of(held.format(1)) == of(held.format(1)) != of(held.format(2))


def with_strength(C, more=()):
    def retrain(x, y, seed):
        return C, more

    return retrain


@pytest.mark.parametrize(
    "one, other", [(100.0, 1e-4), (np.zeros(5000), np.eye(1, 5000)[0]), ([1], [2])]
)
def test_what_a_closure_holds_is_part_of_a_function(one, other):
    assert digest_of_function(with_strength(one)) == digest_of_function(with_strength(one))
    assert digest_of_function(with_strength(one)) != digest_of_function(with_strength(other))


class Trainer:
    """A callable object of one's own."""

    rate = 0.1

    def __init__(self, C):
        self.C = C

    def __call__(self, x, y, seed):
        return self.C * self.rate

    def fit(self, x, y, seed):
        return self.C


def test_arguments_and_objects_that_a_function_is_bound_to_are_part_of_it():
    base = with_strength(1)
    ways = [
        base,
        functools.partial(base, seed=1),
        functools.partial(base, seed=2),
        functools.partial(functools.partial(base, seed=2), y=1),
        functools.partial(with_strength(2), seed=2),
        Trainer(1),
        Trainer(2),
        Trainer(1).fit,
        Trainer(2).fit,
        Trainer,
    ]
    found = [digest_of_function(way) for way in ways]
    assert len({*found}) == len(ways)
    assert found[5] == digest_of_function(Trainer(1)) and found[8] == digest_of_function(
        Trainer(2).fit
    )


def test_what_is_no_function_is_refused():
    with pytest.raises(ValueError, match="a int is no function"):
        digest_of_function(3)


def test_a_function_that_uses_what_cannot_be_compared_names_it():
    function = made("def f(x): return connection", connection=SimpleNamespace(to=threading.Lock()))
    with pytest.raises(ValueError, match=r"connection.*_thread.lock"):
        digest_of_function(function)


def test_a_module_of_ones_own_counts_by_its_file_and_by_what_was_set_in_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    place = tmp_path / "digested_helpers.py"
    place.write_text("RATE = 1\ndef fit(x): return x + RATE\n")
    inside = "def f(x):\n    import digested_helpers\n    return digested_helpers.fit(x)\n"
    outside = "import digested_helpers\ndef f(x): return digested_helpers.fit(x)\n"
    first = [of(inside), of(outside)]
    module = sys.modules["digested_helpers"]
    assert [of(inside), of(outside)] == first
    module.RATE = 2
    changed = [of(inside), of(outside)]
    assert all(one != other for one, other in zip(first, changed, strict=True))
    module.RATE = 1
    assert [of(inside), of(outside)] == first
    place.write_text("RATE = 1\ndef fit(x): return x - RATE - 1\n")
    importlib.invalidate_caches()
    importlib.reload(module)
    assert not {of(inside), of(outside)} & {*first, *changed}
    monkeypatch.delitem(sys.modules, "digested_helpers")


def test_installed_code_counts_by_its_name_and_version(monkeypatch):
    from mia_nb import _code_origin

    text = "import torch\ndef f(x): return torch.relu(x)"
    function = made(text)
    before, nameless = digest_of_function(function), digest_of_function(function, versions=False)
    assert digest_of_function(
        made("from torch.nn.functional import relu\ndef f(x): return relu(x)")
    )
    monkeypatch.setattr(_code_origin, "_version_of", lambda *_: "another")
    assert digest_of_function(function) != before
    assert digest_of_function(function, versions=False) == nameless
