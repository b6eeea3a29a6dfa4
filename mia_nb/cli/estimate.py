"""`mia-nb estimate`: how long the pools of a preset would take here, before anything is trained."""

from __future__ import annotations

from mia_nb import data
from mia_nb.cli import notebooks
from mia_nb.cli.say import say
from mia_nb.types import Recipe

TRAINS = "01_train"  # the notebook whose parameters are those of a recipe


def estimate(args) -> None:
    """Print one line a step of 01_train; a short measurement each.

    Raises ValueError as loading and training do.
    """
    where, given = notebooks.folders(args.notebooks), notebooks.given(args.parameter)
    steps = notebooks.plan(TRAINS, args.preset, given, where)

    from mia_nb import training

    for step in steps:
        source, run = step.parameters["source"], step.parameters["run"]
        how = {name: run[name] for name in ("device", "strategy", "workers")}
        recipe = Recipe(**step.parameters["recipe"])
        say(training.estimate(recipe, data.load(**source), **how)["text"])
