"""Exec and attach: bytes between a remote client's streams and a process in a container.

The story of a session: the client's stdin is copied into the process's until it ends; what the process prints is copied
back, waiting while the client does not read (an executed command then waits in its write, an attached container does
not: its client misses output); when the process has ended and its output is drained, the client gets the result. A
client that goes away ends the session, and with it the command that it executed and all that this started. containerd
lets such a command run on, with no reader, and no way to end it.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.keeper_client import KeeperError, KeeperLostError
from trikubelet.embedded.records import Phase
from trikubelet.http.streaming.command import IDLE_TIMEOUT, CommandStreams, Exited, Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trikubelet.embedded.attachments import Attachment, Attachments
    from trikubelet.embedded.commands import Command, Commands
    from trikubelet.embedded.records import ContainerRecord
    from trikubelet.http.streaming.command import CommandResult, TerminalSize
    from trikubelet.http.streaming.remote_command import RemoteCommand

_BLOCK: Final = 64 * 1024
_REST_OF_OUTPUT: Final = 0.25
"""Seconds without output after the command's end, where something it left behind holds its pipes open."""
_LARGEST_REST: Final = 1 << 20
"""Bytes that a pipe can hold: what comes later was not written by the command."""
_NOT_STARTED: Final = (KeeperError, KeeperLostError, OSError, trio.TooSlowError)


async def execute(
    commands: Commands, record: ContainerRecord, argv: Sequence[str], streams: CommandStreams, remote: RemoteCommand
) -> None:
    """Run a command for a client, to the end of either. When cancelled, the command is killed."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_leave_with_client, remote, nursery.cancel_scope)
        await _finish(remote, await _run_command(commands, record, argv, streams, remote))
        nursery.cancel_scope.cancel()


async def attach(
    attachments: Attachments, record: ContainerRecord, streams: CommandStreams, remote: RemoteCommand
) -> None:
    """Show a client what a container prints from now on, and give the container what the client types.

    Ends with either of them, and with the client's stdin too unless that was the container's only one (stdinOnce
    without a terminal): as in containerd. When cancelled, the container runs on.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_leave_with_client, remote, nursery.cancel_scope)
        await _finish(remote, await _run_attached(attachments, record, streams, remote))
        nursery.cancel_scope.cancel()


async def _leave_with_client(remote: RemoteCommand, session: trio.CancelScope) -> None:
    await remote.wait_disconnected()
    session.cancel()


async def _finish(remote: RemoteCommand, result: CommandResult) -> None:
    # A client may rest before it reads what is left, for as long as any connection may rest.
    with trio.move_on_after(IDLE_TIMEOUT):
        await remote.finish(result)


# -- exec --------------------------------------------------------------------------------------------------------------


async def _run_command(
    commands: Commands, record: ContainerRecord, argv: Sequence[str], streams: CommandStreams, remote: RemoteCommand
) -> CommandResult:
    try:
        if record.phase is not Phase.RUNNING:
            return Failed(f"error executing command in container: container is {record.phase.value}")
        async with commands.start(record.id, argv, streams) as command:
            await _pump_command(command, remote)
        if command.exit_code is None:
            return Failed("the process that keeps the containers ended, and this command with it")
        return Exited(command.exit_code)
    except _NOT_STARTED as error:
        return Failed(
            "error executing command in container: failed to exec in container: unable to start container process: "
            f"{_reason(error)}"
        )


