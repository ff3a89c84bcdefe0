"""One container's start, by itself: what it is given, and its postStart hook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from tests.runtime.conftest import Node, make_container, make_pod
from tests.runtime.objects import FakeObjects
from trikubelet.api import (
    ConfigMap,
    ConfigMapEnvSource,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    ExecAction,
    FileKeySelector,
    Lifecycle,
    LifecycleHandler,
    ObjectFieldSelector,
    PodSecurityContext,
    Secret,
    SecretKeySelector,
    SleepAction,
    VolumeDevice,
    VolumeMount,
)
from trikubelet.container.errors import ContainerConfigError
from trikubelet.kube_client.object_getter import NoObjects
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.runtime.containers.container import (
    ContainerExtras,
    ContainerStarter,
    StartError,
    StartRequest,
    no_extras,
)
from trikubelet.runtime.containers.life import PodContainers
from trikubelet.runtime.context import RuntimeContext
from trikubelet.runtime.hooks import HookError
from trikubelet.runtime.images.manager import ImageManager
from trikubelet.runtime.kill import Killer
from trikubelet.runtime.sandboxes.name_resolution import DNSSettings
from trikubelet.runtime.sandboxes.sandbox import sandbox_config
from trikubelet.runtime.turns import Turns

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.api import Container, Pod
    from trikubelet.runtime.containers.container import Extras
from trikubelet.runtime.hooks import HookRunner


class Hooks:
    """Runs hooks as a test says, and keeps what it was asked."""

    def __init__(self, error: HookError | None = None, seconds: float = 0) -> None:
        self.error = error
        self.seconds = seconds
        self.ran: list[tuple[str, LifecycleHandler]] = []

    async def run(self, container_id: str, pod: Pod, container: Container, handler: LifecycleHandler) -> None:
        self.ran.append((container_id, handler))
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error


async def start(
    node: Node,
    pod: Pod,
    *,
    hooks: Hooks | None = None,
    objects: Any = None,
    extras: Extras = no_extras,
    **request: Any,
) -> str:
    """Start the pod's container in a sandbox of its own."""
    runtime = RuntimeClient(node.channel)
    starter = ContainerStarter(
        runtime,
        ImageManager(ImageClient(node.channel), node.recorder),
        Turns(1),
        RuntimeContext(
            recorder=node.recorder,
            clock=node.clock,
            options=node.options,
            mounts=node.mounts,
            objects=objects or NoObjects(),
            extras=extras,
        ),
        hooks=cast("HookRunner | None", hooks),
    )
    config = sandbox_config(pod, 0, DNSSettings(), node.options)
    sandbox_id = await runtime.run_pod_sandbox(config)
    request = {"pod_ips": ["10.0.0.7"], **request}
    containers = PodContainers(node.nursery, Killer(runtime, node.recorder))
    status = await node.status(pod)
    return await starter.start(
        StartRequest(pod, pod.spec.containers[0], status, sandbox_id, config, containers=containers, **request)
    )


def created(node: Node) -> v1.ContainerConfig:
    """What the last container was created with."""
    [container] = node.sim.running_containers()
    return container.config


def variables(node: Node) -> dict[str, bytes]:
    return {variable.key: variable.value for variable in created(node).envs}


