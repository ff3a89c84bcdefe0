"""The node as the agent's parts see it: the object that the API server has, or the one it would be given.

Admission, field references and mirror pods ask here. An agent without a cluster answers with its initial node, so that
its pods are judged and started by the same rules (kubelet: `GetNode`, `GetCachedNode`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import trio

from trikubelet.api import Node
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Quantity


class NodeView(Protocol):
    """Reading the node. Only `fetch` and `wait_registered` ever wait."""

    @property
    def registered(self) -> bool:
        """The API server has the node object. Stays true when somebody deletes it: it is not made again."""
        ...

    @property
    def uid(self) -> str | None:
        """The UID that the API server gave; None until the node is registered, and without a cluster."""
        ...

    async def wait_registered(self) -> None:
        """Return once `registered` is true; without a cluster, never. Cancellable; nothing is left behind."""
        ...

    def cached(self) -> Node:
        """The newest copy at hand (watched, fetched or patched); the initial node while there is none."""
        ...

    async def fetch(self) -> Node:
        """Ask the API server; raises ApiError. Without a cluster the initial node."""
        ...

    def host_ips(self) -> tuple[str, ...]:
        """The host's addresses for pods: one, or one of each family. Empty while none is known."""
        ...

    def allocatable(self) -> Mapping[str, Quantity]:
        """What pods may have of the machine, by resource name."""
        ...


@frozen
class LocalNodeView:
    """The view of an agent without a cluster: always the initial node, as it would be created now."""

    source: Node | Callable[[], Node]
    """A function where the node is to follow what is seen of it."""

    @property
    def node(self) -> Node:
        return self.source() if callable(self.source) else self.source

    @property
    def registered(self) -> bool:
        return False

    @property
    def uid(self) -> str | None:
        return None

    async def wait_registered(self) -> None:
        await trio.sleep_forever()

    def cached(self) -> Node:
        return self.node

    async def fetch(self) -> Node:
        await trio.lowlevel.checkpoint()
        return self.node

    def host_ips(self) -> tuple[str, ...]:
        return host_ips(self.node)

    def allocatable(self) -> Mapping[str, Quantity]:
        return self.node.status.allocatable


_PREFERENCE: Final = ("InternalIP", "ExternalIP")


def host_ips(node: Node) -> tuple[str, ...]:
    """The node's first address, internal before external, and the first of the other family (`GetNodeHostIPs`)."""
    found = [
        ip
        for type_ in _PREFERENCE
        for address in node.status.addresses
        if address.type == type_ and (ip := _parse(address.address)) is not None
    ]
    if not found:
        return ()
    other = [ip for ip in found if ip.version != found[0].version]
    return tuple(str(ip) for ip in (found[0], *other[:1]))


def _parse(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
