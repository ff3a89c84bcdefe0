"""Lifecycle hooks: postStart, right after a container started, and preStop, right before it is stopped.

A hook is a command in the container, a request to a server in its pod, or a sleep. A failure's text goes into the
container's status only, never into an event: it holds what the command or the server said, which may be secret.
A hook lasts no longer than its container (`until_ended`, which also cuts other work short that only a living container
can do), and no longer than the caller's cancel scope; there is no other limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar, assert_never

import attrs
import trio

from trikubelet.api import ExecAction, HTTPGetAction, SleepAction
from trikubelet.container.messages import describe_pod
from trikubelet.formats.go_quote import go_quote_bytes
from trikubelet.formats.values import frozen
from trikubelet.http.client.request import HTTPRequestError, http_get_request
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.runtime.metrics import RuntimeMetrics
from trikubelet.telemetry.events import EventType
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trikubelet.api import Container, LifecycleHandler, Pod
    from trikubelet.rpc.cri.client import RuntimeClient
    from trikubelet.telemetry.events import EventRecorder

log = get_logger("runtime")

MOST_OUTPUT: Final = 10 * 1024
"""Bytes of a command's output, and of its error output, that a failure's text holds."""
T = TypeVar("T")


@frozen
class HookError(Exception):
    """A hook failed."""

    message: str
    """The hook, the container and the problem; not for events."""
    container_ended: bool = False
    """It was cut short since its container ended."""

    def __str__(self) -> str:
        return self.message


@frozen
class _HTTPHookError(Exception):
    message: str


class HookRunner:
    """Runs hooks, any number at a time.

    `pod_ips` gives a pod's addresses by a fresh look, none for a pod without; it raises CRIError. `ended`: see `Ended`.
    """

    def __init__(
        self,
        runtime: RuntimeClient,
        recorder: EventRecorder,
        pod_ips: Callable[[Pod], Awaitable[Sequence[str]]],
        *,
        ended: Ended | None = None,
        metrics: RuntimeMetrics | None = None,
    ) -> None:
        self._runtime = runtime
        self._recorder = recorder
        self._pod_ips = pod_ips
        self._ended = ended
        self._metrics = metrics or RuntimeMetrics()

    async def run(self, container_id: str, pod: Pod, container: Container, handler: LifecycleHandler) -> None:
        """Run a hook to its end (kubelet: `handlerRunner.Run`). Raises HookError.

        Cancelled, a command is ended by the runtime, a request's connection is closed.
        """
        action = handler.exec or handler.http_get or handler.sleep
        if action is None:
            kind = "tcpSocket" if handler.tcp_socket is not None else "nothing"
            text = f"Cannot run handler: invalid handler: expected exec, httpGet or sleep, got {kind}"
            raise HookError(text)

        async def attempt() -> str:
            match action:
                case ExecAction():
                    return await self._exec(container_id, action)
                case HTTPGetAction():
                    return await self._http_get(pod, container, action)
                case SleepAction():
                    await trio.sleep(action.seconds)
                    return ""
                case _:
                    assert_never(action)

        problem = await until_ended(self._ended, pod.metadata.uid, container_id, attempt)
        if problem == "":
            return
        self._metrics.sleeps_cut_short += isinstance(action, SleepAction)
        what, kind = _described(action)
        error = problem if problem is not None else f"container terminated before {kind} hook finished"
        where = f'for Container "{container.name}" in Pod "{describe_pod(pod)}"'
        raise HookError(f"{what} {where} failed - error: {error}", container_ended=problem is None)

    async def _exec(self, container_id: str, action: ExecAction) -> str:
        """The problem, empty for none."""
        try:
            reply = await self._runtime.exec_sync(container_id, action.command, 0)
        except CRIError as error:
            return f'{error}, message: ""'
        if reply.exit_code == 0:
            return ""
        stdout, stderr = reply.stdout[:MOST_OUTPUT], reply.stderr[:MOST_OUTPUT]
        command = " ".join(action.command)
        problem = f"command '{command}' exited with {reply.exit_code}: {stderr.decode(errors='replace')}"
        return f"{problem}, message: {go_quote_bytes(stdout + stderr)}"

    async def _http_get(self, pod: Pod, container: Container, action: HTTPGetAction) -> str:
        """The problem, empty for none. Whatever a server answers is success."""
        from trikubelet.http.client.get import HTTPGetError, http_get  # with h11 and ssl, and few pods need it

        try:
            host = action.host or await self._pod_ip(pod)
            request = http_get_request(action, container, host, "lifecycle")
        except (_HTTPHookError, HTTPRequestError) as error:
            return error.message
        try:
            await http_get(request)
        except HTTPGetError as error:
            if not error.plain_http:
                return str(error)
            # Credentials were meant for an encrypted connection.
            plain = attrs.evolve(request.without_header("Authorization"), scheme="http")
            try:
                await http_get(plain)
            except HTTPGetError:
                return str(error)
            self._metrics.http_fallbacks += 1
            text = f"request to HTTPS lifecycle hook {request.address} got HTTP response, retry with HTTP succeeded"
            self._recorder.pod_event(pod, EventType.WARNING, "LifecycleHTTPFallback", text)
        return ""

    async def _pod_ip(self, pod: Pod) -> str:
        try:
            ips = await self._pod_ips(pod)
        except CRIError as error:
            raise _HTTPHookError(f"unable to get pod status, event handlers may be invalid: {error}") from error
        if not ips:
            raise _HTTPHookError(f'failed to find networking container: Pod "{describe_pod(pod)}" has no IP')
        return ips[0]


def _described(action: ExecAction | HTTPGetAction | SleepAction) -> tuple[str, str]:
    """The hook as failures name it, and its kind."""
    match action:
        case ExecAction():
            return f"Exec lifecycle hook ([{' '.join(action.command)}])", "exec"
        case HTTPGetAction():
            return f"HTTP lifecycle hook ({action.path})", "HTTP"
        case SleepAction():
            return f"Sleep lifecycle hook ({action.seconds})", "sleep"
        case _:
            assert_never(action)


class Ended(Protocol):
    """Waits for the end of a container."""

    async def __call__(self, pod_uid: str, container_id: str, /, *, delay: float = 0.0) -> None:
        """Return when the container is known to have ended; if that is never known, do not.

        Not having been seen yet is not to have ended. It must not raise. `delay`: seconds that the answer may come
        late, since the caller has another way to learn it.
        """
        ...


async def until_ended(
    ended: Ended | None,
    pod_uid: str,
    container_id: str,
    work: Callable[[], Awaitable[T]],
    *,
    delay: float = 0.0,
) -> T | None:
    """What `work` returns, or None when the container ended first: then `work` is cancelled.

    `work` tells of problems by what it returns; what it raises comes out in an exception group.
    """
    if ended is None:
        return await work()
    done: T | None = None

    async def watch() -> None:
        await ended(pod_uid, container_id, delay=delay)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        done = await work()
        nursery.cancel_scope.cancel()
    return done
