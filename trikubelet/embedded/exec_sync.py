"""Commands inside containers, from start to collected output (CRI ExecSync)."""

from __future__ import annotations

import os
from typing import Any, Final

import attrs
import trio

from trikubelet.embedded.keeper_client import KeeperClient, KeeperError, KeeperLostError

OUTPUT_LIMIT: Final = 16 * 1024 * 1024
"""Bytes kept of each stream, as containerd does; what comes after is read and dropped."""
_BLOCK: Final = 64 * 1024
_REST_OF_OUTPUT: Final = 0.25
"""Seconds for output after the command's end, where something it left behind holds its pipes open."""
_KILL_DEADLINE: Final = 10.0


class CommandTimeoutError(Exception):
    """A command that ran longer than it was allowed to; it and all it started were killed."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"failed to exec in container: timeout {timeout:g}s exceeded: context deadline exceeded")
        self.timeout = timeout


@attrs.frozen
class CommandResult:
    """What a command left. A killed one has 128 and the signal's number as exit code."""

    stdout: bytes
    stderr: bytes
    exit_code: int


@attrs.define
class _Running:
    ended: trio.Event = attrs.field(factory=trio.Event)
    exit_code: int | None = None


class Commands:
    """The commands that this agent runs in containers."""

    def __init__(self, keeper: KeeperClient) -> None:
        self._keeper = keeper
        self._running: dict[str, _Running] = {}

    def ended(self, event: dict[str, Any]) -> None:
        """The keeper's `exec_ended`."""
        running = self._running.get(event["exec"])
        if running is not None:
            running.exit_code = event["exit_code"]
            running.ended.set()

    def keeper_lost(self) -> None:
        """All commands died with their keeper."""
        for running in self._running.values():
            running.ended.set()

    async def run(self, container_id: str, argv: list[str], timeout: float) -> CommandResult:
        """Run a command; `timeout` in seconds, 0 for none.

        Raises CommandTimeoutError, KeeperError (it could not be started), KeeperLostError. When this is cancelled, the
        command and all that it started are killed.
        """
        name = os.urandom(8).hex()
        running = self._running[name] = _Running()
        stdout, stderr = _Collector(), _Collector()
        try:
            with trio.fail_after(timeout or float("inf")):
                await self._start(name, container_id, argv, stdout, stderr)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stdout.collect)
                    nursery.start_soon(stderr.collect)
                    await running.ended.wait()
                    nursery.cancel_scope.deadline = trio.current_time() + _REST_OF_OUTPUT
        except trio.TooSlowError:
            raise CommandTimeoutError(timeout) from None
        finally:
            if not running.ended.is_set():
                await self._kill(name)
            del self._running[name]
            stdout.close()
            stderr.close()
        if running.exit_code is None:
            raise KeeperLostError("exec")
        return CommandResult(bytes(stdout.data), bytes(stderr.data), running.exit_code)

    async def _start(
        self, name: str, container_id: str, argv: list[str], stdout: _Collector, stderr: _Collector
    ) -> None:
        fields = {"container": container_id, "exec": name, "argv": argv}
        try:
            await self._keeper.request("exec", (stdout.writer, stderr.writer), **fields)
        finally:
            stdout.close_writer()
            stderr.close_writer()

    async def _kill(self, name: str) -> None:
        with trio.move_on_after(_KILL_DEADLINE, shield=True):
            try:
                await self._keeper.request("exec_kill", exec=name)
            except (KeeperError, KeeperLostError, trio.TooSlowError):
                return  # then the keeper is gone, and the command with it


class _Collector:
    """A pipe and what came out of it, up to the limit."""

    def __init__(self) -> None:
        self.data = bytearray()
        reader, self.writer = os.pipe2(os.O_CLOEXEC)
        self._stream = trio.lowlevel.FdStream(reader)

    async def collect(self) -> None:
        while True:
            block = await self._stream.receive_some(_BLOCK)
            if not block:
                return
            self.data += block[: OUTPUT_LIMIT - len(self.data)]

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        self._stream.close()
