"""Every benchmark runs at toy sizes and prints tables of sane numbers; what they compute from times
is right.
"""

import json
import math
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import test_rehearsal
from PIL import Image

from mia_nb import data

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import common  # noqa: E402
import run  # noqa: E402

NUMBER = re.compile(r"(?<![\w.=-])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
TABLES = {  # what a script's tables must say, and how many there are at least
    "training": (["DataLoader loop", "stacked", "test accuracy", "exponent"], 5),
    "querying": (["plain loop, images/s", "cached answer"], 1),
    "scoring": (["rmia", "lira", "exponent"], 3),
    "gpu": (["% of bf16 peak", "stacked:2", "querying, ours", "fast-hybrid-T4", "rmia"], 6),
    "coverage": (["TPR at 1 %", "heavy tails"], 1),
    "audits": (["mean loss", "5 % wholly exposed"], 1),
    "private_sde": (["stored states of the SDE", "clipping off"], 2),
}


def tables(text: str) -> list[list[list[str]]]:
    """Cells of the markdown tables in a text, their header first."""
    found, inside = [], False
    for line in text.splitlines():
        if line.startswith("|"):
            found += [] if inside else [[]]
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        inside = line.startswith("|")
    return [[rows[0], *rows[2:]] for rows in found]


def test_every_script_is_a_question_of_the_run():
    scripts = {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("faults")}
    assert (
        scripts
        - {
            "run",
            "common",
            "shipping",
            "ordinary",
            "evidence",
            "shadows",
            "workshop",
            "attacks",
            "references",
            "spikes",
        }
        == set(run.QUESTIONS)
        == set(TABLES)
    )


# every part of the plan for a GPU is run by test_rehearsal.py where it can pretend to one
REHEARSED = {"gpu"} if test_rehearsal.TOOL.joinpath("fakecuda.py").exists() else set()


ALL = """
import json
import runpy
import sys
import traceback

folder, questions = sys.argv[1:]
sys.path.insert(0, folder)
for name, words in json.loads(questions).items():
    sys.argv = [f"{folder}/{name}.py", *words]
    print(f"{name} begins", flush=True)
    status = 0
    try:
        runpy.run_path(sys.argv[0], None, "__main__")
    except SystemExit as end:
        status = end.code or 0
    except Exception:
        traceback.print_exc()
        status = 1
    print(f"{name} ends with {status}", flush=True)
"""


@pytest.fixture(scope="module")
def printed() -> tuple[str, str]:
    """What all scripts print: one process, since each would load torch anew."""
    asked = {name: run.QUESTIONS[name] for name in sorted(TABLES.keys() - REHEARSED)}
    command = [sys.executable, "-c", ALL, str(FOLDER), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TABLES.keys() - REHEARSED))
def test_a_benchmark_prints_tables_of_positive_finite_numbers(name, printed):
    everything, complaints = printed
    _, begun, rest = everything.partition(f"{name} begins\n")
    text, ended, _ = rest.partition(f"{name} ends with 0\n")
    assert begun and ended, complaints[-2000:]
    assert "toy sizes: no measurement" in text and "load average after" in text
    words, count = TABLES[name]
    assert [word for word in words if word not in text] == []
    found = tables(text)
    assert len(found) >= count
    for header, *rows in found:
        assert rows
        for cells in rows:
            assert len(cells) == len(header)
            assert not re.search(r"\b(nan|inf|failed|out of memory)\b", " ".join(cells).lower())
            # a time of a toy can round to 0, a whole row of them cannot
            numbers = [
                float(n.replace(",", "")) for cell in cells[1:] for n in NUMBER.findall(cell)
            ]
            assert numbers and max(numbers) > 0


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar"])
def test_gpu_reads_an_archive_of_class_folders_as_the_folder(tmp_path, suffix):
    import gpu

    rng = np.random.default_rng(0)
    for name in ("cat/0.jpg", "cat/1.jpg", "dog/0.jpg"):
        file = tmp_path / "pets" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    with tarfile.open(
        tmp_path / f"pets{suffix}", "w:gz" if suffix == ".tar.gz" else "w"
    ) as archive:
        archive.add(tmp_path / "pets", "pets")
    there = gpu.loaded(str(tmp_path / f"pets{suffix}"))
    assert there.classes == ("cat", "dog") and there.name == "pets"
    assert there.digest == data.load(tmp_path / "pets", data_root=tmp_path).digest


