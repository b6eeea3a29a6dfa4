"""The stored signals that the workshop runs on: which of them plays which role, written down by the
notebook that asks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from mia_nb import store
from mia_nb.types import Signals
from mia_nb.widgets.stored import Source, label, sources

INDEX = "workshop.json"
BUILD = "build it with: mia-nb run workshop"


def stored(signals: Signals, results: str | Path = "results") -> Source:
    """The Source of signals that `query` has just returned: the same outputs with images and loss
    traces beside them.

    ValueError for signals that are not stored in this folder.
    """
    wanted = _same({"draws": signals.draws, **signals.info})
    for source in reversed(sources(results, pool=signals.info.get("pool", "?"), limit=10_000)):
        if _same(source.info) == wanted:
            return source
    raise ValueError(
        f"these signals are not stored in {results}; query them with query(pool, images)"
    )


def keep(results: str | Path, roles: dict[str, Signals], *, facts: dict | None = None) -> Path:
    """Write results/workshop.json: which stored signals play which role, {role: Signals as `query`
    returned them}.

    facts: numbers that only the training side can compute (an accountant's), as JSON. A role with a
    slash belongs to a group, "noise/0.5". The newest cube replaces the one before. Raises
    ValueError for signals that are not stored in this folder.
    """
    of_roles = {role: stored(signals, results) for role, signals in roles.items()}
    chosen = {
        role: {"signals": source.folder.key, "pool": source.pool.key}
        for role, source in of_roles.items()
    }
    path = Path(results) / INDEX
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(
        json.dumps({"roles": chosen, "facts": facts or {}}, indent=1), encoding="utf-8"
    )
    draft.replace(path)
    return path


def open_cube(results: str | Path = "results") -> dict[str, Source]:
    """{role: Source} of the workshop's cube, nothing read yet.

    ValueError of one line where it was not built or is damaged.
    """
    record, cube = _read(results), {}
    for role, keys in record["roles"].items():
        try:
            folder, pool = (
                store.find(keys["signals"], results, "signals"),
                store.find(keys["pool"], results, "pool"),
            )
            info = folder.read_json("info.json", draws=str)
        except (ValueError, KeyError, OSError) as error:
            raise ValueError(
                f"the workshop's cube in {results} lacks {role} ({error}); {BUILD}"
            ) from error
        cube[role] = Source(label(info, pool.recipe), folder=folder, pool=pool, info=info)
    return cube


def facts(results: str | Path = "results") -> dict:
    """The numbers that `keep` was given; ValueError as `open_cube`."""
    return _read(results)["facts"]


def group(cube: dict[str, Source], name: str) -> list[Source]:
    """The sources whose role is `name` or begins with "name/", in the order in which they were
    kept. ValueError for none.
    """
    members = [
        source for role, source in cube.items() if role == name or role.startswith(f"{name}/")
    ]
    if not members:
        raise ValueError(f"the cube has no {name}; it has {', '.join(cube)}")
    return members


def canaries(source: Source) -> np.ndarray:
    """(N,) bool over the source's samples: who was made to be remembered; ValueError where the pool
    has none.
    """
    if source.pool is None or not source.pool.has("canary.npy"):
        raise ValueError(f"{source.label} was trained without canaries")
    return source.pool.read_array("canary.npy")[source.samples]


def _read(results: str | Path) -> dict:
    path = Path(results) / INDEX
    if not path.is_file():
        raise ValueError(f"there is no workshop cube in {results}; {BUILD}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"roles": dict(record["roles"]), "facts": dict(record["facts"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); {BUILD}") from error


def _same(info: dict) -> str:
    return json.dumps(info, sort_keys=True, default=str)
