"""The commands of mia-nb and their options."""

from __future__ import annotations

import argparse
import math
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from mia_nb import __version__, escape

LAST_PORT = 65535
BACKENDS = ("loky", "dask", "ray")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"mia-nb: {escape.terminal(message)} (mia-nb --help)\n")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line; `command` of the parsed arguments runs the command."""
    main_parser = _Parser(
        prog="mia-nb",
        description="Membership inference in notebooks: run them, look at what is stored.",
    )
    main_parser.add_argument("--version", action="version", version=f"mia-nb {__version__}")
    main_parser.set_defaults(command=lambda args: main_parser.print_help())
    commands = main_parser.add_subparsers(metavar="COMMAND")
    for name, (function, help, options) in COMMANDS.items():
        sub = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        sub.set_defaults(command=partial(_call, function))
        for flags, settings in (RESULTS, *options):
            sub.add_argument(*flags, **settings)
    return main_parser


def _call(place: str, args: argparse.Namespace) -> int | None:
    """Run the function module:function of this package; the module is imported only now."""
    if getattr(args, "allow", None):
        from mia_nb import models  # imports torch

        models.allow(*args.allow)
    module, _, function = place.partition(":")
    return getattr(import_module(f"mia_nb.cli.{module}"), function)(args)


def join_parameters(argv: list[str]) -> list[str]:
    """Join `-p name value` to `-p name=value`: argparse would take a value -0.1 for an option, and
    the texts after a value for more values.
    """
    joined = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-p", "--parameter") and rest:
            pair = rest.pop(0)
            if "=" not in pair and rest and not rest[0].startswith("--"):
                pair = f"{pair}={rest.pop(0)}"
            word = f"--parameter={pair}"
        joined.append(word)
    return joined


def _port(text: str) -> int:
    """The number of a port, or 0 for any that is free."""
    if not (text.isascii() and text.isdigit() and int(text) <= LAST_PORT):
        raise argparse.ArgumentTypeError(
            f"{text}: wanted a whole number from 0 (any free port) to {LAST_PORT}"
        )
    return int(text)


def _days(text: str) -> float:
    """A finite number of days from 0."""
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: wanted a number of days from 0")
    return days


def _option(*flags: str, **settings: Any) -> tuple:
    return flags, settings


RESULTS = _option(
    "--results", default="results", metavar="DIR", help="where results are kept (default: results)"
)
NOTEBOOKS = _option("--notebooks", metavar="DIR", help="look for notebooks and presets here only")
PARAMETER = _option(
    "-p",
    "--parameter",
    action="append",
    default=[],
    metavar="name=value",
    help="override, read as YAML",
)
ALLOW = _option(
    "--allow",
    action="append",
    default=[],
    metavar="MODULE",
    help="take networks of stored pools from this module of yours; may be given several times",
)
FORCE = _option("--force", action="store_true", help="compute again what is stored")
COMMANDS = {  # name: (module:function, help, options besides --results)
    "run": (
        "run:command",
        "execute notebooks, or say that their results are already there",
        [
            NOTEBOOKS,
            _option(
                "notebook",
                metavar="NAME",
                help="01_train or train for short, a path, a preset, or all (of --preset)",
            ),
            _option(
                "--preset",
                metavar="NAME",
                help="steps and parameters from notebooks/presets/NAME.yaml",
            ),
            PARAMETER,
            FORCE,
            ALLOW,
            _option(
                "--backend",
                choices=BACKENDS,
                help="where pools are trained: loky (this machine, the default), dask or ray",
            ),
            _option("--workers", type=int, metavar="N", help="models or groups trained at a time"),
        ],
    ),
    "audit": (
        "audit:audit",
        "test how much a model of yours leaks about its training data: one report",
        [
            NOTEBOOKS,
            _option(
                "--model",
                metavar="MODULE:FUNCTION",
                help="builds your network; torchvision.models:resnet18 as it comes",
            ),
            _option(
                "--data",
                metavar="PATH",
                help="a folder of class folders of images, an .npz, or the name of a data set",
            ),
            _option(
                "--logits",
                metavar="FILE",
                help="instead: an .npz with logits, labels and member of models trained elsewhere,"
                " or a .csv of one model: columns label, member and one per class",
            ),
            _option("--pool", metavar="KEY", help="instead: a stored pool"),
            _option(
                "--weights",
                metavar="FILE",
                help="the finished --model itself: safetensors, or a state dict of torch.save",
            ),
            _option(
                "--member",
                metavar="FILE.npy",
                help="with --weights: true for each image of --data that it was trained on",
            ),
            _option(
                "--epochs",
                type=int,
                metavar="N",
                help="passes over a model's half of the images (default: 20)",
            ),
            _option(
                "--models",
                type=int,
                metavar="N",
                help="models to train, even (default: 16; 8 take half the time)",
            ),
            _option(
                "--fail-if",
                action="append",
                default=[],
                metavar="LIMIT",
                help=(
                    'exit with status 3 if "tpr@0.01>0.05", "auc>0.6", "advantage>0.1" or'
                    ' "epsilon>1" is established at 95 %% confidence; may be given several times'
                ),
            ),
            PARAMETER,
            FORCE,
            ALLOW,
        ],
    ),
    "plan": (
        "audit:plan",
        "draw who trains which model, for models that are trained elsewhere",
        [
            _option("--samples", type=int, required=True, metavar="N", help="samples there are"),
            _option("--models", type=int, required=True, metavar="M", help="models, even"),
            _option("--seed", type=int, default=0, metavar="S", help="of the draw (default: 0)"),
            _option("--out", default="plan.npz", metavar="FILE", help="default: plan.npz"),
        ],
    ),
    "params": (
        "notebooks:params",
        "a notebook's parameters: type, default, meaning",
        [NOTEBOOKS, _option("notebook", metavar="NAME")],
    ),
    "list": ("stored:list_all", "what is stored: pools, signals, runs", []),
    "show": (
        "stored:show",
        "the recipe and the files of one result",
        [_option("key", metavar="KEY")],
    ),
    "explore": (
        "dashboard:serve",
        "open all explorers in the browser, without code (needs voila)",
        [
            _option(
                "--port",
                type=_port,
                default=8866,
                metavar="N",
                help="default: 8866, or a free one where it is taken; 0 takes any free one",
            ),
            _option("--no-browser", action="store_true", help="do not open a browser"),
        ],
    ),
    "report": (
        "report:report_again",
        "write report.html of a run again",
        [
            _option(
                "key",
                nargs="?",
                metavar="KEY",
                help="default: the latest run with a finished notebook",
            ),
            _option("--out", metavar="FILE", help="default: report.html in the folder of the run"),
        ],
    ),
    "clean": (
        "stored:clean",
        "remove what writers left behind and damaged files; whole results when named",
        [
            _option("key", nargs="?", metavar="KEY", help="a result to remove"),
            _option("--all", action="store_true", help="remove every result"),
            _option(
                "--older-than",
                type=_days,
                metavar="DAYS",
                help="remove results not written to for so long",
            ),
            _option(
                "--yes",
                action="store_true",
                help="do remove; without it whole results are only listed",
            ),
        ],
    ),
    "doctor": ("doctor:examine", "versions, devices, and whether every stored file is intact", []),
}
