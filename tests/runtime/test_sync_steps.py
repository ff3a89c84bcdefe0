"""The steps of a sync, their order, and what each says when it fails, against the simulated runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from grpclib.const import Status

from tests.runtime.conftest import Node, make_container, make_pod
from tests.runtime.objects import FakeObjects
from trikubelet.api import (
    EnvVar,
    EnvVarSource,
    EphemeralContainer,
    Lifecycle,
    LifecycleHandler,
    LocalObjectReference,
    ObjectFieldSelector,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodStatus,
    Quantity,
    ResourceFieldSelector,
    Secret,
    TCPSocketAction,
)
from trikubelet.container.abilities import HandlerAbilities, RuntimeAbilities
from trikubelet.container.model import PodRuntimeStatus
from trikubelet.pods.retry import failure
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.runtime.context import RuntimeContext
from trikubelet.runtime.manager import RuntimeManager
from trikubelet.runtime.results import PodSyncResult, SyncAction
from trikubelet.runtime.sandboxes.sandbox import ResourceClaimError
from trikubelet.sim.programs import Program

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.runtime.results import SyncResult

SPOKEN = {"RunPodSandbox", "PodSandboxStatus", "PullImage", "CreateContainer", "StartContainer"}


def manager_on(stage: Node, **parts: Any) -> RuntimeManager:
    """A manager with other parts than the stage's."""
    manager = RuntimeManager(
        RuntimeClient(stage.channel),
        ImageClient(stage.channel),
        RuntimeContext(recorder=stage.recorder, clock=stage.clock, options=stage.options, mounts=stage.mounts, **parts),
    )
    manager.runtime_name = "simulated"
    return manager


async def sync_with(node: Node, pod: Pod, **parts: Any) -> PodSyncResult:
    return await node.sync_with(manager_on(node, **parts), pod)


def only(result: PodSyncResult) -> SyncResult:
    [one] = result.results
    return one


async def test_a_ready_sandbox_is_told_of_before_any_image_is_pulled(autojump_clock: MockClock, node: Node) -> None:
    pulls_before: list[int] = []
    await node.sync(make_pod(), on_sandbox_ready=lambda *_: pulls_before.append(node.sim.calls.count("PullImage")))
    assert pulls_before == [0]
    assert node.sim.calls.count("PullImage") == 1


async def test_a_sandbox_that_was_there_is_not_told_of(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod()
    node.sim.program(Program.crashes(1))
    await node.sync(pod)
    told: list[Any] = []
    result = await node.sync(pod, on_sandbox_ready=lambda *_: told.append(1))
    assert only(result).action is SyncAction.START_CONTAINER
    assert told == []


async def test_a_listener_that_fails_does_not_stop_the_pod(autojump_clock: MockClock, node: Node) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("nobody is there")

    assert (await node.sync(make_pod(), on_sandbox_ready=fail)).error is None
    assert len(node.sim.running_containers()) == 1


async def test_a_pod_in_the_nodes_network_keeps_the_nodes_addresses(autojump_clock: MockClock, node: Node) -> None:
    variable = EnvVar("IP", value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path="status.podIP")))
    pod = make_pod(make_container(env=(variable,)), host_network=True)
    status = attrs.evolve(await node.status(pod), ips=("192.168.0.1",))
    ready: list[tuple[str, ...]] = []
    await node.manager.sync_pod(pod, status, node.containers(pod), on_sandbox_ready=lambda _, ips: ready.append(ips))
    assert ready == [("192.168.0.1",)]
    [container] = node.sim.running_containers()
    assert {one.key: one.value for one in container.config.envs}["IP"] == b"192.168.0.1"


async def test_ephemeral_containers_start_first_and_main_containers_last(autojump_clock: MockClock, node: Node) -> None:
    side = make_container("side", restart_policy="Always")
    pod = make_pod(make_container("stays"), make_container("main"), init_containers=(side,))
    await node.settle(pod, 3)
    guest = EphemeralContainer(name="debug", image="busybox")
    pod = attrs.evolve(pod, spec=attrs.evolve(pod.spec, ephemeral_containers=(guest,)))
    for container in list(node.sim.running_containers()):
        if container.name != "stays":
            node.sim.end_container(container, 1)
    result = await node.sync(pod)
    assert [one.target for one in result.results] == ["debug", "side", "main"]


