"""Mirror pods: what shows static pods to the API server (kubelet: `mirror_client.go`, `tryReconcileMirrorPods`).

The story: a worker that syncs a static pod asks for its mirror pod (`ensure`), housekeeping asks to remove one that
shows nothing any more (`delete`). Both only note the name. A task per name then looks at what is true when it acts: the
static pod of that name, the mirror pod that the API server is known to have, the node; `mirror_action` decides; and it
goes on until there is nothing to do. Whatever fails is tried again with growing pauses, at once when the API server is
back. Syncs never wait for that.

A new version of a pod is shown once it is synced. While it waits for the end of the one before, the mirror pod is that
one's, with its status. Mirror pods of one name are replaced once a second at most, by the newest version there is then:
a manifest that is written over and over makes no storm of objects.

After an outage a mirror pod may be there that nobody knows of: the reply to its creation was lost. It is found when it
is made again, and kept if it shows the same pod. An object of the same name that is no mirror pod of this node is left
alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import attrs
import trio

from trikubelet.api import Node, OwnerReference, Pod, PodStatus
from trikubelet.api.pod_kinds import (
    CONFIG_HASH_ANNOTATION,
    CONFIG_MIRROR_ANNOTATION,
    is_mirror_pod,
    is_static_pod,
    shows_version,
)
from trikubelet.formats.values import define, frozen
from trikubelet.kube_client.errors import ApiError, ApiStatusError
from trikubelet.kube_client.recovery import GrowingPauses
from trikubelet.kube_client.types import PODS, Urgency, version_number
from trikubelet.supervision import supervise
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.kube_client.node_view import NodeView
    from trikubelet.kube_client.store import Store
    from trikubelet.kube_client.types import ApiClient
    from trikubelet.pods.manager import PodManager

log = get_logger("mirrors")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
"""Seconds."""
REPLACED_EVERY: Final = 1.0
"""Seconds from the making of a mirror pod until it may be replaced by one of another version."""


# --- Decisions -------------------------------------------------------------------------------------------------------


def mirror_of(static: Pod, node: Node) -> Pod:
    """What to create in order to show `static`: the pod itself, owned by the node, with its hash as the mark.

    The node's UID must be known: without an owner the API server takes no mirror pod (KEP-1314). The static pod's own
    UID goes along, but the server gives another; a status is written later.
    """
    annotations = {
        **static.metadata.annotations,
        CONFIG_MIRROR_ANNOTATION: static.metadata.annotations.get(CONFIG_HASH_ANNOTATION, ""),
    }
    owner = OwnerReference(
        api_version="v1", kind="Node", name=node.metadata.name, uid=node.metadata.uid, controller=True
    )
    metadata = attrs.evolve(
        static.metadata, annotations=annotations, owner_references=(owner,), resource_version="", managed_fields=()
    )
    return attrs.evolve(static, api_version="v1", kind="Pod", metadata=metadata, status=PodStatus())


def is_outdated(mirror: Pod, static: Pod) -> bool:
    """Whether the mirror pod shows another version of the pod, or is going (kubelet: not `IsMirrorPodOf`)."""
    return mirror.metadata.deletion_timestamp is not None or not shows_version(mirror, static)


@frozen
class CreateMirror:
    """Nothing shows the pod."""

    pod: Pod


@frozen
class RemoveMirror:
    """It shows something else, or nothing."""

    mirror: Pod


MirrorAction: TypeAlias = CreateMirror | RemoveMirror


def mirror_action(
    static: Pod | None, mirror: Pod | None, node: Node | None, *, wanted: bool, unwanted: bool
) -> MirrorAction | None:
    """What to do about the mirror pod of one full name; None for nothing.

    - `node` is the API server's, None before the agent is registered and knows the server's pods.
    - `wanted`: the static pod is to be shown. One that is not (admission refused it) keeps the mirror pod it has.
    - `unwanted`: a mirror pod without a static pod is to go. It stays while such a pod is still being ended.
    """
    if static is None:
        return RemoveMirror(mirror) if mirror is not None and unwanted else None
    if not wanted:
        return None
    if mirror is not None:
        return RemoveMirror(mirror) if is_outdated(mirror, static) else None
    if node is None or not node.metadata.uid or node.metadata.deletion_timestamp is not None:
        return None
    return CreateMirror(mirror_of(static, node))


def may_be_replaced(found: Pod, node_name: str) -> bool:
    """Whether an object that has a static pod's name is a mirror pod of this node, so that it may go."""
    return is_mirror_pod(found) and found.spec.node_name == node_name


