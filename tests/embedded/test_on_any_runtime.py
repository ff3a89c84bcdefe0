"""What clients expect of a CRI runtime, on the embedded one and on containerd, each behind its socket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from grpclib.const import Status

from tests.embedded.any_runtime import MACHINES_NETWORK, OWN_NETWORK, Runtime
from tests.embedded.images.archives import layer, oci_archive
from tests.patience import PATIENCE
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from collections.abc import Awaitable

ON_BOTH_NETWORKS = pytest.mark.parametrize(
    "network", [MACHINES_NETWORK, OWN_NETWORK], ids=["machines-network", "own-network"]
)
UNKNOWN_ID = "0" * 64
NODE, POD, CONTAINER = v1.NamespaceMode.NODE, v1.NamespaceMode.POD, v1.NamespaceMode.CONTAINER


async def status_of(call: Awaitable[object]) -> Status:
    with pytest.raises(CRIError) as caught:
        await call
    return caught.value.status


@ON_BOTH_NETWORKS
async def test_what_is_gone_is_stopped_and_removed_once_more(runtime: Runtime, network: v1.NamespaceOption) -> None:
    pod = await runtime.pod(options=network)
    container = await runtime.start(pod)
    for _ in range(2):
        await runtime.calls.stop_container(container, 0)
    for _ in range(2):
        await runtime.calls.remove_container(container)
    for _ in range(2):
        await runtime.calls.stop_pod_sandbox(pod[0])
    status = (await runtime.calls.pod_sandbox_status(pod[0])).status
    assert status.state is v1.PodSandboxState.SANDBOX_NOTREADY
    for _ in range(2):
        await runtime.calls.remove_pod_sandbox(pod[0])
    if runtime.name == "embedded":  # containerd 1.6 refuses
        await runtime.calls.stop_pod_sandbox(UNKNOWN_ID)
        await runtime.calls.stop_container(UNKNOWN_ID, 0)
    await runtime.images.remove_image(v1.ImageSpec(image=UNKNOWN_ID))
    assert await status_of(runtime.calls.container_status(container)) is Status.NOT_FOUND
    assert await status_of(runtime.calls.pod_sandbox_status(pod[0])) is Status.NOT_FOUND
    assert await status_of(runtime.calls.start_container(UNKNOWN_ID)) is Status.NOT_FOUND


async def test_lists_are_filtered_by_id_state_and_labels(runtime: Runtime) -> None:
    pod = await runtime.pod(labels={"of": "pod"}, annotations={"note": "n"})
    other = await runtime.pod("other")
    running = await runtime.start(pod, labels={"app": "a"}, annotations={"note": "c"})
    created = await runtime.create(pod, "true")

    async def containers(**fields: object) -> list[str]:
        listed = await runtime.calls.list_containers(v1.ContainerFilter(**fields))  # type: ignore[arg-type]
        return sorted(one.id for one in listed if one.pod_sandbox_id in (pod[0], other[0]))

    async def pods(**fields: object) -> list[str]:
        listed = await runtime.calls.list_pod_sandboxes(v1.PodSandboxFilter(**fields))  # type: ignore[arg-type]
        return sorted(one.id for one in listed if one.id in (pod[0], other[0]))

    assert await containers() == sorted([running, created])
    assert await containers(id=running[:13]) == [running]
    assert await containers(label_selector={"app": "a"}) == [running]
    assert await containers(pod_sandbox_id=other[0]) == []
    state = v1.ContainerStateValue(state=v1.ContainerState.CONTAINER_CREATED)
    assert await containers(state=state, pod_sandbox_id=pod[0]) == [created]
    assert await pods(label_selector={"of": "pod"}) == [pod[0]]
    await runtime.calls.stop_pod_sandbox(other[0])
    ready = v1.PodSandboxStateValue(state=v1.PodSandboxState.SANDBOX_READY)
    assert await pods(state=ready) == [pod[0]]
    (listed,) = await runtime.calls.list_containers(v1.ContainerFilter(id=running))
    assert (listed.labels, listed.annotations) == ({"app": "a"}, {"note": "c"})


@ON_BOTH_NETWORKS
async def test_a_container_goes_from_created_to_exited(runtime: Runtime, network: v1.NamespaceOption) -> None:
    pod = await runtime.pod(options=network)
    container = await runtime.create(pod, "echo out; echo err >&2; read x; exit 3", stdin=True)
    created = await runtime.status(container)
    assert created.state is v1.ContainerState.CONTAINER_CREATED
    assert (created.started_at, created.finished_at) == (0, 0)
    await runtime.calls.start_container(container)
    assert await status_of(runtime.calls.start_container(container)) is not Status.OK
    running = await runtime.status(container)
    assert running.state is v1.ContainerState.CONTAINER_RUNNING
    assert running.started_at >= created.created_at
    await runtime.until_written(container, "stdout F out")
    await runtime.until_written(container, "stderr F err")
    await runtime.calls.stop_container(container, 0)
    ended = await runtime.ended(container)
    assert (ended.exit_code, ended.reason) == (137, "Error")
    assert ended.finished_at >= ended.started_at
    assert await status_of(runtime.calls.reopen_container_log(container)) is Status.UNKNOWN
    assert await status_of(runtime.exec(container, ["true"])) is not Status.OK


async def test_a_reopened_log_begins_a_new_file(runtime: Runtime) -> None:
    pod = await runtime.pod()
    container = await runtime.start(pod, "while true; do echo line; sleep 0.05; done")
    path = Path((await runtime.status(container)).log_path)
    with trio.fail_after(PATIENCE):
        while not path.exists() or not path.stat().st_size:
            await trio.sleep(0.02)
        path.rename(path.with_suffix(".1"))
        await runtime.calls.reopen_container_log(container)
        before = path.with_suffix(".1").stat().st_size
        while not path.stat().st_size:
            await trio.sleep(0.02)
    assert path.with_suffix(".1").stat().st_size == before


@ON_BOTH_NETWORKS
async def test_commands_are_run_to_their_end_or_deadline(runtime: Runtime, network: v1.NamespaceOption) -> None:
    container = await runtime.start(await runtime.pod(options=network))
    done = await runtime.exec(container, ["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 7)
    assert await status_of(runtime.exec(container, ["absent-program"])) is not Status.OK
    assert await status_of(runtime.exec(container, ["sleep", "4321"], timeout=1)) is Status.DEADLINE_EXCEEDED
    left = await runtime.exec(container, ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
    assert b"sleep 4321" not in left.stdout


async def test_an_image_is_found_by_every_reference_and_removed_by_any(runtime: Runtime, tmp_path: Path) -> None:
    archive = oci_archive(tmp_path / "image.tar", [layer("file")], "registry.example/team/app:1", {"User": "1002:7"})
    await runtime.import_image(archive)
    image = await runtime.images.image_status(v1.ImageSpec(image="registry.example/team/app:1"))
    assert image is not None
    assert image.repo_tags == ["registry.example/team/app:1"]
    assert (image.uid.value, image.username) == (1002, "")
    references = [image.id, image.id.removeprefix("sha256:"), image.id[7:20], *image.repo_tags, *image.repo_digests]
    references += [name.replace("@", ":1@") for name in image.repo_digests]
    for reference in references:
        found = await runtime.images.image_status(v1.ImageSpec(image=reference))
        assert found is not None, reference
        assert found.id == image.id
    listed = await runtime.images.list_images(v1.ImageFilter(image=v1.ImageSpec(image=image.id)))
    assert image.id in [one.id for one in listed]
    await runtime.images.remove_image(v1.ImageSpec(image="registry.example/team/app:1"))
    for reference in ("registry.example/team/app:1", image.id):
        assert await runtime.images.image_status(v1.ImageSpec(image=reference)) is None


async def test_identities_and_capabilities_are_what_is_asked_for(runtime: Runtime) -> None:
    pod = await runtime.pod()
    security = v1.LinuxContainerSecurityContext(
        run_as_user=v1.Int64Value(value=1000), supplemental_groups=[1234], masked_paths=[]
    )
    assert await runtime.run(pod, "id -u; id -G", security=security) == ["1000", "1000 1234 5000"]
    nobody = v1.LinuxContainerSecurityContext(run_as_username="user", run_as_group=v1.Int64Value(value=1002))
    assert await runtime.run(pod, "id -u; id -g", security=nobody) == ["1000", "1002"]
    wrong = v1.LinuxContainerSecurityContext(run_as_group=v1.Int64Value(value=1002))
    assert await status_of(runtime.create(pod, "true", security=wrong)) is not Status.OK
    bounding = "grep CapBnd /proc/self/status | cut -f2"

    async def held(add: list[str], drop: list[str]) -> int:
        capabilities = v1.Capability(add_capabilities=add, drop_capabilities=drop)
        (line,) = await runtime.run(pod, bounding, security=v1.LinuxContainerSecurityContext(capabilities=capabilities))
        return int(line, 16)

    net_admin, net_raw = 1 << 12, 1 << 13
    assert not await held([], []) & net_admin
    assert await held(["NET_ADMIN"], []) & net_admin
    assert not await held([], ["NET_RAW"]) & net_raw
    assert await held([], ["ALL"]) == 0
    assert await held(["CHOWN"], ["ALL"]) == 1
    assert await held(["ALL"], ["NET_RAW"]) & (net_admin | net_raw) == net_admin


async def test_paths_are_masked_and_read_only_as_asked(runtime: Runtime) -> None:
    pod = await runtime.pod()
    script = "cat /etc/group; touch /tmp/file; touch /file; echo done"
    paths = v1.LinuxContainerSecurityContext(masked_paths=["/etc/group"], readonly_paths=["/tmp"])
    lines = await runtime.run(pod, script, security=paths)
    assert [line for line in lines if "root" in line] == []
    assert [line for line in lines if "Read-only" in line] == ["touch: /tmp/file: Read-only file system"]
    lines = await runtime.run(pod, script, security=v1.LinuxContainerSecurityContext(readonly_rootfs=True))
    assert [line.split(":")[1] for line in lines if "Read-only" in line] == [" /tmp/file", " /file"]
    assert "proc" in "".join(await runtime.run(pod, "grep '^proc /proc ' /proc/mounts; ls /proc/acpi /proc/kcore"))


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        (v1.NamespaceOption(network=NODE, pid=CONTAINER, ipc=POD), {"net"}),
        (v1.NamespaceOption(network=NODE, pid=NODE, ipc=POD), {"pid", "net"}),
        (v1.NamespaceOption(network=NODE, pid=CONTAINER, ipc=NODE), {"ipc", "net"}),
        (v1.NamespaceOption(network=POD, pid=CONTAINER, ipc=POD), set()),
        (v1.NamespaceOption(network=POD, pid=NODE, ipc=NODE), {"pid", "ipc"}),
    ],
)
async def test_namespaces_are_the_machines_where_that_is_asked(
    runtime: Runtime, options: v1.NamespaceOption, shared: set[str]
) -> None:
    pod = await runtime.pod(options=options)
    lines = await runtime.run(pod, "for n in pid ipc net; do readlink /proc/self/ns/$n; done")
    machine = {str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("pid", "ipc", "net")}
    assert {line.partition(":")[0] for line in lines if line in machine} == shared


async def sleeping(runtime: Runtime, pod: tuple[str, v1.PodSandboxConfig]) -> str:
    """A container whose process has become `sleep 4321`."""
    container = await runtime.start(pod, "exec sleep 4321")
    look = ["sh", "-c", "grep -q ^sleep /proc/[0-9]*/cmdline"]
    with trio.fail_after(PATIENCE):
        while (await runtime.exec(container, look)).exit_code != 0:
            await trio.sleep(0.02)
    return container


@pytest.mark.parametrize("network", [NODE, POD])
async def test_a_pods_processes_see_each_other_or_not(runtime: Runtime, network: v1.NamespaceMode) -> None:
    for mode, seen in ((POD, True), (CONTAINER, False)):
        options = v1.NamespaceOption(network=network, pid=mode)
        pod = await runtime.pod(f"pid-{mode.value}", options=options)
        await sleeping(runtime, pod)
        lines = await runtime.run(pod, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo")
        assert any("sleep 4321" in line for line in lines) is seen


async def test_a_container_joins_the_processes_of_another(runtime: Runtime) -> None:
    pod = await runtime.pod()
    target = await sleeping(runtime, pod)
    options = v1.NamespaceOption(network=NODE, pid=v1.NamespaceMode.TARGET, target_id=target)
    assert await runtime.run(pod, "tr '\\0' ' ' < /proc/1/cmdline; echo", options=options) == ["sleep 4321 "]
    await runtime.calls.stop_container(target, 0)
    late = runtime.start(pod, "true", options=options)
    assert await status_of(late) is not Status.OK


async def test_resources_are_changed_before_the_start_and_while_it_runs(runtime: Runtime) -> None:
    pod = await runtime.pod()
    resources = v1.LinuxContainerResources(cpu_shares=512, memory_limit_in_bytes=64 * 2**20)
    container = await runtime.create(pod, "sleep 1000 & wait", resources=resources)
    await runtime.calls.update_container_resources(container, v1.LinuxContainerResources(cpu_shares=256))
    await runtime.calls.start_container(container)
    allowed = ["sh", "-c", "cat /proc/[0-9]*/status | grep Cpus_allowed_list | cut -f2 | sort -u"]
    every = (await runtime.exec(container, allowed)).stdout.decode().strip()
    for cpus in ("0", every):
        changes = v1.LinuxContainerResources(cpuset_cpus=cpus, cpu_period=50_000, cpu_quota=10_000)
        await runtime.calls.update_container_resources(container, changes)
        assert (await runtime.exec(container, allowed)).stdout.decode().strip() == cpus
    if runtime.name == "embedded":  # containerd 1.6 does not tell
        kept = (await runtime.status(container)).resources.linux
        assert (kept.cpu_shares, kept.cpu_quota, kept.memory_limit_in_bytes) == (256, 10_000, 64 * 2**20)
        assert kept.cpuset_cpus == every
    await runtime.calls.stop_container(container, 0)
    await runtime.ended(container)
    await runtime.calls.update_container_resources(container, v1.LinuxContainerResources(cpu_shares=128))


READ_LIMITS = """
cd /sys/fs/cgroup; [ ! -d memory ] || cd memory
cat memory.limit_in_bytes memory.max 2>/dev/null
group=$(grep :memory: /proc/self/cgroup | cut -d: -f3)
[ ! -e memory.limit_in_bytes ] || grep -q " $group /sys/fs/cgroup/memory " /proc/self/mountinfo || echo not its own
mkdir nested 2>/dev/null && rmdir nested && echo written
true
"""


async def test_a_container_reads_its_limits_where_programs_look_for_them(runtime: Runtime) -> None:
    """As JVMs and Go programs do: in the group that `/proc/self/cgroup` names, where `mountinfo` says it is."""
    pod = await runtime.pod()
    limits = v1.LinuxContainerResources(memory_limit_in_bytes=64 << 20)
    assert await runtime.run(pod, READ_LIMITS, resources=limits) == [str(64 << 20)]


async def test_a_privileged_container_may_change_groups(runtime: Runtime) -> None:
    pod = await runtime.pod()
    security = v1.LinuxContainerSecurityContext(privileged=True)
    assert (await runtime.run(pod, READ_LIMITS, security=security))[-1] == "written"


@ON_BOTH_NETWORKS
async def test_statistics_are_told_of_what_runs(runtime: Runtime, network: v1.NamespaceOption) -> None:
    pod = await runtime.pod(options=network)
    container = await runtime.start(pod, labels={"app": "a"})
    stats = await runtime.calls.container_stats(container)
    assert stats.attributes.id == container
    assert stats.memory.working_set_bytes.value > 0
    assert stats.cpu.timestamp > 0
    for labels, found in (({"app": "a"}, True), ({"app": "b"}, False)):
        listed = await runtime.calls.list_container_stats(v1.ContainerStatsFilter(label_selector=labels))
        assert (container in [one.attributes.id for one in listed]) is found
