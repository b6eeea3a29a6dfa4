"""Weights are found in what training programs save, and what does not fit is said in a line."""

from __future__ import annotations

import os
import pickle
import warnings

import pytest
import safetensors.torch
import torch
from torch import nn

from mia_nb.models.checkpoints import load_weights


def network(width=3):
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = network()


def state_of(net, prefix=""):
    return {prefix + name: value for name, value in net.state_dict().items()}


CHECKPOINTS = {
    "plain": lambda net: net.state_dict(),
    "DataParallel": lambda net: nn.DataParallel(net).state_dict(),
    "compiled": lambda net: torch.compile(net).state_dict(),
    "compiled in DataParallel": lambda net: state_of(net, "module._orig_mod."),
    "Lightning": lambda net: {"state_dict": state_of(net, "model."), "epoch": 3, "loops": {}},
    "Lightning, compiled": lambda net: {"state_dict": state_of(net, "model._orig_mod.")},
    "trainer": lambda net: {
        "model_state_dict": net.state_dict(),
        "optimizer_state_dict": torch.optim.SGD(net.parameters(), 0.1, momentum=0.9).state_dict(),
        "loss": 0.3,
    },
    "model": lambda net: {"epoch": 1, "model": state_of(net, "module."), "acc": 93.0},
    "net": lambda net: {"net": net.state_dict(), "acc": 93.0},
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_the_weights_of_a_usual_checkpoint_are_read(kind, tmp_path):
    torch.manual_seed(0)
    net = network()
    torch.save(CHECKPOINTS[kind](net), tmp_path / "model.pt")
    loaded = load_weights(network(), tmp_path / "model.pt")
    for name, value in net.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_safetensors_are_read_and_a_network_called_model_keeps_its_names(tmp_path):
    net = Wrapper()
    safetensors.torch.save_file(state_of(net, "module."), tmp_path / "model.safetensors")
    loaded = load_weights(Wrapper(), tmp_path / "model.safetensors")
    assert torch.equal(loaded.model[0].weight, net.model[0].weight)


def saved(content, tmp_path):
    torch.save(content, tmp_path / "model.pt")
    return tmp_path / "model.pt"


REFUSED = {
    "other widths": (lambda: network(5).state_dict(), r"7 of 9 weights .*\(5, 4\) in the file"),
    "a student and its teacher": (
        lambda: {"state_dict": {**state_of(network(), "net."), **state_of(network(), "model.")}},
        "two weights 0.weight once prefixes are removed",
    ),
    "other names": (lambda: state_of(network(), "encoder."), "9 of 9 weights are missing"),
    "a layer less": (
        lambda: {k: v for k, v in network().state_dict().items() if not k.startswith("2.")},
        r"2 of 9 weights are missing \(2.weight, 2.bias\): is it the network",
    ),
    "a layer more": (
        lambda: network().state_dict() | {"3.weight": torch.zeros(1)},
        r"1 are not the network's \(3.weight\)",
    ),
    "a whole module": (network, r"torch.save\(model.state_dict\(\), FILE\)"),
    "a list": (lambda: [1, 2], "holds a list"),
    "nothing": (dict, "holds no weights; it has nothing"),
    "no weights": (lambda: {"epoch": 3}, "holds no weights; it has epoch"),
    "an escape": (lambda: {"\x1b[31mred": 1}, "holds no weights"),
    "a number for a name": (
        lambda: {0: torch.zeros(2)},
        r"9 of 9 weights are missing .*; 1 are not the network's \(0\)",
    ),
    "a number beside names": (
        lambda: {"model": {**state_of(network(), "module."), 0: torch.zeros(2)}},
        r"model.pt: 1 are not the network's \(0\)",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line_and_leaves_the_network(kind, tmp_path):
    content, reason = REFUSED[kind]
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=reason) as refused:
        load_weights(net, saved(content(), tmp_path))
    message = str(refused.value)
    assert "model.pt" in message and "\n" not in message and "\x1b" not in message
    assert len(message.replace(str(tmp_path), "")) < 420
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("kind", ["a pickle", "TorchScript"])
def test_what_torch_warns_of_in_a_file_that_is_refused_is_not_said_besides(kind, tmp_path):
    path = tmp_path / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        if kind == "a pickle":
            path.write_bytes(pickle.dumps(network(), protocol=4))
        else:
            torch.jit.trace(network().eval(), torch.zeros(2, 4)).save(path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match=r"without executing code.*save the weights alone"):
            load_weights(network(), path)
    assert not said


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "junk"])
def test_what_is_no_file_of_weights_is_refused(kind, tmp_path):
    path = tmp_path / "model.pt"
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "junk":
        path.write_bytes(b"no weights")
    reason = "without executing code" if kind == "junk" else "no such file"
    with pytest.raises(ValueError, match=reason):
        load_weights(network(), path)
