"""The owner of pods' volumes: makes those that are wanted be there, and takes down those of pods that have ended.

The story of a volume: a pod worker has `prepare` find out what the pod wants (`desired`, `desired_state`), which is
written into the state of the volume (`tracked_volumes`). From there on each volume goes its own way: `decisions` says
what comes next, `runner` has `operations` do it and records the outcome, until there is nothing to do. When the pod has
ended, `release` removes what it wanted, and the same decisions take down what it had. After a restart the actual state
is read from the disk (`reconstruct`).

Nothing here looks again after a while whether something has changed. A volume is looked at when a pod wants something
else of it, when an operation on it has ended, when an object that it shows changed, when the node's status or a driver
changed, and at the time that a backoff or a renewal was set for.
"""

from __future__ import annotations

import errno
import math
import os
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.broadcast import Broadcast
from trikubelet.supervision import contain, follow, supervise
from trikubelet.volumes import layout, messages
from trikubelet.volumes.decisions import Action, Operation
from trikubelet.volumes.desired import asks_api_server, wanted_names
from trikubelet.volumes.desired_state import DesiredStateOfWorld, PodRecord
from trikubelet.volumes.errors import AttachLimitError, PodFoldersError, VolumeError, VolumesNotReadyError
from trikubelet.volumes.expander import Expander
from trikubelet.volumes.operations import Operations
from trikubelet.volumes.reconstruct import reconstruct
from trikubelet.volumes.removal import OWN_CONTENT, remove_pod_folder
from trikubelet.volumes.runner import Runner
from trikubelet.volumes.sources import EMPTY_DIR, HOST_PATH
from trikubelet.volumes.stats import UsageRecords
from trikubelet.volumes.subpath import bind_subpath, clean_subpaths
from trikubelet.volumes.tracked_volumes import TrackedVolumes
from trikubelet.volumes.waits import volume_waits

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path
    from random import Random

    from trio_typing import TaskStatus

    from trikubelet.api import Pod
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.volume_objects import PodCredentials, StorageObjects, WatchedObjects
    from trikubelet.linux.mounter import Mounter
    from trikubelet.telemetry.events import EventRecorder
    from trikubelet.telemetry.metrics import Histograms
    from trikubelet.volumes.attaching import Attaching
    from trikubelet.volumes.disk import Disk
    from trikubelet.volumes.kinds.protocol import Kinds
    from trikubelet.volumes.model import MountedVolume, VolumeUsage
    from trikubelet.volumes.mount_labels import MountLabels
    from trikubelet.volumes.waits import VolumeWait

WAIT: Final = 123.0
"""Seconds that a pod's sync waits for volumes to be there, or gone. Odd, so that it is recognised (kubelet:
`podAttachAndMountTimeout`)."""
FRESH: Final = 10.0
"""Seconds in which a pod that is synced again, and has not changed, finds its volumes new enough."""
_QUICK: Final = frozenset({EMPTY_DIR, HOST_PATH})
"""Kinds whose volumes are set up by a few calls: not worth a task of their own."""


