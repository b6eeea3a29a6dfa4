"""The command line: parameters, presets, runs with real kernels, and every papermill trap."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbformat import v4

from mia_nb import checks, parameters, store
from mia_nb._code_origin import NUMERIC, WITH_TORCH
from mia_nb.auditing.result import provenance
from mia_nb.cli import dashboard, main, notebooks, run_key
from mia_nb.cli import run as runner
from mia_nb.cli.options import join_parameters, parser
from mia_nb.cli.progress import Progress
from mia_nb.cli.report import machine_facts

ROOT = Path(__file__).resolve().parents[1]
PARAMETERS = """epochs: int = 16  # passes over the data
lr: float = 0.1
flag: bool = True  # a switch
name: str = "digits"
pool: str | None = None
attacks: list[str] = ["loss", "rmia"]
sizes: list[int] = [1, 2]
results: str = "results"
"""


def notebook(path: Path, *cells: str, parameters: str = "", kernel: str = "python3") -> Path:
    made = [v4.new_markdown_cell(f"# {path.stem}")]
    made += [v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})] if parameters else []
    made += [v4.new_code_cell(cell) for cell in cells]
    spec = {"name": kernel, "display_name": kernel, "language": "python"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(v4.new_notebook(cells=made, metadata={"kernelspec": spec})))
    return path


def outputs(path: Path) -> str:
    cells = json.loads(path.read_text())["cells"]
    return "".join("".join(o.get("text", "")) for c in cells for o in c.get("outputs", []))


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A working directory with two notebooks and a preset."""
    monkeypatch.chdir(tmp_path)
    notebook(
        tmp_path / "notebooks/01_train.ipynb",
        "print(epochs, lr, flag, name, pool, attacks)",
        parameters=PARAMETERS,
    )
    notebook(
        tmp_path / "notebooks/03_attack.ipynb",
        "print(attacks)",
        parameters='attacks: list[str] = ["loss"]\n',
    )
    preset = (
        "- {notebook: 01_train, parameters: {epochs: 3}}\n- {notebook: attack, parameters:"
        " {attacks: [lira]}}\n"
    )
    (tmp_path / "notebooks/presets").mkdir()
    (tmp_path / "notebooks/presets/small.yaml").write_text(preset)
    return tmp_path


def only_run(root: Path) -> store.Folder:
    (folder,) = store.folders(root / "results", "run")
    return folder


def declared() -> dict[str, parameters.Parameter]:
    return parameters.parse(PARAMETERS, Path("x.ipynb"))


def test_parameters_are_read_with_type_default_and_help():
    read = declared()
    assert read["epochs"] == ("epochs", 16, ("int",), "passes over the data")
    assert read["pool"].kinds == ("str", "None")
    untyped = parameters.parse("a = 3\nb = None\nc = -1.5\nd: list[str] = []", Path("x"))
    assert [p.kinds for p in untyped.values()] == [("int",), (), ("float",), ("list[str]",)]
    assert untyped["c"].default == -1.5


@pytest.mark.parametrize(
    "source",
    [
        "a = 2 * 3",
        "a = b = 1",
        "import os",
        "a: int",
        "a = [len('x')]",
        "a['b'] = 1",
        "a: int = 1 +",
        "a += 1",
    ],
)
def test_a_parameters_cell_that_computes_is_refused(source):
    with pytest.raises(ValueError, match="parameters cell"):
        parameters.parse(source, Path("x.ipynb"))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("flag", "false", False),
        ("flag", "False", False),
        ("epochs", "1e3", 1000),
        ("lr", "1e-3", 0.001),
        ("lr", "2", 2.0),
        ("lr", "-0.5", -0.5),
        ("attacks", "[lira, rmia]", ["lira", "rmia"]),
        ("pool", "null", None),
        ("pool", "None", None),
        ("pool", "0123456789", "0123456789"),
        ("pool", "12e34", "12e34"),
        ("name", "on", "on"),
        ("name", "", ""),
        ("name", "null", ValueError),
        ("name", "'12'", "12"),
        ("name", "a=b", "a=b"),
        ("flag", "'false'", ValueError),
        ("flag", "1", ValueError),
        ("epochs", "many", ValueError),
        ("epochs", "true", ValueError),
        ("epochs", "2.5", ValueError),
        ("epochs", "null", ValueError),
        ("lr", ".nan", ValueError),
        ("attacks", "lira", ValueError),
        ("attacks", "[lira", ValueError),
    ],
)
def test_text_of_the_command_line_becomes_the_declared_type(name, text, value):
    if value is ValueError:
        with pytest.raises(ValueError, match=name) as caught:
            parameters.fit(declared()[name], parameters.read_text(declared(), name, text))
        assert "\n" not in str(caught.value)
    else:
        found = parameters.fit(declared()[name], parameters.read_text(declared(), name, text))
        assert found == value and type(found) is type(value)


def test_values_papermill_cannot_write_are_converted_at_the_border():
    given = {
        "a": (1, 2),
        "b": np.float32(0.5),
        "c": np.arange(2),
        "d": Path("x/y"),
        "e": [np.int64(3)],
    }
    assert checks.plain(given) == {"a": [1, 2], "b": 0.5, "c": [0, 1], "d": "x/y", "e": [3]}
    assert type(checks.plain(np.int64(3))) is int
    with pytest.raises(ValueError, match="parameters are numbers"):
        checks.plain(object())


