"""Commands inside containers, from start to collected output (CRI ExecSync)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.keeper_client import KeeperLostError
from trikubelet.formats.values import frozen
from trikubelet.http.streaming.command import CommandStreams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.embedded.commands import Commands

OUTPUT_LIMIT: Final = 16 * 1024 * 1024
"""Bytes kept of each stream, as containerd does; what comes after is read and dropped."""
_BLOCK: Final = 64 * 1024
_REST_OF_OUTPUT: Final = 0.25
"""Seconds for output after the command's end, where something it left behind holds its pipes open."""
_OUTPUT_ONLY: Final = CommandStreams(stdout=True, stderr=True)


class CommandTimeoutError(Exception):
    """A command that ran longer than it was allowed to; it and all it started were killed."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"failed to exec in container: timeout {timeout:g}s exceeded: context deadline exceeded")
        self.timeout = timeout


@frozen
class CollectedOutput:
    """What a command left. A killed one has 128 and the signal's number as exit code."""

    stdout: bytes
    stderr: bytes
    exit_code: int


async def collect_output(commands: Commands, container_id: str, argv: Sequence[str], timeout: float) -> CollectedOutput:
    """Run a command to its end; `timeout` in seconds, 0 for none.

    Raises CommandTimeoutError, KeeperError (it could not be started), KeeperLostError. When this is cancelled, the
    command and all that it started are killed.
    """
    stdout, stderr = bytearray(), bytearray()
    try:
        with trio.fail_after(timeout or float("inf")):
            async with commands.start(container_id, argv, _OUTPUT_ONLY) as command:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_collect, command.stdout, stdout)
                    nursery.start_soon(_collect, command.stderr, stderr)
                    await command.ended.wait()
                    nursery.cancel_scope.deadline = trio.current_time() + _REST_OF_OUTPUT
    except trio.TooSlowError:
        raise CommandTimeoutError(timeout) from None
    if command.exit_code is None:
        raise KeeperLostError("exec")
    return CollectedOutput(bytes(stdout), bytes(stderr), command.exit_code)


async def _collect(source: trio.abc.ReceiveStream | None, target: bytearray) -> None:
    while source is not None and (block := await source.receive_some(_BLOCK)):
        target += block[: OUTPUT_LIMIT - len(target)]
