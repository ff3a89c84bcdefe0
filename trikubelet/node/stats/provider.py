"""Collects statistics on demand, once for all requests at the same time.

The kubelet measures in the background (cAdvisor, every ten seconds or so, whether anybody looks) and answers from
that. Here nothing is measured unless somebody asks, so a node without monitoring pays nothing; what is asked for is
never older than `FRESH_FOR`. Only rates need the past, and those come from the requests before (`rates.py`): the
first one after a long silence gets none.

A collection of processors, memory and swap (`/metrics/resource`, every fifteen seconds in a cluster with
metrics-server) asks the runtime only for its lists, which are mostly known already. The runtime's own statistics,
which cost it some work for each container, are asked for when the full picture is, or when containers have no cgroup
here.

A runtime that does not answer takes away its part only. Containers that it listed lately are still measured, if they
are still there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from trikubelet.api import Pod
from trikubelet.formats.values import frozen
from trikubelet.node.stats.choice import MeasuredPod, measured_pods
from trikubelet.node.stats.compose import Facts, ImageFileSystem
from trikubelet.node.stats.exposition import text_of
from trikubelet.node.stats.log_metrics import log_families
from trikubelet.node.stats.machine_info import MachineInfo
from trikubelet.node.stats.measure import Measured
from trikubelet.node.stats.model import Summary, VolumeStats
from trikubelet.node.stats.rates import RateBook
from trikubelet.node.stats.reading import Answers, read_all, read_node
from trikubelet.node.stats.resource_metrics import resource_families
from trikubelet.node.stats.storage import pod_volume_stats
from trikubelet.node.stats.wire import summary_json
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.model import VolumeUsage

if TYPE_CHECKING:
    from collections.abc import Collection as AnyOf

    from trikubelet.clock import WallClock
    from trikubelet.node.stats.measure import Meter
    from trikubelet.rpc.cri import v1
    from trikubelet.telemetry.families import Family

    _Reader = Callable[["Answers", Facts, Meter, RateBook, int], tuple[Facts, Measured, Summary]]

T = TypeVar("T")

log = get_logger("stats")

FRESH_FOR: Final = 1.0
"""Seconds for which a collection answers further requests."""
RUNTIME_TIMEOUT: Final = 5.0
"""Seconds that the runtime has for its part; metrics-server gives up on a node after ten."""
FILES_TIMEOUT: Final = 10.0
"""Seconds for the files: a disk may hang."""
IMAGE_PLACES_KEPT: Final = 60.0
"""Seconds for which images are taken to be where they were, for questions about the node alone."""
LISTS_KEPT: Final = 300.0
"""Seconds for which a runtime's lists are used when it gives no newer ones."""


@frozen
class StatsView:
    """What statistics need to know of the agent."""

    node_name: str
    pods: Callable[[], Sequence[Pod]]
    """The pods of this node, with the UIDs that their sandboxes have."""
    volume_usage: Callable[[str], Awaitable[Mapping[str, VolumeUsage]]]
    """As `PodVolumes.usage`."""


class StatsRuntime(Protocol):
    """What statistics ask a runtime: implemented by `RuntimeClient`. All raise CRIError."""

    async def list_containers(self) -> list[v1.Container]: ...

    async def list_pod_sandboxes(self) -> list[v1.PodSandbox]: ...

    async def list_container_stats_data(self) -> bytes: ...

    async def list_pod_sandbox_stats_data(self) -> bytes: ...


class StatsImages(Protocol):
    """Implemented by `ImageClient`. Raises CRIError."""

    async def image_fs_info(self) -> v1.ImageFsInfoResponse: ...


@frozen
class StatsTimeoutError(Exception):
    """The node's files could not be read in time."""

    seconds: float

    def __str__(self) -> str:
        return (
            f"expected to read cgroups, logs and file systems within {self.seconds:g} s, could not: "
            "look whether a disk of this node hangs"
        )


@frozen(kw_only=True)
class Collection:
    """All that one collection found."""

    summary: Summary
    facts: Facts
    measured: Measured
    full: bool
    made_at: float
    """Trio time of its begin."""


