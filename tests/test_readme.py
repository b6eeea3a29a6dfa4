import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mia_nb import cli, models
from mia_nb.cli import audit, notebooks

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_readmes_audit_of_an_own_model_runs_as_printed(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for n in range(320):
        folder = tmp_path / "images" / f"class{n % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{n:03d}.png")
    monkeypatch.chdir(tmp_path)
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "my_model" in block
    )
    code = (
        code.replace("path/to/images", "images")
        .replace("my_package.networks:my_model", "toys:mlp")
        .replace("epochs=20", "epochs=2")
    )
    exec(compile(code, "README", "exec"), {})
    printed = capsys.readouterr().out
    assert "rmia" in printed and "n/m" in printed and "auc>0.6: " in printed


@pytest.mark.parametrize("path", re.findall(r"\]\((?!https?:)([^)#]+)\)", README))
def test_every_link_of_the_readme_leads_somewhere(path):
    assert (Path(__file__).parent.parent / path).exists()


@pytest.mark.parametrize("line", re.findall(r"^(mia-nb audit [^#\n]+)", README, re.MULTILINE))
def test_the_readmes_audits_in_one_line_fit_the_notebook_and_the_model(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("outputs.npz").touch()
    words = shlex.split(line.replace("my_package.networks:my_model", "toys:mlp"))
    args = cli._parser().parse_args(cli._join_parameters(words[1:]))
    (step,) = notebooks.plan(
        "07_audit_your_model", None, audit.parameters(args), notebooks.folders(None)
    )
    assert step.parameters["fail_if"] == args.fail_if and (
        step.parameters["source"]["dataset"] == "path/to/images" or args.logits
    )
    if args.model:
        assert models.build(args.model, {}, in_channels=3, num_classes=3, size=32, seed=0)
