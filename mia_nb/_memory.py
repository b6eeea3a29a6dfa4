"""Whether arrays fit into the memory that they may take."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

BUDGET = "MIA_NB_MAX_GB"
CGROUPS = Path("/sys/fs/cgroup")
# hierarchies of control groups: the files of their limits on memory. "" is version 2
LIMIT_FILES = {"": "memory.max", "memory": "memory.limit_in_bytes"}


def check_budget(what: str, size: int) -> None:
    """ValueError if `size` bytes are more than the environment variable MIA_NB_MAX_GB allows.

    Its unit is 10^9 bytes. Without it the limit is half of the memory of this machine, or of the
    process's control group.
    """
    text = os.environ.get(BUDGET, "")
    try:
        most = float(text) * 1e9 if text else _memory() / 2
    except ValueError:
        most = math.nan
    if not most > 0:
        raise ValueError(f"{BUDGET}={text!r}: wanted a number of gigabytes, such as 8")
    if size > most:
        raise ValueError(
            f"{what} would take {size / 1e9:,.1f} GB of memory, and {most / 1e9:,.1f} are allowed: "
            f"take fewer or smaller images, or raise {BUDGET}"
        )


def _memory() -> float:
    """Bytes that this process may use, as far as is known."""
    limits = [math.inf]
    with contextlib.suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, hierarchy, group = line.split(":", 2)
            if hierarchy not in LIMIT_FILES:
                continue
            for parent in (group, *Path(group).parents):
                folder = CGROUPS / hierarchy / str(parent).lstrip("/")
                with contextlib.suppress(OSError, ValueError):  # "max" is no number
                    limits.append(int((folder / LIMIT_FILES[hierarchy]).read_text()))
    return min(limits)
