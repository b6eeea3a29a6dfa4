"""The state of each step of a run, as its folder keeps it."""

from __future__ import annotations

from mia_nb import store

STATUS = "status.json"


def read_status(folder: store.Folder) -> list[dict]:
    """Per step: notebook, file, status, started, seconds, error; [] where the record is damaged. A
    step left running by a dead process is killed.
    """
    try:
        steps = folder.read_json(STATUS, steps=list)["steps"]
    except store.Corrupt:
        return []
    if not all(map(_is_step, steps)):
        return []
    running = [step for step in steps if step["status"] == "running"]
    if running and not folder.locked("run"):
        for step in running:
            step["status"] = "killed"
    return steps


def _is_step(record: object) -> bool:
    types = {"file": str, "status": str, "started": str, "seconds": int | float}
    if not isinstance(record, dict):
        return False
    return all(isinstance(record.get(name), kind) for name, kind in types.items())


def is_whole(step: dict) -> bool:
    """Whether a step of a record is done, with every figure."""
    return step.get("status") == "done" and not step.get("error")


def lost_figures(folder: store.Folder) -> list[str]:
    """A line for each notebook of a run that is done without a figure that failed."""
    steps = [step for step in read_status(folder) if step["status"] == "done"]
    return [f"{step['file']}: {step['error']}" for step in steps if step.get("error")]