async def test_a_sidecar_that_fails_does_not_hold_up_the_others(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program(create_error="bad device"), container="side")
    pod = make_pod(init_containers=(make_container("side", restart_policy="Always"),))
    await node.sync(pod)
    [bad] = [one for one in (await node.sync(pod)).results if one.failed]
    assert bad.target == "side"


async def test_nothing_is_started_in_a_pod_that_is_over(autojump_clock: MockClock, node: Node) -> None:
    node.sim.program(Program.exits(1), container="main")
    pod = make_pod(restart_policy="Never")
    await node.sync(pod)
    await trio.sleep(2)
    guest = EphemeralContainer(name="debug", image="busybox")
    pod = attrs.evolve(pod, spec=attrs.evolve(pod.spec, ephemeral_containers=(guest,)))
    result = await node.sync(pod)
    assert [one.action for one in result.results] == [SyncAction.KILL_POD_SANDBOX]
    assert node.sim.started("debug") == []


# Sandboxes that cannot be made


@pytest.mark.parametrize("exists", [False, True])
async def test_settings_that_a_sandbox_cannot_have_are_told_in_the_kubelets_words(
    autojump_clock: MockClock, node: Node, *, exists: bool
) -> None:
    pod = make_pod()
    if exists:
        node.sim.program(Program.crashes(1))
        await node.sync(pod)
    said_before = len(node.said(pod))
    bad = attrs.evolve(pod, spec=attrs.evolve(pod.spec, set_hostname_as_fqdn=True, hostname="h" * 60, subdomain="s"))
    options = attrs.evolve(node.options, cluster_domain="cluster.local")
    manager = manager_on(attrs.evolve(node, options=options))
    failed = only(await node.sync_with(manager, bad))
    said = node.said(pod)[said_before:]
    if exists:
        assert (failed.action, failed.reason) == (SyncAction.CONFIG_POD_SANDBOX, "ConfigPodSandboxError")
        assert failed.message.startswith('GeneratePodSandboxConfig for pod "web_default(uid-web)" failed: ')
        assert said == []
        return
    assert (failed.action, failed.reason) == (SyncAction.CREATE_POD_SANDBOX, "CreatePodSandboxError")
    start = 'Failed to generate sandbox config for pod "web_default(uid-web)": '
    assert failed.message.startswith(start)
    problem = failed.message.removeprefix(start)
    assert said == [("FailedCreatePodSandBox", f"Failed to create pod sandbox: {problem}")]
    assert node.sim.calls.count("RunPodSandbox") == 0


async def test_a_sandbox_is_made_with_the_handler_of_its_runtime_class(autojump_clock: MockClock, node: Node) -> None:
    handlers: list[str] = []
    original = RuntimeClient.run_pod_sandbox

    async def watched(self: RuntimeClient, config: Any, runtime_handler: str = "") -> str:
        handlers.append(runtime_handler)
        return await original(self, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RuntimeClient, "run_pod_sandbox", watched)
        pod = make_pod(runtime_class_name="gvisor")
        abilities = RuntimeAbilities(handlers={"runsc": HandlerAbilities(recursive_read_only_mounts=True)})
        manager = manager_on(node, objects=FakeObjects(handlers={"gvisor": "runsc"}), abilities=lambda: abilities)
        assert not manager.mounts_read_only_recursively(pod)
        assert (await node.sync_with(manager, pod)).error is None
        await sync_with(node, make_pod(name="plain"))
    assert handlers == ["runsc", ""]
    assert manager.mounts_read_only_recursively(pod)
    assert not manager.mounts_read_only_recursively(make_pod())


