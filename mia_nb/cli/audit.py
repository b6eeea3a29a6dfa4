"""`mia-nb audit`: one run of the audit notebook, its result as a file, and an exit status that can
gate a release.
"""

from __future__ import annotations

import json
import os
import warnings
import xml.etree.ElementTree as ElementTree
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

from mia_nb import auditing, escape, store
from mia_nb._files import parse_json
from mia_nb.auditing.result import IDLE, MIME
from mia_nb.auditing.sentences import BELOW, EXCEEDED, OPEN, TWINS
from mia_nb.cli import notebooks, run, weights
from mia_nb.cli.report import REPORT
from mia_nb.cli.say import say
from mia_nb.cli.status import lost_figures

NOTEBOOK, RESULT = "07_audit_your_model", "result.json"
JUNIT = "junit.xml"
WAYS = ("model", "logits", "pool")
BRINGS = {"model": "a network", "logits": "outputs", "pool": "trained models"}
OPTIONS = {  # option: the parameter that it gives
    "model": "model",
    "logits": "logits",
    "pool": "pool",
    "data": "dataset",
    "epochs": "epochs",
    "models": "num_models",
}
DONE = 0  # exit statuses
FAILED = 1
OVER = 3


class Given(NamedTuple):
    """A parameter of the notebook, given on the command line."""

    name: str
    text: str
    option: str  # such as "--epochs"; "" for -p

    def __str__(self) -> str:
        return f"{self.option} {self.text}" if self.option else f"-p {self.name}={self.text}"


def parameters(args: Namespace) -> list[tuple[str, str]]:
    """The options as (parameter, text) of the notebook; ValueError for options that do not go
    together.
    """
    given = []
    for option, name in OPTIONS.items():
        value = getattr(args, option)
        if value is not None:
            given.append(Given(name, str(value), f"--{option}"))
    for name, text in notebooks.name_value_pairs(args.parameter):
        given.append(Given(name, text, ""))
    if args.fail_if:
        limits = [str(limit) for limit in auditing.limits(args.fail_if)]
        given.append(Given("fail_if", json.dumps(limits), "--fail-if"))
    for name in dict.fromkeys(parameter.name for parameter in given):
        times = [str(parameter) for parameter in given if parameter.name == name]
        if len(times) > 1:
            raise ValueError(
                f"{name} was given {len(times)} times ({', '.join(times)}); give it once"
            )
    _refuse_together(given)
    return [(parameter.name, parameter.text) for parameter in given]


def _refuse_together(given: list[Given]) -> None:
    """ValueError unless the options name one thing to audit, all that it needs and no more."""
    values = {parameter.name: parameter.text for parameter in given}
    ways = [name for name in WAYS if values.get(name)]
    if len(ways) != 1:
        came = f"; came {' and '.join(f'--{name}' for name in ways)}" if ways else ""
        raise ValueError(
            "wanted one of --model package.module:function --data IMAGES, --logits FILE.npz"
            f" (outputs of models trained elsewhere), --pool KEY (a stored pool){came}"
        )
    way = ways[0]
    if way == "model" and "dataset" not in values:
        raise ValueError(
            "--model needs --data: a folder of class folders of images, an .npz with train_images,"
            " or a known name"
        )
    idle = []
    for parameter in given:
        if parameter.name in IDLE[way]:
            idle.append(parameter.option or parameter.name)
    if idle:
        advice = "leave it out" if len(idle) == 1 else "leave them out"
        raise ValueError(
            f"--{way} brings {BRINGS[way]}: {', '.join(idle)} would change nothing; {advice}"
        )
    if way == "logits" and not Path(values["logits"]).is_file():
        raise ValueError(
            f"--logits {values['logits']}: no such file; wanted an .npz with logits, labels and"
            " member, or a .csv of one model"
        )


def plan(args: Namespace) -> None:
    """`mia-nb plan`: draw the training samples of each model, and say how to use the plan."""
    path = auditing.plan(args.samples, args.models, seed=args.seed, out=args.out)
    say(f"{path}: train model m on np.flatnonzero(np.load({str(path)!r})['member'][m]),")
    say("query each about all samples, then auditing.collect; docs/howto/audit-your-model.md")


