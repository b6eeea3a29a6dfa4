"""mia-nb: run the notebooks, look at what is stored. Exit status 0 done, 1 failed, 2 bad input, 3 a stated limit
exceeded, 130 interrupted."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from pathlib import Path

from mia_nb import __version__

ENGINES = ("local", "joblib", "dask", "ray", "slurm")


def main(argv: list[str] | None = None) -> int:
    """Parse, run one command, turn exceptions into one readable line and an exit status."""
    args = _parser().parse_args(_join_parameters(sys.argv[1:] if argv is None else argv))
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
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = (
            "free some space, or choose another --results"
            if full
            else "check that you may read and write there"
        )
        return _complain(f"{error.filename or 'results'}: {error.strerror or error}; {advice}", 2)
    except RuntimeError as error:
        from mia_nb.cli.run import Failed

        if not isinstance(error, Failed):
            raise
        return _complain(str(error), 1)


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"mia-nb: {' '.join(message.split())} (mia-nb --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mia-nb",
        description="Membership inference in notebooks: run them, look at what is stored.",
    )
    parser.add_argument("--version", action="version", version=f"mia-nb {__version__}")
    parser.set_defaults(command=lambda args: parser.print_help())
    commands = parser.add_subparsers(metavar="COMMAND")

    def add(name, command, help, *, notebooks=False):
        sub = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        sub.set_defaults(command=command)
        sub.add_argument(
            "--results",
            default="results",
            metavar="DIR",
            help="where results are kept (default: results)",
        )
        if notebooks:
            sub.add_argument(
                "--notebooks", metavar="DIR", help="look for notebooks and presets here only"
            )
        return sub

    run = add(
        "run",
        _run,
        "execute notebooks, or say that their results are already there",
        notebooks=True,
    )
    run.add_argument(
        "notebook",
        metavar="NAME",
        help="01_train or train for short, a path, a preset, or all (of --preset)",
    )
    run.add_argument(
        "--preset", metavar="NAME", help="steps and parameters from notebooks/presets/NAME.yaml"
    )
    run.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="name=value",
        help="override, read as YAML",
    )
    run.add_argument("--force", action="store_true", help="compute again what is stored")
    run.add_argument(
        "--engine",
        choices=ENGINES,
        help="where pools are trained (default: local, processes of this machine)",
    )
    run.add_argument(
        "--workers",
        metavar="N",
        help="models or groups trained at a time; or the address of a dask or ray cluster",
    )
    estimate = add(
        "estimate",
        _estimate,
        "how long a pool would take to train here, measured in seconds",
        notebooks=True,
    )
    estimate.add_argument(
        "--preset", metavar="NAME", help="parameters of 01_train from notebooks/presets/NAME.yaml"
    )
    estimate.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="name=value",
        help="override, read as YAML",
    )
    _add_audit(
        add(
            "audit",
            _audit,
            "ask whether a model of yours can be made to betray its training data: one report",
            notebooks=True,
        )
    )
    params = add(
        "params", _params, "a notebook's parameters: type, default, meaning", notebooks=True
    )
    params.add_argument("notebook", metavar="NAME")
    add("list", _list, "what is stored: pools, signals, runs")
    add("show", _show, "the recipe and the files of one result").add_argument("key", metavar="KEY")
    explore = add(
        "explore",
        _explore,
        "open all explorers in the browser, without code (needs voila)",
        notebooks=True,
    )
    explore.add_argument(
        "--port", type=int, default=8866, help="default: 8866; only this machine can reach it"
    )
    explore.add_argument("--no-browser", action="store_true", help="do not open a browser")
    report = add("report", _report, "write report.html of a run again")
    report.add_argument(
        "key", nargs="?", metavar="KEY", help="default: the latest run with a finished notebook"
    )
    clean = add(
        "clean",
        _clean,
        "remove what writers left behind and damaged files; whole results when named",
    )
    clean.add_argument("key", nargs="?", metavar="KEY", help="a result to remove")
    clean.add_argument("--all", action="store_true", help="remove every result")
    clean.add_argument(
        "--older-than", type=float, metavar="DAYS", help="remove results not written to for so long"
    )
    clean.add_argument(
        "--yes", action="store_true", help="do remove; without it whole results are only listed"
    )
    add("doctor", _doctor, "check the installation and every stored file")
    return parser


def _add_audit(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="builds your network; torchvision.models:resnet18 as it comes",
    )
    sub.add_argument(
        "--data",
        metavar="PATH",
        help="a folder of class folders of images, an .npz, or the name of a data set",
    )
    sub.add_argument(
        "--logits",
        metavar="FILE.npz",
        help="instead: logits, labels and member of models trained elsewhere",
    )
    sub.add_argument("--pool", metavar="KEY", help="instead: a stored pool")
    sub.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="passes over a model's half of the images (default: 20)",
    )
    sub.add_argument(
        "--models",
        type=int,
        metavar="N",
        help="models to train, even (default: 16; 8 take half the time)",
    )
    what = 'exit with status 3 if "tpr@0.01>0.05", "auc>0.6", "advantage>0.1" or "epsilon>1" is established at 95 %% confidence'
    sub.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="LIMIT",
        help=f"{what}; may be given several times",
    )
    sub.add_argument(
        "-p",
        "--parameter",
        action="append",
        default=[],
        metavar="name=value",
        help="override, read as YAML",
    )
    sub.add_argument("--force", action="store_true", help="compute again what is stored")


def _join_parameters(argv: list[str]) -> list[str]:
    """`-p name value` as `-p name=value`: argparse would take -0.1 for an option and swallow what follows."""
    out, rest = [], list(argv)
    while rest:
        out.append(rest.pop(0))
        if out[-1] in ("-p", "--parameter") and rest:
            name = rest.pop(0)
            out[-1] = "--parameter=" + (
                f"{name}={rest.pop(0)}"
                if "=" not in name and rest and not rest[0].startswith("--")
                else name
            )
    return out


def _given(args) -> list[tuple[str, str]]:
    """What -p says, as (name, text)."""
    given = []
    for text in args.parameter:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"-p {text}: wanted -p name=value or -p name value")
        given.append((name.strip(), value))
    return given


def _workers(args) -> list[tuple[str, str]]:
    """What --engine and --workers say, as a notebook's parameter."""
    if args.engine in (None, "local"):
        if args.workers is not None and not args.workers.isdigit():
            raise ValueError(
                f"--workers {args.workers}: wanted a number of processes, or say --engine dask or ray for a cluster"
            )
        return [("workers", args.workers)] if args.workers else []
    return [("workers", f"{args.engine}:{args.workers}" if args.workers else args.engine)]