async def test_the_environment_holds_what_objects_say(autojump_clock: MockClock, node: Node) -> None:
    objects = FakeObjects(
        secrets={("default", "keys"): Secret(data={"RAW": b"\xff"})},
        config_maps={("default", "settings"): ConfigMap(data={"COLOR": "red"})},
        services={"DB_HOST": "10.1.0.1"},
    )
    reference = EnvVarSource(secret_key_ref=SecretKeySelector(name="keys", key="RAW"))
    container = make_container(
        args=("$(COLOR)", "$(DB_HOST)"),
        env_from=(EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings")),),
        env=(EnvVar("KEY", value_from=reference),),
    )
    await start(node, make_pod(container), objects=objects)
    assert variables(node) == {"COLOR": b"red", "KEY": b"\xff", "DB_HOST": b"10.1.0.1"}
    assert created(node).args == ["red", "10.1.0.1"]


async def test_a_file_of_a_volume_is_read_for_the_environment(autojump_clock: MockClock, node: Node) -> None:
    volume = node.mounts.root / "work"
    volume.mkdir()
    (volume / "env").write_text("NAME='two\nlines'")
    node.mounts.paths["work"] = volume
    reference = EnvVarSource(file_key_ref=FileKeySelector(volume_name="work", path="env", key="NAME"))
    await start(node, make_pod(make_container(env=(EnvVar("A", value_from=reference),))))
    assert variables(node) == {"A": b"two\nlines"}


async def test_what_is_not_there_is_the_containers_waiting_reason(autojump_clock: MockClock, node: Node) -> None:
    source = EnvFromSource(config_map_ref=ConfigMapEnvSource(name="settings"))
    pod = make_pod(make_container(env_from=(source,)))
    with pytest.raises(StartError) as failed:
        await start(node, pod, objects=FakeObjects())
    assert (failed.value.reason, failed.value.message) == (
        "CreateContainerConfigError",
        'configmap "settings" not found',
    )
    assert node.said(pod)[-1] == ("Failed", 'Error: configmap "settings" not found')
    assert node.sim.running_containers() == []


async def test_a_request_brings_images_users_and_devices(autojump_clock: MockClock, node: Node) -> None:
    ids = v1.IdMapping(host_id=65536, container_id=0, length=65536)
    users = v1.UserNamespace(mode=v1.NamespaceMode.POD, uids=[ids], gids=[ids])
    mount = VolumeMount(name="models", mount_path="/models", read_only=True, recursive_read_only="Enabled")
    extras = ContainerExtras(
        devices=[v1.Device(container_path="/dev/gpu", host_path="/dev/gpu0")], environment={"GPU": "0", "OWN": "no"}
    )

    async def extras_of(pod: Pod, container: Container) -> ContainerExtras:
        assert container in pod.spec.containers
        return extras

    container = make_container(
        volume_mounts=(mount,), env=(EnvVar("OWN", "yes"),), args=("$(GPU)",), termination_message_path="/dev/end"
    )
    node.sim.images.add("test/models:1")
    node.sim.abilities.handlers[""] = v1.RuntimeHandlerFeatures(recursive_read_only_mounts=True)
    await start(
        node,
        make_pod(container),
        image_volumes={"models": v1.ImageSpec(image="test/models:1")},
        user_namespace=users,
        recursive_read_only=True,
        extras=extras_of,
    )
    made = created(node)
    assert [one.container_path for one in made.mounts] == ["/models", "/etc/hosts", "/dev/end"]
    assert made.mounts[0].image.image == "test/models:1"
    assert made.mounts[0].recursive_read_only
    assert all(one.uid_mappings == [ids] for one in made.mounts)
    assert made.linux.security_context.namespace_options.userns_options == users
    assert [device.container_path for device in made.devices] == ["/dev/gpu"]
    assert variables(node) == {"GPU": b"0", "OWN": b"yes"}
    assert made.args == ["0"]


async def test_a_container_does_not_start_without_its_devices(autojump_clock: MockClock, node: Node) -> None:
    """`GetResources` is the first thing that the kubelet asks for, and its error is shown as it is."""

    async def extras(_pod: Pod, _container: Container) -> ContainerExtras:
        raise ContainerConfigError("device plugin PreStartContainer rpc failed with err: too hot")

    pod = make_pod(make_container())
    with pytest.raises(StartError) as failed:
        await start(node, pod, extras=extras)
    message = "device plugin PreStartContainer rpc failed with err: too hot"
    assert (failed.value.reason, failed.value.message) == ("CreateContainerConfigError", message)
    assert node.said(pod)[-1] == ("Failed", f"Error: {message}")
    assert node.sim.running_containers() == []


async def test_a_container_gets_its_volumes_devices_and_groups(autojump_clock: MockClock, node: Node) -> None:
    node.mounts.paths["work"], node.mounts.devices["disk"] = Path("/volumes/work"), "/dev/loop7"
    node.mounts.read_only, node.mounts.groups = {"disk"}, (2000, 3000)
    container = make_container(
        volume_mounts=(VolumeMount(name="work", mount_path="/work", sub_path="part"),),
        volume_devices=(VolumeDevice(name="disk", device_path="/dev/disk"),),
    )
    await start(node, make_pod(container, security_context=PodSecurityContext(fs_group=1000)))
    made = created(node)
    assert made.mounts[0].host_path == "/volumes/work/part"
    [device] = made.devices
    assert (device.host_path, device.container_path, device.permissions) == ("/dev/loop7", "/dev/disk", "r")
    assert made.linux.security_context.supplemental_groups == [1000, 2000, 3000]


async def test_the_hosts_file_has_all_addresses_and_variables_one_of_a_family(
    autojump_clock: MockClock, node: Node
) -> None:
    field = EnvVarSource(field_ref=ObjectFieldSelector(field_path="status.podIPs"))
    pod = make_pod(make_container(env=(EnvVar("IPS", value_from=field),)))
    await start(node, pod, pod_ips=["fd00::7", "10.0.0.7", "10.0.0.8"])
    assert variables(node) == {"IPS": b"10.0.0.7,fd00::7"}
    [hosts] = [mount for mount in created(node).mounts if mount.container_path == "/etc/hosts"]
    assert "fd00::7\tweb\n10.0.0.7\tweb\n10.0.0.8\tweb\n" in Path(hosts.host_path).read_text()


# postStart

HOOK = LifecycleHandler(exec=ExecAction(command=("true",)))


def hooked(hook: LifecycleHandler = HOOK) -> Pod:
    return make_pod(make_container(lifecycle=Lifecycle(post_start=hook)))


async def test_a_start_is_over_when_its_hook_is(autojump_clock: MockClock, node: Node) -> None:
    hooks, pod = Hooks(seconds=7), hooked()
    began = trio.current_time()
    container_id = await start(node, pod, hooks=hooks)
    assert trio.current_time() - began >= 7
    assert hooks.ran == [(container_id, HOOK)]
    assert node.said(pod)[-1] == ("Started", "Container started")


async def test_a_container_whose_hook_failed_is_killed(autojump_clock: MockClock, node: Node) -> None:
    pod = hooked()
    with pytest.raises(StartError) as failed:
        await start(node, pod, hooks=Hooks(HookError("it said something secret")))
    assert (failed.value.reason, failed.value.message) == ("PostStartHookError", "it said something secret")
    assert node.said(pod)[-3:] == [
        ("Started", "Container started"),
        ("FailedPostStartHook", "PostStartHook failed"),
        ("Killing", "FailedPostStartHook"),
    ]
    assert node.sim.running_containers() == []


async def test_a_hook_whose_container_ended_first_has_failed(autojump_clock: MockClock, node: Node) -> None:
    pod = hooked()
    with pytest.raises(StartError, match="PostStartHookError"):
        await start(node, pod, hooks=Hooks(HookError("gone", container_ended=True)))
    assert ("FailedPostStartHook", "PostStartHook failed") in node.said(pod)


async def test_a_sleep_whose_container_ended_first_has_not_failed(autojump_clock: MockClock, node: Node) -> None:
    pod = hooked(LifecycleHandler(sleep=SleepAction(seconds=5)))
    await start(node, pod, hooks=Hooks(HookError("gone", container_ended=True)))
    assert node.said(pod)[-1] == ("Started", "Container started")


async def test_a_start_that_is_cancelled_in_its_hook_leaves_the_container(
    autojump_clock: MockClock, node: Node
) -> None:
    with trio.move_on_after(3):
        await start(node, hooked(), hooks=Hooks(seconds=100))
    assert len(node.sim.running_containers()) == 1