class VolumeManager:
    """Implements `interface.PodVolumes`. Nothing else sets up or takes down volumes, or removes pods' folders.

    `containers_gone` tells by a pod's UID that no container of it runs, or will (`should_pod_runtime_be_removed`): it
    is asked before anything is taken down. `usage_period`: seconds, zero for never (`volumeStatsAggPeriod`).
    """

    def __init__(
        self,
        *,
        root: Path,
        kinds: Kinds,
        mounter: Mounter,
        disk: Disk,
        objects: WatchedObjects,
        storage: StorageObjects,
        credentials: PodCredentials,
        attaching: Attaching,
        recorder: EventRecorder,
        clock: WallClock,
        rng: Random,
        containers_gone: Callable[[str], bool],
        labels: MountLabels,
        usage_period: float = 60.0,
    ) -> None:
        self._root = root
        self._kinds = kinds
        self._mounter = mounter
        self._disk = disk
        self._objects = objects
        self._storage = storage
        self._credentials = credentials
        self._attaching = attaching
        self._containers_gone = containers_gone
        operations = Operations(
            kinds=kinds,
            expander=Expander(storage, recorder, clock),
            attaching=attaching,
            recorder=recorder,
            clock=clock,
            rng=rng,
            clean_subpaths=self._clean_subpaths,
        )
        self._tracked = TrackedVolumes()
        self.labels = labels
        """What became of SELinux labels: only to be read."""
        self._desired = DesiredStateOfWorld(self._tracked, kinds, storage, labels)
        self._runner = Runner(
            self._tracked, operations, on_end=self._operation_ended, may_unstage=lambda: self._compared
        )
        self._usage = UsageRecords(self._measure, self._desired.all_mounted, period=usage_period, rng=rng)
        self.reconstructed = self.not_understood = 0
        """Pods' volumes that an earlier agent left, and the unknown ones among them."""
        self._releases: dict[str, Broadcast[None]] = {}
        """By UID, while a release waits: changes of the pod's volumes."""
        self._removals: dict[str, trio.Event] = {}
        """By UID: the end of a release."""
        self.pod_changes: Broadcast[str] = Broadcast()
        """As `PodVolumes.pod_changes`: only of pods without a call of `prepare` in progress."""
        self.in_use_changes: Broadcast[None] = Broadcast()
        """`in_use` has changed: pods wait until the API server has that."""
        self._reported_in_use: tuple[str, ...] = ()
        self._resolve, self._to_resolve = trio.open_memory_channel[PodRecord](math.inf)
        self._started = trio.Event()
        self._compared = False
        """What an earlier agent left was compared with the node's status."""

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when what is on disk is known. Cancelled, operations are left where they are; the next agent finds
        them on disk. Raises OSError when the root folder cannot be read."""
        found = await reconstruct(self._root, self._kinds, self._disk)
        self.reconstructed = sum(bool(one.uid) for one in found)
        self.not_understood = sum(not one.understood for one in found)
        self._tracked.adopt(found, labelled=self.labels.selinux)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, self._objects.changes.subscribe(), self._object_changed)
            nursery.start_soon(follow, self._credentials.changes(), self._credentials_changed)
            nursery.start_soon(follow, self._storage.csi_driver_changes.subscribe(), self.driver_changed)
            nursery.start_soon(follow, self._storage.attached_changes.subscribe(), self._attached_changed)
            nursery.start_soon(self._runner.run)
            nursery.start_soon(supervise, self._usage.run)
            self._started.set()
            self._attached_changed(None)
            task_status.started()
            await supervise(self._begin_to_resolve, nursery)

    async def _begin_to_resolve(self, nursery: trio.Nursery) -> None:
        async for record in self._to_resolve:
            nursery.start_soon(contain, self._resolve_again, record)

    def of_pod(self, uid: str, nursery: trio.Nursery) -> AbstractContextManager[None]:
        """As `PodVolumes.of_pod`."""
        return self._runner.of_pod(uid, nursery)

    async def prepare(self, pod: Pod) -> None:
        """As `PodVolumes.prepare`; raises AttachLimitError for a pod that the node has no room for."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._desired.are_there(pod):
            self.refresh(pod)
            return
        with trio.move_on_after(WAIT):
            await self._started.wait()
            await self._removed(pod.metadata.uid)
            self._make_folders(pod)
            record = self._desired.update_pod(pod)
            record.waiting += 1
            try:
                await self._make_ready(record)
            finally:
                record.waiting -= 1
            return
        raise await self._too_late(pod)

    def refresh(self, pod: Pod) -> None:
        """As `PodVolumes.refresh`."""
        if self._desired.get(pod.metadata.uid) is None:
            return
        record = self._desired.update_pod(pod)
        self._ask_refresh(record)
        self._runner.start_next(record.unique_names)
        old = trio.current_time() - record.resolved_at >= FRESH
        if old and not record.resolving and not record.waiting and asks_api_server(pod):
            record.resolving = True
            self._resolve.send_nowait(record)

    async def release(self, uid: str) -> None:
        """As `PodVolumes.release`. When it is cancelled, or took too long, taking down goes on."""
        await trio.lowlevel.checkpoint()
        await self._removed(uid)
        try:
            folder = layout.pod_directory(self._root, uid)
        except ValueError:
            return  # `prepare` refused it
        if self._desired.get(uid) is None and not self._tracked.names_of(uid) and not folder.exists():
            return
        if not self._containers_gone(uid):
            raise VolumeError("*", "expected that the pod's containers have ended: its volumes are not touched")
        done = self._removals[uid] = trio.Event()
        try:
            await self._take_down(uid)
            remove = partial(remove_pod_folder, folder, self._mounter, trio.from_thread.check_cancelled)
            await self._disk.run(remove)
            self._credentials.forget(uid)
        finally:
            del self._removals[uid]
            done.set()

    async def remove(self, uid: str) -> None:
        """As `PodVolumes.remove`: what the disk tells is known since `run` has started."""
        await self.release(uid)

    async def pod_uids(self) -> set[str]:
        """As `PodVolumes.pod_uids`."""
        await trio.lowlevel.checkpoint()
        try:
            with os.scandir(layout.pods_directory(self._root)) as entries:
                return {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        except FileNotFoundError:
            return set()

    def waits(self, uid: str) -> tuple[VolumeWait, ...]:
        """As `PodVolumes.waits`."""
        return volume_waits(uid, self._desired, self._tracked)

    def mounted(self, pod: Pod, volume_name: str) -> MountedVolume | None:
        """As `PodVolumes.mounted`."""
        record = self._desired.get(pod.metadata.uid)
        return None if record is None else self._desired.mounted(record, volume_name)

    def host_path(self, pod: Pod, volume_name: str) -> Path | None:
        """As `PodVolumes.host_path`."""
        mounted = self.mounted(pod, volume_name)
        return None if mounted is None else mounted.path

    async def bind_subpath(self, pod: Pod, container: str, index: int, volume_name: str, sub_path: str) -> Path:
        """As `PodVolumes.bind_subpath`."""
        mounted = self.mounted(pod, volume_name)
        if mounted is None or mounted.path is None:
            raise FileNotFoundError(errno.ENOENT, "the volume is not mounted", volume_name)
        uid, path = pod.metadata.uid, mounted.path
        target = layout.subpath_target(self._root, uid, mounted.spec.inner_name, container, index)
        bind = partial(bind_subpath, self._mounter, path, sub_path, target)
        own = layout.folder_of_plugin(mounted.spec.plugin) in OWN_CONTENT
        try:
            return await (self._disk.run(bind) if own else self._disk.run_foreign(path, bind))
        except trio.TooSlowError:
            raise TimeoutError(errno.ETIMEDOUT, "the volume's file system does not answer", volume_name) from None

    def supplemental_groups(self, pod: Pod) -> tuple[int, ...]:
        """As `PodVolumes.supplemental_groups`: without those that the pod has anyway."""
        mounted = self._desired.all_mounted_of(pod.metadata.uid).values()
        security = pod.spec.security_context
        own = () if security is None else security.supplemental_groups
        groups = {_group(volume.spec.group) for volume in mounted}
        return tuple(sorted(group for group in groups if group is not None and group not in own))

    def in_use(self) -> tuple[str, ...] | None:
        """As `PodVolumes.in_use`."""
        return self._tracked.in_use() if self._compared else None

    def reported_in_use(self, names: tuple[str, ...]) -> None:
        """The API server has been told that the node uses these."""
        self._attaching.reported_in_use(names)

    async def usage(self, uid: str) -> Mapping[str, VolumeUsage]:
        """As `PodVolumes.usage`."""
        await trio.lowlevel.checkpoint()
        return self._usage.of(uid)

    @property
    def measured(self) -> Broadcast[str]:
        """UIDs of pods whose volumes were measured: see `usage`."""
        return self._usage.measured

    @property
    def durations(self) -> Histograms:
        """Seconds of operations, by plugin, operation and how it ended."""
        return self._runner.durations

    def count_by_plugin(self) -> tuple[Counter[str], Counter[str]]:
        """By plugin: volumes that are there for pods, and volumes that pods want."""
        return self._tracked.count_by_plugin()

    def usage_of_claims(self) -> Mapping[tuple[str, str], VolumeUsage]:
        """By namespace and name of the claim, as last measured for one of the pods that have it."""
        found: dict[tuple[str, str], VolumeUsage] = {}
        for uid, volumes in self._desired.all_mounted().items():
            measured = self._usage.of(uid)
            for name, volume in volumes.items():
                claim, usage = volume.spec.claim, measured.get(name)
                if claim is not None and usage is not None:
                    found.setdefault((claim.metadata.namespace, claim.metadata.name), usage)
        return found

    def driver_changed(self, driver: str) -> None:
        """A driver, or the object that describes it, came, changed or went."""
        self._runner.try_again(self._desired.update_driver(driver))
        self._resolve_problems()

    def statistics(self) -> Mapping[str, int]:
        """What a debugger wants to see."""
        return {**self._tracked.statistics(), "pods": len(self._desired.all()), "removals": len(self._removals)}

    def _resolve_problems(self) -> None:
        """Pods may get now what could not be found out, or not be had beside another pod."""
        for record in self._desired.all():
            if record.problems and not record.waiting:
                self.pod_changes.send(record.uid)

    def _make_folders(self, pod: Pod) -> None:
        try:
            for folder in ("volumes", "plugins", "containers"):
                path = layout.pod_directory(self._root, pod.metadata.uid) / folder
                path.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise PodFoldersError((), cause=str(error), timed_out=False) from error

    async def _make_ready(self, record: PodRecord) -> None:
        """Raises VolumesNotReadyError at once for unknown volumes."""
        await self._desired.resolve(record)
        if self._desired.unattached(record):
            self._report_use()
        self._ask_refresh(record)
        await self._start(record)
        while self._desired.get(record.uid) is record:
            if self._desired.is_ready(record):
                return
            if record.problems:
                raise self._desired.not_ready(record, record.problems.values())
            await record.changed.wait()
        raise messages.not_ready(record.expected, (), (), ["the pod is being removed"])

    async def _start(self, record: PodRecord) -> None:
        """Begin work on all of the pod's volumes: what is quickly done, in the caller's task."""
        quick = {name for volume, name in record.names.items() if self._is_quick(record, name)}
        self._runner.start_next(record.unique_names - quick)
        for name in sorted(quick):
            await self._runner.do_now(name)

    def _is_quick(self, record: PodRecord, name: str) -> bool:
        volume = self._tracked.get(name)
        wanted = None if volume is None else volume.wanted.get(record.uid)
        return wanted is not None and wanted.spec.plugin in _QUICK

    def _ask_refresh(self, record: PodRecord) -> None:
        old = max(trio.current_time() - FRESH, record.stale_since)
        for name in record.unique_names:
            self._desired.ask_refresh(name, record.uid, older_than=old, pod=record.pod)

    async def _resolve_again(self, record: PodRecord) -> None:
        """For a pod that has its volumes: they may have grown. What goes wrong does not matter to it."""
        try:
            with trio.move_on_after(WAIT):
                await self._desired.resolve(record)
        finally:
            record.resolving = False
        self._runner.start_next(record.unique_names)

    async def _too_late(self, pod: Pod) -> VolumesNotReadyError:
        """The time is over: what is missing, and can it come?"""
        record = self._desired.get(pod.metadata.uid)
        if record is None:
            names = wanted_names(pod)
            return messages.not_ready(names, (), names, ())
        error = self._desired.not_ready(record)
        with trio.move_on_after(FRESH):
            for spec in self._desired.unattached(record).values():
                if await self._attaching.exhausted(spec):
                    return AttachLimitError(
                        error.unmounted, error.unattached, error.unprocessed, cause=error.cause, timed_out=True
                    )
        return error

    async def _removed(self, uid: str) -> None:
        """Wait for the end of a removal: another pod may have come with the same UID."""
        while uid in self._removals:
            await self._removals[uid].wait()

    async def _take_down(self, uid: str) -> None:
        """Raises VolumeError when something is still there after two minutes."""
        with trio.move_on_after(WAIT):
            await self._started.wait()
        names = left = self._tracked.release(uid)
        self._desired.forget(uid)
        self._runner.cancel_useless(names)
        self._runner.start_next(names)
        self._resolve_problems()
        changes = self._releases[uid] = Broadcast()
        try:
            with trio.move_on_after(WAIT):
                while left := self._left(names, uid):
                    await changes.wait()
        finally:
            del self._releases[uid]
            if not left:
                self._tracked.forget(uid, names)
            if not names.isdisjoint(self._reported_in_use):
                self._report_use()
        if left:
            raise VolumeError("*", messages.still_mounted(left, self._tracked.problems(left) or messages.TIMED_OUT))

    def _left(self, names: Iterable[str], uid: str) -> frozenset[str]:
        return frozenset(name for name in names if self._tracked.is_left(name, uid, may_unstage=self._compared))

    async def _clean_subpaths(self, uid: str, inner_name: str) -> None:
        try:
            folder = layout.subpaths_directory(self._root, uid)
            if folder.exists():
                await self._disk.run(partial(clean_subpaths, self._mounter, folder, inner_name))
        except (OSError, ValueError) as error:
            raise VolumeError(inner_name, f"error cleaning subPath mounts: {error}") from error

    def _report_use(self) -> None:
        """Have the API server told which volumes are in use now, if that is news."""
        used = self.in_use()
        if used is not None and used != self._reported_in_use:
            self._reported_in_use = used
            self.in_use_changes.send(None)

    def _operation_ended(self, operation: Operation, uids: frozenset[str]) -> None:
        if operation.name in self._reported_in_use:
            self._report_use()
        for uid in uids:
            if (release := self._releases.get(uid)) is not None:
                release.send(None)
            record = self._desired.get(uid)
            if record is not None:
                record.changed.send(None)
                if operation.action is Action.SET_UP and not record.waiting and self._desired.is_ready(record):
                    self.pod_changes.send(uid)

    def _object_changed(self, key: tuple[str, str, str]) -> None:
        self._show_again(self._tracked.referrers(key))

    def _credentials_changed(self, uid: str) -> None:
        self._show_again(self._tracked.with_credentials(uid))

    def _show_again(self, volumes: tuple[tuple[str, str], ...]) -> None:
        """What volumes show has changed: by the pod's UID and the unique name."""
        for uid, name in volumes:
            self._desired.ask_refresh(name, uid, older_than=trio.current_time())
        self._runner.try_again(name for _, name in volumes)

    def _attached_changed(self, _: None) -> None:
        """The node's status tells something else of attached volumes, or tells it for the first time."""
        attached = self._storage.attached()
        if not self._compared and (attached is not None or not self._tracked.has_inherited_staging):
            self._compared = True
            self._tracked.compare(attached or {})
            self._report_use()
            self._runner.start_next(self._tracked.names())
        elif attached is not None:
            self._tracked.forget_detached(attached)

    async def _measure(self, mounted: MountedVolume) -> VolumeUsage | None:
        return await self._kinds.find(mounted.spec).usage(mounted)


def _group(text: str) -> int | None:
    """A group id as Go reads one; None for what is none."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    return int(text) if digits.isascii() and digits.isdigit() else None
