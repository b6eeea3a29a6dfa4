"""The report of a run, and the first sentences of its verdict for a terminal."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import textwrap
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from mia_nb import __version__, escape, store
from mia_nb._code_origin import NUMERIC, WITH_TORCH
from mia_nb._files import parse_json, replacing
from mia_nb.cli.say import say, short
from mia_nb.cli.status import read_status

REPORT, PROVENANCE = "report.html", "provenance.json"
SENTENCES = 3  # of a verdict that a terminal shows


def verdict_lines(folder: store.Folder) -> list[str]:
    """The first sentences of a run's verdict, as lines of a terminal; none without a verdict."""
    cells = []
    for file in folder.files():
        if file.endswith(".ipynb"):
            cells += parse_json(folder.read_bytes(file))["cells"]
    texts = _verdicts(cells)
    if not texts:
        return []
    lines = [line for line in texts[0].splitlines() if line.strip()]
    wrapped = []
    for line in lines[: SENTENCES + 1]:  # and the heading
        plain = escape.terminal(escape.unmarked(line.lstrip("#* ")))
        unbroken = re.sub(r"(\d) %", "\\1\u00a0%", plain)
        wrapped += textwrap.wrap(unbroken, 79, subsequent_indent="  ")
    return wrapped


def _verdicts(cells: list[dict]) -> list[str]:
    """The texts of the cells tagged `verdict`. As on top of the report, those of cells that are
    also tagged `headline` come last.
    """
    verdicts = []
    headlines = []
    for cell in cells:
        tags = cell["metadata"].get("tags", [])
        if "verdict" not in tags:
            continue
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/markdown")
            if text is not None:
                texts = headlines if "headline" in tags else verdicts
                texts.append("".join(text))
    return verdicts + headlines


def report(folder: store.Folder, out: str | Path | None = None) -> Path:
    """Write the report of a run's finished notebooks to `out`, by default the run's report.html."""
    from mia_nb.report import page

    entries = _finished(folder)
    if not entries:
        raise ValueError(f"{short(folder.path)} has no finished notebook; run it first")
    facts = {"run": f"{folder.name} {folder.key}"}
    if folder.intact(PROVENANCE):
        facts |= folder.read_json(PROVENANCE, mia_nb=str)
    lead = facts.pop("about", "")
    executed = {}
    for entry in entries:
        file = entry["file"]
        facts[file] = f"{entry['started']}, {entry['seconds']:.1f} s"
        executed[folder.path / file] = folder.read_bytes(file)
    date = min(entry["started"] for entry in entries)[:10]
    title = f"Membership inference: {folder.name}, {date}"
    text = page(executed, title=title, lead=lead, provenance=facts).encode()
    if out is not None:
        with replacing(out) as file:
            file.write(text)
        return Path(out)
    folder.write_bytes(REPORT, text)
    return folder.path / REPORT


def report_again(args: Namespace) -> None:
    """`mia-nb report`: write a run's report again, by default that of the latest run with a
    finished notebook.
    """
    root = args.results
    folder = store.find(args.key, root, "run") if args.key else _latest_run(root)
    try:
        say(os.path.relpath(report(folder, out=args.out)))
    except OSError as error:
        if args.out is not None or error.errno not in store.READ_ONLY:
            raise
        why = os.strerror(error.errno)
        raise store.ReadOnly(
            f"cannot write to {short(folder.path)}: {why}; write the report elsewhere:"
            f" mia-nb report {folder.key[:12]} --results {root} --out report.html"
        ) from error


def _latest_run(root: str) -> store.Folder:
    """The latest run with a finished notebook; if there is none, the latest run, which `report`
    refuses.
    """
    runs = store.folders(root, "run")
    if not runs:
        raise ValueError(f"no run in {root} yet; start with: mia-nb run all --preset demo")
    finished = [folder for folder in runs if _finished(folder)]
    return (finished or runs)[-1]


def _finished(folder: store.Folder) -> list[dict]:
    """The status entries of a run's steps that are done."""
    return [entry for entry in read_status(folder) if entry["status"] == "done"]


def machine_facts() -> dict[str, str]:
    """Versions of the software, and the machine.

    Which device trained a pool stands in the pool's own record.
    """
    versions = []
    for name in (*WITH_TORCH, *NUMERIC, "plotly"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return {
        "mia_nb": __version__,
        "Python": f"{platform.python_version()} on {platform.platform()}",
        "packages": ", ".join(versions),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
