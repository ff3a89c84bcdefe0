"""The agent's end of the keeper's socket: finds the keeper or starts one, asks it, and hears its events.

`run` holds the connection for as long as the agent lives. If the keeper dies, whatever is being asked fails with
KeeperLostError, a new keeper is started (it records the containers that died with the old one), and the listener is
told what there is now. Requests made in between wait for that.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio

from trikubelet.embedded.keeper import protocol
from trikubelet.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio_typing import TaskStatus

log = get_logger("embedded")

START_DEADLINE: Final = 20.0
REQUEST_DEADLINE: Final = 60.0
LONGEST_RETRY: Final = 10.0
_ALREADY_RUNNING: Final = 3
_MAIN: Final = Path(__file__).parent / "keeper" / "keeper_main.py"


class KeeperError(Exception):
    """The keeper refused a request. `kind` is one of those in `keeper/server.py`."""

    def __init__(self, operation: str, kind: str, message: str) -> None:
        super().__init__(message)
        self.operation = operation
        self.kind = kind


class KeeperLostError(Exception):
    """The keeper's connection broke while it was asked: whether it did what it should is not known."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation}: the process that keeps the containers ended; a new one is being started")
        self.operation = operation


class KeeperStartError(Exception):
    """No keeper could be started in `root`."""

    def __init__(self, root: Path, reason: str) -> None:
        super().__init__(f"cannot start the container keeper in {root}: {reason}")
        self.root = root
        self.reason = reason


@attrs.frozen
class KeeperAbilities:
    """What the keeper found this machine to allow."""

    pid: int
    mode: str
    """"root", "user-namespace" or "plain"."""
    overlay: bool
    limits: tuple[str, ...]
    """Cgroup controllers that can limit containers."""
    cgroup_v2: bool
    cgroup_v1: tuple[str, ...]
    devices_confined: bool
    problems: tuple[str, ...]

    @property
    def isolated(self) -> bool:
        return self.mode != "plain"

    @classmethod
    def from_hello(cls, hello: dict[str, Any]) -> KeeperAbilities:
        return cls(
            pid=hello["pid"],
            mode=hello["mode"],
            overlay=hello["overlay"],
            limits=tuple(hello["limits"]),
            cgroup_v2=hello["cgroup_v2"],
            cgroup_v1=tuple(hello["cgroup_v1"]),
            devices_confined=hello["devices_confined"],
            problems=tuple(hello["problems"]),
        )


class KeeperListener(Protocol):
    """Who hears of the keeper. Both methods are called from the client's task and must not wait."""

    def connected(self, abilities: KeeperAbilities, listing: dict[str, Any]) -> None:
        """A keeper is there; `listing` is its answer to `list`."""
        ...

    def event(self, message: dict[str, Any]) -> None:
        """Something ended."""
        ...


@attrs.define
class _Pending:
    operation: str
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: dict[str, Any] | None = None


