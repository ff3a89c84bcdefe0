"""A cluster as scripts see it: pods are made and deleted, and things come true, or do not in time.

Scripts are written against an administrator's `ApiClient`, so that they run on a real cluster as well as on the test
server; what only the test server can do (faults) they look for with `injectable`.

    cluster = TestCluster(client, server=server)
    await cluster.create_pod("web", node="a")
    await cluster.until_pod("web", lambda pod: pod.status.phase == "Running")
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.api import Event, Node, ObjectReference, Pod, pod_from_dict, to_dict
from trikubelet.api.meta import KubernetesObject, ObjectMeta
from trikubelet.kube_client.errors import ApiAnswerError, ApiStatusError
from trikubelet.kube_client.types import EVENTS, NODES, PODS, ApiClient, Undecodable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.apiserver.faults import Faults
    from tests.apiserver.server import ApiServer

PATIENCE: Final = 60.0
_LOOK_EVERY: Final = 0.1


@attrs.frozen(repr=False)
class Binding(KubernetesObject):
    """Says on which node a pod shall run."""

    api_version: str = "v1"
    kind: str = "Binding"
    metadata: ObjectMeta = attrs.field(default=ObjectMeta())
    target: ObjectReference = attrs.field(default=ObjectReference())


@attrs.frozen
class Sighting:
    """What a watch told of a pod."""

    type: str
    pod: Pod
    at: float
    """Trio's time."""


class TestCluster:
    """One namespace of a cluster. Waiting raises AssertionError with the last state after `patience` seconds."""

    __test__ = False

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str = "default",
        server: ApiServer | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self._server = server
        self._patience = patience

    @property
    def injectable(self) -> bool:
        """Whether things can be made to go wrong here."""
        return self._server is not None

    @property
    def faults(self) -> Faults:
        assert self._server is not None, "faults need the test server: ask `injectable` first"
        return self._server.faults

    # Pods.

    async def create_pod(
        self, name: str, *, node: str = "", metadata: dict[str, Any] | None = None, **spec: Any
    ) -> Pod:
        """A pod, bound to `node` if one is given; `spec` in the words of the API (`restartPolicy="Never"`)."""
        body: dict[str, Any] = {"containers": [{"name": "main", "image": "test/web:1"}], **spec}
        if node:
            body["nodeName"] = node
        meta = {"name": name, "namespace": self.namespace, **(metadata or {})}
        return await self.client.create(PODS, pod_from_dict({"metadata": meta, "spec": body}))

    async def bind(self, name: str, node: str) -> None:
        """What a scheduler does."""
        target = ObjectReference(api_version="v1", kind="Node", name=node)
        body = Binding(metadata=ObjectMeta(name=name, namespace=self.namespace), target=target)
        with suppress(ApiAnswerError):  # the answer is a Status, which is no Binding; the write has happened
            await self.client.create_subresource(PODS, name, self.namespace, "binding", body)

    async def delete_pod(self, name: str, *, grace: int | None = None) -> None:
        await self.client.delete(PODS, name, self.namespace, grace_period=grace)

    async def pod(self, name: str) -> Pod | None:
        """None when there is none."""
        try:
            return await self.client.get(PODS, name, self.namespace)
        except ApiStatusError as error:
            if error.not_found:
                return None
            raise

    async def pods(self) -> dict[str, Pod]:
        listing = await self.client.list(PODS, self.namespace)
        return {pod.metadata.name: pod for pod in listing.items}

    async def statuses(self) -> dict[str, dict[str, Any]]:
        """The status of each pod, as documents."""
        return {name: to_dict(pod.status) for name, pod in (await self.pods()).items()}

    async def until_pod(self, name: str, holds: Callable[[Pod], bool]) -> Pod:
        """The pod for which it holds at last."""
        last: Pod | None = None
        with trio.move_on_after(self._patience):
            while True:
                last = await self.pod(name)
                if last is not None and holds(last):
                    return last
                await trio.sleep(_LOOK_EVERY)
        raise AssertionError(f"pod {name} after {self._patience:g} s: {_shown(last)}")

    async def until_gone(self, name: str, uid: str = "") -> None:
        """The pod, or the one with this UID, is no more."""
        last: Pod | None = None
        with trio.move_on_after(self._patience):
            while True:
                last = await self.pod(name)
                if last is None or (uid and last.metadata.uid != uid):
                    return
                await trio.sleep(_LOOK_EVERY)
        raise AssertionError(f"pod {name} is still there after {self._patience:g} s: {_shown(last)}")

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[list[Sighting]]:
        """A list that grows with everything that a watch of the pods tells, from now on."""
        seen: list[Sighting] = []
        version = (await self.client.list(PODS, self.namespace, limit=1)).resource_version
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch, version, seen)
            yield seen
            nursery.cancel_scope.cancel()

    async def _watch(self, version: str, seen: list[Sighting], *, task_status: trio.TaskStatus[None]) -> None:
        async with self.client.watch(PODS, self.namespace, resource_version=version, timeout=3600) as events:
            task_status.started()
            async for event in events:
                if event.type != "BOOKMARK" and not isinstance(event.object, Undecodable):
                    seen.append(Sighting(event.type, event.object, trio.current_time()))

    # Nodes and events.

    async def node(self, name: str) -> Node | None:
        try:
            return await self.client.get(NODES, name)
        except ApiStatusError as error:
            if error.not_found:
                return None
            raise

    async def until_node(self, name: str, holds: Callable[[Node], bool]) -> Node:
        last: Node | None = None
        with trio.move_on_after(self._patience):
            while True:
                last = await self.node(name)
                if last is not None and holds(last):
                    return last
                await trio.sleep(_LOOK_EVERY)
        raise AssertionError(f"node {name} after {self._patience:g} s: {_shown(last)}")

    async def until_ready(self, name: str) -> Node:
        """The node takes pods."""
        return await self.until_node(name, is_ready)

    async def events(self, name: str = "") -> list[Event]:
        """About the object with this name; about everything in the namespace without one."""
        selector = f"involvedObject.name={name}" if name else ""
        return list((await self.client.list(EVENTS, self.namespace, field_selector=selector)).items)


def is_ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


def _shown(found: Pod | Node | None) -> str:
    return "not there" if found is None else str(to_dict(found.status))
