"""The last two steps of a pod: its containers are ended, and then what it held is released."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio

from tests.pods.factories import AsAskedFor
from tests.status.builders import observed, pod, seen
from trikubelet.clock import TrioClock
from trikubelet.container.model import PodRuntimeStatus
from trikubelet.pleg.pleg import Action
from trikubelet.pods.manager import PodManager
from trikubelet.pods.syncer import AgentPodSyncer, StillRunningError, SyncContext
from trikubelet.pods.types import Kill
from trikubelet.probes.results import NO_RESULTS
from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError
from trikubelet.status.manager import StatusManager
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

    from trikubelet.container.model import RunningPod

OF = pod("a")
RUNNING = observed(seen("a"))
ENDED = observed(seen("a", "exited"))


@attrs.define
class Parts:
    """Whatever else a syncer needs, for one pod."""

    after_kill: PodRuntimeStatus = ENDED
    killed: list[tuple[float | None, bool]] = attrs.field(factory=list)
    """With which deadline, and whether for good."""
    during_kill: list[Any] = attrs.field(factory=list)
    """Called while the pod is being killed."""
    runtime_name: str = "test"
    results: Any = NO_RESULTS

    async def kill_pod(
        self, _running: RunningPod, _pod: object, _containers: object, *, deadline: float | None, for_good: bool
    ) -> None:
        self.killed.append((deadline, for_good))
        await trio.sleep(1)
        for call in self.during_kill:
            call()

    @property
    def cache(self) -> Parts:
        return self

    async def get_newer_than(self, _uid: str, _time: float) -> PodRuntimeStatus:
        await trio.lowlevel.checkpoint()
        return self.after_kill

    @contextmanager
    def acting(self, _uid: str) -> Iterator[Action]:
        yield Action()

    def waiting_reasons(self, _uid: str) -> dict[str, tuple[str, str]]:
        return {}

    def seen_end(self, _container_id: str) -> None: ...

    def actuated(self, _uid: str) -> None: ...

    def mounts_read_only_recursively(self, _pod: object) -> bool:
        return False

    def follow(self, _what: object) -> None: ...

    def stop(self) -> None: ...


@attrs.define
class Stage:
    parts: Parts = attrs.field(factory=Parts)
    releases: list[str] = attrs.field(factory=list)
    """What was given back when, with whether the pod was reported as finished by then."""
    failing: set[str] = attrs.field(factory=set)
    statuses: StatusManager = attrs.field(init=False)
    syncer: AgentPodSyncer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        clock, parts = TrioClock(), cast("Any", self.parts)
        self.statuses = StatusManager(clock, PodManager([OF]))
        context = SyncContext(
            runtime=parts,
            statuses=self.statuses,
            volumes=parts,
            objects=parts,
            probes=parts,
            recorder=EventRecorder(clock),
            clock=clock,
            pleg=parts,
            allocation=cast("Any", AsAskedFor()),
            network_problem=lambda: None,
            host_ips=lambda: ("10.0.0.1",),
            durables=(Held("mounts", self), Held("cgroup", self)),
            unprepare_claims=self.unprepare,
        )
        self.syncer = AgentPodSyncer(context, "u", parts, parts, parts)

    async def unprepare(self, uid: str) -> None:
        assert (uid, self.parts.killed) == ("u", [(47.5, True)])
        status = self.statuses.get_pod_status(uid)
        assert status is not None
        assert status.phase == "Running", "others take what a pod held as soon as it has ended"
        await trio.lowlevel.checkpoint()
        if "claims" in self.failing:
            raise ResourceClaimError("the driver is away")
        self.releases.append("claims")

    @property
    def finished(self) -> bool:
        change = self.statuses.change("u")
        return change is not None and change.finished


@attrs.frozen
class Held:
    name: str
    stage: Stage

    async def release(self, uid: str) -> None:
        assert uid == "u"
        assert not self.stage.finished, "the API may forget a pod only when nothing of it is in the way"
        await trio.lowlevel.checkpoint()
        if self.name in self.stage.failing:
            raise OSError("busy")
        self.stage.releases.append(self.name)


async def test_a_pod_is_killed_for_good_until_its_deadline(autojump_clock: MockClock) -> None:
    stage = Stage()
    await stage.syncer.sync_terminating_pod(OF, RUNNING, lambda: Kill(30, 47.5))
    assert stage.parts.killed == [(47.5, True)]


async def test_claims_are_undone_when_nothing_runs_and_before_that_is_told(autojump_clock: MockClock) -> None:
    stage = Stage(failing={"claims"})
    with pytest.raises(ResourceClaimError):
        await stage.syncer.sync_terminating_pod(OF, RUNNING, lambda: Kill(30, 47.5))
    status = stage.statuses.get_pod_status("u")
    assert status is not None
    assert status.phase == "Running"
    stage.failing.clear()
    stage.parts.killed.clear()
    await stage.syncer.sync_terminating_pod(OF, RUNNING, lambda: Kill(30, 47.5))
    assert stage.releases == ["claims"]


async def test_a_pod_that_still_runs_has_not_ended_whatever_the_runtime_said(autojump_clock: MockClock) -> None:
    stage = Stage(Parts(after_kill=RUNNING))
    with pytest.raises(StillRunningError, match="a"):
        await stage.syncer.sync_terminating_pod(OF, RUNNING, lambda: Kill(30, 47.5))


@pytest.mark.parametrize("at_once", [True, False])
async def test_why_a_pod_was_killed_is_in_its_last_status(autojump_clock: MockClock, at_once: bool) -> None:
    evicted = Kill(30, 47.5, functools.partial(attrs.evolve, reason="Evicted"))
    kills = [evicted if at_once else Kill(30, 47.5)]
    stage = Stage()
    stage.parts.during_kill.append(lambda: kills.append(evicted))
    await stage.syncer.sync_terminating_pod(OF, RUNNING, lambda: kills[-1])
    status = stage.statuses.get_pod_status("u")
    assert status is not None
    assert status.reason == "Evicted"


async def test_all_that_a_pod_held_is_released_in_order_before_it_is_reported_as_finished() -> None:
    stage = Stage()
    await stage.syncer.sync_terminated_pod(OF, ENDED)
    assert stage.releases == ["mounts", "cgroup"]
    assert stage.finished


async def test_a_pod_of_which_something_cannot_be_released_is_not_reported_as_finished() -> None:
    stage = Stage()
    stage.failing.add("cgroup")
    with pytest.raises(OSError, match="busy"):
        await stage.syncer.sync_terminated_pod(OF, ENDED)
    assert not stage.finished
    stage.failing.clear()
    await stage.syncer.sync_terminated_pod(OF, ENDED)
    assert stage.releases == ["mounts", "mounts", "cgroup"]
    assert stage.finished
