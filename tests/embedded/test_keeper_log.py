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


NO_MORE_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
"""


def run(stderr: Path, *, before: str = "") -> subprocess.CompletedProcess[bytes]:
    code = LOOP.replace("loop.run()", f"{before}\nloop.run()")
    with stderr.open("wb") as file:
        return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=file, check=True)


def test_a_full_disk_ends_no_keeper() -> None:
    assert run(Path("/dev/full")).stdout == b"it has served on\n"


def test_a_fault_when_no_file_can_be_opened_ends_no_keeper(tmp_path: Path) -> None:
    assert run(tmp_path / "keeper.log", before=NO_MORE_FILES).stdout == b"it has served on\n"
    assert (tmp_path / "keeper.log").read_text() == "about to fail\nOSError: nothing goes here\n"


def test_a_fault_is_told_where_there_is_room(tmp_path: Path) -> None:
    run(tmp_path / "keeper.log")
    told = (tmp_path / "keeper.log").read_text()
    assert told.startswith("about to fail\nTraceback ")
    assert told.endswith("OSError: nothing goes here\n")
