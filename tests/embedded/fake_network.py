"""A pod network without interfaces: what was asked of it, and failures on request."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from trikubelet.embedded.network.model import Attachment, NetworkError, PodNetworkSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.embedded.network.model import NetworkNamespace


@attrs.define
class FakeNetwork:
    """Gives each pod the next address; pods reach nothing but themselves."""

    trouble: str = ""
    """What `problem` says."""
    fails: str = ""
    """Why `attach` fails, after it has taken an address."""
    sticks: str = ""
    """Why `detach` fails."""
    stays: str = ""
    """Why `close` fails."""
    attached: dict[str, str] = attrs.field(factory=dict)
    """Addresses by sandbox id: what is there now."""
    detached_without_namespace: list[str] = attrs.field(factory=list)
    reconciled_with: list[set[str]] = attrs.field(factory=list)
    specs: list[PodNetworkSpec] = attrs.field(factory=list)
    inodes: list[int] = attrs.field(factory=list)
    """Of the namespaces that were to be set up."""
    attaching: trio.Event = attrs.field(factory=trio.Event)
    hold: trio.Event | None = None
    """`attach` waits for it, with the address taken."""
    gone: set[str] = attrs.field(factory=set)
    """Sandboxes whose network somebody took away."""
    closed: bool = False
    """It was taken down, and not made anew."""
    _given: int = 0

    async def problem(self) -> str:
        return self.trouble

    async def set_subnets(self, subnets: Sequence[str]) -> None:
        """Its addresses are its own."""

    def sandbox_out_of_reach(self, address: str) -> str | None:
        return None

    async def attach(self, spec: PodNetworkSpec, namespace: NetworkNamespace) -> Attachment:
        self.specs.append(spec)
        self._given += 1
        address = f"10.66.0.{self._given}"
        self.attached[spec.sandbox_id] = address
        self.inodes.append(Path(namespace.path).stat().st_ino)
        with await namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
            assert not netlink.getblocking()
        self.attaching.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.fails:
            raise NetworkError(self.fails)
        return Attachment(ips=(address, f"fd00:66::{self._given}"), state={"given": self._given})

    async def detach(
        self, spec: PodNetworkSpec, attachment: Attachment | None, namespace: NetworkNamespace | None
    ) -> None:
        await trio.lowlevel.checkpoint()
        if self.sticks:
            raise NetworkError(self.sticks)
        if namespace is None:
            self.detached_without_namespace.append(spec.sandbox_id)
        self.attached.pop(spec.sandbox_id, None)

    async def reconcile(self, pods: Mapping[str, tuple[PodNetworkSpec, Attachment | None]]) -> frozenset[str]:
        self.reconciled_with.append(set(pods))
        self.closed = False
        for sandbox in self.attached.keys() - pods.keys():
            del self.attached[sandbox]
        return frozenset(self.gone)

    async def close(self) -> None:
        if self.stays:
            raise NetworkError(self.stays)
        self.closed = True
