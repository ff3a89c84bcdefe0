"""What a sandbox and its containers are told alike: users of the pod, groups of its volumes, AppArmor's annotation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.runtime.conftest import Node, make_pod
from trikubelet.api import AppArmorProfile, Container, ObjectMeta, Pod, PodSecurityContext, PodSpec
from trikubelet.api.security_context import apparmor_profile
from trikubelet.container.errors import SandboxConfigError
from trikubelet.linux.machine_facts import MachineFacts
from trikubelet.rpc.cri import v1
from trikubelet.runtime.containers.security import (
    ImageUser,
    container_security_context,
    namespace_options,
    sandbox_security_context,
)
from trikubelet.runtime.options import RuntimeOptions
from trikubelet.runtime.sandboxes.name_resolution import DNSSettings, kernel_hostname, pod_hostname_and_domain
from trikubelet.runtime.sandboxes.sandbox import sandbox_config

if TYPE_CHECKING:
    from trio.testing import MockClock

OPTIONS = RuntimeOptions(root_dir=Path("/var/lib/agent"), machine=MachineFacts(10**9))
MAIN = Container(name="main")
MAPPING = v1.IdMapping(host_id=65_536, container_id=0, length=65_536)
OWN_USERS = v1.UserNamespace(mode=v1.NamespaceMode.POD, uids=[MAPPING], gids=[MAPPING])


def pod(annotations: dict[str, str] | None = None, **spec: Any) -> Pod:
    metadata = ObjectMeta(name="web", namespace="default", uid="1", annotations=annotations or {})
    return Pod(metadata=metadata, spec=PodSpec(containers=(MAIN,), **spec))


@pytest.mark.parametrize("host_users", [None, True])
def test_a_pod_without_users_of_its_own_is_told_to_have_the_nodes(host_users: bool | None) -> None:
    assert namespace_options(pod(host_users=host_users)).userns_options == v1.UserNamespace(mode=v1.NamespaceMode.NODE)


def test_a_sandbox_and_its_containers_have_the_same_users() -> None:
    asking = pod(host_users=False)
    container = container_security_context(asking, MAIN, ImageUser(0), OPTIONS, userns=OWN_USERS)
    sandbox = sandbox_config(asking, 0, DNSSettings(), OPTIONS, userns=OWN_USERS)
    assert container.namespace_options.userns_options == OWN_USERS
    assert sandbox.linux.security_context.namespace_options.userns_options == OWN_USERS


@pytest.mark.parametrize("given", [None, v1.UserNamespace(mode=v1.NamespaceMode.NODE)])
def test_a_pod_never_runs_as_the_nodes_users_when_it_asked_for_its_own(given: v1.UserNamespace | None) -> None:
    with pytest.raises(SandboxConfigError, match="hostUsers: false"):
        namespace_options(pod(host_users=False), given)


def test_groups_of_volumes_come_last_in_containers_and_in_the_middle_in_sandboxes() -> None:
    shared = pod(security_context=PodSecurityContext(fs_group=1, supplemental_groups=(2, 3)))
    container = container_security_context(shared, MAIN, ImageUser(0), OPTIONS, volume_groups=(7, 8))
    assert container.supplemental_groups == [1, 2, 3, 7, 8]
    assert sandbox_security_context(shared, volume_groups=(7, 8)).supplemental_groups == [1, 7, 8, 2, 3]
    plain = container_security_context(pod(), MAIN, ImageUser(0), OPTIONS, volume_groups=(7,))
    assert plain.supplemental_groups == [7]


async def test_the_groups_of_a_pods_volumes_reach_its_sandbox_and_its_containers(
    autojump_clock: MockClock, node: Node
) -> None:
    node.mounts.groups = (7, 8)
    await node.sync(make_pod(security_context=PodSecurityContext(fs_group=1, supplemental_groups=(2,))))
    [sandbox] = node.sim.machine.sandboxes.values()
    assert sandbox.config.linux.security_context.supplemental_groups == [1, 7, 8, 2]
    [container] = node.sim.running_containers()
    assert container.config.linux.security_context.supplemental_groups == [1, 2, 7, 8]


def test_a_sandbox_is_put_below_the_pods_cgroup() -> None:
    made = sandbox_config(pod(), 0, DNSSettings(), OPTIONS, cgroup_parent="/kubepods/pod1")
    assert made.linux.cgroup_parent == "/kubepods/pod1"
    assert sandbox_config(pod(), 0, DNSSettings(), OPTIONS).linux.cgroup_parent == ""


@pytest.mark.parametrize(
    ("annotation", "profile"),
    [
        ("runtime/default", AppArmorProfile(type="RuntimeDefault")),
        ("unconfined", AppArmorProfile(type="Unconfined")),
        ("localhost/strict", AppArmorProfile(type="Localhost", localhost_profile="strict")),
        ("", AppArmorProfile(type="Localhost", localhost_profile="of-the-pod")),
        ("strict", AppArmorProfile(type="Localhost", localhost_profile="of-the-pod")),
    ],
)
def test_an_annotation_that_says_nothing_known_does_not_count(annotation: str, profile: AppArmorProfile) -> None:
    shared = PodSecurityContext(app_armor_profile=AppArmorProfile(type="Localhost", localhost_profile="of-the-pod"))
    annotated = pod({"container.apparmor.security.beta.kubernetes.io/main": annotation}, security_context=shared)
    assert apparmor_profile(annotated, MAIN) == profile


# What is said of names that no pod can have


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"hostname": "Not_Valid"}, 'pod Hostname "Not_Valid" is not a valid DNS label: a lowercase RFC 1123 label '),
        ({"hostname": "a" * 64}, f'pod Hostname "{"a" * 64}" is not a valid DNS label: must be no more than 63 '),
        ({"subdomain": "-a"}, 'pod Subdomain "-a" is not a valid DNS label: a lowercase RFC 1123 label must consist '),
        ({"hostname_override": "A"}, 'pod HostnameOverride "A" is not a valid DNS subdomain: a lowercase RFC 1123 '),
    ],
)
def test_a_name_is_refused_with_what_is_wrong_with_it(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(SandboxConfigError) as caught:
        pod_hostname_and_domain(pod(**spec), "cluster.local")
    assert str(caught.value).startswith(problem)


def test_a_full_name_that_is_too_long_is_told_in_the_known_words() -> None:
    with pytest.raises(SandboxConfigError) as caught:
        kernel_hostname(pod(set_hostname_as_fqdn=True), "web", "x" * 66)
    assert str(caught.value) == (
        f"failed to construct FQDN from pod hostname and cluster domain, FQDN web.{'x' * 66} is too long "
        "(64 characters is the max, 70 characters requested)"
    )
