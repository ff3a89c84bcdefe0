"""What is to be done next for one volume. Pure: values in, values out.

Everything about a volume is decided by its unique name alone, and at most one operation on it goes on at a time. So the
question is small: given the pods that want the volume (`Wanted`), what there is of it (`ActualVolume`), what failed
lately and what time it is, which one operation comes next, and if none, when to ask again (`next_step`)? The answer of
the operation is turned into what there is now by `after`.

In order: what a pod that has ended still has is taken down; then a pod gets what it waits for, over attaching, staging
and setting up; then what is there is made up to date or larger; and when no pod has or wants the volume any more, its
staging is undone (kubelet: `reconciler.go`, `operation_generator.go`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

import attrs

from trikubelet.formats.values import frozen
from trikubelet.volumes.actual import ActualVolume, PodMount
from trikubelet.volumes.desired import Obstacle, Wanted
from trikubelet.volumes.expansion import Expansion
from trikubelet.volumes.model import MountedVolume, Presence, VolumeSpec
from trikubelet.volumes.retries import RetryDelay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.api import Quantity


IN_USE_ELSEWHERE: Final = "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
OTHER_LABEL: Final = (
    'waiting for unmount of volume "{}", because it is already mounted to a different pod with a different SELinux '
    "label"
)


class Action(enum.Enum):
    """What can be done to a volume."""

    ATTACH = "attach"
    """Wait for a controller that attaches it."""
    STAGE = "stage"
    SET_UP = "set up"
    REFRESH = "refresh"
    EXPAND = "expand"
    TEAR_DOWN = "tear down"
    UNSTAGE = "unstage"


_OF_ONE_POD: Final = frozenset({Action.SET_UP, Action.REFRESH, Action.TEAR_DOWN})


@frozen(kw_only=True)
class Operation:
    """Something to be done to the volume `name`, for the pod `uid` (empty: for the node)."""

    action: Action
    name: str
    uid: str = ""
    spec: VolumeSpec
    wanted: Wanted | None = None
    device_path: str = ""
    staging_path: Path | None = None
    label: str = ""
    inherited: bool = False
    obstacle: Obstacle | None = None
    """It fails at once, for this reason."""
    grow: bool = False
    """The file system has to take its size before containers see it."""
    refused: bool = False
    """As `ActualVolume.refused`."""
    began: float = 0.0

    @property
    def retry_key(self) -> str:
        """Failures for one pod do not make another one wait, unless they are the volume's."""
        return self.uid if self.action in _OF_ONE_POD else ""


class Certainty(enum.Enum):
    """What a failure leaves behind."""

    FINAL = "final"
    """Nothing of what was tried is there."""
    UNCERTAIN = "uncertain"
    """Unknown."""
    TRANSIENT = "transient"
    """What was there before: nothing was tried."""


@frozen(kw_only=True)
class Done:
    """What an operation that succeeded gave."""

    mounted: MountedVolume | None = None
    refresh_due: float | None = None
    staging_path: Path | None = None
    device_path: str = ""
    expansion: Expansion | None = None


@frozen
class Failed:
    """An operation that did not succeed."""

    certainty: Certainty
    problem: str
    cancelled: bool = False
    """Nothing is wrong with the volume: the operation was not wanted any more, or not here."""
    expansion: Expansion | None = None


Outcome = Done | Failed


@frozen
class Step:
    """What comes next: an operation, else perhaps a time (Trio's) to ask again."""

    operation: Operation | None = None
    wake_at: float | None = None


@frozen(kw_only=True)
class VolumeContext:
    """All that the next step for a volume depends on."""

    name: str
    wanted: Mapping[str, Wanted] = attrs.field(factory=dict)
    """By UID."""
    actual: ActualVolume = attrs.field(factory=ActualVolume)
    retries: Mapping[str, RetryDelay] = attrs.field(factory=dict)
    """By `Operation.retry_key`."""
    released: Set[str] = frozenset()
    """UIDs of pods none of whose containers runs, or will run, any more."""
    may_unstage: bool = True
    """What was found on disk has been compared with what is attached."""


def next_step(situation: VolumeContext, now: float) -> Step:
    """The operation to start now. Only for a volume on which none is going on."""
    wake_at: float | None = None
    for candidate in _candidates(situation, now):
        if isinstance(candidate, float):
            wake_at = _earlier(wake_at, candidate)
            continue
        backoff = situation.retries.get(candidate.retry_key)
        if backoff is not None and backoff.holds(candidate.action, now):
            wake_at = _earlier(wake_at, backoff.until)
            continue
        return Step(attrs.evolve(candidate, began=now))
    return Step(None, wake_at)