class StatsProvider:
    """Measures on demand. All methods may be called by any number of tasks at once.

    They raise StatsTimeoutError. When one is cancelled, other callers of the same collection begin it anew; a thread
    that reads is left to its end.
    """

    def __init__(
        self,
        view: StatsView,
        runtime: StatsRuntime,
        images: StatsImages,
        meter: Meter,
        *,
        clock: WallClock,
        machine: MachineInfo | None = None,
        prefer_runtime: bool = False,
    ) -> None:
        """`prefer_runtime`: believe the runtime before cgroups (the gate PodAndContainerStatsFromCRI)."""
        self._view = view
        self._runtime = runtime
        self._images = images
        self._meter = meter
        self._clock = clock
        self._machine = machine or MachineInfo()
        self._prefer_runtime = prefer_runtime
        self._started = self._now()
        self._rates = RateBook()
        self._collecting = trio.Lock()
        self._reading = trio.CapacityLimiter(1)
        self._latest: Collection | None = None
        self._lists: tuple[float, tuple[MeasuredPod, ...]] | None = None
        """The pods of the last complete lists, and when those came."""
        self._image_places: tuple[float, v1.ImageFsInfoResponse] | None = None
        """What the runtime said last, and when."""
        self._runtime_needed = prefer_runtime
        """Containers have no cgroup here."""
        self._sandbox_stats_known = True

    async def summary(self, only_cpu_and_memory: bool = False) -> Summary:
        """The summary (`/stats/summary`)."""
        return (await self.collect(full=not only_cpu_and_memory)).summary

    async def summary_json(self, only_cpu_and_memory: bool = False) -> bytes:
        """The same as the kubelet's JSON."""
        summary = await self.summary(only_cpu_and_memory)
        return await self._in_thread(lambda: summary_json(summary))

    async def resource_samples(self) -> list[Family]:
        """What `/metrics/resource` shows. Where nothing can be measured it shows that."""
        try:
            return resource_families((await self.collect(full=False)).summary)
        except StatsTimeoutError as error:
            log.warning("resources cannot be measured", problem=str(error))
            return resource_families(None)

    async def resource_text(self) -> bytes:
        """The same as text (`TextFormat.TEXT`)."""
        families = await self.resource_samples()
        return await self._in_thread(lambda: text_of(families))

    async def cadvisor_text(self) -> bytes:
        """What `/metrics/cadvisor` shows, as text."""
        collection = await self.collect(full=True)
        return await self._in_thread(lambda: text_of(self._cadvisor(collection)))

    async def log_samples(self) -> list[Family]:
        """What `/metrics` shows of containers' logs."""
        return log_families(await self.summary())

    async def collect(self, *, full: bool) -> Collection:
        """A collection that is fresh. `full`: everything, else processors, memory and swap."""
        async with self._collecting:
            latest = self._latest
            if latest is not None and latest.full >= full and trio.current_time() - latest.made_at < FRESH_FOR:
                return latest
            collection = self._latest = await self._collect(full=full)
        if collection.summary.problems:
            log.warning("statistics are incomplete", problems=collection.summary.problems)
        return collection

    async def collect_node(self, uids: AnyOf[str] = ()) -> Collection:
        """The node, and of it what it may run out of, as it is now: a few files, for frequent callers. Of the pods with
        these UIDs what they have on its disk.

        A runtime that does not answer has not moved its images.
        """
        made_at, answers, known = trio.current_time(), Answers(), self._image_places
        questions: dict[str, Callable[[Answers], Awaitable[None]]] = {}
        if known is None or made_at - known[0] >= IMAGE_PLACES_KEPT:
            questions["image file system"] = self._ask_images
        if uids:
            volumes = partial(self._ask_volumes, uids=uids)
            questions |= {"lists": self._ask_lists, "statistics": self._ask_stats, "volumes": volumes}
        await self._ask_all(answers, questions)
        answers.pods = tuple(pod for pod in self._listed(answers) if pod.uid in uids)
        answers.images = None if self._image_places is None else self._image_places[1]
        return await self._read(answers, read_node, full=False, made_at=made_at)

    async def volumes_of(self, pod: Pod) -> tuple[VolumeStats, ...]:
        """What a pod's volumes hold, as last measured."""
        found = pod_volume_stats(pod, await self._view.volume_usage(pod.metadata.uid))
        return found.ephemeral + found.persistent

    def statistics(self) -> Mapping[str, int]:
        """What a debugger wants to see."""
        return {"counters_remembered": len(self._rates), "waiting": self._collecting.statistics().tasks_waiting}

    async def _collect(self, *, full: bool) -> Collection:
        made_at = trio.current_time()
        answers = await self._ask(full=full)
        read = partial(read_all, full=full)
        found = await self._read(answers, read, full=full, made_at=made_at)
        if self._runtime_needed or not self._without_group(found):
            self._runtime_needed = self._prefer_runtime or self._without_group(found)
            return found
        self._runtime_needed = True
        await self._ask_all(answers, {"statistics": self._ask_stats})
        return await self._read(answers, read, full=full, made_at=made_at)

    def _without_group(self, found: Collection) -> bool:
        """Whether some container can only be measured by the runtime."""
        groups = found.measured.groups
        return any(container.id not in groups for pod in found.facts.pods for container in pod.containers)

    async def _ask(self, *, full: bool) -> Answers:
        answers = Answers()
        questions: dict[str, Callable[[Answers], Awaitable[None]]] = {"lists": self._ask_lists}
        if full or self._runtime_needed:
            questions["statistics"] = self._ask_stats
        if full:
            questions |= {"image file system": self._ask_images, "volumes": self._ask_volumes}
        await self._ask_all(answers, questions)
        answers.pods = self._listed(answers)
        return answers

    def _listed(self, answers: Answers) -> tuple[MeasuredPod, ...]:
        """Those that the runtime has listed now, or else lately."""
        if not answers.pods and self._lists is not None and trio.current_time() - self._lists[0] < LISTS_KEPT:
            return self._lists[1]
        return answers.pods

    async def _ask_all(self, answers: Answers, questions: Mapping[str, Callable[[Answers], Awaitable[None]]]) -> None:
        """At the same time. What fails is a problem, and nothing more."""

        async def ask(what: str, question: Callable[[Answers], Awaitable[None]]) -> None:
            try:
                with trio.fail_after(RUNTIME_TIMEOUT):
                    await question(answers)
            except CRIError as error:
                answers.problems.append(f"{what}: {error}")
            except trio.TooSlowError:
                answers.problems.append(f"{what}: no answer within {RUNTIME_TIMEOUT:g} s")

        async with trio.open_nursery() as nursery:
            for what, question in questions.items():
                nursery.start_soon(ask, what, question)

    async def _ask_lists(self, answers: Answers) -> None:
        sandboxes = await self._runtime.list_pod_sandboxes()
        answers.pods = measured_pods(sandboxes, await self._runtime.list_containers())
        self._lists = (trio.current_time(), answers.pods)

    async def _ask_stats(self, answers: Answers) -> None:
        """Sandboxes' statistics have containers' in them, and those of pods; older runtimes (containerd before 1.7)
        know containers' only. Where there are cgroups those of containers are enough."""
        if self._runtime_needed and self._sandbox_stats_known:
            try:
                answers.sandbox_stats = await self._runtime.list_pod_sandbox_stats_data()
            except CRIError as error:
                if not error.unimplemented:
                    raise
                self._sandbox_stats_known = False
            else:
                return
        answers.container_stats = await self._runtime.list_container_stats_data()

    async def _ask_images(self, answers: Answers) -> None:
        answers.images = await self._images.image_fs_info()
        self._image_places = trio.current_time(), answers.images

    async def _ask_volumes(self, answers: Answers, uids: AnyOf[str] | None = None) -> None:
        for pod in self._view.pods():
            if uids is not None and pod.metadata.uid not in uids:
                continue
            usage = await self._view.volume_usage(pod.metadata.uid)
            if usage:
                answers.volumes[pod.metadata.uid] = pod_volume_stats(pod, usage)

    async def _read(self, answers: Answers, read: _Reader, *, full: bool, made_at: float) -> Collection:
        job = partial(read, answers, self._facts(answers), self._meter, self._rates, self._now())
        facts, measured, summary = await self._in_thread(job)
        return Collection(summary=summary, facts=facts, measured=measured, full=full, made_at=made_at)

    def _facts(self, answers: Answers) -> Facts:
        images = answers.images
        return Facts(
            node_name=self._view.node_name,
            started=self._started,
            pods=answers.pods,
            image_fs=None if images is None else _image_fs(images.image_filesystems),
            container_fs=None if images is None else _image_fs(images.container_filesystems),
            volumes=answers.volumes,
            problems=tuple(sorted(answers.problems)),
            prefer_runtime=self._prefer_runtime,
        )

    async def _in_thread(self, job: Callable[[], T]) -> T:
        """One at a time; while a thread hangs the others give up."""
        try:
            with trio.fail_after(FILES_TIMEOUT):
                return await trio.to_thread.run_sync(job, limiter=self._reading, abandon_on_cancel=True)
        except trio.TooSlowError:
            raise StatsTimeoutError(FILES_TIMEOUT) from None

    def _cadvisor(self, collection: Collection) -> list[Family]:
        from trikubelet.node.stats.cadvisor_metrics import cadvisor_families  # for scrapes alone

        open_files = self._meter.open_files(collection.measured)
        return cadvisor_families(collection.facts, collection.measured, open_files, self._machine)

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1_000_000) * 1000


def _image_fs(told: Sequence[v1.FilesystemUsage]) -> ImageFileSystem | None:
    """The first of them (kubelet: `ImageFsStats`)."""
    if not told:
        return None
    return ImageFileSystem(
        path=told[0].fs_id.mountpoint,
        time=told[0].timestamp,
        used_bytes=told[0].used_bytes.value,
        inodes_used=told[0].inodes_used.value,
    )
