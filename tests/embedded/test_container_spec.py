"""What a CRI configuration becomes, without running anything."""

from __future__ import annotations

import signal
from pathlib import Path

import attrs
import pytest

from trikubelet.embedded.container_spec import SpecContext, SpecError, container_spec, signal_number, stop_signal
from trikubelet.embedded.images.model import ImageConfig, StoredImage
from trikubelet.embedded.keeper import capabilities
from trikubelet.embedded.keeper_client import KeeperAbilities
from trikubelet.embedded.sandbox_files import SandboxConfigError, sandbox_request
from trikubelet.rpc.cri import v1

ROOT = KeeperAbilities(
    pid=1, mode="root", overlay=True, limits=(), cgroup_v2=True, cgroup_v1=(), devices_confined=True, problems=()
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


def test_profiles_that_would_be_ignored_are_refused() -> None:
    profile = v1.SecurityProfile(profile_type=v1.SecurityProfileProfileType.Localhost, localhost_ref="strict.json")
    security = v1.LinuxContainerSecurityContext(seccomp=profile)
    with pytest.raises(SpecError, match="seccomp"):
        container_spec(around(), v1.ContainerConfig(linux=v1.LinuxContainerConfig(security_context=security)), IMAGE)


def test_devices_that_only_a_cdi_registry_knows_are_refused() -> None:
    config = v1.ContainerConfig(cdi_devices=[v1.CdiDevice(name="vendor.com/gpu=0")])
    with pytest.raises(SpecError, match="CDI devices: the embedded runtime does not support them"):
        container_spec(around(), config, IMAGE)


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
        sandbox_request("s", config)


def test_sysctls_of_the_pods_own_namespaces_are_passed_on() -> None:
    config = v1.PodSandboxConfig(hostname="pod", linux=v1.LinuxPodSandboxConfig(sysctls={"kernel.shmmax": "1"}))
    assert sandbox_request("s", config)["sysctls"] == {"kernel.shmmax": "1"}
