"""`import mia_nb` offers what a script needs, and imports nothing before it is used."""

import doctest
import re
import subprocess
import sys

import pytest

import mia_nb


@pytest.mark.parametrize("name", mia_nb.__all__)
def test_a_name_of_the_face_is_what_its_room_calls_it(name):
    room, inside = mia_nb.FACE[name].split(":")
    assert getattr(mia_nb, name) is getattr(getattr(mia_nb, room), inside)
    assert name in dir(mia_nb)


def test_what_replaces_a_function_in_its_room_replaces_it_in_the_face_and_goes_with_it(monkeypatch):
    monkeypatch.setattr(mia_nb.data, "load", len)
    assert mia_nb.load is len
    monkeypatch.undo()
    assert mia_nb.load is mia_nb.data.load is not len


def test_editors_complete_the_names_and_what_they_return():
    jedi = pytest.importorskip("jedi")

    def completed(code: str) -> set[str]:
        lines = code.split("\n")
        return {one.name for one in jedi.Script(code).complete(len(lines), len(lines[-1]))}

    assert {*mia_nb.__all__, *mia_nb.ROOMS} <= completed("import mia_nb as mia\nmia.")
    images = "import mia_nb as mia\nimages = mia.load('digits')\nimages."
    assert {"classes", "digest", "x", "y"} <= completed(images)
    assert not {"FACE", "ROOMS", "import_module"} & {*dir(mia_nb)}


def test_nothing_is_imported_before_a_name_is_used():
    code = (
        "import sys, mia_nb; dir(mia_nb); loaded = {n for n in sys.modules if n.startswith('mia_nb.')};"
        " print(loaded, {'numpy', 'torch'} & set(sys.modules)); mia_nb.Recipe; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[:2] == ["set() set()", "False"]


def test_a_name_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(AttributeError, match="mia_nb has no 'atack'; it has Images"):
        mia_nb.__getattr__("atack")


def test_the_examples_of_the_package_run_and_use_every_name(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIA_NB_MODE", "batch")
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    found = doctest.testmod(mia_nb, optionflags=flags)
    assert found.attempted > 20 and found.failed == 0, capfd.readouterr().out
    used = set(re.findall(r"mia\.(\w+)", mia_nb.__doc__))
    assert used == set(mia_nb.__all__)


@pytest.mark.parametrize(
    ("written", "name"), [("RMIA", "rmia"), ("LiRA, one variance", "lira_global"), ("Nig", "nig")]
)
def test_an_attack_is_found_by_the_name_that_tables_write(written, name):
    assert mia_nb.attacks.find(written) == (name, mia_nb.attacks.ATTACKS[name])


def test_a_recipe_takes_names_as_people_write_them():
    recipe = mia_nb.Recipe(model="ResNet18", optimizer="SGD", defense="RelaxLoss")
    assert (recipe.model, recipe.optimizer, recipe.defense) == ("resnet18", "sgd", "relaxloss")
    assert mia_nb.Recipe(model="My.Package:Network").model == "My.Package:Network"


@pytest.mark.parametrize("name", ["lira", "LiRA, one variance", "nig_offline"])
def test_an_attack_that_learns_a_spread_is_refused_before_training_where_models_are_few(name):
    with pytest.raises(ValueError, match=r"num_models=4: (lira|nig).* take 6 models or more"):
        mia_nb.attacks.refuse_too_few(["rmia", name], 4)
    mia_nb.attacks.refuse_too_few(["rmia", name], 6)
    mia_nb.attacks.refuse_too_few(["rmia", "loss"], 2)
    with pytest.raises(ValueError, match="unknown attack 'rmai'"):
        mia_nb.attacks.refuse_too_few(["rmai"], 16)
