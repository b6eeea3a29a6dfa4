"""The campaign of bad inputs, damaged stores and kills: what it can see, and that it sees nothing
in this code.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mia_nb import store

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from faults import Case, Ground, seen  # noqa: E402

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="children are watched by /proc")


@pytest.fixture
def ground(tmp_path):
    """A finished file in a store of one, with a canary beside the results."""
    for name in ("results", "tmp"):
        (tmp_path / "place" / name).mkdir(parents=True)
    for name in ("results/finished.npy", "canary"):
        (tmp_path / "place" / name).write_text("keep")
    return Ground(tmp_path / "place")


def quiet():
    """Nothing."""


def shout():
    raise KeyError("file")


def add(path):
    path.write_text("more")


SEEN = {
    "a call that returns": ({"call": quiet}, "accepted"),
    "an exception that nobody raised on purpose": ({"call": shout}, "traceback"),
    "a child that dies": ({"call": lambda: os._exit(1)}, "traceback"),
    "a call that waits": ({"call": lambda: time.sleep(60), "seconds": 0.1}, "hang"),
    "a call that works for ever": ({"call": lambda: sum(iter(int, 1)), "seconds": 0.2}, "hang"),
    "a finished file gone": ({"call": lambda: os.remove("results/finished.npy")}, "lost"),
    "a finished file altered": ({"call": lambda: add(Path("results/finished.npy"))}, "lost"),
    "a file outside": ({"call": lambda: add(Path("canary"))}, "outside"),
    "a bad value accepted": ({"call": quiet, "expect": "refused"}, "wrong"),
    "a warning that was wanted": ({"call": quiet, "expect": "told"}, "wrong"),
    "other numbers": ({"call": lambda: "2.0", "expect": "1.0"}, "wrong"),
    "the same numbers": ({"call": lambda: "1.0", "expect": "1.0"}, "accepted"),
    "new results": ({"call": lambda: add(Path("results/new"))}, "accepted"),
}


@pytest.mark.parametrize("what", SEEN)
def test_the_campaign_sees(what, ground):
    how, wanted = SEEN[what]
    assert ground.attempt([Case("tests", what, **how)])[0][0] == wanted
    ground.restore()
    assert seen(ground.place) == ground.intact


def test_a_refusal_of_ours_is_clear_and_one_of_numpy_is_not(ground):
    calls = [lambda: store.place("a", "bogus", "b", "c"), lambda: np.zeros(3) + np.zeros(2)]
    found = ground.attempt([Case("tests", "refusals", call) for call in calls])
    assert [outcome for outcome, _ in found] == ["refused", "traceback"]


@pytest.mark.slow
def test_bad_inputs_damage_and_kills_end_in_refusals_or_in_the_same_numbers():
    command = [sys.executable, str(ROOT / "benchmarks" / "faults.py"), "--quick"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    total = re.search(r"^\| all \|(.*)\|$", done.stdout, re.MULTILINE)
    assert total, done.stderr[-2000:]
    tried, refused, accepted, *failed = (int(cell) for cell in total[1].split("|"))
    assert failed == [0] * 5, done.stderr[-4000:]
    assert tried == refused + accepted > 500 and min(refused, accepted) > 100
