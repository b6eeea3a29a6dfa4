"""The outputs that notebooks are stored with, so that who reads them sees pictures:
python docs/stored.py [notebooks; all that keep outputs].

A cell tagged `keep_output` keeps what it shows in a run that finds nothing but what is shipped;
nbstripout takes the outputs of all others. A figure is kept as a PNG, drawn by Chromium. The
notebook holds a digest of what its outputs were made from: a test says when they are out of date.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mia_nb.digests import digest

ROOT = Path(__file__).resolve().parent.parent
KEEP = "keep_output"  # the tag, as nbstripout knows it
MADE_FROM = "outputs_made_from"  # the digest, in the notebook's metadata
PLOTLY = "application/vnd.plotly.v1+json"
WIDTH, HEIGHT = 900, 450  # of a figure that names none
COLOURS = 256  # of a picture: with fewer light grey turns green
REFRESH = "python docs/stored.py"


def is_kept(cell: dict) -> bool:
    return KEEP in cell["metadata"].get("tags", [])


def books() -> list[Path]:
    """The notebooks with a cell that keeps its output."""
    paths = sorted(ROOT.glob("notebooks/**/*.ipynb"))
    return [path for path in paths if any(map(is_kept, json.loads(path.read_text())["cells"]))]


def made_from(book: dict) -> str:
    """A digest of a notebook's code and of the manifests of what is shipped, with its checksums."""
    code = [text_of(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    return digest(
        [code, *(path.read_bytes() for path in sorted(ROOT.glob("data/*/manifest.json")))]
    )[:16]


def text_of(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def run(path: Path) -> dict[str, list[dict]]:
    """What each cell shows in batch mode, by its id, with an empty folder of results."""
    from mia_nb.cli.executing import execute
    from mia_nb.parameters import read_parameters

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / path.name
        own = {"results": f"{folder}/results"}
        given = {name: own[name] for name in own.keys() & read_parameters(path).keys()}
        if lost := execute(path, out, given):
            raise SystemExit("\n".join([f"{path.name}: figures failed", *lost]))
        return {
            cell["id"]: cell.get("outputs", []) for cell in json.loads(out.read_text())["cells"]
        }


def words(outputs: list[dict]) -> list[dict]:
    """The text of outputs by its kind; of a figure its title. What went to stderr is left out."""
    found: list[dict] = []
    for output in outputs:
        if output["output_type"] == "stream":
            found += [{"text": text_of(output["text"])}] if output["name"] == "stdout" else []
            continue
        data = output["data"]
        title = data.get(PLOTLY, {}).get("layout", {}).get("title", {}).get("text")
        if title is not None:
            found.append({"text/plain": title.replace("<br>", " ")})
            continue
        texts = {kind: text_of(data[kind]) for kind in data if kind.startswith("text/")}
        # an object's name says nothing beside its page
        found.append({k: v for k, v in texts.items() if not v.startswith("<IPython.")})
    return found


def still(outputs: list[dict], draw: Callable[[dict], bytes]) -> list[dict]:
    """Outputs as they are stored: words, and pictures of figures."""
    shown = [one for one in outputs if one.get("name") != "stderr"]
    kept: list[dict] = []
    for output, texts in zip(shown, words(outputs), strict=True):
        data = {kind: text.splitlines(keepends=True) for kind, text in texts.items()}
        if "text" in data:
            kept.append({"name": "stdout", "output_type": "stream", "text": data["text"]})
            continue
        if PLOTLY in output["data"]:
            data["image/png"] = base64.b64encode(draw(output["data"][PLOTLY])).decode()
        kept.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return kept


@contextlib.contextmanager
def chromium() -> Iterator[Callable[[dict], bytes]]:
    """What draws a figure of plotly as a PNG of few colours."""
    from pictures import launched
    from PIL import Image
    from playwright.sync_api import sync_playwright
    from plotly.offline import get_plotlyjs

    with sync_playwright() as playwright:
        browser = launched(playwright)
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
        page.set_content(
            "<!doctype html><body style='margin:0; background:white'><div id='figure'>"
        )
        page.add_script_tag(content=get_plotlyjs())

        def draw(figure: dict) -> bytes:
            size = {"width": WIDTH, "height": figure["layout"].get("height", HEIGHT)}
            page.evaluate(
                "([data, layout]) => Plotly.newPlot('figure', data, layout, {staticPlot: true})",
                [figure["data"], figure["layout"] | size],
            )
            page.wait_for_timeout(500)  # images within it
            shot = Image.open(io.BytesIO(page.locator("#figure").screenshot())).convert("RGB")
            packed = io.BytesIO()
            few = shot.quantize(
                COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE
            )
            few.save(packed, "PNG", optimize=True)
            return packed.getvalue()

        yield draw
        browser.close()


def main(*names: str) -> None:
    with chromium() as draw:
        for path in [Path(name).resolve() for name in names] or books():
            book, shown = json.loads(path.read_text()), run(path)
            for cell in filter(is_kept, book["cells"]):
                cell["outputs"] = still(shown[cell["id"]], draw)
            book["metadata"][MADE_FROM] = made_from(book)
            text = json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True)
            path.write_text(f"{text}\n")
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(*sys.argv[1:])
