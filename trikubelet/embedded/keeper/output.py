"""The pipes (or the terminal) of a container, pumped into its log and to attached clients."""

from __future__ import annotations

import errno
import os

from trikubelet.embedded.keeper.followers import Followers
from trikubelet.embedded.keeper.logfile import LineFormatter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trikubelet.embedded.keeper.event_loop import EventLoop
    from trikubelet.embedded.keeper.logfile import LogFile, Stamp

_BLOCK = 64 * 1024
# A pipe holds 64 KiB unless its writer made it larger, which an ordinary user may up to 1 MiB.
_LARGEST_REST = 2 * 1024 * 1024


class Output:
    """Reads at most one block in each turn of the loop, whichever stream it comes from, so that no stream starves."""

    def __init__(self, loop: EventLoop, log: LogFile, stamp: Stamp) -> None:
        self._loop = loop
        self._log = log
        self._stamp = stamp
        self._streams: dict[int, LineFormatter] = {}
        self._turn = -1
        self.followers = Followers(loop)

    def add(self, descriptor: int, stream: str) -> None:
        """Pump a stream ("stdout" or "stderr") from now on; the descriptor is this object's to close."""
        os.set_blocking(descriptor, False)
        self._streams[descriptor] = LineFormatter(stream)
        self._loop.watch(descriptor, lambda _events: self._ready(descriptor))

    def drain(self) -> None:
        """Write what is still in the pipes, and close them: their writers are dead, and no client follows any
        longer."""
        for descriptor in list(self._streams):
            taken = 0
            while descriptor in self._streams and taken < _LARGEST_REST:
                size = self._take(descriptor)
                if size == 0:
                    break
                taken += size
            self._close(descriptor)
        self.followers.close()

    def _ready(self, descriptor: int) -> None:
        if self._turn != self._loop.turn:
            self._turn = self._loop.turn
            self._take(descriptor)

    def _take(self, descriptor: int) -> int:
        """One block into the log; the bytes taken, 0 when there are none now or any more."""
        try:
            block = os.read(descriptor, _BLOCK)
        except BlockingIOError:
            return 0
        except OSError as error:
            # A terminal whose other side is closed answers EIO.
            if error.errno != errno.EIO:
                raise
            block = b""
        if block:
            formatter = self._streams[descriptor]
            self._log.write(formatter.feed(block, self._stamp.now()))
            self.followers.feed(formatter.stream, block)
        else:
            self._close(descriptor)
        return len(block)

    def _close(self, descriptor: int) -> None:
        formatter = self._streams.pop(descriptor, None)
        if formatter is not None:
            self._log.write(formatter.finish(self._stamp.now()))
            self._loop.forget(descriptor)
            os.close(descriptor)
