"""A small finished store, everything that can happen to its files, and writers killed while they
work.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import nbformat
import numpy as np
from faults import Case, Started, command, contained

from mia_nb import attacks, data, store, training, widgets
from mia_nb.cli import run
from mia_nb.querying import query
from mia_nb.report import page
from mia_nb.types import Recipe

TINY = {"num_models": 4, "population": 10, "epochs": 2, "snapshots": [1], "batch": 10}
NAMES = (
    "model_/../../../victim",
    "../../victim",
    "../../../victim",
    "part_/../../../victim",
    ".",
    "losses_/../../other/keep",
    "",
    "..",
    "model_\0.safetensors",
    "model_" + "9" * 5000,
    "con/x",
    "model_000.safetensors/../../../victim",
    "model_link/victim",
)
LINES = (
    b"\0" * 300,
    b"\xff\xfe" * 50,
    b"[]",
    b"3",
    b'"a"',
    b"[" * 100_000,
    b"{}",
    b'{"file": 3, "sha256": "a"}',
    b'{"file": ["a"], "sha256": "b"}',
    b'{"file": {}, "sha256": 1}',
    b'{"file": "model_009.safetensors", "sha256": 7}',
    b'{"file": null, "sha256": null}',
    b'{"file": "member.npy", "sha256": ["x"]}',
    b'{"file": "recipe.json", "sha256": true}',
    b'{"a": 1, ' * 50_000,
    b'{"file": "a", "sha256": "b"}\n' * 300_000,
)
TEXTS = (
    b"[]",
    b"3",
    b"null",
    b"{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"\xff\xfe",
    b"NaN",
    b"",
    b'{"recipe": [], "key": 3}',
    b'{"recipe": {"steps": 4}, "key": "a"}',
    b'{"steps": [1]}',
    b'{"steps": {"a": 1}}',
    b'{"draws": [], "fields": 3}',
    b'{"fields": ["../../../victim"]}',
    b'{"pool": 3, "draws": "plain", "fields": [[]]}',
    b'{"device": "bogus", "group": "a"}',
)


READS = ("load_pool", "load_signals", "folders", "sources", "list", "show", "show run", "doctor")


def digest(*parts) -> str:
    mark = sha256()
    for part in parts:
        mark.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return mark.hexdigest()


class World:
    """place/results holds a pool, its signals, a run and bystanders; canaries lie around it."""

    def __init__(self, place: Path, damages: int):
        self.damages = damages  # how many are drawn
        self.place, self.results, self.seeds = place, place / "results", itertools.count(100)
        for name in ("results", "tmp", "outside"):
            (place / name).mkdir(parents=True)
        for name in ("victim", "victim.safetensors", "outside/victim", "canary"):
            (place / name).write_text(f"keep {name}")
        self.images = data.load("synthetic:n=60,size=8,channels=1,classes=3")
        self.recipe = Recipe(**TINY)
        self.pool = self.train(self.recipe)
        self.signals = self.ask(self.pool)
        self.ask(self.pool, limit=20, queries=2, input_dropout=0.2)
        self.other = self.train(Recipe(**TINY, seed=1))
        self.ask(self.other)
        self.rmia = attacks.score("rmia", self.signals)
        self.scores = attacks.score("loss", self.signals)
        self.run = self.make_run()
        run.execute = started

    def train(self, recipe: Recipe, **options) -> training.pool.Pool:
        options = {
            "root": self.results,
            "strategy": "plain",
            "workers": 1,
            "progress": False,
            "device": "cpu",
            "checkpoint": 0.0,
        } | options
        return training.train_pool(recipe, options.pop("images", self.images), **options)

    def ask(self, pool, **options):
        return query(pool, options.pop("images", self.images), progress=False, **options)

    def train_anew(self, **options) -> str:
        recipe = Recipe(**TINY, seed=next(self.seeds))
        return pool_numbers(self.train(**{"recipe": recipe} | options))

    def ask_anew(self, **options) -> str:
        how = {"pool": self.pool, "queries": 2, "input_dropout": 0.1, "seed": next(self.seeds)}
        return signal_numbers(self.ask(**how | options))

    def make_run(self) -> store.Folder:
        """A run as `mia-nb run` leaves it."""
        recipe = {"steps": [{"notebook": "01_train"}], "package": "a"}
        folder = store.open_folder(self.results, "run", "train", store.content_key(recipe), recipe)
        nbformat.write(nbformat.v4.new_notebook(), folder.path / "01_train.ipynb")
        folder.add("01_train.ipynb")
        step = {"notebook": "01_train", "file": "01_train.ipynb", "status": "done", "error": None}
        step |= {"seconds": 1.0, "started": "2026-01-01T00:00:00+00:00"}
        folder.write_json("status.json", {"steps": [step]})
        notebook = folder.path / "01_train.ipynb"
        (folder.path / "report.html").write_text(page({notebook: notebook.read_bytes()}))
        folder.add("report.html")
        return folder


def started(*args, **options):
    raise Started


def pool_numbers(pool: training.pool.Pool) -> str:
    """All that can be read of a pool."""
    rows = range(len(pool.member))
    states = [p.state(m) for p in (pool, pool.at(1)) for m in rows]
    weights = [w.numpy() for state in states for _, w in sorted(state.items())]
    images = pool.images()
    told = json.dumps([pool.recipe.to_json(), pool.key, images.digest, images.classes]).encode()
    traces = np.stack([pool.trace(m) for m in rows])
    arrays = (pool.member, pool.population, traces, images.x.numpy(), images.y.numpy())
    return digest(told, *arrays, *weights)


def signal_numbers(signals) -> str:
    names = ("margin", "labels", "member", "population", "entropy", "modified_entropy", "correct")
    told = json.dumps([signals.query_kind, signals.info], sort_keys=True).encode()
    return digest(told, signals.top_log_p, *(getattr(signals, name) for name in names))


def operations(w: World) -> dict[str, tuple[str, Callable[[], str]]]:
    """{name: (kinds of results it looks at, call)}."""
    short, limited = w.pool.key[:12], {"limit": 20, "queries": 2, "input_dropout": 0.2}
    own = [f for f in store.folders(w.results, "signals") if f.recipe["pool"] == w.pool.key]

    def again(**options) -> str:
        found = pool_numbers(w.train(w.recipe, **options))
        kept = pool_numbers(training.load_pool(short, w.results))
        return found if found == kept else f"{found} but stored {kept}"

    def asked(force: bool = False) -> str:
        pool = training.load_pool(short, w.results)
        return digest(
            *(signal_numbers(w.ask(pool, force=force, **how)).encode() for how in ({}, limited))
        )

    def stored() -> str:
        return digest(*(signal_numbers(store.load_signals(f)).encode() for f in own))

    def listed() -> str:
        return str(w.other.key[:12] in command("list", "--results", str(w.results))())

    def offered() -> str:
        return str(any(w.other.key[:12] in str(s.pool.path) for s in widgets.sources(w.results)))

    def cli(*words: str) -> Callable[[], str]:
        return lambda: str(bool(command(*words, "--results", str(w.results))() or True))

    return {
        "folders": ("pool signals run", lambda: str(w.other.folder in store.folders(w.results))),
        "sources": ("pool signals", offered),
        "list": ("pool signals run", listed),
        "show": ("pool", cli("show", short)),
        "show run": ("run", cli("show", w.run.key[:12])),
        "doctor": ("pool signals run", cli("doctor")),
        "load_signals": ("signals", stored),
        "load_pool": ("pool", lambda: pool_numbers(training.load_pool(short, w.results))),
        "train_pool": ("pool", again),
        "train_pool(force)": ("pool", partial(again, force=True)),
        "query": ("pool signals", asked),
        "query(force)": ("pool signals", partial(asked, True)),
        "report": ("run", cli("report")),
        "clean": ("pool signals run", cli("clean")),
        "clean --all": ("pool signals run", cli("clean", "--all", "--yes")),
    }


def relist(path: Path, content: bytes) -> None:
    """Other content, with a checksum that fits."""
    path.write_bytes(content)
    line = json.dumps({"file": path.name, "sha256": sha256(content).hexdigest()})
    with open(path.parent / store.MANIFEST, "a") as file:
        file.write(line + "\n")


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def flip(path: Path, where: float) -> None:
    content = bytearray(path.read_bytes())
    bit = int(where * 8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def twin(w: World, path: Path) -> None:
    """The same bytes, but outside."""
    os.replace(path, w.place / "outside" / path.name)
    path.symlink_to(w.place / "outside" / path.name)


def damages(w: World, path: Path, rng) -> dict[str, Callable[[], object]]:
    """What can happen to a file by accident or malice."""
    size = path.stat().st_size
    return {
        "deleted": path.unlink,
        "truncated": lambda: os.truncate(path, size // 2),
        "emptied": lambda: os.truncate(path, 0),
        "zeroed": lambda: path.write_bytes(b"\0" * size),
        "a flipped bit": partial(flip, path, rng.random()),
        "another flipped bit": partial(flip, path, rng.random()),
        "a FIFO": lambda: (path.unlink(), os.mkfifo(path)),
        "a link to a canary": partial(link, path, w.place / "canary"),
        "a link to its twin": partial(twin, w, path),
        "a link to itself": partial(link, path, path),
        "a link to /dev/zero": partial(link, path, Path("/dev/zero")),
    }


def oddities(w: World, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Things in a store that are no results of ours."""
    manifest = folder / store.MANIFEST

    def append(line: bytes) -> None:
        with open(manifest, "ab") as file:
            file.write(line + b"\n")

    for name in (*NAMES, str(w.place / "victim"), str(w.place / "outside" / "victim")):
        for sha in ("0" * 64, sha256((w.place / "victim").read_bytes()).hexdigest()):
            entry = json.dumps({"file": name, "sha256": sha}).encode()
            yield f"manifest names {name[:60]!r} {sha[:4]}", partial(append, entry)
    for line in LINES:
        yield f"manifest line {line[:40]!r}", partial(append, line)
        yield f"manifest is {line[:40]!r}", partial(manifest.write_bytes, line)
    yield "model_link", lambda: (folder / "model_link").symlink_to(w.place / "outside")
    for name in (
        ".lock-manifest",
        ".lock-folder",
        ".lock-query",
        ".lock-run",
        ".tmp-1-1-a",
        ".partial-000.npz",
        "part_000-000_000001.safetensors",
    ):
        path = folder / name
        for what, target in (("a canary", "canary"), ("a folder outside", "outside")):
            yield f"{name} is a link to {what}", partial(link, path, w.place / target)
        yield f"{name} is a FIFO", lambda path=path: (path.unlink(missing_ok=True), os.mkfifo(path))
        yield f"{name} is a folder", lambda path=path: (path.unlink(missing_ok=True), path.mkdir())


