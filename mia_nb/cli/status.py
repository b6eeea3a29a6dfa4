"""The status of each step of a run, as stored in its folder."""

from __future__ import annotations

from mia_nb import store

STATUS = "status.json"


def read_status(folder: store.Folder) -> list[dict]:
    """An entry per step: notebook, file, status, started, seconds, error; [] if the record is
    damaged. A step that a dead process left running counts as killed.
    """
    try:
        entries = folder.read_json(STATUS, steps=list)["steps"]
    except store.Corrupt:
        return []
    if not all(map(_is_entry, entries)):
        return []
    running = [entry for entry in entries if entry["status"] == "running"]
    if running and not folder.locked("run"):
        for entry in running:
            entry["status"] = "killed"
    return entries


def _is_entry(record: object) -> bool:
    types = {"file": str, "status": str, "started": str, "seconds": int | float}
    if not isinstance(record, dict):
        return False
    return all(isinstance(record.get(name), kind) for name, kind in types.items())


def is_whole(entry: dict) -> bool:
    """Whether a step is done, with every figure."""
    return entry.get("status") == "done" and not entry.get("error")


def lost_figures(folder: store.Folder) -> list[str]:
    """A line for each notebook of a run that is done, but in which figures failed."""
    done = [entry for entry in read_status(folder) if entry["status"] == "done"]
    return [f"{entry['file']}: {entry['error']}" for entry in done if entry.get("error")]
