"""The whole status of a pod, by the kubelet's Test_generateAPIPodStatus and its tests of addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.status.builders import ended, observed, pod, running, seen, sidecar, waiting
from trikubelet.api import (
    Container,
    Pod,
    PodCondition,
    PodStatus,
    Probe,
    Quantity,
    ResourceRequirements,
)
from trikubelet.status.container_statuses import ProbeOutcomes
from trikubelet.status.generate import Eviction, generate_pod_status

if TYPE_CHECKING:
    from trikubelet.container.model import PodRuntimeStatus

A, B, X = "a", "b", "x"


def generate(of: Pod, now: PodRuntimeStatus, previous: PodStatus | None = None, **options: Any) -> PodStatus:
    return generate_pod_status(of, now, previous=previous or of.status, waiting_reasons={}, **options)


def conditions(status: PodStatus) -> dict[str, str]:
    return {condition.type: condition.status for condition in status.conditions}


RUNNING = PodStatus(container_statuses=(running(A), running(B)))


def test_a_running_pod_is_running_ready_and_has_its_addresses() -> None:
    status = generate(pod(A, B), observed(seen(A), seen(B)), host_ips=("127.0.0.1", "::1"))
    assert status.phase == "Running"
    assert conditions(status) == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    assert all(one.ready and one.started for one in status.container_statuses)
    assert (status.pod_ip, status.host_ip) == ("10.0.0.10", "127.0.0.1")
    assert [ip.ip for ip in status.host_ips] == ["127.0.0.1", "::1"]
    assert status.qos_class == "BestEffort"


def test_a_disruption_is_kept_and_the_deleted_pod_has_failed() -> None:
    disruption = PodCondition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")
    before = attrs.evolve(RUNNING, conditions=(disruption,))
    status = generate(pod(A, B, deleted=True), observed(), before, terminal=True)
    assert status.phase == "Failed"
    assert status.conditions[0] == disruption
    assert [one.restart_count for one in status.container_statuses] == [0, 0]
    ready = next(one for one in status.conditions if one.type == "Ready")
    assert (ready.status, ready.reason) == ("False", "PodFailed")


@pytest.mark.parametrize("deleted", [True, False])
def test_containers_that_vanished_do_not_make_a_pod_pending(deleted: bool) -> None:
    status = generate(pod(A, B, deleted=deleted), observed(), RUNNING)
    assert status.phase == "Running"
    assert [one.restart_count for one in status.container_statuses] == [0 if deleted else 1] * 2


def test_what_the_api_server_shows_as_ended_stays_so() -> None:
    status = generate(pod(A, B, status=attrs.evolve(RUNNING, phase="Succeeded")), observed(sandbox=False), RUNNING)
    assert status.phase == "Succeeded"
    assert conditions(status)["PodReadyToStartContainers"] == "False"
    reasons = {one.type: one.reason for one in status.conditions}
    assert reasons["Initialized"] == reasons["Ready"] == reasons["ContainersReady"] == "PodCompleted"


@pytest.mark.parametrize("restart", ["Always", "Never"])
def test_what_was_reported_as_ended_stays_so_with_its_reason(restart: str) -> None:
    before = PodStatus(phase="Succeeded", reason="Test", message="test", container_statuses=(ended(A), ended(B)))
    of = pod(A, B, restart=restart, status=attrs.evolve(RUNNING, phase="Running"))
    status = generate(of, observed(sandbox=False), before)
    assert (status.phase, status.reason, status.message) == ("Succeeded", "Test", "test")


def test_a_running_pod_may_become_pending_again() -> None:
    before = PodStatus(container_statuses=(waiting(A), waiting(B)))
    assert generate(pod(A, B, status=PodStatus(phase="Running")), observed(), before).phase == "Pending"


def test_reason_and_message_go_when_the_phase_changes() -> None:
    before = PodStatus(phase="Pending", reason="Test", message="test")
    kept = generate(pod(A, B), observed(seen(B)), before)
    assert (kept.phase, kept.reason, kept.message) == ("Pending", "Test", "test")
    gone = generate(pod(A, B), observed(seen(A), seen(B)), before)
    assert (gone.phase, gone.reason, gone.message) == ("Running", "", "")


def test_an_evicted_pod_has_failed_whatever_its_containers_do() -> None:
    eviction = Eviction("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
    status = generate(pod(A), observed(seen(A)), eviction=eviction)
    assert (status.phase, status.reason, status.message) == ("Failed", eviction.reason, eviction.message)
    ended_before = generate(pod(A, status=PodStatus(phase="Succeeded")), observed(), eviction=eviction)
    assert ended_before.phase == "Succeeded"


def test_conditions_of_others_are_kept_and_own_ones_of_before_are_not() -> None:
    others = PodCondition(type="example.com/gate", status="True")
    resize = PodCondition(type="PodResizePending", status="True")
    own = PodCondition(type="AllContainersRestarting", status="True")
    before = PodStatus(conditions=(others, own, attrs.evolve(resize, reason="Deferred")))
    status = generate(pod(A, status=before), observed(seen(A)), resizes=(resize,))
    assert status.conditions[:2] == (others, resize)
    assert "AllContainersRestarting" not in conditions(status)
    assert "PodResizePending" not in conditions(generate(pod(A, status=before), observed(seen(A))))


def test_every_condition_names_the_generation_it_is_about() -> None:
    of = pod(A)
    of = attrs.evolve(of, metadata=attrs.evolve(of.metadata, generation=7))
    status = generate(of, observed(seen(A)))
    assert status.observed_generation == 7
    assert {one.observed_generation for one in status.conditions} == {7}


PROBED = Container(name=A, readiness_probe=Probe(), startup_probe=Probe())


@pytest.mark.parametrize(
    ("outcomes", "started", "ready"),
    [
        (ProbeOutcomes(), False, False),
        (ProbeOutcomes(startup={"test://a": True}), True, False),
        (ProbeOutcomes(startup={"test://a": True}, readiness={"test://a": True}), True, True),
        (ProbeOutcomes(startup={"test://a": True}, readiness={"test://a": False}), True, False),
        (ProbeOutcomes(startup={"test://a": False}, readiness={"test://a": True}), False, False),
        (ProbeOutcomes(startup={"test://other": True}), False, False),
    ],
)
def test_a_probed_container_is_what_its_probes_say(outcomes: ProbeOutcomes, started: bool, ready: bool) -> None:
    status = generate(pod(PROBED), observed(seen(A)), outcomes=outcomes)
    (one,) = status.container_statuses
    assert (one.started, one.ready) == (started, ready)
    assert conditions(status)["Ready"] == str(ready)


READY = PodStatus(conditions=(PodCondition(type="Ready", status="True"),))
NOT_READY = PodStatus(conditions=(PodCondition(type="Ready", status="False"),))


@pytest.mark.parametrize(("told", "ready"), [(READY, True), (NOT_READY, False), (PodStatus(), False)])
def test_until_a_probe_speaks_again_the_same_container_is_ready_if_its_pod_was(told: PodStatus, ready: bool) -> None:
    before = PodStatus(container_statuses=(running(A, started=True, ready=True, container_id="test://a"),))
    probed = attrs.evolve(pod(PROBED), status=told)
    same = generate(probed, observed(seen(A)), before)
    assert (same.container_statuses[0].started, same.container_statuses[0].ready) == (True, ready)
    new = generate(probed, observed(seen(A, id_="new")), before)
    assert (new.container_statuses[0].started, new.container_statuses[0].ready) == (False, False)


def test_a_container_that_does_not_run_is_neither_started_nor_ready() -> None:
    (one,) = generate(pod(A), observed(seen(A, "exited", 1))).container_statuses
    assert (one.started, one.ready) == (False, False)


def test_init_containers_are_ready_when_done_and_sidecars_when_running() -> None:
    of = pod(A, init=(X, sidecar("s")))
    status = generate(of, observed(seen(X, "exited"), seen("s"), seen(A)))
    assert [(one.name, one.started, one.ready) for one in status.init_container_statuses] == [
        (X, False, True),
        ("s", True, True),
    ]
    assert conditions(status)["Initialized"] == "True"
    failed = generate(of, observed(seen(X, "exited", 1)))
    assert failed.init_container_statuses[0].ready is False
    assert conditions(failed)["Initialized"] == "False"


def test_a_sidecar_that_starts_in_a_new_sandbox_makes_the_pod_pending() -> None:
    of = pod(A, init=(sidecar(X),))
    probed = attrs.evolve(of.spec.init_containers[0], startup_probe=Probe())
    of = attrs.evolve(of, spec=attrs.evolve(of.spec, init_containers=(probed,)))
    assert generate(of, observed(seen(X), seen(A, pod_sandbox_id="old"))).phase == "Pending"
    assert generate(of, observed(seen(X), seen(A))).phase == "Running"


def test_the_quality_of_service_follows_from_the_resources() -> None:
    amounts = {"cpu": Quantity("1"), "memory": Quantity("1Gi")}
    guaranteed = Container(name=A, resources=ResourceRequirements(limits=amounts, requests=amounts))
    burstable = Container(name=B, resources=ResourceRequirements(requests={"cpu": Quantity("1")}))
    assert generate(pod(guaranteed), observed()).qos_class == "Guaranteed"
    assert generate(pod(guaranteed, burstable), observed()).qos_class == "Burstable"
    assert generate(pod(guaranteed, status=PodStatus(qos_class="BestEffort")), observed()).qos_class == "BestEffort"


@pytest.mark.parametrize(
    ("ipv6_first", "runtime", "expected"),
    [
        (False, ("10.0.0.1",), ["10.0.0.1"]),
        (False, ("fd01::1234", "10.0.0.1"), ["10.0.0.1", "fd01::1234"]),
        (True, ("10.0.0.1", "fd01::1234"), ["fd01::1234", "10.0.0.1"]),
        (False, ("10.0.0.1", "10.0.0.2"), ["10.0.0.1"]),
        (False, ("fd01:0:0::1234", "?"), ["fd01::1234"]),
        (False, (), []),
    ],
)
@pytest.mark.parametrize("node", [(), ("127.0.0.1",), ("::1", "127.0.0.1")])
def test_pod_addresses_follow_the_family_that_was_asked_for_whatever_the_node_has(
    ipv6_first: bool, runtime: tuple[str, ...], expected: list[str], node: tuple[str, ...]
) -> None:
    now = attrs.evolve(observed(), ips=runtime)
    status = generate(pod(A), now, host_ips=node, ipv6_first=ipv6_first)
    assert [ip.ip for ip in status.pod_ips] == expected
    assert status.pod_ip == (expected[0] if expected else "")


@pytest.mark.parametrize(
    ("node", "runtime", "expected"),
    [
        (("127.0.0.1",), (), ["127.0.0.1"]),
        (("127.0.0.1", "::1"), (), ["127.0.0.1", "::1"]),
        (("127.0.0.1", "::1"), ("192.168.0.1",), ["192.168.0.1", "::1"]),
        (("127.0.0.1", "::1"), ("192.168.0.1", "2001:db8::2"), ["192.168.0.1", "2001:db8::2"]),
    ],
)
def test_a_pod_in_the_hosts_network_has_the_hosts_addresses(
    node: tuple[str, ...], runtime: tuple[str, ...], expected: list[str]
) -> None:
    status = generate(pod(A, host_network=True), attrs.evolve(observed(), ips=runtime), host_ips=node)
    assert [ip.ip for ip in status.pod_ips] == expected
