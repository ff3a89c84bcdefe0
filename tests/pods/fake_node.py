"""A node that a script registers, and a static pod on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from tests.pods.factories import make_pod
from trikubelet.api import Node, ObjectMeta, Pod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Quantity

NODE = Node(metadata=ObjectMeta(name="n", uid="node-uid"))


def static_pod(uid: str = "static", name: str = "web") -> Pod:
    of = make_pod(uid, name, static=True)
    return attrs.evolve(of, spec=attrs.evolve(of.spec, node_name="n"))


class FakeNode:
    """The node that a script registers."""

    def __init__(self, node: Node | None) -> None:
        self.node = node or Node()
        self.event = trio.Event()
        if node is not None:
            self.event.set()

    @property
    def registered(self) -> bool:
        return self.event.is_set()

    @property
    def uid(self) -> str | None:
        return self.node.metadata.uid or None

    async def wait_registered(self) -> None:
        await self.event.wait()

    def register(self) -> None:
        self.node = NODE
        self.event.set()

    def cached(self) -> Node:
        return self.node

    async def fetch(self) -> Node:
        return self.node

    def host_ips(self) -> tuple[str, ...]:
        return ()

    def allocatable(self) -> Mapping[str, Quantity]:
        return {}
