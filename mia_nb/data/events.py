"""Recordings of still images by a simulated event camera."""

from __future__ import annotations

import math

import numpy as np

from mia_nb._memory import check_budget
from mia_nb.arguments import Positive, Real
from mia_nb.checks import checked
from mia_nb.data.arrays import from_arrays
from mia_nb.types import Images

# the corners that the camera visits, rows and columns in pixels: a triangle, as for N-MNIST
SACCADES = ((0, 0), (2, 1), (0, 2), (0, 0))
MOMENTS = 4  # moments in each frame at which pixels are compared with their last event
FLOOR = 0.05  # added to intensities within 0..1 before the logarithm


@checked
def events_from_images(
    images: Images,
    *,
    frames: Positive = 12,
    threshold: Real = 0.2,
) -> Images:
    """The recording of an event camera that moves in front of still images, in three saccades as in
    the recording of N-MNIST; nothing is random.

    A pixel fires as often as the logarithm of its intensity has changed by `threshold` since its
    last event: ON where it grew brighter, OFF where it grew darker.

    Parameters:
        images: still images; the camera sees the mean of their channels.
        frames: T, the number of frames into which the recording is cut.
        threshold: change of log(x / 255 + 0.05) per event, above 0.

    Returns:
        `Images` of T frames with two channels, the counts of ON and of OFF events, in the order of
        `images` and with their labels, classes and canaries; the name ends with "-events".

    Raises:
        ValueError: for images that are frames already, a threshold not above 0, and if a pixel
            fires more than 255 times in a frame.

    Source: Orchard et al., Converting static image datasets to spiking neuromorphic datasets using
        saccades, Frontiers in Neuroscience 9, 2015.

    Caveat: this model of a camera has no noise; it is no substitute for a recording.

    Example: `events_from_images(load("digits", limit=400), frames=8)`.
    """
    if images.frames > 1:
        raise ValueError(f"{images.name}: these are {images.frames} frames already; wanted images")
    if not 0 < threshold < math.inf:
        raise ValueError(f"threshold={threshold}: wanted a finite number above 0")
    samples, _, height, width = images.x.shape
    # counts, and about eight arrays of doubles
    size = samples * height * width * (2 * frames + 8 * 8)
    check_budget(f"events of {samples:,} images in {frames} frames", size)
    scene = images.x.cpu().double().mean(1).numpy() / 255
    rows, columns = _positions(frames * MOMENTS + 1)
    last_event = _log_intensity(scene, rows[0], columns[0])
    counts = np.zeros((len(scene), frames, 2, *scene.shape[1:]), np.uint8)
    for frame in range(frames):
        on = np.zeros_like(scene)
        off = np.zeros_like(scene)
        for moment in range(frame * MOMENTS + 1, (frame + 1) * MOMENTS + 1):
            change = _log_intensity(scene, rows[moment], columns[moment]) - last_event
            # 1e-4: rounding must not lose an event if a change is exactly one threshold
            fired = np.sign(change) * np.floor(np.abs(change) / threshold + 1e-4)
            last_event += fired * threshold
            on += np.maximum(fired, 0)
            off += np.maximum(-fired, 0)
        most = max(on.max(), off.max())
        if most > 255:
            raise ValueError(
                f"threshold={threshold}: a pixel fires {most:.0f} times in frame {frame} of"
                f" {frames}; wanted 255 at most: raise the threshold or take more frames"
            )
        counts[:, frame, 0] = on
        counts[:, frame, 1] = off
    return from_arrays(
        counts,
        images.y.cpu().numpy(),
        classes=images.classes,
        name=f"{images.name}-events",
        canary=images.canary,
    )


def _positions(moments: int) -> np.ndarray:
    """(2, moments) rows and columns of the camera, which takes the same time for each leg of its
    path.
    """
    corners = np.asarray(SACCADES, float)
    times = np.linspace(0, len(corners) - 1, moments)
    return np.stack([np.interp(times, np.arange(len(corners)), at) for at in corners.T])


def _log_intensity(scene: np.ndarray, down: float, right: float) -> np.ndarray:
    """(N, H, W) log intensities that a camera sees after a move down and right by so many pixels.
    They are interpolated bilinearly; beyond its border a scene repeats its outermost pixels.
    """
    top = math.floor(down)
    left = math.floor(right)
    row_weights = (1 - (down - top), down - top)
    column_weights = (1 - (right - left), right - left)
    height, width = scene.shape[1:]
    intensity = np.zeros_like(scene)
    for row, row_weight in enumerate(row_weights):
        rows = np.clip(np.arange(height) + top + row, 0, height - 1)
        for column, column_weight in enumerate(column_weights):
            columns = np.clip(np.arange(width) + left + column, 0, width - 1)
            intensity += row_weight * column_weight * scene[:, rows][:, :, columns]
    return np.log(intensity + FLOOR).round(6)