def strangers(w: World) -> Iterator[tuple[str, Callable[[], object]]]:
    """Folders in a store that are no results."""
    for name in ("pool--", "run-a-b", "signals-a-", "pool-a-b-c", "pool-\udcff-a"):
        stranger = w.results / name
        yield f"{name!r} is empty", stranger.mkdir
        for text in TEXTS:
            yield (
                f"{name!r} holds {text[:40]!r}",
                lambda s=stranger, t=text: (
                    s.mkdir(),
                    relist(s / "recipe.json", t),
                    (s / "info.json").write_bytes(t),
                ),
            )
        yield f"{name!r} holds a FIFO", lambda s=stranger: (s.mkdir(), os.mkfifo(s / "recipe.json"))
        yield f"{name!r} holds a folder", lambda s=stranger: (s / "recipe.json").mkdir(parents=True)


def stores(w: World, rng) -> Iterator[tuple]:
    """Each file of a pool, of signals and of a run with each damage, and then each operation."""
    does = operations(w)
    expected = {
        name: contained([Case("stores", name, call)], w.place)[0][2]
        for name, (_, call) in does.items()
        if not name.startswith("clean")
    }
    limited = [
        f
        for f in store.folders(w.results, "signals")
        if "samples.npy" in f.files() and f.recipe["pool"] == w.pool.key
    ]
    for folder in (w.pool.folder, limited[0], w.run):
        calls = {name: call for name, (kinds, call) in does.items() if folder.kind in kinds}
        files = [
            n for n in sorted(os.listdir(folder.path)) if not any(f"_00{m}" in n for m in "123")
        ]
        changes = []
        for name in (n for n in files if not n.startswith(".")):
            path = folder.path / name
            plain = name in folder.files() and path.stat().st_size
            changes += [
                (f"{name} {what}", change, plain and "twin" not in what)
                for what, change in damages(w, path, rng).items()
            ]
        changes += [(what, change, False) for what, change in oddities(w, folder.path)]
        if folder.kind == "pool":
            changes += [(what, change, False) for what, change in strangers(w)]
        for words, change, noticed in rng.sample(changes, min(w.damages, len(changes))):
            for name, call in calls.items():
                same = expected.get(name, "any")
                same = "refused" if name == "doctor" and noticed else same
                reads = name in READS
                yield (
                    f"{folder.kind}: {words}; {name}",
                    call,
                    same,
                    change,
                    6.0,
                    name == "clean --all",
                    reads,
                )


