"""What pods want of volumes, as they last said it, and how much of that is there.

Kept by pod and by the volume's name in the pod; `tracked_volumes` keeps the same by volume, with what is there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.formats.values import define
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes import messages
from trikubelet.volumes.desired import (
    Resolved,
    Wanted,
    asks_api_server,
    csi_driver_of,
    is_staged,
    options_obstacle,
    resolve,
    resolve_now,
    wanted_names,
)
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.expansion import growth_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trikubelet.api import Pod
    from trikubelet.kube_client.volume_objects import StorageObjects
    from trikubelet.volumes.errors import VolumesNotReadyError
    from trikubelet.volumes.kinds.protocol import Kinds, VolumeKind
    from trikubelet.volumes.model import MountedVolume, MountLabel, VolumeSpec
    from trikubelet.volumes.mount_labels import MountLabels
    from trikubelet.volumes.tracked_volumes import TrackedVolumes

log = get_logger("volumes")


@define(eq=False)
class PodRecord:
    """One pod."""

    pod: Pod
    expected: frozenset[str]
    """Names of volumes in the pod that must be there."""
    names: dict[str, str] = attrs.field(factory=dict)
    """From the name in the pod to the unique name, as far as it is known."""
    problems: dict[str, str] = attrs.field(factory=dict)
    """Why it is not known what a volume is, by its name in the pod."""
    changed: Broadcast[None] = attrs.field(factory=Broadcast)
    """Something about a volume is different."""
    waiting: int = 0
    """How many `prepare` calls wait for it."""
    resolving: bool = False
    resolved_at: float = float("-inf")
    stale_since: float = float("-inf")
    """When the pod changed: what showed it before then, has to be renewed."""

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def unique_names(self) -> frozenset[str]:
        return frozenset(self.names.values())


class DesiredStateOfWorld:
    """By UID."""

    def __init__(self, tracked: TrackedVolumes, kinds: Kinds, storage: StorageObjects, labels: MountLabels) -> None:
        self._labels = labels
        self._tracked = tracked
        self._kinds = kinds
        self._storage = storage
        self._records: dict[str, PodRecord] = {}

    def get(self, uid: str) -> PodRecord | None:
        return self._records.get(uid)

    def all(self) -> tuple[PodRecord, ...]:
        return tuple(self._records.values())

    def forget(self, uid: str) -> None:
        """The pod wants nothing any more. Tasks that wait for its volumes are woken."""
        record = self._records.pop(uid, None)
        if record is not None:
            record.changed.send(None)

    def update_pod(self, pod: Pod) -> PodRecord:
        """The pod as it is now."""
        record = self._records.get(pod.metadata.uid)
        if record is None:
            record = self._records[pod.metadata.uid] = PodRecord(pod, wanted_names(pod))
        elif record.pod is not pod:
            if record.pod.spec is not pod.spec:
                record.expected = wanted_names(pod)
            if not _shows_the_same(record.pod, pod):
                record.stale_since = trio.current_time()
            record.pod = pod
        return record

    async def resolve(self, record: PodRecord) -> None:
        """Find out what the pod wants, and write it into the tracked volumes. What is unknown is among its problems."""
        pod = record.pod
        resolved = await resolve(pod, self._storage) if asks_api_server(pod) else resolve_now(pod)
        for driver in sorted({driver for spec in resolved.specs.values() if (driver := csi_driver_of(spec))}):
            await self._await_driver_object(driver)
        if self._records.get(record.uid) is record:
            record.resolved_at = trio.current_time()
            self._want(record, pod, resolved)

    def ask_refresh(self, name: str, uid: str, *, older_than: float, pod: Pod | None = None) -> None:
        """Have a volume be made up to date, if its content can change and is that old (Trio time).

        `pod`: as it is now.
        """
        old = self._tracked.newest_began(name, uid) <= older_than

        def ask(wanted: Wanted) -> Wanted:
            request = wanted.request + 1 if old and wanted.refreshes else wanted.request
            return attrs.evolve(wanted, request=request, pod=wanted.pod if pod is None else pod)

        self._tracked.change(name, uid, ask)

    def update_driver(self, driver: str) -> Iterator[str]:
        """A driver, or its object, changed. Yields the names of its volumes."""
        for volume in self._tracked.of_driver(driver):
            for uid, wanted in tuple(volume.wanted.items()):
                try:
                    kind = self._kinds.find(wanted.spec)
                    attachable, refreshes = kind.attachable(wanted.spec), kind.refreshes(wanted.spec)
                except VolumeError:
                    continue  # as it was
                change = partial(attrs.evolve, attachable=attachable, refreshes=refreshes)
                self._tracked.change(volume.name, uid, change)
            yield volume.name

    def mounted(self, record: PodRecord, volume_name: str) -> MountedVolume | None:
        """What containers may use."""
        volume = self._tracked.get(record.names.get(volume_name, ""))
        if volume is None or not volume.actual.is_present(record.uid):
            return None
        return volume.actual.mounts[record.uid].mounted

    def all_mounted(self) -> Mapping[str, Mapping[str, MountedVolume]]:
        """By UID and the name in the pod."""
        return {uid: self.all_mounted_of(uid) for uid in self._records}

    def all_mounted_of(self, uid: str) -> Mapping[str, MountedVolume]:
        """By the name in the pod."""
        record = self._records.get(uid)
        if record is None:
            return {}
        return {name: volume for name in record.names if (volume := self.mounted(record, name)) is not None}

    def are_there(self, pod: Pod) -> bool:
        """Whether all that the pod wants is there, and nothing has to be found out."""
        record = self._records.get(pod.metadata.uid)
        if record is None or (record.pod.spec is not pod.spec and record.expected != wanted_names(pod)):
            return False
        return self.is_ready(record)

    def is_ready(self, record: PodRecord) -> bool:
        return all(self.mounted(record, name) is not None for name in record.expected)

    def unattached(self, record: PodRecord) -> dict[str, VolumeSpec]:
        """Volumes that a controller has not attached yet, by the name in the pod."""
        found = {}
        for volume_name, name in record.names.items():
            volume = self._tracked.get(name)
            wanted = None if volume is None else volume.wanted.get(record.uid)
            if volume is not None and wanted is not None and wanted.attachable and not volume.actual.attached:
                found[volume_name] = wanted.spec
        return found

    def not_ready(self, record: PodRecord, causes: Iterable[str] = ()) -> VolumesNotReadyError:
        """Without `causes` the time is over."""
        return messages.not_ready(
            [name for name in record.expected if self.mounted(record, name) is None],
            self.unattached(record),
            [name for name in record.expected if name not in record.names],
            causes,
        )

    async def _await_driver_object(self, driver: str) -> None:
        """Give a driver's object, which says whether its volumes are attached, a moment to be read."""
        try:
            await self._storage.csi_driver(driver)
        except ObjectError as error:
            log.info("the object of a CSI driver is not known", driver=driver, problem=str(error))

    def _want(self, record: PodRecord, pod: Pod, resolved: Resolved) -> None:
        problems = dict(resolved.problems)
        found: dict[str, Wanted] = {}
        for volume_name, spec in resolved.specs.items():
            try:
                kind = self._kinds.find(spec)
                name, attachable = kind.unique_name(spec, record.uid), kind.attachable(spec)
                label = found[name].label if name in found else self._label(name, pod, spec, kind)
            except VolumeError as error:
                problems[volume_name] = error.problem
                continue
            record.names[volume_name] = name
            found[name] = Wanted(
                pod=pod,
                spec=spec,
                names=(*(found[name].names if name in found else ()), volume_name),
                staged=is_staged(spec, kind),
                attachable=attachable,
                refreshes=kind.refreshes(spec),
                size=growth.size if kind.grows_on_node and (growth := growth_of(spec)) is not None else None,
                obstacle=resolved.obstacles.get(volume_name) or options_obstacle(spec, kind),
                label=label,
            )
        record.problems = problems
        for name, wanted in found.items():
            self._tracked.want(name, record.uid, wanted)

    def _label(self, name: str, pod: Pod, spec: VolumeSpec, kind: VolumeKind) -> MountLabel:
        """Asked once: what was agreed to stays for as long as the pod wants the volume. Who has it already keeps what
        it has, since its containers may run. Raises VolumeError."""
        uid, volume = pod.metadata.uid, self._tracked.get(name)
        before = None if volume is None else volume.wanted.get(uid)
        if before is not None:
            return before.label
        has = None if volume is None or uid not in volume.actual.mounts else volume.actual.label
        return self._labels.of(pod, spec, kind, self._tracked.label(name, but=uid), has=has)


def _shows_the_same(one: Pod, other: Pod) -> bool:
    """Whether volumes that show fields of the pod show the same of both."""
    old, new = one.metadata, other.metadata
    return old.labels == new.labels and old.annotations == new.annotations and one.spec == other.spec