async def test_a_pod_does_not_run_without_its_runtime_class(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(runtime_class_name="gvisor")
    failed = only(await node.sync(pod))
    problem = 'runtimeclass.node.k8s.io "gvisor" not found'
    assert failed.reason == "CreatePodSandboxError"
    assert failed.message == f'Failed to create sandbox for pod "web_default(uid-web)": {problem}'
    assert node.said(pod) == [("FailedCreatePodSandBox", f"Failed to create pod sandbox: {problem}")]
    assert node.sim.calls.count("RunPodSandbox") == 0


async def test_a_pod_does_not_run_without_what_it_claims(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(resource_claims=(PodResourceClaim(name="gpu"),))
    failed = only(await node.sync(pod))
    assert failed.reason == "CreatePodSandboxError"
    [(reason, message)] = node.said(pod)
    assert reason == "FailedPrepareDynamicResources"
    assert message.startswith("Failed to prepare dynamic resources: ")
    assert message.endswith("gpu")
    assert node.sim.calls.count("RunPodSandbox") == 0


async def test_a_claim_that_the_scheduler_made_for_the_pod_is_one_too(autojump_clock: MockClock, node: Node) -> None:
    claim = PodExtendedResourceClaimStatus(resource_claim_name="web-gpus")
    pod = attrs.evolve(make_pod(), status=PodStatus(extended_resource_claim_status=claim))
    assert only(await node.sync(pod)).failed
    problem = "this node has no drivers for resource claims, but the pod asks for web-gpus"
    assert node.said(pod) == [("FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {problem}")]
    assert node.sim.calls.count("RunPodSandbox") == 0


async def test_pods_are_told_what_the_node_is_when_they_start(autojump_clock: MockClock, node: Node) -> None:
    @attrs.define
    class Values:
        ip: str = "10.1.0.1"
        memory: str = "1Gi"

        def host_ips(self) -> tuple[str, ...]:
            return (self.ip,)

        def allocatable(self) -> dict[str, Quantity]:
            return {"memory": Quantity(self.memory)}

    values = Values()
    manager = manager_on(node, node=values)
    asked = (
        EnvVar("IP", value_from=EnvVarSource(field_ref=ObjectFieldSelector(field_path="status.hostIP"))),
        EnvVar("MEMORY", value_from=EnvVarSource(resource_field_ref=ResourceFieldSelector(resource="limits.memory"))),
    )
    told = []
    for name, ip, memory in (("before", "10.1.0.1", "1Gi"), ("after", "10.2.0.2", "2Gi")):
        values.ip, values.memory = ip, memory
        pod = make_pod(make_container(env=asked), name=name)
        await node.sync_with(manager, pod)
        container = next(
            one for one in node.sim.running_containers() if one.config.labels["io.kubernetes.pod.name"] == name
        )
        told.append({one.key: one.value for one in container.config.envs})
    assert told == [
        {"IP": b"10.1.0.1", "MEMORY": str(2**30).encode()},
        {"IP": b"10.2.0.2", "MEMORY": str(2**31).encode()},
    ]


async def test_claims_are_prepared_before_the_sandbox_and_not_again(autojump_clock: MockClock, node: Node) -> None:
    @attrs.define
    class Claims:
        sandboxes_before: list[int] = attrs.field(factory=list)

        async def prepare(self, pod: Pod) -> None:
            self.sandboxes_before.append(node.sim.calls.count("RunPodSandbox"))

    claims = Claims()
    node.sim.program(Program.crashes(1))
    pod = make_pod()
    for _ in range(2):
        await sync_with(node, pod, claims=claims)
    assert len(node.starts("main")) == 2
    assert claims.sandboxes_before == [0]


@attrs.frozen
class NoClaims:
    async def prepare(self, pod: Pod) -> None:
        await trio.lowlevel.checkpoint()
        raise ResourceClaimError("no driver")


@pytest.mark.parametrize(("fails", "counted"), [("claims", 0), ("PodSandboxStatus", 0), ("RunPodSandbox", 1)])
async def test_a_sandbox_that_was_not_made_is_counted_and_nothing_else_is(
    autojump_clock: MockClock, node: Node, fails: str, counted: int
) -> None:
    manager = manager_on(node, **({"claims": NoClaims()} if fails == "claims" else {}))
    if fails != "claims":
        node.sim.faults.fail_next(fails)
    status = await node.status(make_pod())
    assert (await node.sync_with(manager, make_pod(), status)).error is not None
    assert (manager.metrics.started_pods, manager.metrics.failed_pods) == (1, counted)


async def test_a_runtime_without_user_namespaces_gets_no_pod_that_asks_for_one(
    autojump_clock: MockClock, node: Node
) -> None:
    pod = make_pod(host_users=False)
    failed = only(await node.sync(pod))
    assert failed.reason == "CreatePodSandboxError"
    problem = "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    assert node.said(pod) == [("FailedCreatePodSandBox", f"Failed to create pod sandbox: {problem}")]


async def test_a_pod_with_users_of_its_own_has_the_same_in_sandbox_and_container_until_it_is_released(
    autojump_clock: MockClock, node: Node
) -> None:
    abilities = RuntimeAbilities(handlers={"": HandlerAbilities(user_namespaces=True)})
    manager = manager_on(node, abilities=lambda: abilities)
    pod = make_pod(host_users=False)
    assert (await node.sync_with(manager, pod)).error is None
    [sandbox], [container] = node.sim.machine.sandboxes.values(), node.sim.running_containers()
    of_sandbox = sandbox.config.linux.security_context.namespace_options.userns_options
    of_container = container.config.linux.security_context.namespace_options.userns_options
    assert of_sandbox == of_container
    assert [one.length for one in of_sandbox.uids] == [65_536]
    assert manager.user_namespaces.statistics()["used"] == 1
    await manager.release("uid-web")
    assert manager.user_namespaces.statistics()["used"] == 0


# Pull secrets and images


async def test_pull_secrets_are_fetched_once_for_all_that_starts_and_not_for_a_pod_that_runs(
    autojump_clock: MockClock, node: Node
) -> None:
    objects = FakeObjects(secrets={("default", "mine"): Secret()})
    references = (LocalObjectReference(name="mine"), LocalObjectReference(name="lost"))
    pod = make_pod(make_container("a"), make_container("b"), image_pull_secrets=references)
    manager = manager_on(node, objects=objects)
    for _ in range(3):
        assert (await node.sync_with(manager, pod)).error is None
    assert objects.asked == ["secret default/mine", "secret default/lost"]
    message = "Unable to retrieve some image pull secrets (lost); attempting to pull the image may not succeed."
    assert ("FailedToRetrieveImagePullSecret", message) in node.said(pod)


async def test_images_are_held_from_before_they_are_looked_for_until_their_containers_exist(
    autojump_clock: MockClock, node: Node
) -> None:
    node.sim.images.offer("busybox", seconds=100)
    pod = make_pod()
    holds = node.manager.image_holds
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.sync, pod)
        await trio.sleep(50)
        with holds.collection():
            async with holds.removal() as held:
                assert held == {"busybox"}
    with holds.collection():
        async with holds.removal() as held:
            assert held == frozenset()


async def test_a_failed_post_start_hook_is_the_containers_result(autojump_clock: MockClock, node: Node) -> None:
    hook = LifecycleHandler(tcp_socket=TCPSocketAction(port=80))
    pod = make_pod(make_container(lifecycle=Lifecycle(post_start=hook)))
    failed = (await node.sync(pod)).results[-1]
    assert (failed.target, failed.reason) == ("main", "PostStartHookError")
    assert ("FailedPostStartHook", "PostStartHook failed") in node.said(pod)
    assert node.sim.running_containers() == []


# When to try again


@pytest.mark.parametrize(
    ("rpc", "fault"),
    [
        ("RunPodSandbox", {"message": 'failed to reserve sandbox name "a": name "a" is reserved for "b"'}),
        ("RunPodSandbox", {"status": Status.ALREADY_EXISTS}),
        ("CreateContainer", {"message": 'failed to reserve container name "a": name "a" is reserved for "b"'}),
        ("StartContainer", {"status": Status.UNAVAILABLE}),
        ("PodSandboxStatus", {"status": Status.UNAVAILABLE}),
    ],
)
async def test_what_passes_by_itself_is_tried_again_soon(
    autojump_clock: MockClock, node: Node, rpc: str, fault: dict[str, Any]
) -> None:
    node.sim.faults.fail_next(rpc, **fault)
    pod = make_pod()
    result = await node.manager.sync_pod(
        pod, PodRuntimeStatus(uid="uid-web", name="web", namespace="default"), node.containers(pod)
    )
    assert result.error is not None
    assert result.backoffs == {}
    assert failure(result.error).retry_at == pytest.approx(trio.current_time() + 1, abs=0.1)


async def test_other_errors_wait_for_the_usual_time(autojump_clock: MockClock, node: Node) -> None:
    node.sim.faults.fail_next("CreateContainer", message="no such device")
    result = await node.sync(make_pod())
    assert result.error is not None
    assert failure(result.error).retry_at is None
