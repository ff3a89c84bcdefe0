"""preStop hooks: each container's once, however often its kill begins anew.

A kill is cancelled and begins again when a pod's grace period gets shorter, or when a pod whose container was being
restarted is deleted. Its hook must neither run a second time (it may have told a load balancer, or drained a queue) nor
be cut in its middle as long as there is grace. So a hook is not part of the kill that began it: it belongs to a
background task (`run`), a kill waits for it, and the newest kill's grace is the hook's deadline. What was begun is
remembered until the container has ended. Where nobody runs the background task, a hook lives in the kill that began it
and is cut with it; it is not run again all the same.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import Container, Pod
from trikubelet.events import EventType
from trikubelet.logs import get_logger
from trikubelet.runtime.hooks import HookError

if TYPE_CHECKING:
    from trikubelet.api import LifecycleHandler
    from trikubelet.events import EventRecorder
    from trikubelet.runtime.hooks import HookRunner

log = get_logger("runtime")

_MOST_REMEMBERED: Final = 1000
"""Hooks. A container that ended after its kill was given up is never asked about again."""


@attrs.define
class _Hook:
    pod: Pod
    container: Container
    container_id: str
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)


class PreStopHooks:
    """Runs preStop hooks, and knows which were begun."""

    def __init__(self, runner: HookRunner, recorder: EventRecorder) -> None:
        self._runner = runner
        self._recorder = recorder
        self._begun: OrderedDict[str, _Hook] = OrderedDict()
        self._background: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be the background task that hooks live in, until cancelled; that ends them."""
        try:
            async with trio.open_nursery() as nursery:
                self._background = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._background = None

    async def finish(self, pod: Pod, container: Container, container_id: str, grace: int) -> None:
        """Run the container's hook, or wait for the one that runs already, at most `grace` seconds.

        A hook that takes longer is ended; without grace none is begun. How it ends is told by an event and the log.
        Cancelling leaves the hook to the background task.
        """
        handler = None if container.lifecycle is None else container.lifecycle.pre_stop
        if handler is None:
            return
        hook = self._begun.get(container_id)
        deadline = trio.current_time() + max(grace, 0)
        if hook is not None:
            hook.scope.deadline = deadline
            await hook.over.wait()
            return
        if grace <= 0:
            return
        hook = _Hook(pod, container, container_id)
        hook.scope.deadline = deadline
        self._begun[container_id] = hook
        if len(self._begun) > _MOST_REMEMBERED:
            over = next((known for known, one in self._begun.items() if one.over.is_set()), None)
            if over is not None:
                del self._begun[over]
        if self._background is None:
            await self._play(hook, handler)
        else:
            self._background.start_soon(self._play, hook, handler)
            await hook.over.wait()

    def forget(self, container_id: str) -> None:
        """The container has ended, and its hook with it."""
        hook = self._begun.pop(container_id, None)
        if hook is not None:
            hook.scope.cancel()

    @property
    def remembered(self) -> int:
        """How many hooks were begun in containers that are not known to have ended."""
        return len(self._begun)

    async def _play(self, hook: _Hook, handler: LifecycleHandler) -> None:
        facts = {"pod": hook.pod.full_name, "container": hook.container.name, "container_id": hook.container_id}
        try:
            with hook.scope:
                log.debug("running preStop hook", **facts)
                await self._runner.run(hook.container_id, hook.pod, hook.container, handler)
            if hook.scope.cancelled_caught and hook.container_id in self._begun:
                log.warning("preStop hook not completed in grace period", **facts)
        except HookError as error:
            if error.container_ended:
                log.debug("container ended before its preStop hook", **facts)
                return
            self._tell_of_failure(hook)
        except Exception as error:  # noqa: BLE001 - a hook concerns its own container only
            log.error("preStop hook could not be run", problem=type(error).__name__, **facts)
            self._tell_of_failure(hook)
        finally:
            hook.over.set()

    def _tell_of_failure(self, hook: _Hook) -> None:
        """Without what the hook said, which may be secret."""
        log.warning("preStop hook failed", pod=hook.pod.full_name, container=hook.container.name)
        name = hook.container.name
        self._recorder.pod_event(hook.pod, EventType.WARNING, "FailedPreStopHook", "PreStopHook failed", container=name)
