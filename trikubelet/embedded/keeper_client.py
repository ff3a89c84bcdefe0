"""The agent's end of the keeper's socket: finds the keeper or starts one, sends requests, and receives its events.

`run` holds the connection for as long as the agent lives. If the keeper dies, whatever is being asked fails with
KeeperLostError, a new keeper is started (it records the containers that died with the old one), and the listener is
told what there is now. Requests made in between wait for that.

Only the first keeper must be found within START_DEADLINE. Later on nothing that a keeper does or does not do ends
`run`: it is logged and tried again, ever more seldom until a keeper answers. Errors leave `run` as they are, never in
groups: each is carried out of the nursery that it happened in.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.backoff import Backoff
from trikubelet.broadcast import Broadcast
from trikubelet.embedded.keeper import protocol
from trikubelet.formats.values import define, frozen
from trikubelet.linux.socket_address import socket_address
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trio_typing import TaskStatus

log = get_logger("embedded")

START_DEADLINE: Final = 20.0
REQUEST_DEADLINE: Final = 60.0
TOLD_WITHIN: Final = 0.1
"""Seconds until a keeper that does not read is not told any more."""
END_TIMEOUT: Final = 2.0
"""Seconds in which a keeper that closed its connection has ended."""
RETRIES: Final = Backoff(first=0.05, longest=10.0)
RETRIES_AT_START: Final = Backoff(first=0.05, longest=1.0)
_ALREADY_RUNNING: Final = 3
_LOOK_AGAIN: Final = 0.01
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


@frozen
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
    seccomp: bool
    """Whether it can load filters: the kernel has them, and the keeper is not of before it could."""
    landlock: int
    """The kernel's Landlock ABI; 0: none, or the keeper does not know."""
    apparmor: bool
    """Whether the keeper knows how to start a program in a profile."""
    selinux: bool
    """Whether the keeper knows how to give a program and its files SELinux labels."""
    network: bool
    """Whether pods can have network namespaces: the machine allows it, and the keeper is not of before it could."""
    creates: bool
    """Whether it makes containers ready before their start: the keeper is not of before it could."""
    outdated: bool
    """An agent of an earlier release started the keeper, which cannot do all that this one does."""
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
            seccomp=hello.get("seccomp", False),
            landlock=hello.get("landlock", 0),
            apparmor=hello.get("apparmor", False),
            selinux=hello.get("selinux", False),
            network=protocol.POD_NETWORK in hello.get("features", ()),
            creates=protocol.CREATE in hello.get("features", ()),
            outdated=hello["version"] < protocol.VERSION or protocol.APART not in hello.get("features", ()),
            problems=tuple(hello["problems"]),
        )


@define
class _Pending:
    operation: str
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: dict[str, Any] | None = None
    descriptors: list[int] = attrs.field(factory=list)
    """Came with the answer; the code that takes them out of the list closes them."""

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


