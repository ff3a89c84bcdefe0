"""A real Chromium without a screen, driven through chromedriver by the W3C's WebDriver protocol.

Each call blocks for as long as the browser takes: tests with an event loop call it in a thread.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest

from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM: Final = shutil.which("chromium")
CHROMEDRIVER: Final = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and CHROMEDRIVER) and os.environ.get("CI") != "true",
    reason="needs Chromium (Debian packages chromium and chromium-driver)",
)
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,720",
)


@attrs.define
class Browser:
    """One session with one window."""

    port: int
    """chromedriver's."""
    session: str = ""

    def open(self, url: str) -> None:
        """Returns when the page and its scripts are loaded."""
        self._ask("POST", "url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns; `arguments` are its."""
        return self._ask("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """What one sees of the first element; empty when there is none, or it is hidden."""
        found = self.run(
            "const one = document.querySelector(arguments[0]); return one?.checkVisibility() ? one.innerText : ''",
            selector,
        )
        assert isinstance(found, str)
        return found

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def until(self, script: str, *arguments: Any) -> Any:
        """Wait until a script returns something that is true, and return that."""
        end = time.monotonic() + PATIENCE
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < end, f"it never came to that: {script} {arguments}\n{self.text('body')}"
            time.sleep(0.05)
        return found

    def until_text(self, selector: str, pattern: str) -> str:
        """Wait until the first element shows a text that the pattern is found in."""
        end = time.monotonic() + PATIENCE
        while re.search(pattern, text := self.text(selector)) is None:
            assert time.monotonic() < end, f"expected {pattern!r} in {selector}, got {text!r}\n{self.text('body')}"
            time.sleep(0.05)
        return text

    def complaints(self) -> list[str]:
        """What the browser has told on its console since it was last asked."""
        entries = self._ask("POST", "se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def screenshot(self) -> bytes:
        """PNG."""
        return base64.b64decode(self._ask("GET", "screenshot"))

    def _ask(self, method: str, command: str, body: Any = None) -> Any:
        return _ask(self.port, method, f"/session/{self.session}/{command}", body)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser that knows nothing yet, with all that it writes in `folder`. Nothing of it is left afterwards."""
    assert CHROMEDRIVER is not None
    environment = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder), "XDG_CONFIG_HOME": str(folder)}
    driver = subprocess.Popen(
        [CHROMEDRIVER, "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        browser = Browser(_port_of(driver))
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = _ask(browser.port, "POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        browser.session = made["sessionId"]
        try:
            yield browser
        finally:
            _ask(browser.port, "DELETE", f"/session/{browser.session}")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()


def _port_of(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        if found := re.search(r"started successfully on port (\d+)", line):
            return int(found[1])
    raise AssertionError("chromedriver has ended")


def _ask(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = json.loads(connection.getresponse().read())["value"]
    finally:
        connection.close()
    if isinstance(answer, dict) and "error" in answer:
        raise AssertionError(f"{answer['error']}: {answer['message']}")
    return answer
