"""What a sync does beside the runtime's part: mirror pods, events, and what it need not do again."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio

from tests.pods.factories import AsAskedFor
from tests.status.builders import observed, pod, seen
from trikubelet.api import Container, Pod, PodCondition, PodReadinessGate, PodStatus
from trikubelet.clock import TrioClock
from trikubelet.container.model import ContainerID, PodRuntimeStatus
from trikubelet.container.probe_results import ProbeResult
from trikubelet.pleg.pleg import Action
from trikubelet.pods.manager import PodManager
from trikubelet.pods.syncer import SyncContext
from trikubelet.pods.types import PodSyncReport, SyncPodType
from trikubelet.probes.results import PodResults, ProbeResultBook
from trikubelet.probes.types import ProbeKind
from trikubelet.runtime.results import PodSyncResult, SyncAction, SyncResult
from trikubelet.status.manager import StatusManager
from trikubelet.telemetry.events import EventRecorder
from trikubelet.volumes.errors import AttachLimitError, PodFoldersError, VolumesNotReadyError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

RUNNING = observed(seen("a"))
NOTHING = PodRuntimeStatus(uid="u", name="p", namespace="default")


class FakeRuntime:
    """A runtime that has nothing to do."""

    runtime_name = "test"

    def __init__(self) -> None:
        self.syncs = 0
        self.resizing = False
        """Whether every sync resizes the pod, and never comes to an end."""

    async def sync_pod(self, *arguments: Any, **options: Any) -> PodSyncResult:
        self.syncs += 1
        return PodSyncResult([SyncResult(SyncAction.RESIZE_POD, "p")] if self.resizing else [])

    def actuated(self, uid: str) -> None: ...

    def is_resize_in_progress(self, of: Pod, status: PodRuntimeStatus) -> bool:
        return False

    def waiting_reasons(self, uid: str) -> dict[str, tuple[str, str]]:
        return {}

    def seen_end(self, container_id: str) -> None:
        return None

    def mounts_read_only_recursively(self, of: Pod) -> bool:
        return False

    def containers_of_pod(self, nursery: trio.Nursery, probes: FakeProbes) -> FakeContainers:
        return FakeContainers()


class FakeContainers:
    def follow(self, observed: PodRuntimeStatus) -> None: ...


class FakePleg:
    @property
    def cache(self) -> FakePleg:
        return self

    async def get_newer_than(self, uid: str, after: float) -> PodRuntimeStatus:
        await trio.sleep(0.1)
        return RUNNING

    @contextmanager
    def acting(self, uid: str) -> Iterator[Action]:
        yield Action()


class FakeVolumes:
    def of_pod(self, uid: str, nursery: trio.Nursery) -> AbstractContextManager[None]:
        return nullcontext()

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.refreshed: list[Pod] = []
        self.released: list[str] = []

    async def prepare(self, of: Pod) -> None:
        if self.problem is not None:
            raise self.problem

    def refresh(self, of: Pod) -> None:
        self.refreshed.append(of)

    async def release(self, uid: str) -> None:
        self.released.append(uid)


class FakeObjects:
    def __init__(self) -> None:
        self.followed: dict[str, Pod] = {}

    @contextmanager
    def references(self, uid: str) -> Iterator[FakeObjects]:
        yield self
        self.followed.pop(uid, None)

    def follow(self, of: Pod) -> None:
        self.followed[of.metadata.uid] = of


class FakeProbes:
    def __init__(self) -> None:
        self.book = ProbeResultBook()
        self.calls: list[str] = []

    @contextmanager
    def of_pod(self, uid: str, nursery: trio.Nursery) -> Iterator[FakeProbes]:
        self.calls.append("open")
        yield self
        self.calls.append("close")

    @property
    def results(self) -> PodResults:
        return self.book.of_pod("u")

    def add(self, of: Pod) -> None:
        self.calls.append("add")

    def stop(self) -> None:
        self.calls.append("stop")


class Stage:
    def __init__(self, of: Pod) -> None:
        clock = TrioClock()
        self.runtime = FakeRuntime()
        self.recorder = EventRecorder(clock)
        self.statuses = StatusManager(clock, PodManager([of]))
        self.mirrored: list[tuple[Pod, Pod | None]] = []
        self.host_ips: tuple[str, ...] = ("10.0.0.1",)
        self.problem: str | None = None
        self.volumes, self.objects, self.probes = FakeVolumes(), FakeObjects(), FakeProbes()
        self.context = SyncContext(
            runtime=cast("Any", self.runtime),
            statuses=self.statuses,
            volumes=cast("Any", self.volumes),
            objects=cast("Any", self.objects),
            probes=cast("Any", self.probes),
            recorder=self.recorder,
            clock=clock,
            pleg=cast("Any", FakePleg()),
            allocation=cast("Any", AsAskedFor()),
            network_problem=lambda: self.problem,
            host_ips=lambda: self.host_ips,
            mirrors=lambda static, mirror: self.mirrored.append((static, mirror)),
            durables=(self.volumes,),
        )
        self._life = ExitStack()
        self.syncer = self._life.enter_context(self.context.open_pod("u", cast("trio.Nursery", None)))

    def end(self) -> None:
        """The pod's life is over."""
        self._life.close()

    async def sync(self, of: Pod, mirror: Pod | None = None, status: PodRuntimeStatus = RUNNING) -> PodSyncReport:
        return await self.syncer.sync_pod(SyncPodType.SYNC, of, mirror, status)

    def events(self) -> list[str]:
        return [event.reason for event in self.recorder.events_of("u")]