def is_idle(situation: VolumeContext) -> bool:
    """Nothing is wanted and nothing is there: the volume can be forgotten."""
    return not situation.wanted and situation.actual.is_nothing


def still_useful(operation: Operation, wanted: Mapping[str, Wanted]) -> bool:
    """Whether an operation that is going on should go on: not what is done for pods that want it no more."""
    match operation.action:
        case Action.ATTACH | Action.STAGE:
            return bool(wanted)
        case Action.SET_UP | Action.REFRESH | Action.EXPAND:
            return operation.uid in wanted
        case Action.TEAR_DOWN | Action.UNSTAGE:
            return True
        case _:
            assert_never(operation.action)


def after(actual: ActualVolume, operation: Operation, outcome: Outcome) -> ActualVolume:
    """What there is of the volume once the operation has ended."""
    changed = _after_expansion(_after(actual, operation, outcome), outcome.expansion)
    if changed.is_nothing:
        return attrs.evolve(changed, label=None, stays=False)
    if changed.label is None and operation.action in (Action.STAGE, Action.SET_UP):
        return attrs.evolve(changed, label=operation.label)
    return changed


def _after(actual: ActualVolume, operation: Operation, outcome: Outcome) -> ActualVolume:
    match operation.action:
        case Action.ATTACH:
            if isinstance(outcome, Failed):
                return actual
            return attrs.evolve(actual, attached=True, device_path=outcome.device_path)
        case Action.STAGE:
            return _after_stage(actual, operation, outcome)
        case Action.SET_UP:
            return _after_set_up(actual, operation, outcome)
        case Action.REFRESH:
            return _after_refresh(actual, operation, outcome)
        case Action.EXPAND:
            return actual
        case Action.TEAR_DOWN:
            return _after_tear_down(actual, operation, outcome)
        case Action.UNSTAGE:
            if isinstance(outcome, Failed):
                return attrs.evolve(actual, staged=Presence.UNCERTAIN, staging_inherited=True)
            return attrs.evolve(actual, staged=Presence.ABSENT, staged_spec=None, staging_path=None)
        case _:
            assert_never(operation.action)


def _after_expansion(actual: ActualVolume, expansion: Expansion | None) -> ActualVolume:
    if expansion is None:
        return actual
    size = actual.size if expansion.size is None else expansion.size
    return attrs.evolve(actual, size=size, stays=expansion.stays, refused=expansion.refused)


def _candidates(situation: VolumeContext, now: float) -> Iterator[Operation | float]:
    """What could be done, the most urgent first; times at which something will have to be."""
    name, wanted, actual = situation.name, situation.wanted, situation.actual
    for uid, mount in actual.mounts.items():
        if uid not in wanted and uid in situation.released:
            yield Operation(action=Action.TEAR_DOWN, name=name, uid=uid, spec=mount.spec)
    for uid, one in wanted.items():
        if not actual.is_present(uid):
            yield from _towards(situation, uid, one)
    for uid, one in wanted.items():
        if actual.is_present(uid):
            yield from _upkeep(situation, uid, one, now)
    if not wanted and not actual.mounts and actual.staged is not Presence.ABSENT and situation.may_unstage:
        yield _unstage(situation)


def _unstage(situation: VolumeContext) -> Operation:
    assert situation.actual.staged_spec is not None
    return Operation(action=Action.UNSTAGE, name=situation.name, spec=situation.actual.staged_spec)


def _towards(situation: VolumeContext, uid: str, wanted: Wanted) -> Iterator[Operation]:
    """The next operation on the way to a volume that the pod can use; none while others are on the way out."""
    actual = situation.actual
    operation = _for_pod(situation, uid, wanted, Action.SET_UP)
    step = "SetUpDevice" if wanted.spec.block else "SetUp"
    if actual.label not in (None, operation.label):
        if actual.mounts:
            yield attrs.evolve(operation, obstacle=Obstacle(step, OTHER_LABEL.format(situation.name)))
        elif situation.may_unstage:
            yield _unstage(situation)
    elif wanted.attachable and not actual.attached:
        yield attrs.evolve(operation, action=Action.ATTACH)
    elif wanted.obstacle is not None:
        yield attrs.evolve(operation, obstacle=wanted.obstacle)
    elif wanted.exclusive and actual.is_elsewhere(uid):
        yield attrs.evolve(operation, obstacle=Obstacle(step, IN_USE_ELSEWHERE))
    elif wanted.staged and actual.staged is not Presence.PRESENT:
        yield attrs.evolve(operation, action=Action.STAGE, inherited=actual.staging_inherited)
    else:
        yield operation


