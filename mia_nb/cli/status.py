"""The status of each step of a run, as stored in its folder."""

from __future__ import annotations

from mia_nb import store
from mia_nb._files import has_entries

STATUS = "status.json"
ENTRIES = {"file": str, "status": str, "started": str, "seconds": int | float}  # of each step


def read_status(folder: store.Folder) -> list[dict]:
    """An entry per step: notebook, file, status, started, seconds, error; [] if the record is
    damaged. A step that a dead process left running counts as killed.
    """
    try:
        entries = folder.read_json(STATUS, steps=list)["steps"]
    except store.Corrupt:
        return []
    if not all(has_entries(entry, ENTRIES) for entry in entries):
        return []
    running = [entry for entry in entries if entry["status"] == "running"]
    if running and not folder.locked("run"):
        for entry in running:
            entry["status"] = "killed"
    return entries


def is_whole(entry: dict) -> bool:
    """Whether a step is done, with every figure."""
    return entry.get("status") == "done" and not entry.get("error")


def lost_figures(folder: store.Folder) -> list[str]:
    """A line for each notebook of a run that is done, but in which figures failed."""
    done = [entry for entry in read_status(folder) if entry["status"] == "done"]
    return [f"{entry['file']}: {entry['error']}" for entry in done if entry.get("error")]