def with_metadata(of: Pod, **changes: Any) -> Pod:
    return attrs.evolve(of, metadata=attrs.evolve(of.metadata, **changes))


def with_status(of: Pod, **changes: Any) -> Pod:
    return attrs.evolve(of, status=attrs.evolve(of.status, **changes))


OF = pod("a")
GATED = pod("a", readiness_gates=(PodReadinessGate(condition_type="g"),))
OPEN = PodCondition(type="g", status="True")


@pytest.mark.parametrize(
    ("of", "next_version", "syncs"),
    [
        (OF, OF, 1),
        (OF, with_metadata(OF, resource_version="9"), 1),
        (OF, with_status(OF, phase="Running", conditions=(OPEN,)), 1),
        (GATED, with_status(GATED, conditions=(OPEN,)), 2),
        (GATED, with_metadata(GATED, resource_version="9"), 1),
        (OF, with_metadata(OF, labels={"a": "b"}), 2),
        (OF, attrs.evolve(OF, spec=attrs.evolve(OF.spec, containers=(Container(name="a", image="new"),))), 2),
    ],
)
async def test_a_sync_that_found_nothing_to_do_is_not_done_again_for_an_echo(
    of: Pod, next_version: Pod, syncs: int, autojump_clock: MockClock
) -> None:
    stage = Stage(of)
    await stage.sync(of)
    await stage.sync(attrs.evolve(next_version))
    assert stage.runtime.syncs == syncs


async def test_a_pod_that_the_api_server_calls_ended_is_ended(autojump_clock: MockClock) -> None:
    stage = Stage(OF)
    await stage.sync(OF)
    report = await stage.sync(with_status(OF, phase="Failed"))
    assert report.terminal


async def test_each_sync_tells_of_the_mirror_pod_also_when_there_is_nothing_else_to_do(
    autojump_clock: MockClock,
) -> None:
    static = pod("a", static=True)
    mirror = with_metadata(static, uid="m")
    stage = Stage(static)
    await stage.sync(static, mirror)
    await stage.sync(static, None)
    assert stage.mirrored == [(static, mirror), (static, None)]
    assert stage.runtime.syncs == 1


async def test_a_pod_that_has_ended_gets_no_mirror_pod(autojump_clock: MockClock) -> None:
    stage = Stage(OF)
    await stage.sync(with_status(OF, phase="Failed"))
    assert stage.mirrored == []


async def test_the_host_addresses_follow_the_node(autojump_clock: MockClock) -> None:
    stage = Stage(OF)
    await stage.sync(OF)
    stage.host_ips = ("fd00::1", "10.0.0.1")
    await stage.sync(with_metadata(OF, labels={"a": "b"}))
    status = stage.statuses.get_pod_status("u")
    assert status is not None
    assert (status.host_ip, [one.ip for one in status.host_ips]) == ("fd00::1", ["fd00::1", "10.0.0.1"])
    [event] = [event for event in stage.recorder.events_of("u") if event.reason == "HostIPsIPFamilyMismatch"]
    assert event.message == (
        "Kubelet detected an IPv4 node IP (10.0.0.1), but the cloud provider selected an IPv6 node IP (fd00::1); "
        "pass an explicit `--node-ip` to kubelet to fix this."
    )


async def test_a_passed_deadline_is_told_once(autojump_clock: MockClock) -> None:
    started = PodStatus(phase="Running", start_time=TrioClock().now() - timedelta(seconds=11))
    of = pod("a", active_deadline_seconds=10, status=started)
    stage = Stage(of)
    for _ in range(3):
        assert (await stage.sync(of)).terminal
    assert stage.events() == ["DeadlineExceeded"]
    [event] = stage.recorder.events_of("u")
    assert (event.type.value, event.count) == ("Normal", 1)
    assert event.message == "Pod was active on the node longer than the specified deadline"


