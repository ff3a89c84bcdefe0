"""Feature gates of the configuration, and what becomes of the agent's parts by them.

What a part does when it is switched is shown by its own tests.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import attrs
import pytest
import trio

from tests.agent.sim_node import sim_node, static_pod
from tests.scenarios.stage import cluster_stage
from trikubelet.agent.allocation import node_admission, resize_gates
from trikubelet.agent.node import node_settings
from trikubelet.agent.node_view import NodeView
from trikubelet.agent.options import EMBEDDED, AgentOptions, ClusterOptions, crash_loop_waits, runtime_options
from trikubelet.agent.registry_access import RegistryAccess, RegistryAccessError
from trikubelet.agent.runtime import removable_images
from trikubelet.agent.server import AgentServer, listed_pods, told_authorities
from trikubelet.agent.sources import file_source
from trikubelet.api import ClusterTrustBundleProjection, Pod, PodCertificateProjection
from trikubelet.clock import SystemClock
from trikubelet.config.kubelet_configuration import (
    Authentication,
    Authorization,
    CrashLoopBackOff,
    KubeletConfiguration,
    WebhookAuthentication,
)
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.node.declared_features import ALL, usable_features
from trikubelet.runtime.backoff import KeyedBackoff
from trikubelet.runtime.images.pull_records.model import ImageCredentials
from trikubelet.sim import SimulatedRuntime
from trikubelet.sim.node import simulated_node
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    from trikubelet.node_api.auth.client_ca import ClientCA

REDUCED_ONLY = {"ReduceDefaultCrashLoopBackOffDecay": True, "KubeletCrashLoopBackOffMax": False}
MINUTE = CrashLoopBackOff(max_container_restart_period=timedelta(minutes=1))


def options(folder: Path, gates: dict[str, bool], **fields: Any) -> AgentOptions:
    configuration = KubeletConfiguration(feature_gates=gates, **fields)
    return AgentOptions(configuration=configuration, root_dir=folder, node_name="n")


@pytest.mark.parametrize(
    ("gates", "given", "waits"),
    [
        ({}, CrashLoopBackOff(), (10, 300)),
        ({}, MINUTE, (10, 60)),
        ({}, CrashLoopBackOff(max_container_restart_period=timedelta(seconds=2)), (2, 2)),
        # The default of the field is five minutes while its gate is on, and wins over the other gate.
        ({"ReduceDefaultCrashLoopBackOffDecay": True}, CrashLoopBackOff(), (1, 300)),
        ({"ReduceDefaultCrashLoopBackOffDecay": True}, MINUTE, (1, 60)),
        (
            {"ReduceDefaultCrashLoopBackOffDecay": True, "KubeletCrashLoopBackOffMax": False},
            CrashLoopBackOff(),
            (1, 60),
        ),
        ({"KubeletCrashLoopBackOffMax": False}, CrashLoopBackOff(), (10, 300)),
    ],
)
def test_waits_before_restarts(
    gates: dict[str, bool], given: CrashLoopBackOff, waits: tuple[float, float], tmp_path: Path
) -> None:
    told = options(tmp_path, gates, crash_loop_back_off=given)
    assert crash_loop_waits(told.configuration) == waits
    runtime = runtime_options(told)
    assert (runtime.min_container_restart_period, runtime.max_container_restart_period) == waits
    backoff = KeyedBackoff.for_containers(waits[1], waits[0])
    backoff.advance("key", 0, 0)
    assert backoff.wait_of("key") == waits[0]


def test_nobody_asks_how_an_image_was_pulled_when_the_gate_is_off(tmp_path: Path) -> None:
    assert RegistryAccess.of_node(options(tmp_path, {}), SystemClock()).pull_records is not None
    off = options(tmp_path, {"KubeletEnsureSecretPulledImages": False})
    assert RegistryAccess.of_node(off, SystemClock()).pull_records is None


@pytest.mark.parametrize(
    ("gate", "endpoint", "in_cluster", "removable"),
    [
        (True, "unix:///run/containerd/containerd.sock", False, {"sha256:ours"}),
        (False, "unix:///run/containerd/containerd.sock", False, set()),
        (True, "unix:///run/containerd/containerd.sock", True, None),
        (True, EMBEDDED, False, None),
    ],
)
async def test_images_of_a_runtime_that_others_use_are_removed_only_where_this_agent_pulled_them(
    gate: bool, endpoint: str, in_cluster: bool, removable: set[str] | None, tmp_path: Path
) -> None:
    told = attrs.evolve(
        options(tmp_path, {"KubeletEnsureSecretPulledImages": gate}),
        runtime_endpoint=endpoint,
        cluster=Mock(ClusterOptions) if in_cluster else None,
    )
    access = RegistryAccess.of_node(told, SystemClock())
    if access.pull_records is not None:
        access.pull_records.record_pull("ours:1", "sha256:ours", ImageCredentials())
    ask = removable_images(told, access)
    assert (None if ask is None else set(await ask())) == removable


def test_plugins_that_want_tokens_keep_the_agent_from_starting_when_the_gate_is_off(tmp_path: Path) -> None:
    (tmp_path / "plugin").write_text("#!/bin/sh\n")
    (tmp_path / "plugin").chmod(0o755)
    (tmp_path / "config.yaml").write_text("""\
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: plugin
  matchImages: [example.com]
  defaultCacheDuration: 1m
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: false, cacheType: Token}
""")
    for value in (True, False):
        told = attrs.evolve(
            options(tmp_path, {"KubeletServiceAccountTokenForCredentialProviders": value}),
            credential_provider_config=tmp_path / "config.yaml",
            credential_provider_bin_dir=tmp_path,
        )
        if value:
            RegistryAccess.of_node(told, SystemClock())
        else:
            with pytest.raises(RegistryAccessError, match="feature gate is disabled"):
                RegistryAccess.of_node(told, SystemClock())


def test_what_the_node_does_when_it_may_not_register(tmp_path: Path) -> None:
    assert node_settings(options(tmp_path, {})).looks_when_forbidden
    assert not node_settings(options(tmp_path, {"KubeletRegistrationGetOnExistsOnly": True})).looks_when_forbidden


@pytest.mark.parametrize(
    ("gate", "pod_level", "init_containers"),
    [
        ("InPlacePodLevelResourcesVerticalScaling", False, True),
        ("InPlacePodVerticalScalingInitContainers", True, False),
        ("MemoryQoS", True, True),
    ],
)
def test_resizes(gate: str, pod_level: bool, init_containers: bool) -> None:
    gates = resize_gates(KubeletConfiguration(feature_gates={gate: False}))
    assert (gates.pod_level, gates.init_containers) == (pod_level, init_containers)


def test_where_nothing_is_declared_no_pod_is_refused_for_it() -> None:
    assert set(usable_features({})) < set(ALL)
    assert usable_features({"NodeDeclaredFeatures": False}) == ALL


def test_the_bundle_that_clients_are_told_follows_its_file_unless_the_gate_is_off() -> None:
    @attrs.define
    class Bundle:
        pem: bytes

    @attrs.define
    class Authority:
        bundle: Bundle

    authority = Authority(Bundle(b"old"))
    following, fixed = (told_authorities(cast("ClientCA", authority), follow=follow) for follow in (True, False))
    authority.bundle = Bundle(b"new")
    assert (following(), fixed()) == (b"new", b"old")


@pytest.mark.parametrize(("gates", "accepted"), [({}, False), ({"PreventStaticPodAPIReferences": False}, True)])
async def test_references_of_static_pods(gates: dict[str, bool], accepted: bool, tmp_path: Path) -> None:
    manifest = tmp_path / "web.yaml"
    manifest.write_text("""\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: main, image: i}]
  volumes: [{name: v, secret: {secretName: s}}]
