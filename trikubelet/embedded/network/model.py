"""What is asked of a pod's network, and what is known of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    import socket


class NetworkError(Exception):
    """A pod's network could not be made or taken down; the text says what was tried and why it failed."""


@frozen(kw_only=True)
class PortMapping:
    """A port of the machine that leads to one of the pod (`hostPort`)."""

    host_port: int
    container_port: int
    protocol: str = "tcp"
    """`tcp`, `udp` or `sctp`."""
    host_ip: str = ""
    """The machine's address that it is bound to; empty means all."""


@frozen(kw_only=True)
class PodNetworkSpec:
    """What a pod wants of its network. Written to disk with the sandbox: what was attached must be detached alike."""

    sandbox_id: str
    namespace: str
    name: str
    uid: str
    ports: tuple[PortMapping, ...] = ()
    annotations: Mapping[str, str] = attrs.field(factory=dict)
    cgroup_parent: str = ""


@frozen(kw_only=True)
class Attachment:
    """A pod's network as it was made."""

    ips: tuple[str, ...]
    """The first is the pod's address; at most one of each family."""
    interface: str = "eth0"
    state: Mapping[str, Any] = attrs.field(factory=dict)
    """JSON: what the network that made it wants to know again when it takes it down."""


class NetworkNamespace(Protocol):
    """A pod's network namespace, which the keeper holds. Its loopback interface is up."""

    @property
    def path(self) -> str:
        """A path by which another process of this user on this machine can open it while the pod is there."""
        ...

    async def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket in it, not blocking: of AF_NETLINK for who sets it up. Raises NetworkError."""
        ...


class PodNetwork(Protocol):
    """One way to give pods networks. Every method may be cancelled, and has a deadline of its own."""

    async def problem(self) -> str:
        """Why no pod can have a network now, for `NetworkReady`; empty when one can."""
        ...

    async def set_subnets(self, subnets: Sequence[str]) -> None:
        """The addresses that new pods are to have from now on. Plugins have them by themselves. Raises NetworkError."""
        ...

    def sandbox_out_of_reach(self, address: str) -> str | None:
        """The sandbox that has this address, if the machine has no way to it but by a socket of the pod's."""
        ...

    async def attach(self, spec: PodNetworkSpec, namespace: NetworkNamespace) -> Attachment:
        """Make the pod's network. Raises NetworkError; what was made by then is taken down."""
        ...

    async def detach(
        self, spec: PodNetworkSpec, attachment: Attachment | None, namespace: NetworkNamespace | None
    ) -> None:
        """Take it down; idempotent, also after half an `attach` (no attachment) and when the namespace is gone.

        Raises NetworkError where something is left, which is asked for again.
        """
        ...

    async def reconcile(self, pods: Mapping[str, tuple[PodNetworkSpec, Attachment | None]]) -> frozenset[str]:
        """Bring the machine to what these pods, by sandbox id, need: at the start, after a crash, and now and then.

        What is missing is made again (rules, routes), and what belongs to no pod of this runtime goes. Returns the
        sandboxes whose network is gone for good, so that their pods need others. Raises NetworkError.
        """
        ...

    async def close(self) -> None:
        """The runtime ends for good and holds no pod: nothing of it stays on the machine."""
        ...