async def test_a_pod_that_was_rejected_before_the_agent_started_is_finished_as_it_is(
    autojump_clock: MockClock,
) -> None:
    rejected = PodStatus(phase="Failed", reason="OutOfcpu", message="Pod was rejected: m", qos_class="BestEffort")
    of = pod("a", status=attrs.evolve(rejected, start_time=TrioClock().now()))
    stage = Stage(of)
    await stage.syncer.sync_terminated_pod(of, NOTHING)
    status = stage.statuses.get_pod_status("u")
    assert status is not None
    assert attrs.evolve(status, start_time=None) == rejected
    change = stage.statuses.change("u")
    assert change is not None
    assert change.finished


async def test_a_pod_of_which_nothing_is_left_is_reported_as_failed(autojump_clock: MockClock) -> None:
    of = pod("a", status=PodStatus(phase="Running"))
    stage = Stage(of)
    await stage.syncer.sync_terminated_pod(of, NOTHING)
    status = stage.statuses.get_pod_status("u")
    assert status is not None
    assert status.phase == "Failed"
    assert status.container_statuses[0].state.terminated is not None


async def test_a_sync_without_anything_to_do_has_the_volumes_made_up_to_date() -> None:
    of = pod()
    stage = Stage(of)
    for _ in range(3):
        await stage.sync(of)
    assert stage.runtime.syncs == 1
    assert stage.volumes.refreshed == [of, of]


async def test_what_a_pod_refers_to_is_followed_from_its_first_sync_to_its_end() -> None:
    of = pod()
    stage = Stage(of)
    await stage.sync(of)
    await stage.syncer.sync_terminated_pod(of, RUNNING)
    assert stage.objects.followed == {"u": of}
    assert stage.volumes.released == ["u"]
    stage.end()
    assert stage.objects.followed == {}


@pytest.mark.parametrize(("timed_out", "told"), [(False, ["FailedMount"]), (True, [])])
async def test_volumes_that_are_not_there_are_told_unless_it_is_only_late(timed_out: bool, told: list[str]) -> None:
    of = pod()
    stage = Stage(of)
    stage.volumes.problem = VolumesNotReadyError(["data"], cause="no such claim", timed_out=timed_out)
    with pytest.raises(VolumesNotReadyError):
        await stage.sync(of)
    assert stage.events() == told
    assert stage.runtime.syncs == 0


async def test_folders_that_cannot_be_made_are_no_fault_of_a_volume() -> None:
    of = pod()
    stage = Stage(of)
    stage.volumes.problem = PodFoldersError((), cause="[Errno 28] No space left on device", timed_out=False)
    with pytest.raises(PodFoldersError):
        await stage.sync(of)
    (event,) = stage.recorder.events_of("u")
    assert (event.type.value, event.reason, event.field_path) == ("Warning", "Failed", "")
    assert event.message == "error making pod data directories: [Errno 28] No space left on device"


async def test_a_pod_for_whose_volumes_the_node_has_no_room_is_rejected() -> None:
    of = pod()
    stage = Stage(of)
    stage.volumes.problem = AttachLimitError(["data"], ["data"], cause="late", timed_out=True)
    report = await stage.sync(of)
    assert report.terminal
    reported = stage.statuses.get_pod_status("u")
    assert reported is not None
    assert (reported.phase, reported.reason) == ("Failed", "VolumeAttachmentLimitExceeded")
    assert stage.events() == ["VolumeAttachmentLimitExceeded"]


@pytest.mark.parametrize("kind", list(ProbeKind))
async def test_a_probe_that_changed_its_mind_is_not_lost_in_a_sync_without_news(kind: ProbeKind) -> None:
    of = pod()
    stage = Stage(of)
    await stage.sync(of)
    await stage.sync(of)
    assert stage.runtime.syncs == 1
    stage.probes.book.set("u", kind, ContainerID("test", "some"), ProbeResult.FAILURE)
    await stage.sync(of)
    assert stage.runtime.syncs == 2
    await stage.sync(of)
    assert stage.runtime.syncs == 2


async def test_probes_begin_with_a_sync_and_end_with_the_pod() -> None:
    of = pod()
    stage = Stage(of)
    await stage.sync(of)
    await stage.syncer.sync_terminated_pod(of, RUNNING)
    assert stage.probes.calls == ["open", "add", "stop"]
    stage.end()
    assert stage.probes.calls == ["open", "add", "stop", "close"]


async def test_after_a_resize_another_round_looks_what_came_of_it_and_no_third(autojump_clock: MockClock) -> None:
    of = pod()
    stage = Stage(of)
    stage.runtime.resizing = True
    with trio.fail_after(60):
        report = await stage.sync(of)
    assert stage.runtime.syncs == 2
    assert report == PodSyncReport(trio.current_time())
    stage.runtime.resizing = False
    await stage.sync(of)
    assert stage.runtime.syncs == 3, "it has not settled"
