"""Objects for pods: what they get, from where, and in which words they are told that they get nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.cluster.scripted_client import ScriptedClient, status_error
from trikubelet.api import (
    ConfigMap,
    Node,
    ObjectMeta,
    Pod,
    RuntimeClass,
    Secret,
    Service,
    ServiceAccount,
    ServicePort,
    ServiceSpec,
    pod_from_dict,
)
from trikubelet.clock import TrioClock
from trikubelet.cluster.objects import ClusterObjects
from trikubelet.cluster.store import Store
from trikubelet.cluster.types import CONFIG_MAPS, NODES, PODS, RUNTIME_CLASSES, SECRETS, SERVICES, WatchEvent
from trikubelet.runtime.objects import ObjectError

if TYPE_CHECKING:
    from trio.testing import MockClock

    from trikubelet.runtime.credentials.accounts import ServiceAccounts
    from trikubelet.runtime.objects import ObjectGetter

PORT = ServicePort(protocol="TCP", port=443)
API_SERVICE = Service(
    metadata=ObjectMeta(name="kubernetes", namespace="default"), spec=ServiceSpec("10.0.0.1", ports=(PORT,))
)


def config_map(text: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="settings", namespace="ns"), data={"text": text})


def pod(name: str = "web", *, links: bool | None = True, source: str = "api", **spec: Any) -> Pod:
    container = {"name": "main", "image": "x", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    return pod_from_dict(
        {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": f"uid-{name}",
                "annotations": {"kubernetes.io/config.source": source},
            },
            "spec": {
                "containers": [container],
                "imagePullSecrets": [{"name": "pull"}],
                "serviceAccountName": "default",
                "enableServiceLinks": links,
                **spec,
            },
        }
    )


@attrs.define
class World:
    client: ScriptedClient
    pods: Store[Pod] = attrs.field(factory=lambda: Store(PODS))
    services: Store[Service] = attrs.field(factory=lambda: Store(SERVICES))
    classes: Store[RuntimeClass] = attrs.field(factory=lambda: Store(RUNTIME_CLASSES))
    node: Store[Node] = attrs.field(factory=lambda: Store(NODES))
    version: int = 0

    def objects(self) -> ClusterObjects:
        return ClusterObjects(
            self.client,
            pods=self.pods,
            services=self.services,
            runtime_classes=self.classes,
            node=lambda: self.node.get("a"),
            clock=TrioClock(),
            rng=random.Random(1),
        )

    def bind(self, added: Pod) -> None:
        self.version += 1
        metadata = attrs.evolve(added.metadata, resource_version=str(self.version))
        self.pods.apply(WatchEvent("ADDED", attrs.evolve(added, metadata=metadata)))

    def unbind(self, gone: Pod) -> None:
        self.pods.apply(WatchEvent("DELETED", gone))

    def asked(self) -> int:
        return len(self.client.called("get"))


@pytest.fixture
async def world() -> World:
    return World(ScriptedClient([config_map("one"), Secret(metadata=ObjectMeta(name="pull", namespace="ns"))]))


def as_getter(objects: ClusterObjects) -> ObjectGetter:
    return objects


def as_accounts(objects: ClusterObjects) -> ServiceAccounts:
    return objects


async def test_an_object_is_fetched_once_a_minute(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    assert (await objects.config_map("ns", "settings")).data == {"text": "one"}
    world.client.put(config_map("two"))
    await trio.sleep(59)
    assert (await objects.config_map("ns", "settings")).data == {"text": "one"}
    await trio.sleep(2)
    assert (await objects.config_map("ns", "settings")).data == {"text": "two"}
    assert world.asked() == 2


async def test_the_node_says_how_long_objects_are_kept(world: World, autojump_clock: MockClock) -> None:
    metadata = ObjectMeta(name="a", annotations={"node.alpha.kubernetes.io/ttl": "0"})
    world.node.replace([Node(metadata=metadata)], [], "1")
    objects = world.objects()
    await objects.config_map("ns", "settings")
    await objects.config_map("ns", "settings")
    assert world.asked() == 2


async def test_a_new_pod_finds_the_newest_version(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    world.bind(pod())
    await objects.config_map("ns", "settings")
    world.client.put(config_map("two"))
    await trio.sleep(1)
    world.bind(pod("db"))
    assert (await objects.config_map("ns", "settings")).data == {"text": "two"}
    # A status that changed is no reason.
    world.bind(pod("db"))
    await objects.config_map("ns", "settings")
    assert world.asked() == 2


async def test_a_hundred_pods_ask_once(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    world.client.set_latency(1)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(objects.config_map, "ns", "settings")
    assert world.asked() == 1


async def test_while_the_server_is_away_the_last_version_is_used(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    world.bind(pod())
    await objects.config_map("ns", "settings")
    world.client.unreachable()
    await trio.sleep(600)
    assert (await objects.config_map("ns", "settings")).data == {"text": "one"}
    with pytest.raises(ObjectError, match=r"failed to sync secret cache: .*connection refused") as caught:
        await objects.secret("ns", "pull")
    assert caught.value.problem == "unavailable"
    world.client.back()
    await objects.secret("ns", "pull")


async def test_a_failure_is_told_to_all_who_waited_for_it(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    world.client.hold("get", SECRETS)
    failed = []

    async def ask() -> None:
        try:
            await objects.secret("ns", "pull")
        except ObjectError as error:
            failed.append(error.problem)

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert failed == ["unavailable"] * 20
    # One attempt, and one for those who came while it was made.
    assert trio.current_time() - begin <= 20


async def test_an_object_that_is_missing_is_said_so_and_asked_for_again(
    world: World, autojump_clock: MockClock
) -> None:
    objects = world.objects()
    with pytest.raises(ObjectError, match=r'^secret "other" not found$') as caught:
        await objects.secret("ns", "other")
    assert caught.value.problem == "not found"
    world.client.put(Secret(metadata=ObjectMeta(name="other", namespace="ns")))
    await objects.secret("ns", "other")


async def test_an_object_that_was_deleted_is_not_used_any_longer(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    await objects.config_map("ns", "settings")
    world.client.remove(CONFIG_MAPS, "settings", "ns")
    await trio.sleep(61)
    with pytest.raises(ObjectError, match=r'^configmap "settings" not found$'):
        await objects.config_map("ns", "settings")


async def test_a_refusal_is_no_proof_that_the_object_is_missing(world: World, autojump_clock: MockClock) -> None:
    world.client.fail("get", CONFIG_MAPS, status_error(403, "Forbidden", "no relationship found"))
    with pytest.raises(ObjectError, match="no relationship found") as caught:
        await world.objects().config_map("ns", "settings")
    assert caught.value.problem == "unavailable"


async def test_what_no_pod_names_is_dropped(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    world.bind(pod())
    await objects.config_map("ns", "settings")
    await trio.sleep(120)
    await objects.secret("ns", "pull")
    world.client.unreachable()
    assert (await objects.config_map("ns", "settings")).data == {"text": "one"}
    world.unbind(pod())
    await trio.sleep(120)
    with pytest.raises(ObjectError):
        await objects.secret("ns", "new")
    with pytest.raises(ObjectError):
        await objects.config_map("ns", "settings")


async def test_pods_are_told_of_services(world: World, autojump_clock: MockClock) -> None:
    world.services.replace([API_SERVICE], [], "1")
    made = await as_getter(world.objects()).service_variables(pod())
    assert made["KUBERNETES_SERVICE_HOST"] == "10.0.0.1"


async def test_a_pod_does_not_start_before_services_were_read(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    with pytest.raises(ObjectError) as caught:
        await objects.service_variables(pod())
    assert str(caught.value) == "services have not yet been read at least once, cannot construct envvars"


async def test_a_pod_waits_a_moment_for_services(
    world: World, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def sync() -> None:
        await trio.sleep(1)
        world.services.replace([API_SERVICE], [], "1")

    nursery.start_soon(sync)
    assert await world.objects().service_variables(pod())


@pytest.mark.parametrize("source", ["file", "http"])
async def test_a_static_pod_starts_without_services(world: World, source: str, autojump_clock: MockClock) -> None:
    assert await world.objects().service_variables(pod(source=source)) == {}


async def test_a_pod_must_say_whether_it_wants_links(world: World, autojump_clock: MockClock) -> None:
    with pytest.raises(ObjectError) as caught:
        await world.objects().service_variables(pod(links=None))
    assert str(caught.value) == "nil pod.spec.enableServiceLinks encountered, cannot construct envvars"


async def test_a_runtime_class_names_a_handler(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    with pytest.raises(
        ObjectError, match=r"^failed to lookup RuntimeClass gvisor: RuntimeClasses have not yet been read$"
    ):
        await objects.runtime_handler("gvisor")
    world.classes.replace([RuntimeClass(metadata=ObjectMeta(name="gvisor"), handler="runsc")], [], "1")
    assert await objects.runtime_handler("gvisor") == "runsc"
    assert await objects.runtime_handler("") == ""
    with pytest.raises(ObjectError, match=r'^runtimeclass.node.k8s.io "kata" not found$'):
        await objects.runtime_handler("kata")


async def test_a_plugin_gets_a_token_of_the_pods_account(world: World, autojump_clock: MockClock) -> None:
    metadata = ObjectMeta(name="default", namespace="ns", uid="account", annotations={"a": "b"})
    world.client.put(ServiceAccount(metadata=metadata))
    objects = world.objects()
    account = await as_accounts(objects).service_account("ns", "default")
    assert account.annotations == {"a": "b"}
    web = pod()
    world.bind(web)
    assert await objects.service_account_token(web, "registry", account_uid=account.uid) == "token-1"
    request = world.client.calls[-1].body
    bound = request.spec.bound_object_ref
    assert (request.spec.audiences, request.spec.expiration_seconds) == (("registry",), None)
    assert (bound.kind, bound.api_version, bound.name, bound.uid) == ("Pod", "v1", "web", "uid-web")
    world.unbind(web)
    assert objects.tokens.kept == 0


async def test_an_account_or_token_that_cannot_be_had_is_said_so(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    with pytest.raises(ObjectError, match=r'^serviceaccounts "default" not found$') as caught:
        await objects.service_account("ns", "default")
    assert caught.value.problem == "not found"
    with pytest.raises(ObjectError, match=r"^failed to fetch token: ") as caught:
        await objects.service_account_token(pod(), "registry")
    world.client.unreachable()
    with pytest.raises(ObjectError) as caught:
        await objects.service_account("ns", "default")
    assert caught.value.problem == "unavailable"
