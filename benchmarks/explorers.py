"""What an explorer costs at 50,000 samples x 16 models: what a kernel does before its first
picture, the kernel's share of an update, bytes sent, time to painted pixels.

python benchmarks/explorers.py; the last column needs Chromium and playwright.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, options, report, table, timed

sys.path.insert(0, str(ROOT / "tests"))
MOVES = 12
MADE = f"""
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
import numpy as np
from worlds import world
from mia_nb import widgets
pictures = np.random.default_rng(0).integers(0, 255, ({{samples}}, 3, 32, 32), dtype=np.uint8)
names = ("cat", "dog", "frog", "ship")
worlds = [world(16, {{samples}}, leak=leak) for leak in (0.5, 1.0)]
found = [widgets.stored.Source(f"world {{{{n}}}}", w, images=pictures, classes=names) for n, w in enumerate(worlds)]
"""
EXPLORERS = {  # a call, the slider that is moved (None: a number box), its control
    "Scores and ROC, threshold": ("widgets.scores(found)", "threshold"),
    "One sample, two worlds, k": ("widgets.sample(found)", "k"),
    "Vulnerable samples, page": ("widgets.exposed(found)", "page"),
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


FIRST = f"""
import json, sys, time
sys.path.insert(0, {str(ROOT)!r})
seconds, start = {{}}, time.process_time()
def lap(name):
    global start
    seconds[name], start = time.process_time() - start, time.process_time()
from mia_nb import widgets
lap("import")
found = widgets.sources("no such folder")
lap("sources")
_ = widgets.explore(found)._widget()
lap("first explorer")
print(json.dumps(seconds))
"""


def first_picture(repeats: int) -> dict[str, float]:
    """Median CPU seconds of what comes before the first picture of `mia-nb explore`, on the
    signals that come with the package.
    """
    runs = []
    for _ in range(repeats):
        done = subprocess.run(
            [sys.executable, "-c", FIRST], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def kernel(call: str, control: str, made: str, moves: int) -> tuple[float, float]:
    """Median milliseconds of Python and kilobytes of figures per update."""
    space: dict = {}
    exec(made, space)
    explorer = eval(call, space)
    _ = explorer.widget
    slider = explorer.controls[control]
    values = [v for _, v in slider.options] if hasattr(slider, "options") else None
    took, sent = [], []
    for number in range(moves):
        explorer._drawn_at, before = (
            0.0,
            {name: figure.count for name, figure in explorer.page.figures.items()},
        )
        if values:
            value = values[(values.index(slider.value) + 1) % len(values)]
        else:
            value = (
                slider.min
                + (number + 1) % int((slider.max - slider.min) / slider.step + 1) * slider.step
            )
        took.append(timed(lambda value=value: setattr(slider, "value", value)))
        sent.append(
            sum(
                len(f.figure)
                for name, f in explorer.page.figures.items()
                if f.count != before[name]
            )
        )
    return 1000 * statistics.median(took), statistics.median(sent) / 1000


def painted(call: str, control: str, made: str) -> float:
    """Median milliseconds from an arrow key to the last painted picture, in JupyterLab."""
    import lab

    os.environ.pop("MIA_NB_MODE", None)
    cells = [made, f"e = {call}; e"]
    with tempfile.TemporaryDirectory() as folder, lab.alone(Path(folder), cells) as (page, _, _, _):
        page.wait_for_timeout(2000)
        times = [page.evaluate(MOVE, [control.split()[0]]) for _ in range(MOVES)]
    return statistics.median(t for t in times if t is not None)


def main() -> None:
    args = options(__doc__).parse_args()
    samples, rows = 500 if args.quick else 50_000, []
    made = MADE.format(samples=samples)
    with report(f"Explorers, {samples:,} samples x 16 models", args.quick):
        for name, (call, control) in EXPLORERS.items():
            took, sent = kernel(call, control, made, 2 if args.quick else MOVES)
            try:
                paint = (
                    "-"
                    if args.quick
                    else f"{painted(call, {'k': 'k a side'}.get(control, control), made):.0f}"
                )
            except ImportError:
                paint = "no browser"
            rows.append([name, f"{took:.0f}", f"{sent:.0f}", paint])
        seconds = first_picture(1 if args.quick else 5)
        table(["before the first picture", "CPU, s"], [[n, f"{s:.2f}"] for n, s in seconds.items()])
        table(
            ["explorer, control moved", "kernel, ms", "figures sent, kB", "key to painted, ms"],
            rows,
        )


if __name__ == "__main__":
    main()
