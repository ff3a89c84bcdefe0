from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import StandInAgent, run_command
from trikubelet.cli import machine_checks as checks
from trikubelet.cli.cgroup_checks import check_pod_cgroups
from trikubelet.cli.machine_checks import CheckResult, Level, Machine, check_machine
from trikubelet.cli.neighbour_checks import check_neighbours
from trikubelet.cli.port_checks import check_ports
from trikubelet.cli.runtime_checks import check_runtime
from trikubelet.config.encode import encode_configuration
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.node.start_checks import KERNEL_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable


def machine(root: Path, files: dict[str, str] | None = None, *, uid: int = 0) -> Machine:
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root=root, uid=uid)


@pytest.mark.parametrize(
    ("shares_runtime", "cgroup_root", "comm", "level", "part"),
    [
        (False, None, "sleep", Level.OK, "none"),
        (False, None, "kubelet", Level.OK, "the Go kubelet (pid 7); the agent leaves their pods alone"),
        (True, None, "kubelet", Level.WARN, "the Go kubelet (pid 7): a kubelet that uses the same runtime ends"),
        (True, None, "podman", Level.OK, "podman (pid 7)"),
        (True, "", "kubelet", Level.FAIL, "the Go kubelet (pid 7)"),
    ],
)
def test_who_else_manages_pods_is_one_line(
    shares_runtime: bool, cgroup_root: str | None, comm: str, level: Level, part: str, tmp_path: Path
) -> None:
    for pid in ("self", "7"):
        machine(tmp_path, {f"proc/{pid}/comm": comm, f"proc/{pid}/cmdline": comm})
        (tmp_path / "proc" / pid / "exe").symlink_to(f"/usr/bin/{comm}")
        namespaces = tmp_path / "proc" / pid / "ns"
        namespaces.mkdir()
        for kind in ("pid", "cgroup"):
            (namespaces / kind).symlink_to(f"{kind}:[1]")
    found = check_neighbours(tmp_path, shares_runtime=shares_runtime, cgroup_root=cgroup_root, proc=tmp_path / "proc")
    assert (found.level, part in found.finding, bool(found.fix)) == (level, True, level is not Level.OK), found


def test_this_machine_can_be_checked(root_dir: Path) -> None:
    results = list(check_machine(root_dir, embedded=True))
    assert all(result.fix or result.level is Level.OK for result in results), "what is not well has its remedy"
    subjects = {
        "Python",
        "kernel",
        "user",
        "root folder",
        "cgroups",
        "pods' cgroups",
        "pidfd",
        "inotify",
        "swap",
        "kernel settings",
        "kernel log",
        "namespaces",
        "overlayfs",
    }
    assert {result.subject for result in results} == subjects


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10, 9), Level.FAIL), ((3, 11, 0), Level.OK), ((3, 13, 1), Level.OK)]
)
def test_python_must_be_new_enough(version: tuple[int, ...], level: Level, tmp_path: Path) -> None:
    assert checks.check_python(Machine(root=tmp_path, python=version)).level is level


@pytest.mark.parametrize(
    ("release", "level"), [("4.19.0-1", Level.FAIL), ("5.4.0", Level.OK), ("6.18.44-x", Level.OK), ("odd", Level.FAIL)]
)
def test_the_kernel_must_be_new_enough(release: str, level: Level, tmp_path: Path) -> None:
    assert checks.check_kernel(Machine(root=tmp_path, kernel=release)).level is level


@pytest.mark.parametrize(
    ("files", "finding"),
    [
        ({}, "not mounted"),
        ({"sys/fs/cgroup/cgroup.controllers": "cpu memory pids io"}, "v2, writable"),
        ({"sys/fs/cgroup/cgroup.controllers": "cpu io"}, "v2 without memory, pids"),
        ({"sys/fs/cgroup/memory/tasks": ""}, "v1, writable"),
    ],
)
def test_cgroups_are_recognised(files: dict[str, str], finding: str, tmp_path: Path) -> None:
    assert checks.check_cgroups(machine(tmp_path, files)).finding == finding


V1 = "".join(
    f"{number} 1 0:{number} / {{root}}/sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
    for number, name in enumerate(("cpu", "cpuacct", "cpuset", "memory", "pids"))
)


