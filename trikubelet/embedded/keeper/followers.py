"""Clients attached to a running container: each gets what the container writes from now on, through a pipe of its own.

The container comes first. Its output is copied into the pipe as far as the pipe has room (the agent makes it 1 MiB
large), without waiting and without a buffer here; what does not fit is left out, counted, and a line says so once there
is room again. containerd makes the container wait for its slowest client instead, and its log with it; cutting a slow
client off would end a terminal session at the first command that writes much.
"""

from __future__ import annotations

import os

from trikubelet.embedded.keeper import event_loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trikubelet.embedded.keeper.event_loop import EventLoop

_NOTHING_BUT_ITS_END = 0


class _Follower:
    """The writing end of one client's pipe."""

    __slots__ = ("descriptor", "skipped")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.skipped = 0

    def feed(self, block: bytes) -> None:
        """Write as much as there is room for. Raises OSError when the reader has closed it."""
        if self.skipped and not self.announce_skipped():
            self.skipped += len(block)
            return
        try:
            self.skipped = len(block) - os.write(self.descriptor, block)
        except BlockingIOError:
            self.skipped = len(block)

    def announce_skipped(self) -> bool:
        """Tell the client that something is missing. It is short, so the kernel takes it as a whole or not at all."""
        note = f"\r\n[trikubelet: {self.skipped} bytes of output left out: they were not read in time]\r\n"
        try:
            os.write(self.descriptor, note.encode())
        except BlockingIOError:
            return False
        self.skipped = 0
        return True


class Followers:
    """Attached clients of one container, by stream ("stdout" or "stderr")."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._by_stream: dict[str, list[_Follower]] = {}
        self._closing = False

    def add(self, stream: str, descriptor: int) -> None:
        """Let a client follow until it closes its end; the descriptor is this object's to close."""
        os.set_blocking(descriptor, False)
        follower = _Follower(descriptor)
        self._by_stream.setdefault(stream, []).append(follower)
        self._watch(stream, follower)

    def feed(self, stream: str, block: bytes) -> None:
        """What the container wrote, for everyone who follows this stream."""
        for follower in list(self._by_stream.get(stream, ())):
            complete = not follower.skipped
            try:
                follower.feed(block)
            except OSError:
                self._remove(stream, follower)
            else:
                if complete and follower.skipped:
                    self._watch(stream, follower)

    def close(self) -> None:
        """Nothing more comes: every client sees the end of its pipe, once it has the notice of what it missed."""
        self._closing = True
        for stream, followers in self._by_stream.items():
            for follower in list(followers):
                if not follower.skipped:
                    self._remove(stream, follower)

    def _watch(self, stream: str, follower: _Follower) -> None:
        """Watch for its end and, while something is missing, for room for the line about that."""
        events = event_loop.WRITE if follower.skipped else _NOTHING_BUT_ITS_END
        self._loop.watch(follower.descriptor, lambda ready: self._ready(stream, follower, ready), events)

    def _ready(self, stream: str, follower: _Follower, ready: int) -> None:
        try:
            gone = ready != event_loop.WRITE
            if not gone and (not follower.skipped or follower.announce_skipped()):
                gone = self._closing
                self._watch(stream, follower)
        except OSError:
            gone = True
        if gone:
            self._remove(stream, follower)

    def _remove(self, stream: str, follower: _Follower) -> None:
        self._by_stream[stream].remove(follower)
        self._loop.forget(follower.descriptor)
        os.close(follower.descriptor)
