"""Processes of this interpreter with pipes of text."""

from __future__ import annotations

import subprocess
import sys
from typing import IO


def popen(call: str, env: dict[str, str], stderr: IO) -> subprocess.Popen:
    """A process that calls `module:function`."""
    command = [sys.executable, "-c", f"from {call.replace(':', ' import ')} as call; call()"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, text=True
    )
