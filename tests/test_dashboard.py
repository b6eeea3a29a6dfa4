"""`mia-nb explore`: behind a token, for this machine alone, and gone when it is stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lab
import pytest
from jupyter_client import BlockingKernelClient

from mia_nb.cli import main

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


class Dashboard(NamedTuple):
    """A running `mia-nb explore`: the address that it printed, its log, its process."""

    address: str
    log: Path
    process: subprocess.Popen

    @property
    def base(self) -> str:
        return self.address.partition("/voila/")[0]

    @property
    def token(self) -> str:
        return self.address.partition("token=")[2]


@contextlib.contextmanager
def dashboard(folder: Path, *options: str) -> Iterator[Dashboard]:
    log = folder / "log"
    (folder / "runtime").mkdir()
    (folder / "tmp").mkdir()
    places = {"JUPYTER_RUNTIME_DIR": folder / "runtime", "TMPDIR": folder / "tmp"}
    environment = os.environ | {name: str(place) for name, place in places.items()}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    # as the program `mia-nb` does, which does not import from where it is started
    command = [sys.executable, "-P", "-m", "mia_nb.cli", "explore", "--no-browser", *options]
    with open(log, "w") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while "(stop" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield Dashboard(re.search(r"http\S+", log.read_text())[0], log, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


class Straight(urllib.request.HTTPRedirectHandler):
    """Redirections are answers."""

    def redirect_request(self, *_) -> None:
        return None


def get(url: str, **headers: str) -> tuple[int, str]:
    """Status and body of an answer; of a redirection the place that it leads to."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.build_opener(Straight).open(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("Location", "")


def kernels(served: Dashboard) -> list[dict]:
    status, body = get(f"{served.base}/api/kernels", Authorization=f"token {served.token}")
    assert status == 200
    return json.loads(body)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("explore"), "--port", "0") as served:
        yield served


PAGES = [
    "/voila/render/08_explore.ipynb",
    "/",
    "/voila",
    "/voila/tree",
    "/api/kernels",
    "/api/status",
]
PAGES += [
    "/api/contents",
    "/api/sessions",
    "/voila/files/08_explore.ipynb",
    "/api/terminals",
    "/tree",
]


@pytest.mark.parametrize("page", PAGES)
def test_a_visit_without_the_token_shows_nothing_and_starts_no_kernel(served, page):
    status, place = get(served.base + page)
    login = status == 302 and (
        place.startswith("/login?") or place.startswith("/voila/render/08_explore.ipynb")
    )
    assert login or status in (403, 404)
    wrong = get(f"{served.base}{page}?token={'0' * 48}")[0]
    assert wrong in (302, 403, 404)
    assert kernels(served) == []


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.1", "0.0.0.0"]
)
def test_a_visit_by_another_name_of_the_machine_is_refused_even_with_the_token(served, host):
    port = served.base.rpartition(":")[2]
    assert get(served.address, Host=f"{host}:{port}")[0] == 403
    assert kernels(served) == []


def test_only_this_machine_is_listened_to(served):
    port = int(served.base.rpartition(":")[2])
    other = socket.gethostbyname(socket.gethostname())
    if other.startswith("127."):
        pytest.skip("this machine has no other address")
    with pytest.raises(OSError):
        socket.create_connection((other, port), timeout=5)


