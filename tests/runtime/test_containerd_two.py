"""What containerd has since version 2, as the agent uses it.

These tests need one (TRIKUBELET_CONTAINERD); what older ones lack is in `test_containerd_pod_security.py`. Checkpoints
need a criu that knows the kernel (`criu check`), and users of pods' own a runc since 1.2.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import tarfile
from contextlib import aclosing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import pytest
import trio

from tests.containerd_programs import containerd_version, search_path
from tests.patience import PATIENCE
from tests.runtime.containerd_stage import manifest, stage_on
from trikubelet.cgroups.driver_choice import choose_driver
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.rpc.grpc import open_unix_channel
from trikubelet.runtime.containers.container import ContainerExtras

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.containerd_node import ContainerdNode
    from trikubelet.api import Container, Pod

pytestmark = [pytest.mark.containerd, pytest.mark.root]

FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
COUNTS = "trap 'exit 0' TERM; while :; do echo another; sleep 0.05; done"


def can_checkpoint() -> bool:
    """Whether there is a criu that this kernel lets work."""
    criu = shutil.which("criu", path=search_path())
    return criu is not None and subprocess.run([criu, "check"], capture_output=True, check=False).returncode == 0


@pytest.fixture(autouse=True)
def _only_since_2() -> None:
    if containerd_version() < (2, 0):
        pytest.skip("needs containerd 2: let TRIKUBELET_CONTAINERD name one")


@pytest.fixture
async def calls(containerd: ContainerdNode) -> AsyncIterator[RuntimeClient]:
    async with open_unix_channel(containerd.socket) as channel:
        yield RuntimeClient(channel, timeout=PATIENCE)


async def test_it_says_which_cgroup_driver_it_uses(calls: RuntimeClient) -> None:
    assert await choose_driver(calls.runtime_config, "systemd") == "cgroupfs"


async def test_a_sandbox_hears_of_its_pods_resources(
    containerd: ContainerdNode, calls: RuntimeClient, tmp_path: Path
) -> None:
    pod = manifest("resized", "containers: [{name: main}]", FOREVER)
    async with stage_on(containerd, tmp_path) as stage:
        await stage.start(pod)
        (sandbox,) = (await stage.status(pod)).sandbox_statuses
        overhead, resources = v1.LinuxContainerResources(), v1.LinuxContainerResources(cpu_shares=512)
        if containerd_version() < (2, 2):
            with pytest.raises(CRIError):
                await calls.update_pod_sandbox_resources(sandbox.id, overhead=overhead, resources=resources)
        else:
            await calls.update_pod_sandbox_resources(sandbox.id, overhead=overhead, resources=resources)
        await stage.destroy(pod)


async def test_an_image_is_a_volume(containerd: ContainerdNode, tmp_path: Path) -> None:
    if containerd_version() < (2, 1):
        pytest.skip("needs containerd 2.1")
    pod = manifest(
        "image-volume",
        """
        volumes: [{name: data, image: {reference: "localhost/test:1", pullPolicy: Never}}]
        containers:
        - {name: main, volumeMounts: [{name: data, mountPath: /data}]}
        - {name: part, volumeMounts: [{name: data, mountPath: /data, subPath: bin}]}
        """,
        "ls -d /data/bin /data/sh 2>/dev/null; touch /data/file 2>/dev/null || echo read-only",
    )
    async with stage_on(containerd, tmp_path) as stage:
        await stage.start(pod)
        await stage.ended(pod)
        await stage.ended(pod, "part")
        assert stage.lines(pod) == ["/data/bin", "read-only"]
        assert stage.lines(pod, "part") == ["/data/sh", "read-only"]
        assert [line for line in Path("/proc/self/mounts").read_text().splitlines() if "image-volumes" in line]
        await stage.destroy(pod)
    assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if "image-volumes" in line]


async def test_a_cdi_device_is_in_the_container(containerd: ContainerdNode, tmp_path: Path) -> None:
    edits = {"env": ["BRICK=red"], "deviceNodes": [{"path": "/dev/brick", "hostPath": "/dev/null"}]}
    spec = {"cdiVersion": "0.6.0", "kind": "example.com/brick", "devices": [{"name": "red", "containerEdits": edits}]}
    folder = containerd.root / "cdi"
    folder.mkdir(exist_ok=True)
    (folder / "bricks.json").write_text(json.dumps(spec))

    async def extras(_pod: Pod, container: Container) -> ContainerExtras:
        return ContainerExtras(cdi_devices=["example.com/brick=red"] if container.name == "main" else [])

    pod = manifest("cdi", "containers: [{name: main}, {name: other}]", 'echo "brick: $BRICK"; ls /dev | grep brick')
    async with stage_on(containerd, tmp_path, extras=extras) as stage:
        await stage.start(pod)
        await stage.ended(pod)
        await stage.ended(pod, "other")
        assert stage.lines(pod) == ["brick: red", "brick"]
        assert stage.lines(pod, "other") == ["brick: "]
        await stage.destroy(pod)


async def test_an_unknown_cdi_device_is_told(containerd: ContainerdNode, tmp_path: Path) -> None:
    async def extras(_pod: Pod, _container: Container) -> ContainerExtras:
        return ContainerExtras(cdi_devices=["example.com/brick=none"])

    pod = manifest("no-cdi", "containers: [{name: main}]", "true")
    async with stage_on(containerd, tmp_path, extras=extras) as stage:
        result = (await stage.sync(pod)).results[-1]
        assert result.reason == "CreateContainerError"
        assert "unresolvable CDI devices example.com/brick=none" in result.message
        await stage.destroy(pod)


async def test_a_container_is_checkpointed(containerd: ContainerdNode, calls: RuntimeClient, tmp_path: Path) -> None:
    pod = manifest("saved", "containers: [{name: main}]", COUNTS)
    archive = tmp_path / "checkpoint.tar"
    async with stage_on(containerd, tmp_path) as stage:
        await stage.start(pod)
        running = await stage.until_running(pod)
        if can_checkpoint():
            await calls.checkpoint_container(running.id.id, str(archive), 60)
            assert stat.S_IMODE(archive.stat().st_mode) == 0o600
            with tarfile.open(archive) as saved:
                names = {name.split("/")[0] for name in saved.getnames()}
                status = json.load(cast("IO[bytes]", saved.extractfile("status.dump")))
            assert {"checkpoint", "config.dump", "spec.dump", "status.dump", "rootfs-diff.tar", "dump.log"} <= names
            assert status["labels"] == {
                "io.kubernetes.container.name": "main",
                "io.kubernetes.pod.name": "saved",
                "io.kubernetes.pod.namespace": "default",
                "io.kubernetes.pod.uid": "uid-saved",
            }
        else:
            with pytest.raises(CRIError) as caught:
                await calls.checkpoint_container(running.id.id, str(archive), 60)
            # Without criu, or one that is too old; or with one that does not know the kernel, which criu itself says.
            refused = r"failed to checkpoint container \S+: .*|checkpointing container \S+ failed: .*criu failed.*"
            assert re.fullmatch(f"rpc error: code = Unknown desc = ({refused})", str(caught.value))
            assert not archive.exists()
        assert (await stage.status(pod)).find_container("main") == running
        counted = len(stage.lines(pod))
        with trio.fail_after(PATIENCE):
            while len(stage.lines(pod)) <= counted:
                await trio.sleep(0.02)
        await stage.destroy(pod)


async def test_it_tells_what_happens_to_containers(
    containerd: ContainerdNode, calls: RuntimeClient, tmp_path: Path
) -> None:
    told: list[tuple[str, v1.ContainerEventType]] = []

    async def listen() -> None:
        async with aclosing(cast("Any", calls.container_events())) as events:
            async for event in events:
                told.append((event.container_id, event.container_event_type))

    async with stage_on(containerd, tmp_path) as stage, trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        with trio.fail_after(PATIENCE):
            while not told:  # nobody tells that it listens
                await stage.output(manifest("first", "containers: [{name: main}]", "true"))
        pod = manifest("told", "containers: [{name: main}]", "exit 3")
        await stage.start(pod)
        ended = await stage.ended(pod)
        await stage.destroy(pod)
        kinds = v1.ContainerEventType
        expected = [
            kinds.CONTAINER_CREATED_EVENT,
            kinds.CONTAINER_STARTED_EVENT,
            kinds.CONTAINER_STOPPED_EVENT,
            kinds.CONTAINER_DELETED_EVENT,
        ]
        with trio.fail_after(PATIENCE):
            while [kind for of, kind in told if of == ended.id.id] != expected:
                await trio.sleep(0.02)
        nursery.cancel_scope.cancel()


async def test_a_pod_has_users_of_its_own(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest("own-users", "hostUsers: false\ncontainers: [{name: main}]", "id -u; cat /proc/self/uid_map")
    async with stage_on(containerd, tmp_path) as stage:
        if not stage.abilities().handler("").user_namespaces:
            pytest.skip("needs a runc that maps users of mounts, 1.2 or later")
        await stage.start(pod)
        await stage.ended(pod)
        user, mapping = stage.lines(pod)
        assert user == "0"
        inside, outside, length = map(int, mapping.split())
        assert (inside, length) == (0, 65536)
        assert outside >= 65536
        await stage.destroy(pod)


async def test_mounts_are_read_only_in_depth(containerd: ContainerdNode, tmp_path: Path) -> None:
    mount = "{name: shared, mountPath: /data, readOnly: true, recursiveReadOnly: Enabled}"
    pod = manifest(
        "recursive",
        f"""
        volumes: [{{name: shared, hostPath: {{path: /unused}}}}]
        containers: [{{name: main, volumeMounts: [{mount}]}}]
        """,
        "touch /data/file 2>/dev/null || echo refused",
    )
    async with stage_on(containerd, tmp_path) as stage:
        assert stage.abilities().handler("").recursive_read_only_mounts
        assert await stage.output(pod) == ["refused"]


async def test_groups_are_those_of_the_pod_alone(containerd: ContainerdNode, tmp_path: Path) -> None:
    pod = manifest(
        "strict",
        """
        securityContext:
          {runAsUser: 1000, runAsGroup: 2000, supplementalGroups: [4000], supplementalGroupsPolicy: Strict}
        containers: [{name: main}]
        """,
        "id -G",
    )
    async with stage_on(containerd, tmp_path) as stage:
        assert stage.abilities().supplemental_groups_policy
        assert await stage.output(pod) == ["2000 4000"]
