"""Containers as root: what they are given, what they leave."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from grpclib import GRPCError
from grpclib.const import Status
from trio.testing import wait_all_tasks_blocked

from trikubelet.embedded.images.model import ImageConfig, StoredImage
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.hidden_paths import MASKED_PATHS, READONLY_PATHS

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root

BUSYBOX = Path("/usr/bin/busybox")
PROGRAMS = ["sh", "cat", "echo", "id", "ls", "pwd", "sleep", "touch", "true", "mkdir", "env", "test"]


def busybox_image(folder: Path, config: ImageConfig | None = None, files: dict[str, str] | None = None) -> StoredImage:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "busybox").write_bytes(BUSYBOX.read_bytes())
    (folder / "bin" / "busybox").chmod(0o755)
    for program in PROGRAMS:
        (folder / "bin" / program).symlink_to("busybox")
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return StoredImage(
        id="sha256:" + "ab" * 32,
        repo_tags=("test/busybox:1",),
        repo_digests=(),
        size=1,
        config=config or ImageConfig(),
        layers=(folder,),
    )


async def test_output_and_exit_code_are_recorded(node: Node) -> None:
    ended = await node.run(await node.sandbox(), ["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (ended.out, ended.err) == ("out\n", "err\n")
    assert ended.status.state == v1.ContainerState.CONTAINER_EXITED
    assert (ended.exit_code, ended.status.reason) == (3, "Error")
    assert 0 < ended.status.created_at < ended.status.started_at < ended.status.finished_at


async def test_success_is_called_completed(node: Node) -> None:
    ended = await node.run(await node.sandbox(), ["true"])
    assert (ended.exit_code, ended.status.reason) == (0, "Completed")


async def test_a_deadly_signal_becomes_128_and_its_number(node: Node) -> None:
    # The first process of a PID namespace is spared its own signals; its child is not.
    ended = await node.run(await node.sandbox(), ["sh", "-c", "sh -c 'kill -SEGV $$'; exit $?"])
    assert ended.exit_code == 128 + 11


async def test_a_line_without_end_is_logged_when_the_process_ends(node: Node) -> None:
    ended = await node.run(await node.sandbox(), ["printf", "no newline"])
    assert ended.records == [("stdout", "F", "no newline")]


async def test_an_environment_of_any_length_reaches_containers_and_commands(node: Node) -> None:
    env = {f"LONG_{number}": str(number) * 100_000 for number in range(1, 4)}
    ask = ["sh", "-c", "echo ${#LONG_1} ${#LONG_3}"]
    container = await node.launch(await node.sandbox(), ["sh", "-c", f"{ask[2]}; sleep 1000"], env=env)
    await node.wait_for_output(container, "100000 100000")
    assert (await node.exec(container, ask)).stdout == b"100000 100000\n"


async def test_a_long_line_comes_in_parts(node: Node) -> None:
    ended = await node.run(await node.sandbox(), ["sh", "-c", "head -c 40000 /dev/zero | tr '\\0' x; echo; echo after"])
    assert [(tag, len(text)) for _, tag, text in ended.records] == [("P", 16384), ("P", 16384), ("F", 7232), ("F", 5)]


async def test_much_output_of_both_streams_arrives_whole(node: Node) -> None:
    script = "i=0; while [ $i -lt 20000 ]; do echo line-$i; i=$((i+1)); done; seq 1 20000 >&2"
    ended = await node.run(await node.sandbox(), ["bash", "-c", script])
    assert ended.out == "".join(f"line-{number}\n" for number in range(20000))
    assert ended.err == "".join(f"{number}\n" for number in range(1, 20001))


async def test_a_missing_program_is_named_as_users_know_it(node: Node) -> None:
    container = await node.create(await node.sandbox(), ["no-such-program"])
    with pytest.raises(GRPCError) as failure:
        await node.start(container)
    expected = 'exec: "no-such-program": executable file not found in $PATH'
    assert expected in str(failure.value.message)
    status = await node.status(container)
    assert (status.state, status.exit_code, status.reason) == (v1.ContainerState.CONTAINER_EXITED, 128, "StartError")
    assert expected in status.message


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("/no/such", 'exec: "/no/such": stat /no/such: no such file or directory'),
        ("/etc/passwd", 'exec: "/etc/passwd": permission denied'),
        ("/etc", 'exec: "/etc": is a directory'),
        ("/proc/self/exe", 'exec: "/proc/self/exe": stat /proc/self/exe: too many levels of symbolic links'),
    ],
)
async def test_a_program_that_cannot_run_is_refused_with_the_reason(node: Node, program: str, why: str) -> None:
    container = await node.create(await node.sandbox(), [program])
    with pytest.raises(GRPCError, match="unable to start container process") as failure:
        await node.start(container)
    assert why in str(failure.value.message)


async def test_a_container_starts_only_once(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["true"])
    with pytest.raises(GRPCError) as failure:
        await node.start(container)
    assert failure.value.status is Status.FAILED_PRECONDITION


async def test_who_is_stopped_while_its_start_is_under_way_has_its_grace(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process runs and waits for signals before whoever starts it hears of it."""
    keeper, told = node.runtime._lifecycle.keeper, trio.Event()
    request = keeper.request

    async def late(operation: str, **fields: Any) -> Any:
        answer = await request(operation, **fields)
        if operation == "start":
            await node.wait_for_output(container, "listens")
            await told.wait()
        return answer

    container = await node.create(
        await node.sandbox(), ["sh", "-c", "trap 'echo ends; exit 3' TERM; echo listens; while :; do sleep 0.1; done"]
    )
    monkeypatch.setattr(keeper, "request", late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.start, container)
        await node.wait_for_output(container, "listens")
        nursery.start_soon(node.stop, container, 30)
        await wait_all_tasks_blocked(0.1)
        told.set()
    ended = await node.ended(container)
    assert (ended.out, ended.exit_code) == ("listens\nends\n", 3)


