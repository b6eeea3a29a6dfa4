"""`mia-nb audit --weights`: write the outputs of a finished model to a file for `--logits`."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np

from mia_nb._files import replacing
from mia_nb.auditing.elsewhere import array_in
from mia_nb.auditing.model_outputs import outputs
from mia_nb.checks import mask
from mia_nb.digests import digest


def with_outputs(args: Namespace) -> Namespace:
    """The options with --logits instead of --weights: a file of the model's outputs for --data."""
    needed = {"--model": args.model, "--data": args.data, "--member": args.member}
    lacking = " and ".join(name for name, value in needed.items() if not value)
    if not args.weights:
        raise ValueError("--member is for --weights FILE; leave it out")
    if lacking:
        raise ValueError(
            f"--weights needs {lacking} too: what builds the network, the images, and a .npy"
            " that is true for those that it was trained on"
        )
    if not Path(args.weights).is_file():
        raise ValueError(f"--weights {args.weights}: no such file")
    arrays = _arrays_for_logits(args)
    # the digest gives other outputs another file, so audits that run at once do not share one
    weights = Path(args.weights).absolute().with_suffix("")
    name = re.sub(r"\W+", "_", "_".join(weights.parts[-2:])).strip("_")[-80:]
    path = Path(args.results) / f"finished_{name}-{digest(arrays)[:12]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez(file, **arrays)
    return Namespace(**vars(args) | {"logits": str(path), "model": None, "data": None})


def _arrays_for_logits(args: Namespace) -> dict[str, np.ndarray]:
    """The arrays of an .npz for --logits: the images, and the outputs of the model of --weights."""
    from mia_nb import data, models
    from mia_nb.models.checkpoints import load_weights

    sys.path.insert(0, os.getcwd())  # builders are found as in a notebook's kernel
    images = data.load(args.data)
    shape = {
        "in_channels": images.x.shape[1],
        "size": tuple(images.x.shape[2:]),
        "frames": images.frames,
    }
    scale = {"mean": images.mean, "std": images.std}
    module = models.build(args.model, num_classes=len(images.classes), seed=0, **shape, **scale)
    try:
        load_weights(module, args.weights)
    except ValueError as error:
        raise ValueError(f"--weights do not fit {args.model}: {error}") from error
    module.register_forward_pre_hook(lambda _, inputs: data.normalise(inputs[0], **scale))
    x = images.x.numpy()
    pictures = x
    if images.frames > 1:  # (N, T * C, H, W) as (N, T, C, H, W)
        pictures = x.reshape(len(x), images.frames, -1, *x.shape[2:])
    member = array_in(args.member)
    return {
        "logits": outputs(module, x)[None],
        "labels": images.y.numpy(),
        "images": pictures,
        "member": mask(f"--member {args.member}", member, (len(x),))[None],
        "classes": np.array(images.classes, str),
    }