@pytest.mark.parametrize(
    ("files", "level", "part"),
    [
        ({}, Level.WARN, "without cgroups of their own"),
        ({"proc/self/mountinfo": ""}, Level.WARN, "not mounted: [cpu cpuacct cpuset memory]"),
        ({"proc/self/mountinfo": V1}, Level.WARN, "limits of CPU, memory, processes; driver cgroupfs, as systemd does"),
        (
            {
                "proc/self/mountinfo": "30 1 0:30 / /sys/fs/cgroup rw - cgroup2 none rw\n",
                "sys/fs/cgroup/cgroup.controllers": "cpu cpuset hugetlb memory pids",
                "sys/fs/cgroup/cpu.stat": "",
                "run/systemd/system/x": "",
            },
            Level.OK,
            "kubepods can be made; limits of CPU, memory, processes, huge pages; driver cgroupfs or systemd",
        ),
        (
            {
                "proc/self/mountinfo": "30 1 0:30 / /sys/fs/cgroup rw - cgroup2 none rw\n",
                "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            },
            Level.WARN,
            "none of processes",
        ),
    ],
)
def test_what_works_of_pods_cgroups_is_told(files: dict[str, str], level: Level, part: str, tmp_path: Path) -> None:
    for name in ("cpu", "cpuacct", "cpuset", "memory", "pids"):
        (tmp_path / "sys/fs/cgroup" / name).mkdir(parents=True)
    found = check_pod_cgroups(machine(tmp_path, {name: text.format(root=tmp_path) for name, text in files.items()}))
    assert (found.level, part in found.finding) == (level, True), found


@pytest.mark.parametrize(("fail_cgroup_v1", "level"), [(None, Level.WARN), (False, Level.OK), (True, Level.FAIL)])
def test_cgroup_v1_is_as_good_as_the_configuration_says(
    fail_cgroup_v1: bool | None, level: Level, tmp_path: Path
) -> None:
    for name in ("cpu", "cpuacct", "cpuset", "memory", "pids"):
        (tmp_path / "sys/fs/cgroup" / name).mkdir(parents=True)
    here = machine(tmp_path, {"proc/self/mountinfo": V1.format(root=tmp_path)})
    found = check_pod_cgroups(here, fail_cgroup_v1)
    assert (found.level, "failCgroupV1: false" in found.fix) == (level, level is not Level.OK), found


@pytest.mark.parametrize("check", [check_pod_cgroups, checks.check_cgroups])
def test_a_hierarchy_that_takes_no_group_is_told_whatever_its_mode_says(
    check: Callable[[Machine], CheckResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine(
        tmp_path,
        {
            "proc/self/mountinfo": "30 1 0:30 / /sys/fs/cgroup rw - cgroup2 none rw\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu cpuset memory pids",
            "sys/fs/cgroup/cgroup.max.descendants": "0",
        },
    )
    assert check(here).level is Level.OK
    assert sorted(path.name for path in (tmp_path / "sys/fs/cgroup").iterdir()) == [
        "cgroup.controllers",
        "cgroup.max.descendants",
    ]

    def full(_: Path) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("trikubelet.cli.machine_checks.Path.mkdir", full)
    assert check(here).level is Level.WARN


def test_ports_that_cannot_be_had_are_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        number = taken.getsockname()[1]
        configuration = KubeletConfiguration(enable_server=False, healthz_port=number)
        found = check_ports(configuration)
        this = f"{Path('/proc/self/comm').read_text().strip()} with pid {os.getpid()}"
        assert (found.level, found.finding) == (Level.WARN, f"127.0.0.1:{number}: {this} listens there")
        assert "healthzPort" in found.fix
    assert check_ports(configuration) == CheckResult(Level.OK, "ports", f"127.0.0.1:{number} can be had")


def test_the_agent_that_runs_is_checked(agent: StandInAgent) -> None:
    """Its ports, its root folder, its configuration and its flags; the person has to repeat none of them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        configuration = KubeletConfiguration(enable_server=False, healthz_port=number, fail_cgroup_v1=False)
        agent.will_answer("GET /configz", {"kubeletconfig": encode_configuration(configuration)})
        agent.will_answer("GET /flagz", {"flags": {"config": "/etc/agent.yaml", "pod-network": "host"}})
        outcome = run_command("check", "--root-dir", agent.root_dir)
    assert outcome.err.startswith(f"The agent with pid {os.getpid()} and root folder {agent.root_dir} is checked.\n")
    assert f"ok    ports: the agent listens on 127.0.0.1:{number}\n" in outcome.out
    assert "pod network: the machine's" in outcome.out
    assert f"root folder: {agent.root_dir}" in outcome.out


def test_a_configuration_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    file = tmp_path / "kubelet.yaml"
    file.write_text("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: x\n")
    outcome = run_command("check", "--config", file, "--root-dir", tmp_path / "root")
    assert outcome.code == 1
    assert "healthzPort" in outcome.err


def test_swap_that_is_on_is_named(tmp_path: Path) -> None:
    text = "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n"
    assert checks.check_swap(machine(tmp_path, {"proc/swaps": text})).finding == "on (/dev/sda2)"
    assert checks.check_swap(machine(tmp_path / "x")).level is Level.OK


def test_kernel_settings_that_the_agent_cannot_set_are_named(tmp_path: Path) -> None:
    files = {f"proc/sys/{name.replace('.', '/')}": f"{value}\n" for name, value in KERNEL_SETTINGS.items()}
    assert checks.check_kernel_settings(machine(tmp_path, files)).level is Level.OK
    files["proc/sys/kernel/panic"] = "0\n"
    roots, others = machine(tmp_path, files, uid=0), machine(tmp_path, files, uid=1000)
    assert "the agent will set kernel.panic=10" in checks.check_kernel_settings(roots).finding
    told = checks.check_kernel_settings(others)
    assert (told.level, told.finding) == (Level.WARN, "kernel.panic is 0")
    assert "sysctl -w kernel.panic=10" in told.fix


def test_a_kernel_log_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert checks.check_kernel_log(machine(tmp_path, {"dev/kmsg": ""})).level is Level.OK
    told = checks.check_kernel_log(machine(tmp_path / "x"))
    assert (told.level, told.finding) == (Level.WARN, "/dev/kmsg: No such file or directory")


def test_overlayfs_is_looked_for(tmp_path: Path) -> None:
    assert checks.check_overlayfs(machine(tmp_path, {"proc/filesystems": "nodev\toverlay\n"})).level is Level.OK
    assert checks.check_overlayfs(machine(tmp_path / "x")).level is Level.WARN


def test_root_is_told_that_mounts_come_apart_without_user_namespaces(tmp_path: Path) -> None:
    here = machine(tmp_path)
    assert checks.check_user_namespaces(here, allowed=lambda: True).level is Level.OK
    refused = checks.check_user_namespaces(here, allowed=lambda: False)
    assert refused.level is Level.WARN
    assert refused.fix == "sysctl user.max_user_namespaces=10000"


def test_without_root_user_namespaces_decide(tmp_path: Path) -> None:
    here = machine(tmp_path, uid=1000)
    assert checks.check_user_namespaces(here, allowed=lambda: True).level is Level.OK
    refused = checks.check_user_namespaces(here, allowed=lambda: False)
    assert refused.level is Level.WARN
    assert "only localhost/host" in refused.finding


def test_cni_needs_a_configuration_and_plugins(tmp_path: Path) -> None:
    assert checks.check_cni(machine(tmp_path)).level is Level.WARN
    here = machine(tmp_path, {"etc/cni/net.d/10-x.conflist": "{}"})
    assert "no plugins" in checks.check_cni(here).finding
    (tmp_path / "opt/cni/bin").mkdir(parents=True)
    assert checks.check_cni(here) == CheckResult(Level.OK, "CNI", "10-x.conflist")


def test_the_root_folder_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert checks.check_root_dir(tmp_path / "file" / "x").level is Level.FAIL
    assert checks.check_root_dir(tmp_path / "not" / "yet").level is not Level.FAIL


@pytest.mark.parametrize(("endpoint", "finding"), [("tcp://x", "no endpoint"), ("unix:///nowhere.sock", "nothing at")])
def test_a_runtime_that_is_not_there_is_missing(endpoint: str, finding: str) -> None:
    (result,) = check_runtime(endpoint)
    assert result.level is Level.FAIL
    assert finding in result.finding


def test_what_is_no_runtime_is_told_in_time(root_dir: Path) -> None:
    path = root_dir / "x.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def hang_up() -> None:
            for _ in range(20):
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        results = list(check_runtime(f"unix://{path}"))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(2)
    assert results[-1].level is Level.FAIL


def test_the_command_exits_1_when_something_is_missing(root_dir: Path) -> None:
    outcome = run_command("check", "--root-dir", root_dir, "--runtime-endpoint", "unix:///nowhere.sock")
    assert outcome.code == 1
    assert "fail  runtime: nothing at /nowhere.sock\n      → start the runtime" in outcome.out
    assert outcome.out.splitlines()[-1].endswith("1 missing")


@pytest.mark.parametrize(
    ("fields", "flags", "expected"),
    [
        ("", ["--in-cluster"], "nothing at /nowhere/containerd.sock"),
        ("", [], "embedded, in the agent's own process"),
        ("containerRuntimeEndpoint: unix:///nowhere/x.sock", ["--in-cluster"], "nothing at /nowhere/x.sock"),
        ("containerRuntimeEndpoint: /nowhere/x.sock", [], "nothing at /nowhere/x.sock"),
        ("", ["--in-cluster", "--runtime-endpoint=embedded"], "embedded, in the agent's own process"),
    ],
)
def test_the_runtime_that_the_agent_would_have_is_looked_at(
    root_dir: Path, monkeypatch: pytest.MonkeyPatch, fields: str, flags: list[str], expected: str
) -> None:
    monkeypatch.setattr("trikubelet.cli.run.KUBELET_RUNTIME", "unix:///nowhere/containerd.sock")
    file = root_dir / "kubelet.yaml"
    file.write_text(f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n")
    outcome = run_command("check", "--root-dir", root_dir, "--config", file, *flags)
    assert f"runtime: {expected}" in outcome.out


POLICY = {
    "etc/selinux/config": "SELINUXTYPE=targeted\n",
    "etc/selinux/targeted/contexts/lxc_contexts": 'process = "system_u:system_r:container_t:s0"\n',
}


@pytest.mark.parametrize(
    ("enforce", "policy", "told"),
    [("1\n", {}, [Level.WARN]), ("1\n", POLICY, [Level.OK]), ("0\n", {}, []), (None, {}, [])],
)
def test_selinux_is_spoken_of_where_it_is_enforcing(
    tmp_path: Path, enforce: str | None, policy: dict[str, str], told: list[Level]
) -> None:
    files = {} if enforce is None else {"sys/fs/selinux/enforce": enforce, **policy}
    assert [result.level for result in checks.check_selinux(machine(tmp_path, files))] == told
