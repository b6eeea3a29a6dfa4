"""The stored signals that the workshop runs on: which of them plays which role, written down by the
notebook that queries.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from mia_nb import store
from mia_nb.types import Signals
from mia_nb.widgets.stored import Source, label, sources

INDEX = "workshop.json"
BUILD = "build it with: mia-nb run workshop"


class Cube(dict[str, Source]):
    """{role: Source} of the workshop's stored signals; a role with a slash belongs to a group."""

    def __init__(self, roles=(), *, facts: dict | None = None):
        super().__init__(roles)
        self.facts = facts or {}  # numbers that only the training side can compute

    def group(self, name: str) -> list[Source]:
        """The sources whose role is `name` or begins with "name/", in the order in which they were
        kept. ValueError for none.
        """
        members = [source for role, source in self.items() if f"{role}/".startswith(f"{name}/")]
        if not members:
            raise ValueError(f"the cube has no {name}; it has {', '.join(self)}")
        return members


def stored(signals: Signals, results: str | Path = "results") -> Source:
    """The Source of signals that `query` has just returned: the same outputs with images and loss
    traces beside them.

    Parameters:
        signals: as `query` returned them
        results: folder of stored results

    Raises:
        ValueError: for signals that are not stored in this folder.
    """
    wanted = _same({"draws": signals.query_kind, **signals.info})
    for source in reversed(sources(results, pool=signals.info.get("pool", "?"), limit=10_000)):
        if _same(source.info) == wanted:
            return source
    raise ValueError(
        f"these signals are not stored in {results}; query them with query(pool, images)"
    )


def keep(results: str | Path, roles: dict[str, Signals], *, facts: dict | None = None) -> Path:
    """Write results/workshop.json: which stored signals play which role in the workshop.

    Parameters:
        results: folder of stored results; its newest cube replaces the one before
        roles: {role: Signals as `query` returned them}; "noise/0.5" belongs to the group "noise"
        facts: numbers that only the training side can compute (an accountant's), as JSON

    Returns:
        The path of the file.

    Raises:
        ValueError: for signals that are not stored in this folder.
    """
    found = {role: stored(signals, results) for role, signals in roles.items()}
    chosen = {
        role: {"signals": source.folder.key, "pool": source.pool.key}
        for role, source in found.items()
    }
    path = Path(results) / INDEX
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(
        json.dumps({"roles": chosen, "facts": facts or {}}, indent=1), encoding="utf-8"
    )
    draft.replace(path)
    return path


def open_cube(results: str | Path = "results") -> Cube:
    """The workshop's cube, {role: Source}, as `keep` stored it; no signals are read yet.

    Parameters:
        results: folder of stored results

    Returns:
        A dict, with `group(name)` for the roles "name/..." and `facts`, the stored numbers.

    Raises:
        ValueError: of one line where the cube was not built or is damaged.
    """
    path = Path(results) / INDEX
    if not path.is_file():
        raise ValueError(f"there is no workshop cube in {results}; {BUILD}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        roles, cube = dict(record["roles"]), Cube(facts=dict(record["facts"]))
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
        cube[role] = Source(label(info, pool.recipe), folder=folder, pool=pool, info=info)
    return cube


def _same(info: dict) -> str:
    return json.dumps(info, sort_keys=True, default=str)