class KeeperClient:
    """One keeper, by its folder."""

    def __init__(self, root: Path, listener: KeeperListener) -> None:
        self._root = root
        self._listener = listener
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0
        self._channel: trio.socket.SocketType | None = None
        self._available = trio.Event()
        self._sending = trio.Lock()
        self._ended = False

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the connection until cancelled or shut down. Raises KeeperStartError if the first attempt fails."""
        started = False
        retry = 0.05
        while not self._ended:
            try:
                await self._session(task_status if not started else trio.TASK_STATUS_IGNORED)
                started, retry = True, 0.05
            except (KeeperStartError, KeeperLostError, KeeperError) as error:
                if not started:
                    raise
                log.error("no container keeper", error=str(error), retry_in=retry)
                await trio.sleep(retry)
                retry = min(2 * retry, LONGEST_RETRY)

    async def request(self, operation: str, descriptors: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
        """Ask, and wait for the answer.

        Raises KeeperError when refused, KeeperLostError when the keeper died meanwhile, and trio.TooSlowError after
        a minute. If this call is cancelled the keeper still does what it was asked.
        """
        with trio.fail_after(REQUEST_DEADLINE):
            await self._available.wait()
            return await self._ask(operation, descriptors, fields)

    async def shutdown(self) -> bool:
        """Let the keeper end, if no container is left. Returns whether it ends."""
        answer = await self.request("shutdown")
        self._ended = self._ended or bool(answer["ended"])
        return bool(answer["ended"])

    # -- one connection ----------------------------------------------------------------------------------------------

    async def _session(self, task_status: TaskStatus[None]) -> None:
        """From connecting to the keeper's end."""
        self._channel = await self._connect_or_start()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, self._channel, nursery.cancel_scope)
                with trio.fail_after(START_DEADLINE):
                    hello = await self._ask("hello", (), {"version": protocol.VERSION})
                    listing = await self._ask("list", (), {})
                self._listener.connected(KeeperAbilities.from_hello(hello), listing)
                self._available.set()
                task_status.started()
        finally:
            self._available = trio.Event()
            self._channel.close()
            self._channel = None
            pending, self._pending = self._pending, {}
            for waiting in pending.values():
                waiting.done.set()

    async def _ask(self, operation: str, descriptors: Sequence[int], fields: dict[str, Any]) -> dict[str, Any]:
        channel = self._channel
        if channel is None:
            raise KeeperLostError(operation)
        self._next_id += 1
        request = self._next_id
        pending = self._pending[request] = _Pending(operation)
        try:
            await self._send(channel, {"id": request, "op": operation, **fields}, list(descriptors))
            await pending.done.wait()
        except (OSError, trio.ClosedResourceError):
            raise KeeperLostError(operation) from None
        finally:
            self._pending.pop(request, None)
        if pending.answer is None:
            raise KeeperLostError(operation)
        if "error" in pending.answer:
            raise KeeperError(operation, pending.answer["error"]["kind"], pending.answer["error"]["message"])
        answer: dict[str, Any] = pending.answer["ok"]
        return answer

    async def _send(self, channel: trio.socket.SocketType, message: dict[str, Any], descriptors: list[int]) -> None:
        payload, carrier = protocol.encode(message)
        try:
            attached = descriptors if carrier is None else [*descriptors, carrier]
            async with self._sending:
                await channel.sendmsg([payload], protocol.ancillary(attached))
        finally:
            if carrier is not None:
                os.close(carrier)

    async def _read(self, channel: trio.socket.SocketType, session: trio.CancelScope) -> None:
        """Hand out answers and events until the keeper's end is closed, then end the session."""
        while True:
            try:
                payload, control, _, _ = await channel.recvmsg(
                    protocol.LARGEST_DATAGRAM, protocol.CONTROL_SPACE, socket.MSG_CMSG_CLOEXEC
                )
            except (OSError, trio.ClosedResourceError):
                break
            if not payload:
                break
            descriptors = protocol.passed_descriptors(control)
            message = protocol.decode(payload, descriptors)
            if "event" in message:
                self._listener.event(message)
            elif (pending := self._pending.get(message["id"])) is not None:
                pending.answer = message
                pending.done.set()
        if not self._ended:
            log.warning("the container keeper is gone", root=str(self._root))
        session.cancel()

    # -- finding or starting the keeper ------------------------------------------------------------------------------

    async def _connect_or_start(self) -> trio.socket.SocketType:
        with trio.move_on_after(START_DEADLINE):
            while True:
                channel = await self._connect()
                if channel is not None:
                    return channel
                await self._start()
        raise KeeperStartError(self._root, f"none answered within {START_DEADLINE:g} s (see keeper.log there)")

    async def _connect(self) -> trio.socket.SocketType | None:
        """A connection to the keeper that lives, or None if there is none."""
        if not self._keeper_lives():
            return None
        channel = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # By way of a descriptor: a folder's path may be longer than a socket address.
            await channel.connect(f"/proc/self/fd/{folder}/{protocol.SOCKET_NAME}")
        except OSError:
            channel.close()
            return None
        except BaseException:
            channel.close()
            raise
        finally:
            os.close(folder)
        return channel

    def _keeper_lives(self) -> bool:
        try:
            identity = json.loads((self._root / protocol.IDENTITY_NAME).read_text())
            same_boot = identity["boot_id"] == protocol.boot_id()
            ticks = protocol.process_start_ticks(identity["pid"])
            return same_boot and ticks is not None and bool(ticks == identity["start_ticks"])
        except (OSError, ValueError, KeyError, TypeError):
            return False

    async def _start(self) -> None:
        """Start a keeper. Returns when it serves, or when another one holds the folder's lock."""
        command = [sys.executable, "-I", "-S", str(_MAIN), "--root", str(self._root)]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
        try:
            result = await trio.run_process(
                command,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                start_new_session=True,
                env=environment,
                cwd="/",
            )
        except OSError as error:
            raise KeeperStartError(self._root, f"{sys.executable}: {error.strerror}") from error
        if result.returncode == _ALREADY_RUNNING:
            # It has not written its name yet, or it is about to end.
            await trio.sleep(0.02)
        elif result.returncode != 0:
            reason = result.stderr.decode(errors="replace").strip()
            raise KeeperStartError(self._root, reason.splitlines()[-1] if reason else f"exit code {result.returncode}")
        else:
            log.info("container keeper started", root=str(self._root))
