"""A container that attacks the sub paths of its volume: it swaps folders for links as fast as it can, until ended.

    python -m tests.volumes.link_swapper <volume> <outside>

In the volume, `door` and `door/inner` are a folder at one moment and a link to the folder outside at the next,
`swapped-file` is a file or a link to the one outside, and `new` appears as a link there whenever somebody makes it as a
folder. `maze/one/two` moves up to `maze` and back, and with it a link that leads three folders up: to the volume or
above it. Exchanging two names is one step for everybody else (renameat2(2)), so there is always something at the
name. Prints a line when it has begun.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


def exchange(one: tuple[int, bytes], other: tuple[int, bytes]) -> None:
    """Each a folder's descriptor and a name in it. Raises OSError."""
    names = (ctypes.c_int(one[0]), one[1], ctypes.c_int(other[0]), other[1])
    if _libc.renameat2(*names, ctypes.c_uint(RENAME_EXCHANGE)) != 0:
        raise OSError(ctypes.get_errno(), "renameat2", os.fsdecode(one[1]))


def prepare(volume: Path, outside: Path) -> None:
    """`door/inner/file` says `inside` in the volume; outside, `inner/file` says `outside`."""
    (volume / "door" / "inner").mkdir(parents=True)
    (volume / "door" / "inner" / "file").write_text("inside")
    (volume / "link").symlink_to(outside)
    (volume / "inner-link").symlink_to(outside / "inner")
    (volume / "swapped-file").write_text("inside")
    (volume / "file-link").symlink_to(outside / "inner" / "file")
    for place in ("maze/one/two", "maze/two"):
        (volume / place).mkdir(parents=True)
        (volume / place / "up").symlink_to("../../..")
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "file").write_text("outside")


def attack(volume: Path, outside: Path) -> None:
    # A container cannot reach the folder outside itself: by descriptors, its own steps do not follow its links.
    top, door = os.open(volume, os.O_RDONLY), os.open(volume / "door", os.O_RDONLY)
    maze = os.open(volume / "maze", os.O_RDONLY)
    one = os.open("one", os.O_RDONLY, dir_fd=maze)
    while True:
        exchange((top, b"swapped-file"), (top, b"file-link"))
        exchange((one, b"two"), (maze, b"two"))
        exchange((top, b"door"), (top, b"link"))
        exchange((door, b"inner"), (top, b"inner-link"))
        with contextlib.suppress(OSError):
            os.rmdir("new", dir_fd=top)
        with contextlib.suppress(OSError):
            os.symlink(outside, "new", dir_fd=top)
        with contextlib.suppress(OSError):
            os.unlink("new", dir_fd=top)


def main() -> None:
    print("begun", flush=True)
    attack(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
