"""A participant at a laptop: predicts with the keyboard, accuses by a click, is scored; nothing leaves the machine."""

from __future__ import annotations

from pathlib import Path

import lab
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CODE = [
    "import numpy as np\nfrom test_workshop import SAMPLES, cube_of\nfrom mia_nb import widgets, workshop\n"
    "x = np.random.default_rng(1).integers(0, 256, (SAMPLES, 1, 8, 8), np.uint8)\n"
    "source = widgets.Source('toy', cube_of(), images=x, classes=tuple('abcde'))",
    "workshop.predict('Which one?', ['this', 'that'], answer='that', why='because so')",
    "workshop.game(source)",
]
SENTENCE = "[...document.querySelectorAll('[role=status]')].map(e => e.innerText).join(' | ')"


@pytest.mark.parametrize("dark", [False, True])
def test_the_game_is_played_in_jupyterlab(tmp_path, monkeypatch, dark):
    lab.skip_without_browser()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv("MIA_NB_MODE", raising=False)
    with lab.live_notebook(tmp_path, CODE, dark=dark) as (page, external, errors, _):
        lab.wait_for_figures(page, 2)
        assert "because so" not in page.evaluate(
            "[...document.querySelectorAll('.jp-OutputArea')].map(e => e.innerText).join()"
        )
        page.locator("input[type=radio]").first.focus()
        page.keyboard.press("Space")
        page.wait_for_function(f"{SENTENCE}.includes('because so')")
        sheet = page.locator(".js-plotly-plot").first
        sheet.scroll_into_view_if_needed()
        box = sheet.evaluate("""p => { const r = p.getBoundingClientRect(), x = p._fullLayout.xaxis, y = p._fullLayout.yaxis;
            const t = p._fullData.find(t => t.mode === 'markers');
            return [r.left + x._offset + x.d2p(t.x[0]), r.top + y._offset + y.d2p(t.y[0])]; }""")
        page.mouse.click(*box)
        page.wait_for_function(f"{SENTENCE}.includes('1 of 20 accused')")
        page.locator(".widget-checkbox input[type=checkbox]").first.check()  # score me
        page.wait_for_function(f"/You: \\d+ of 20 right/.test({SENTENCE})")
        page.wait_for_function("document.querySelector('.js-plotly-plot')._fullLayout.shapes.length >= 20")
        assert (external, errors) == ([], [])
