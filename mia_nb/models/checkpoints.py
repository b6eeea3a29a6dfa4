"""Weights as training programs save them: state dictionaries, plain or inside checkpoints."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from mia_nb import escape

# entries of a checkpoint that hold the weights, in the order in which they are looked for
HOLDERS = ("state_dict", "model_state_dict", "model", "net", "network", "module", "weights")
# what DataParallel, torch.compile and Lightning put before the names of weights
PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # torch prints its messages in bold
SHOWN = 3  # names in a message


def load_weights(module: nn.Module, path: str | Path) -> nn.Module:
    """Load the weights of a file into a module.

    Parameters:
        module: the network, whose weights are replaced.
        path: of a .safetensors file, or of a file of `torch.save`: a state dictionary, or a
            checkpoint that holds one under a usual name (`state_dict`, `model_state_dict`, `model`
            ...). Prefixes that DataParallel, torch.compile and Lightning add to names are removed.

    Returns:
        The module itself.

    Raises:
        ValueError: of one line for a file that cannot be read without executing code from it, for
            one with the weights of two networks, and for weights of other names or shapes: which
            ones, and how many.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    wanted = module.state_dict()
    state = {}
    for name, value in _weights(_read_checkpoint(path), path).items():
        name = str(name)
        while name not in wanted and name.startswith(PREFIXES):
            name = name.partition(".")[2]
        if name in state:
            raise ValueError(
                f"{path} has two weights {escape.terminal(name)} once prefixes are removed, as of"
                " two networks: save the weights of one: torch.save(model.state_dict(), FILE)"
            )
        state[name] = value
    if state.keys() != wanted.keys():
        raise ValueError(f"{path}: {_other_names(state, wanted)}")
    other_shapes = _other_shapes(state, wanted)
    if other_shapes:
        raise ValueError(f"{path}: {other_shapes}")
    module.load_state_dict(state)
    return module


def _read_checkpoint(path: Path) -> Mapping:
    """What a file holds, read without executing anything in it."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        with warnings.catch_warnings():
            # of other readers and of issues to file; what is wrong with the file is raised
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = COLOURS.sub("", " ".join(f"{type(error).__name__}: {error}".split()))
        raise ValueError(
            f"{path} is no file of weights that can be read without executing code"
            f" ({escape.terminal(reason[:140])}); save"
            " the weights alone: torch.save(model.state_dict(), FILE)"
        ) from error
    if not isinstance(content, Mapping):
        raise ValueError(
            f"{path} holds a {type(content).__name__}; wanted a state dictionary: torch.save("
            "model.state_dict(), FILE)"
        )
    return content


def _weights(content: Mapping, path: Path) -> Mapping[str, Tensor]:
    """The state dictionary that a file holds: its content, or an entry with a usual name."""
    for candidate in (content, *(content.get(name) for name in HOLDERS)):
        if _is_state(candidate):
            return candidate
    names = ", ".join(escape.terminal(name) for name in list(content)[:SHOWN])
    raise ValueError(
        f"{path} holds no weights; it has {names or 'nothing'}: save model.state_dict()"
    )


def _is_state(candidate: object) -> bool:
    """Whether this is a state dictionary: tensors by name, and nothing else."""
    if not isinstance(candidate, Mapping) or not candidate:
        return False
    return all(isinstance(value, Tensor) for value in candidate.values())


def _other_shapes(state: dict[str, Tensor], wanted: dict[str, Tensor]) -> str:
    """A message about weights of other shapes than wanted; "" if there are none."""
    differing = [name for name in wanted if state[name].shape != wanted[name].shape]
    if not differing:
        return ""
    name = differing[0]
    return (
        f"{len(differing)} of {len(wanted)} weights have other shapes than the network's, first"
        f" {escape.terminal(name)}: {tuple(state[name].shape)} in the file,"
        f" {tuple(wanted[name].shape)} wanted"
    )


def _other_names(state: dict[str, Tensor], wanted: dict[str, Tensor]) -> str:
    """A message about weights of other names than wanted."""
    missing = [name for name in wanted if name not in state]
    unknown = [name for name in state if name not in wanted]
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(wanted)} weights are missing ({_listed(missing)})")
    if unknown:
        parts.append(f"{len(unknown)} are not the network's ({_listed(unknown)})")
    return "; ".join(parts) + ": is it the network that was trained?"


def _listed(names: list[str]) -> str:
    """The first few names, as text."""
    listed = ", ".join(map(escape.terminal, names[:SHOWN]))
    return f"{listed}, ..." if len(names) > SHOWN else listed
