"""What is said of containers, by the table of the kubelet's TestConvertToAPIContainerStatuses and beyond it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from tests.status.builders import (
    NOW,
    ended,
    ended_state,
    lost,
    observed,
    pod,
    restarting_all,
    running,
    seen,
    sidecar,
    waiting,
)
from trikubelet.api import (
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ContainerUser,
    LinuxContainerUser,
    Quantity,
    ResourceHealth,
    ResourceRequirements,
    ResourceStatus,
    VolumeMount,
)
from trikubelet.container import model
from trikubelet.status.container_statuses import StatusContext, container_statuses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.api import Pod
    from trikubelet.container.model import PodRuntimeStatus

A, B = "a", "b"


def statuses(
    of: Pod,
    now: PodRuntimeStatus,
    previous: Sequence[ContainerStatus] = (),
    *,
    init: bool = False,
    restarting: bool = False,
    reasons: Mapping[str, tuple[str, str]] | None = None,
) -> list[ContainerStatus]:
    """The statuses without ids and resources, which most tables are not about."""
    context = StatusContext(of, now, reasons or {}, restarting)
    containers = of.spec.init_containers if init else of.spec.containers
    return [_bare(one) for one in container_statuses(containers, previous, context, init=init)]


def _bare(status: ContainerStatus) -> ContainerStatus:
    def bare(state: ContainerState) -> ContainerState:
        if state.terminated is None:
            return state
        return ContainerState(terminated=attrs.evolve(state.terminated, container_id=""))

    return attrs.evolve(
        status, container_id="", resources=None, state=bare(status.state), last_state=bare(status.last_state)
    )


@pytest.mark.parametrize(
    ("deleted", "now", "previous", "restarting", "expected"),
    [
        pytest.param(True, [], [running(A), running(B)], False, [lost(A, 0), lost(B, 0)], id="gone, deleted"),
        pytest.param(False, [], [running(A), running(B)], False, [lost(A, 1), lost(B, 1)], id="gone, not deleted"),
        pytest.param(
            False,
            [],
            [ended(A, -1, restart_count=5), ended(B, -1, restart_count=5)],
            False,
            [ended(A, -1, restart_count=5), ended(B, -1, restart_count=5)],
            id="gone after their ends",
        ),
        pytest.param(
            False,
            [seen(A), seen(B)],
            [ended(A, -1, restart_count=5), ended(B, -1, restart_count=5)],
            False,
            [
                running(A, restart_count=6, last_state=ended_state(-1)),
                running(B, restart_count=6, last_state=ended_state(-1)),
            ],
            id="running, but the runtime forgot to count",
        ),
        pytest.param(
            False,
            [seen(A), seen(B, "exited", 42)],
            [running(A), running(B)],
            True,
            [running(A), ended(B, 42)],
            id="one ends and makes all restart",
        ),
        pytest.param(
            False,
            [seen(A, "exited", 137)],
            [running(A), ended(B, 42)],
            True,
            [ended(A, 137), restarting_all(B, 1)],
            id="the other is killed",
        ),
        pytest.param(
            False,
            [],
            [running(A), ended(B, 42)],
            True,
            [restarting_all(A, 1), restarting_all(B, 1)],
            id="both are removed",
        ),
        pytest.param(
            False,
            [seen(A, id_="new")],
            [restarting_all(A, 1), ended(B, 42)],
            True,
            [
                running(A, restart_count=1, last_state=restarting_all(A).last_state),
                restarting_all(B, 1),
            ],
            id="the first runs again",
        ),
    ],
)
def test_the_kubelets_table(
    deleted: bool,
    now: list[ContainerStatus],
    previous: list[ContainerStatus],
    restarting: bool,
    expected: list[ContainerStatus],
) -> None:
    of = pod(A, B, deleted=deleted)
    found = statuses(of, observed(*now), previous, restarting=restarting)  # type: ignore[arg-type]
    assert found == expected


def test_a_new_container_waits_to_be_made_and_one_with_init_containers_for_those() -> None:
    assert statuses(pod(Container(name=A, image="i")), observed()) == [waiting(A, "ContainerCreating", image="i")]
    assert statuses(pod(A, init=("x",)), observed()) == [waiting(A, "PodInitializing")]


def test_a_created_container_waits_without_a_reason() -> None:
    assert statuses(pod(A), observed(seen(A, "created"))) == [waiting(A)]


def test_a_running_container_shows_what_the_runtime_knows() -> None:
    amounts = {"cpu": Quantity("1")}
    container = Container(name=A, image="i:1", resources=ResourceRequirements(requests=amounts))
    shown = seen(A, started_at=NOW, image="i:1", image_ref="i@sha256:1", restart_count=2)
    context = StatusContext(pod(container), observed(shown), {})
    (status,) = container_statuses((container,), (), context)
    assert status.state.running is not None
    assert status.state.running.started_at == NOW
    assert (status.image, status.image_id, status.container_id) == ("i:1", "i@sha256:1", "test://a")
    assert (status.restart_count, status.resources, status.allocated_resources) == (2, container.resources, amounts)


def test_the_container_before_is_the_last_state() -> None:
    older = seen(A, "exited", 3, id_="old", reason="Error", message="oops", started_at=NOW, finished_at=NOW)
    context = StatusContext(pod(A), observed(seen(A, id_="new", restart_count=1), older, seen(A, id_="oldest")), {})
    (status,) = container_statuses((Container(name=A),), (), context)
    assert status.state.running is not None
    assert status.last_state.terminated == ContainerStateTerminated(
        exit_code=3, reason="Error", message="oops", started_at=NOW, finished_at=NOW, container_id="test://old"
    )


def test_containers_that_were_made_and_never_started_do_not_hide_the_last_end() -> None:
    """Each agent that is killed between making and starting one leaves one, and the next knows nothing of before."""
    ended_first = seen(A, "exited", 3, id_="first", restart_count=0)
    left = [seen(A, "created", id_=f"attempt-{count}", restart_count=count) for count in (3, 2, 1)]
    assert statuses(pod(A), observed(*left, ended_first)) == [waiting(A, last=3, restart_count=2)]


def test_a_container_that_ran_and_is_now_unknown_has_failed() -> None:
    message = "The container could not be located when the pod was terminated"
    expected = attrs.evolve(ended(A, restart_count=1), state=ended_state(137, "ContainerStatusUnknown", message))
    assert statuses(pod(A), observed(seen(A, "unknown")), [running(A)]) == [expected]
    assert statuses(pod(A), observed(seen(A, "unknown"))) == [waiting(A)]


def test_a_crashed_container_waits_for_the_reason_that_it_cannot_start() -> None:
    reasons = {A: ("CrashLoopBackOff", "back-off 10s restarting failed container")}
    (status,) = statuses(pod(A), observed(seen(A, "exited", 1)), [running(A)], reasons=reasons)
    assert status.state.waiting == ContainerStateWaiting(reason=reasons[A][0], message=reasons[A][1])
    assert status.last_state == ended_state(1)


def test_a_container_whose_image_cannot_be_pulled_keeps_its_last_state() -> None:
    reasons = {A: ("ImagePullBackOff", "Back-off pulling image")}
    (status,) = statuses(pod(A), observed(), [waiting(A, last=4, restart_count=2)], reasons=reasons)
    assert status == attrs.evolve(
        waiting(A, last=4, restart_count=2),
        state=ContainerState(
            waiting=ContainerStateWaiting(reason="ImagePullBackOff", message="Back-off pulling image")
        ),
    )


@pytest.mark.parametrize(
    ("of", "now"),
    [
        (pod(A, restart="Never"), seen(A, "exited", 1)),
        (pod(A, restart="OnFailure"), seen(A, "exited", 0)),
        (pod(A), seen(A)),
        (pod(A, deleted=True), seen(A, "exited", 1)),
    ],
)
def test_a_container_that_is_not_started_again_ignores_old_reasons(of: Pod, now: ContainerStatus) -> None:
    (status,) = statuses(of, observed(now), reasons={A: ("CrashLoopBackOff", "")})  # type: ignore[arg-type]
    assert status.state.waiting is None


def test_an_init_container_that_the_runtime_forgot_is_done_when_the_pod_runs() -> None:
    (status,) = statuses(pod(A, init=("x",)), observed(seen(A)), init=True)
    assert status.state.terminated is not None
    assert (status.state.terminated.exit_code, status.state.terminated.reason) == (0, "Completed")
    assert "treat it as exited normally" in status.state.terminated.message


def test_a_sidecar_that_the_runtime_forgot_waits() -> None:
    assert statuses(pod(A, init=(sidecar("x"),)), observed(seen(A)), init=True) == [waiting("x", "PodInitializing")]


def test_an_init_container_that_ended_well_does_not_wait_for_an_old_reason() -> None:
    found = statuses(pod(A, init=("x",)), observed(seen("x", "exited")), init=True, reasons={"x": ("Error", "")})
    assert found == [ended("x")]


def test_init_containers_keep_their_order_and_others_are_sorted() -> None:
    of = pod("z", "m", init=("y", "b"))
    assert [one.name for one in statuses(of, observed())] == ["m", "z"]
    assert [one.name for one in statuses(of, observed(), init=True)] == ["y", "b"]


@pytest.mark.parametrize(
    ("read_only", "wanted", "supported", "recursive"),
    [
        (False, None, True, None),
        (True, None, True, "Disabled"),
        (True, "IfPossible", False, "Disabled"),
        (True, "IfPossible", True, "Enabled"),
        (True, "Enabled", True, "Enabled"),
    ],
)
def test_mounts_say_how_far_they_are_read_only(
    read_only: bool, wanted: str | None, supported: bool, recursive: str | None
) -> None:
    mount = VolumeMount(name="v", mount_path="/v", read_only=read_only, recursive_read_only=wanted)
    container = Container(name=A, volume_mounts=(mount,))
    context = StatusContext(pod(container), observed(), {}, recursive_read_only=supported)
    ((found,),) = [one.volume_mounts for one in container_statuses((container,), (), context)]
    assert (found.name, found.mount_path, found.recursive_read_only) == ("v", "/v", recursive)


def test_a_container_says_as_whom_it_runs_when_the_runtime_tells() -> None:
    user = ContainerUser(linux=LinuxContainerUser(uid=0, gid=1, supplemental_groups=(1, 2)))
    told = model.ContainerUser(uid=0, gid=1, supplemental_groups=(1, 2))
    found = statuses(pod(A, B), observed(seen(A, user=told), seen(B)))
    assert [status.user for status in found] == [user, None]


def test_a_container_says_how_its_devices_do() -> None:
    health = ResourceStatus(name="example.com/gpu", resources=(ResourceHealth(resource_id="0", health="Healthy"),))
    context = StatusContext(
        pod(A, B), observed(seen(A)), {}, resource_health=lambda name: (health,) if name == A else ()
    )
    found = container_statuses(context.pod.spec.containers, (), context)
    assert [status.allocated_resources_status for status in found] == [(health,), ()]