def test_no_kernel_is_started_by_hand_without_the_token_and_no_token_stands_in_the_process_list(
    served,
):
    request = urllib.request.Request(f"{served.base}/api/kernels", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 403
    assert served.token not in Path(f"/proc/{served.process.pid}/cmdline").read_text()


def children(pid: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    )
    return [int(number) for number in listed.stdout.split()]


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    return False


SLOW = """
import time
def slow(comm, message):
    print("begun", flush=True)
    time.sleep(60)
get_ipython().kernel.comm_manager.register_target("slow", slow)
"""


def keep_busy(connection: Path) -> None:
    """Have a kernel at work on a control, which the server interrupts when it ends."""
    client = BlockingKernelClient(connection_file=str(connection))
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(30)
        client.execute_interactive(SLOW, timeout=30, output_hook=lambda message: None)
        opening = {"comm_id": "a", "target_name": "slow", "data": {}}
        client.shell_channel.send(client.session.msg("comm_open", opening))
        while client.get_iopub_msg(timeout=30)["content"].get("text") != "begun\n":
            pass
    finally:
        client.stop_channels()


# one function is called by both signals
@pytest.mark.parametrize(
    ("when", "number"), [("shown", signal.SIGINT), ("being made", signal.SIGTERM)]
)
def test_the_page_shows_with_the_token_and_a_signal_ends_server_and_kernels(tmp_path, number, when):
    with dashboard(tmp_path, "--port", "0") as served:
        page = urllib.request.urlopen(served.address, timeout=60)
        if when == "shown":
            text = page.read().decode()
            assert "voila" in text and "jupyter.widget-view+json" in text
            # the explorers stand over the text
            assert text.index("jupyter.widget-view+json") < text.index("Explore what is stored")
        assert len(kernels(served)) == 1
        started = [pid for pid in children(served.process.pid) if alive(pid)]
        assert len(started) == 1
        if when == "shown":
            keep_busy(next((tmp_path / "runtime").glob("kernel-*.json")))
        served.process.send_signal(number)
        assert served.process.wait(20) == 0
        deadline = time.monotonic() + 10
        while any(map(alive, started)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(map(alive, started))
        left = [path.name for path in (tmp_path / "runtime").iterdir()]
        assert left == ["jupyter_cookie_secret"]
        assert [path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("tmp")] == []
        lines = served.log.read_text().splitlines()
        assert lines[0] == f"{served.address} (stop with Ctrl-C)"
        if when == "shown":
            assert len(lines) == 1


SCROLLED = """[...document.querySelectorAll('.mia-nb-pane, .mia-nb-pane *')].filter(
    place => place.offsetParent && !place.closest('.js-plotly-plot')
    && ['auto', 'scroll'].includes(getComputedStyle(place).overflowY)
    && place.scrollHeight > place.clientHeight + 2).map(place => place.className)"""
LOWEST = """Math.max(...[...document.querySelectorAll('.js-plotly-plot')]
    .filter(plot => plot.offsetParent).map(plot => plot.getBoundingClientRect().bottom))"""
# the first row of a table, or the first number of a list of them
FIRST_NUMBERS = """[...document.querySelectorAll('.mia-nb tbody tr:first-child, .mia-nb-numbers div')]
    .filter(row => row.offsetParent)[0].getBoundingClientRect().bottom"""


# words of a picture that are cut at its edge
CUT = """[...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.offsetWidth).flatMap(
    plot => [...plot.querySelectorAll('.gtitle, .g-gtitle text, .legendtext')].filter(text =>
      text.getBoundingClientRect().right > plot.getBoundingClientRect().right + 1
    ).map(text => text.textContent))"""


# its kernel stays: the tests that want none of this server stand above
@pytest.mark.browser
def test_pictures_and_first_numbers_of_explorers_fit_a_small_screen_and_no_box_scrolls(served):
    lab.skip_without_browser()
    with lab.chromium() as browser, lab.fresh_page(browser) as (page, _, errors):
        page.set_viewport_size({"width": 1366, "height": 768})
        page.goto(served.address, timeout=120_000)
        for title, pictures, widths in (
            ("Scores and ROC", 2, (1366, 1020)),
            ("One sample", 4, (1366, 1020)),
            ("Vulnerable", 4, (1366, 1020)),
            ("Latency", 3, (1366,)),
            ("Run comparison", 2, (1366,)),
        ):
            page.set_viewport_size({"width": 1366, "height": 768})
            page.locator(".lm-TabBar-tab", has_text=title).click(timeout=120_000)
            page.wait_for_function(f"{lab.DRAWN} >= {pictures}", timeout=90_000)
            for width in widths:
                page.set_viewport_size({"width": width, "height": 768})
                page.wait_for_timeout(1000)
                assert page.evaluate(SCROLLED) == []
                assert page.evaluate(CUT) == []
                assert page.evaluate(LOWEST) < 768
                assert page.evaluate(FIRST_NUMBERS) < 768
        assert errors == []


def test_where_the_port_is_taken_a_free_one_is_used_and_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with dashboard(tmp_path, "--port", str(port)) as served:
            other = served.base.rpartition(":")[2]
            assert other != str(port)
            said = served.log.read_text().splitlines()[0]
            assert said == f"port {port} is taken: {other} is used instead"
            assert get(served.address)[0] == 200


@pytest.mark.parametrize("port", ["99999", "65536", "-1", "", "x", "1.5", "0x50", "８０", "9" * 40])
def test_a_port_that_is_none_is_refused_in_a_line(port, capsys):
    with pytest.raises(SystemExit) as end:
        main(["explore", "--no-browser", f"--port={port}"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1
    assert "wanted a whole number from 0 (any free port) to 65535" in said


def test_a_configuration_in_the_folder_is_not_followed_and_a_killed_server_leaves_no_kernel(
    tmp_path,
):
    for name in ("voila", "jupyter_server_config", "jupyter_config"):
        code = f"open({str(tmp_path)!r} + '/executed', 'a').write({name!r})\nc.IdentityProvider.token = ''\n"
        (tmp_path / f"{name}.py").write_text(code)
    with dashboard(tmp_path, "--port", "0") as served:
        assert get(served.base + "/api/kernels")[0] == 403
        urllib.request.urlopen(served.address, timeout=60).read()
        assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()
        started = children(served.process.pid)
        served.process.kill()
        deadline = time.monotonic() + 20
        while any(map(alive, started)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert started and not any(map(alive, started))


def test_jupyterlab_is_started_with_its_token():
    (line,) = [one for one in (ROOT / "Makefile").read_text().splitlines() if "jupyter lab" in one]
    assert line.strip() == "MIA_NB_HOME=$(CURDIR) $(RUN)/jupyter lab notebooks"
