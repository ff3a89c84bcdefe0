"""The volumes that the manager knows: which pods want each, what there is of it, and what is being done to it.

State only: no waiting, no clock, no calls. The manager writes into it what pods want and what operations
gave, and asks it what comes next. A volume that no pod wants, and of which nothing is there, is not in it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from trikubelet.formats.values import define
from trikubelet.volumes.actual import ActualVolume, PodMount
from trikubelet.volumes.decisions import Action, Failed, Operation, VolumeContext, after, is_idle, next_step
from trikubelet.volumes.desired import Wanted, csi_driver_of, needs_credentials, references
from trikubelet.volumes.expansion import growth_of, size_known
from trikubelet.volumes.metrics import plugin_name
from trikubelet.volumes.model import Presence
from trikubelet.volumes.retries import RetryDelay, after_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trikubelet.api import PersistentVolumeClaim
    from trikubelet.volumes.decisions import Outcome, Step
    from trikubelet.volumes.model import MountLabel
    from trikubelet.volumes.reconstruct import FoundVolume

ObjectKey = tuple[str, str, str]
"""Plural, namespace, name."""


@define
class TrackedVolume:
    """All about one volume."""

    name: str
    wanted: dict[str, Wanted] = attrs.field(factory=dict)
    """By the pod's UID."""
    actual: ActualVolume = attrs.field(factory=ActualVolume)
    released: set[str] = attrs.field(factory=set)
    """UIDs of pods that have ended, until they are forgotten."""
    retries: dict[str, RetryDelay] = attrs.field(factory=dict)
    running: Operation | None = None
    problem: str = ""
    """Why the last operation failed."""


