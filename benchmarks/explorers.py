"""What an explorer costs at 50,000 samples x 16 models: the kernel's share of an update, bytes sent, time to painted pixels.

python benchmarks/explorers.py; the last column needs Chromium and playwright.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
MOVES = 12
MADE = f"""
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
import numpy as np
from worlds import world
from mia_nb import widgets
pictures = np.random.default_rng(0).integers(0, 255, (50_000, 3, 32, 32), dtype=np.uint8)
names = ("cat", "dog", "frog", "ship")
found = [widgets.Source(f"world {{leak}}", world(16, 50_000, leak=leak), images=pictures, classes=names) for leak in (0.5, 1.0)]
"""
EXPLORERS = {  # a call, the slider that is moved (None: a number box), its control
    "Scores and ROC, threshold": ("widgets.scores(found)", "threshold"),
    "One sample, two worlds, k": ("widgets.sample(found)", "k"),
    "Vulnerable samples, page": ("widgets.exposed(found)", "page"),
    "Privacy ladder, delta": ("widgets.ladder(found)", "delta"),
}
MOVE = """async ([label]) => {
  const row = [...document.querySelectorAll('.widget-label')].find(e => e.innerText.trim().startsWith(label)).parentElement;
  const handle = row.querySelector('.noUi-handle'), places = [...document.querySelectorAll('.js-plotly-plot')];
  const before = places.map(p => p.dataset.drawn), start = performance.now();
  const key = Math.random() < .5 ? 'ArrowRight' : 'ArrowLeft';
  handle.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  let last = start, drawn = before;
  while (performance.now() - last < 400 || drawn === before) {  // until no picture has changed for a while
    const now = places.map(p => p.dataset.drawn);
    if (JSON.stringify(now) !== JSON.stringify(drawn)) { drawn = now; last = performance.now(); }
    if (performance.now() - start > 3000) break;
    await new Promise(done => setTimeout(done, 3));
  }
  return drawn === before ? null : last - start;
}"""


def kernel(call: str, control: str) -> tuple[float, float]:
    """Median milliseconds of Python and kilobytes of figures per update."""
    space: dict = {}
    exec(MADE, space)
    explorer = eval(call, space)
    _ = explorer.widget
    slider = explorer.controls[control]
    values = [v for _, v in slider.options] if hasattr(slider, "options") else None
    took, sent = [], []
    for number in range(MOVES):
        explorer._drawn, before = 0.0, {name: figure.count for name, figure in explorer._figures.items()}
        if values:
            value = values[(values.index(slider.value) + 1) % len(values)]
        else:
            value = slider.min + (number + 1) % int((slider.max - slider.min) / slider.step + 1) * slider.step
        start = time.perf_counter()
        slider.value = value
        took.append(time.perf_counter() - start)
        sent.append(sum(len(f.figure) for name, f in explorer._figures.items() if f.count != before[name]))
    return 1000 * statistics.median(took), statistics.median(sent) / 1000


def painted(call: str, control: str) -> float:
    """Median milliseconds from an arrow key to the last painted picture, in JupyterLab."""
    import lab

    os.environ.pop("MIA_NB_MODE", None)
    cells = [MADE, f"e = {call}; e"]
    with tempfile.TemporaryDirectory() as folder, lab.live_notebook(Path(folder), cells) as (page, _, _, _):
        page.wait_for_timeout(2000)
        times = [page.evaluate(MOVE, [control.split()[0]]) for _ in range(MOVES)]
    return statistics.median(t for t in times if t is not None)


def main() -> None:
    print("| explorer, control moved | kernel, ms | figures sent, kB | key to painted, ms |\n|---|---|---|---|")
    for name, (call, control) in EXPLORERS.items():
        label = {"k": "k a side"}.get(control, control)
        took, sent = kernel(call, control)
        try:
            paint = f"{painted(call, label):.0f}"
        except ImportError:
            paint = "no browser"
        print(f"| {name} | {took:.0f} | {sent:.0f} | {paint} |", flush=True)


if __name__ == "__main__":
    main()