def _upkeep(situation: VolumeContext, uid: str, wanted: Wanted, now: float) -> Iterator[Operation | float]:
    """For a volume that the pod has."""
    mount = situation.actual.mounts[uid]
    due = mount.refresh_due
    if wanted.request > mount.shown or (due is not None and due <= now):
        yield _for_pod(situation, uid, wanted, Action.REFRESH)
    elif due is not None:
        yield due
    if _is_smaller(situation.actual.size, wanted.size) and not situation.actual.stays:
        yield _for_pod(situation, uid, wanted, Action.EXPAND)


def _for_pod(situation: VolumeContext, uid: str, wanted: Wanted, action: Action) -> Operation:
    actual = situation.actual
    mount = actual.mounts.get(uid)
    return Operation(
        action=action,
        name=situation.name,
        uid=uid,
        spec=wanted.spec,
        wanted=wanted,
        device_path=actual.device_path,
        staging_path=actual.staging_path,
        label=wanted.label.used,
        inherited=mount is not None and mount.inherited,
        grow=_is_smaller(actual.size, wanted.size),
        refused=actual.refused,
    )


def _after_stage(actual: ActualVolume, operation: Operation, outcome: Outcome) -> ActualVolume:
    if isinstance(outcome, Done):
        return attrs.evolve(
            actual,
            staged=Presence.PRESENT,
            staged_spec=operation.spec,
            staging_path=outcome.staging_path,
            staging_inherited=False,
        )
    if outcome.certainty is Certainty.FINAL and actual.staged is Presence.UNCERTAIN and not actual.staging_inherited:
        return attrs.evolve(actual, staged=Presence.ABSENT, staged_spec=None, staging_path=None)
    if outcome.certainty is Certainty.UNCERTAIN and actual.staged is Presence.ABSENT:
        return attrs.evolve(
            actual, staged=Presence.UNCERTAIN, staged_spec=operation.spec, staging_path=None, staging_inherited=False
        )
    return actual


def _after_set_up(actual: ActualVolume, operation: Operation, outcome: Outcome) -> ActualVolume:
    uid, before = operation.uid, actual.mounts.get(operation.uid)
    if isinstance(outcome, Done):
        made = PodMount(
            presence=Presence.PRESENT,
            spec=operation.spec,
            mounted=outcome.mounted,
            shown=0 if operation.wanted is None else operation.wanted.request,
            began=operation.began,
            refresh_due=outcome.refresh_due,
        )
        return actual.with_mount(uid, made)
    if outcome.certainty is Certainty.FINAL and before is not None and not before.inherited:
        return actual.without_mount(uid)
    if outcome.certainty is Certainty.UNCERTAIN and before is None:
        return actual.with_mount(uid, PodMount(presence=Presence.UNCERTAIN, spec=operation.spec))
    return actual


def _after_refresh(actual: ActualVolume, operation: Operation, outcome: Outcome) -> ActualVolume:
    before = actual.mounts.get(operation.uid)
    if isinstance(outcome, Failed) or before is None:
        return actual  # what is there stays, and stays good enough
    shown = before.shown if operation.wanted is None else operation.wanted.request
    now = attrs.evolve(
        before,
        spec=operation.spec,
        mounted=outcome.mounted,
        shown=shown,
        began=operation.began,
        refresh_due=outcome.refresh_due,
    )
    return actual.with_mount(operation.uid, now)


def _after_tear_down(actual: ActualVolume, operation: Operation, outcome: Outcome) -> ActualVolume:
    before = actual.mounts.get(operation.uid)
    if before is None or isinstance(outcome, Done):
        return actual.without_mount(operation.uid)
    left = attrs.evolve(before, presence=Presence.UNCERTAIN, inherited=True)
    return actual.with_mount(operation.uid, left)


def _is_smaller(size: Quantity | None, wanted: Quantity | None) -> bool:
    return size is not None and wanted is not None and 0 < size.nanos < wanted.nanos


def _earlier(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)
