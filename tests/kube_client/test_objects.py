"""Objects for pods: what they get, from where, and in which words they are told that they get nothing."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.kube_client.scripted_client import ScriptedClient
from trikubelet.api import (
    ConfigMap,
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
from trikubelet.broadcast import Broadcast
from trikubelet.clock import TrioClock
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.objects import ClusterObjects
from trikubelet.kube_client.store import Store
from trikubelet.kube_client.tokens import Tokens
from trikubelet.kube_client.types import PODS, RUNTIME_CLASSES, SERVICES, WatchEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trio.testing import MockClock

    from trikubelet.kube_client.object_getter import ObjectGetter
    from trikubelet.kube_client.volume_objects import References
    from trikubelet.runtime.images.credentials.accounts import ServiceAccounts

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
class Watched:
    """What volumes read from."""

    asked: list[str] = attrs.field(factory=list)

    @contextmanager
    def references(self, _uid: str) -> Iterator[References]:
        yield self

    def follow(self, pod: Pod) -> None: ...

    def referring(self, plural: str, namespace: str, name: str) -> Sequence[str]:
        return ()

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        self.asked.append(f"configmaps {namespace}/{name}")
        return config_map("one")

    async def secret(self, namespace: str, name: str) -> Secret:
        self.asked.append(f"secrets {namespace}/{name}")
        if name != "pull":
            raise ObjectError(f'secret "{name}" not found', "not found")
        return Secret(metadata=ObjectMeta(name="pull", namespace="ns"))

    changes: Broadcast[tuple[str, str, str]] = attrs.field(factory=Broadcast)


@attrs.define
class World:
    client: ScriptedClient
    pods: Store[Pod] = attrs.field(factory=lambda: Store(PODS))
    services: Store[Service] = attrs.field(factory=lambda: Store(SERVICES))
    classes: Store[RuntimeClass] = attrs.field(factory=lambda: Store(RUNTIME_CLASSES))
    watched: Watched = attrs.field(factory=lambda: Watched())
    version: int = 0

    def objects(self) -> ClusterObjects:
        return ClusterObjects(
            self.client,
            watched=self.watched,
            tokens=Tokens(self.client, clock=TrioClock(), rng=random.Random(1)),
            pods=self.pods,
            services=self.services,
            runtime_classes=self.classes,
        )

    def bind(self, added: Pod) -> None:
        self.version += 1
        metadata = attrs.evolve(added.metadata, resource_version=str(self.version))
        self.pods.apply(WatchEvent("ADDED", attrs.evolve(added, metadata=metadata)))

    def unbind(self, gone: Pod) -> None:
        self.pods.apply(WatchEvent("DELETED", gone))


@pytest.fixture
async def world() -> World:
    return World(ScriptedClient())


def as_getter(objects: ClusterObjects) -> ObjectGetter:
    return objects


def as_accounts(objects: ClusterObjects) -> ServiceAccounts:
    return objects


async def test_variables_and_pulls_read_what_volumes_read(world: World, autojump_clock: MockClock) -> None:
    objects = world.objects()
    assert (await as_getter(objects).config_map("ns", "settings")).data == {"text": "one"}
    await objects.secret("ns", "pull")
    assert world.watched.asked == ["configmaps ns/settings", "secrets ns/pull"]
    with pytest.raises(ObjectError, match=r'^secret "other" not found$'):
        await objects.secret("ns", "other")


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
