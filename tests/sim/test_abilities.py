"""Runtime handlers and their features, image volumes, and the users of containers, on the simulated runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from betterproto import serialized_on_wire

from tests.sim.building import container_config, run_pod, sandbox_config
from trikubelet.container.abilities import HandlerAbilities
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import CRIError
from trikubelet.runtime.state import RuntimeState

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.sim.conftest import Connected
    from trikubelet.sim.machine import Container

SHARED = v1.MountPropagation.PROPAGATION_HOST_TO_CONTAINER


async def create(
    node: Connected, config: v1.ContainerConfig, handler: str = "", *, pod: str = "web"
) -> v1.ContainerStatus:
    """A container in a sandbox of its own. The image `nginx` is there."""
    node.sim.images.add("nginx")
    sandbox_id = await node.runtime.run_pod_sandbox(sandbox_config(pod), handler)
    container_id = await node.runtime.create_container(sandbox_id, config, sandbox_config(pod))
    return (await node.runtime.container_status(container_id)).status


def with_mount(**fields: object) -> v1.ContainerConfig:
    config = container_config()
    config.mounts = [v1.Mount(container_path="/data", **fields)]  # type: ignore[arg-type]
    return config


async def test_by_default_it_says_of_itself_what_old_runtimes_say(autojump_clock: MockClock, node: Connected) -> None:
    reply = await node.runtime.status()
    assert [handler.name for handler in reply.runtime_handlers] == [""]
    assert not reply.runtime_handlers[0].features.user_namespaces
    assert not reply.runtime_handlers[0].features.recursive_read_only_mounts
    assert not reply.features.supplemental_groups_policy


async def test_what_its_handlers_can_do_arrives_at_the_agent(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.abilities.handlers["kata"] = v1.RuntimeHandlerFeatures(
        recursive_read_only_mounts=True, user_namespaces=True
    )
    node.sim.abilities.supplemental_groups_policy = True
    state = RuntimeState(node.runtime)
    await state._update()
    assert state.abilities.handler("") == HandlerAbilities()
    assert state.abilities.handler("kata") == HandlerAbilities(recursive_read_only_mounts=True, user_namespaces=True)
    assert state.abilities.supplemental_groups_policy


async def test_a_sandbox_of_an_unknown_handler_is_refused(autojump_clock: MockClock, node: Connected) -> None:
    with pytest.raises(CRIError, match='no runtime for "kata" is configured'):
        await node.runtime.run_pod_sandbox(sandbox_config(), "kata")
    assert node.sim.machine.sandboxes == {}
    node.sim.abilities.handlers["kata"] = v1.RuntimeHandlerFeatures()
    sandbox_id = await node.runtime.run_pod_sandbox(sandbox_config(), "kata")
    assert (await node.runtime.pod_sandbox_status(sandbox_id)).status.runtime_handler == "kata"


async def test_a_runtime_that_names_no_handler_runs_pods_of_the_default_one(
    autojump_clock: MockClock, node: Connected
) -> None:
    node.sim.abilities.handlers.clear()
    assert (await node.runtime.status()).runtime_handlers == []
    await run_pod(node.runtime, node.images)


async def test_an_image_is_mounted_and_reported(autojump_clock: MockClock, node: Connected) -> None:
    files = node.sim.images.add("files:1")
    image = v1.ImageSpec(image=files.id, user_specified_image="files:1")
    status = await create(node, with_mount(image=image, image_sub_path="docs", readonly=True))
    (mount,) = status.mounts
    assert (mount.container_path, mount.image.image, mount.image_sub_path) == ("/data", files.id, "docs")
    assert mount.image.user_specified_image == "files:1"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"image": v1.ImageSpec(image="absent"), "readonly": True}, 'failed to resolve image "absent": not found'),
        ({"image": v1.ImageSpec(image="nginx")}, "readonly must be true while mount image"),
        (
            {"image": v1.ImageSpec(image="nginx"), "readonly": True, "host_path": "/x"},
            "hostpath must be empty while mount image",
        ),
    ],
)
async def test_an_image_that_cannot_be_mounted_is_refused(
    autojump_clock: MockClock, node: Connected, fields: dict[str, object], problem: str
) -> None:
    with pytest.raises(CRIError, match=problem):
        await create(node, with_mount(**fields))
    assert node.sim.machine.containers == {}


async def test_recursive_read_only_mounts_need_a_handler_that_can_do_them(
    autojump_clock: MockClock, node: Connected
) -> None:
    config = with_mount(host_path="/x", readonly=True, recursive_read_only=True)
    with pytest.raises(CRIError, match="does not support recursive read-only mounts"):
        await create(node, config)
    node.sim.abilities.handlers["rro"] = v1.RuntimeHandlerFeatures(recursive_read_only_mounts=True)
    (mount,) = (await create(node, config, "rro", pod="other")).mounts
    assert mount.recursive_read_only


@pytest.mark.parametrize(
    "fields", [{"readonly": False}, {"readonly": True, "propagation": SHARED}], ids=["writable", "shared"]
)
async def test_recursive_read_only_mounts_are_read_only_and_private(
    autojump_clock: MockClock, node: Connected, fields: dict[str, object]
) -> None:
    node.sim.abilities.handlers[""] = v1.RuntimeHandlerFeatures(recursive_read_only_mounts=True)
    with pytest.raises(CRIError, match="must be read-only and private"):
        await create(node, with_mount(host_path="/x", recursive_read_only=True, **fields))


async def test_a_user_namespace_is_reported_with_its_ids(autojump_clock: MockClock, node: Connected) -> None:
    ids = [v1.IdMapping(host_id=65536, container_id=0, length=65536)]
    namespace = v1.UserNamespace(mode=v1.NamespaceMode.POD, uids=ids, gids=ids)
    config = sandbox_config()
    config.linux.security_context.namespace_options.userns_options = namespace
    sandbox_id = await node.runtime.run_pod_sandbox(config)
    status = (await node.runtime.pod_sandbox_status(sandbox_id)).status
    assert status.linux.namespaces.options.userns_options == namespace
    with_ids = await create_in(node, sandbox_id, namespace)
    assert with_ids.config.linux.security_context.namespace_options.userns_options == namespace
    assert with_ids.config.mounts[0].uid_mappings == ids


async def create_in(node: Connected, sandbox_id: str, namespace: v1.UserNamespace) -> Container:
    node.sim.images.add("nginx")
    config = with_mount(host_path="/x", uid_mappings=namespace.uids, gid_mappings=namespace.gids)
    config.linux.security_context.namespace_options.userns_options = namespace
    container_id = await node.runtime.create_container(sandbox_id, config, sandbox_config())
    return node.sim.machine.containers[container_id]


@pytest.mark.parametrize(
    ("policy", "groups"),
    [
        (v1.SupplementalGroupsPolicy.Merge, [2000, 3000, 4000, 50]),
        (v1.SupplementalGroupsPolicy.Strict, [2000, 3000, 4000]),
    ],
)
async def test_the_policy_decides_whether_the_images_groups_count(
    autojump_clock: MockClock, node: Connected, policy: v1.SupplementalGroupsPolicy, groups: list[int]
) -> None:
    node.sim.abilities.supplemental_groups_policy = True
    node.sim.images.add("grouped", uid=7, groups=(50, 3000))
    config = container_config(image="grouped")
    config.linux.security_context = v1.LinuxContainerSecurityContext(
        run_as_user=v1.Int64Value(value=1000),
        run_as_group=v1.Int64Value(value=2000),
        supplemental_groups=[3000, 4000],
        supplemental_groups_policy=policy,
    )
    user = (await create(node, config)).user.linux
    assert (user.uid, user.gid, user.supplemental_groups) == (1000, 2000, groups)


@pytest.mark.parametrize(("wanted", "uid"), [(None, 7), (0, 0)])
async def test_without_a_wish_the_images_user_runs(
    autojump_clock: MockClock, node: Connected, wanted: int | None, uid: int
) -> None:
    node.sim.abilities.supplemental_groups_policy = True
    node.sim.images.add("seven", uid=7)
    config = container_config(image="seven")
    if wanted is not None:
        config.linux.security_context.run_as_user = v1.Int64Value(value=wanted)
    user = (await create(node, config)).user.linux
    assert (user.uid, user.gid, user.supplemental_groups) == (uid, 0, [0])


async def test_a_runtime_without_the_policy_tells_nothing_of_users(autojump_clock: MockClock, node: Connected) -> None:
    assert not serialized_on_wire((await create(node, container_config())).user)
