"""`mia-nb audit`: one run of the audit notebook, its result as a file, and an exit status that can gate a release."""

from __future__ import annotations

import json
import os
from pathlib import Path

from mia_nb import auditing, store
from mia_nb.auditing.gate import BELOW, EXCEEDED, OPEN
from mia_nb.auditing.result import MIME, idle
from mia_nb.cli import notebooks, run

NOTEBOOK, RESULT = "07_audit_your_model", "result.json"
WAYS = ("model", "logits", "pool")
BRINGS = {"logits": "answers", "pool": "trained models"}
OPTIONS = {"data": "dataset", "models": "num_models"}  # options whose parameter has another name
DONE, FAILED, OVER = 0, 1, 3


def parameters(args) -> list[tuple[str, str]]:
    """What the options say, as (parameter, text) of the notebook; ValueError for what does not go together."""
    given = [(name, str(value), f"--{option}") for option in ("model", "logits", "pool", "data", "epochs", "models")
             for name, value in [(OPTIONS.get(option, option), getattr(args, option))] if value is not None]  # fmt: skip
    texts = []
    for text in args.parameter:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"-p {text}: wanted -p name=value or -p name value")
        if name.strip() == "fail_if":
            texts += _listed(value)
        else:
            given.append((name.strip(), value, f"-p {name.strip()}"))
    said = {name: [f"{how} {value}" if how[1] == "-" else f"{how}={value}" for n, value, how in given if n == name]
            for name, _, _ in given}  # fmt: skip
    for name, words in said.items():
        if len(words) > 1:
            raise ValueError(
                f"{name} was given {len(words)} times ({', '.join(words)}); give it once"
            )
    named = {name: value for name, value, _ in given}
    ways = [name for name in WAYS if named.get(name)]
    if len(ways) != 1:
        came = f"; came {' and '.join(f'--{name}' for name in ways)}" if ways else ""
        raise ValueError(
            "wanted one of --model package.module:function --data IMAGES, --logits FILE.npz (outputs of models trained "
            f"elsewhere), --pool KEY (a stored pool){came}"
        )
    if ways == ["model"] and "dataset" not in named:
        raise ValueError(
            "--model needs --data: a folder of class folders of images, an .npz with train_images, or a known name"
        )
    if extra := [how.removeprefix("-p ") for name, _, how in given if name in idle(ways[0])]:
        brings, which = BRINGS[ways[0]], "it" if len(extra) == 1 else "them"
        raise ValueError(
            f"--{ways[0]} brings {brings}: {', '.join(extra)} would change nothing; leave {which} out"
        )
    if ways == ["logits"] and not Path(named["logits"]).is_file():
        raise ValueError(
            f"--logits {named['logits']}: no such file; wanted an .npz with logits, labels and member"
        )
    stated = [str(one) for one in auditing.limits([*texts, *args.fail_if])]
    return [*named.items(), *([("fail_if", json.dumps(stated))] if stated else [])]


def _listed(text: str) -> list:
    """The limits of `-p fail_if=...`: a YAML list, or one limit."""
    value = notebooks.read_yaml(text, f"fail_if={text}")
    return value if isinstance(value, list) else [] if value is None else [value]


def audit(args) -> int:
    """Run the audit, or find it done; print verdicts and where the report lies. 0, 1 (no verdict can be trusted) or 3."""
    steps = notebooks.plan(NOTEBOOK, None, parameters(args), notebooks.folders(args.notebooks))
    folder = run.run("audit", steps, args.results, force=args.force)
    record = read_result(folder)
    print(record["headline"])
    for verdict in record["verdicts"]:
        print(f"  {verdict['sentence']}")
    code, line = status(record)
    print(line)
    for file in (run.REPORT, RESULT):
        print(f"  {os.path.relpath(folder.path / file)}")
    return code


def read_result(folder: store.Folder) -> dict:
    """result.json of a run of the audit notebook, taken out of the executed notebook where it is not there yet."""
    source = f"{NOTEBOOK}.ipynb"
    cells = json.loads(folder.read_bytes(source))["cells"]
    found = [
        o["data"][MIME]
        for cell in cells
        for o in cell.get("outputs", [])
        if MIME in o.get("data", {})
    ]
    if not found:
        raise run.Failed(
            f"{folder.path / source} holds no result; run the audit again with --force"
        )
    if not (folder.intact(RESULT) and folder.read_json(RESULT) == found[-1]):
        folder.write_json(RESULT, found[-1])
    return found[-1]


def status(record: dict) -> tuple[int, str]:
    """(exit status, line that says why) of a result.

    3: a stated limit is exceeded. 1: none is, but members and non-members may differ in more than
    membership, the null self-test failed, or an attack ranks members below non-members beyond
    chance, so that nothing vouches for the numbers. 0: otherwise, limits that could not be decided
    included.
    """
    outcomes = [verdict["outcome"] for verdict in record["verdicts"]]
    if not outcomes:
        return DONE, "no limit was stated (--fail-if)"
    checks = record["self_test"]
    if EXCEEDED in outcomes:
        return (
            OVER,
            f"{outcomes.count(EXCEEDED)} of {len(outcomes)} stated limits exceeded at 95 % confidence",
        )
    if record.get("design", {}).get("doubt"):
        return FAILED, "not established: members and non-members may differ in more than membership"
    if not checks["self_test_passed"]:
        return (
            FAILED,
            "the null self-test failed: no verdict on a limit can be trusted; see Self-test in the report",
        )
    if checks["inverted"]:
        names = ", ".join(checks["inverted"])
        return (
            FAILED,
            f"{names} ranks members below non-members: look at the design (is `member` right?) before any verdict",
        )
    words = [f"{outcomes.count(word)} {word}" for word in (BELOW, OPEN) if word in outcomes]
    return DONE, f"no stated limit exceeded at 95 % confidence: {', '.join(words)}"
