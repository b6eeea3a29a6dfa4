"""What may build the networks of a stored pool: allowed by name, never forbidden by name."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch

from mia_nb import cli, data, models, store, training
from mia_nb.training.train import finetune_pool
from mia_nb.types import Recipe

NET = """
import pathlib
from torch import nn
pathlib.Path(__file__).with_suffix(".imported").touch()


def net(in_channels, num_classes, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * size[0] * size[1], num_classes))
"""


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch):
    monkeypatch.setenv(models.ALLOWED, "")


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=60,size=8,channels=1,seed=1")


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    recipe = Recipe(num_models=2, epochs=1, batch=8, model_args={"width": 4})
    return train(recipe, images, tmp_path_factory.mktemp("trained"))


def train(recipe, images, root):
    return training.train_pool(recipe, images, root=root, progress=False, workers=1)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of this name in a folder that is searched for modules; whether it was imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name):
        (tmp_path / f"{name}.py").write_text(NET)
        return (tmp_path / f"{name}.imported").exists

    yield write
    for name in [name for name in sys.modules if name.startswith("net_")]:
        del sys.modules[name]


def foreign(pool, root, **recipe):
    """The pool as somebody else would hand it on: with another recipe, its checksums right."""
    folder = store.Folder(Path(shutil.copytree(pool.folder.path, root / pool.folder.path.name)))
    record = json.loads(folder.read_bytes("recipe.json"))
    record["recipe"] |= recipe
    folder.write_json("recipe.json", record)
    return folder


@pytest.mark.parametrize(
    "model",
    [
        "net_of_a_stranger:net",
        "safetensors.torch:save_file",
        "safetensors.torch:load_file",
        "torch:save",
        "torch.hub:load",
        "os:system",
        "shutil:rmtree",
        "numpy:save",
        "pandas:read_pickle",
        "joblib:load",
        "sklearn.datasets:fetch_openml",
        "mia_nb.store:place",
        "mia_nb.cli.__main__:main",
        "IPython.__main__:x",
        "pkg.with.folders:net",
        ":net",
        "not a module:net",
        "antigravity:x",
    ],
)
@pytest.mark.parametrize("nested", [0, 1, 2])
def test_a_stored_recipe_that_names_a_builder_of_nobody_here_is_refused_and_nothing_is_imported(
    model, nested, trained, own, tmp_path
):
    imported = own("net_of_a_stranger")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    args = {"filename": str(victim), "tensors": {}}
    for base in ("snn", "replaced")[:nested]:
        model, args = base, {"base": model, "base_args": args}
    folder = foreign(trained, tmp_path, model=model, model_args=args)
    before = {*sys.modules}
    with pytest.raises(ValueError, match="nothing of it was run") as caught:
        training.load_pool(folder.key, tmp_path).model(0)
    assert "\n" not in str(caught.value) and "builders=[" in str(caught.value)
    assert not imported() and {*sys.modules} == before and victim.read_text() == "precious"


@pytest.mark.parametrize("depth", [5, 19, 30])
def test_a_base_within_a_base_hides_no_builder(depth, trained, own, tmp_path):
    imported = own("net_of_a_stranger")
    model, args = "net_of_a_stranger:net", {}
    for _ in range(depth):
        model, args = "snn", {"base": model, "base_args": args}
    with pytest.raises(ValueError, match=r"nothing of it was run|within a base|nested"):
        foreign_pool = foreign(trained, tmp_path, model=model, model_args=args)
        training.load_pool(foreign_pool.key, tmp_path).model(0)
    assert not imported()


@pytest.mark.slow
def test_workers_of_a_pool_that_goes_on_take_a_module_that_is_imported_here(images, own, tmp_path):
    own("net_of_mine")
    recipe = Recipe(model="net_of_mine:net", num_models=4, epochs=1, batch=8)
    key = train(recipe, images, tmp_path).key
    os.environ[models.ALLOWED] = ""
    pool = training.load_pool(key, tmp_path)
    tuned = finetune_pool(
        pool, recipe.replace(epochs=2), images, progress=False, workers=2, strategy="plain"
    )
    assert as_before(tuned.model(3))
    assert training.load_pool(tuned.key, tmp_path).parent.key == key


def test_a_folder_whose_record_is_not_that_of_its_key_builds_nothing_for_who_trains_that_pool(
    images, trained, own, tmp_path
):
    imported = own("net_of_a_stranger")
    folder = foreign(trained, tmp_path, model="net_of_a_stranger:net", model_args={})
    folder.remove("model_001.safetensors")  # so that there is something to train
    assert train(trained.recipe, images, tmp_path).status == ["trained"] * 2
    assert not imported()


def loads(folder, **options):
    return training.load_pool(folder.key, folder.path.parent, **options).model(0)


def as_before(module):
    """Whether it is the network of one linear layer."""
    return isinstance(module[1], torch.nn.Linear)


def own_pool(images, root, name):
    """A pool of a module of one's own, as another process finds it."""
    pool = train(Recipe(model=f"{name}:net", num_models=2, epochs=1, batch=8), images, root)
    assert as_before(loads(pool.folder))  # in the process that trained it
    del sys.modules[name]
    os.environ[models.ALLOWED] = ""
    return pool.folder


