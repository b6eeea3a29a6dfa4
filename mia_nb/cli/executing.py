"""Execute one notebook by papermill, and explain an error in it in a few lines."""

from __future__ import annotations

import errno
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mia_nb.checks import quantity
from mia_nb.cli.progress import ANSI, Progress
from mia_nb.cli.say import short

if TYPE_CHECKING:
    from nbformat import NotebookNode

USERS_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
STARTS = 3  # attempts to start a kernel
SPEC = {"name": "python3", "language": "python", "display_name": "Python 3 (ipykernel)"}


class Failed(RuntimeError):
    """A notebook did not finish for another reason than bad input; the message has at most ten
    lines.
    """


class Killed(Failed):
    """The kernel died, or never answered."""


def execute(notebook: Path, out: Path, parameters: dict) -> list[str]:
    """Execute a notebook with papermill, in a kernel of this interpreter, and write it to `out`.

    Parameters:
        notebook: path of the notebook
        out: where the executed notebook is written, cell by cell
        parameters: {name: value}, injected into the notebook

    Returns:
        A line for each figure that failed.

    Raises:
        ValueError: for bad input, and for a full or write-protected disk.
        Failed: for any other error, in a few lines; Killed if the kernel died.
    """
    import nbformat
    from papermill.exceptions import PapermillExecutionError

    node = nbformat.v4.upgrade(nbformat.read(notebook, as_version=4))
    node.metadata["kernelspec"] = SPEC
    node.metadata.pop("papermill", None)
    cells = len(node.cells)
    if parameters:
        cells += 1  # papermill adds one
    progress = Progress(out.name, cells)
    try:
        _execute(node, out, parameters, progress)
    except PapermillExecutionError as error:
        # papermill raises at its end for errors in cells tagged `raises-exception` too, after which
        # the run went on
        lost = _failed_figures(out)
        if not lost:
            progress.end("failed")
            raise _explain(error, out) from error
        progress.end(f"{quantity(len(lost), 'figure')} failed")
        return lost
    except RuntimeError as error:  # nbclient's DeadKernelError among them
        progress.end("killed")
        raise Killed(
            f"{out.stem}: the kernel died in cell {progress.cell} of {progress.cells}; out of"
            f" memory, or killed by hand?\n  {_clip(str(error))}\n  done so far: {short(out)}"
        ) from error
    except BaseException:
        progress.end("stopped")
        raise
    progress.end()
    return []


def _execute(node: NotebookNode, out: Path, parameters: dict, progress: Progress) -> None:
    """Execute a notebook with papermill, which writes it to `out`. A kernel that dies before its
    first cell is started again, since two kernels that start at once may draw the same port.
    """
    import nbformat
    import papermill

    from mia_nb.cli.engine import ENGINE
    from mia_nb.cli.kernels import BatchKernels

    # papermill warns that parameters typed `str | None` are unknown
    logging.getLogger("papermill").setLevel(logging.ERROR)
    template = str(out).replace("{", "{{").replace("}", "}}")  # papermill formats its paths
    for attempt in range(1, STARTS + 1):
        nbformat.write(node, out)
        try:
            papermill.execute_notebook(
                template,
                template,
                parameters,
                engine_name=ENGINE,
                kernel_name=SPEC["name"],
                kernel_manager_class=BatchKernels,
                progress_bar=False,
                stdout_file=progress,
                stderr_file=progress,
                on_cell_start=progress.next_cell,
            )
            return
        except RuntimeError:
            if progress.cell or attempt == STARTS:
                raise


def _failed_figures(out: Path) -> list[str]:
    """A line for each figure that failed; [] if anything else failed. If only figures failed,
    papermill's marks of a failed run are removed from the notebook.
    """
    import nbformat
    from papermill.execute import remove_error_markers

    from mia_nb.report import errors_of_figures, is_figure

    notebook = remove_error_markers(nbformat.read(out, as_version=4))
    for cell in notebook.cells:
        if cell.metadata.get("papermill", {}).get("exception"):  # the run stopped there
            return []
        failed = any(output.output_type == "error" for output in cell.get("outputs", []))
        if failed and not is_figure(cell):
            return []
    nbformat.write(notebook, out)
    return errors_of_figures(notebook.cells)


def _explain(error: Exception, out: Path) -> Exception:
    """A papermill error as ValueError of one line (bad input, the user's disk) or as Failed of a
    few lines.
    """
    trace = ANSI.sub("", "\n".join(error.traceback))
    message = error.evalue.strip() or error.ename
    places_in_package = re.findall(r"(mia_nb[/\\][\w/\\]+\.py:\d+)", trace)
    line = _failed_line(error.source, trace)
    is_of_check = bool(places_in_package) or line.startswith("raise ValueError(")  # in the cell
    is_refusal = error.ename in ("ValueError", "Corrupt") and is_of_check
    if is_refusal or _is_of_users_disk(message):
        return ValueError(f"{out.stem}: {_clip(message)} (see {short(out)})")
    lines = [
        f"{out.stem} failed in cell In[{error.exec_count}]: {line}",
        f"  {error.ename}: {_clip(message)}",
    ]
    if places_in_package:
        lines.append(f"  raised at {places_in_package[-1]}")
    lines.append(f"  done so far, with the whole trace: {short(out)}")
    return Failed("\n".join(lines))


def _failed_line(source: str, trace: str) -> str:
    """The line of a cell at which it failed; its first line if the trace names none."""
    place = re.search(r"Cell In\[\d+\], line (\d+)", trace)
    number = int(place[1]) if place else 1
    lines = source.splitlines()
    return lines[number - 1].strip() if number <= len(lines) else ""


def _is_of_users_disk(message: str) -> bool:
    """Whether an error says that a disk is full or write-protected."""
    system_error = re.match(r"\[Errno (\d+)\]", message)
    return system_error is not None and int(system_error[1]) in USERS_DISK


def _clip(message: str) -> str:
    """The message on one line of at most a screenful."""
    line = " ".join(message.split())
    return line if len(line) <= 600 else line[:600] + " ..."