class TrackedVolumes:
    """By unique names: of each volume what pods want of it (also in `DesiredStateOfWorld`, there by pod) and what there
    is (kubelet: `ActualStateOfWorld`), since `next_step` decides from both."""

    def __init__(self) -> None:
        self._volumes: dict[str, TrackedVolume] = {}
        self._of_pod: dict[str, set[str]] = {}
        self._referrers: dict[ObjectKey, set[tuple[str, str]]] = {}
        """By object: pods (UIDs) and their volumes."""
        self._not_understood: dict[tuple[str, str, str], str] = {}
        """By UID, plugin and inner name: made-up names of what an earlier agent left."""

    def get(self, name: str) -> TrackedVolume | None:
        return self._volumes.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(self._volumes)

    def names_of(self, uid: str) -> frozenset[str]:
        """The volumes that a pod wants or may have."""
        return frozenset(self._of_pod.get(uid, ()))

    def adopt(self, found: Iterable[FoundVolume], *, labelled: bool = False) -> None:
        """Take up what an earlier agent left. `labelled`: SELinux is on, so mounts have the labels that it gave them.
        Without, what is written down of labels is of another boot."""
        for one in found:
            volume = self._volumes.setdefault(one.unique_name, TrackedVolume(one.unique_name))
            if one.uid:
                mount = PodMount(presence=Presence.UNCERTAIN, spec=one.spec, inherited=True)
                volume.actual = volume.actual.with_mount(one.uid, mount)
                self._of_pod.setdefault(one.uid, set()).add(one.unique_name)
            if one.staged:
                volume.actual = attrs.evolve(
                    volume.actual, staged=Presence.UNCERTAIN, staged_spec=one.spec, staging_inherited=True
                )
            if labelled and one.spec.found_label is not None and not volume.actual.is_nothing:
                volume.actual = attrs.evolve(volume.actual, label=one.spec.found_label)
            if not one.understood:
                self._not_understood[one.uid, one.spec.plugin, one.spec.inner_name] = one.unique_name

    def want(self, name: str, uid: str, wanted: Wanted) -> None:
        """A pod wants the volume, or something else of it than before."""
        volume = self._volumes.setdefault(name, TrackedVolume(name))
        before = volume.wanted.get(uid)
        if before is not None:
            self._drop_references(before, uid, name)
        request = wanted.request if before is None else max(before.request, wanted.request)
        volume.wanted[uid] = attrs.evolve(wanted, request=request)
        volume.released.discard(uid)
        self._of_pod.setdefault(uid, set()).add(name)
        if volume.actual.size is None and wanted.size is not None:
            volume.actual = attrs.evolve(volume.actual, size=size_known(wanted.spec))
        for key in references(wanted.spec, wanted.pod.metadata.namespace):
            self._referrers.setdefault(key, set()).add((uid, name))
        self._recognise(volume, uid, wanted)

    def label(self, name: str, *, but: str) -> MountLabel | None:
        """What the pods have agreed to that want the volume, but for one pod; None when there are no others."""
        volume = self._volumes.get(name)
        others = () if volume is None else (one.label for uid, one in volume.wanted.items() if uid != but)
        return next(iter(others), None)

    def release(self, uid: str) -> frozenset[str]:
        """The pod wants nothing any more, and no container of it runs or will: what it has is to be taken down."""
        names = self.names_of(uid)
        for name in names:
            volume = self._volumes[name]
            wanted = volume.wanted.pop(uid, None)
            if wanted is not None:
                self._drop_references(wanted, uid, name)
            volume.retries.pop(uid, None)
            volume.released.add(uid)
            self._settle(volume)
        return names

    def forget(self, uid: str, names: Iterable[str]) -> None:
        """The end of the pod's volumes is not waited for any more; the pod may come back."""
        for name in names:
            volume = self._volumes.get(name)
            if volume is not None:
                volume.released.discard(uid)
                self._settle(volume)

    def change(self, name: str, uid: str, changed: Callable[[Wanted], Wanted]) -> None:
        """Change what a pod wants of a volume, if it does."""
        volume = self._volumes.get(name)
        if volume is not None and uid in volume.wanted:
            volume.wanted[uid] = changed(volume.wanted[uid])

    def newest_began(self, name: str, uid: str) -> float:
        """When the newest content that a pod has of a volume, or is about to get, began to be gathered (Trio time).

        Infinite when that is still to come, and when there is no such volume.
        """
        volume = self._volumes.get(name)
        wanted = None if volume is None else volume.wanted.get(uid)
        if volume is None or wanted is None:
            return float("inf")
        running, mount = volume.running, volume.actual.mounts.get(uid)
        if running is not None and running.uid == uid and running.action in (Action.SET_UP, Action.REFRESH):
            still_to_come = running.wanted is None or running.wanted.request < wanted.request
            return float("inf") if still_to_come else running.began
        if mount is None or mount.mounted is None or mount.shown < wanted.request:
            return float("inf")
        return mount.began

    @property
    def has_inherited_staging(self) -> bool:
        """Whether an earlier agent may have staged something."""
        return any(volume.actual.staging_inherited for volume in self._volumes.values())

    def compare(self, attached: Mapping[str, str]) -> None:
        """What an earlier agent left may be attached: unique names and device paths by the node's status."""
        for name, device_path in attached.items():
            volume = self._volumes.get(name)
            if volume is not None and volume.running is None and not volume.actual.is_nothing:
                volume.actual = attrs.evolve(volume.actual, attached=True, device_path=device_path)

    def forget_detached(self, attached: Mapping[str, str]) -> None:
        """What was attached, and of which nothing is there yet, may be detached again."""
        for volume in self._volumes.values():
            idle = volume.running is None and volume.actual.is_nothing
            if volume.actual.attached and idle and volume.name not in attached:
                volume.actual = attrs.evolve(volume.actual, attached=False, device_path="")

    def next_step(self, name: str, now: float, *, may_unstage: bool) -> Step:
        """Only for a volume on which no operation goes on."""
        volume = self._volumes[name]
        situation = VolumeContext(
            name=name,
            wanted=volume.wanted,
            actual=volume.actual,
            retries=volume.retries,
            released=volume.released,
            may_unstage=may_unstage,
        )
        return next_step(situation, now)

    def begin(self, operation: Operation) -> None:
        volume = self._volumes[operation.name]
        assert volume.running is None
        volume.running = operation

    def finish(self, operation: Operation, outcome: Outcome, now: float) -> frozenset[str]:
        """Write down what came of an operation. Returns the UIDs of pods for which something is different now."""
        volume = self._volumes[operation.name]
        volume.running = None
        volume.actual = after(volume.actual, operation, outcome)
        if outcome.expansion is not None:
            _learn(volume.wanted, outcome.expansion.claim)
        key = operation.retry_key
        if isinstance(outcome, Failed):
            volume.problem = outcome.problem
            if not outcome.cancelled:
                volume.retries[key] = after_failure(volume.retries.get(key), operation.action, now)
        else:
            volume.retries.pop(key, None)
            if operation.action is Action.TEAR_DOWN:
                volume.retries.clear()  # others may have waited for just this
        affected = frozenset({operation.uid} if operation.uid else volume.released)
        self._settle(volume)
        return affected

    def forgive(self, names: Iterable[str]) -> None:
        """Something happened that may have cured what failed: try again at once."""
        for name in names:
            volume = self._volumes.get(name)
            if volume is not None:
                volume.retries.clear()

    def referrers(self, key: ObjectKey) -> tuple[tuple[str, str], ...]:
        """UIDs of pods, and the volumes of theirs that show the object or need it."""
        return tuple(self._referrers.get(key, ()))

    def with_credentials(self, uid: str) -> tuple[tuple[str, str], ...]:
        """The same for trust bundles and certificates; of one pod, or with "" of all."""
        pods = (uid,) if uid else tuple(self._of_pod)
        return tuple(
            (one, name) for one in pods for name in self.names_of(one) if _needs_credentials(self._volumes[name], one)
        )

    def of_driver(self, driver: str) -> tuple[TrackedVolume, ...]:
        """The volumes of a CSI or flexVolume driver that pods want, or have."""
        found = []
        for volume in self._volumes.values():
            specs = [one.spec for one in volume.wanted.values()] + [one.spec for one in volume.actual.mounts.values()]
            if any(driver in (csi_driver_of(spec), spec.plugin) for spec in specs):
                found.append(volume)
        return tuple(found)

    def in_use(self) -> tuple[str, ...]:
        """Volumes that a controller attaches, and must not detach."""
        return tuple(
            sorted(
                volume.name
                for volume in self._volumes.values()
                if any(wanted.attachable for wanted in volume.wanted.values())
                or (volume.actual.attached and not volume.actual.is_nothing)
            )
        )

    def is_left(self, name: str, uid: str, *, may_unstage: bool) -> bool:
        """Whether a pod that was released has to wait for the volume.

        Not for what could not be unstaged: that is the node's affair, and goes on without the pod.
        """
        volume = self._volumes.get(name)
        if volume is None:
            return False
        running = volume.running
        if uid in volume.actual.mounts or (running is not None and running.uid == uid):
            return True
        if volume.wanted or volume.actual.mounts or volume.actual.staged is Presence.ABSENT or not may_unstage:
            return False
        return all(backoff.what is not Action.UNSTAGE for backoff in volume.retries.values())

    def problems(self, names: Iterable[str]) -> str:
        """Why the last operations on volumes failed."""
        volumes = (self._volumes.get(name) for name in names)
        return "; ".join(sorted({volume.problem for volume in volumes if volume is not None and volume.problem}))

    def count_by_plugin(self) -> tuple[Counter[str], Counter[str]]:
        """By plugin: volumes that are there for pods, and volumes that pods want."""
        there, wanted = Counter[str](), Counter[str]()
        for volume in self._volumes.values():
            for mount in volume.actual.mounts.values():
                there[plugin_name(mount.spec)] += mount.presence is Presence.PRESENT
            wanted.update(plugin_name(one.spec) for one in volume.wanted.values())
        return there, wanted

    def statistics(self) -> Mapping[str, int]:
        """How many volumes there are, wanted, mounted for pods, and being worked on."""
        volumes = self._volumes.values()
        return {
            "volumes": len(self._volumes),
            "wanted": sum(len(volume.wanted) for volume in volumes),
            "mounts": sum(len(volume.actual.mounts) for volume in volumes),
            "running": sum(volume.running is not None for volume in volumes),
        }

    def _recognise(self, volume: TrackedVolume, uid: str, wanted: Wanted) -> None:
        """An unrecognised folder on disk may turn out to be this volume."""
        made_up = self._not_understood.pop((uid, wanted.spec.plugin, wanted.spec.inner_name), None)
        if made_up is None or made_up == volume.name:
            return
        old = self._volumes[made_up]
        mount = old.actual.mounts[uid]
        old.actual = old.actual.without_mount(uid)
        self._leave(uid, made_up)
        self._settle(old)
        if uid not in volume.actual.mounts:
            volume.actual = volume.actual.with_mount(uid, attrs.evolve(mount, spec=wanted.spec))
        if wanted.staged and volume.actual.staged is Presence.ABSENT:
            volume.actual = attrs.evolve(
                volume.actual, staged=Presence.UNCERTAIN, staged_spec=wanted.spec, staging_inherited=True
            )

    def _settle(self, volume: TrackedVolume) -> None:
        """Forget a volume that is no more, and pods that have none of it."""
        for uid in tuple(volume.released):
            running = volume.running is not None and volume.running.uid == uid
            if uid not in volume.actual.mounts and not running:
                self._leave(uid, volume.name)
        if volume.running is None and is_idle(
            VolumeContext(name=volume.name, wanted=volume.wanted, actual=volume.actual)
        ):
            self._volumes.pop(volume.name, None)

    def _leave(self, uid: str, name: str) -> None:
        names = self._of_pod.get(uid)
        if names is not None:
            names.discard(name)
            if not names:
                del self._of_pod[uid]
        for key in [key for key in self._not_understood if key[0] == uid and self._not_understood[key] == name]:
            del self._not_understood[key]

    def _drop_references(self, wanted: Wanted, uid: str, name: str) -> None:
        for key in references(wanted.spec, wanted.pod.metadata.namespace):
            referrers = self._referrers.get(key, set())
            referrers.discard((uid, name))
            if not referrers:
                self._referrers.pop(key, None)


def _learn(wanted: dict[str, Wanted], claim: PersistentVolumeClaim) -> None:
    """The claim is newer than what the pods were told of it."""
    for uid, one in wanted.items():
        if one.spec.claim is not None and one.spec.claim.metadata.uid == claim.metadata.uid:
            spec = attrs.evolve(one.spec, claim=claim)
            growth = growth_of(spec)
            wanted[uid] = attrs.evolve(one, spec=spec, size=None if growth is None else growth.size)


def _needs_credentials(volume: TrackedVolume, uid: str) -> bool:
    """Whether the volume, as the pod wants it, shows trust bundles or certificates."""
    wanted = volume.wanted.get(uid)
    return wanted is not None and needs_credentials(wanted.spec)
