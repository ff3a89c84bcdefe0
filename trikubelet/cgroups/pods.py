"""The groups of pods: made before the sandbox, gone after the pod, and the groups of their classes that follow.

Three things are written at three times. A pod's group is made when a pod is synced that has none. The groups of the
classes follow the sum of what their pods request: before a pod's group is made, and soon after pods went or were
resized; they are written only where a number changed. What an earlier life of the agent left is found by name and
removed like any other.

Nothing here is kept that the file system says: whether a group is there is asked each time.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api import QOS_BEST_EFFORT, QOS_BURSTABLE, QOS_GUARANTEED
from trikubelet.broadcast import Broadcast
from trikubelet.cgroups.errors import CgroupError, CgroupNameError, MemoryInUseError
from trikubelet.cgroups.names import names_of_uid, pod_name, tier_name, tier_names, uid_of
from trikubelet.cgroups.ownership import Ownership
from trikubelet.cgroups.settings import (
    MIN_SHARES,
    CgroupOptions,
    CgroupReading,
    CgroupSettings,
    PodDemand,
    cpu_weight,
    pod_demand,
    pod_settings,
    shares_of_weight,
    tier_settings,
)
from trikubelet.formats.values import define, frozen
from trikubelet.telemetry.logs import get_logger
from trikubelet.telemetry.metrics import Histograms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from trikubelet.api import Pod
    from trikubelet.cgroups.interface import CgroupDriver
    from trikubelet.cgroups.names import CgroupName

RETRY: Final = 60.0
"""Seconds until groups of classes that could not be written are tried again."""

CREATE: Final = ("create",)
UPDATE: Final = ("update",)
DESTROY: Final = ("destroy",)
OPERATIONS: Final = (CREATE, UPDATE, DESTROY)

log = get_logger("cgroups")


@define
class CgroupStatistics:
    """What was done since the start."""

    made: int = 0
    removed: int = 0
    tier_updates: int = 0
    """Writes of one group of a class."""
    tier_failures: int = 0


class PodCgroupManager:
    """`interface.PodCgroups` on a driver. `start` it, then let `run` follow the pods."""

    def __init__(
        self,
        driver: CgroupDriver,
        root: CgroupName,
        options: CgroupOptions,
        *,
        active_pods: Callable[[], Iterable[Pod]],
        allocatable_memory: Callable[[], int | None] = lambda: None,
        durations: Histograms | None = None,
        ownership: Ownership = Ownership(),  # noqa: B008 - frozen
        earlier_root: CgroupName | None = None,
    ) -> None:
        """`root`: the group of all pods. `active_pods`: those that count, as allocated. `allocatable_memory`: in bytes,
        what the node gives to pods. `durations` are added to: by `OPERATIONS`. `ownership` tells the agent's groups
        from those of others. `earlier_root`: the group where an older version made the pods that `ownership` names;
        they stay there until they end."""
        self._driver = driver
        self._root = root
        self._options = options
        self._active_pods = active_pods
        self._allocatable_memory = allocatable_memory
        self._durations = Histograms() if durations is None else durations
        self._written: dict[str, CgroupSettings] = {}
        self._demands: dict[str, tuple[Pod, PodDemand]] = {}
        self._tiers = trio.Lock()
        self._changed: Broadcast[None] = Broadcast()
        self._changes = self._changed.subscribe()
        self._behind = False
        """The groups of the classes do not follow a change yet."""
        self._ownership = ownership
        self._earlier_root = earlier_root
        self._earlier: dict[str, CgroupName] = {}
        """Groups below `earlier_root` that are the agent's, by uid."""
        self._made: set[str] = set()
        """UIDs of pods whose groups this agent made: theirs may carry no mark where the kernel takes none."""
        self._busy: dict[str, trio.Event] = {}
        """UIDs of pods whose groups are being made or removed."""
        self._statistics = CgroupStatistics()

    @property
    def root(self) -> CgroupName:
        return self._root

    def statistics(self) -> CgroupStatistics:
        return attrs.evolve(self._statistics)

    def protected_memory(self) -> tuple[int, int] | None:
        """Bytes that the kernel keeps for Guaranteed pods, and those that it tries to keep for Burstable ones; None
        where it is asked for nothing (`setMemoryQoS`)."""
        tiers = self._tiers_of_demands()
        try:
            both = int(tiers[QOS_GUARANTEED].unified["memory.min"])
            burstable = int(tiers[QOS_BURSTABLE].unified["memory.low"])
        except KeyError:
            return None
        return both - burstable, burstable

    async def start(self) -> None:
        """Make the groups of the classes below the group of all pods, which is there. Raises CgroupError.

        The groups of an older version's pods are found before.
        """
        if self._earlier_root is not None:
            self._earlier = await self._own_below(self._earlier_root)
        wanted = self._wanted()
        for quality in (QOS_BURSTABLE, QOS_BEST_EFFORT):
            name = tier_name(self._root, quality)
            if await self._driver.exists(name):
                await self._driver.update(name, wanted[quality])
            else:
                await self._driver.create(name, wanted[quality])
            self._written[quality] = wanted[quality]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Let the groups of the classes follow the pods; until cancelled."""
        task_status.started()
        while True:
            if not self._behind:
                await self._changes.receive()
            self._behind = True
            while not await self._follow():
                with trio.move_on_after(RETRY):
                    await self._changes.receive()
            self._behind = False

    def pods_changed(self) -> None:
        self._changed.send(None)

    async def verify_tiers(self) -> None:
        """Read the groups of the classes back and write them anew where somebody else changed them."""
        async with self._tiers:
            for quality, name in tier_names(self._root).items():
                written = self._written.get(quality)
                if written is not None and not _agrees(await self._driver.read(name), written, self._driver.version):
                    del self._written[quality]
        await self._follow()

    def parent_of(self, pod: Pod) -> str:
        return self._driver.literal(self._name(pod))

    def _name(self, pod: Pod) -> CgroupName:
        return self._earlier.get(pod.metadata.uid) or pod_name(self._root, pod)

    async def exists(self, pod: Pod) -> bool:
        return await self._driver.exists(self._name(pod))

    async def ensure(self, pod: Pod) -> bool:
        """Cancelled or failed, it may leave a group that the next call finds, or `release` removes."""
        async with self._alone(pod.metadata.uid):
            return await self._ensure(pod, self._name(pod))

    async def _ensure(self, pod: Pod, name: CgroupName) -> bool:
        counted = self._demands.get(pod.metadata.uid)
        if counted is None or counted[0] is not pod:
            await self._follow(also=pod)
        else:
            async with self._tiers:
                pass  # the groups of the classes follow from this pod, or are about to
        began = trio.current_time()
        self._made.add(pod.metadata.uid)
        made = await self._driver.make(name, pod_settings(pod, self._options), self._ownership.mark)
        if made:
            self._durations.observe(CREATE, trio.current_time() - began)
        self._statistics.made += made
        return made

    async def read(self, pod: Pod) -> CgroupReading | None:
        try:
            return await self._driver.read(self._name(pod))
        except CgroupError as error:
            if error.missing:
                return None
            raise

    async def set(self, pod: Pod, settings: CgroupSettings) -> None:
        await self._update(self._name(pod), settings)

    async def release(self, uid: str) -> None:
        """The pod's class may not be known any more, so all its places are searched."""
        try:
            names = names_of_uid(self._root, uid)
        except CgroupNameError:
            return  # so none was ever made
        began = trio.current_time()
        try:
            async with self._alone(uid):
                if uid in self._earlier:
                    names.append(self._earlier[uid])
                for name, marks in (await self._driver.marks(names)).items():
                    if self._owns(marks, uid):
                        await self._driver.kill(name)
                        await self._driver.remove(name)
                self._earlier.pop(uid, None)
                self._made.discard(uid)
        finally:
            self.pods_changed()
        self._statistics.removed += 1
        self._durations.observe(DESTROY, trio.current_time() - began)

    @asynccontextmanager
    async def _alone(self, uid: str) -> AsyncIterator[None]:
        """A static pod's UID may come back while what was left of it is still being removed."""
        while (busy := self._busy.get(uid)) is not None:
            await busy.wait()
        self._busy[uid] = trio.Event()
        try:
            yield
        finally:
            self._busy.pop(uid).set()

    async def found(self) -> dict[str, CgroupName]:
        return {**self._earlier, **await self._own_below(self._root)}

    async def _own_below(self, root: CgroupName) -> dict[str, CgroupName]:
        """The groups of this agent's pods below a group of all pods, by uid."""
        uids: dict[CgroupName, str] = {}
        for tier in tier_names(root).values():
            for name in await self._driver.children(tier):
                uid = uid_of(name, root)
                if uid is not None:
                    uids[name] = uid
        marks = await self._driver.marks(tuple(uids))
        return {uid: name for name, uid in uids.items() if name in marks and self._owns(marks[name], uid)}

    def _owns(self, marks: frozenset[str], uid: str) -> bool:
        return self._ownership.owns(marks, uid) or (not marks and uid in self._made)

    async def throttle(self, uid: str) -> None:
        name = (await self.found()).get(uid)
        if name is not None:
            await self._driver.update(name, CgroupSettings(cpu_shares=MIN_SHARES))

    def _wanted_with(self, pod: Pod) -> dict[str, CgroupSettings]:
        """With one more pod: a new pod does not wait until all others have been read again."""
        self._demands[pod.metadata.uid] = pod, pod_demand(pod)
        return self._tiers_of_demands()

    def _wanted(self) -> dict[str, CgroupSettings]:
        """A pod's requests are summed once for each pod object, not for each pod that comes or goes."""
        known: dict[str, tuple[Pod, PodDemand]] = {}
        for pod in self._active_pods():
            before = self._demands.get(pod.metadata.uid)
            known[pod.metadata.uid] = before if before is not None and before[0] is pod else (pod, pod_demand(pod))
        self._demands = known
        return self._tiers_of_demands()

    def _tiers_of_demands(self) -> dict[str, CgroupSettings]:
        demands = (demand for _, demand in self._demands.values())
        return tier_settings(demands, self._options, allocatable_memory=self._allocatable_memory())

    async def _follow(self, *, also: Pod | None = None) -> bool:
        """Write what changed. False: something could not be written; that is logged, pods start all the same."""
        async with self._tiers:
            good = True
            wanted = self._wanted() if also is None else self._wanted_with(also)
            for quality, settings in wanted.items():
                if settings == self._written.get(quality, CgroupSettings()):
                    continue
                try:
                    good = await self._write_tier(quality, settings) and good
                except CgroupError as error:
                    self._statistics.tier_failures += 1
                    log.warning("Failed to update QoS cgroup configuration", qos=quality, problem=str(error))
                    good = False
            return good

    async def _write_tier(self, quality: str, settings: CgroupSettings) -> bool:
        """False: less than what was wanted could be written."""
        name = tier_name(self._root, quality)
        self._statistics.tier_updates += 1
        self._written.pop(quality, None)
        try:
            await self._update(name, settings)
        except MemoryInUseError as error:
            # More is in use than higher classes leave: keep it from growing until it shrinks.
            usage = (await self._driver.read(name)).memory_usage or error.limit
            await self._update(name, attrs.evolve(settings, memory=max(usage, error.limit)))
            return False
        self._written[quality] = settings
        return True

    async def _update(self, name: CgroupName, settings: CgroupSettings) -> None:
        began = trio.current_time()
        await self._driver.update(name, settings)
        self._durations.observe(UPDATE, trio.current_time() - began)


def _agrees(reading: CgroupReading, written: CgroupSettings, version: int) -> bool:
    """Whether a group still says what was written. Shares come back from a weight with less precision."""
    if written.cpu_shares and reading.cpu_shares is not None:
        expected = shares_of_weight(cpu_weight(written.cpu_shares)) if version == 2 else written.cpu_shares
        if reading.cpu_shares != expected:
            return False
    return not written.memory or reading.memory_limit is None or reading.memory_limit == written.memory


@frozen
class NoPodCgroups:
    """No groups: `cgroupsPerQOS` is false, or this agent may not write them. Pods run where the runtime puts them."""

    def parent_of(self, pod: Pod) -> str:
        return ""

    async def exists(self, pod: Pod) -> bool:
        return True

    async def ensure(self, pod: Pod) -> bool:
        return False

    async def read(self, pod: Pod) -> CgroupReading | None:
        return None

    async def set(self, pod: Pod, settings: CgroupSettings) -> None:
        pass

    async def release(self, uid: str) -> None:
        pass

    async def found(self) -> dict[str, CgroupName]:
        return {}

    async def throttle(self, uid: str) -> None:
        pass

    def pods_changed(self) -> None:
        pass
