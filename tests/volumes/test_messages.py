"""The kubelet's texts about volumes."""

from __future__ import annotations

import pytest

from tests.volumes.stage import pod
from trikubelet.volumes import messages
from trikubelet.volumes.decisions import Action
from trikubelet.volumes.desired import AFFINITY_CHECK, MOUNT_OPTIONS_CHECK
from trikubelet.volumes.errors import AttachLimitError
from trikubelet.volumes.model import VolumeSpec

FOLDER = VolumeSpec("data", "pv-1", "kubernetes.io/csi")
DEVICE = VolumeSpec("data", "pv-1", "kubernetes.io/csi", block=True)


@pytest.mark.parametrize(
    ("action", "spec", "step", "expected"),
    [
        (Action.SET_UP, FOLDER, "", ("FailedMount", 'MountVolume.SetUp failed for volume "pv-1" : no')),
        (Action.REFRESH, FOLDER, "", ("FailedMount", 'MountVolume.SetUp failed for volume "pv-1" : no')),
        (Action.STAGE, FOLDER, "", ("FailedMount", 'MountVolume.MountDevice failed for volume "pv-1" : no')),
        (Action.ATTACH, FOLDER, "", ("FailedMount", 'MountVolume.WaitForAttach failed for volume "pv-1" : no')),
        (
            Action.SET_UP,
            FOLDER,
            AFFINITY_CHECK,
            ("FailedMount", 'MountVolume.NodeAffinity check failed for volume "pv-1" : no'),
        ),
        (
            Action.SET_UP,
            FOLDER,
            MOUNT_OPTIONS_CHECK,
            ("FailedMount", 'MountVolume.MountOptionSupport check failed for volume "pv-1" : no'),
        ),
        (Action.SET_UP, DEVICE, "", ("FailedMapVolume", 'MapVolume.MapPodDevice failed for volume "pv-1" : no')),
        (Action.STAGE, DEVICE, "", ("FailedMapVolume", 'MapVolume.SetUpDevice failed for volume "pv-1" : no')),
        (Action.ATTACH, DEVICE, "", ("FailedMapVolume", 'MapVolume.WaitForAttach failed for volume "pv-1" : no')),
        (
            Action.SET_UP,
            DEVICE,
            AFFINITY_CHECK,
            ("FailedMount", 'MapVolume.NodeAffinity check failed for volume "pv-1" : no'),
        ),
        (
            Action.EXPAND,
            FOLDER,
            "",
            ("VolumeResizeFailed", 'NodeExpandVolume.NodeExpandVolume failed for volume "pv-1" : no'),
        ),
        (Action.TEAR_DOWN, FOLDER, "", None),
        (Action.UNSTAGE, FOLDER, "", None),
    ],
)
def test_each_failed_operation_has_the_event_that_users_know(
    action: Action, spec: VolumeSpec, step: str, expected: tuple[str, str] | None
) -> None:
    assert messages.failure_event(action, spec, "no", step=step) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (FOLDER, ("FailedMount", 'MountVolume.Setup failed while expanding volume for volume "pv-1" : no')),
        (
            DEVICE,
            ("FailedMapVolume", 'MapVolume.MarkVolumeAsMounted failed while expanding volume for volume "pv-1" : no'),
        ),
    ],
)
def test_a_volume_that_could_not_grow_before_it_was_used_has_an_event(
    spec: VolumeSpec, expected: tuple[str, str]
) -> None:
    assert messages.expansion_event(spec, "no") == expected


def test_growing_and_another_file_system_have_events_of_their_own() -> None:
    assert messages.expanded_event(FOLDER, pod("web")) == (
        "FileSystemResizeSuccessful",
        'MountVolume.NodeExpandVolume succeeded for volume "pv-1" node-1',
    )
    assert messages.read_only_event(FOLDER) == (
        "FileSystemResizeFailed",
        'MountVolume.NodeExpandVolume failed for volume "pv-1" requested read-only file system',
    )
    assert messages.mismatch_event(FOLDER, "no") == (
        "FailedMountOnFilesystemMismatch",
        'MountVolume failed for volume "pv-1" no',
    )


@pytest.mark.parametrize(
    ("problems", "cause", "timed_out"),
    [
        ([], "context deadline exceeded", True),
        (["one"], "one", False),
        (["one", "two"], "one; two", False),
    ],
)
def test_what_is_not_ready_is_named_in_order_with_its_cause(problems: list[str], cause: str, timed_out: bool) -> None:
    error = messages.not_ready(["b", "a"], ["b"], [], problems)

    assert error.timed_out is timed_out
    assert str(error) == f"unmounted volumes=[a b], unattached volumes=[b], failed to process volumes=[]: {cause}"


def test_a_full_node_says_so_before_the_rest() -> None:
    error = AttachLimitError(["a"], ["a"], cause="context deadline exceeded", timed_out=True)

    assert str(error) == (
        "Node has reached its volume attachment limit, rejecting pod. "
        "unmounted volumes=[a], unattached volumes=[a], failed to process volumes=[]: context deadline exceeded"
    )


def test_what_is_still_mounted_is_named_in_order() -> None:
    assert messages.still_mounted({"b", "a"}, "busy") == "mounted volumes=[a b]: busy"
