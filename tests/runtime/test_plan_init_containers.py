"""The outcomes of the kubelet's tables `TestComputePodActionsWith{,Restartable}InitContainers` and `…Ephemeral…`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.situations import (
    DEBUG,
    MAIN,
    Situation,
    status_of,
    three_initialized,
    three_running,
    three_sidecars,
    with_guest,
)
from tests.runtime.test_plan import KILL_ONLY, NEW, SAME, check, rule
from trikubelet.api import EphemeralContainer
from trikubelet.container.model import ContainerID, ContainerState
from trikubelet.container.probe_results import ProbeResult, ProbeResults
from trikubelet.runtime.plan import ContainerToReset, compute_pod_actions

UNKNOWN = ContainerState.UNKNOWN
CREATED = ContainerState.CREATED
RUNNING = ContainerState.RUNNING
EXITED = ContainerState.EXITED


def main_statuses(state: ContainerState) -> list[Any]:
    return [status_of(MAIN[index], f"id{index + 1}", state) for index in range(3)]


INIT_TABLE: dict[str, tuple[Situation, dict[str, Any]]] = {
    "initialization is done; start all containers": (
        three_initialized(),
        {**SAME, "containers_to_start": (0, 1, 2)},
    ),
    "no init container was started; start the first": (
        three_initialized().only(),
        {**SAME, "init_containers_to_start": (0,)},
    ),
    "initialization goes on; do nothing": (three_initialized().policy("Always").running("init3"), SAME),
    "a dead sandbox starts over with the first init container": (
        three_initialized().policy("Always").sandbox(ready=False),
        {**NEW, "init_containers_to_start": (0,)},
    ),
    "the last init container failed; run it again with Always": (
        three_initialized().policy("Always").exited("init3", 137),
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "the last init container failed; run it again with OnFailure": (
        three_initialized().policy("OnFailure").exited("init3", 137),
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "the last init container failed; kill the pod with Never": (
        three_initialized().policy("Never").exited("init3", 137),
        KILL_ONLY,
    ),
    "an init container that ran out of memory failed, whatever its exit code": (
        three_initialized().policy("Never").exited("init3", 0, reason="OOMKilled"),
        KILL_ONLY,
    ),
    "an init container in an unknown state is killed and run again with Always": (
        three_initialized().policy("Always").seen("init3", UNKNOWN),
        {**SAME, "kill": ["initid3"], "init_containers_to_start": (2,)},
    ),
    "an init container in an unknown state is killed and run again with OnFailure": (
        three_initialized().policy("OnFailure").seen("init3", UNKNOWN),
        {**SAME, "kill": ["initid3"], "init_containers_to_start": (2,)},
    ),
    "an init container in an unknown state ends the pod with Never": (
        three_initialized().policy("Never").seen("init3", UNKNOWN),
        KILL_ONLY,
    ),
    "a dead sandbox and a container that was seen end the pod with Never": (
        three_initialized().policy("Never").sandbox(ready=False),
        {**KILL_ONLY, "attempt": 1},
    ),
    "a dead sandbox and no container ever seen start over with Never": (
        three_initialized().policy("Never").sandbox(ready=False).only(),
        {**NEW, "init_containers_to_start": (0,)},
    ),
    "a dead sandbox and a failed init container start over with OnFailure": (
        three_initialized().policy("OnFailure").sandbox(ready=False).exited("init3", 137),
        {**NEW, "init_containers_to_start": (0,)},
    ),
    "the last init container runs and the others are forgotten; do not run them again": (
        three_initialized().policy("Always").running("init3").only("init3"),
        SAME,
    ),
    "an init container that was created but never started is run": (
        three_initialized().policy("Always").seen("init3", CREATED),
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "an init container's own policy OnFailure runs it again in a pod with Never": (
        three_initialized().policy("Never").container("init3", restart_policy="OnFailure").exited("init3", 1),
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "main containers run and init containers are forgotten; do nothing": (
        three_initialized().policy("Always").only().also(*main_statuses(RUNNING)),
        SAME,
    ),
}


@pytest.mark.parametrize("name", INIT_TABLE)
def test_plan_of_init_containers(name: str) -> None:
    check(*INIT_TABLE[name])


def probed(startup: ProbeResult | None = None, liveness: ProbeResult | None = None, number: int = 2) -> ProbeResults:
    """All sidecars with probes succeeded, but the one with this number."""
    success = {ContainerID("", f"initid{index}"): ProbeResult.SUCCESS for index in (2, 3)}
    own = ContainerID("", f"initid{number}")
    return ProbeResults(
        startup={**success, **({} if startup is None else {own: startup})},
        liveness={**success, **({} if liveness is None else {own: liveness})},
    )


def without(results: ProbeResults, *, kind: str, number: int) -> ProbeResults:
    own = ContainerID("", f"initid{number}")
    kept = {
        name: {key: value for key, value in getattr(results, name).items() if name != kind or key != own}
        for name in ("startup", "liveness")
    }
    return ProbeResults(**kept)


ALL_STARTED = probed()
FIRST_TWO = ("restartable-init-1", "restartable-init-2")

SIDECAR_TABLE: dict[str, tuple[Situation, ProbeResults, dict[str, Any]]] = {
    "initialization is done; start all containers": (
        three_sidecars(),
        ALL_STARTED,
        {**SAME, "containers_to_start": (0, 1, 2)},
    ),
    "no sidecar was started; start the first": (
        three_sidecars().only(),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (0,)},
    ),
    "a sidecar that was created but never started is started": (
        three_sidecars().policy("Always").seen("restartable-init-3", CREATED),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "a sidecar has started; start the next": (
        three_sidecars().policy("Always").only("restartable-init-1"),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (1,)},
    ),
    "a liveness probe that was not run yet holds up nothing": (
        three_sidecars().policy("Always").only(*FIRST_TWO),
        without(ALL_STARTED, kind="liveness", number=2),
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "a liveness probe that does not know yet holds up nothing": (
        three_sidecars().policy("Always").only(*FIRST_TWO),
        probed(liveness=ProbeResult.UNKNOWN),
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "a sidecar is alive; start the next": (
        three_sidecars().policy("Always").only(*FIRST_TWO),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "a sidecar whose liveness probe failed is killed and started again": (
        three_sidecars().policy("Always"),
        probed(liveness=ProbeResult.FAILURE, number=3),
        {**SAME, "kill": ["initid3"], "init_containers_to_start": (2,), "containers_to_start": (0, 1, 2)},
    ),
    "a startup probe that was not run yet holds up the next": (
        three_sidecars().policy("Always").only(*FIRST_TWO),
        without(ALL_STARTED, kind="startup", number=2),
        SAME,
    ),
    "a startup probe that does not know yet holds up the next": (
        three_sidecars().policy("Always").only(*FIRST_TWO),
        probed(startup=ProbeResult.UNKNOWN),
        SAME,
    ),
    "a sidecar's startup is complete; start the next": (
        three_sidecars().policy("Always").only(*FIRST_TWO),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "a sidecar whose startup probe failed is killed and started again": (
        three_sidecars().policy("Always"),
        probed(startup=ProbeResult.FAILURE, number=3),
        {**SAME, "kill": ["initid3"], "init_containers_to_start": (2,)},
    ),
    "a changed sidecar is killed and started again": (
        three_sidecars().policy("Always").container("restartable-init-3", image="foo-image"),
        ALL_STARTED,
        {**SAME, "kill": ["initid3"], "init_containers_to_start": (2,), "containers_to_start": (0, 1, 2)},
    ),
    "an ended sidecar starts again beside the next one": (
        three_sidecars().policy("Always").exited("restartable-init-1").exited("restartable-init-3"),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (0, 2)},
    ),
    "an ended sidecar starts again beside the main containers": (
        three_sidecars().policy("Always").exited("restartable-init-1"),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (0,), "containers_to_start": (0, 1, 2)},
    ),
    "a dead sandbox and a failed sidecar end the pod with Never": (
        three_sidecars().policy("Never").sandbox(ready=False).exited("restartable-init-3", 137),
        ALL_STARTED,
        {**KILL_ONLY, "attempt": 1},
    ),
    "a dead sandbox and no sidecar ever seen start over with Never": (
        three_sidecars().policy("Never").sandbox(ready=False).only(),
        ALL_STARTED,
        {**NEW, "init_containers_to_start": (0,)},
    ),
    "a dead sandbox and a failed sidecar start over with OnFailure": (
        three_sidecars().policy("OnFailure").sandbox(ready=False).exited("restartable-init-3", 137),
        ALL_STARTED,
        {**NEW, "init_containers_to_start": (0,)},
    ),
    "a dead sandbox and a failed sidecar start over with Always": (
        three_sidecars().policy("Always").sandbox(ready=False).exited("restartable-init-3", 137),
        ALL_STARTED,
        {**NEW, "init_containers_to_start": (0,)},
    ),
    "the last sidecar failed; start it again even with Never": (
        three_sidecars().policy("Never").exited("restartable-init-3", 137),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "a sidecar in an unknown state is killed and started again even with Never": (
        three_sidecars().policy("Never").seen("restartable-init-3", UNKNOWN),
        ALL_STARTED,
        {**SAME, "kill": ["initid3"], "init_containers_to_start": (2,)},
    ),
    "a failed sidecar starts again while main containers run, even with Never": (
        three_sidecars().policy("Never").exited("restartable-init-3", 137).also(*main_statuses(RUNNING)),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (2,)},
    ),
    "main containers succeeded; sidecars do not keep the pod alive": (
        three_sidecars().policy("Never").also(*main_statuses(EXITED)),
        ALL_STARTED,
        KILL_ONLY,
    ),
    "forgotten sidecars start again beside main containers": (
        three_sidecars().policy("Always").only("restartable-init-3"),
        ALL_STARTED,
        {**SAME, "init_containers_to_start": (0, 1), "containers_to_start": (0, 1, 2)},
    ),
}


@pytest.mark.parametrize("name", SIDECAR_TABLE)
def test_plan_of_sidecars(name: str) -> None:
    situation, probes, expected = SIDECAR_TABLE[name]
    check(situation, expected, probes)


GUEST_TABLE: dict[str, tuple[Situation, dict[str, Any]]] = {
    "all is well; leave the ephemeral container alone": (with_guest(), SAME),
    "an ephemeral container that was never started is started": (
        with_guest().only("foo1", "foo2", "foo3", "init1"),
        {**SAME, "ephemeral_containers_to_start": (0,)},
    ),
    "a second ephemeral container is started": (
        with_guest().spec(ephemeral_containers=(DEBUG, EphemeralContainer(name="debug2", image="busybox"))),
        {**SAME, "ephemeral_containers_to_start": (1,)},
    ),
    "an ephemeral container that was created but never started is started": (
        with_guest().policy("Always").seen("debug", CREATED),
        {**SAME, "ephemeral_containers_to_start": (0,)},
    ),
    "an ephemeral container that exited is not started again": (with_guest().policy("Always").exited("debug"), SAME),
    "an ephemeral container starts while initialization goes on": (
        with_guest().running("init1").only("init1"),
        {**SAME, "ephemeral_containers_to_start": (0,)},
    ),
    "a dead sandbox starts over without the ephemeral container": (
        with_guest().policy("Always").sandbox(ready=False),
        {**NEW, "init_containers_to_start": (0,)},
    ),
    "a dead sandbox and a failed init container start over without the ephemeral container": (
        with_guest().policy("OnFailure").sandbox(ready=False).only("init1", "debug").exited("init1", 137),
        {**NEW, "init_containers_to_start": (0,)},
    ),
    "a pod of which only the ephemeral container runs is over": (
        with_guest().policy("Never").exited("foo1").exited("foo2").exited("foo3"),
        KILL_ONLY,
    ),
    "an ephemeral container in an unknown state is left alone": (
        with_guest().policy("Never").seen("debug", UNKNOWN),
        SAME,
    ),
}


@pytest.mark.parametrize("name", GUEST_TABLE)
def test_plan_of_ephemeral_containers(name: str) -> None:
    check(*GUEST_TABLE[name])


RESTART_ALL = {"restart_policy_rules": (rule("In", 1, action="RestartAllContainers"),)}

RESET_TABLE: dict[str, tuple[Situation, list[tuple[str, str, bool]]]] = {
    "all main containers go": (
        three_running(),
        [("foo1", "id1", True), ("foo2", "id2", True), ("foo3", "id3", True)],
    ),
    "ended init containers go without a kill": (
        three_initialized(),
        [("init1", "initid1", False), ("init2", "initid2", False), ("init3", "initid3", False)],
    ),
    "an init container that asked for it goes last": (
        three_initialized()
        .container("init2", restart_policy="Always")
        .container("init3", restart_policy="Never", **RESTART_ALL)
        .running("init2")
        .exited("init3", 1),
        [("init1", "initid1", False), ("init2", "initid2", True), ("init3", "initid3", False)],
    ),
    "a sidecar that asked for it goes last, after main containers and other sidecars": (
        three_sidecars()
        .container("restartable-init-3", **RESTART_ALL)
        .exited("restartable-init-3", 1)
        .also(main_statuses(RUNNING)[0]),
        [
            ("foo1", "id1", True),
            ("restartable-init-1", "initid1", True),
            ("restartable-init-2", "initid2", True),
            ("restartable-init-3", "initid3", False),
        ],
    ),
    "running sidecars are killed": (
        three_sidecars(),
        [
            ("restartable-init-1", "initid1", True),
            ("restartable-init-2", "initid2", True),
            ("restartable-init-3", "initid3", True),
        ],
    ),
    "a main container that asked for it goes last, after other main containers and all sidecars": (
        three_sidecars()
        .container("foo3", restart_policy="Never", **RESTART_ALL)
        .also(*main_statuses(RUNNING)[:2], status_of(MAIN[2], "id3", EXITED, exit_code=1)),
        [
            ("foo1", "id1", True),
            ("foo2", "id2", True),
            ("restartable-init-1", "initid1", True),
            ("restartable-init-2", "initid2", True),
            ("restartable-init-3", "initid3", True),
            ("foo3", "id3", False),
        ],
    ),
    "a main container that asked for it goes last, with its earlier runs before": (
        three_running("Always")
        .container("foo3", restart_policy="Always", **RESTART_ALL)
        .exited("foo3", 1)
        .also(
            status_of(MAIN[0], "id1-past", EXITED, exit_code=99),
            status_of(MAIN[2], "id3-past", EXITED, exit_code=99),
        ),
        [
            ("foo1", "id1", True),
            ("foo1", "id1-past", False),
            ("foo2", "id2", True),
            ("foo3", "id3-past", False),
            ("foo3", "id3", False),
        ],
    ),
}


@pytest.mark.parametrize("name", RESET_TABLE)
def test_containers_are_removed_in_order_when_all_restart(name: str) -> None:
    situation, expected = RESET_TABLE[name]
    plan = compute_pod_actions(situation.pod, situation.status, restart_all_containers=True)
    assert list(plan.containers_to_reset) == [
        ContainerToReset(ContainerID("", identifier), container, kill) for container, identifier, kill in expected
    ]
    assert not plan.kill_pod
    assert plan.containers_to_start == plan.init_containers_to_start == ()


def test_nothing_is_removed_from_a_pod_that_does_not_restart_as_a_whole() -> None:
    situation = three_running("Always").container("foo3", restart_policy="Always", **RESTART_ALL)
    check(situation, SAME)


@pytest.mark.parametrize(
    ("situation", "starts"),
    [
        (three_initialized().only(), {"init_containers_to_start": (0,)}),
        (three_running().only(), {"containers_to_start": (0, 1, 2)}),
    ],
)
def test_a_pod_whose_containers_were_all_removed_starts_over_in_its_sandbox(
    situation: Situation, starts: dict[str, Any]
) -> None:
    check(situation, {**SAME, **starts})


def test_a_lost_sandbox_is_replaced_before_all_containers_restart() -> None:
    situation = three_running("Always").sandbox(ready=False)
    plan = compute_pod_actions(situation.pod, situation.status, restart_all_containers=True)
    assert plan.kill_pod
    assert plan.create_sandbox
    assert len(plan.containers_to_reset) == 3
    assert plan.containers_to_start == ()