async def test_environment_and_working_directory_are_as_asked(node: Node) -> None:
    ended = await node.run(
        await node.sandbox(),
        ["sh", "-c", "echo $GREETING $HOSTNAME; pwd"],
        env={"GREETING": "hello there"},
        working_dir="/made/for/this",
    )
    assert ended.out == "hello there pod-host\n/made/for/this\n"
    assert not Path("/made").exists()


async def test_the_container_is_alone_in_its_pid_namespace_with_its_own_host_name(node: Node) -> None:
    ended = await node.run(await node.sandbox(), ["sh", "-c", "echo $$; hostname; ls /proc | grep -c '^[0-9]'"])
    pid, hostname, processes = ended.out.split()
    assert (pid, hostname) == ("1", "pod-host")
    assert int(processes) <= 4
    assert os.uname().nodename != "pod-host"


async def test_containers_of_a_pod_share_shared_memory_and_containers_of_others_do_not(node: Node) -> None:
    pod, other = await node.sandbox("pod"), await node.sandbox("other")
    await node.run(pod, ["sh", "-c", "echo here > /dev/shm/note"])
    assert (await node.run(pod, ["cat", "/dev/shm/note"])).out == "here\n"
    assert (await node.run(other, ["ls", "/dev/shm"])).out == ""
    assert not Path("/dev/shm/note").exists()


async def test_the_host_image_shows_the_machine_and_keeps_writes_to_itself(node: Node, tmp_path: Path) -> None:
    marker = f"/usr/local/written-by-{os.getpid()}"
    ended = await node.run(
        await node.sandbox(), ["sh", "-c", f"cat /etc/os-release; echo x > {marker}; cat {marker}; ls {tmp_path}"]
    )
    assert ended.out == Path("/etc/os-release").read_text() + "x\n"
    assert not Path(marker).exists()
    assert "No such file" in ended.err


async def test_a_writable_mount_is_the_hosts_and_a_read_only_one_refuses(node: Node, tmp_path: Path) -> None:
    writable, fixed = tmp_path / "writable", tmp_path / "fixed"
    writable.mkdir()
    fixed.mkdir()
    ended = await node.run(
        await node.sandbox(),
        ["sh", "-c", "echo kept > /data/w/file; echo lost > /data/r/file"],
        mounts=[
            v1.Mount(container_path="/data/w", host_path=str(writable)),
            v1.Mount(container_path="/data/r", host_path=str(fixed), readonly=True),
        ],
    )
    assert (writable / "file").read_text() == "kept\n"
    assert list(fixed.iterdir()) == []
    assert "Read-only file system" in ended.err
    assert ended.exit_code != 0