def test_both_spellings_of_an_override_and_negative_values_survive():
    joined = join_parameters(
        ["run", "-p", "a=1", "-p", "b", "-0.1", "train", "-p", "c", "x=y", "--force"]
    )
    assert joined == [
        "run",
        "--parameter=a=1",
        "--parameter=b=-0.1",
        "train",
        "--parameter=c=x=y",
        "--force",
    ]


def test_a_preset_gives_its_steps_and_overrides_reach_those_that_have_the_parameter(desk):
    where = notebooks.folders()
    steps = notebooks.plan("all", "small", [("epochs", "5"), ("attacks", "[base]")], where)
    assert [s.notebook.stem for s in steps] == ["01_train", "03_attack"]
    assert steps[0].parameters["epochs"] == 5 and steps[0].parameters["attacks"] == ["base"]
    assert steps[0].parameters["lr"] == 0.1 and steps[1].parameters == {"attacks": ["base"]}
    (attack,) = notebooks.plan("attack", "small", [], where)
    assert attack.parameters == {"attacks": ["lira"]}
    assert notebooks.plan("03_attack", None, [], where)[0].parameters == {"attacks": ["loss"]}
    assert notebooks.plan("notebooks/01_train.ipynb", None, [], where)[0].parameters["epochs"] == 16


