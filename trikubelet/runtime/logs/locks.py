"""Keeping the rotation and the removal of one log apart.

A log that is removed while it is rotated would leave files behind that nobody knows of. The removal wins: it ends the
rotation, which takes a moment, and no other begins until it is done. Nobody waits for a large file to be compressed.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@attrs.define
class _Rotation:
    scope: trio.CancelScope
    ended: trio.Event


class LogLocks:
    """By the paths of logs. One for the node."""

    def __init__(self) -> None:
        self._rotations: dict[str, _Rotation] = {}
        self._removals: Counter[str] = Counter()

    @contextmanager
    def rotation(self, log_path: str) -> Iterator[bool]:
        """The time of a rotation; false when there must be none now. A removal cancels what is within."""
        if log_path in self._rotations or log_path in self._removals:
            yield False
            return
        rotation = _Rotation(trio.CancelScope(), trio.Event())
        self._rotations[log_path] = rotation
        try:
            with rotation.scope:
                yield True
        finally:
            del self._rotations[log_path]
            rotation.ended.set()

    @asynccontextmanager
    async def removal(self, log_path: str) -> AsyncIterator[None]:
        """The time of a removal: nothing rotates the log."""
        self._removals[log_path] += 1
        try:
            rotation = self._rotations.get(log_path)
            if rotation is not None:
                rotation.scope.cancel()
                await rotation.ended.wait()
            yield
        finally:
            self._removals[log_path] -= 1
            if not self._removals[log_path]:
                del self._removals[log_path]
