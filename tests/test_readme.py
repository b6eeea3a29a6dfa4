import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mia_nb import models
from mia_nb.cli import notebooks

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_readmes_audit_of_an_own_model_runs_as_printed(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for n in range(320):
        folder = tmp_path / "images" / f"class{n % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{n:03d}.png")
    monkeypatch.chdir(tmp_path)
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "my_model" in block)
    code = (
        code.replace("path/to/images", "images")
        .replace("my_package.networks:my_model", "toys:mlp")
        .replace("epochs=20", "epochs=2")
    )
    exec(compile(code, "README", "exec"), {})
    printed = capsys.readouterr().out
    assert "rmia" in printed and "n/m" in printed


@pytest.mark.parametrize("path", re.findall(r"\]\((?!https?:)([^)#]+)\)", README))
def test_every_link_of_the_readme_leads_somewhere(path):
    assert (Path(__file__).parent.parent / path).exists()


def test_the_readmes_audit_in_one_line_fits_the_preset_and_the_model():
    line = next(text for text in re.findall(r"`(mia-nb run all [^`]+)`", README) if "my_model" in text)
    words = line.replace("my_package.networks:my_model", "toys:mlp").split()
    given = [tuple(word.split("=", 1)) for word in words if "=" in word]
    steps = notebooks.plan("all", words[words.index("--preset") + 1], given, notebooks.folders(None))
    for step in [step for step in steps if "model" in step.parameters]:  # the equations bring their own
        args = step.parameters.get("model_args", {})
        assert models.build(step.parameters["model"], args, in_channels=1, num_classes=3, size=8, seed=0)