# --- Effects ---------------------------------------------------------------------------------------------------------


@define(eq=False)
class _Mirror:
    """What is known of one full name."""

    wanted: str = ""
    """The UID of the static pod that is to be shown: the one that was synced."""
    unwanted: bool = False
    made: Pod | None = None
    """The mirror pod that the API server answered with, until the watch tells of it."""
    removed: str = ""
    """The UID of the one that was removed: the watch may still show it."""
    running: bool = False
    """A task is at it."""


class MirrorPods:
    """See the module's text. One per agent with a cluster."""

    def __init__(
        self,
        client: ApiClient,
        node: NodeView,
        pods: PodManager,
        served: Store[Pod],
        *,
        terminating: Callable[[str], bool],
        rng: Random,
    ) -> None:
        """`terminating` tells by full name whether a static pod is being ended: its mirror pod stays until then."""
        self._client = client
        self._node = node
        self._pods = pods
        self._served = served
        self._terminating = terminating
        self._rng = rng
        self._mirrors: dict[str, _Mirror] = {}
        self._made_at: dict[str, float] = {}
        """By full name, Trio time of the last mirror pod that was made; those of long ago are forgotten."""
        self._send_work, self._new_work = trio.open_memory_channel[str](float("inf"))

    def ensure(self, static: Pod, mirror: Pod | None) -> None:
        """A static pod is being synced: see to it that a mirror pod shows it. Others are ignored."""
        if not is_static_pod(static):
            return
        if mirror is not None and not is_outdated(mirror, static) and static.full_name not in self._mirrors:
            return
        newest = self._pods.pod_by_full_name(static.full_name)
        if newest is not None and newest.metadata.uid != static.metadata.uid:
            return  # it is on its way out, and its successor has its name
        work = self._mirrors.setdefault(static.full_name, _Mirror())
        work.wanted, work.unwanted = static.metadata.uid, False
        self._look(static.full_name, work)

    def delete(self, full_name: str) -> None:
        """A mirror pod shows nothing any more."""
        work = self._mirrors.setdefault(full_name, _Mirror())
        work.wanted, work.unwanted = "", True
        self._look(full_name, work)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Create and remove until cancelled. What is left half-way is found again by the next sync of the pod."""
        self._served.subscribe(self._served_changed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, self._adopt)
            task_status.started()
            await supervise(self._begin_work, nursery)

    async def _begin_work(self, nursery: trio.Nursery) -> None:
        async for full_name in self._new_work:
            nursery.start_soon(self._work, full_name, self._mirrors[full_name])

    async def _adopt(self) -> None:
        """See to the mirror pods that an earlier agent left."""
        await self._node.wait_registered()
        await self._served.wait_synced()
        for static, mirror in self._pods.static_pods_with_mirrors():
            self.ensure(static, mirror)

    def _served_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and (work := self._mirrors.get(pod.full_name)) is not None:
            self._look(pod.full_name, work)

    def _look(self, full_name: str, work: _Mirror) -> None:
        if not work.running:
            work.running = True
            self._send_work.send_nowait(full_name)

    # --- One mirror pod ----------------------------------------------------------------------------------------------

    async def _work(self, full_name: str, work: _Mirror) -> None:
        pauses = GrowingPauses(
            self._client.health,
            FIRST_PAUSE,
            LONGEST_PAUSE,
            vary=lambda: self._rng.uniform(0.75, 1.25),
            spread=lambda: self._rng.uniform(0, FIRST_PAUSE),
        )
        try:
            while True:
                action = self._next(full_name, work)
                if action is None:
                    self._forget(full_name, work)
                    return
                if await self._too_soon(full_name, work, action):
                    continue
                pauses.attempt()
                try:
                    await self._carry_out(work, action)
                    pauses.succeeded()
                except (ApiError, _NameTakenError, _StillGoingError) as error:
                    emit = log.debug if pauses.next > FIRST_PAUSE else log.warning  # of the first of several
                    emit("mirror pod failed", pod=full_name, action=type(action).__name__, error=str(error))
                    await pauses.after_failure()
        except Exception as error:  # one pod's oddity must not end the agent; its next sync asks again
            log.error("a mirror pod cannot be seen to", pod=full_name, exc_info=error)
        finally:
            work.running = False

    async def _too_soon(self, full_name: str, work: _Mirror, action: MirrorAction) -> bool:
        """Wait with the replacing of a mirror pod that was made just now. Returns whether there was a wait."""
        going = isinstance(action, CreateMirror) or action.mirror.metadata.deletion_timestamp is not None
        left = self._made_at.get(full_name, -math.inf) + REPLACED_EVERY - trio.current_time()
        if going or not work.wanted or left <= 0:
            return False
        await trio.sleep(left)
        return True

    def _note_made(self, full_name: str) -> None:
        now = trio.current_time()
        self._made_at = {name: at for name, at in self._made_at.items() if at + REPLACED_EVERY > now}
        self._made_at[full_name] = now

    def _forget(self, full_name: str, work: _Mirror) -> None:
        """Nothing is left to be known when the watch shows the mirror pod that was made, or the end of the removed."""
        shown = self._served.get(*_name(full_name))
        lags = (work.made is not None and shown is None) or (shown is not None and shown.metadata.uid == work.removed)
        if not lags and not (work.wanted and shown is None):
            self._mirrors.pop(full_name, None)

    def _next(self, full_name: str, work: _Mirror) -> MirrorAction | None:
        static = self._pods.pod_by_full_name(full_name)
        if static is not None and not is_static_pod(static):
            static = None
        known = self._node.registered and self._served.synced
        return mirror_action(
            static,
            self._mirror(full_name, work),
            self._node.cached() if known else None,
            wanted=static is not None and work.wanted == static.metadata.uid,
            unwanted=work.unwanted and not self._terminating(full_name),
        )

    def _mirror(self, full_name: str, work: _Mirror) -> Pod | None:
        """The newest that is known: the watch may not yet tell of what was just made or removed."""
        shown = self._served.get(*_name(full_name))
        told, made = self._served.resource_version, work.made
        if made is not None and version_number(told) >= version_number(made.metadata.resource_version):
            work.made = None
        found = work.made or shown
        if found is None or not is_mirror_pod(found) or found.metadata.uid == work.removed:
            return None
        return found

    async def _carry_out(self, work: _Mirror, action: MirrorAction) -> None:
        match action:
            case RemoveMirror(mirror=mirror):
                await self._remove(work, mirror)
            case CreateMirror(pod=pod):
                try:
                    work.made = await self._client.create(PODS, pod, urgency=Urgency.URGENT)
                    self._note_made(pod.full_name)
                    log.info("created a mirror pod", pod=pod.full_name, uid=work.made.metadata.uid)
                except ApiStatusError as error:
                    if not error.already_exists:
                        raise
                    await self._take_over(work, pod)
            case _:
                assert_never(action)

    async def _take_over(self, work: _Mirror, pod: Pod) -> None:
        """There is an object of this name that was not known: perhaps a mirror pod that was made before."""
        found = await self._client.get(PODS, pod.metadata.name, pod.metadata.namespace)
        if not may_be_replaced(found, pod.spec.node_name):
            raise _NameTakenError(pod.full_name)
        work.made, work.removed = found, ""
        if is_outdated(found, pod):
            await self._remove(work, found)
            if found.metadata.deletion_timestamp is not None:
                raise _StillGoingError(pod.full_name)

    async def _remove(self, work: _Mirror, mirror: Pod) -> None:
        metadata = mirror.metadata
        log.info("removing a mirror pod", pod=mirror.full_name, uid=metadata.uid)
        try:
            await self._client.delete(
                PODS, metadata.name, metadata.namespace, grace_period=0, uid=metadata.uid, urgency=Urgency.URGENT
            )
        except ApiStatusError as error:
            if not (error.not_found or error.conflict):  # gone, or replaced: both are what was wanted
                raise
        work.made, work.removed = None, metadata.uid


class _NameTakenError(Exception):
    def __init__(self, full_name: str) -> None:
        super().__init__(
            f"the API server has a pod {full_name} that is no mirror pod of this node: "
            "the static pod of that name runs, but is not shown. Rename one of them"
        )


class _StillGoingError(Exception):
    def __init__(self, full_name: str) -> None:
        super().__init__(f"the mirror pod {full_name} was asked to go and is still there; does it have finalizers?")


def _name(full_name: str) -> tuple[str, str]:
    """Name and namespace; neither can hold an underscore."""
    name, _, namespace = full_name.partition("_")
    return name, namespace