def test_a_preset_takes_the_steps_of_another_one_with_parameters_over_their_own(desk):
    (desk / "notebooks/presets/larger.yaml").write_text(
        "- {preset: small, notebook: 01_train, parameters: {epochs: 7}}\n- {preset: small}\n"
    )
    steps = notebooks.plan("all", "larger", [("lr", "0.3")], notebooks.folders())
    assert [step.notebook.stem for step in steps] == ["01_train", "01_train", "03_attack"]
    (small, _) = notebooks.plan("all", "small", [], notebooks.folders())
    assert steps[0].parameters == {**small.parameters, "epochs": 7, "lr": 0.3}
    assert steps[1].parameters == {**small.parameters, "lr": 0.3}


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("run trian", "did you mean 'train'?"),
        ("run train -p epoch=3", "did you mean 'epochs'?"),
        ("run all --preset small -p nothing=3", "01_train, 03_attack has no parameter 'nothing'"),
        ("run train -p epochs=soon", "epochs='soon' is text, wanted int"),
        ("run train -p flag='false'", "flag='false' is text, wanted bool"),
        ("run train -p attacks=lira", "write [lira]"),
        ("run train -p epochs", "wanted -p name=value"),
        (
            "run train -p results=there",
            "results=there: every notebook of a run shares one folder; use --results DIR",
        ),
        ("run train -p epochs --results elsewhere", "-p epochs: wanted -p name=value"),
        ("run all --preset smal", "did you mean 'small'?"),
        ("run all", "`run all` needs --preset NAME; there are: bad_name"),
        ("run no/where.ipynb", "no notebook at"),
        ("run train --preset bad_step", "wanted a list of steps"),
        ("run all --preset no_steps", "preset no_steps has no step"),
        ("run all --preset of_no_notebook", "preset of_no_notebook has no step"),
        ("run train --preset self_named", "names itself among its presets"),
        ("run train --preset bad_name", "did you mean 'epochs'?"),
        ("run train --preset bad_type", "epochs='3' is text"),
        ("run all --preset bad_yaml", "is not YAML"),
        ("run train --notebooks nowhere", "is no folder"),
        ("show abc", "no result in results"),
        ("report", "no run in results yet"),
        ("clean abc", "0 results in results"),
        ("clean --older-than -3 --yes", "-3: wanted a number of days from 0"),
        ("clean --older-than nan", "nan: wanted a number of days from 0"),
        ("clean --older-than inf", "inf: wanted a number of days from 0"),
        ("clean --older-than soon", "soon: wanted a number of days from 0"),
        ("plan --samples 10 --models -4", "complementary pairs need an even number; take 2"),
        ("runn all", "invalid choice"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_before_anything_runs(desk, capsys, argv, says):
    presets = {
        "bad_step": "- {notebok: 01_train}",
        "no_steps": "[]",
        "of_no_notebook": "- {preset: small, notebook: 02_query}",
        "self_named": "- {preset: self_named}",
        "bad_name": "- {notebook: 01_train, parameters: {epohcs: 3}}",
        "bad_type": "- {notebook: 01_train, parameters: {epochs: '3'}}",
        "bad_yaml": "- {notebook: [",
    }
    for name, text in presets.items():
        (desk / f"notebooks/presets/{name}.yaml").write_text(text)
    try:
        status = main(argv.split())
    except SystemExit as stop:
        status = stop.code
    err = capsys.readouterr().err
    assert status == 2 and says in err and err.count("\n") == 1
    assert not (desk / "results").exists()


REFUSED = {  # by the notebooks' own cells, on parameters alone
    "attack -p attacks=[rmja]": "03_attack: unknown attack 'rmja'; did you mean 'rmia'?",
    "attack -p pool=abcd": "starts with 'abcd'; there: nothing yet",
    "attack -p pool=example:cifar10/resnet1": "did you mean 'cifar10/resnet14'?",
    "attack -p pool=example:cifar10/resnet14 -p spiking=hybrid": "leave out spiking and references",
    "attack -p align=foo": "align='foo' is not one of none, affine, quantile",
    "convert -p timesteps=0": "timesteps=0, ",
    "train -p model=resnt14": "no model 'resnt14'; did you mean 'resnet14'?",
    "train -p 'model_args={wid: 3}'": "tinycnn takes no 'wid'; did you mean 'width'?",
    "train -p defense=relaxlos": "did you mean 'relaxloss'?",
    "train -p dataset=path/to/images": "no data set or folder 'path/to/images'",
    "dropout_sweep -p models=4": "4 models: two pairs choose and one is attacked, so take 6 or more",
    "dropout_sweep -p rates=[2]": "rates=[2]: wanted a network to convert, and rates between 0 and 1",
    "nsde_privacy -p trials=0": "trials=0: wanted the trainings on these images",
    "defenses -p outputs=[memgard]": "output='memgard' is none; output defenses are memguard",
    "audit_your_model -p fail_if=[auk>1]": "auk>1",
    "audit_your_model -p pool=example:cifar10/resnet14": "mia-nb run train --preset cifar10",
    "neural_de -p attacks=[rmja]": "09_neural_de: unknown attack 'rmja'",
    "recipes -p 'recipes=[{epochs: 5}]'": "a comparison wants two or more",
    "worst_case -p num_models=4": "num_models=4: wanted 8 or more; half are attacked",
    "worst_case -p fpr=1": "fpr=1.0: wanted a fraction in (0, 1)",
}


@pytest.mark.parametrize(("line", "says"), REFUSED.items())
def test_what_parameters_alone_tell_is_refused_before_a_kernel_starts(
    tmp_path, capsys, monkeypatch, line, says
):
    monkeypatch.setattr(runner, "execute", None)
    assert main(["run", *shlex.split(line), "--results", str(tmp_path / "results")]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "results").exists()


def test_a_results_folder_that_cannot_be_written_is_one_line_and_exit_2(desk, capsys):
    (desk / "file").write_text("")
    assert main(["run", "train", "--results", "file/results"]) == 2
    err = capsys.readouterr().err
    assert "cannot write results to" in err and err.count("\n") == 1


def test_params_fit_a_terminal_and_are_a_line_each_elsewhere(desk, capsys, monkeypatch):
    source = f"epochs: int = 16  # {'passes over the data ' * 5}"
    notebook(desk / "notebooks/01_train.ipynb", parameters=source)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["params", "train"]) == 0
    folded = capsys.readouterr().out
    assert max(map(len, folded.splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    assert main(["params", "train"]) == 0
    whole = capsys.readouterr().out
    assert whole.split() == folded.split() and whole.count("\n") < folded.count("\n")


def test_params_prints_type_default_and_help(desk, capsys):
    assert main(["params", "train"]) == 0
    assert re.search(
        r"^epochs +int +16 +passes over the data$", capsys.readouterr().out, re.MULTILINE
    )


def test_help_imports_nothing_heavy_and_takes_no_time():
    code = (
        "import sys; from mia_nb.cli import main; main([]); print({'torch', 'papermill', 'numpy'} &"
        " set(sys.modules))"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.rstrip().endswith("set()") and "doctor" in done.stdout
    assert time.monotonic() - start < 3  # 0.04 s here; a loaded machine is granted some


def test_a_runs_key_is_content_and_not_places(desk):
    def key(*given, **places):
        steps = notebooks.plan("train", None, given, notebooks.folders())
        steps = [step._replace(parameters=step.parameters | places) for step in steps]
        return store.content_key(run_key.run_recipe(steps, desk / "results"))

    base = key()
    assert key(("epochs", "16")) == base == key(results="elsewhere")
    assert key(("epochs", "17")) != base
    (desk / "images.npz").write_bytes(b"one")
    before = key(("name", "images.npz"))
    (desk / "images.npz").write_bytes(b"other")
    assert key(("name", "images.npz")) != before
    path = desk / "notebooks/01_train.ipynb"
    edited = json.loads(path.read_text())
    edited["metadata"]["kernelspec"]["name"], edited["cells"][-1]["outputs"] = (
        "leaked",
        [{"output_type": "stream", "text": "x"}],
    )
    path.write_text(json.dumps(edited))
    assert key() == base
    edited["cells"][-1]["source"] = "print(1)"
    path.write_text(json.dumps(edited))
    assert key() != base


def test_stored_results_are_listed_shown_and_cleaned(tmp_path, capsys):
    root = str(tmp_path / "results")
    pool = store.open_folder(root, "pool", "digits", "ab" * 32, {"num_models": 2})
    pool.write_bytes("model_000.safetensors", b"x" * 1500)
    pool.write_bytes("model_001.safetensors", b"y")
    signals = store.open_folder(root, "signals", "digits", "cd" * 32, {})
    (pool.path / "model_001.safetensors").write_bytes(b"z")
    (pool.path / ".tmp-1-2-model_002.safetensors").write_bytes(b"")
    assert main(["list", "--results", root]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"pool +abababababab +digits .* done", listed) and re.search(
        r"signals +cdcdcdcdcdcd +digits .* partial", listed
    )
    assert main(["show", "abab", "--results", root]) == 0
    shown = capsys.readouterr().out
    assert (
        '"num_models": 2' in shown
        and "1.5 kB  model_000.safetensors\n" in shown
        and "model_001.safetensors  MISSING, TR" in shown
    )
    assert main(["clean", "--results", root]) == 0
    cleaned = capsys.readouterr().out
    assert "model_001.safetensors (missing" in cleaned and ".tmp-1-2" in cleaned
    assert (
        main(["clean", "--results", root]) == 0 and capsys.readouterr().out == "nothing to clean\n"
    )
    assert set(pool.files()) == {"recipe.json", "model_000.safetensors"} and not list(
        pool.path.glob(".tmp*")
    )
    assert main(["list", "--results", root]) == 0 and "1 of 2 models" in capsys.readouterr().out
    assert (
        main(["clean", "--all", "--results", root]) == 0 and "add --yes" in capsys.readouterr().out
    )
    assert (
        main(["clean", "--older-than", "1", "--yes", "--results", root]) == 0 and pool.path.exists()
    )
    with pool.lock():
        assert main(["clean", "abab", "--yes", "--results", root]) == 0 and pool.path.exists()
    assert "in use" in capsys.readouterr().out
    assert (
        main(["clean", "abab", "--yes", "--results", root]) == 0
        and not pool.path.exists()
        and signals.path.exists()
    )


def test_clean_takes_the_keys_that_show_takes_and_no_others(tmp_path, capsys):
    pool = store.open_folder(tmp_path, "pool", "digits", "ab" * 32, {"num_models": 2})
    results = ["--results", str(tmp_path)]
    for wrong in ("ab" * 6 + "c", "ab" * 32 + "a", f"{pool.path.name}x"):
        assert main(["show", wrong, *results]) == 2
        assert main(["clean", wrong, "--yes", *results]) == 2 and pool.path.exists()
        assert f"0 results in {tmp_path} start with" in capsys.readouterr().err
    (pool.path / "recipe.json").write_text("{}")  # its key can no longer be read
    assert main(["clean", "ab" * 32, "--yes", *results]) == 2 and pool.path.exists()
    advice = capsys.readouterr().err.partition("with: mia-nb ")[2].split()
    assert main([*advice, "--yes", *results]) == 0 and not pool.path.exists()
    for right in ("a", "ab" * 6, "ab" * 7, "ab" * 32, pool.path.name):
        pool = store.open_folder(tmp_path, "pool", "digits", "ab" * 32, {"num_models": 2})
        assert main(["show", right, *results]) == 0
        assert main(["clean", right, "--yes", *results]) == 0 and not pool.path.exists()


def test_what_cannot_be_cleaned_is_left_alone_and_the_others_are_cleaned(
    tmp_path, capsys, monkeypatch
):
    first, last = (
        store.open_folder(tmp_path, "pool", name, name * 64, {}).path for name in ("a", "b")
    )
    delete = store.Folder.delete

    def refuse(folder):
        if folder.path == first:
            raise PermissionError(13, "Permission denied", str(first))
        delete(folder)

    monkeypatch.setattr(store.Folder, "delete", refuse)
    assert main(["clean", "--all", "--yes", "--results", str(tmp_path)]) == 2
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith(f"{first}: left alone (") and lines[1] == f"removed {last}"
    assert "Permission denied" in said.err and first.exists() and not last.exists()


def test_results_older_than_a_number_of_days_are_removed_and_others_stay(tmp_path, capsys):
    days = {"ab": 0.9, "cd": 1.1, "ef": 30}
    for start, age in days.items():
        folder = store.open_folder(tmp_path, "signals", "x", start * 32, {})
        then = time.time() - age * 86_400
        os.utime(folder.path / store.MANIFEST, (then, then))
    assert main(["clean", "--older-than", "1", "--yes", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("removed") == 2
    assert [folder.key[:2] for folder in store.folders(tmp_path)] == ["ab"]


def test_a_report_is_of_the_latest_run_that_finished_a_notebook(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = notebook(tmp_path / "one.ipynb", "1")
    for number, start in enumerate(("ab", "cd")):
        folder = store.open_folder("results", "run", f"run{number}", start * 32, {})
        folder.write_bytes("one.ipynb", source.read_bytes())
        step = {
            "notebook": "one",
            "file": "one.ipynb",
            "status": "done",
            "started": "now",
            "seconds": 1,
            "error": None,
        }
        folder.write_json("status.json", {"steps": [step]})
    assert main(["report"]) == 0
    assert "run-run1-cdcd" in capsys.readouterr().out


def test_records_of_where_numbers_come_from_name_the_same_libraries(tmp_path, capsys):
    assert main(["doctor", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    libraries = (*NUMERIC, *WITH_TORCH)
    assert set(libraries) >= {"torch", "snntorch", "opacus", "scikit-learn"}
    for name in libraries:
        version = f"{name} {importlib.metadata.version(name)}"
        assert version in printed and version in machine_facts()["packages"]
    import snntorch  # noqa: F401 - used, as a kernel with a spiking network has

    assert provenance({})["versions"].keys() >= {*NUMERIC, "torch", "snntorch"}
    assert not provenance({"logits": "x.npz"})["versions"].keys() & {*WITH_TORCH}


def test_doctor_names_a_damaged_file_and_exits_1(tmp_path, capsys):
    folder = store.open_folder(tmp_path, "signals", "x", "ab" * 32, {})
    folder.write_bytes("margin.npy", b"123")
    assert main(["doctor", "--results", str(tmp_path)]) == 0
    assert "2 files in 1 results, every checksum right" in capsys.readouterr().out
    (folder.path / "margin.npy").write_bytes(b"12")
    assert main(["doctor", "--results", str(tmp_path)]) == 1
    assert re.search(
        r"store +WRONG: .*margin.npy: missing, truncated or altered", capsys.readouterr().out
    )


def test_a_run_in_progress_elsewhere_is_refused(desk, capsys):
    steps = notebooks.plan("train", None, [], notebooks.folders())
    recipe = run_key.run_recipe(steps, desk / "results")
    with store.open_folder("results", "run", "01_train", store.content_key(recipe), recipe).lock(
        "run"
    ):
        assert main(["run", "train"]) == 2
    assert "is being run by another process" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_that_changes_while_a_notebook_reads_it_is_no_result_of_the_file_before(
    desk, capsys
):
    (desk / "images.npz").write_bytes(b"one")
    notebook(
        desk / "notebooks/01_train.ipynb",
        "print(open(name).read())\nopen(name, 'w').write('other')",
        parameters=PARAMETERS,
    )
    assert main(["run", "train", "-p", "name=images.npz"]) == 2
    assert "name=images.npz was changed while 01_train.ipynb ran" in capsys.readouterr().err
    assert not only_run(desk).has("01_train.ipynb")
    (desk / "images.npz").write_bytes(b"other")  # what the notebook leaves it as
    assert main(["run", "train", "-p", "name=images.npz"]) == 0
    assert len(store.folders(desk / "results", "run")) == 2


def test_a_run_that_names_a_pool_by_its_first_letters_is_about_the_pool_that_this_is_now(desk):
    def key(pool):
        steps = notebooks.plan("train", None, [("pool", pool)], notebooks.folders())
        return store.content_key(run_key.run_recipe(steps, desk / "results"))

    nothing = key("a")
    folder = store.open_folder(desk / "results", "pool", "one", "a" * 64, {})
    first = key("a")
    folder.write_json("model.json", 1)
    trained = key("a")
    folder.delete()
    store.open_folder(desk / "results", "pool", "one", "ab" * 32, {})
    assert len({nothing, first, trained, key("a")}) == 4


def test_progress_on_a_terminal_is_a_bar_of_cells_with_the_last_line_written(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    progress = Progress("a.ipynb", 4)
    progress.bar.mininterval = 0
    progress.next_cell({}, 1)
    progress.write("epoch 1\repoch 2\n\x1b[31m \n")
    shown = capsys.readouterr().out.split("\r")[-1]
    assert re.fullmatch(r"a.ipynb .{8} 2/4, epoch 2 *", shown)
    progress.end("failed")
    left = capsys.readouterr().out.split("\r")[-1]
    assert re.fullmatch(r"a.ipynb +0.0 s  failed\n", left)


def test_where_there_is_no_terminal_progress_is_one_line_at_the_end(capsys):
    progress = Progress("a.ipynb", 4)
    progress.next_cell({}, 1)
    progress.write("epoch 1\n")
    progress.end()
    assert re.fullmatch(r"a.ipynb +0.0 s\n", capsys.readouterr().out)


def test_where_there_is_no_terminal_a_long_notebook_says_now_and_then_where_it_is(
    capsys, monkeypatch
):
    monkeypatch.setattr("mia_nb.cli.progress.EVERY", 0.02)
    progress = Progress("a.ipynb", 4)
    progress.next_cell({}, 1)
    progress.write("epoch 1\n")
    time.sleep(0.2)
    progress.end()
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "a.ipynb cell 2/4  epoch 1" and re.fullmatch(r"a.ipynb +0.\d s", last)
    time.sleep(0.1)
    assert not capsys.readouterr().out


def test_a_warning_of_a_notebook_stays_on_the_screen_as_one_line(capsys):
    progress = Progress("a.ipynb", 4)
    progress.write(
        "/tmp/1.py:1: UserWarning: set: classes 'a' and 'A' look alike\n  images ="
        " data.load(path)\n"
    )
    assert capsys.readouterr().out == "mia-nb: set: classes 'a' and 'A' look alike\n"


def test_a_warning_of_a_command_is_one_line(capsys, monkeypatch):
    def warn(args):
        warnings.warn("classes 'a' and 'A' look alike", stacklevel=2)

    monkeypatch.setattr("mia_nb.cli.stored.list_all", warn)
    assert main(["list"]) == 0
    assert capsys.readouterr().err == "mia-nb: classes 'a' and 'A' look alike\n"


@pytest.mark.notebook
def test_a_run_executes_once_is_cached_and_mends_an_altered_file(desk, capsys):
    argv = ["run", "all", "--preset", "small", "-p", "flag", "false", "-p", "lr=1e-3"]
    assert main(argv) == 0
    folder = only_run(desk)
    assert re.fullmatch(r"run-small-[0-9a-f]{12}", folder.path.name)
    assert outputs(folder.path / "01_train.ipynb") == "3 0.001 False digits None ['loss', 'rmia']\n"
    assert outputs(folder.path / "03_attack.ipynb") == "['lira']\n"
    cells = json.loads((folder.path / "01_train.ipynb").read_text())["cells"]
    (injected,) = [
        "".join(c["source"])
        for c in cells
        if "injected-parameters" in c["metadata"].get("tags", [])
    ]
    # what differs from the defaults
    assert "lr = 0.001" in injected and "flag = False" in injected and "name" not in injected
    assert [s["status"] for s in runner.read_status(folder)] == [
        "done",
        "done",
    ] and folder.verify() == []
    assert "['lira']" in (folder.path / "report.html").read_text()
    text = capsys.readouterr()
    assert text.err == "" and "report.html" in text.out

    made = {file: (folder.path / file).stat().st_mtime_ns for file in folder.files()}
    start = time.process_time()
    assert main(argv) == 0
    assert time.process_time() - start < 1
    assert "cached" in capsys.readouterr().out
    assert made == {file: (folder.path / file).stat().st_mtime_ns for file in folder.files()}

    (folder.path / "report.html").write_text("")
    # later, but without a notebook
    unfinished = store.open_folder("results", "run", "all", "ee" * 32, {"steps": []})
    assert store.folders("results", "run")[-1] == unfinished
    assert (
        main(["report"]) == 0
        and capsys.readouterr().out.strip().endswith("report.html")
        and folder.verify() == []
    )
    assert main(["show", folder.key[:5]]) == 0
    assert re.search(r"^01_train.ipynb +done +\d+\.\d s$", capsys.readouterr().out, re.MULTILINE)

    with open(folder.path / "03_attack.ipynb", "a") as file:
        file.write(" ")
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "03_attack.ipynb is missing, truncated or altered" in out and re.search(
        r"01_train.ipynb +cached", out
    )
    assert (
        folder.verify() == []
        and made["01_train.ipynb"] == (folder.path / "01_train.ipynb").stat().st_mtime_ns
    )


@pytest.mark.notebook
def test_force_runs_again_and_reaches_the_notebook(desk, capsys):
    notebook(
        desk / "again.ipynb",
        "print(force, results)",
        parameters='force: bool = False\nresults: str = "results"',
    )
    assert main(["run", "again.ipynb"]) == 0
    file = only_run(desk).path / "again.ipynb"
    assert outputs(file) == f"False {desk / 'results'}\n"
    assert main(["run", "again.ipynb", "--force"]) == 0
    assert outputs(file) == f"True {desk / 'results'}\n" and len(store.folders("results")) == 1


@pytest.mark.notebook
def test_a_failing_cell_takes_ten_lines_at_most_and_keeps_what_was_done(desk, capsys):
    deep = "def deep(n):\n    return deep(n - 1) if n else {}['gone']\n"
    notebook(desk / "fails.ipynb", "print('before')", deep + "deep(30)", "print('after')")
    assert main(["run", "fails.ipynb"]) == 1
    err = capsys.readouterr().err
    folder = only_run(desk)
    assert err.count("\n") <= 10 and "KeyError: 'gone'" in err and "cell In[2]: deep(30)" in err
    assert str((folder.path / "fails.ipynb").relative_to(desk)) in err
    assert outputs(folder.path / "fails.ipynb").startswith("before") and not folder.has(
        "fails.ipynb"
    )
    (step,) = runner.read_status(folder)
    assert step["status"] == "failed" and "KeyError" in step["error"]


def mark_figures(path: Path) -> None:
    """Tag the cells that call a function of plots, as the notebooks' cells that draw are."""
    node = json.loads(path.read_text())
    for number, cell in enumerate(node["cells"]):
        cell["id"] = f"cell-{number}"
        if "plots." in "".join(cell["source"]):
            cell["metadata"]["tags"] = ["raises-exception"]
    path.write_text(json.dumps(node))


@pytest.mark.notebook
def test_a_figure_that_fails_costs_no_later_cell_and_is_said_until_it_is_there(desk, capsys):
    failing = "from mia_nb import plots\nplots.no_such_figure()"
    shown = (
        "class Shown:\n    def _repr_html_(self): raise KeyError('inside')\n# plots.shown(\nShown()"
    )
    for name in ("01_train", "03_attack"):
        path = notebook(desk / f"notebooks/{name}.ipynb", failing, shown, "print('after')")
        mark_figures(path)
    assert main(["run", "train"]) == 1
    said = capsys.readouterr()
    folder = only_run(desk)
    assert "01_train.ipynb: figure cell-1 (plots.no_such_figure): AttributeError: " in said.err
    assert "figure cell-2 (plots.shown): KeyError: 'inside'" in said.err
    assert "2 figures failed" in said.out and "report.html" in said.out
    assert outputs(folder.path / "01_train.ipynb").endswith("after\n")
    cells = json.loads((folder.path / "01_train.ipynb").read_text())["cells"]
    # the whole trace, and none of papermill's marks of a run that stopped
    assert "no_such_figure" in str(cells[1]["outputs"]) and "Exception encountered" not in str(
        cells
    )
    assert "figure cell-1 (plots.no_such_figure)" in folder.read_bytes("report.html").decode()
    assert main(["list"]) == 0 and "done, figures failed" in capsys.readouterr().out

    assert main(["run", "train"]) == 1  # not cached
    assert "figure cell-1" in capsys.readouterr().err

    (desk / "notebooks/presets/both.yaml").write_text(
        "- {notebook: 01_train}\n- {notebook: attack}\n"
    )
    assert main(["run", "all", "--preset", "both"]) == 1
    err = capsys.readouterr().err
    assert "01_train.ipynb: figure" in err and "03_attack.ipynb: figure" in err


@pytest.mark.notebook
def test_after_a_figure_that_fails_a_cell_that_fails_still_ends_the_notebook(desk, capsys):
    path = notebook(desk / "bad.ipynb", "plots.roc()", "{}['gone']", "print('after')")
    mark_figures(path)
    assert main(["run", "bad.ipynb"]) == 1
    err = capsys.readouterr().err
    assert "failed in cell In[2]: {}['gone']" in err and "figures failed" not in err
    (folder,) = (desk / "results").glob("run-*")
    assert "after" not in outputs(folder / "bad.ipynb")
    assert runner.read_status(only_run(desk))[0]["status"] == "failed"


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("from mia_nb.types import Recipe\nRecipe(num_models=3)", "num_models=3 is odd"),
        ("with open('/dev/full', 'w') as file:\n    file.write('x')", "No space left on device"),
    ],
)
def test_bad_input_met_inside_a_notebook_is_one_line_and_exit_2(desk, capsys, cell, says):
    notebook(desk / "bad.ipynb", cell)
    assert main(["run", "bad.ipynb"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and says in err and "bad.ipynb" in err
    assert runner.read_status(only_run(desk))[0]["status"] == "failed"


@pytest.mark.notebook
def test_a_dead_kernel_is_told_from_a_finished_one(desk, capsys):
    notebook(desk / "dies.ipynb", "import os", "os.kill(os.getpid(), 9)")
    assert main(["run", "dies.ipynb"]) == 1
    assert "the kernel died in cell 3 of 3" in capsys.readouterr().err
    assert runner.read_status(only_run(desk))[0]["status"] == "killed"
    assert main(["list"]) == 0 and "killed" in capsys.readouterr().out


def start(*argv: str, cwd: Path, **environment: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-m", "mia_nb.cli", *argv]
    # a background shell lets its children ignore SIGINT; a terminal does not
    hears = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=environment, preexec_fn=hears, **pipes)


@pytest.mark.notebook
def test_leaked_kernels_warning_filters_and_braces_in_paths_do_no_harm(tmp_path):
    cell = "import sys, os\nprint(sys.executable, os.environ['MIA_NB_MODE'])"
    notebook(
        tmp_path / "a.ipynb",
        cell,
        parameters="pool: str | None = None",
        kernel="somebody-elses-env",
    )
    wrong = tmp_path / "jupyter/kernels/python3/kernel.json"
    wrong.parent.mkdir(parents=True)
    wrong.write_text(
        json.dumps({"argv": ["/bin/false"], "display_name": "Python 3", "language": "python"})
    )
    environment = {"JUPYTER_PATH": str(tmp_path / "jupyter"), "PYTHONWARNINGS": "error"}
    process = start("run", "a.ipynb", "--results", "{braces} %d", cwd=tmp_path, **environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "") and out.splitlines()[0].startswith("a.ipynb")
    (folder,) = store.folders(tmp_path / "{braces} %d")
    assert outputs(folder.path / "a.ipynb") == f"{sys.executable} batch\n"


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("sent", "code", "forked"),
    [
        (signal.SIGINT, 130, "0"),
        pytest.param(signal.SIGKILL, -9, "0", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -9, "1", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_or_killed_run_says_killed_and_the_next_goes_on(
    tmp_path, monkeypatch, sent, code, forked
):
    monkeypatch.setenv("MIA_NB_FORK", forked)
    notebook(tmp_path / "nb/1_fast.ipynb", "print(1)")
    wait = "time.sleep(0 if pathlib.Path('go').exists() else 60)"
    notebook(
        tmp_path / "nb/2_slow.ipynb", f"import pathlib, time\npathlib.Path('here').touch()\n{wait}"
    )
    (tmp_path / "nb/presets").mkdir()
    (tmp_path / "nb/presets/two.yaml").write_text("- {notebook: fast}\n- {notebook: slow}\n")
    argv = ("run", "all", "--preset", "two", "--notebooks", "nb")
    process = start(*argv, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "here").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    folder = only_run(tmp_path)
    assert [s["status"] for s in runner.read_status(folder)] == ["done", "running"]
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code and err.count("\n") <= 1
    assert [s["status"] for s in runner.read_status(folder)] == ["done", "killed"]
    (tmp_path / "go").touch()
    again = start(*argv, cwd=tmp_path)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0 and err == "" and re.search(r"1_fast.ipynb +cached", out)
    assert [s["status"] for s in runner.read_status(folder)] == [
        "done",
        "done",
    ] and folder.verify() == []


def test_an_edited_model_builder_is_another_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    builder = tmp_path / "edited_builder.py"
    builder.write_text("def net(): return 1\n")
    before = run_key.fingerprint("edited_builder:net")
    builder.write_text("def net(): return 2  # edited\n")
    assert before is not None and run_key.fingerprint("edited_builder:net") != before
    assert run_key.fingerprint("no_such_module:net") is None


def test_text_that_looks_like_a_builder_names_none_in_a_package_and_its_folder_counts_as_one(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "__init__.py").touch()
    assert run_key.fingerprint("no_such_module:net") is None
    (tmp_path / "images:new").mkdir()
    before = run_key.fingerprint("images:new")
    (tmp_path / "images:new/1.png").write_bytes(b"1")
    assert before is not None and run_key.fingerprint("images:new") != before


def test_what_a_builders_package_contains_and_what_a_folder_holds_is_part_of_a_run(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "stamped_package"
    package.mkdir()
    for name, text in (
        ("__init__", ""),
        ("net", "from stamped_package.blocks import net\n"),
        ("blocks", "def net(): return 1\n"),
    ):
        (package / f"{name}.py").write_text(text)
    before = run_key.fingerprint("stamped_package.net:net")
    (package / "blocks.py").write_text("def net(): return 2\n")
    assert run_key.fingerprint("stamped_package.net:net") not in (before, None)
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
    (tmp_path / "images/cat/1.png").write_bytes(b"1")
    before = run_key.fingerprint("images")
    # same bytes and time, another label
    (tmp_path / "images/cat/1.png").rename(tmp_path / "images/dog/1.png")
    assert run_key.fingerprint("images") != before
    file = tmp_path / "outputs.npz"
    file.write_bytes(b"1")
    before, times = (
        run_key.fingerprint("outputs.npz"),
        (file.stat().st_atime_ns, file.stat().st_mtime_ns),
    )
    file.write_bytes(b"2")
    os.utime(file, ns=times)
    assert run_key.fingerprint("outputs.npz") != before


@pytest.mark.parametrize(
    ("words", "parameter"),
    [
        ([], []),
        (["--workers", "4"], [("workers", "4")]),
        (["--backend", "dask", "--workers", "8"], [("workers", "8"), ("backend", "dask")]),
        (["--backend", "ray"], [("backend", "ray")]),
    ],
)
def test_backend_and_workers_are_parameters_of_a_notebook(words, parameter):
    assert runner._workers(parser().parse_args(["run", "train", *words])) == parameter


def test_how_many_workers_train_is_no_part_of_a_runs_key_and_reaches_the_notebook(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    source = 'workers: int | None = None  # processes\nbackend: str = "loky"  # where\nname: str = "a"  # of something'
    notebook(tmp_path / "one.ipynb", "print(workers)", parameters=source)
    assert main(["run", "one.ipynb", "--backend", "dask", "--workers", "2"]) == 0
    (done,) = tmp_path.glob("results/run-*/one.ipynb")
    assert 'backend = \\"dask\\"' in done.read_text() and "workers = 2" in done.read_text()
    assert main(["run", "one.ipynb", "--workers", "3"]) == 0
    assert "cached" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["run", "one.ipynb", "--workers", "cluster"])
    assert "invalid int value: 'cluster'" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="links of Unix")
def test_one_bad_folder_is_listed_as_damaged_and_hides_no_other(tmp_path, capsys):
    deep = b"[" * 100_000
    good = store.open_folder(tmp_path, "pool", "good", "ab" * 32, {"num_models": 0})
    for number, raw in enumerate([b"[]", deep, b'{"key": 1, "recipe": 2}', b"\xff"]):
        for kind, name in (
            ("pool", "recipe.json"),
            ("signals", "info.json"),
            ("run", "status.json"),
        ):
            store.open_folder(tmp_path, kind, "bad", f"{number}" * 64, {"steps": [1]}).write_bytes(
                name, raw
            )
    (store.open_folder(tmp_path, "pool", "nomanifest", "c" * 64, {}).path / store.MANIFEST).unlink()
    (tmp_path / "pool-link-dddddddddddd").symlink_to(tmp_path / "aside")
    good.path.rename(tmp_path / "aside")
    good.path.symlink_to(tmp_path / "aside")
    assert main(["list", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == 16 and said.count("damaged recipe.json") == 5
    assert said.count("damaged info.json") == 4 and said.count("damaged status.json") == 4
    assert re.search(r"pool +abababababab +good .* done", said)
    assert main(["clean", "--results", str(tmp_path)]) == 0
    assert main(["clean", "--all", "--yes", "--results", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["aside"] and len(
        list((tmp_path / "aside").glob("*.json*"))
    ) == 2


def test_a_report_holds_nothing_that_its_run_did_not_write(tmp_path, capsys):
    secret = v4.new_notebook(cells=[v4.new_markdown_cell("SECRET")])
    (tmp_path / "secret.ipynb").write_text(nbformat.writes(secret))
    folder = store.open_folder(tmp_path, "run", "x", "e" * 64, {"steps": [1]})
    step = {"notebook": "x", "status": "done", "error": None, "seconds": 1.0, "started": "x"}
    for file in ("../secret.ipynb", "stray.ipynb"):
        (folder.path / "stray.ipynb").write_text(nbformat.writes(secret))
        folder.write_json("status.json", {"steps": [step | {"file": file}]})
        assert (
            main(["report", "--results", str(tmp_path)]) == 2
            and f"{file} is missing" in capsys.readouterr().err
        )
        assert not (folder.path / "report.html").exists()


def test_where_jupyter_does_not_find_voilas_page_voila_serves_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *_: [])
    dashboard._put_page(tmp_path)
    assert not list(tmp_path.iterdir())
