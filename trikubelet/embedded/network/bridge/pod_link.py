"""A pod's link: from the bridge into its network namespace, with its addresses there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.network.bridge.addresses import gateway
from trikubelet.embedded.network.bridge.leases import POD_INTERFACE
from trikubelet.embedded.network.bridge.names import pod_mac
from trikubelet.linux.netlink import links, routes

if TYPE_CHECKING:
    from trikubelet.embedded.network.bridge.host import Host
    from trikubelet.embedded.network.bridge.leases import Lease
    from trikubelet.embedded.network.bridge.names import Names
    from trikubelet.linux.netlink.client import NetlinkSocket

_MOMENT: Final = 0.001


async def connect(
    route: NetlinkSocket, inside: NetlinkSocket, namespace: str, lease: Lease, host: Host, names: Names
) -> None:
    """Make it; when this returns the pod can be reached. `inside` is a socket in the pod's `namespace`, a path.

    Raises OSError. What was made by then is left.
    """
    name = names.veth(lease.spec.sandbox_id)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        veth = links.make_veth(
            name,
            bridge=host.bridge,
            mtu=host.mtu,
            peer_name=POD_INTERFACE,
            peer_mac=pod_mac(lease.interfaces[0].ip),
            peer_namespace=descriptor,
        )
        *_, found = await route.ask([veth, links.hairpin(name), links.get_link(name)])
    finally:
        os.close(descriptor)
    interface = links.only_link(found).peer
    requests = [links.set_up(POD_INTERFACE)]
    for each in lease.interfaces:
        requests.append(routes.add_address(interface, each))
        requests.append(routes.add_default_route(interface, gateway(each.network).ip))
    await inside.change(requests)
    await _wait_until_usable(route, inside, lease, names)


async def _wait_until_usable(route: NetlinkSocket, inside: NetlinkSocket, lease: Lease, names: Names) -> None:
    """The kernel finishes some of it a moment later, by itself. What comes before is lost, and comes again in a second.

    The new port lets packets pass, and so does the bridge, which is down while it has no port that is up; and the pod
    knows an IPv6 address as its own. Nothing tells of that.
    """
    passing = [links.get_link(names.veth(lease.spec.sandbox_id)), links.get_link(names.bridge)]
    while not all(links.only_link(each).running for each in await route.ask(passing)):  # noqa: ASYNC110
        await trio.sleep(_MOMENT)
    known = [routes.find_route(each.ip) for each in lease.interfaces if each.version == 6]
    while known and not all(map(routes.leads_here, await inside.ask(known))):  # noqa: ASYNC110
        await trio.sleep(_MOMENT)
