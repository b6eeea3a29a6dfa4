"""The wheel, built from the source distribution, installs into an environment of its own, and runs
outside a checkout: notebooks, presets, published numbers and shipped signals travel with it.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent
LEFT = (".git", ".venv", "build", "results", "*.egg-info", ".*_cache", "__pycache__", ".cache")
BUILD = (
    "import sys; from setuptools import build_meta as b; getattr(b, 'build_' + sys.argv[1])('..')"
)
WHERE = (
    "import mia_nb; print(mia_nb.__file__); print(mia_nb.load_example('digits/ordinary-12').shape)"
)

pytestmark = pytest.mark.slow


def run(*command, cwd, **options):
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The folder of an environment that holds the wheel; what the wheel needs is borrowed."""
    place = tmp_path_factory.mktemp("package")
    shutil.copytree(HERE, place / "checkout", ignore=shutil.ignore_patterns(*LEFT))
    run(sys.executable, "-c", BUILD, "sdist", cwd=place / "checkout")
    with tarfile.open(next(place.glob("*.tar.gz"))) as archive:
        archive.extractall(place / "sdist", filter="data")
    source = next((place / "sdist").iterdir())
    run(sys.executable, "-c", BUILD.replace("'..'", "'../..'"), "wheel", cwd=source)
    shutil.rmtree(place / "checkout")
    shutil.rmtree(place / "sdist")
    run(sys.executable, "-m", "venv", "--without-pip", place / "env", cwd=place)
    packages = next((place / "env" / "lib").glob("python*/site-packages"))
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    wheel, python = next(place.glob("*.whl")), place / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(*pip, wheel, cwd=place)
    return place


def test_the_package_is_the_installed_one_and_carries_its_signals(environment):
    where, shape = run(
        environment / "env" / "bin" / "python", "-c", WHERE, cwd=environment
    ).splitlines()
    assert Path(where).is_relative_to(environment / "env") and shape == "(16, 1, 1797)"


def test_the_command_runs_a_notebook_and_writes_a_report_outside_a_checkout(environment):
    quiet = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    out = environment / "out"
    run(
        *(environment / "env" / "bin" / "mia-nb", "run", "attack", "--results", out),
        *("-p", "pool=example:digits/ordinary-12", "-p", "attacks=[rmia, loss]"),
        cwd=environment,
        env=quiet,
    )
    reports = list(out.rglob("report.html"))
    assert reports and "RMIA" in reports[0].read_text(encoding="utf-8")