def audit(args: Namespace) -> int:
    """Run the audit unless it is already done; print verdicts and the path of the report.

    Returns the exit status: 0, 1 (no verdict can be trusted) or 3.
    """
    if args.weights or args.member:
        args = weights.with_outputs(args)
    steps = notebooks.plan(NOTEBOOK, None, parameters(args), notebooks.folders(args.notebooks))
    folder = run.run("audit", steps, args.results, force=args.force)
    record = read_result(folder)
    say(record["headline"])
    for verdict in record["verdicts"]:
        say(f"  {verdict['sentence']}")
    code, line = status(record)
    say(line)
    if args.weights:
        say(TWINS)
    files = [REPORT, RESULT]
    if record["verdicts"]:
        folder.write_bytes(JUNIT, junit(record))
        files.append(JUNIT)
    for file in files:
        say(f"  {os.path.relpath(folder.path / file)}")
    for lost in lost_figures(folder):  # the verdict, which the status is about, is there
        warnings.warn(lost, stacklevel=2)
    return code


def read_result(folder: store.Folder) -> dict:
    """result.json of a run of the audit notebook; written from the executed notebook if it is
    missing or differs.
    """
    source = f"{NOTEBOOK}.ipynb"
    cells = parse_json(folder.read_bytes(source))["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    records = [data[MIME] for data in outputs if MIME in data]
    if not records:
        raise run.Failed(
            f"{folder.path / source} holds no result; run the audit again with --force"
        )
    if not (folder.intact(RESULT) and folder.read_json(RESULT) == records[-1]):
        folder.write_json(RESULT, records[-1])
    return records[-1]


def status(record: dict) -> tuple[int, str]:
    """(exit status, line that says why) of a result.

    3: a stated limit is exceeded. 1: no limit is exceeded, but the numbers cannot be trusted:
    members and non-members may differ in more than membership, the negative control failed, or an
    attack ranks members below non-members beyond chance. 0: otherwise, also if a limit could not be
    decided.
    """
    outcomes = [verdict["outcome"] for verdict in record["verdicts"]]
    if not outcomes:
        return DONE, "no limit was stated (--fail-if)"
    if over := outcomes.count(EXCEEDED):
        return OVER, f"{over} of {len(outcomes)} stated limits exceeded at 95 % confidence"
    checks = record["self_test"]
    if record.get("design", {}).get("doubt"):
        return FAILED, "not established: members and non-members may differ in more than membership"
    if not checks["self_test_passed"]:
        failure = "the negative control failed: no verdict on a limit can be trusted"
        return FAILED, f"{failure}; see it in the report"
    if checks["inverted"]:
        names = ", ".join(checks["inverted"])
        failure = f"{names} ranks members below non-members: look at the design"
        return FAILED, f"{failure} (is `member` right?) before any verdict"
    counts = [f"{outcomes.count(kind)} {kind}" for kind in (BELOW, OPEN) if kind in outcomes]
    line = f"no stated limit exceeded at 95 % confidence: {', '.join(counts)}"
    if any(verdict.get("tail") for verdict in record["verdicts"]):
        line += "; but the tail gives members away"
    return DONE, line


def junit(record: dict) -> bytes:
    """The limits of a result as JUnit XML, which build servers show as tests.

    An exceeded limit is a failure; a limit that could not be decided is skipped. If the numbers
    cannot be trusted (status 1), the test of the audit itself fails.
    """
    code, line = status(record)
    cases = {"the audit itself": ("failure" if code == FAILED else None, line)}
    for verdict in record["verdicts"]:
        kind = {EXCEEDED: "failure", OPEN: "skipped"}.get(verdict["outcome"])
        cases[verdict["limit"]] = (kind, verdict["sentence"])
    kinds = [kind for kind, _ in cases.values()]
    suite = ElementTree.Element(
        "testsuite",
        name="mia-nb audit",
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        skipped=str(kinds.count("skipped")),
    )
    for name, (kind, sentence) in cases.items():
        case = ElementTree.SubElement(suite, "testcase", classname="mia_nb.audit", name=name)
        if kind is not None:
            ElementTree.SubElement(case, kind, message=escape.terminal(sentence))
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
