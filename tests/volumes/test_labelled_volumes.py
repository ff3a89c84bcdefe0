"""Volumes that are mounted with the SELinux label of their pods, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.linux.test_selinux import FEDORA
from tests.listening import told_by
from tests.volumes.stage import Stage, add_claim, claimed, pod, stage
from tests.volumes.test_decisions import PRESENT, SPEC, UNCERTAIN, actual, mount, step, wanted
from trikubelet.api import PodSecurityContext, SELinuxOptions
from trikubelet.volumes.actual import ActualVolume
from trikubelet.volumes.decisions import Action, Certainty, Done, Failed, Operation, after
from trikubelet.volumes.errors import UncertainVolumeError, VolumesNotReadyError
from trikubelet.volumes.model import MountLabel, VolumeSpec
from trikubelet.volumes.mount_labels import MountLabels

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.volumes.fake_kind import FakeKind
    from trikubelet.api import Pod

__all__ = ["stage"]

CSI = "kubernetes.io/csi"
ONE, TWO = "s0:c1,c2", "s0:c98,c99"
WAITING = (
    'waiting for unmount of volume "kubernetes.io/csi/pv-1", because it is already mounted to a different pod with a '
    "different SELinux label"
)


def label(level: str) -> str:
    return f"system_u:object_r:container_file_t:{level}"


def used(one: str) -> MountLabel:
    return MountLabel(one, one)


def labelled(one: str | None, actual: ActualVolume) -> ActualVolume:
    return attrs.evolve(actual, label=one)


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        # What is there has the label that is wanted, or it is not known which.
        ({"actual": labelled("x", actual(PRESENT))}, (Action.SET_UP, "x", None)),
        ({"actual": labelled(None, actual(PRESENT))}, (Action.SET_UP, "x", None)),
        ({"actual": labelled("x", actual(PRESENT, a=mount()))}, (Action.SET_UP, "x", None)),
        ({"actual": ActualVolume()}, (Action.STAGE, "x", None)),
        # It has another one: it has to go first, as soon as no pod has it.
        ({"actual": labelled("y", actual(PRESENT))}, (Action.UNSTAGE, "", None)),
        ({"actual": labelled("", actual(UNCERTAIN))}, (Action.UNSTAGE, "", None)),
        ({"actual": labelled("y", actual(PRESENT)), "may_unstage": False}, None),
        ({"actual": labelled("y", actual(PRESENT, a=mount()))}, (Action.SET_UP, "x", WAITING)),
        ({"actual": labelled("y", actual(PRESENT, a=mount())), "released": {"a"}}, (Action.TEAR_DOWN, "", None)),
        # Nothing is taken from a pod.
        ({"actual": labelled("y", actual(PRESENT, b=mount()))}, None),
    ],
)
def test_a_volume_has_one_label_at_a_time(
    situation: dict[str, Any], expected: tuple[Action, str, str | None] | None
) -> None:
    name_and_label = {"wanted": {"b": wanted("b", staged=True, label=used("x"))}, **situation}
    operation = step(**name_and_label).operation
    found = None if operation is None else (operation.action, operation.label, operation.obstacle)
    if expected is None or operation is None or operation.obstacle is None:
        assert found == expected
    else:
        assert (operation.action, operation.label, operation.obstacle.problem) == expected


@pytest.mark.parametrize(
    ("action", "outcome", "before", "remains"),
    [
        (Action.STAGE, Done(), ActualVolume(), "x"),
        (Action.STAGE, Failed(Certainty.UNCERTAIN, "no"), ActualVolume(), "x"),
        (Action.STAGE, Failed(Certainty.FINAL, "no"), ActualVolume(), None),
        (Action.STAGE, Failed(Certainty.FINAL, "no"), labelled("x", actual(UNCERTAIN)), None),
        (Action.SET_UP, Done(), ActualVolume(), "x"),
        (Action.SET_UP, Failed(Certainty.UNCERTAIN, "no"), ActualVolume(), "x"),
        (Action.TEAR_DOWN, Done(), labelled("x", actual(PRESENT, a=mount())), "x"),
        (Action.TEAR_DOWN, Done(), labelled("x", actual(a=mount())), None),
        (Action.UNSTAGE, Done(), labelled("x", actual(PRESENT)), None),
        (Action.UNSTAGE, Failed(Certainty.FINAL, "no"), labelled("x", actual(PRESENT)), "x"),
    ],
)
def test_the_label_goes_with_the_last_of_a_volume(
    action: Action, outcome: Done | Failed, before: ActualVolume, remains: str | None
) -> None:
    operation = Operation(action=action, name="v", uid="a", spec=SPEC, wanted=wanted(), label="x")
    assert after(before, operation, outcome).label == remains


def with_level(pod: Pod, level: str) -> Pod:
    security = PodSecurityContext(se_linux_options=SELinuxOptions(level=level))
    return attrs.evolve(pod, spec=attrs.evolve(pod.spec, security_context=security))


@pytest.fixture
def kind(stage: Stage) -> FakeKind:
    stage.labels = MountLabels(FEDORA)
    add_claim(stage.storage, access_modes=["ReadWriteOncePod"])
    return stage.kind(CSI, staged=True, labelling=True)


def asked(kind: FakeKind) -> list[str]:
    return [request.label for request in kind.requests]


async def test_a_volume_is_staged_and_set_up_with_the_label_of_its_pod(
    stage: Stage, kind: FakeKind, autojump_clock: MockClock
) -> None:
    async with stage.running() as manager:
        await manager.prepare(with_level(pod("web", claimed()), ONE))
    assert kind.calls == ["stage pv-1", "set_up pv-1"]
    assert asked(kind) == [label(ONE), label(ONE)]


async def test_a_claim_with_two_names_is_one_volume(stage: Stage, kind: FakeKind, autojump_clock: MockClock) -> None:
    async with stage.running() as manager:
        await manager.prepare(with_level(pod("web", claimed(), claimed("again")), ONE))
    assert asked(kind) == [label(ONE), label(ONE)]
    assert stage.labels.admitted == {("kubernetes.io/csi/disks.example.com", "RWOP"): 1}


async def test_the_next_pod_gets_it_with_its_own_label_once_the_first_has_ended(
    stage: Stage, kind: FakeKind, autojump_clock: MockClock
) -> None:
    web, batch = with_level(pod("web", claimed()), ONE), with_level(pod("batch", claimed()), TWO)
    async with stage.running() as manager:
        await manager.prepare(web)
        woken = told_by(manager.pod_changes)
        with pytest.raises(VolumesNotReadyError) as caught:
            await manager.prepare(batch)
        assert str(caught.value) == (
            "unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: "
            f'conflicting SELinux labels of volume pv-1: "{label(ONE)}" and "{label(TWO)}"'
        )
        assert trio.current_time() == 0
        stage.running_pods = set()
        await manager.release("uid-web")
        assert woken == ["uid-batch"]
        await manager.prepare(batch)
    assert kind.calls == ["stage pv-1", "set_up pv-1", "tear_down pv-1", "unstage pv-1", "stage pv-1", "set_up pv-1"]
    assert asked(kind) == [label(ONE)] * 2 + [label(TWO)] * 2


async def test_a_volume_that_is_on_its_way_out_is_waited_for(
    stage: Stage, kind: FakeKind, autojump_clock: MockClock
) -> None:
    """The first pod wants it no more, and taking it down hangs for a while."""
    kind.behaviours = {"tear_down": [5.0]}
    async with stage.running() as manager, trio.open_nursery() as nursery:
        await manager.prepare(with_level(pod("web", claimed()), ONE))
        nursery.start_soon(manager.release, "uid-web")
        await trio.sleep(1)
        await manager.prepare(with_level(pod("batch", claimed()), TWO))
    assert kind.calls[2:] == ["tear_down pv-1", "unstage pv-1", "stage pv-1", "set_up pv-1"]
    assert stage.labels.admitted == {("kubernetes.io/csi/disks.example.com", "RWOP"): 2}


@pytest.mark.parametrize("found", [label(ONE), ""])
async def test_after_a_restart_a_pod_keeps_the_label_that_its_volume_has(
    stage: Stage, kind: FakeKind, autojump_clock: MockClock, found: str
) -> None:
    """Its containers may run; whatever a gate or the driver's object says now."""
    async with stage.running() as manager:
        await manager.prepare(with_level(pod("web", claimed()), ONE))
    spec = VolumeSpec("data", "pv-1", CSI, found_label=found)
    kind.left = {("uid-web", "pv-1"): spec}
    kind.labelling, kind.requests[:] = not found, []
    async with stage.running() as manager:
        await manager.prepare(with_level(pod("web", claimed()), ONE))
    assert asked(kind) == [found, found]
    assert kind.calls == ["stage pv-1", "set_up pv-1"] * 2