async def _pump_command(command: Command, remote: RemoteCommand) -> None:
    """Copy until the command has ended and its output has been sent."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_feed_command, command, remote)
        nursery.start_soon(_pass_sizes, remote, command.resize)
        if command.has_terminal and command.stdout is not None and remote.stdout is None:
            nursery.start_soon(_discard, command.stdout)  # a terminal that nobody reads stops the command
        pumps = [
            _OutputPump(source, target)
            for source, target in ((command.stdout, remote.stdout), (command.stderr, remote.stderr))
            if source is not None and target is not None
        ]
        async with trio.open_nursery() as outputs:
            for pump in pumps:
                outputs.start_soon(pump.run)
            await command.ended.wait()
            for pump in pumps:
                pump.end_soon()
        nursery.cancel_scope.cancel()


async def _feed_command(command: Command, remote: RemoteCommand) -> None:
    if command.stdin is None or remote.stdin is None:
        return
    if await _copy_input(remote.stdin, command.stdin) and not command.has_terminal:
        command.stdin.close()


class _OutputPump:
    """Copies what a command prints to its client, to the end: for a pipe the last writer's, or nearly the command's."""

    def __init__(self, source: trio.abc.ReceiveStream, target: trio.abc.SendStream) -> None:
        self._source = source
        self._target = target
        self._waiting = trio.CancelScope()
        self._left: int | None = None

    def end_soon(self) -> None:
        """The command has ended: copy what is in the pipe."""
        self._left = _LARGEST_REST
        self._waiting.deadline = trio.current_time() + _REST_OF_OUTPUT

    async def run(self) -> None:
        try:
            while block := await self._next_block():
                await self._target.send_all(block)
                if self._left is not None:
                    self._left -= len(block)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._source.aclose()  # the client reads no more of this: the command gets an error when it writes

    async def _next_block(self) -> bytes:
        if self._left is not None and self._left <= 0:
            return b""
        deadline = float("inf") if self._left is None else trio.current_time() + _REST_OF_OUTPUT
        with trio.CancelScope(deadline=deadline) as self._waiting:
            return await _receive(self._source)
        return b""


# -- attach ------------------------------------------------------------------------------------------------------------


async def _run_attached(
    attachments: Attachments, record: ContainerRecord, streams: CommandStreams, remote: RemoteCommand
) -> CommandResult:
    try:
        if record.phase is not Phase.RUNNING:
            return Failed(f"error attaching to container: container is {record.phase.value}")
        async with attachments.attach(record.id, streams, takes_input=record.config.stdin) as attachment:
            await _pump_attached(attachments, attachment, record, remote)
    except _NOT_STARTED as error:
        return Failed(f"error attaching to container: {_reason(error)}")
    return Exited(0)


async def _pump_attached(
    attachments: Attachments, attachment: Attachment, record: ContainerRecord, remote: RemoteCommand
) -> None:
    targets = {"stdout": remote.stdout, "stderr": remote.stderr}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_pass_sizes, remote, attachment.resize)
        nursery.start_soon(_feed_container, attachments, attachment, record, remote, nursery.cancel_scope)
        async with trio.open_nursery() as outputs:
            for name, source in attachment.outputs.items():
                target = targets[name]
                if target is not None:
                    outputs.start_soon(_OutputPump(source, target).run)
            if not attachment.outputs:
                await record.exited.wait()
        nursery.cancel_scope.cancel()


async def _feed_container(
    attachments: Attachments,
    attachment: Attachment,
    record: ContainerRecord,
    remote: RemoteCommand,
    session: trio.CancelScope,
) -> None:
    """Copy input until either side ends it, and do what that means: see `attach`."""
    if remote.stdin is None:
        return
    if attachment.stdin is None:
        await _discard(remote.stdin)  # else a client that goes away would not be noticed
        return
    once = record.config.stdin_once and not record.config.tty
    try:
        wants_more_output = not await _copy_input(remote.stdin, attachment.stdin) or once
    finally:
        if once:
            # Also when the client is gone.
            with trio.CancelScope(shield=True):  # bounded: a request has a deadline
                await _close_stdin(attachments, record)
    if not wants_more_output:
        session.cancel()


async def _close_stdin(attachments: Attachments, record: ContainerRecord) -> None:
    try:
        await attachments.close_stdin(record.id)
    except (KeeperLostError, trio.TooSlowError):
        return  # the container has ended with its keeper


# -- both --------------------------------------------------------------------------------------------------------------


async def _copy_input(source: trio.abc.ReceiveStream, target: trio.abc.SendStream) -> bool:
    """Copy until the client ends its stdin (True) or the process closes its own (False), which is passed on to the
    client."""
    while True:
        try:
            block = await source.receive_some(_BLOCK)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return True
        if not block:
            return True
        try:
            await target.send_all(block)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await source.aclose()
            return False


async def _discard(source: trio.abc.ReceiveStream) -> None:
    try:
        while await source.receive_some(_BLOCK):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


async def _pass_sizes(remote: RemoteCommand, resize: Callable[[TerminalSize], None]) -> None:
    if remote.resizes is None:
        return
    async for size in remote.resizes:
        try:
            resize(size)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EBADF):
                raise


async def _receive(source: trio.abc.ReceiveStream) -> bytes:
    """A block; b"" at the end, which a terminal that was hung up reports as an error."""
    try:
        return bytes(await source.receive_some(_BLOCK))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return b""


def _reason(error: Exception) -> str:
    if isinstance(error, trio.TooSlowError):
        return "the container keeper did not answer in time"
    return str(error)
