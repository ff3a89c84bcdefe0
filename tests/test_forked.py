"""Forked processes are as those that are executed: what they are given, what can be seen of them, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import ForkedProcess, fork

WORDS = ("run", "--folder=/a b/c", "ü")


def main() -> None:
    """What is forked here: it tells what it was given, and ends as its first argument says."""
    if sys.argv[1] == "wait":
        print("waiting", flush=True)
        signal.pause()
    told = {"words": sys.argv[1:], "environment": dict(os.environ), "folder": str(Path.cwd())}
    print(json.dumps({**told, "input": sys.stdin.read(), "pid": os.getpid()}), flush=True)
    print("on the other one", file=sys.stderr)
    sys.exit(7)


def forked(folder: Path, *words: str) -> ForkedProcess:
    (folder / "input").write_text("given")
    with (folder / "input").open("rb") as given, (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return fork(__name__, words, stdin=given, stdout=out, stderr=err, env={"A": "1"}, cwd=folder)


def test_a_process_has_what_it_was_given_and_its_exit_code_is_told(tmp_path: Path) -> None:
    process = forked(tmp_path, *WORDS)
    assert (process.wait(20), process.poll(), process.returncode) == (7, 7, 7)
    told = json.loads((tmp_path / "out").read_text())
    assert told == {
        "words": list(WORDS),
        "environment": {"A": "1"},
        "folder": str(tmp_path),
        "input": "given",
        "pid": process.pid,
    }
    assert (tmp_path / "err").read_text() == "on the other one\n"
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_process_shows_its_own_command_line_and_no_descriptors_but_its_streams(tmp_path: Path) -> None:
    process = forked(tmp_path, "wait", *WORDS)
    try:
        code = f"from {__name__} import main; main()"
        shown = b"\0".join(word.encode() for word in (sys.executable, "-c", code, "wait", *WORDS)) + b"\0"
        while not (tmp_path / "out").read_text():
            assert process.poll() is None
        found = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert found.startswith(shown)
        assert set(found.removeprefix(shown)) <= {0}
        assert {path.name for path in Path(f"/proc/{process.pid}/fd").iterdir()} == {"0", "1", "2"}
    finally:
        process.kill()
        process.wait(20)


def test_a_process_that_is_not_there_any_more_is_sent_nothing(tmp_path: Path) -> None:
    process = forked(tmp_path, "wait")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == -signal.SIGTERM
    process.kill()


def test_what_raises_is_told_as_python_tells_it(tmp_path: Path) -> None:
    process = forked(tmp_path)
    assert process.wait(20) == 1
    assert "IndexError" in (tmp_path / "err").read_text()
