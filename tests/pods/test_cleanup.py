"""The kubelet's `TestKubelet_HandlePodCleanups` as facts: what a round of housekeeping decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.pods.factories import CREATE, KILL, make_mirror, make_pod, request, running
from tests.pods.pure_node import PureNode
from trikubelet.pods.cleanup import (
    CleanupFacts,
    CleanupPlan,
    DeleteMirrorPod,
    FinishRejectedPod,
    KillOrphan,
    RemovePodCgroup,
    RemovePodDirectory,
    RestartPod,
    ThrottlePodCgroup,
    plan_cleanup,
)
from trikubelet.pods.manager import PodManager, is_inactive
from trikubelet.pods.phases import NOT_DESIRED, Failed
from trikubelet.pods.registry import WorkerLifecycle, WorkerSummary
from trikubelet.pods.types import KillRuntimePod

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.container.model import RunningPod

SYNC, TERMINATING, TERMINATED = WorkerLifecycle.SYNC, WorkerLifecycle.TERMINATING, WorkerLifecycle.TERMINATED


def plan_for(*desired: Pod, workers: dict[str, WorkerSummary] | None = None, **more: object) -> CleanupPlan:
    facts = CleanupFacts(
        sources_ready=True,
        desired=PodManager(desired).pods_and_mirror_pods(),
        workers=workers or {},
        running=(),
    )
    plan = plan_cleanup(attrs.evolve(facts, **more))  # type: ignore[arg-type]
    assert plan is not None
    return plan


def round_of(node: PureNode, desired: list[Pod], alive: list[RunningPod]) -> CleanupPlan:
    """A whole round on a node: compare, plan, carry out."""
    manager = PodManager(desired)
    workers = node.sync_known_pods(*manager.pods())
    facts = CleanupFacts(
        sources_ready=True,
        desired=manager.pods_and_mirror_pods(),
        workers=workers,
        running=alive,
        terminating_static=node.states.terminating_static_full_names(),
    )
    plan = plan_cleanup(facts)
    assert plan is not None
    for action in plan.actions:
        if isinstance(action, RestartPod | FinishRejectedPod | KillOrphan):
            node.update(action.request(node.now))
    return plan


def test_nothing_is_done_before_all_sources_are_ready() -> None:
    facts = CleanupFacts(
        sources_ready=False, desired=PodManager().pods_and_mirror_pods(), workers={}, running=[running("1")]
    )
    assert plan_cleanup(facts) is None


def test_a_running_pod_that_nobody_knows_is_killed_with_one_second() -> None:
    node = PureNode()
    plan = round_of(node, [], [running("1")])
    assert plan.actions == (KillOrphan(running("1")),)
    assert plan.actions[0].request(4.0) == KillRuntimePod(
        running_pod=running("1"), start_time=4.0, asked_by=NOT_DESIRED, grace_period_override=1
    )
    node.settle()
    assert node.records["1"] == [("terminate runtime pod",)]


def test_an_orphan_whose_kill_failed_is_tried_again_and_not_doubled() -> None:
    node = PureNode()
    round_of(node, [], [running("1")])
    node.settle(Failed())
    assert round_of(node, [], [running("1")]).actions == ()
    node.settle()
    assert node.records["1"] == [("terminate runtime pod",)] * 2
    assert not node.states.phases()


def test_a_pod_whose_kill_failed_and_that_left_the_config_is_driven_on() -> None:
    node = PureNode()
    node.update(request(CREATE, make_pod("1")))
    node.settle()
    node.update(request(KILL, make_pod("1", deletion_grace=2)))
    node.settle(Failed())
    plan = round_of(node, [], [running("1")])
    assert plan.actions == ()
    node.settle()
    assert node.records["1"] == [("sync", "create"), ("terminate", 2), ("terminate", 2), ("clean up",)]


def test_a_desired_pod_without_a_worker_is_started() -> None:
    pod = make_pod("1", static=True)
    mirror = make_mirror(pod, "m")
    plan = plan_for(pod, mirror)
    assert plan.actions == (RestartPod(pod, mirror),)
    assert plan.actions[0].request(3.0) == request(CREATE, pod, mirror_pod=mirror, start_time=3.0)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_terminal_pod_is_not_started(phase: str) -> None:
    assert plan_for(make_pod("1", phase=phase)).actions == ()


def test_a_pod_that_admission_rejected_is_not_started() -> None:
    assert plan_for(make_pod("1"), reported_phases={"1": "Failed"}).actions == ()


def test_a_rejected_pod_that_is_deleted_is_led_to_its_end() -> None:
    node = PureNode()
    pod = make_pod("1", phase="Failed", deletion_grace=30)
    plan = round_of(node, [pod], [])
    assert plan.actions == (FinishRejectedPod(pod),)
    node.settle()
    assert node.states.should_pod_be_finished("1")
    assert round_of(node, [pod], []).actions == ()


def test_a_rejected_pod_that_is_not_deleted_is_left_alone() -> None:
    assert plan_for(make_pod("1", phase="Failed")).actions == ()


def test_a_deleted_terminal_pod_that_still_runs_is_an_orphan_first() -> None:
    pod = make_pod("1", phase="Failed", deletion_grace=30)
    assert plan_for(pod, running=[running("1")]).actions == (KillOrphan(running("1")),)


def test_a_terminating_pod_that_is_still_in_the_config_gets_no_update() -> None:
    node = PureNode()
    pod = make_pod("1", deletion_grace=2)
    node.update(request(CREATE, make_pod("1")))
    node.settle()
    node.update(request(KILL, pod))
    node.settle(Failed())
    assert round_of(node, [pod], [running("1")]).actions == ()
    assert not node.woken


def test_a_pod_that_could_not_start_and_left_the_config_is_killed_if_it_runs() -> None:
    node = PureNode()
    node.update(request(CREATE, make_pod("2", static=True)))
    node.settle()
    node.update(request(CREATE, make_pod("1", static=True)))
    node.settle()
    plan = round_of(node, [make_pod("2", static=True)], [running("1"), running("2")])
    assert plan.actions == (KillOrphan(running("1")),)
    node.settle()
    assert node.records["1"] == [("terminate runtime pod",)]


def test_a_pod_that_could_not_start_and_left_the_config_is_forgotten_if_it_does_not_run() -> None:
    node = PureNode()
    node.update(request(CREATE, make_pod("2", static=True)))
    node.settle()
    node.update(request(CREATE, make_pod("1", static=True)))
    assert round_of(node, [make_pod("2", static=True)], []).actions == ()
    node.settle()
    assert "1" not in node.records
    assert node.states.phase("1") is None


def test_a_pod_created_anew_with_its_uid_starts_in_the_round_that_finds_it_finished() -> None:
    node = PureNode()
    pod = make_pod("1", static=True, grace=1)
    for update_type in (CREATE, KILL, CREATE):
        node.update(request(update_type, pod))
        if update_type is CREATE:
            node.settle()
    assert round_of(node, [pod], []).actions == (RestartPod(pod, None),)
    node.settle()
    assert node.records["1"] == [("sync", "create"), ("terminate", 1), ("clean up",), ("sync", "create")]


def test_a_pod_created_anew_while_it_is_ending_waits() -> None:
    node = PureNode()
    pod = make_pod("1", static=True)
    node.update(request(CREATE, pod))
    node.settle()
    node.update(request(KILL, pod))
    node.update(request(CREATE, pod))
    node.begin("1")
    assert round_of(node, [pod], [running("1")]).actions == ()


def test_a_mirror_pod_goes_when_its_pod_is_gone_and_ended() -> None:
    mirror = make_mirror(make_pod("1", static=True), "m")
    assert plan_for(mirror).actions == (DeleteMirrorPod("web_ns"),)
    assert plan_for(mirror, terminating_static={"web_ns"}).actions == ()
    assert plan_for(mirror).statuses_to_keep == {"m"}


def test_directories_stay_while_anybody_may_need_them() -> None:
    pod = make_pod("desired", phase="Failed")
    known = {"working": WorkerSummary(TERMINATED, orphan=True, has_config=True)}
    uids = ("desired", "working", "running", "gone")
    plan = plan_for(
        pod,
        workers=known,
        running=[running("running")],
        pod_directories=uids,
    )
    assert [action for action in plan.actions if not isinstance(action, KillOrphan)] == [
        RemovePodDirectory("gone"),
    ]


@pytest.mark.parametrize(
    ("phase", "worker", "reported", "inactive"),
    [
        ("", None, None, False),
        ("Running", WorkerSummary(SYNC), "Running", False),
        ("Failed", None, None, True),
        ("", None, "Failed", True),
        ("", WorkerSummary(SYNC), "Succeeded", True),
        ("Failed", WorkerSummary(TERMINATING), "Failed", False),
        ("", WorkerSummary(TERMINATED), None, True),
    ],
)
def test_which_desired_pods_are_inactive(
    phase: str, worker: WorkerSummary | None, reported: str | None, inactive: bool
) -> None:
    assert is_inactive(make_pod("1", phase=phase), worker, reported) is inactive


def test_a_pod_that_waits_for_admission_is_neither_started_nor_killed() -> None:
    waits, other = make_pod("waits"), make_pod("other", "other")
    plan = plan_for(waits, other, running=[running("waits")], held={"waits"})
    assert plan.actions == (RestartPod(other, None),)
    assert "waits" in plan.statuses_to_keep


def test_cgroups_go_when_nobody_knows_their_pods_and_stay_throttled_while_volumes_are_left() -> None:
    """Facts of `cleanupOrphanedPodCgroups`."""
    wanted, held, rejected = make_pod("wanted"), make_pod("held"), make_pod("rejected")
    plan = plan_for(
        wanted,
        held,
        rejected,
        workers={"ending": WorkerSummary(TERMINATING, orphan=True, has_config=True)},
        held=("held",),
        reported_phases={"rejected": "Failed"},
        running=[running("alive")],
        pod_directories=("volumes", "rejected"),
        pod_cgroups=("wanted", "held", "ending", "alive", "volumes", "nobody", "rejected"),
    )
    assert [one for one in plan.actions if isinstance(one, RemovePodCgroup | ThrottlePodCgroup)] == [
        ThrottlePodCgroup("volumes"),
        RemovePodCgroup("nobody"),
        ThrottlePodCgroup("rejected"),
    ]
