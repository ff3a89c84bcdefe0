"""What a CRI configuration becomes, without running anything."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import attrs
import pytest

from trikubelet.embedded.confinement import ConfinementError, apparmor_profile
from trikubelet.embedded.container_spec import (
    SpecContext,
    SpecError,
    changed_limits,
    container_spec,
    signal_number,
    stop_signal,
)
from trikubelet.embedded.images.model import ImageConfig, StoredImage
from trikubelet.embedded.keeper import capabilities
from trikubelet.embedded.keeper.child import SetupError, change_label_on_exec, change_profile_on_exec
from trikubelet.embedded.keeper_client import KeeperAbilities
from trikubelet.embedded.sandbox_files import SandboxConfigError, sandbox_request
from trikubelet.rpc.cri import v1

ROOT = KeeperAbilities(
    pid=1,
    mode="root",
    overlay=True,
    limits=(),
    cgroup_v2=True,
    cgroup_v1=(),
    devices_confined=True,
    seccomp=True,
    landlock=7,
    apparmor=True,
    selinux=True,
    network=True,
    creates=True,
    outdated=False,
    problems=(),
)
PLAIN = attrs.evolve(ROOT, mode="plain", overlay=False)
IMAGE = StoredImage(
    id="sha256:1",
    repo_tags=("example/app:1",),
    repo_digests=(),
    size=0,
    config=ImageConfig(entrypoint=("/entry",), cmd=("default",), env=("A=image", "B=image"), working_dir="/srv"),
    layers=(Path("/layers/1"), Path("/layers/2")),
)
HOST = attrs.evolve(IMAGE, is_host=True, layers=(Path("/"),))


def around(abilities: KeeperAbilities = ROOT) -> SpecContext:
    return SpecContext(
        container_id="c",
        directory=Path("/run/c"),
        runtime_root=Path("/run"),
        hidden=[],
        sandbox_id="s",
        sandbox_folder=Path("/nowhere"),
        sandbox=v1.PodSandboxConfig(log_directory="/logs/pod"),
        hostname="pod",
        abilities=abilities,
    )


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        ([], [], ["/entry", "default"]),
        ([], ["given"], ["/entry", "given"]),
        (["/mine"], [], ["/mine"]),
        (["/mine"], ["given"], ["/mine", "given"]),
    ],
)
def test_command_and_arguments_replace_the_images_as_users_expect(
    command: list[str], args: list[str], expected: list[str]
) -> None:
    spec = container_spec(around(), v1.ContainerConfig(command=command, args=args), IMAGE)
    assert spec["argv"] == expected


def test_an_image_without_a_command_needs_one() -> None:
    with pytest.raises(SpecError, match="no command specified"):
        container_spec(around(), v1.ContainerConfig(), attrs.evolve(IMAGE, config=ImageConfig()))


def test_the_containers_environment_wins_over_the_images() -> None:
    config = v1.ContainerConfig(envs=[v1.KeyValue(key="B", value=b"mine"), v1.KeyValue(key="data-1", value=b"x=y")])
    assert container_spec(around(), config, IMAGE)["env"] == ["A=image", "B=mine", "HOSTNAME=pod", "data-1=x=y"]


def test_the_log_lies_in_the_pods_folder_and_without_one_there_is_none() -> None:
    assert container_spec(around(), v1.ContainerConfig(log_path="c/0.log"), IMAGE)["log_path"] == "/logs/pod/c/0.log"
    assert container_spec(around(), v1.ContainerConfig(), IMAGE)["log_path"] == ""


def test_the_root_user_by_number_is_not_the_same_as_no_user() -> None:
    security = v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value(value=0))
    config = v1.ContainerConfig(linux=v1.LinuxContainerConfig(security_context=security))
    image = attrs.evolve(IMAGE, config=attrs.evolve(IMAGE.config, user="web"))
    assert container_spec(around(), config, image)["user"]["uid"] == 0
    assert container_spec(around(), v1.ContainerConfig(), image)["user"] == {
        "uid": None, "gid": None, "name": "web", "groups": [], "strict": False,
    }  # fmt: skip


def test_plain_processes_run_the_host_image_only() -> None:
    with pytest.raises(SpecError, match="only localhost/host runs"):
        container_spec(around(PLAIN), v1.ContainerConfig(), IMAGE)
    assert container_spec(around(PLAIN), v1.ContainerConfig(), HOST)["mounts"] == []


def test_plain_processes_do_without_the_kubelets_files_but_not_without_volumes() -> None:
    def mounted(host: str, inside: str) -> v1.ContainerConfig:
        return v1.ContainerConfig(mounts=[v1.Mount(host_path=host, container_path=inside)])

    for config in (mounted("/var/lib/kubelet/etc-hosts", "/etc/hosts"), mounted("/data", "/data")):
        assert container_spec(around(PLAIN), config, HOST)["mounts"] == []
    with pytest.raises(SpecError, match="cannot mount /elsewhere at /data"):
        container_spec(around(PLAIN), mounted("/elsewhere", "/data"), HOST)


KINDS = v1.SecurityProfileProfileType
DEFAULT, UNCONFINED = (v1.SecurityProfile(profile_type=kind) for kind in (KINDS.RuntimeDefault, KINDS.Unconfined))


def secured(**security: Any) -> v1.ContainerConfig:
    return v1.ContainerConfig(
        linux=v1.LinuxContainerConfig(security_context=v1.LinuxContainerSecurityContext(**security))
    )


@pytest.mark.parametrize(
    ("security", "filtered"),
    [
        ({}, False),
        ({"seccomp": DEFAULT}, True),
        ({"seccomp": UNCONFINED}, False),
        ({"seccomp": DEFAULT, "privileged": True}, False),
    ],
)
def test_system_calls_are_filtered_as_asked_for(security: dict[str, Any], filtered: bool) -> None:
    assert (container_spec(around(), secured(**security), IMAGE)["seccomp"] is not None) == filtered


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("text", "filtered"), [("runtime/default", True), ("unconfined", False), ("", False)])
def test_older_clients_name_profiles_in_a_text(text: str, filtered: bool) -> None:
    spec = container_spec(around(), secured(seccomp_profile_path=text), IMAGE)
    assert (spec["seccomp"] is not None) == filtered
    with pytest.raises(SpecError, match="seccomp: invalid profile 'x'"):
        container_spec(around(), secured(seccomp_profile_path="x"), IMAGE)


def test_the_default_filter_depends_on_the_containers_capabilities() -> None:
    def filtered(*add: str) -> Any:
        config = secured(seccomp=DEFAULT, capabilities=v1.Capability(add_capabilities=list(add)))
        return container_spec(around(), config, IMAGE)["seccomp"]

    assert filtered() == filtered("CHOWN") != filtered("SYS_ADMIN")


def test_a_profile_of_the_machine_is_read_where_it_says(tmp_path: Path) -> None:
    file = tmp_path / "strict.json"
    profile = v1.SecurityProfile(profile_type=KINDS.Localhost, localhost_ref=str(file))
    with pytest.raises(SpecError, match=f"cannot load seccomp profile {file}: No such file or directory"):
        container_spec(around(), secured(seccomp=profile), IMAGE)
    file.write_text('{"defaultAction": "SCMP_ACT_LOG", "flags": ["SECCOMP_FILTER_FLAG_LOG"]}')
    assert container_spec(around(), secured(seccomp=profile), IMAGE)["seccomp"]["flags"] == 2


@pytest.mark.parametrize(
    ("security", "problem"),
    [
        ({"selinux_options": v1.SeLinuxOption(level="s0")}, "seLinuxOptions: SELinux is not enabled on this machine"),
        ({"seccomp": v1.SecurityProfile(localhost_ref="x")}, "seccomp: a localhost profile is named, but the type"),
        (
            {"capabilities": v1.Capability(add_ambient_capabilities=["KILL"], drop_capabilities=["KILL"])},
            "what is to be ambient cannot be dropped",
        ),
    ],
)
def test_confinement_that_would_be_ignored_is_refused(security: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        container_spec(around(), secured(**security), IMAGE)


OWN = v1.SecurityProfile(profile_type=KINDS.Localhost, localhost_ref="strict")
DEFAULT_PROFILE = "cri-containerd.apparmor.d (enforce)"


@pytest.mark.parametrize(
    ("security", "loaded", "expected"),
    [
        ({}, [DEFAULT_PROFILE], "cri-containerd.apparmor.d"),
        ({}, [], None),
        ({}, None, None),
        ({"apparmor": DEFAULT}, [DEFAULT_PROFILE], "cri-containerd.apparmor.d"),
        ({"apparmor": DEFAULT, "privileged": True}, [DEFAULT_PROFILE], None),
        ({"apparmor": UNCONFINED}, [DEFAULT_PROFILE], None),
        ({"apparmor": OWN}, ["other (enforce)", "strict (complain)"], "strict"),
        ({"apparmor": OWN, "privileged": True}, ["strict (enforce)"], "strict"),
        ({"apparmor": DEFAULT}, [], r"profile cri-containerd.apparmor.d: not loaded .* apparmor_parser"),
        ({"apparmor": OWN}, ["strict-not (enforce)"], "profile strict: not loaded on this machine"),
        ({"apparmor": OWN}, None, "profile strict: AppArmor is not enabled on this machine"),
        ({"apparmor": DEFAULT}, None, "AppArmor is not enabled"),
    ],
)
def test_apparmor_profiles_are_those_that_are_loaded(
    tmp_path: Path, security: dict[str, Any], loaded: list[str] | None, expected: str | None
) -> None:
    if loaded is not None:
        for name, content in (
            ("module/apparmor/parameters/enabled", "Y\n"),
            ("kernel/security/apparmor/profiles", "".join(f"{line}\n" for line in loaded)),
        ):
            (tmp_path / name).parent.mkdir(parents=True)
            (tmp_path / name).write_text(content)
    context = secured(**security).linux.security_context
    if expected is None or " " not in expected:
        assert apparmor_profile(context, tmp_path) == expected
    else:
        with pytest.raises(ConfinementError, match=expected):
            apparmor_profile(context, tmp_path)


def test_a_profile_is_taken_on_by_the_next_exec(tmp_path: Path) -> None:
    """As far as a kernel without AppArmor can tell: what is written, and where."""
    processes = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(SetupError, match="AppArmor profile strict: no such file or directory"):
            change_profile_on_exec(processes, "strict")
        for folder in ("self/attr", "self/attr/apparmor"):
            (tmp_path / folder).mkdir(parents=True)
            (tmp_path / folder / "exec").touch()
            change_profile_on_exec(processes, "strict")
            assert (tmp_path / folder / "exec").read_text() == "exec strict"
    finally:
        os.close(processes)


def test_a_label_is_taken_on_by_the_next_exec(tmp_path: Path) -> None:
    """As far as a kernel without SELinux can tell."""
    label = "system_u:system_r:container_t:s0:c1,c2"
    processes = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(SetupError, match=f"SELinux label {label}: no such file or directory"):
            change_label_on_exec(processes, label)
        (tmp_path / "self/attr").mkdir(parents=True)
        (tmp_path / "self/attr/exec").touch()
        change_label_on_exec(processes, label)
        assert (tmp_path / "self/attr/exec").read_text() == label
    finally:
        os.close(processes)


def test_a_keeper_of_an_older_version_confines_nothing() -> None:
    newer = ("seccomp", "landlock", "apparmor", "selinux")
    hello = {name: value for name, value in attrs.asdict(ROOT).items() if name not in newer}
    older = KeeperAbilities.from_hello({**hello, "version": 1})
    assert (older.seccomp, older.landlock, older.apparmor, older.selinux) == (False, 0, False, False)


def test_a_filter_that_the_keeper_cannot_load_is_refused() -> None:
    with pytest.raises(SpecError, match="seccomp is not supported"):
        container_spec(around(attrs.evolve(ROOT, seccomp=False)), secured(seccomp=DEFAULT), IMAGE)


def test_paths_are_hidden_as_the_client_says_and_an_empty_list_means_none() -> None:
    spec = container_spec(around(), secured(masked_paths=["/proc/kcore"], readonly_paths=["/proc/sys"]), IMAGE)
    assert (spec["masked_paths"], spec["readonly_paths"]) == (["/proc/kcore"], ["/proc/sys"])
    spec = container_spec(around(), secured(), IMAGE)
    assert spec["masked_paths"] == spec["readonly_paths"] == []


def test_a_plain_process_with_a_read_only_root_writes_to_its_mounts_only() -> None:
    config = secured(readonly_rootfs=True)
    config.mounts = [
        v1.Mount(host_path="/data", container_path="/data"),
        v1.Mount(host_path="/shown", container_path="/shown", readonly=True),
        v1.Mount(host_path="/var/lib/kubelet/etc-hosts", container_path="/etc/hosts"),
    ]
    assert container_spec(around(PLAIN), config, HOST)["write_only_below"] == ["/dev", "/proc", "/data"]
    assert container_spec(around(PLAIN), v1.ContainerConfig(), HOST)["write_only_below"] is None
    assert container_spec(around(), config, HOST)["write_only_below"] is None
    with pytest.raises(SpecError, match=r"readOnlyRootFilesystem: .* no Landlock"):
        container_spec(around(attrs.evolve(PLAIN, landlock=0)), config, HOST)


@pytest.mark.parametrize(
    ("readonly", "propagation", "problem"),
    [
        (False, v1.MountPropagation.PROPAGATION_PRIVATE, "must be read-only itself"),
        (True, v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER, "private propagation, got rslave"),
        (True, v1.MountPropagation.PROPAGATION_BIDIRECTIONAL, "private propagation, got rshared"),
        (True, v1.MountPropagation.PROPAGATION_PRIVATE, ""),
    ],
)
def test_a_mount_is_recursively_read_only_if_it_is_read_only_and_private(
    readonly: bool, propagation: v1.MountPropagation, problem: str
) -> None:
    mount = v1.Mount(
        container_path="/in", host_path="/out", readonly=readonly, recursive_read_only=True, propagation=propagation
    )
    config = v1.ContainerConfig(command=["true"], mounts=[mount])
    if problem:
        with pytest.raises(SpecError, match=problem):
            container_spec(around(), config, IMAGE)
    else:
        assert container_spec(around(), config, IMAGE)["mounts"][0]["recursive_readonly"]


def test_a_change_of_a_limit_brings_what_it_means_nothing_without() -> None:
    before = {"cpu_period": 50_000, "cpu_quota": 10_000, "cpu_shares": 2, "memory_swap_limit_in_bytes": 9}
    assert changed_limits(before, v1.LinuxContainerResources(cpu_quota=20_000)) == {
        "cpu_period": 50_000,
        "cpu_quota": 20_000,
    }
    assert changed_limits(before, v1.LinuxContainerResources(memory_limit_in_bytes=5)) == {
        "memory_limit_in_bytes": 5,
        "memory_swap_limit_in_bytes": 9,
    }
    assert changed_limits(before, v1.LinuxContainerResources(cpuset_cpus="1")) == {"cpuset_cpus": "1"}


def test_ambient_capabilities_are_the_containers_own() -> None:
    wanted = v1.Capability(add_ambient_capabilities=["NET_ADMIN"], drop_capabilities=["ALL"])
    spec = container_spec(around(), secured(capabilities=wanted), IMAGE)
    assert spec["ambient"] == spec["bounding"] == 1 << 12


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SIGTERM", 15),
        ("quit", 3),
        ("9", 9),
        ("SIGRTMIN+3", signal.SIGRTMIN + 3),
        ("SIGRTMINPLUS3", signal.SIGRTMIN + 3),
        ("SIGRTMAX-1", signal.SIGRTMAX - 1),
        ("SIGRTMAXMINUS1", signal.SIGRTMAX - 1),
        ("RTMIN", signal.SIGRTMIN),
    ],
)
def test_signals_have_many_spellings(text: str, number: int) -> None:
    assert signal_number(text) == number


@pytest.mark.parametrize("text", ["", "0", "65", "SIGNOPE", "SIGRTMIN+31", "-1", "1.5"])
def test_other_signals_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="unknown stop signal"):
        signal_number(text)


def test_every_signal_of_the_interface_has_a_number() -> None:
    for value in v1.Signal:
        if value != v1.Signal.RUNTIME_DEFAULT:
            assert 0 < stop_signal(v1.ContainerConfig(stop_signal=value), IMAGE) <= signal.SIGRTMAX


def test_the_images_stop_signal_is_the_default() -> None:
    image = attrs.evolve(IMAGE, config=attrs.evolve(IMAGE.config, stop_signal="SIGQUIT"))
    assert stop_signal(v1.ContainerConfig(), image) == signal.SIGQUIT
    assert stop_signal(v1.ContainerConfig(), IMAGE) == signal.SIGTERM


def bounding(add: list[str], drop: list[str], *, privileged: bool = False, devices_confined: bool = True) -> int:
    return capabilities.bounding_set(add, drop, privileged=privileged, devices_confined=devices_confined)


def test_capabilities_add_and_drop() -> None:
    assert bounding([], []) == 0xA80425FB
    assert bounding(["NET_ADMIN"], ["ALL"]) == 1 << 12
    assert bounding(["cap_sys_admin"], []) == 0xA80425FB | 1 << 21
    assert bounding(["ALL"], ["CAP_CHOWN"]) == capabilities.ALL & ~1
    assert bounding([], ["ALL"]) == 0
    assert bounding([], [], privileged=True) == capabilities.ALL


def test_making_device_nodes_must_be_asked_for_where_nothing_confines_them() -> None:
    mknod = 1 << 27
    assert not bounding([], [], devices_confined=False) & mknod
    assert bounding(["MKNOD"], [], devices_confined=False) & mknod


def test_an_unknown_capability_is_named() -> None:
    security = v1.LinuxContainerSecurityContext(capabilities=v1.Capability(add_capabilities=["FLY"]))
    with pytest.raises(SpecError, match="FLY"):
        container_spec(around(), v1.ContainerConfig(linux=v1.LinuxContainerConfig(security_context=security)), IMAGE)


@pytest.mark.parametrize("name", ["net.ipv4.ip_forward", "kernel.panic", "kernel/../x", "kernel.shm_x/../../y"])
def test_sysctls_that_would_change_the_node_are_refused(name: str) -> None:
    config = v1.PodSandboxConfig(hostname="pod", linux=v1.LinuxPodSandboxConfig(sysctls={name: "1"}))
    with pytest.raises(SandboxConfigError, match="sysctl"):
        sandbox_request("s", config, own_network=False)


def test_a_user_namespace_of_the_pods_own_is_refused() -> None:
    mapping = v1.IdMapping(host_id=100_000, container_id=0, length=65536)
    users = v1.UserNamespace(mode=v1.NamespaceMode.POD, uids=[mapping], gids=[mapping])
    security = v1.LinuxSandboxSecurityContext(namespace_options=v1.NamespaceOption(userns_options=users))
    config = v1.PodSandboxConfig(hostname="pod", linux=v1.LinuxPodSandboxConfig(security_context=security))
    with pytest.raises(SandboxConfigError, match="hostUsers"):
        sandbox_request("s", config, own_network=False)


def test_sysctls_of_the_pods_own_namespaces_are_passed_on() -> None:
    config = v1.PodSandboxConfig(hostname="pod", linux=v1.LinuxPodSandboxConfig(sysctls={"kernel.shmmax": "1"}))
    assert sandbox_request("s", config, own_network=False)["sysctls"] == {"kernel.shmmax": "1"}
