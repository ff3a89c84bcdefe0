"""Does to a volume what was decided, by its kind, and says what came of it.

Each operation has a deadline, and every way in which it can end is an outcome: what a kind raises, silence, being
cancelled. Pods learn of failures by events in the kubelet's words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Final, assert_never

import attrs
import trio

from trikubelet.clock import WallClock
from trikubelet.formats.values import frozen
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes import messages
from trikubelet.volumes.attaching import Attaching
from trikubelet.volumes.decisions import Action, Certainty, Done, Failed, Operation, Outcome
from trikubelet.volumes.desired import common_user
from trikubelet.volumes.errors import (
    FileSystemMismatchError,
    TransientVolumeError,
    UncertainVolumeError,
    VolumeError,
)
from trikubelet.volumes.expander import Expander, ExpansionError
from trikubelet.volumes.kinds.protocol import Kinds
from trikubelet.volumes.model import SetUpRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from trikubelet.volumes.expansion import Expansion
    from trikubelet.volumes.kinds.protocol import VolumeKind
    from trikubelet.volumes.model import MountedVolume, VolumeSpec

log = get_logger("volumes")

DEADLINE: Final = 120.0
"""Seconds for an operation, but for those in which a file system is made or grown, or given to a group file by file:
they have this for each of their calls, and `LONG_DEADLINE` for all."""
LONG_DEADLINE: Final = 3600.0
LATER: Final = 10.0
"""Seconds by which a renewal comes later than it could, at most, so that not all come at once."""
OVERDUE: Final = 60.0
"""Seconds between renewals that did not give anything newer, at most."""

_DEADLINES: Final = {
    Action.ATTACH: float("inf"),  # as long as the controller takes: it is cancelled when no pod wants it any more
    Action.STAGE: LONG_DEADLINE,
    Action.SET_UP: LONG_DEADLINE,
    Action.REFRESH: DEADLINE,
    Action.EXPAND: LONG_DEADLINE,
    Action.TEAR_DOWN: DEADLINE,
    Action.UNSTAGE: DEADLINE,
}


@frozen(kw_only=True)
class Operations:
    """`clean_subpaths` undoes what was bound for containers: given a pod's UID and a volume's inner name."""

    kinds: Kinds
    expander: Expander
    attaching: Attaching
    recorder: EventRecorder
    clock: WallClock
    rng: Random
    clean_subpaths: Callable[[str, str], Awaitable[None]]

    async def perform(self, operation: Operation) -> Outcome:
        """Raises nothing but being cancelled, which leaves the volume uncertain."""
        if operation.obstacle is not None:
            failed = Failed(Certainty.TRANSIENT, operation.obstacle.problem)
            self._report(operation, failed, step=operation.obstacle.step)
            return failed
        try:
            with _one_error(), trio.fail_after(_DEADLINES[operation.action]):
                return await self._do(operation)
        except trio.TooSlowError:
            failed = Failed(Certainty.UNCERTAIN, "it was not done in time, and may still go on")
        except ExpansionError as error:
            failed = Failed(Certainty.UNCERTAIN, error.problem, expansion=error.expansion)
            if operation.action is Action.SET_UP:
                self._record_event(operation, *messages.expansion_event(operation.spec, error.problem))
                self._log(operation, failed)
                return failed
        except UncertainVolumeError as error:
            failed = Failed(Certainty.UNCERTAIN, error.problem)
            self._tell_of_mismatch(operation.spec, error)
        except TransientVolumeError as error:
            failed = Failed(Certainty.TRANSIENT, error.problem)
        except VolumeError as error:
            failed = Failed(Certainty.FINAL, error.problem)
            self._tell_of_mismatch(operation.spec, error)
        except ObjectError as error:
            failed = Failed(Certainty.TRANSIENT, str(error))
        except Exception as error:  # noqa: BLE001  one kind's mistake must not end all others' work
            failed = Failed(Certainty.UNCERTAIN, str(error) or type(error).__name__)
        self._report(operation, failed)
        return failed

    async def _do(self, operation: Operation) -> Done:
        spec, kind = operation.spec, self.kinds.find(operation.spec)
        match operation.action:
            case Action.ATTACH:
                attached = await self.attaching.wait(spec, operation.name)
                return Done(device_path=attached.device_path)
            case Action.STAGE:
                return Done(staging_path=await kind.stage(_request(operation, kind)))
            case Action.SET_UP:
                return await self._set_up(operation, kind)
            case Action.REFRESH:
                mounted = await kind.set_up(_request(operation, kind))
                return self._mounted(mounted)
            case Action.EXPAND:
                return Done(expansion=await self._expand(operation, kind))
            case Action.TEAR_DOWN:
                await self.clean_subpaths(operation.uid, spec.inner_name)
                await kind.tear_down(operation.uid, spec.inner_name, block=spec.block)
                return Done()
            case Action.UNSTAGE:
                await kind.unstage(operation.name, spec)
                return Done()
            case _:
                assert_never(operation.action)

    async def _set_up(self, operation: Operation, kind: VolumeKind) -> Done:
        request = _request(operation, kind)
        mounted = await kind.set_up(request)
        expansion = await self._expand(operation, kind) if operation.grow else None
        if kind.grows_on_node:
            self.expander.tell_read_only(request.pod, operation.spec)
        if operation.spec.block:
            self._record_event(
                operation, *messages.mapped_event(operation.spec, str(request.path.parent)), type_=EventType.NORMAL
            )
        return attrs.evolve(self._mounted(mounted), expansion=expansion)

    async def _expand(self, operation: Operation, kind: VolumeKind) -> Expansion:
        return await self.expander.expand(_request(operation, kind), kind, refused=operation.refused)

    def _mounted(self, mounted: MountedVolume) -> Done:
        due = None if mounted.refresh_at is None else self._due(mounted.refresh_at)
        read_only = mounted.read_only or mounted.spec.read_only
        return Done(mounted=attrs.evolve(mounted, read_only=read_only), refresh_due=due)

    def _due(self, refresh_at: datetime) -> float:
        """Never before it, or there would be nothing newer."""
        left = (refresh_at - self.clock.now()).total_seconds()
        if left <= 0:
            return trio.current_time() + OVERDUE * (0.5 + 0.5 * self.rng.random())
        return trio.current_time() + left + LATER * self.rng.random()

    def _report(self, operation: Operation, failed: Failed, *, step: str = "") -> None:
        self._log(operation, failed)
        event = messages.failure_event(operation.action, operation.spec, failed.problem, step=step)
        if event is not None:
            self._record_event(operation, *event)

    def _tell_of_mismatch(self, spec: VolumeSpec, error: VolumeError) -> None:
        """Where that is what failed. It is the cause of what is uncertain."""
        is_mismatch = any(isinstance(one, FileSystemMismatchError) for one in (error, error.__cause__))
        if is_mismatch and spec.persistent is not None:
            event = messages.mismatch_event(spec, error.problem)
            self.recorder.object_event(spec.persistent, EventType.WARNING, *event)

    def _record_event(
        self, operation: Operation, reason: str, message: str, *, type_: EventType = EventType.WARNING
    ) -> None:
        if operation.wanted is not None:
            self.recorder.pod_event(operation.wanted.pod, type_, reason, message)

    def _log(self, operation: Operation, failed: Failed) -> None:
        log.warning(
            f"cannot {operation.action.value} a volume",
            volume=operation.name,
            uid=operation.uid,
            problem=failed.problem,
            left=failed.certainty.value,
        )


def _request(operation: Operation, kind: VolumeKind) -> SetUpRequest:
    assert operation.wanted is not None
    pod, spec = operation.wanted.pod, operation.spec
    security = pod.spec.security_context
    policy = None if security is None else security.fs_group_change_policy
    try:
        path = kind.path(operation.uid, spec.inner_name, block=spec.block)
    except ValueError as error:
        raise VolumeError(spec.name, str(error)) from error
    return SetUpRequest(
        pod=pod,
        spec=spec,
        path=path,
        device_path=operation.device_path,
        staging_path=operation.staging_path,
        user=common_user(pod),
        group=None if security is None else security.fs_group,
        label=operation.label,
        change_policy=policy or "Always",
        refresh=operation.action is Action.REFRESH,
        reconstructed=operation.inherited,
    )


@contextmanager
def _one_error() -> Iterator[None]:
    """What comes alone out of a kind's nursery is taken for itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if isinstance(error, BaseExceptionGroup) or not isinstance(error, Exception):
            raise
        raise error from group