async def test_a_single_file_is_mounted_over_what_the_image_has(node: Node, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 only-me\n")
    mount = v1.Mount(container_path="/etc/hosts", host_path=str(tmp_path / "hosts"))
    assert (await node.run(await node.sandbox(), ["cat", "/etc/hosts"], mounts=[mount])).out == "127.0.0.1 only-me\n"


async def test_a_symlink_in_an_image_does_not_lead_a_mount_out_of_it(node: Node, tmp_path: Path) -> None:
    outside, volume = tmp_path / "outside", tmp_path / "volume"
    outside.mkdir()
    volume.mkdir()
    (volume / "file").write_text("volume")
    image = busybox_image(tmp_path / "image")
    (tmp_path / "image" / "data").symlink_to(f"../../../../../../../../..{outside}")
    (tmp_path / "image" / "inside").symlink_to("../../../../../../../../../bin")
    (tmp_path / "image" / "magic").symlink_to("/proc/self/fd/3")
    node.images.images["evil"] = image
    sandbox = await node.sandbox()
    inside = v1.Mount(container_path="/inside/volume", host_path=str(volume))
    assert (await node.run(sandbox, ["cat", "/bin/volume/file"], image="evil", mounts=[inside])).out == "volume\n"
    data = v1.Mount(container_path="/data", host_path=str(volume))
    script = f"cat /data/file {outside}/file; readlink -f /data"
    ended = await node.run(sandbox, ["sh", "-c", script], image="evil", mounts=[data])
    assert ended.out == f"volumevolume{outside}\n"  # in the container, made there
    magic = v1.Mount(container_path="/magic", host_path=str(volume))
    container = await node.create(sandbox, ["true"], image="evil", mounts=[magic])
    with pytest.raises(GRPCError):
        await node.start(container)
    assert list(outside.iterdir()) == []


async def test_a_numeric_user_and_groups_are_assumed(node: Node) -> None:
    security = v1.LinuxContainerSecurityContext(
        run_as_user=v1.Int64Value(value=1234), run_as_group=v1.Int64Value(value=5678), supplemental_groups=[99]
    )
    ended = await node.run(await node.sandbox(), ["sh", "-c", "id -u; id -g; id -G"], security=security)
    assert ended.out == "1234\n5678\n5678 99\n"
    assert (ended.status.user.linux.uid, ended.status.user.linux.gid) == (1234, 5678)
    assert list(ended.status.user.linux.supplemental_groups) == [99, 5678]


async def test_an_images_user_is_looked_up_in_the_images_own_files(node: Node, tmp_path: Path) -> None:
    files = {
        "etc/passwd": "root:x:0:0::/root:/bin/sh\nweb:x:777:778::/srv/web:/bin/sh\n",
        "etc/group": "web:x:778:\nextra:x:900:web,other\n",
    }
    node.images.images["web"] = busybox_image(tmp_path / "image", ImageConfig(user="web"), files)
    ended = await node.run(await node.sandbox(), ["sh", "-c", "id -u; id -g; id -G; echo $HOME"], image="web")
    assert ended.out.split() == ["777", "778", "778", "900", "/srv/web"]


async def test_an_unknown_user_is_an_error_that_says_so(node: Node, tmp_path: Path) -> None:
    node.images.images["web"] = busybox_image(tmp_path / "image", ImageConfig(user="nobody-here"))
    container = await node.create(await node.sandbox(), ["true"], image="web")
    with pytest.raises(GRPCError, match="unable to find user nobody-here"):
        await node.start(container)


async def test_a_user_database_that_is_a_fifo_holds_nobody_up(node: Node, tmp_path: Path) -> None:
    node.images.images["web"] = busybox_image(tmp_path / "image")
    (tmp_path / "image" / "etc").mkdir()
    os.mkfifo(tmp_path / "image" / "etc" / "passwd")
    assert (await node.run(await node.sandbox(), ["echo", "ok"], image="web")).out == "ok\n"


async def capability_sets(node: Node, **fields: Any) -> dict[str, int]:
    ended = await node.run(await node.sandbox(), ["grep", "Cap", "/proc/self/status"], **fields)
    lines = [line.split() for line in ended.out.splitlines()]
    return {name.rstrip(":"): int(value, 16) for name, value in lines}


async def test_capabilities_are_the_usual_ones(node: Node) -> None:
    """But for making devices, where no group of cgroup v1 keeps containers from those of the machine."""
    sets = await capability_sets(node)
    usual = 0xA80425FB if Path("/sys/fs/cgroup/devices").is_dir() else 0xA00425FB
    assert sets["CapEff"] == sets["CapPrm"] == sets["CapBnd"] == usual
    assert sets["CapInh"] == sets["CapAmb"] == 0


async def test_dropped_capabilities_are_gone_and_added_ones_there(node: Node) -> None:
    security = v1.LinuxContainerSecurityContext(
        capabilities=v1.Capability(drop_capabilities=["ALL"], add_capabilities=["NET_ADMIN"])
    )
    assert (await capability_sets(node, security=security))["CapEff"] == 1 << 12


async def test_devices_of_the_machine_are_out_of_reach_even_with_a_node_made_for_them(node: Node) -> None:
    disk = Path("/").stat().st_dev
    script = f"mknod /usr/d b {os.major(disk)} {os.minor(disk)} && head -c 1 /usr/d; head -c 1 /dev/zero | wc -c"
    ended = await node.run(await node.sandbox(), ["sh", "-c", script])
    assert ended.out == "1\n"
    assert "Operation not permitted" in ended.err


async def test_another_user_holds_no_capability(node: Node) -> None:
    security = v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value(value=1000))
    assert (await capability_sets(node, security=security))["CapEff"] == 0


