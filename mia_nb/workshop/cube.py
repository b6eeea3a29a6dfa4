"""The outputs that the workshop runs on: those that come with the package, and those that a
notebook stored for some electives.
"""

import json
from pathlib import Path
from typing import NoReturn

import numpy as np

from mia_nb import store
from mia_nb._files import parse_json, replacing
from mia_nb.examples import examples, load_example, thumbnails
from mia_nb.types import Signals
from mia_nb.widgets.stored import Source, Thumbnails, sources

INDEX = "workshop.json"
BUILD = "make it with: mia-nb run workshop-electives"
FIGHTERS = ("ordinary", "relaxloss", "dp_sgd")  # of data/digits; the first is the baseline
FEWER = 20  # the role "small" has one sample in so many: its worlds are redrawn in seconds
RANDOM = 200  # the last thumbnails, of samples drawn at random; the exposed ones come before
BLANK = 235  # grey of a picture that is not shipped


class Cube(dict[str, Source]):
    """{role: Source} of the workshop's outputs; a role with a slash belongs to a group. `index` is
    the file that names those of the electives.
    """

    index = Path(INDEX)

    def __missing__(self, role: str) -> NoReturn:
        raise missing(role, self.index)

    def group(self, name: str) -> tuple[Source, ...]:
        """The sources whose role is `name` or begins with "name/", in the order in which they were
        kept. ValueError for none.
        """
        members = []
        for role, source in self.items():
            if role == name or role.startswith(f"{name}/"):
                members.append(source)
        if not members:
            raise missing(name, self.index)
        return tuple(members)


def missing(role: str, index: Path) -> ValueError:
    """The error for a role that the index does not name."""
    lacks = "does not name it" if index.is_file() else "is not there"
    return ValueError(
        f"{role} is an elective's and needs the file {INDEX}: {index.absolute()} {lacks}; {BUILD},"
        " or set `results` to the folder where it is"
    )


class Pictures(Thumbnails):
    """Thumbnails of some samples; `dealt` are the columns that were drawn at random."""

    def __init__(self, tiles: dict[int, np.ndarray]) -> None:
        super().__init__(tiles, BLANK)
        self.dealt = np.array(list(tiles)[-RANDOM:])


def shipped() -> Cube:
    """The roles that need nothing trained."""
    signals = load_example("cifar10/resnet14")
    title = "CIFAR-10, ResNet14"
    thinned = signals.select(samples=range(0, len(signals.labels), FEWER))
    cube = Cube()
    cube["pool"] = Source(
        title, signals, images=Pictures(thumbnails()), classes=signals.info["classes"]
    )
    cube["small"] = Source(f"{title}, few images", thinned)
    for family in FIGHTERS:
        for name in examples("digits"):
            role = name.removeprefix("digits/")
            trained_by, _, _ = role.rpartition("-")  # relaxloss of relaxloss-12, its epoch 12
            if trained_by == family:
                cube[f"fight/{role}"] = Source(name, load_example(name))
    return cube


def keep(results: str | Path, roles: dict[str, Signals]) -> Path:
    """Write results/workshop.json: which stored signals play which role in the electives.

    Parameters:
        results: folder of stored results; its newest cube replaces the one before
        roles: {role: Signals as `query` returned them}; "noise/0.5" is of group "noise"

    Returns:
        The path of the file.

    Raises:
        ValueError: for signals that are not stored in this folder.
    """
    keys = {}
    for role, signals in roles.items():
        source = _stored(signals, results)
        keys[role] = {"signals": source.folder.key, "pool": source.pool.key}
    path = Path(results) / INDEX
    with replacing(path) as file:
        file.write(json.dumps({"roles": keys}, indent=1).encode())
    return path


def _stored(signals: Signals, results: str | Path) -> Source:
    """The Source of signals that `query` has just returned."""
    wanted = _text_of({"draws": signals.query_kind, **signals.info})
    candidates = sources(results, pool=signals.info.get("pool", "?"), limit=10_000)
    for source in reversed(candidates):  # the newest first
        if _text_of(source.info) == wanted:
            return source
    raise ValueError(
        f"these signals are not stored in {results}; query them with query(pool, images)"
    )


def _text_of(info: dict) -> str:
    """A record as text, which is equal for equal records."""
    return json.dumps(info, sort_keys=True, default=str)


def open_cube(results: str | Path = "results") -> Cube:
    """The workshop's cube, {role: Source}: the outputs in the package, and those that `keep` stored
    for electives, which are read from disk on first use.

    Parameters:
        results: folder of stored results; it need not exist for the course

    Returns:
        A dict, with `group(name)` for the roles "name/...". Asking for a role that was not stored
        raises a ValueError of one line that says what is missing.

    Raises:
        ValueError: of one line where a stored file is damaged.
    """
    path = Path(results) / INDEX
    cube = shipped()
    cube.index = path
    if not path.is_file():
        return cube
    try:
        roles = dict(parse_json(path.read_text(encoding="utf-8"))["roles"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); {BUILD}") from error
    for role, keys in roles.items():
        try:
            folder = store.find(keys["signals"], results, "signals")
            pool = store.find(keys["pool"], results, "pool")
            info = folder.read_json("info.json", draws=str)
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(
                f"the workshop's cube in {results} lacks {role} ({error}); {BUILD}"
            ) from error
        cube[role] = Source.from_store(folder, pool, info)
    return cube
