"""`trikubelet web`: the page in the command's own process, with what the agent answers on its socket."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest

from tests.cli.conftest import StandInAgent, run_command
from tests.node_api.ui.asking import ask
from tests.patience import PATIENCE
from trikubelet.cli import web as web_module
from trikubelet.cli.web_server import asking
from trikubelet.http.messages import HTTPError
from trikubelet.node_api.ui.pages import ui_pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@attrs.define
class Web:
    """The command as a process."""

    process: subprocess.Popen[str]
    url: str

    def get(self, path: str, cookie: str = "") -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(self.url).port or 0, timeout=PATIENCE)
        connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read().decode()
        connection.close()
        return found

    def enter(self) -> tuple[str, str]:
        """Where the page is, and the cookie for it."""
        url = urlsplit(self.url)
        status, headers, _ = self.get(f"{url.path}?{url.query}")
        assert status == 200
        return url.path, headers["Set-Cookie"].partition(";")[0]


@pytest.fixture
def web(agent: StandInAgent) -> Iterator[Web]:
    agent.will_answer("GET /version", {"agent": "1"})
    command = [sys.executable, "-c", "from trikubelet.cli.main import main; main()", "web"]
    process = subprocess.Popen(
        [*command, f"--root-dir={agent.root_dir}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "DISPLAY": "", "WAYLAND_DISPLAY": "", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    yield Web(process, process.stdout.readline().strip())
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_link_that_it_prints_shows_what_the_agent_answers(web: Web, agent: StandInAgent) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[0-9a-f]{16}/\?token=[\w-]{43}", web.url)
    place, cookie = web.enter()
    assert "<title>Pods" in web.get(place, cookie)[2]
    agent.will_answer("GET /pods/default/web/why", {"cause": "nothing"})
    assert web.get(f"{place}api/pods/default/web/why", cookie)[::2] == (200, '{"cause": "nothing"}')
    assert web.get(f"{place}api/pods/default/other/why", cookie)[::2] == (404, "there is nothing here\n")
    assert web.get(f"{place}api/pods/default/web/why")[0] == 403
    assert "POST /ui/link" in agent.requests
    assert "GET /pods/default/other/why" in agent.requests


def test_it_outlives_the_agent_and_says_that_it_is_away(web: Web, agent: StandInAgent) -> None:
    place, cookie = web.enter()
    (agent.root_dir / "trikubelet.sock").rename(agent.root_dir / "away")
    status, _, text = web.get(f"{place}api/journal", cookie)
    assert status == 502
    assert text.startswith(f"no agent answers on {agent.root_dir}/trikubelet.sock")
    (agent.root_dir / "away").rename(agent.root_dir / "trikubelet.sock")
    agent.will_answer("GET /journal?watch=1", b'{"type":"SNAPSHOT"}\n')
    status, headers, text = web.get(f"{place}api/journal", cookie)
    assert (status, headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    assert text == 'retry: 1000\n\ndata: {"type":"SNAPSHOT"}\n\n'


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_when_it_is_interrupted(web: Web, number: signal.Signals) -> None:
    web.enter()
    web.process.send_signal(number)
    assert web.process.wait(PATIENCE) == 128 + number


async def test_a_stream_that_the_agent_breaks_off_is_broken_off(agent: StandInAgent) -> None:
    """So that a browser knows that something is missing, and asks again."""
    agent.streams["GET /journal?watch=1"] = b'{"type":"SNAPSHOT"}\n'
    page = ui_pages(asking(agent.root_dir / "trikubelet.sock"), "ui")
    with pytest.raises(HTTPError, match=r"the connection to the agent .* was lost"):
        await ask(page, "/ui/api/journal")


def test_an_agent_that_serves_the_page_itself_is_asked_for_a_link(
    agent: StandInAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.will_answer("GET /version", {"agent": "1"})
    agent.will_answer("POST /ui/link", {"url": "http://127.0.0.1:1/x/?token=y"})
    opened: list[str] = []

    def note(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", note)
    monkeypatch.setenv("DISPLAY", ":0")
    outcome = run_command("web", "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.out) == (0, "http://127.0.0.1:1/x/?token=y\n")
    assert opened == ["http://127.0.0.1:1/x/?token=y"]
    assert run_command("web", "--no-browser", "--root-dir", agent.root_dir).code == 0
    assert len(opened) == 1


def test_without_a_browser_the_link_is_there_to_be_opened(agent: StandInAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.will_answer("GET /version", {"agent": "1"})
    agent.will_answer("POST /ui/link", {"url": "http://127.0.0.1:1/x/?token=y"})
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    outcome = run_command("web", "--browser", "--root-dir", agent.root_dir)
    assert outcome.err == "No browser could be started: open the link yourself.\n"


def test_a_port_that_is_taken(agent: StandInAgent) -> None:
    agent.will_answer("GET /version", {"agent": "1"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        outcome = run_command("web", "--port", number, "--root-dir", agent.root_dir)
    assert (outcome.code, outcome.err) == (
        1,
        f"cannot listen on 127.0.0.1:{number}: it is taken: give another --port",
    )


def test_without_an_agent_there_is_one_clear_sentence(root_dir: Path) -> None:
    assert "no agent answers" in run_command("web", "--root-dir", root_dir).err


@pytest.mark.parametrize(("name", "expected"), [("DISPLAY", True), ("WAYLAND_DISPLAY", True), ("NOTHING", False)])
def test_a_browser_is_opened_where_there_is_a_screen(
    name: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for display in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(display, raising=False)
    monkeypatch.setenv(name, ":0")
    assert web_module.has_display() is expected
