"""mia-nb: run the notebooks, look at stored results. Exit status 0 done, 1 failed, 2 bad input, 3 a
stated limit exceeded, 130 interrupted."""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import sys
import tempfile
import warnings

from mia_nb import escape
from mia_nb.cli.options import join_parameters, parser


def main(argv: list[str] | None = None) -> int:
    """Parse and run one command; exceptions become one readable line and an exit status."""
    args = parser().parse_args(join_parameters(sys.argv[1:] if argv is None else argv))
    _give_home()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: _complain(str(message), 0)
            return args.command(args) or 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _complain("interrupted; run the same command again to go on", 130)
    except ValueError as error:
        return _complain(" ".join(str(error).split()), 2)
    except OSError as error:
        advice = "check that you may read and write there"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space, or choose another --results"
        where = escape.terminal(error.filename or "results")
        return _complain(f"{where}: {error.strerror or error}; {advice}", 2)
    except RuntimeError as error:
        from mia_nb.cli.executing import Failed

        if not isinstance(error, Failed):
            raise
        return _complain(str(error), 1)


def _give_home() -> None:
    """Make a temporary folder the home, where kernels keep their settings, if there is none that
    can be written to: for a container's user without an entry in /etc/passwd, or a system service.
    """
    home = os.path.expanduser("~")
    if os.path.isdir(home) and os.access(home, os.W_OK):
        return
    folder = tempfile.mkdtemp(prefix="mia-nb-home-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["HOME"] = folder
    os.environ.setdefault("USER", "nobody")  # a user without an entry has no name


def _complain(message: str, status: int) -> int:
    sys.stdout.flush()
    print(f"mia-nb: {escape.lines(message)}", file=sys.stderr)
    return status
