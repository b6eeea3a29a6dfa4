"""What README and docs tell a reader to type runs as it stands there."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toys
from PIL import Image

from mia_nb import data, defenses, models
from mia_nb.cli import audit, kernels, notebooks, options

ROOT = Path(__file__).parent.parent
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
}
CODE = {
    name: re.findall(r"^```python\n(.*?)^```", text, re.S | re.M) for name, text in TEXTS.items()
}
ELSEWHERE = {  # what they show or print is looked at as well
    "README.md",  # test_display.py, test_browser.py
    "docs/howto/audit-your-model.md",  # test_auditing_finished.py
}
PAGES = [name for name, blocks in CODE.items() if blocks and name not in ELSEWHERE]
ALONE = {"docs/scaling.md"}  # starts processes that import the main module
FEW = 600
FEWER = """
from functools import partial
from mia_nb import data
data.load = partial(data.load, limit=100)
"""
SLOW = {
    *ALONE,
    "docs/howto/batch.md",
    "docs/howto/audit.md",
    "docs/howto/claim.md",
    "docs/howto/defense.md",
    "docs/howto/equations.md",
    "docs/howto/event-data.md",
    "docs/howto/privacy.md",
    "docs/howto/spiking.md",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A reader's folder: images in class folders, a package with a network, the notebooks."""
    rng = np.random.default_rng(0)
    for n in range(320):
        folder = tmp_path / "path" / "to" / "images" / f"class{n % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{n:03d}.png")
    for name in ("my_package", "my_package.networks"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # another reader's
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "networks.py").write_text("from toys import mlp as my_model\n")
    (tmp_path / "notebooks").symlink_to(ROOT / "notebooks")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    # kernels named python3 are forked, as those of `mia-nb run` are, and need not import all anew
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps(kernels.BatchKernels.kernel_spec.to_dict()))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setattr(defenses, "DEFENSES", dict(defenses.DEFENSES))  # a page adds one
    load = data.load

    def fewer(source, **options):
        """Few of the digits, for pages that ask for all of them."""
        return load(source, **({"limit": FEW} if source == "digits" else {}) | options)

    monkeypatch.setattr(data, "load", fewer)
    return tmp_path


def readers_own() -> dict:
    """What the README's audit of one finished model takes for granted."""
    rng = np.random.default_rng(0)
    x, y = rng.random((400, 1, 8, 8), np.float32), rng.integers(0, 4, 400)
    model = toys.mlp(in_channels=1, num_classes=4, size=(8, 8))
    names = ("x_train", "y_train", "x_test", "y_test")
    return dict(zip(names, (x[:200], y[:200], x[200:], y[200:]), strict=True), model=model)


@pytest.mark.parametrize(
    "page", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PAGES]
)
def test_the_python_of_a_page_runs_as_printed(page, here, capfd):
    blocks = CODE[page]
    if page in ALONE:
        (here / "page.py").write_text("\n".join([FEWER, *blocks]))
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        command = [sys.executable, "page.py"]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": paths})
        return
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    if page == "docs/howto/audit.md":
        printed = capfd.readouterr().out
        assert "RMIA" in printed and "n/m" in printed and "auc>0.6: " in printed


def test_the_readme_is_short():
    assert len(TEXTS["README.md"].split()) <= 480


def test_the_list_of_notebooks_has_each_of_them_and_its_pictures_exist():
    folder = ROOT / "notebooks"
    targets = re.findall(r"\]\(([^)#]+)\)", (folder / "README.md").read_text())
    books = {path.relative_to(folder).as_posix() for path in folder.glob("**/[!.]*.ipynb")}
    assert books <= {*targets}
    assert [target for target in targets if not (folder / target).exists()] == []


AUDITS = [
    line
    for text in TEXTS.values()
    for line in re.findall(r"^(mia-nb audit [^#\n]+)", text, re.MULTILINE)
]


@pytest.mark.parametrize("line", AUDITS)
def test_the_audits_in_one_line_fit_the_notebook_and_the_model(line, here):
    for suffix in ("npz", "csv"):
        (here / f"outputs.{suffix}").touch()
    args = options.parser().parse_args(options.join_parameters(shlex.split(line)[1:]))
    (step,) = notebooks.plan(
        "07_audit_your_model", None, audit.parameters(args), notebooks.folders(None)
    )
    assert step.parameters["fail_if"] == args.fail_if and (
        step.parameters["source"]["dataset"] == "path/to/images" or args.logits
    )
    if args.model:
        assert models.build(args.model, {}, in_channels=3, num_classes=3, size=32, seed=0)


COMMANDS = [
    (name, line)
    for name, text in TEXTS.items()
    for line in re.findall(r"^(mia-nb run [^#\n]*[^#\s])", text, re.MULTILINE)
]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_the_runs_in_one_line_name_notebooks_presets_and_parameters_that_exist(page, line, here):
    args = options.parser().parse_args(options.join_parameters(shlex.split(line)[1:]))
    where, given = notebooks.folders(None), notebooks.name_value_pairs(args.parameter)
    target, preset = notebooks.resolve(args.notebook, args.preset, where)
    assert notebooks.plan(target, preset, given, where)