class KeeperClient:
    """One keeper, by its folder."""

    def __init__(
        self,
        root: Path,
        *,
        connected: Callable[[KeeperAbilities, dict[str, Any]], None],
        event: Callable[[dict[str, Any]], None],
    ) -> None:
        """Both are called from the client's task and must not wait: `connected` when a keeper is there, with its answer
        to `list`, `event` when something ended."""
        self._root = root
        self._on_connected = connected
        self._on_event = event
        self._pending: dict[int, _Pending] = {}
        self._next_id = 0
        self._channel: trio.socket.SocketType | None = None
        self._available = False
        self._connected: Broadcast[None] = Broadcast()
        self._sending = trio.Lock()
        self._started = False
        self._ended = False
        self._in_session = False
        self._session_over: Broadcast[None] = Broadcast()
        """The session has ended, and the keeper's process is gone too."""

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the connection until cancelled or shut down. Raises KeeperStartError if there is no keeper at first."""
        give_up_at = trio.current_time() + START_DEADLINE
        retry = RETRIES.first
        while not self._ended:
            deadline = trio.current_time() + START_DEADLINE if self._started else give_up_at
            try:
                await self._session(deadline, task_status)
                retry = RETRIES.first
            except (KeeperStartError, KeeperLostError, KeeperError) as error:
                if self._started:
                    log.error("no container keeper", error=str(error), retry_in=retry)
                else:
                    self._raise_if_final(error, give_up_at)
            if not self._ended:
                await trio.sleep(retry)
                retry = (RETRIES if self._started else RETRIES_AT_START).after(retry)

    def _raise_if_final(self, error: Exception, give_up_at: float) -> None:
        """Before the first answer a keeper may only end too early, until `give_up_at`."""
        if isinstance(error, KeeperStartError):
            raise error
        if isinstance(error, KeeperError):
            cure = f"use the version that started it, or end it and its containers: {self._kill_command()}"
            raise KeeperStartError(self._root, f"{error}; {cure}") from error
        if trio.current_time() + RETRIES_AT_START.longest >= give_up_at:
            raise KeeperStartError(
                self._root, f"it ended again and again before it answered (see {self._root / 'keeper.log'})"
            ) from error

    def _kill_command(self) -> str:
        return f"`kill -9 {self._keeper_pid() or 'its pid'}`"

    async def request(
        self,
        operation: str,
        descriptors: Sequence[int] = (),
        *,
        meanwhile: Callable[[], None] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Ask, and wait for the answer. `meanwhile` is called as soon as it is asked; what it raises is raised.

        Raises KeeperError when refused, KeeperLostError when the keeper died meanwhile, and trio.TooSlowError after
        a minute. If this call is cancelled the keeper still does what it was asked.
        """
        answer, descriptor = await self.request_descriptor(operation, descriptors, meanwhile=meanwhile, **fields)
        if descriptor is not None:
            os.close(descriptor)
        return answer

    async def request_descriptor(
        self,
        operation: str,
        descriptors: Sequence[int] = (),
        *,
        meanwhile: Callable[[], None] | None = None,
        **fields: Any,
    ) -> tuple[dict[str, Any], int | None]:
        """Ask as `request` does, for an answer that brings a descriptor, which is the caller's to close; or None."""
        with trio.fail_after(REQUEST_DEADLINE):
            while not self._available:
                await self._connected.wait()
            pending = _Pending(operation)
            try:
                answer = await self._ask(pending, descriptors, fields, meanwhile)
                return answer, pending.descriptors.pop() if pending.descriptors else None
            finally:
                pending.close()

    async def tell(self, operation: str, **fields: Any) -> None:
        """Ask for something that has no answer. A keeper that is not there, or does not read, is not asked."""
        with trio.move_on_after(TOLD_WITHIN):
            if self._available and self._channel is not None:
                with contextlib.suppress(OSError, trio.ClosedResourceError, KeeperError):
                    await self._send(self._channel, {"op": operation, **fields}, [])

    async def shutdown(self) -> bool:
        """Let the keeper end, if no container is left. Returns whether it ends.

        Then it has ended when this returns, or END_TIMEOUT is over.
        """
        answer = await self.request("shutdown")
        if answer["ended"]:
            self._ended = True
            with trio.move_on_after(2 * END_TIMEOUT):
                while self._in_session:
                    await self._session_over.wait()
        return bool(answer["ended"])

    # -- one connection ----------------------------------------------------------------------------------------------

    async def _session(self, deadline: float, task_status: TaskStatus[None]) -> None:
        """From finding the keeper to its end. `deadline` is for its first answers.

        Raises KeeperStartError, KeeperLostError, KeeperError: then it has not answered as it should.
        """
        channel = self._channel = await self._connect_or_start(deadline)
        failure: KeeperStartError | KeeperLostError | KeeperError | None = None
        keeper, process = 0, -1
        self._in_session = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, channel)
                try:
                    abilities, listing = await self._greet(deadline)
                    replaced = abilities.outdated and not _is_used(listing) and await self._end_outdated(deadline)
                except (KeeperStartError, KeeperLostError, KeeperError) as error:
                    failure = error
                    nursery.cancel_scope.cancel()
                else:
                    keeper, process = abilities.pid, _open_process(abilities.pid)
                    if replaced:
                        return
                    self._on_connected(abilities, listing)
                    self._available = True
                    self._connected.send(None)
                    if not self._started:
                        self._started = True
                        task_status.started()
        finally:
            self._available = False
            self._channel = None
            channel.close()
            self._fail_pending()
            try:
                await _reap(keeper, process)
            finally:
                self._in_session = False
                self._session_over.send(None)
        if failure is not None:
            raise failure

    async def _greet(self, deadline: float) -> tuple[KeeperAbilities, dict[str, Any]]:
        try:
            with trio.fail_at(deadline):
                hello = await self._ask(_Pending("hello"), (), {"version": protocol.OLDEST, "newest": protocol.VERSION})
                listing = await self._ask(_Pending("list"), (), {})
            return KeeperAbilities.from_hello(hello), listing
        except trio.TooSlowError:
            pid = self._keeper_pid() or "its pid"
            raise KeeperStartError(
                self._root,
                f"the running one (pid {pid}) does not answer; if it is stopped, let it go on: `kill -CONT {pid}`, "
                f"else end it and its containers: {self._kill_command()}",
            ) from None

    async def _end_outdated(self, deadline: float) -> bool:
        """Have a keeper of an earlier release end, in favour of one that does more. Returns whether it ends."""
        log.info("an unused container keeper of an earlier release is replaced", root=str(self._root))
        with trio.move_on_at(deadline):
            answer = await self._ask(_Pending("shutdown"), (), {})
            return bool(answer["ended"])
        return False

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            waiting.done.set()

    async def _ask(
        self,
        pending: _Pending,
        descriptors: Sequence[int],
        fields: dict[str, Any],
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        channel, operation = self._channel, pending.operation
        if channel is None:
            raise KeeperLostError(operation)
        self._next_id += 1
        request = self._next_id
        self._pending[request] = pending
        try:
            try:
                await self._send(channel, {"id": request, "op": operation, **fields}, list(descriptors))
            except (OSError, trio.ClosedResourceError):
                raise KeeperLostError(operation) from None
            if meanwhile is not None:
                meanwhile()
            await pending.done.wait()
        finally:
            self._pending.pop(request, None)
        if pending.answer is None:
            raise KeeperLostError(operation)
        if "error" in pending.answer:
            raise KeeperError(operation, pending.answer["error"]["kind"], pending.answer["error"]["message"])
        answer: dict[str, Any] = pending.answer["ok"]
        return answer

    async def _send(self, channel: trio.socket.SocketType, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            payload, carrier = protocol.encode(message)
        except OSError as error:
            raise KeeperError(str(message["op"]), "internal", f"request: {error.strerror or error}") from None
        try:
            attached = descriptors if carrier is None else [*descriptors, carrier]
            async with self._sending:
                await channel.sendmsg([payload], protocol.ancillary(attached))
        finally:
            if carrier is not None:
                os.close(carrier)

    async def _read(self, channel: trio.socket.SocketType) -> None:
        """Hand out answers and events until the keeper's end is closed; calls that wait for an answer fail then."""
        while True:
            try:
                payload, control, flags, _ = await channel.recvmsg(
                    protocol.LARGEST_DATAGRAM, protocol.CONTROL_SPACE, socket.MSG_CMSG_CLOEXEC
                )
            except (OSError, trio.ClosedResourceError):
                break
            if not payload:
                break
            descriptors = protocol.passed_descriptors(control)
            lost = protocol.too_many_open_files().strerror if flags & socket.MSG_CTRUNC else None
            if lost is not None:
                protocol.close(descriptors)
                descriptors = []
            try:
                message = protocol.decode(payload, descriptors)
            except protocol.ProtocolError as error:
                log.error("cannot read a message of the container keeper", error=lost or str(error))
                protocol.close(descriptors)
                break
            if lost is not None:
                message["error"] = {"kind": "internal", "message": f"answer: {lost}"}
            if "event" in message:
                self._on_event(message)
            elif (pending := self._pending.get(message["id"])) is not None:
                pending.answer, pending.descriptors = message, descriptors
                pending.done.set()
            else:
                protocol.close(descriptors)  # the call was cancelled
        if not self._ended:
            log.warning("the container keeper is gone", root=str(self._root))
        self._channel = None
        self._fail_pending()

    # -- finding or starting the keeper ------------------------------------------------------------------------------

    async def _connect_or_start(self, deadline: float) -> trio.socket.SocketType:
        with trio.move_on_at(deadline):
            while True:
                channel = await self._connect()
                if channel is not None:
                    return channel
                await self._start()
        raise KeeperStartError(
            self._root, f"none answered within {START_DEADLINE:g} s (see {self._root / 'keeper.log'})"
        )

    async def _connect(self) -> trio.socket.SocketType | None:
        """A connection to the keeper that lives, or None if there is none. Raises KeeperStartError."""
        if not self._keeper_lives():
            return None
        try:
            channel = trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise KeeperStartError(self._root, f"socket: {error.strerror}") from None
        try:
            with socket_address(str(self._root / protocol.SOCKET_NAME)) as address:
                await channel.connect(address)
        except OSError:
            channel.close()
            return None
        except BaseException:
            channel.close()
            raise
        return channel

    def _keeper_lives(self) -> bool:
        return self._keeper_pid() is not None

    def _keeper_pid(self) -> int | None:
        """Of the keeper that wrote its name here, if that process lives."""
        try:
            identity = json.loads((self._root / protocol.IDENTITY_NAME).read_text())
            same_boot = identity["boot_id"] == protocol.boot_id()
            ticks = protocol.process_start_ticks(identity["pid"])
            lives = same_boot and ticks is not None and ticks == identity["start_ticks"]
            return int(identity["pid"]) if lives else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

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


def _is_used(listing: dict[str, Any]) -> bool:
    """Whether a keeper holds anything that would be lost with it, by its answer to `list`."""
    return bool(listing["sandboxes"]) or any(container["exit"] is None for container in listing["containers"])


def _open_process(pid: int) -> int:
    """A descriptor of the process, -1 if it is gone already."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


async def _reap(keeper: int, process: int) -> None:
    """Wait for the end of a keeper that is going: its pid, and a descriptor that is closed.

    Collect it if it is our child, as it is when the agent is init, and those that forked for it: its process group.
    When the connection broke for another reason, or this is cancelled, the keeper lives on.
    """
    if process < 0:
        return
    try:
        with trio.move_on_after(END_TIMEOUT):
            await trio.lowlevel.wait_readable(process)
            with contextlib.suppress(ChildProcessError):
                while True:
                    if os.waitid(os.P_PGID, keeper, os.WEXITED | os.WNOHANG) is None:  # noqa: ASYNC222  (does not block)
                        await trio.sleep(_LOOK_AGAIN)
    finally:
        trio.lowlevel.notify_closing(process)
        os.close(process)