async def test_a_privileged_container_holds_what_the_machine_has(node: Node) -> None:
    own = Path("/proc/self/status").read_text()
    bounding = next(int(line.split()[1], 16) for line in own.splitlines() if line.startswith("CapBnd"))
    security = v1.LinuxContainerSecurityContext(privileged=True)
    assert (await capability_sets(node, security=security))["CapEff"] == bounding


async def test_a_read_only_root_refuses_writes_but_not_in_volumes(node: Node, tmp_path: Path) -> None:
    security = v1.LinuxContainerSecurityContext(readonly_rootfs=True)
    ended = await node.run(
        await node.sandbox(),
        ["sh", "-c", "echo y > /volume/file; echo x > /usr/x"],
        security=security,
        mounts=[v1.Mount(container_path="/volume", host_path=str(tmp_path))],
    )
    assert "Read-only file system" in ended.err
    assert (tmp_path / "file").read_text() == "y\n"


async def test_kernel_settings_are_out_of_reach_unless_the_client_says_otherwise(node: Node) -> None:
    script = ["sh", "-c", "echo $(cat /proc/sys/kernel/panic) > /proc/sys/kernel/panic; touch /sys/x; cat /proc/keys"]
    hidden = v1.LinuxContainerSecurityContext(masked_paths=list(MASKED_PATHS), readonly_paths=list(READONLY_PATHS))
    ended = await node.run(await node.sandbox("hidden"), script, security=hidden)
    assert ended.err.count("Read-only file system") == 2
    assert ended.out == ""
    shown = v1.LinuxContainerSecurityContext()
    ended = await node.run(await node.sandbox("shown"), script, security=shown)
    assert ended.err == "touch: cannot touch '/sys/x': Read-only file system\n"
    assert "keyring" in ended.out


async def test_a_privileged_container_may_change_the_kernels_settings(node: Node) -> None:
    privileged = v1.LinuxContainerSecurityContext(privileged=True)
    ended = await node.run(await node.sandbox(), ["grep", "/sys sysfs", "/proc/mounts"], security=privileged)
    assert " rw," in ended.out


async def test_a_terminal_is_one(node: Node) -> None:
    ended = await node.run(await node.sandbox(), ["sh", "-c", "test -t 0 && test -t 1 && tty"], tty=True)
    assert ended.out.split() == ["/dev/pts/0"]


