"""What the keeper says where there is no room for it: found by the campaign of kills on a full disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOOP = """
from trikubelet.embedded.keeper.event_loop import EventLoop
from trikubelet.embedded.keeper.log import log

def fail():
    log("about to fail")
    raise OSError("nothing goes here")

loop = EventLoop()
loop.after(0, fail)
loop.after(0.05, loop.stop)
loop.run()
print("it has served on")
"""


def run(stderr: Path) -> subprocess.CompletedProcess[bytes]:
    with stderr.open("wb") as file:
        return subprocess.run([sys.executable, "-c", LOOP], stdout=subprocess.PIPE, stderr=file, check=True)


def test_a_full_disk_ends_no_keeper() -> None:
    assert run(Path("/dev/full")).stdout == b"it has served on\n"


def test_a_fault_is_told_where_there_is_room(tmp_path: Path) -> None:
    run(tmp_path / "keeper.log")
    told = (tmp_path / "keeper.log").read_text()
    assert told.startswith("about to fail\nTraceback ")
    assert told.endswith("OSError: nothing goes here\n")