def test_gpu_refuses_in_one_line_where_there_is_none(tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    import gpu

    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path / "out")])
    assert gpu.main() == 2
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1 and "--device cpu --toy" in printed
    assert not (tmp_path / "out").exists()


def test_a_run_goes_on_after_a_failure_and_says_so(tmp_path, monkeypatch, capsys):
    (tmp_path / "good.py").write_text("print('a table')")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "QUESTIONS", {"bad": [], "good": []})
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path / "out")])
    assert run.main() == 1
    printed = capsys.readouterr().out
    assert "failed with status 3" in printed and "a table" in printed and "Failed: bad." in printed
    assert (tmp_path / "out").read_text() == printed


def test_a_run_begins_nothing_after_its_time(tmp_path, monkeypatch, capsys):
    (tmp_path / "good.py").write_text("print('a table')")
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "QUESTIONS", {"good": []})
    monkeypatch.setattr(sys, "argv", ["run.py", "--minutes", "-1"])
    assert run.main() == 0
    assert "Not run: good (the time was up)" in capsys.readouterr().out


def test_rounds_are_interleaved_and_their_warm_up_does_not_count():
    calls = []
    taken = common.rounds(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, warm=2
    )
    assert calls == ["a", "b"] * 5
    assert {name: len(values) for name, values in taken.items()} == {"a": 3, "b": 3}


def test_the_exponent_is_that_of_a_power_law():
    sizes = [16, 64, 256]
    assert common.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)


def test_records_of_private_classes_are_of_none_that_is_public():
    from private_sde import by_class

    digits = data.load("digits")
    public, private = by_class(digits)
    assert len(public.y) + len(private.y) == len(digits.y)
    assert (public.mean, public.std) == (private.mean, private.std) != (digits.mean, digits.std)
    kinds = {x.numpy().tobytes(): int(y) for x, y in zip(digits.x, digits.y, strict=True)}
    for images, first in ((public, 0), (private, 5)):
        truth = [kinds[x.numpy().tobytes()] for x in images.x]
        assert truth == (images.y + first).tolist()


def test_the_interval_is_students():
    # n = 4, mean .5, standard deviation .1, t(.975, 3) = 3.182
    spread = 0.1 * math.sqrt(3 / 4)
    shown = common.mean_interval([0.5 - spread, 0.5 + spread, 0.5 - spread, 0.5 + spread])
    assert shown == "50.00 ± 15.91 %"


def test_the_ordinary_loop_learns_at_the_learning_rates_of_the_pool(monkeypatch):
    torch = pytest.importorskip("torch")
    from ordinary import loader, training

    from mia_nb import data
    from mia_nb.training.schedules import learning_rate
    from mia_nb.types import Recipe

    images, recipe, rates = data.load("digits", limit=1000), Recipe(epochs=4, batch=20, lr=0.1), []

    class Watched(torch.optim.SGD):
        def step(self, *args):
            rates.append(self.param_groups[0]["lr"])
            return super().step(*args)

    monkeypatch.setattr(torch.optim, "SGD", Watched)
    member = data.paired_membership(2, 1000)[0]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    losses = list(training(net, loader("tensors", images, member, recipe.batch), recipe))
    assert losses[-1] < losses[0] / 2
    ours = [learning_rate(recipe, step / 100, []) for step in range(100)]
    # torch counts to the last step, and this to the one after it
    assert len(rates) == 100 and max(abs(a - b) for a, b in zip(rates, ours, strict=True)) < 0.01


def test_both_ways_of_loading_give_the_same_images():
    pytest.importorskip("torch")
    from ordinary import WAYS, loader

    from mia_nb import data

    images, member = (
        data.load("synthetic:n=40,channels=3,size=8,classes=4"),
        data.paired_membership(2, 40)[1],
    )
    first, second = (loader(way, images, member, 4).dataset for way in WAYS)
    assert len(first) == len(second) == member.sum()
    for (x, y), (other, label) in zip(first, second, strict=True):
        assert abs(x - other).max() < 1e-6 and y == label
