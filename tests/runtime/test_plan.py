"""The outcomes of the kubelet's tables `TestComputePodActions` and `…WithContainerRestartRules`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from tests.runtime.situations import SANDBOX, Situation, three_running
from trikubelet.api import ContainerRestartRule, ContainerRestartRuleOnExitCodes, Probe
from trikubelet.container.model import ContainerID, ContainerState
from trikubelet.container.probe_results import ProbeResult, ProbeResults
from trikubelet.container.restart_policy import matching_restart_rule, should_restart
from trikubelet.runtime.plan import KillReason, PodActions, compute_pod_actions, inspect_sandbox

SAME = {"sandbox_id": "sandboxID"}
NEW = {"kill_pod": True, "create_sandbox": True, "sandbox_id": "sandboxID", "attempt": 1}
KILL_ONLY = {"kill_pod": True, "sandbox_id": "sandboxID"}


def check(situation: Situation, expected: dict[str, Any], probes: ProbeResults | None = None) -> None:
    """Compare a plan with the expected one, in which kills are given by container id only."""
    actual = compute_pod_actions(situation.pod, situation.status, probes=probes or ProbeResults())
    killed = {identifier.id for identifier in actual.containers_to_kill}
    wanted = {**expected}
    assert killed == set(wanted.pop("kill", ()))
    assert attrs.evolve(actual, containers_to_kill={}) == PodActions(**wanted)


TABLE: dict[str, tuple[Situation, dict[str, Any]]] = {
    "all is well; do nothing": (three_running(), SAME),
    "a new pod gets a sandbox and all its containers": (
        three_running().no_sandbox().only(),
        {"kill_pod": True, "create_sandbox": True, "containers_to_start": (0, 1, 2)},
    ),
    "exited containers start again with Always": (
        three_running("Always").exited("foo1").exited("foo2", 111),
        {**SAME, "containers_to_start": (0, 1)},
    ),
    "failed containers start again with OnFailure": (
        three_running("OnFailure").exited("foo1").exited("foo2", 111),
        {**SAME, "containers_to_start": (1,)},
    ),
    "a container that was created but never started is started with OnFailure": (
        three_running("OnFailure").exited("foo1").seen("foo2", ContainerState.CREATED),
        {**SAME, "containers_to_start": (1,)},
    ),
    "exited containers stay down with Never": (three_running("Never").exited("foo1").exited("foo2", 111), SAME),
    "a dead sandbox starts everything over with Always": (
        three_running("Always").sandbox(ready=False),
        {**NEW, "containers_to_start": (0, 1, 2)},
    ),
    "a dead sandbox starts everything but the succeeded over with OnFailure": (
        three_running("OnFailure").sandbox(ready=False).exited("foo2"),
        {**NEW, "containers_to_start": (0, 2)},
    ),
    "a sandbox without an address is replaced": (
        three_running().sandbox(ips=()),
        {**NEW, "containers_to_start": (0, 1, 2)},
    ),
    "a changed container is killed and started again": (
        three_running("Always").seen("foo2", ContainerState.RUNNING, hash=432423432),
        {**SAME, "kill": ["id2"], "containers_to_start": (1,)},
    ),
    "no sandbox for a pod with Never whose containers have all exited": (
        three_running("Never").sandbox(ready=False, attempt=1).exited("foo1").exited("foo2").exited("foo3"),
        {**KILL_ONLY, "attempt": 2},
    ),
    "no sandbox for a pod with OnFailure whose containers have all succeeded": (
        three_running("OnFailure").sandbox(ready=False, attempt=1).exited("foo1").exited("foo2").exited("foo3"),
        {**KILL_ONLY, "attempt": 2},
    ),
    "a sandbox for a pod with Never that never had a container": (
        three_running("Never").sandbox(ready=False, attempt=2).only(),
        {**NEW, "attempt": 3, "containers_to_start": (0, 1, 2)},
    ),
    "a container in an unknown state is killed and started again, even with Never": (
        three_running("Never").seen("foo2", ContainerState.UNKNOWN),
        {**SAME, "kill": ["id2"], "containers_to_start": (1,)},
    ),
    "a container that was created but never started is started, even with Never": (
        three_running("Never").seen("foo2", ContainerState.CREATED),
        {**SAME, "containers_to_start": (1,)},
    ),
    "a pod with nothing running and nothing to start is killed": (
        three_running("Never").exited("foo1").exited("foo2", 1).exited("foo3"),
        KILL_ONLY,
    ),
    "the container's policy Always wins over the pod's": (
        three_running("Never")
        .container("foo1", restart_policy="Always")
        .container("foo2", restart_policy="Always")
        .exited("foo1")
        .exited("foo2", 111),
        {**SAME, "containers_to_start": (0, 1)},
    ),
    "the container's policy OnFailure wins over the pod's": (
        three_running("Never")
        .container("foo1", restart_policy="OnFailure")
        .container("foo2", restart_policy="OnFailure")
        .exited("foo1")
        .exited("foo2", 111),
        {**SAME, "containers_to_start": (1,)},
    ),
    "a created container is started with the container's policy OnFailure": (
        three_running("Never")
        .container("foo1", restart_policy="OnFailure")
        .container("foo2", restart_policy="OnFailure")
        .exited("foo1")
        .seen("foo2", ContainerState.CREATED),
        {**SAME, "containers_to_start": (1,)},
    ),
    "the container's policy Never wins over the pod's": (
        three_running("Always")
        .container("foo1", restart_policy="Never")
        .container("foo2", restart_policy="Never")
        .exited("foo1")
        .exited("foo2", 111),
        SAME,
    ),
    "a dead sandbox starts everything over but what succeeded with the container's policy OnFailure": (
        three_running("Always").container("foo2", restart_policy="OnFailure").sandbox(ready=False).exited("foo2"),
        {**NEW, "containers_to_start": (0, 2)},
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_plan_of_main_containers(name: str) -> None:
    check(*TABLE[name])


@pytest.mark.parametrize("kind", ["liveness", "startup"])
def test_a_container_whose_probe_failed_is_killed_and_started_again(kind: str) -> None:
    probes = ProbeResults(**{kind: {ContainerID("", "id2"): ProbeResult.FAILURE}})
    check(three_running("Always"), {**SAME, "kill": ["id2"], "containers_to_start": (1,)}, probes)


def test_a_container_whose_probe_failed_is_only_killed_with_never() -> None:
    situation = three_running("Never")
    probes = ProbeResults(liveness={ContainerID("", "id2"): ProbeResult.FAILURE})
    plan = compute_pod_actions(situation.pod, situation.status, probes=probes)
    assert plan.containers_to_start == ()
    [kill] = plan.containers_to_kill.values()
    assert (kill.message, kill.reason) == ("Container foo2 failed liveness probe", KillReason.LIVENESS_PROBE)


def test_the_message_of_a_kill_tells_that_the_container_will_be_restarted() -> None:
    situation = three_running("Never").seen("foo2", ContainerState.RUNNING, hash=1)
    plan = compute_pod_actions(situation.pod, situation.status)
    [kill] = plan.containers_to_kill.values()
    assert kill.message == "Container foo2 definition changed, will be restarted"


def test_an_agent_that_has_just_started_knows_no_probe_results_and_kills_nothing() -> None:
    probed = {"liveness_probe": Probe(), "startup_probe": Probe(), "readiness_probe": Probe()}
    situation = three_running("Always").container("foo1", **probed).container("foo2", **probed)
    check(situation, SAME, ProbeResults())


@pytest.mark.parametrize("result", [ProbeResult.SUCCESS, ProbeResult.UNKNOWN])
def test_a_probe_that_did_not_fail_kills_nothing(result: ProbeResult) -> None:
    own = {ContainerID("", "id2"): result}
    check(three_running("Always"), SAME, ProbeResults(liveness=own, startup=own))


def test_a_failed_probe_of_an_earlier_run_is_not_held_against_this_one() -> None:
    earlier = {ContainerID("", "id2-past"): ProbeResult.FAILURE}
    check(three_running("Always"), SAME, ProbeResults(liveness=earlier, startup=earlier))


def test_nothing_is_started_in_a_sandbox_that_is_being_stopped() -> None:
    assert not PodActions(kill_pod=True, ephemeral_containers_to_start=(0,)).starts_anything
    assert PodActions(kill_pod=True, create_sandbox=True).starts_anything
    assert PodActions(ephemeral_containers_to_start=(0,)).starts_anything
    assert not PodActions().starts_anything


def test_containers_of_a_deleted_pod_do_not_start_again() -> None:
    situation = three_running("Always").exited("foo1", 1).deleted(datetime(2026, 1, 1, tzinfo=UTC))
    check(situation, SAME)


def test_a_pod_that_went_to_the_nodes_network_gets_a_sandbox_that_replaces_none() -> None:
    situation = three_running().spec(host_network=True)
    plan = inspect_sandbox(situation.pod, situation.status)
    assert plan == PodActions(kill_pod=True, create_sandbox=True, sandbox_id="", attempt=1)


def test_a_sandbox_on_the_nodes_network_needs_no_address() -> None:
    check(three_running().spec(host_network=True).sandbox(host_network=True, ips=()), SAME)


def test_a_sandbox_whose_runtime_says_nothing_of_networks_needs_no_address() -> None:
    check(three_running().sandbox(ips=(), network_reported=False), SAME)


def test_two_ready_sandboxes_are_replaced_by_one() -> None:
    situation = three_running()
    both = (attrs.evolve(SANDBOX, id="newer", attempt=4), SANDBOX)
    status = attrs.evolve(situation.status, sandbox_statuses=both)
    plan = inspect_sandbox(situation.pod, status)
    assert plan == PodActions(kill_pod=True, create_sandbox=True, sandbox_id="newer", attempt=5)


def rule(operator: str, *codes: int, action: str = "Restart") -> ContainerRestartRule:
    return ContainerRestartRule(
        action=action, exit_codes=ContainerRestartRuleOnExitCodes(operator=operator, values=codes)
    )


@pytest.mark.parametrize(
    ("operator", "code", "matches"), [("In", 42, True), ("In", 1, False), ("NotIn", 42, False), ("NotIn", 1, True)]
)
def test_restart_rules_match_exit_codes(operator: str, code: int, matches: bool) -> None:
    situation = three_running("Never").container(
        "foo1", restart_policy="Never", restart_policy_rules=(rule(operator, 42),)
    )
    container = situation.pod.spec.containers[0]
    assert (matching_restart_rule(container, code) is not None) is matches
    assert should_restart(container, situation.pod, code) is matches


def test_no_policy_at_all_means_always() -> None:
    situation = three_running("")
    assert should_restart(situation.pod.spec.containers[0], situation.pod, 0)
