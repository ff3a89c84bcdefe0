"""When a probe asks, by the tables of the kubelet's prober worker and beyond them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.probes.workers import (
    FAILURE,
    FIELDS,
    ID,
    INITIAL,
    LIVENESS,
    READINESS,
    STARTED,
    STARTUP,
    SUCCESS,
    UNKNOWN,
    Worker,
    container,
    each_kind,
    ended,
    in_turn,
    pod_of,
    probe,
    running,
    sidecar_worker,
    status_of,
    waiting,
    worker,
)
from trikubelet.api import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ObjectMeta,
    Pod,
    PodCondition,
    PodSpec,
)
from trikubelet.container.model import ContainerID
from trikubelet.probes.decisions import Next, workers_of

if TYPE_CHECKING:
    from trikubelet.container.probe_results import ProbeResult
    from trikubelet.probes.types import ProbeKind

# --- one look: TestDoProbe ---


@each_kind
def test_without_a_status_the_worker_waits(kind: ProbeKind) -> None:
    one = worker(kind)
    assert one.probe()
    assert one.look().next is Next.REST
    assert one.result is None


@each_kind
@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_is_over_ends_the_worker(kind: ProbeKind, phase: str) -> None:
    one = worker(kind, status_of(running(), phase=phase))
    assert not one.probe()
    assert one.result is None


@pytest.mark.parametrize(("kind", "goes_on"), [(LIVENESS, False), (READINESS, True), (STARTUP, False)])
def test_in_a_deletion_liveness_and_startup_end_with_success_and_readiness_is_asked(
    kind: ProbeKind, goes_on: bool
) -> None:
    one = worker(kind, in_turn(kind))
    one.deleting = True
    assert one.probe() is goes_on
    assert one.asked == goes_on
    assert one.result is SUCCESS


@each_kind
def test_a_sidecar_is_probed_while_the_pod_is_deleted_until_it_is_told_to_stop(kind: ProbeKind) -> None:
    one = sidecar_worker(kind, running(started=kind is not STARTUP))
    one.deleting = True
    assert one.probe()
    assert one.asked == 1


@each_kind
def test_a_container_without_a_status_of_its_own_is_waited_for(kind: ProbeKind) -> None:
    other = attrs.evolve(running(), name="other")
    for one in (other, running(id_=""), running(id_="no id at all")):
        patient = worker(kind, status_of(one))
        assert patient.look().next is Next.REST
        assert not patient.results


@each_kind
def test_a_container_that_waits_has_failed_and_is_waited_for(kind: ProbeKind) -> None:
    one = worker(kind, status_of(waiting()))
    assert one.look().next is Next.REST
    assert one.result is FAILURE


@each_kind
def test_a_container_that_ended_for_good_has_failed_and_ends_the_worker(kind: ProbeKind) -> None:
    one = worker(kind, status_of(ended()))
    assert not one.probe()
    assert one.result is FAILURE


@each_kind
def test_a_container_that_answers_well_succeeds(kind: ProbeKind) -> None:
    one = worker(kind, in_turn(kind))
    assert one.probe()
    assert one.asked == 1
    assert one.result is SUCCESS


@each_kind
def test_a_negative_initial_delay_is_none(kind: ProbeKind) -> None:
    one = worker(kind, in_turn(kind), probe(initial_delay_seconds=-100))
    assert one.probe()
    assert one.result is SUCCESS


# --- whether there will be another container: TestDoProbeWithContainerRestartRules ---


def on_exit_code(*codes: int, action: str = "Restart") -> tuple[ContainerRestartRule, ...]:
    rule = ContainerRestartRuleOnExitCodes(operator="In", values=codes)
    return (ContainerRestartRule(action=action, exit_codes=rule),)


@each_kind
@pytest.mark.parametrize(
    ("policy", "code", "rules", "goes_on"),
    [
        ("OnFailure", 1, (), True),
        ("OnFailure", 0, (), False),
        ("Always", 1, (), True),
        ("Always", 0, (), True),
        ("Never", 1, (), False),
        ("Never", 0, (), False),
        ("Never", 1, on_exit_code(1), True),
        ("Never", 1, on_exit_code(99), False),
    ],
)
def test_the_containers_own_policy_decides_whether_there_is_another(
    kind: ProbeKind, policy: str, code: int, rules: tuple[ContainerRestartRule, ...], goes_on: bool
) -> None:
    one = worker(kind, status_of(ended(code)), restart_policy=policy, restart_policy_rules=rules)
    assert one.probe() is goes_on
    assert one.result is FAILURE


@pytest.mark.parametrize(("restart", "code", "goes_on"), [("Always", 0, True), ("OnFailure", 0, False)])
def test_without_one_of_its_own_the_pods_policy_decides(restart: str, code: int, goes_on: bool) -> None:
    (spec,) = workers_of(pod_of(container(LIVENESS), restart=restart))
    assert Worker(spec, status_of(ended(code))).probe() is goes_on


def test_a_sidecar_that_ended_comes_again_whatever_the_pods_policy() -> None:
    one = sidecar_worker(STARTUP, ended())
    assert one.probe()
    assert one.result is FAILURE


# --- all containers restart: TestDoProbeWithContainerRestartAllContainers ---

ALL = on_exit_code(1, action="RestartAllContainers")
TRIGGER = Container(name="trigger", restart_policy="Never", restart_policy_rules=ALL)


@each_kind
def test_a_container_that_ends_and_so_restarts_all_comes_again(kind: ProbeKind) -> None:
    assert worker(kind, status_of(ended(1)), restart_policy="Never", restart_policy_rules=ALL).probe()


@each_kind
@pytest.mark.parametrize(("code", "goes_on"), [(1, True), (2, False)])
def test_a_container_that_another_restarts_comes_again(kind: ProbeKind, code: int, goes_on: bool) -> None:
    spec, *_ = workers_of(pod_of(container(kind), TRIGGER))
    one = Worker(spec, status_of(ended(1), ended(code, "trigger")))
    assert one.probe() is goes_on


@each_kind
def test_a_container_comes_again_while_the_restart_of_all_is_reported(kind: ProbeKind) -> None:
    spec, *_ = workers_of(pod_of(container(kind), TRIGGER))
    condition = PodCondition(type="AllContainersRestarting", status="True")
    assert Worker(spec, status_of(ended(1), conditions=(condition,))).probe()


@each_kind
def test_a_container_that_was_removed_to_restart_all_is_waited_for(kind: ProbeKind) -> None:
    spec, *_ = workers_of(pod_of(container(kind), TRIGGER))
    assert Worker(spec, status_of(waiting(), phase="Pending")).probe()


# --- the initial delay ---


@each_kind
def test_nothing_is_asked_before_the_initial_delay_is_over(kind: ProbeKind) -> None:
    """TestInitialDelay."""
    one = worker(kind, in_turn(kind), probe(initial_delay_seconds=10))
    one.now += timedelta(seconds=3.5)
    verdict = one.look()
    assert (verdict.next, verdict.resume_in) == (Next.REST, 6.5)
    assert one.result is INITIAL[kind]

    one.now = STARTED + timedelta(seconds=9.99)
    assert one.look().next is Next.REST
    for seconds in (9.9995, 10, 100):
        one.now = STARTED + timedelta(seconds=seconds)
        assert one.look().next is Next.ASK
    assert one.probe()
    assert one.result is SUCCESS


def test_a_clock_that_was_set_back_makes_nobody_wait_longer_than_the_whole_delay() -> None:
    one = worker(LIVENESS, in_turn(LIVENESS), probe(initial_delay_seconds=10))
    one.now -= timedelta(hours=1)
    assert one.look().resume_in == 10


def test_a_clock_that_was_set_back_delays_no_probe_without_a_delay() -> None:
    one = worker(LIVENESS, in_turn(LIVENESS))
    one.now -= timedelta(hours=1)
    assert one.look().next is Next.ASK


def test_a_container_that_started_nobody_knows_when_has_no_delay() -> None:
    assert worker(LIVENESS, in_turn(LIVENESS, since=None), probe(initial_delay_seconds=10)).look().next is Next.ASK


# --- after a restart of the agent: TestChangeContainerStatusOnKubeletRestart, as it is with the gate off ---

OLD, YOUNG = STARTED - timedelta(minutes=5), STARTED + timedelta(minutes=5)
LONG_DELAY = probe(initial_delay_seconds=1000)


@each_kind
@pytest.mark.parametrize(
    ("since", "begins_anew"),
    [
        (OLD, False),
        (STARTED - timedelta(seconds=11), False),
        (STARTED - timedelta(seconds=10), True),
        (YOUNG, True),
        (None, True),
    ],
)
def test_a_container_that_outlived_the_agent_keeps_what_was_reported(
    kind: ProbeKind, since: datetime | None, begins_anew: bool
) -> None:
    one = worker(kind, in_turn(kind, since=since), LONG_DELAY)
    one.look()
    assert one.result is (INITIAL[kind] if begins_anew else None)


@pytest.mark.parametrize(("since", "expected"), [(OLD, None), (YOUNG, UNKNOWN)])
def test_a_container_that_is_no_sidecar_does_not_say_at_once_that_it_has_started(
    since: datetime, expected: ProbeResult | None
) -> None:
    one = worker(STARTUP, status_of(running(since=since)), LONG_DELAY)
    one.look()
    assert one.result is expected


@each_kind
@pytest.mark.parametrize(
    ("since", "started", "expected"),
    [
        (OLD, True, {STARTUP: SUCCESS}),
        (OLD, False, {}),
        (YOUNG, False, INITIAL),
        (YOUNG, True, INITIAL | {STARTUP: SUCCESS}),
    ],
)
def test_a_sidecar_that_has_started_says_so_at_once(
    kind: ProbeKind, since: datetime, started: bool, expected: dict[ProbeKind, ProbeResult]
) -> None:
    one = sidecar_worker(kind, running(started=started, since=since), LONG_DELAY)
    one.look()
    assert one.result is expected.get(kind)


@each_kind
@pytest.mark.parametrize("since", [OLD, YOUNG])
@pytest.mark.parametrize("sidecar", [False, True])
def test_with_the_gate_on_every_container_begins_anew(kind: ProbeKind, since: datetime, sidecar: bool) -> None:
    if sidecar:
        one = sidecar_worker(kind, running(started=True, since=since), LONG_DELAY)
    else:
        one = worker(kind, in_turn(kind, since=since), LONG_DELAY)
    one.agent_started = None
    one.look()
    assert one.result is INITIAL[kind]


def test_a_container_that_outlived_the_agent_is_asked_and_fails_at_its_threshold() -> None:
    one = worker(READINESS, in_turn(READINESS, since=OLD), probe(failure_threshold=2))
    one.answer = False
    one.probe()
    assert (one.asked, one.result) == (1, None)
    one.probe()
    assert (one.asked, one.result) == (2, FAILURE)


def test_a_new_container_replaces_the_results_of_the_old_one() -> None:
    one = worker(READINESS, in_turn(READINESS))
    one.probe()
    one.status = status_of(running(started=False, id_="test://2"))
    assert one.look().results == ((ID, None), (ContainerID("test", "2"), FAILURE))


# --- workers ---


def test_containers_and_sidecars_have_a_worker_for_each_of_their_probes() -> None:
    every: dict[str, Any] = {field: probe() for field in FIELDS.values()}
    pod = Pod(
        metadata=ObjectMeta(uid="u"),
        spec=PodSpec(
            containers=(Container(name="a", **every), Container(name="silent")),
            init_containers=(
                Container(name="init", **every),
                Container(name="side", restart_policy="Always", readiness_probe=probe()),
            ),
        ),
    )
    specs = workers_of(pod)
    assert [(spec.key.pod_uid, spec.key.container, spec.key.kind, spec.sidecar) for spec in specs] == [
        ("u", "a", STARTUP, False),
        ("u", "a", READINESS, False),
        ("u", "a", LIVENESS, False),
        ("u", "side", READINESS, True),
    ]
    assert all(spec.probe == getattr(spec.container, FIELDS[spec.key.kind]) for spec in specs)


def test_a_main_container_with_a_policy_like_a_sidecars_is_none() -> None:
    (spec,) = workers_of(pod_of(container(LIVENESS, restart_policy="Always")))
    assert not spec.sidecar