def test_ones_own_pool_is_loaded_by_naming_or_importing_its_module(
    images, own, tmp_path, monkeypatch
):
    own("net_of_mine")
    folder = own_pool(images, tmp_path, "net_of_mine")
    with pytest.raises(ValueError, match=r"builders=\['net_of_mine'\].*--allow net_of_mine"):
        loads(folder)
    with pytest.raises(ValueError, match="nothing of it was run"):
        loads(folder, builders=["net_of_m", "other"])
    assert as_before(loads(folder, builders=["net_of_mine"]))
    assert as_before(loads(folder))  # named once
    for named in ("net_of_mine:net", ["net_of_mine:net"]):
        monkeypatch.setenv(models.ALLOWED, "")
        monkeypatch.delitem(sys.modules, "net_of_mine", raising=False)
        assert as_before(loads(folder, builders=named))
    monkeypatch.setenv(models.ALLOWED, "other, net_of_mine")
    monkeypatch.delitem(sys.modules, "net_of_mine")
    assert as_before(loads(folder))
    monkeypatch.setenv(models.ALLOWED, "")
    assert "net_of_mine" in sys.modules and as_before(loads(folder))


def test_a_name_allows_the_modules_of_its_package_and_no_longer_name(own, monkeypatch):
    models.allow("mine", "other.part:net")
    for place in ("mine", "mine.nets", "mine.nets.deep", "other.part", "other.part.more"):
        models.check_allowed(f"{place}:net", {}, "it")
    for place in ("mines", "other", "other.parts", "min"):
        with pytest.raises(ValueError, match="nothing of it was run"):
            models.check_allowed(f"{place}:net", {}, "it")


@pytest.mark.parametrize(
    "model", ["torchvision.models:resnet18", "snntorch:Leaky", "__main__:net", "tinycnn"]
)
def test_networks_of_this_package_its_libraries_and_the_script_itself_need_no_name(model):
    models.check_allowed(model, {}, "it")
    models.check_allowed("snn", {"base": model}, "it")


def test_what_an_installed_package_offers_beside_no_network_is_not_called_even_when_named(
    images, tmp_path
):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    args = {"filename": str(victim), "tensors": {}}
    recipe = Recipe(model="safetensors.torch:save_file", model_args=args, num_models=2, batch=8)
    with pytest.raises(ValueError, match="no builder of models"):
        train(recipe, images, tmp_path)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("model", ["IPython.__main__:x", "mia_nb.cli.__main__:main", "this:x"])
def test_a_module_that_is_a_program_is_refused_in_one_line(model):
    with pytest.raises(ValueError) as caught:
        models.build(model, in_channels=1, num_classes=2, size=8, seed=0)
    assert "\n" not in str(caught.value)


def test_a_file_that_was_edited_after_it_was_imported_is_no_other_network_yet(
    images, own, tmp_path
):
    own("net_of_mine")
    recipe = Recipe(model="net_of_mine:net", num_models=2, epochs=1, batch=8)
    before = train(recipe, images, tmp_path)
    file = tmp_path / "net_of_mine.py"
    file.write_text(NET.replace("nn.Flatten(),", "nn.Flatten(), nn.Tanh(),"))
    with pytest.raises(ValueError, match=r"were changed .*importlib.reload\(net_of_mine\)"):
        train(recipe, images, tmp_path)
    del sys.modules["net_of_mine"]
    after = train(recipe, images, tmp_path)
    assert before.key != after.key and isinstance(after.model(0)[1], torch.nn.Tanh)


def cells(monkeypatch, texts):
    """What cells of a notebook leave in __main__, one after another."""
    world = sys.modules["__main__"].__dict__
    for text in texts:
        names = {**world}
        exec(text, world)
        for name in world.keys() - names.keys():
            monkeypatch.setitem(world, name, world[name])


