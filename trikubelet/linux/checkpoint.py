"""Small files that must survive: what the agent has decided, and has to know after it was killed.

A checkpoint is written by `durable_files`, and says also whether it is whole: it is a JSON object with its data, a
text, and the checksum of the text, to the bit as the kubelet's `checkpointmanager` computes it. So a kubelet reads the
agent's checkpoints, and the agent a kubelet's.

All of it blocks on the disk, for milliseconds on a good one: not for the event loop.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.hashing import fnv1a_32
from trikubelet.formats.values import frozen
from trikubelet.linux.durable_files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK: Final = 1024


@frozen
class CheckpointError(Exception):
    """A checkpoint cannot be read or written."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"checkpoint {self.path}: {self.problem}"


@frozen
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


def to_bytes(data: str, summed: Callable[[str], int] = checksum) -> bytes:
    """What is written of the data. `summed`: see `write_checkpoint`."""
    return json.dumps({"data": data, "checksum": summed(data)}, separators=(",", ":")).encode()


def write_checkpoint(path: Path, data: str, summed: Callable[[str], int] = checksum) -> None:
    """Replace a checkpoint. Raises CheckpointError; then the old one is still there. See `write_atomically`.

    `summed`: computes the checksum; a `GrowingChecksum` where there are many versions.
    """
    try:
        write_atomically(path, to_bytes(data, summed))
    except OSError as error:
        raise CheckpointError(path, f"cannot be written: {error.strerror}") from error