""")
    told = attrs.evolve(options(tmp_path, gates), manifests=manifest)
    source = file_source(told, SystemClock(), EventRecorder(SystemClock()))
    assert source is not None
    found = source._read(manifest)
    assert [problem.message for problem in found.problems] == (
        [] if accepted else ["static pods may not reference secrets"]
    )


async def test_tolerations_compare_numbers_where_the_gate_is_on(autojump_clock: MockClock) -> None:
    for value in (True, False):
        async with sim_node(feature_gates={"TaintTolerationComparisonOperators": value}) as node:
            assert node_admission(node.agent).compares_tolerations is value


async def test_a_pod_without_the_condition_of_its_sandbox(autojump_clock: MockClock) -> None:
    for value in (True, False):
        async with sim_node(feature_gates={"PodReadyToStartContainersCondition": value}) as node:
            node.source.put(pod := static_pod("web"))
            await node.until_running(pod)
            types = {one.type for one in node.status(pod).conditions}
            assert ("PodReadyToStartContainers" in types) is value


@pytest.mark.parametrize("value", [True, False])
async def test_pods_that_have_ended_are_listed_with_their_resources_where_the_gate_is_off(
    value: bool, autojump_clock: MockClock
) -> None:
    async with sim_node(feature_gates={"KubeletPodResourcesListUseActivePods": value}) as node:
        ended, running = static_pod("ended", restartPolicy="Never"), static_pod("running")
        node.source.put(ended, running)
        await node.until_running(running)
        await node.until_running(ended)
        (main,) = node.sim.running_containers(ended.metadata.uid)
        node.sim.end_container(main)
        await node.until_phase(ended, "Succeeded")
        names = {pod.metadata.name for pod in listed_pods(node.agent)()}
        assert names == ({"running-node"} if value else {"running-node", "ended-node"})


def serves(gates: dict[str, bool]) -> KubeletConfiguration:
    """A node by itself that lets everybody in."""
    authentication = Authentication(webhook=WebhookAuthentication(enabled=False))
    return KubeletConfiguration(
        feature_gates=gates, authentication=authentication, authorization=Authorization(mode="AlwaysAllow")
    )


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    ("gate", "look"),
    [
        ("ReloadKubeletServerCertificateFile", lambda server: server._certificate._watches),
        ("ExtendWebSocketsToKubelet", lambda server: server._parts.streams._translates),
        (
            "ContainerCheckpoint",
            lambda server: "/checkpoint/" in str([route.pattern for route in server._local._handler.routes]),
        ),
    ],
)
async def test_a_gate_reaches_the_server(gate: str, look: Callable[[Any], bool], value: bool, tmp_path: Path) -> None:
    sim = SimulatedRuntime(seed=1)
    async with simulated_node(sim, folder=tmp_path, configuration=serves({gate: value})) as node:
        server = await AgentServer.make(node.agent, NodeView(node.agent, started_at=node.agent.clock.now()))
        assert look(server) is value


@pytest.mark.parametrize("value", [True, False])
async def test_where_statistics_come_from(value: bool, tmp_path: Path) -> None:
    configuration = KubeletConfiguration(feature_gates={"PodAndContainerStatsFromCRI": value})
    async with simulated_node(SimulatedRuntime(seed=1), folder=tmp_path, configuration=configuration) as node:
        assert node.agent.stats._prefer_runtime is value


@pytest.mark.parametrize("value", [True, False])
async def test_what_volumes_may_project(value: bool, autojump_clock: MockClock) -> None:
    gates = dict.fromkeys(("ClusterTrustBundleProjection", "ClusterTrustBundle", "PodCertificateRequest"), value)
    async with cluster_stage(configuration=KubeletConfiguration(feature_gates=gates)) as stage:
        assert stage.agent.cluster is not None
        credentials = stage.agent.cluster.cluster.credentials
        problems = []
        for ask in (
            partial(credentials.trust_bundle, ClusterTrustBundleProjection(name="none", optional=True)),
            partial(credentials.pod_certificate, Pod(), "v", 0, PodCertificateProjection(signer_name="x/y")),
        ):
            try:
                with trio.move_on_after(5):
                    await ask()
            except ObjectError as error:
                problems.append(str(error))
        off = [problem for problem in problems if "switched off" in problem or "not supported by this agent" in problem]
        assert len(off) == (0 if value else 2)
