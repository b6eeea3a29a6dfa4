"""List, show and clean the results folder."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from mia_nb import escape, store
from mia_nb.cli.say import print_table, say
from mia_nb.cli.status import STATUS, lost_figures, read_status

UNITS = ("B", "kB", "MB", "GB", "TB")


def list_all(args: Namespace) -> None:
    """`mia-nb list`: print kind, first 12 characters of the key, name, size, date and status of
    every result, oldest first.
    """
    rows = [("kind", "key", "name", "size", "date", "status")]
    for folder in store.folders(args.results):
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime(_modified(folder)))
        size = _human(_size(folder.path))
        rows.append((folder.kind, folder.short_key, folder.name, size, date, status(folder)))
    if len(rows) == 1:
        say(f"nothing in {args.results} yet; start with: mia-nb run all --preset demo")
    else:
        print_table(rows)


def status(folder: store.Folder) -> str:
    """done, running, failed, killed, partial, or which record is damaged; a run may also be done
    with failed figures, a pool tells how many of its models are there.
    """
    try:
        recipe = folder.recipe
        if folder.kind == "run":
            return _status_of_run(folder, len(recipe.get("steps", [])))
        if _held(folder):
            return "running"
        if folder.kind == "pool":
            wanted = recipe.get("num_models")
            models = sum(file.startswith("model_") for file in folder.files())
            return "done" if models == wanted else f"{models} of {wanted} models"
        if folder.has("info.json"):
            store.read_info(folder)
        return "done" if store.has_signals(folder) else "partial"
    except store.Corrupt as error:
        return f"damaged {error.file}"


def _status_of_run(folder: store.Folder, wanted: int) -> str:
    """wanted: number of steps of a complete run."""
    statuses = [entry["status"] for entry in read_status(folder)]
    for bad in ("running", "killed", "failed"):
        if bad in statuses:
            return bad
    if not statuses:
        return f"damaged {STATUS}" if folder.has(STATUS) else "empty"
    if len(statuses) < wanted:
        return "partial"
    return "done, figures failed" if lost_figures(folder) else "done"


def show(args: Namespace) -> None:
    """`mia-nb show`: print the recipe, the steps of a run, the files with size and checksum, and
    which files are damaged.
    """
    folder = store.find(args.key, args.results)
    damaged = folder.damaged()
    lines = [folder.path, f"key     {folder.key}", f"status  {status(folder)}", "recipe"]
    for line in json.dumps(folder.recipe, indent=1).splitlines():
        lines.append(f"  {line}")
    if folder.kind == "run":
        for entry in read_status(folder):
            lines.append(_line_of_step(entry))
    lines.append("files")
    for file, sha in sorted(folder.files().items()):
        path = folder.path / file
        size = _human(path.lstat().st_size if os.path.lexists(path) else 0)
        state = "  MISSING, TRUNCATED OR ALTERED" if file in damaged else ""
        lines.append(f"  {sha[:12]}  {size:>9}  {file}{state}")
    say(*lines)


def _line_of_step(entry: dict) -> str:
    name = escape.terminal(entry["file"])
    state = escape.terminal(entry["status"])
    return f"{name:<22} {state:<8} {entry['seconds']:6.1f} s  {entry.get('error') or ''}".rstrip()


def clean(args: Namespace) -> None:
    """`mia-nb clean`: remove temporary and damaged files, or whole results; print what was done."""
    lines = 0
    for line in cleaned(
        args.results, args.key, everything=args.all, older_than=args.older_than, yes=args.yes
    ):
        say(line)
        lines += 1
    if lines == 0:
        say("nothing to clean")


def cleaned(
    results: str, key: str | None, *, everything: bool, older_than: float | None, yes: bool
) -> Iterator[str]:
    """Remove the chosen whole results (by key, all, by age in days), or without `yes` only name
    them; if none are chosen, remove temporary and damaged files. Yields a line for each.

    A result that cannot be cleaned is left alone, and what was wrong with the first of them is
    raised after the last (ValueError, OSError).
    """
    are_results_chosen = key is not None or everything or older_than is not None
    chosen = store.folders(results)
    if key is not None:
        chosen = [folder for folder in chosen if folder.begins_with(key)]
        if len(chosen) != 1:
            raise ValueError(
                f"{len(chosen)} results in {results} start with {key!r}; see mia-nb list"
            )
    if older_than is not None:
        latest = time.time() - older_than * 86400
        chosen = [folder for folder in chosen if _modified(folder) < latest]
    failed = []
    for folder in chosen:
        try:
            if _held(folder):
                yield f"{folder.path}: in use, left alone"
            elif not are_results_chosen:
                yield from _tidy(folder)
            elif yes:
                folder.delete()
                yield f"removed {folder.path}"
            else:
                yield f"would remove {folder.path} ({_human(_size(folder.path))}); add --yes"
        except (ValueError, OSError) as error:
            failed.append(error)
            yield f"{folder.path}: left alone ({error})"
    if failed:
        raise failed[0]


def _tidy(folder: store.Folder) -> Iterator[str]:
    for file in folder.sweep(older_than=0):
        yield f"removed {folder.path / file} (left by a writer that died)"
    damaged = folder.damaged()
    folder.remove(*damaged)
    for file in damaged:
        yield (
            f"removed {folder.path / file} (missing, truncated or altered); the next run makes it"
            " again"
        )
    if store.has_signals(folder):
        for file in store.drop_partial(folder):
            yield f"removed {folder.path / file} (left by a query that was stopped)"


def _held(folder: store.Folder) -> bool:
    """Whether any lock that was ever taken in this folder is held now."""
    locks = [path.name.removeprefix(".lock-") for path in folder.path.glob(".lock-*")]
    return any(map(folder.locked, locks))


def _modified(folder: store.Folder) -> float:
    """When the result was last written to, in seconds since 1970."""
    path = folder.path / store.MANIFEST
    if not os.path.lexists(path):
        path = folder.path
    return path.lstat().st_mtime


def _size(path: Path) -> int:
    """Bytes of all files in a folder; of links, the links' own."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            size += Path(folder, name).lstat().st_size
    return size


def _human(size: int) -> str:
    """A number of bytes in a readable form: 12 B, 3.4 MB."""
    thousands = min((len(str(size)) - 1) // 3, len(UNITS) - 1)
    decimals = 0 if thousands == 0 else 1
    return f"{size / 1000**thousands:.{decimals}f} {UNITS[thousands]}"
