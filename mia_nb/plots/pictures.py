"""Images as pixels, and pixels as PNG inside a page."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image


def rgb(image: np.ndarray) -> np.ndarray:
    """An image (C, H, W) as pixels (H, W, 3). One channel is grey, two channels are events; of more
    than three the first three are taken (`shown_channels` says so).
    """
    image = as_pictures(image)[:3]
    return np.moveaxis(np.broadcast_to(image, (3, *image.shape[1:])), 0, 2)


def shown_channels(channels: int) -> str:
    """The channels that a picture shows, in words; "" for all."""
    return f"channels 1 to 3 of {channels}" if channels > 3 else ""


def as_pictures(x: np.ndarray, frames: int = 1) -> np.ndarray:
    """Samples as images of one frame, events in colour; ordinary images are returned as they are.

    Parameters:
        x: (..., frames * C, H, W) uint8.
        frames: number of frames of events, which are summed over time and scaled so that a sample's
            brightest pixel is 255.

    Returns:
        (..., C, H, W) uint8. Two channels, ON and OFF events, become three: ON is yellow, OFF blue.
    """
    x = np.asarray(x)
    if frames > 1:
        counts = x.reshape(*x.shape[:-3], frames, -1, *x.shape[-2:]).sum(-4, dtype=np.int64)
        most = counts.max((-3, -2, -1), keepdims=True)
        x = (255 * counts // np.maximum(most, 1)).astype(np.uint8)
    if x.shape[-3] == 2:
        x = x[..., [0, 0, 1], :, :]
    return x


def png(pixels: np.ndarray) -> str:
    """Pixels (H, W, 3 or 4) as a data URL of a PNG."""
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels, np.uint8)).save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def enlarged(pixels: np.ndarray, factor: int) -> np.ndarray:
    """Pixels (H, W, ...), each repeated as a square, as browsers blur images that they enlarge."""
    return pixels.repeat(factor, 0).repeat(factor, 1)
