"""Labelled images as one tensor."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mia_nb import escape

if TYPE_CHECKING:
    from torch import Tensor

SHOWN = 10  # names of classes in a text


class Images(NamedTuple):
    """Labelled images as one uint8 tensor, with their normalisation.

    A sample of an event camera is T frames of event counts, concatenated along the channels.
    """

    x: Tensor  # (N, T * C, H, W) uint8
    y: Tensor  # (N,) int64
    classes: tuple[str, ...]
    name: str
    # per channel of x / 255; (0,) and (1,) mean that the model normalises itself
    mean: tuple[float, ...]
    std: tuple[float, ...]
    canary: np.ndarray | None = None  # (N,) bool
    frames: int = 1  # T

    @property
    def channels(self) -> int:
        """C, the channels of an image or of one frame of events."""
        return self.x.shape[1] // self.frames

    def __repr__(self) -> str:
        return (
            f"Images {escape.terminal(self.name)}: {len(self.x):,} of {self._shape_text('x')}"
            f" pixels, {len(self.classes)} classes ({escape.terminal(self._classes_text())})"
        )

    def _repr_html_(self) -> str:
        facts = {
            "data set": self.name,
            "images": f"{len(self.x):,}",
            "shape": self._shape_text(" x "),
            "classes": f"{len(self.classes)}: {self._classes_text()}",
        }
        if self.canary is not None:
            facts["canaries"] = f"{int(np.sum(self.canary)):,}"
        return escape.html_facts(facts)

    def _shape_text(self, separator: str) -> str:
        """The size of an image, or the number of frames and their size."""
        size = separator.join(map(str, (self.channels, *self.x.shape[2:])))
        if self.frames > 1:
            return f"{self.frames} frames of {size}"
        return size

    def _classes_text(self) -> str:
        """The names of the first classes."""
        names = ", ".join(map(str, self.classes[:SHOWN]))
        if len(self.classes) > SHOWN:
            names += ", ..."
        return names

    @property
    def digest(self) -> str:
        """sha256 (hex) of x, y, canaries, number of classes, normalisation and, if it is above 1,
        the number of frames.

        Results are stored under it. It is computed at each use, at about a gigabyte a second, since
        the tensors may have changed.
        """
        x = self.x.detach().cpu().contiguous().numpy()
        y = self.y.detach().cpu().numpy()
        mean = list(map(float, self.mean))
        std = list(map(float, self.std))
        header = [list(x.shape), len(self.classes), mean, std]
        if self.frames > 1:
            header.append(self.frames)
        sha = hashlib.sha256(json.dumps(header).encode())
        sha.update(memoryview(x.reshape(-1).view(np.uint8)))
        sha.update(y.astype("<i8").tobytes())
        if self.canary is not None:
            sha.update(np.asarray(self.canary, bool).tobytes())
        return sha.hexdigest()