async def test_open_stdin_waits_and_closed_stdin_ends(node: Node) -> None:
    sandbox = await node.sandbox()
    assert (await node.run(sandbox, ["cat"])).exit_code == 0
    waiting = await node.launch(sandbox, ["sh", "-c", "echo ready; cat"], stdin=True)
    await node.wait_for_output(waiting, "ready")
    assert (await node.status(waiting)).state == v1.ContainerState.CONTAINER_RUNNING


async def test_a_container_out_of_memory_is_called_oom_killed(node: Node) -> None:
    if "memory" not in node.cri.capabilities()["limits"]:
        pytest.skip("no memory controller")
    ended = await node.run(
        await node.sandbox(),
        ["python3", "-c", "x = bytearray(200 << 20)"],
        resources=v1.LinuxContainerResources(memory_limit_in_bytes=64 << 20, memory_swap_limit_in_bytes=64 << 20),
    )
    assert (ended.exit_code, ended.status.reason) == (137, "OOMKilled")


async def test_a_container_killed_by_us_is_not_called_oom_killed_for_a_process_that_it_outlived(node: Node) -> None:
    if "memory" not in node.cri.capabilities()["limits"]:
        pytest.skip("no memory controller")
    container = await node.launch(
        await node.sandbox(),
        ["bash", "-c", "python3 -c 'x = bytearray(200 << 20)'; echo outlived $?; sleep 1000"],
        resources=v1.LinuxContainerResources(memory_limit_in_bytes=64 << 20, memory_swap_limit_in_bytes=64 << 20),
    )
    await node.wait_for_output(container, "outlived 137")
    await node.cri.stop_container(v1.StopContainerRequest(container_id=container, timeout=0))
    status = await node.status(container)
    assert (status.exit_code, status.reason) == (137, "Error")


def limits(memory: int, quota: int) -> v1.LinuxContainerResources:
    """MiB, without swap, and microseconds of a tenth of a second."""
    return v1.LinuxContainerResources(
        memory_limit_in_bytes=memory << 20,
        memory_swap_limit_in_bytes=memory << 20,
        cpu_period=100_000,
        cpu_quota=quota,
    )


def in_force(node: Node, container: str) -> tuple[int, int]:
    """The limit of memory in bytes, and the quota, as the kernel has them."""
    cgroup = node.cri._inventory.container(container).cgroup
    assert cgroup is not None
    if cgroup["unified"] and "memory" not in cgroup["controllers"]:
        unified = Path(cgroup["unified"])
        return int((unified / "memory.max").read_text()), int((unified / "cpu.max").read_text().split()[0])
    memory, cpu = Path(cgroup["controllers"]["memory"]), Path(cgroup["controllers"]["cpu"])
    return int((memory / "memory.limit_in_bytes").read_text()), int((cpu / "cpu.cfs_quota_us").read_text())


async def test_a_container_gets_other_limits_while_it_runs(node: Node) -> None:
    if not {"memory", "cpu"} <= set(node.cri.capabilities()["limits"]):
        pytest.skip("no controllers")
    sandbox = await node.sandbox()
    await node.cri.update_pod_sandbox_resources(v1.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox))
    holds = ["python3", "-c", "x = bytearray(60 << 20); print('ready', flush=True); import time; time.sleep(1000)"]
    container = await node.launch(sandbox, holds, resources=limits(100, 20_000))
    await node.wait_for_output(container, "ready")

    async def update(memory: int, quota: int) -> tuple[int, int]:
        request = v1.UpdateContainerResourcesRequest(container_id=container, linux=limits(memory, quota))
        await node.cri.update_container_resources(request)
        assert in_force(node, container) == (memory << 20, quota)
        said = (await node.status(container)).resources.linux
        return said.memory_limit_in_bytes >> 20, said.cpu_quota

    assert in_force(node, container) == (100 << 20, 20_000)
    assert await update(200, 40_000) == (200, 40_000)
    assert await update(90, 30_000) == (90, 30_000)
    if "memory" in (node.cri._inventory.container(container).cgroup or {}).get("controllers", {}):
        # cgroup v1 refuses what is in use; v2 would kill for it.
        with pytest.raises(GRPCError, match="set resources"):
            await update(20, 30_000)
        assert (await node.status(container)).resources.linux.memory_limit_in_bytes == 90 << 20
    assert (await node.status(container)).state == v1.ContainerState.CONTAINER_RUNNING
    # The next agent says so too.
    record = next(one for one in node.cri._store.load_containers() if one.id == container)
    assert record.config.linux.resources.cpu_quota == 30_000