def _estimate(args) -> None:
    from mia_nb.cli import estimate, notebooks

    where = notebooks.folders(args.notebooks)
    for line in estimate.lines(notebooks.plan(estimate.TRAINS, args.preset, _given(args), where)):
        print(line)


def _run(args) -> None:
    from mia_nb.cli import notebooks

    given = [*_given(args), *_workers(args)]
    where = notebooks.folders(args.notebooks)
    target, preset = notebooks.resolve(args.notebook, args.preset, where)
    steps = notebooks.plan(target, preset, given, where)
    from mia_nb.cli import run

    name = Path(preset).stem if target == "all" else steps[0].notebook.stem
    about = notebooks.about(preset, where) if target == "all" else ""
    folder = run.run(name, steps, args.results, force=args.force, about=about)
    for file in [f for f in folder.files() if f.endswith(".ipynb")] + [run.REPORT]:
        print(f"  {os.path.relpath(folder.path / file)}")


def _audit(args) -> int:
    from mia_nb.cli import audit

    return audit.audit(args)


def _params(args) -> None:
    from mia_nb.cli import notebooks

    path = notebooks.find_notebook(args.notebook, notebooks.folders(args.notebooks))
    known = notebooks.read_parameters(path).values()
    rows = [
        (p.name, " | ".join(p.kinds) or "any", repr(p.default), notebooks.meaning(p)) for p in known
    ]
    print(f"{path}" if rows else f"{path} has no cell tagged `parameters`")
    _table(rows)


def _list(args) -> None:
    from mia_nb.cli import stored

    rows = stored.rows(args.results)
    if rows:
        _table([("kind", "key", "name", "size", "date", "status"), *rows])
    else:
        print(f"nothing in {args.results} yet; start with: mia-nb run all --preset demo")


def _show(args) -> None:
    from mia_nb.cli import stored

    print(stored.describe(args.results, args.key))


def _report(args) -> None:
    from mia_nb import store
    from mia_nb.cli import run

    runs = (
        [store.find(args.key, args.results, "run")]
        if args.key
        else store.folders(args.results, "run")
    )
    if not runs:
        raise ValueError(f"no run in {args.results} yet; start with: mia-nb run all --preset demo")
    runs = [
        one for one in runs if any(step["status"] == "done" for step in run.read_status(one))
    ] or runs
    print(os.path.relpath(run.report(runs[-1])))


def _explore(args) -> int:
    from mia_nb.cli import dashboard, notebooks

    return dashboard.serve(
        args.results, notebooks.folders(args.notebooks), port=args.port, browser=not args.no_browser
    )


def _clean(args) -> None:
    from mia_nb.cli import stored

    line = None
    for line in stored.clean(
        args.results, args.key, everything=args.all, older_than=args.older_than, yes=args.yes
    ):
        print(line)
    if line is None:
        print("nothing to clean")


def _doctor(args) -> int:
    from mia_nb.cli import doctor

    return doctor.examine(args.results)


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _complain(message: str, status: int) -> int:
    sys.stdout.flush()
    print(f"mia-nb: {message}", file=sys.stderr)
    return status