def killed(write: Callable[[], object], times: list[float]) -> None:
    """Start a writer in a child and kill it after so many seconds, as often as there are
    numbers.
    """
    for seconds in times:
        if (child := os.fork()) == 0:
            write()
            os._exit(0)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def kills(w: World, rng: random.Random) -> Iterator[tuple]:
    """Trainings and queries that are killed at random moments, and then run to their end."""
    fresh = Recipe(**TINY | {"seed": 7, "epochs": 6})
    how = {"seed": 7, "queries": 4, "input_dropout": 0.3}

    def training_done() -> str:
        pool = w.train(fresh)
        return digest(
            *(
                f"{file} {sha}".encode()
                for file, sha in sorted(pool.folder.files().items())
                if pool.folder.intact(file) or 1 / 0
            )
        )

    def query_done() -> str:
        return signal_numbers(w.ask(w.pool, **how))

    for what, write in (("training", training_done), ("query", query_done)):
        begun = time.perf_counter()
        expected = contained([Case("kills", what, write)], w.place)[0][2]
        seconds = time.perf_counter() - begun
        for turn in range(40):
            times = [rng.uniform(0, seconds) for _ in range(1 + turn % 3)]
            words = f"{what} killed after {', '.join(f'{1000 * t:.0f} ms' for t in times)}"
            yield words, write, expected, partial(killed, write, times)


CATEGORIES = {"damaged stores": (stores, 10**6), "kills": (kills, 6)}
