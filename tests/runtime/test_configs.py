"""The messages that sandboxes and containers are created with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import betterproto
import pytest

from trikubelet.admission.sysctls import dotted_sysctl
from trikubelet.api import (
    AppArmorProfile,
    Capabilities,
    Container,
    ContainerPort,
    HostAlias,
    Lifecycle,
    ObjectMeta,
    Pod,
    PodSecurityContext,
    PodSpec,
    Quantity,
    ResourceRequirements,
    SeccompProfile,
    SecurityContext,
    Sysctl,
)
from trikubelet.container.errors import ContainerConfigError, SandboxConfigError
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.rpc.cri import v1
from trikubelet.runtime.containers.container import ContainerExtras, ContainerInputs, container_config, what_is_too_long
from trikubelet.runtime.containers.resources import container_resources, sandbox_resources
from trikubelet.runtime.containers.security import ImageUser, container_security_context, verify_run_as_non_root
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.runtime.sandboxes.name_resolution import (
    DNSSettings,
    host_network_hosts_file,
    kernel_hostname,
    managed_hosts_file,
    pod_hostname_and_domain,
)
from trikubelet.runtime.sandboxes.sandbox import port_mappings, sandbox_config

OPTIONS = RuntimeOptions(root_dir=Path("/var/lib/agent"), machine=MachineFacts(10**9), cluster_domain="cluster.local")
META = ObjectMeta(name="web", namespace="default", uid="uid-1", labels={"app": "web"}, annotations={"a": "b"})
PROFILES = v1.SecurityProfileProfileType


def pod(*containers: Container, **spec: Any) -> Pod:
    return Pod(metadata=META, spec=PodSpec(containers=containers, **spec))


def config(container: Container, situation: Pod | None = None, **inputs: Any) -> v1.ContainerConfig:
    defaults: dict[str, Any] = {
        "restart_count": 0,
        "image_ref": "sha256:1",
        "image_user": ImageUser(0),
        "environment": {},
    }
    return container_config(situation or pod(container), container, ContainerInputs(**{**defaults, **inputs}), OPTIONS)


def security(container: Container, situation: Pod | None = None, **more: Any) -> v1.LinuxContainerSecurityContext:
    return container_security_context(
        situation or pod(container), container, more.pop("user", ImageUser(0)), more.pop("options", OPTIONS), **more
    )


def test_a_containers_configuration_says_what_to_run() -> None:
    container = Container(
        name="main",
        image="busybox",
        command=("sh", "-c"),
        args=("echo $(WHO) $(NOBODY)",),
        working_dir="/srv",
        tty=True,
        stdin=True,
        stdin_once=True,
    )
    made = config(container, restart_count=3, environment={"WHO": "wörld"})
    assert (made.metadata.name, made.metadata.attempt) == ("main", 3)
    assert (made.image.image, made.image.user_specified_image) == ("sha256:1", "busybox")
    assert (made.command, made.args) == (["sh", "-c"], ["echo wörld $(NOBODY)"])
    assert made.working_dir == "/srv"
    assert [(one.key, one.value) for one in made.envs] == [("WHO", "wörld".encode())]
    assert made.log_path == "main/3.log"
    assert made.tty
    assert made.stdin
    assert made.stdin_once
    assert made.labels["io.kubernetes.pod.uid"] == "uid-1"
    assert made.annotations["io.kubernetes.container.restartCount"] == "3"
    assert made.linux.resources.oom_score_adj == 1000


@pytest.mark.parametrize(
    ("fields", "inputs", "named"),
    [
        ({"command": ("sh", "a\0b")}, {}, r"command\[1\]"),
        ({"args": ("a\0b",)}, {}, r"args\[0\]"),
        ({"working_dir": "/a\0b"}, {}, "workingDir"),
        ({}, {"environment": {"WHO": "a\0b"}}, "variable WHO"),
        ({"args": ("$(WHO)",)}, {"environment": {"WHO": "a\0b"}}, r"args\[0\]"),
        ({}, {"mounts": [v1.Mount(container_path="/a\0b", host_path="/x")]}, "mount"),
        ({}, {"mounts": [v1.Mount(container_path="/data", host_path="/a\0b")]}, "mount of '/data'"),
    ],
)
def test_what_no_process_can_be_given_is_refused_by_name(
    fields: dict[str, Any], inputs: dict[str, Any], named: str
) -> None:
    with pytest.raises(ContainerConfigError, match=rf"^{named}.* contains a NUL character"):
        config(Container(name="main", **fields), **inputs)


ONE, ALL = 128 * 1024, 2 * 1024 * 1024


@pytest.mark.parametrize(
    ("fields", "environment", "problem"),
    [
        ({"command": ("sh", "x" * ONE)}, {}, "command[1] is longer than the 128 KiB"),
        ({"args": ("ö" * (ONE // 2),)}, {}, "args[0] is longer than the 128 KiB"),
        ({}, {"WHO": "x" * (ONE - 4)}, "variable WHO is longer than the 128 KiB"),
        ({"args": ("$(WHO)" * 3,)}, {"WHO": "x" * (ONE // 3 + 1)}, "args[0] is longer than the 128 KiB"),
        ({"args": ("$(WHO)",) * 80}, {"WHO": "x" * (ONE - 10)}, "command, args and environment"),
        (
            {"args": ("x" * (ONE - 1),)},
            {f"V{n:02}": "x" * (ONE - 5) for n in range(16)},
            "command, args and environment",
        ),
    ],
)
def test_what_is_too_long_for_any_process_is_named(
    fields: dict[str, Any], environment: dict[str, str], problem: str
) -> None:
    """And left to the runtime: the pod fails, where it would wait for ever otherwise."""
    made = config(Container(name="main", **fields), environment=environment)
    assert what_is_too_long(made).startswith(problem)


def test_what_is_as_long_as_a_process_can_be_given_is_not() -> None:
    environment = {f"V{n:02}": "x" * (ONE - 5) for n in range(15)}
    made = config(Container(name="main", args=("x" * (ONE - 1),)), environment=environment)
    assert sum(len(one.key) + len(one.value) + 2 for one in made.envs) + len(made.args[0]) + 1 == ALL
    assert what_is_too_long(made) == ""


def test_a_configuration_survives_the_wire() -> None:
    made = config(Container(name="main", image="busybox"))
    again = v1.ContainerConfig().parse(bytes(made))
    assert betterproto.serialized_on_wire(again.linux.security_context.run_as_user)
    assert again.linux.security_context.namespace_options.pid == v1.NamespaceMode.CONTAINER


@pytest.mark.parametrize(
    ("name", "signal"),
    [("SIGUSR1", v1.Signal.SIGUSR1), ("SIGRTMIN+3", v1.Signal.SIGRTMINPLUS3), ("SIGRTMAX-1", v1.Signal.SIGRTMAXMINUS1)],
)
def test_a_stop_signal_is_given_to_the_runtime(name: str, signal: v1.Signal) -> None:
    assert config(Container(name="main", lifecycle=Lifecycle(stop_signal=name))).stop_signal == signal


def test_a_stop_signal_that_is_none_is_refused() -> None:
    with pytest.raises(ContainerConfigError, match="SIGFOO"):
        config(Container(name="main", lifecycle=Lifecycle(stop_signal="SIGFOO")))


def test_bytes_of_a_secret_reach_the_container_unchanged() -> None:
    value = b"\xff".decode(errors="surrogateescape")
    made = config(Container(name="main"), environment={"KEY": value})
    assert made.envs[0].value == b"\xff"
    assert v1.ContainerConfig().parse(bytes(made)).envs[0].value == b"\xff"


@pytest.mark.parametrize(
    ("fields", "environment", "named"),
    [
        ({"args": ("$(KEY)",)}, {"KEY": "\udcff"}, r"args\[0\]"),
        ({}, {"K\udcff": ""}, "a variable's name"),
        ({}, {"KEY": "\ud800"}, "variable KEY"),
    ],
)
def test_what_the_way_to_the_runtime_cannot_take_is_refused_by_name(
    fields: dict[str, Any], environment: dict[str, str], named: str
) -> None:
    with pytest.raises(ContainerConfigError, match=rf"^{named} is not valid UTF-8"):
        config(Container(name="main", **fields), environment=environment)


def test_what_devices_bring_comes_before_the_pods_own() -> None:
    extras = ContainerExtras(
        devices=[v1.Device(host_path="/dev/gpu0", container_path="/dev/gpu")],
        cdi_devices=["example.org/gpu=0"],
        mounts=[v1.Mount(container_path="/driver", host_path="/opt/driver")],
        annotations={"example.org/gpu": "0", "io.kubernetes.container.restartCount": "99"},
    )
    disk = v1.Device(host_path="/dev/disk", container_path="/dev/disk")
    mount = v1.Mount(container_path="/data", host_path="/x")
    made = config(Container(name="main"), extras=extras, devices=[disk], mounts=[mount])
    assert [device.container_path for device in made.devices] == ["/dev/gpu", "/dev/disk"]
    assert [device.name for device in made.cdi_devices] == ["example.org/gpu=0"]
    assert [mount.container_path for mount in made.mounts] == ["/driver", "/data"]
    assert made.annotations["example.org/gpu"] == "0"
    assert made.annotations["io.kubernetes.container.restartCount"] == "0"


def test_a_container_runs_where_it_was_given_cpus_and_memory() -> None:
    extras = ContainerExtras(cpuset_cpus="2-3", cpuset_mems="0")
    resources = config(Container(name="c"), extras=extras).linux.resources
    assert (resources.cpuset_cpus, resources.cpuset_mems) == ("2-3", "0")


def test_who_has_cpus_for_itself_has_no_quota() -> None:
    amounts = {"cpu": Quantity("1"), "memory": Quantity("1Mi")}
    resources = ResourceRequirements(requests=amounts, limits=amounts)
    own, part = (Container(name=name, resources=resources) for name in ("own", "part"))
    situation = pod(own, part)

    def has_own(_: Pod, one: Container | None) -> bool:
        return one is None or one is own

    options = attrs.evolve(OPTIONS, has_exclusive_cpus=has_own)
    quotas = [container_resources(situation, one, options).cpu_quota for one in (own, part)]
    assert quotas == [-1, 100_000]
    assert sandbox_resources(situation, options).cpu_quota == -1
    assert container_resources(situation, own, attrs.evolve(options, cpu_cfs_quota=False)).cpu_quota == 0


def test_a_pod_with_its_own_users_has_them_in_all_mounts() -> None:
    ids = v1.IdMapping(host_id=65536, container_id=0, length=65536)
    users = v1.UserNamespace(mode=v1.NamespaceMode.POD, uids=[ids], gids=[ids])
    container = Container(name="main")
    made = config(
        container,
        pod(container, host_users=False),
        mounts=[v1.Mount(container_path="/a"), v1.Mount(container_path="/b")],
        user_namespace=users,
    )
    assert made.linux.security_context.namespace_options.userns_options == users
    assert [(mount.uid_mappings, mount.gid_mappings) for mount in made.mounts] == [([ids], [ids])] * 2


def test_a_pod_with_the_nodes_users_has_its_mounts_as_they_are() -> None:
    container = Container(name="main")
    made = config(
        container,
        mounts=[v1.Mount(container_path="/a")],
        user_namespace=v1.UserNamespace(mode=v1.NamespaceMode.NODE),
    )
    assert (made.mounts[0].uid_mappings, made.mounts[0].gid_mappings) == ([], [])


# Security


def test_the_containers_settings_win_over_the_pods() -> None:
    shared = PodSecurityContext(run_as_user=1, run_as_group=2, fs_group=3, supplemental_groups=(4, 5))
    container = Container(name="main", security_context=SecurityContext(run_as_user=0))
    made = security(container, pod(container, security_context=shared))
    assert betterproto.serialized_on_wire(made.run_as_user)
    assert made.run_as_user.value == 0
    assert made.run_as_group.value == 2
    assert made.supplemental_groups == [3, 4, 5]


def test_an_images_user_counts_when_nobody_says_otherwise() -> None:
    made = security(Container(name="main"), user=ImageUser(None, "nobody"))
    assert made.run_as_username == "nobody"
    assert not betterproto.serialized_on_wire(made.run_as_user)
    asked = Container(name="main", security_context=SecurityContext(run_as_user=7))
    made = security(asked, user=ImageUser(None, "nobody"))
    assert (made.run_as_user.value, made.run_as_username) == (7, "")


def test_paths_are_hidden_unless_proc_is_unmasked() -> None:
    options = attrs.evolve(OPTIONS, machine=MachineFacts(1, masked_paths=("/sys/devices/system/cpu/cpu0/x",)))
    made = security(Container(name="main"), options=options)
    assert "/proc/kcore" in made.masked_paths
    assert made.masked_paths[-1] == "/sys/devices/system/cpu/cpu0/x"
    assert "/proc/sys" in made.readonly_paths
    bare = security(Container(name="main", security_context=SecurityContext(proc_mount="Unmasked")))
    assert bare.masked_paths == bare.readonly_paths == []


def test_privileges_are_passed_on() -> None:
    settings = SecurityContext(
        privileged=True,
        read_only_root_filesystem=True,
        allow_privilege_escalation=False,
        capabilities=Capabilities(add=("NET_ADMIN",), drop=("ALL",)),
    )
    made = security(Container(name="main", security_context=settings))
    assert made.privileged
    assert made.readonly_rootfs
    assert made.no_new_privs
    assert made.capabilities.add_capabilities == ["NET_ADMIN"]
    assert made.capabilities.drop_capabilities == ["ALL"]
    assert not security(Container(name="main")).no_new_privs


@pytest.mark.parametrize(
    ("own", "shared", "default", "expected"),
    [
        (None, None, False, (PROFILES.Unconfined, "")),
        (None, None, True, (PROFILES.RuntimeDefault, "")),
        (None, SeccompProfile(type="RuntimeDefault"), False, (PROFILES.RuntimeDefault, "")),
        (SeccompProfile(type="Unconfined"), SeccompProfile(type="RuntimeDefault"), True, (PROFILES.Unconfined, "")),
        (
            SeccompProfile(type="Localhost", localhost_profile="a.json"),
            None,
            False,
            (PROFILES.Localhost, "/var/lib/agent/seccomp/a.json"),
        ),
    ],
)
def test_the_nearest_seccomp_profile_counts(
    own: SeccompProfile | None, shared: SeccompProfile | None, default: bool, expected: tuple[Any, str]
) -> None:
    container = Container(name="main", security_context=SecurityContext(seccomp_profile=own))
    situation = pod(container, security_context=PodSecurityContext(seccomp_profile=shared))
    made = security(container, situation, options=attrs.evolve(OPTIONS, seccomp_default=default)).seccomp
    assert (made.profile_type, made.localhost_ref) == expected


def test_apparmor_is_told_to_old_and_new_runtimes() -> None:
    profile = AppArmorProfile(type="Localhost", localhost_profile="strict")
    made = security(Container(name="main", security_context=SecurityContext(app_armor_profile=profile)))
    assert (made.apparmor.profile_type, made.apparmor.localhost_ref) == (PROFILES.Localhost, "strict")
    assert made.apparmor_profile == "localhost/strict"


def test_apparmor_is_read_from_the_old_annotation_too() -> None:
    container = Container(name="main")
    key = "container.apparmor.security.beta.kubernetes.io/main"
    situation = attrs.evolve(pod(container), metadata=ObjectMeta(annotations={key: "unconfined"}))
    assert security(container, situation).apparmor_profile == "unconfined"
    assert not betterproto.serialized_on_wire(security(container).apparmor)


@pytest.mark.parametrize(
    ("settings", "user", "problem"),
    [
        (SecurityContext(), ImageUser(0), None),
        (SecurityContext(run_as_non_root=True, run_as_user=1), ImageUser(0), None),
        (SecurityContext(run_as_non_root=False), ImageUser(0), None),
        (SecurityContext(run_as_non_root=True), ImageUser(7), None),
        (SecurityContext(run_as_non_root=True), ImageUser(2**31 - 1), None),
        (SecurityContext(run_as_non_root=True, run_as_user=0), ImageUser(0), "runAsUser breaks non-root policy"),
        (SecurityContext(run_as_non_root=True), ImageUser(0), "image will run as root"),
        (SecurityContext(run_as_non_root=True), ImageUser(None, "test"), r"non-numeric user \(test\)"),
        (SecurityContext(run_as_non_root=True), ImageUser(2**31), "invalid user id"),
        (SecurityContext(run_as_non_root=True), ImageUser(-1), "invalid user id"),
    ],
)
def test_containers_that_must_not_be_root_are_checked(
    settings: SecurityContext, user: ImageUser, problem: str | None
) -> None:
    container = Container(name="main", security_context=settings)
    if problem is None:
        verify_run_as_non_root(pod(container), container, user)
        return
    with pytest.raises(ContainerConfigError, match=problem):
        verify_run_as_non_root(pod(container), container, user)


def test_namespaces_are_shared_as_asked_for() -> None:
    container = Container(name="main")
    modes = v1.NamespaceMode
    plain = security(container).namespace_options
    assert (plain.network, plain.ipc, plain.pid) == (modes.POD, modes.POD, modes.CONTAINER)
    shared = security(container, pod(container, share_process_namespace=True)).namespace_options
    assert shared.pid == modes.POD
    host = security(container, pod(container, host_network=True, host_pid=True, host_ipc=True)).namespace_options
    assert (host.network, host.ipc, host.pid) == (modes.NODE, modes.NODE, modes.NODE)


def test_an_ephemeral_container_joins_its_targets_processes() -> None:
    container = Container(name="debug")
    joined = security(container, target_id="abc").namespace_options
    assert (joined.pid, joined.target_id) == (v1.NamespaceMode.TARGET, "abc")
    shared = security(container, pod(container, share_process_namespace=True), target_id="abc").namespace_options
    assert (shared.pid, shared.target_id) == (v1.NamespaceMode.POD, "")


def test_user_namespaces_are_refused_for_now() -> None:
    with pytest.raises(SandboxConfigError, match="hostUsers"):
        security(Container(name="main"), pod(host_users=False))


# Sandboxes


def test_a_sandboxs_configuration_describes_the_pod() -> None:
    container = Container(
        name="main",
        security_context=SecurityContext(privileged=True),
        ports=(ContainerPort(container_port=80, host_port=8080, protocol="UDP"),),
    )
    shared = PodSecurityContext(sysctls=(Sysctl(name="net/ipv4/ip_forward", value="1"),), run_as_user=5)
    dns = DNSSettings(("10.0.0.10",), ("a.b",), ("ndots:5",))
    made = sandbox_config(pod(container, security_context=shared), 2, dns, OPTIONS)
    metadata = made.metadata
    assert (metadata.name, metadata.namespace, metadata.uid, metadata.attempt) == ("web", "default", "uid-1", 2)
    assert made.hostname == "web"
    assert made.log_directory == "/var/log/pods/default_web_uid-1"
    assert (made.dns_config.servers, made.dns_config.searches) == (["10.0.0.10"], ["a.b"])
    assert [(one.container_port, one.host_port, one.protocol) for one in made.port_mappings] == [
        (80, 8080, v1.Protocol.UDP)
    ]
    assert (made.labels["app"], made.annotations) == ("web", {"a": "b"})
    assert made.linux.sysctls == {"net.ipv4.ip_forward": "1"}
    assert made.linux.security_context.privileged
    assert made.linux.security_context.run_as_user.value == 5
    assert made.linux.security_context.seccomp.profile_type == PROFILES.RuntimeDefault


def test_a_pod_on_the_nodes_network_has_no_hostname_of_its_own() -> None:
    assert sandbox_config(pod(host_network=True), 0, DNSSettings(), OPTIONS).hostname == ""


def test_a_port_name_counts_once() -> None:
    ports = (
        ContainerPort(name="http", container_port=80),
        ContainerPort(name="http", container_port=81),
        ContainerPort(container_port=82, host_ip="::1"),
        ContainerPort(container_port=82, host_ip="::1"),
    )
    assert [port.container_port for port in port_mappings(Container(name="main", ports=ports))] == [80, 82]


@pytest.mark.parametrize(
    ("name", "dotted"),
    [
        ("kernel.shm_rmid_forced", "kernel.shm_rmid_forced"),
        ("kernel/shm_rmid_forced", "kernel.shm_rmid_forced"),
        ("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
        ("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
    ],
)
def test_sysctls_get_dots(name: str, dotted: str) -> None:
    assert dotted_sysctl(name) == dotted


# Host names


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ("web", "")),
        ({"hostname": "custom"}, ("custom", "")),
        ({"subdomain": "sub"}, ("web", "sub.default.svc.cluster.local")),
        ({"hostname_override": "a.b.c", "hostname": "custom", "subdomain": "sub"}, ("a.b.c", "")),
    ],
)
def test_host_name_and_domain(spec: dict[str, str], expected: tuple[str, str]) -> None:
    assert pod_hostname_and_domain(pod(**spec), "cluster.local") == expected


def test_long_names_are_cut_and_do_not_end_in_a_dash_or_dot() -> None:
    named = Pod(metadata=ObjectMeta(name="a" * 60 + "-.-b", namespace="default"))
    assert pod_hostname_and_domain(named, "x") == ("a" * 60, "")


@pytest.mark.parametrize("spec", [{"hostname": "Not_Valid"}, {"subdomain": "a.b"}, {"hostname_override": "-"}])
def test_invalid_names_are_refused(spec: dict[str, str]) -> None:
    with pytest.raises(SandboxConfigError, match="is not a valid DNS"):
        pod_hostname_and_domain(pod(**spec), "x")


def test_the_kernel_gets_the_full_name_on_request_and_when_it_fits() -> None:
    asked = pod(set_hostname_as_fqdn=True)
    assert kernel_hostname(asked, "web", "sub.x") == "web.sub.x"
    assert kernel_hostname(asked, "web", "") == "web"
    assert kernel_hostname(pod(), "web", "sub.x") == "web"
    with pytest.raises(SandboxConfigError, match=r"64 characters is the max, 70 characters requested"):
        kernel_hostname(asked, "web", "x" * 66)


def test_the_managed_hosts_file_has_the_pods_addresses_and_aliases() -> None:
    text = managed_hosts_file(
        ["10.0.0.7", "fd00::7"], "web", "sub.x", [HostAlias(ip="1.2.3.4", hostnames=("foo", "bar"))]
    )
    assert text.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost")
    assert text.endswith(
        "10.0.0.7\tweb.sub.x\tweb\nfd00::7\tweb.sub.x\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n"
    )


def test_on_the_nodes_network_the_nodes_hosts_file_is_kept() -> None:
    assert host_network_hosts_file("127.0.0.1 node\n", []) == (
        "# Kubernetes-managed hosts file (host network).\n127.0.0.1 node\n"
    )