async def test_a_container_has_its_own_oom_score_and_not_the_keepers(node: Node) -> None:
    Path(f"/proc/{node.keeper_pid()}/oom_score_adj").write_text("40")
    sandbox, look = await node.sandbox(), ["cat", "/proc/self/oom_score_adj"]
    assert (await node.run(sandbox, look)).out == "0\n"
    assert (await node.run(sandbox, look, resources=v1.LinuxContainerResources(oom_score_adj=30))).out == "30\n"


async def test_statistics_tell_cpu_and_memory(node: Node) -> None:
    container = await node.launch(
        await node.sandbox(), ["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; sleep 1000"]
    )
    await node.wait_for_output(container, "done")
    stats = (await node.cri.container_stats(v1.ContainerStatsRequest(container_id=container))).stats
    assert stats.cpu.usage_core_nano_seconds.value > 10_000_000
    assert 0 < stats.memory.working_set_bytes.value < 64 << 20
    assert stats.attributes.id == container


async def test_the_log_goes_on_in_a_new_file_after_reopening(node: Node) -> None:
    container = await node.launch(await node.sandbox(), ["bash", "-c", "echo first; read x; echo second"], stdin=True)
    await node.wait_for_output(container, "first")
    path = Path(node.cri._inventory.container(container).spec["log_path"])
    path.rename(path.with_suffix(".1"))
    await node.cri.reopen_container_log(v1.ReopenContainerLogRequest(container_id=container))
    await node.exec(container, ["sh", "-c", "echo rotated > /proc/1/fd/1"])
    await node.wait_for_output(container, "rotated")
    assert "first" not in path.read_text()


async def test_an_unknown_image_and_an_unknown_sandbox_are_not_found(node: Node) -> None:
    sandbox = await node.sandbox()
    with pytest.raises(GRPCError) as failure:
        await node.create(sandbox, ["true"], image="no/such:image")
    assert failure.value.status is Status.NOT_FOUND
    with pytest.raises(GRPCError) as failure:
        await node.create("0123456789abcdef", ["true"])
    assert failure.value.status is Status.NOT_FOUND


async def test_removing_and_stopping_what_is_gone_succeeds(node: Node) -> None:
    await node.remove("feed")
    await node.stop("feed", 1)
    await node.cri.stop_pod_sandbox(v1.StopPodSandboxRequest(pod_sandbox_id="feed"))
    await node.cri.remove_pod_sandbox(v1.RemovePodSandboxRequest(pod_sandbox_id="feed"))
    with pytest.raises(GRPCError) as failure:
        await node.status("feed")
    assert failure.value.status is Status.NOT_FOUND


async def test_lists_are_filtered_by_state_label_and_beginning_of_the_id(node: Node) -> None:
    pod, other = await node.sandbox("pod"), await node.sandbox("other")
    running = await node.launch(pod, ["sleep", "1000"], labels={"app": "a"})
    created = await node.create(other, ["true"], labels={"app": "b"})

    async def ids(**fields: Any) -> list[str]:
        request = v1.ListContainersRequest(filter=v1.ContainerFilter(**fields))
        return [container.id for container in (await node.cri.list_containers(request)).containers]

    assert sorted(await ids()) == sorted([running, created])
    assert await ids(state=v1.ContainerStateValue(state=v1.ContainerState.CONTAINER_RUNNING)) == [running]
    assert await ids(state=v1.ContainerStateValue(state=v1.ContainerState.CONTAINER_CREATED)) == [created]
    assert await ids(label_selector={"app": "b"}) == [created]
    assert await ids(pod_sandbox_id=pod) == [running]
    assert await ids(id=running[:13]) == [running]
