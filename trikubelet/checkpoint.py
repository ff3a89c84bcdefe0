"""Small files that must survive: what the agent has decided, and has to know after it was killed.

A file is written beside its place, brought to the disk, and renamed into place. Whoever reads finds the old content or
the new one, whole, wherever the writer was killed, and after a crash of the machine too: the rename comes after the
content, and the folder is brought to the disk before the write counts as done.

A checkpoint says also whether it is whole: it is a JSON object with its data, a text, and the checksum of the text, to
the bit as the kubelet's `checkpointmanager` computes it. So a kubelet reads the agent's checkpoints, and the agent a
kubelet's.

All of it blocks on the disk, for milliseconds on a good one: not for the event loop.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.runtime.hashing import fnv1a_32

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK: Final = 1024
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


@attrs.frozen
class CheckpointError(Exception):
    """A checkpoint cannot be read or written."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"checkpoint {self.path}: {self.problem}"


@attrs.frozen
class BrokenCheckpointError(CheckpointError):
    """There is a file, and it is not what was written: what it said is lost."""


def checksum(data: str) -> int:
    """FNV-1a over how Go prints the text (kubelet: `checksum.New`). Raises ValueError for half a surrogate pair."""
    return fnv1a_32(_printed(data))


class GrowingChecksum:
    """Checksums of the versions of one text, each of which begins mostly as the one before.

    Of a text that says something of 500 pods the checksum takes 10 ms, all of it in Python's own loop. So only what
    follows the first difference is looked at anew.
    """

    def __init__(self) -> None:
        self._before = b""
        self._values: list[int] = []
        """Of `_before` up to the end of each block."""

    def __call__(self, data: str) -> int:
        """The same as `checksum`."""
        printed, before = _printed(data), self._before
        same = 0
        for start in range(0, min(len(printed), len(before)) - _BLOCK + 1, _BLOCK):
            if printed[start : start + _BLOCK] != before[start : start + _BLOCK]:
                break
            same += 1
        values = self._values[:same]
        for start in range(same * _BLOCK, len(printed), _BLOCK):
            block = printed[start : start + _BLOCK]
            values.append(fnv1a_32(block, values[-1]) if values else fnv1a_32(block))
        self._before, self._values = printed, values
        return values[-1]


def _printed(data: str) -> bytes:
    return b"(string)" + data.encode()


def read_checkpoint(path: Path) -> str | None:
    """The data of a checkpoint; None when there is none. Raises BrokenCheckpointError and CheckpointError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    try:
        wire = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BrokenCheckpointError(path, f"expected JSON: {error}") from error
    data, expected = (wire.get("data"), wire.get("checksum")) if isinstance(wire, dict) else (None, None)
    if not isinstance(data, str) or not isinstance(expected, int):
        raise BrokenCheckpointError(path, 'expected an object with a text "data" and a number "checksum"')
    try:
        actual = checksum(data)
    except ValueError as error:
        raise BrokenCheckpointError(path, f"its data is no text: {error}") from error
    if actual != expected:
        raise BrokenCheckpointError(path, f"its data has the checksum {actual}, and should have {expected}")
    return data


def write_checkpoint(path: Path, data: str, summed: Callable[[str], int] = checksum) -> None:
    """Replace a checkpoint. Raises CheckpointError; then the old one is still there. See `write_atomically`.

    `summed`: who computes the checksum; a `GrowingChecksum` where there are many versions.
    """
    content = json.dumps({"data": data, "checksum": summed(data)}, separators=(",", ":"))
    try:
        write_atomically(path, content.encode())
    except OSError as error:
        raise CheckpointError(path, f"cannot be written: {error.strerror}") from error


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file by one with this content, which is on the disk when this returns.

    The folder has to be there. Raises OSError: then the old file is there, or the new one if its folder could not be
    brought to the disk. One writer at a time for each path: the unfinished file, `.NAME.tmp`, has one name, so that
    what a killed writer leaves is overwritten by the next.
    """
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        _write_out(unfinished, content, mode)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _write_out(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, _NEW_FILE, mode)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
