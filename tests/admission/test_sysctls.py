"""Which kernel settings pods may ask for, in the kubelet's cases."""

from __future__ import annotations

from typing import Any

import pytest

from trikubelet.admission.sysctls import SAFE_SYSCTLS, SysctlAllowList, SysctlPatternError, sysctl_namespace
from trikubelet.api import Pod, PodSecurityContext, PodSpec, Sysctl

ALWAYS_SAFE = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
}
ALLOWED = SysctlAllowList.of_node(("kernel.msg*", "kernel.sem", "net.b.*"), (5, 15))


def asking(*names: str, **spec: Any) -> Pod:
    sysctls = tuple(Sysctl(name=name, value="1") for name in names)
    return Pod(spec=PodSpec(security_context=PodSecurityContext(sysctls=sysctls), **spec))


@pytest.mark.parametrize(
    ("kernel", "safe"),
    [
        ((), ALWAYS_SAFE),
        ((3, 18), ALWAYS_SAFE | {"net.ipv4.ip_local_reserved_ports"}),
        ((4, 5), set(SAFE_SYSCTLS) - {"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}),
        ((4, 15), set(SAFE_SYSCTLS)),
        ((5, 15), set(SAFE_SYSCTLS)),
        ((6, 1), set(SAFE_SYSCTLS)),
    ],
)
def test_what_is_safe_depends_on_the_kernel(kernel: tuple[int, ...], safe: set[str]) -> None:
    assert set(SysctlAllowList.of_node(kernel=kernel).names) == safe


@pytest.mark.parametrize("pattern", ["kernel.msg*", "kernel.sem", "kernel/msg*", "kernel/sem", "fs.mqueue.*", "net.*"])
def test_patterns_of_namespaced_settings_can_be_allowed(pattern: str) -> None:
    SysctlAllowList.of_node((pattern,))


@pytest.mark.parametrize("pattern", [" kernel.msg*", "kernel.msg* ", "net.-", "net.*.foo", "net.*/foo", "", "a" * 254])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(SysctlPatternError, match="must have at most 253 characters and match regex"):
        SysctlAllowList.of_node((pattern,))


@pytest.mark.parametrize(("pattern", "name"), [("foo", "foo"), ("foo*", "foo"), ("vm.swappiness", "vm.swappiness")])
def test_what_would_change_the_whole_node_is_refused(pattern: str, name: str) -> None:
    with pytest.raises(SysctlPatternError) as caught:
        SysctlAllowList.of_node((pattern,))
    assert str(caught.value) == f'the sysctls "{name}" are not known to be namespaced'


@pytest.mark.parametrize(
    "name",
    [
        "kernel.shm_rmid_forced",
        "kernel/shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net/ipv4/ip_local_port_range",
        "kernel.msgmax",
        "kernel.sem",
        "kernel/sem",
        "net.b.c",
    ],
)
def test_what_is_safe_or_allowed_is_given(name: str) -> None:
    assert ALLOWED.problem(asking(name)) is None


@pytest.mark.parametrize(
    ("name", "spec", "problem"),
    [
        ("kernel.shm_rmid_forced", {"host_ipc": True}, '"kernel.shm_rmid_forced" not allowed with host IPC enabled'),
        (
            "net/ipv4/ip_local_port_range",
            {"host_network": True},
            '"net.ipv4.ip_local_port_range" not allowed with host Net enabled',
        ),
        ("foo", {}, '"foo" not allowlisted'),
        ("net.a.b.c", {}, '"net.a.b.c" not allowlisted'),
        ("net.ipv4.ip_local_port_range.a.b.c", {}, '"net.ipv4.ip_local_port_range.a.b.c" not allowlisted'),
        ("kernel.msgmax", {"host_ipc": True}, '"kernel.msgmax" not allowed with host IPC enabled'),
        ("kernel.sem", {"host_ipc": True}, '"kernel.sem" not allowed with host IPC enabled'),
        ("net.b.c", {"host_network": True}, '"net.b.c" not allowed with host Net enabled'),
    ],
)
def test_others_are_not_and_it_is_said_why(name: str, spec: dict[str, Any], problem: str) -> None:
    assert ALLOWED.problem(asking("kernel.shm_rmid_forced" if name == "foo" else name, name, **spec)) == problem


def test_a_shared_namespace_of_another_kind_does_not_matter() -> None:
    assert ALLOWED.problem(asking("kernel.sem", host_network=True)) is None
    assert ALLOWED.problem(asking("net.b.c", host_ipc=True)) is None


def test_a_pod_that_asks_for_nothing_gets_it() -> None:
    assert ALLOWED.problem(Pod()) is None
    assert ALLOWED.problem(asking()) is None


def test_every_safe_setting_is_of_a_known_namespace() -> None:
    assert {sysctl_namespace(name) for name in SAFE_SYSCTLS} == {"IPC", "Net"}
    assert sysctl_namespace("network.x") is None