async def test_pods_that_disagree_since_a_gate_is_on_keep_what_they_have(
    stage: Stage, kind: FakeKind, autojump_clock: MockClock
) -> None:
    """Only who comes later waits."""
    add_claim(stage.storage, access_modes=["ReadWriteOnce"])
    pods = [with_level(pod("web", claimed()), ONE), with_level(pod("batch", claimed()), TWO)]
    async with stage.running() as manager:
        for each in pods:
            await manager.prepare(each)
    kind.left = {(f"uid-{name}", "pv-1"): VolumeSpec("data", "pv-1", CSI, found_label="") for name in ("web", "batch")}
    stage.labels = MountLabels(FEDORA, every_mode=True)
    async with stage.running() as manager:
        for each in pods:
            await manager.prepare(each)
        with pytest.raises(VolumesNotReadyError, match='conflicting SELinux labels of volume pv-1: "" and'):
            await manager.prepare(with_level(pod("late", claimed()), ONE))
    assert set(asked(kind)) == {""}
    assert "tear_down pv-1" not in kind.calls


async def test_what_is_left_with_another_label_is_unstaged_first(
    stage: Stage, kind: FakeKind, autojump_clock: MockClock
) -> None:
    async with stage.running() as manager:
        await manager.prepare(with_level(pod("web", claimed()), ONE))
        kind.behaviours = {"unstage": [UncertainVolumeError("data", "the driver does not answer")]}
        await manager.release("uid-web")
    spec = VolumeSpec("data", "pv-1", CSI, found_label=label(ONE))

    async def left() -> list[VolumeSpec]:
        return [spec]

    kind.staged_volumes = left
    kind.calls.clear()
    async with stage.running() as manager:
        await manager.prepare(with_level(pod("batch", claimed()), TWO))
    assert kind.calls == ["unstage pv-1", "stage pv-1", "set_up pv-1"]
    assert asked(kind)[-2:] == [label(TWO)] * 2


async def test_without_selinux_labels_of_another_boot_are_forgotten(
    stage: Stage, kind: FakeKind, autojump_clock: MockClock
) -> None:
    stage.labels = MountLabels()
    async with stage.running() as manager:
        await manager.prepare(with_level(pod("web", claimed()), ONE))
    kind.left = {("uid-web", "pv-1"): VolumeSpec("data", "pv-1", CSI, found_label=label(ONE))}
    async with stage.running() as manager:
        await manager.prepare(with_level(pod("web", claimed()), ONE))
    assert asked(kind) == [""] * 4
