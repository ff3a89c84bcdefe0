"""Clients attached to running containers: pipes that the keeper copies output into, and a share of the input.

The keeper never waits for a client (`keeper/followers.py`): what does not fit into a client's pipe is left out for it.
The input is the container's own pipe or terminal: every client writes to it directly.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.commands import set_terminal_size
from trikubelet.embedded.keeper_client import KeeperClient, KeeperError
from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trikubelet.http.streaming.command import CommandStreams, TerminalSize

PIPE_SIZE: Final = 1 << 20
"""Bytes that a client may lag behind its container; less where the machine allows less."""


@define(eq=False)
class Attachment:
    """One client's share of a container. Its outputs end with the container."""

    outputs: dict[str, trio.lowlevel.FdStream]
    """By name: "stdout", "stderr"."""
    stdin: trio.lowlevel.FdStream | None = None
    """None: the container takes no input, or no more. Closing it leaves the container's stdin open for others."""
    _terminal: int | None = None

    def resize(self, size: TerminalSize) -> None:
        """Give the container's terminal another size."""
        if self._terminal is not None:
            set_terminal_size(self._terminal, size)

    def close(self) -> None:
        for output in self.outputs.values():
            output.close()
        if self.stdin is not None:
            self.stdin.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None


class Attachments:
    """All clients attached through this agent, by container."""

    def __init__(self, keeper: KeeperClient) -> None:
        self._keeper = keeper
        self._by_container: dict[str, set[Attachment]] = {}

    @asynccontextmanager
    async def attach(
        self, container_id: str, streams: CommandStreams, *, takes_input: bool
    ) -> AsyncIterator[Attachment]:
        """Attach for as long as the body runs. `takes_input`: the container was created with stdin.

        Raises KeeperError (it does not run), KeeperLostError, OSError (no descriptors left), trio.TooSlowError.
        """
        attachment = Attachment({})
        others = self._by_container.setdefault(container_id, set())
        others.add(attachment)
        try:
            await self._open(attachment, container_id, streams, takes_input=takes_input)
            yield attachment
        finally:
            attachment.close()
            others.discard(attachment)
            if not others and self._by_container.get(container_id) is others:
                del self._by_container[container_id]

    async def _open(
        self, attachment: Attachment, container_id: str, streams: CommandStreams, *, takes_input: bool
    ) -> None:
        wanted = {"stdout": streams.stdout, "stderr": streams.stderr and not streams.tty}
        theirs: dict[str, int] = {}
        try:
            for name in (name for name, is_wanted in wanted.items() if is_wanted):
                reader, theirs[name] = _wide_pipe()
                attachment.outputs[name] = trio.lowlevel.FdStream(reader)
            with_stdin = streams.stdin and takes_input
            answer, descriptor = await self._keeper.request_descriptor(
                "attach", list(theirs.values()), container=container_id, streams=list(theirs), stdin=with_stdin
            )
        finally:
            for end in theirs.values():
                os.close(end)
        if descriptor is None:
            return
        if answer["input"] == "terminal":
            attachment._terminal = descriptor
            descriptor = os.dup(descriptor)
        if with_stdin:
            attachment.stdin = trio.lowlevel.FdStream(descriptor)
        else:
            os.close(descriptor)

    async def close_stdin(self, container_id: str) -> None:
        """Close the container's stdin for good (`stdinOnce`); a terminal stays.

        Raises KeeperLostError, trio.TooSlowError.
        """
        for attachment in self._by_container.get(container_id, ()):
            if attachment.stdin is not None and attachment._terminal is None:
                attachment.stdin.close()
        with suppress(KeeperError):  # it has ended meanwhile
            await self._keeper.request("close_stdin", container=container_id)


def _wide_pipe() -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # a user may have used up what all pipes together may take
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return reader, writer
