"""Contrast of two colours as WCAG 2.1 defines it, and of the lines that a page shows."""

from __future__ import annotations

import re

import numpy as np

# colour of every line in a figure, the filter of its layer, and the first paper below it
LINES = """number => [
  ...document.querySelectorAll('.js-plotly-plot')[number].querySelectorAll('.scatterlayer .js-line'),
].map(line => {
  let paper = line.closest('.js-plotly-plot');
  while (paper && getComputedStyle(paper).backgroundColor === 'rgba(0, 0, 0, 0)')
    paper = paper.parentElement;
  const filter = getComputedStyle(line.closest('.scatterlayer')).filter;
  return [getComputedStyle(line).stroke, filter, getComputedStyle(paper).backgroundColor];
})"""


def linear(channels: np.ndarray) -> np.ndarray:
    """Light of each of the channels of a colour, which are 0 to 1."""
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(first: np.ndarray, second: np.ndarray) -> float:
    """From 1 to 21; 4.5 is what text needs, 3 what a graphical object needs."""
    weights = [0.2126, 0.7152, 0.0722]
    low, high = sorted((linear(first) @ weights, linear(second) @ weights))
    return (high + 0.05) / (low + 0.05)


def least_contrast_of_lines(page, number: int) -> float:
    """Of all lines of a page's figure of this number with the paper that they are drawn on."""
    contrasts = []
    for stroke, layer, paper in page.evaluate(LINES, number):
        brightness = re.fullmatch(r"brightness\(([\d.]+)\)", layer)
        assert brightness or layer == "none"
        line, ground = (
            np.array([int(number) for number in re.findall(r"\d+", colour)[:3]]) / 255
            for colour in (stroke, paper)
        )
        line = np.minimum(line * float(brightness[1] if brightness else 1), 1)
        contrasts.append(contrast(line, ground))
    return min(contrasts)
