"""The folders of results, each named by its kind, its name and the first letters of its key."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mia_nb.arguments import PathLike
from mia_nb.checks import checked
from mia_nb.store.folder import FULL, Folder

KINDS = ("pool", "signals", "run")


def place(root: str | Path, kind: str, name: str, key: str) -> Folder:
    """The folder where the result of this key is or would be stored; nothing is made.

    Parameters:
        root: folder of all results.
        kind: pool, signals or run.
        name: of the result, stands before the key.
        key: of `content_key`.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not one of {', '.join(KINDS)}")
    slug = re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("._") or "unnamed"
    return Folder(Path(root).absolute() / f"{kind}-{slug}-{key[:12]}")


def open_folder(
    root: str | Path, kind: str, name: str, key: str, recipe: dict, **extra: Any
) -> Folder:
    """The folder of this key, which is made if it does not exist.

    Parameters:
        root, kind, name, key: as for `place`.
        recipe: the record from which the key was made; stored with the result.
        **extra: further entries of recipe.json.

    Raises:
        ValueError: if the root cannot be written, or the folder holds another key.
    """
    folder = place(root, kind, name, key)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        if not folder.has("recipe.json"):
            folder.write_json(
                "recipe.json", {"kind": kind, "name": name, "key": key, "recipe": recipe, **extra}
            )
    except OSError as error:
        if error.errno in FULL:
            raise
        raise ValueError(
            f"cannot write results to {root}: {error.strerror}; choose a folder you may write to"
        ) from error
    if folder.key != key:
        raise ValueError(
            f"{folder.path} holds another result than the one wanted; remove it or choose"
            " another results folder"
        )
    return folder


@checked
def folders(root: PathLike, kind: str | None = None) -> list[Folder]:
    """All results under the root, oldest first.

    Parameters:
        root: folder of all results.
        kind: pool, signals or run; None: all.
    """
    results = []
    for path in Path(root).absolute().glob("*-*-*"):
        folder = Folder(path)
        wanted = folder.kind in KINDS and kind in (None, folder.kind)
        if wanted and os.path.lexists(path / "recipe.json"):
            results.append(folder)

    def age(folder: Folder) -> tuple[float, str]:
        return (folder.path / "recipe.json").lstat().st_mtime, folder.path.name

    return sorted(results, key=age)


@checked
def find(prefix: str, root: PathLike, kind: str | None = None) -> Folder:
    """The one result whose key or folder name starts with the prefix.

    Parameters:
        prefix: of a key or of a folder name.
        root: folder of all results.
        kind: pool, signals or run; None: all.

    Raises:
        ValueError: for none, and for several.
    """
    results = folders(root, kind)
    hits = [folder for folder in results if folder.begins_with(prefix)]
    if len(hits) == 1:
        return hits[0]
    if hits:
        names = ", ".join(folder.path.name for folder in hits[:5])
        raise ValueError(f"{prefix!r} fits {len(hits)} results: {names}; give more letters")
    names = ", ".join(folder.path.name for folder in results[-5:]) or "nothing yet"
    if len(results) > 5:
        names += f" and {len(results) - 5} more"
    raise ValueError(f"no {kind or 'result'} in {root} starts with {prefix!r}; there: {names}")
