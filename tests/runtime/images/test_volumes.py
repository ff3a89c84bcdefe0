"""Images as volumes: pulled for the pod, missed by the containers that mount them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.api import ImageVolumeSource, Volume, VolumeMount
from trikubelet.runtime.images.manager import version_problem
from trikubelet.sim.images import PullError

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod


def volume(name: str, reference: str, policy: str = "IfNotPresent") -> Volume:
    return Volume(name=name, image=ImageVolumeSource(reference=reference, pull_policy=policy))


def mounting(*names: str, name: str = "main") -> Pod:
    mounts = tuple(VolumeMount(name=one, mount_path=f"/{one}", read_only=True) for one in names)
    return make_pod(
        make_container(name, volume_mounts=mounts),
        make_container("other"),
        volumes=(volume("data", "quay.io/files:1"), volume("more", "quay.io/more:1")),
    )


async def test_the_images_of_volumes_are_pulled_once_and_mounted_read_only(
    autojump_clock: MockClock, node: Node
) -> None:
    files = node.sim.images.offer("quay.io/files:1", size=10)
    pod = mounting("data")
    assert (await node.sync(pod)).error is None
    assert node.sim.calls.count("PullImage") == 3
    assert ("Pulling", 'Pulling image "quay.io/files:1"') in node.said(pod)
    [event] = [one for one in node.recorder.events_of("uid-web") if one.message == 'Pulling image "quay.io/files:1"']
    assert event.field_path == ""
    container = next(one for one in node.sim.running_containers() if one.config.metadata.name == "main")
    mount = next(one for one in container.config.mounts if one.container_path == "/data")
    assert mount.image.image in (files.id, files.digest_reference)
    assert mount.image.user_specified_image == "quay.io/files:1"
    assert mount.host_path == ""
    assert mount.readonly


async def test_an_image_that_is_not_to_be_had_fails_only_who_mounts_it(autojump_clock: MockClock, node: Node) -> None:
    node.sim.images.fail_pulls("quay.io/files:1", PullError("no such host"))
    pod = mounting("data")
    result = await node.sync(pod)
    [failed] = [one for one in result.results if one.failed]
    assert (failed.target, failed.reason) == ("main", "ErrImagePull")
    assert "no such host" in failed.message
    assert [one.name for one in node.sim.running_containers()] == ["other"]
    assert ("Failed", "Error: ErrImagePull") in node.said(pod)
    assert node.manager.waiting_reasons("uid-web") == {"main": ("ErrImagePull", failed.message)}
    assert node.manager.metrics.started_containers["container",] == 2
    assert node.manager.metrics.failed_containers == {}, "as the kubelet counts"


async def test_an_image_volume_that_is_pulled_again_later_is_waited_for(autojump_clock: MockClock, node: Node) -> None:
    node.sim.images.fail_pulls("quay.io/files:1", PullError("no such host"))
    pod = mounting("data")
    await node.sync(pod)
    result = await node.sync(pod)
    assert node.manager.waiting_reasons("uid-web")["main"][0] == "ImagePullBackOff"
    assert ("Failed", "Error: ImagePullBackOff") in node.said(pod)
    await trio.sleep_until(result.backoffs["main"])
    await node.sync(pod)
    assert sorted(one.name for one in node.sim.running_containers()) == ["main", "other"]


async def test_of_several_missing_images_the_last_mounts_is_the_reason(autojump_clock: MockClock, node: Node) -> None:
    node.sim.images.fail_pulls("quay.io/files:1", PullError("first"))
    node.sim.images.fail_pulls("quay.io/more:1", PullError("second"))
    pod = mounting("data", "more")
    [failed] = [one for one in (await node.sync(pod)).results if one.failed]
    assert "second" in failed.message
    assert [one for one in node.said(pod) if one == ("Failed", "Error: ErrImagePull")] != []


async def test_a_runtime_that_would_drop_the_volume_is_refused(autojump_clock: MockClock, node: Node) -> None:
    node.manager.runtime_name, node.manager.runtime_version = "containerd", "1.6.20~ds1"
    pod = mounting("data")
    [failed] = [one for one in (await node.sync(pod)).results if one.failed]
    message = "image volumes need containerd 2.1 or CRI-O 1.31; this node runs containerd 1.6.20~ds1"
    assert (failed.target, failed.reason, failed.message) == ("main", "CreateContainerConfigError", message)
    assert ("Failed", f"Error: {message}") in node.said(pod)
    assert node.sim.calls.count("PullImage") == 1
    assert [one.name for one in node.sim.running_containers()] == ["other"]


@pytest.mark.parametrize(
    ("name", "version", "fits"),
    [
        ("containerd", "1.6.20", False),
        ("containerd", "v2.0.4", False),
        ("containerd", "v2.1.0-rc.0", True),
        ("containerd", "10.0", True),
        ("cri-o", "1.30.9", False),
        ("cri-o", "1.31.0", True),
        ("embedded", "0.1", True),
        ("containerd", "", True),
    ],
)
def test_runtimes_are_known_by_name_and_version(name: str, version: str, *, fits: bool) -> None:
    assert (version_problem(name, version) == "") is fits