CELL = """
from torch import nn

def activation():
    return nn.{}()

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.n = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation(), nn.Linear(8, num_classes))

    def forward(self, x):
        return self.n(x)
"""


def test_a_network_of_the_script_is_known_by_its_code_and_that_of_its_helpers(
    images, tmp_path, monkeypatch
):
    recipe, keys = Recipe(model="__main__:Net", num_models=2, epochs=1, batch=8), []
    for name in ("ReLU", "Tanh", "ReLU"):
        cells(monkeypatch, [CELL.format(name)])
        pool = train(recipe, images, tmp_path)
        keys.append(pool.key)
        assert type(pool.model(0).n[2]).__name__ == name
    assert keys[0] == keys[2] != keys[1]
    cells(monkeypatch, [CELL.format("Tanh")])
    with pytest.raises(ValueError, match="is not the one pool"):
        pool.model(0)


def test_the_command_line_allows_a_module(monkeypatch):
    monkeypatch.setattr("mia_nb.cli.run.command", lambda args: None)
    assert cli.main(["run", "train", "--allow", "net_of_mine", "--allow", "other:net"]) == 0
    assert os.environ[models.ALLOWED] == "net_of_mine,other"


@pytest.mark.slow
def test_a_process_that_is_started_takes_what_is_allowed_here(images, own, tmp_path):
    own("net_of_mine")
    folder = own_pool(images, tmp_path, "net_of_mine")
    code = f"""
import mia_nb as mia
print(type(mia.load_pool({folder.key!r}, {str(tmp_path)!r}).model(0)).__name__)"""
    command = [sys.executable, "-c", code]
    world = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    refused = subprocess.run(command, capture_output=True, text=True, env=world)
    assert refused.returncode and "nothing of it was run" in refused.stderr
    models.allow("net_of_mine")
    world[models.ALLOWED] = os.environ[models.ALLOWED]
    taken = subprocess.run(command, capture_output=True, text=True, env=world)
    assert taken.stdout.strip() == "Sequential"


IN_CELLS = [
    """
import mia_nb as mia
from mia_nb.digests import digest_of_function
from torch import nn
images = mia.load("digits", limit=60)
recipe = mia.Recipe(model="__main__:Net", num_models=2, epochs=1, batch=8)

def told():
    pool = mia.train(recipe, images, progress=False, workers=1)
    margin = mia.query(pool, images, progress=False).margin
    print("TOLD", pool.key[:12], type(pool.model(0).n[2]).__name__, margin[0, 0, 0], digest_of_function(retrain))
""",
    """
def activation():
    return nn.{}()

def retrain(x, y, seed):
    return activation()
""",
    """
class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.n = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation(), nn.Linear(8, num_classes))

    def forward(self, x):
        return self.n(x)
""",
    "told()",
]


@pytest.mark.slow
def test_a_network_and_a_training_of_cells_that_are_edited_are_others_in_a_kernel(
    tmp_path, monkeypatch
):
    from mia_nb.cli import run

    monkeypatch.chdir(tmp_path)
    setup, helper, net, show = IN_CELLS
    relu, tanh = helper.format("ReLU"), helper.format("Tanh")
    # the helper alone is edited, then the network is run again as it was, then the first comes back
    texts = [setup, relu, net, show, tanh, net, show, relu, net, show]
    v4 = nbformat.v4
    notebook = v4.new_notebook(cells=[v4.new_code_cell(text) for text in texts])
    nbformat.write(notebook, "own.ipynb")
    run.execute(Path("own.ipynb"), Path("done.ipynb"), {})
    cells = json.loads(Path("done.ipynb").read_text())["cells"]
    lines = [
        line.split()[1:]
        for cell in cells
        for output in cell.get("outputs", ())
        for line in "".join(output.get("text", "")).splitlines()
        if line.startswith("TOLD")
    ]
    assert [line[1] for line in lines] == ["ReLU", "Tanh", "ReLU"]
    first, second, again = lines
    assert first == again and all(a != b for a, b in zip(first, second, strict=True))


def test_two_modules_may_offer_the_same_builder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "one_place.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n"
    )
    (tmp_path / "other_place.py").write_text("from one_place import Net  # the same\n")
    first, second = models.source("one_place:Net"), models.source("other_place:Net")
    assert first and second
    assert models.source("one_place:Net") == first
