"""What a pod has of the network: addresses and host ports. All leases together say what is free."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from trikubelet.embedded.network.bridge.addresses import next_free
from trikubelet.embedded.network.bridge.ports import Binding, bindings, conflict
from trikubelet.embedded.network.model import Attachment, NetworkError, PodNetworkSpec
from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trikubelet.linux.netlink.routes import Address, Interface, Network

POD_INTERFACE = "eth0"


@define
class Lease:
    """Of one pod, from before its link is made until after it is deleted."""

    spec: PodNetworkSpec
    interfaces: tuple[Interface, ...]
    """Its addresses, each with its subnet."""
    bindings: tuple[Binding, ...]
    attached: bool
    """False while it is being made or taken down, and when that failed."""

    def attachment(self) -> Attachment:
        """What the runtime writes down."""
        return Attachment(
            ips=tuple(str(each.ip) for each in self.interfaces),
            interface=POD_INTERFACE,
            state={"subnets": [str(each.network) for each in self.interfaces]},
        )


def new_lease(
    spec: PodNetworkSpec, subnets: Sequence[Network], others: Collection[Lease], last: Mapping[Network, Address]
) -> Lease:
    """For a pod that comes: an address of each subnet, and its host ports.

    `last` are the addresses that were given last. Raises NetworkError when there are no more, or another pod has a
    port.
    """
    taken = {each.ip for lease in others for each in lease.interfaces}
    interfaces = tuple(
        ipaddress.ip_interface(f"{next_free(subnet, taken, last.get(subnet))}/{subnet.prefixlen}") for subnet in subnets
    )
    wanted = bindings(spec, [each.ip for each in interfaces])
    if problem := conflict(wanted, [each for lease in others for each in lease.bindings]):
        raise NetworkError(problem)
    return Lease(spec, interfaces, wanted, attached=False)


def recorded_lease(spec: PodNetworkSpec, attachment: Attachment) -> Lease:
    """Of a pod that was attached by an earlier process. Raises NetworkError if that was not by this network."""
    try:
        interfaces = tuple(
            ipaddress.ip_interface(f"{ip}/{ipaddress.ip_network(subnet).prefixlen}")
            for ip, subnet in zip(attachment.ips, attachment.state["subnets"], strict=True)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NetworkError(f"the bridge did not make the attachment {attachment}: {error!r}") from error
    return Lease(spec, interfaces, bindings(spec, [each.ip for each in interfaces]), attached=True)
