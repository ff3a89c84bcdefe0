"""The machine's side: the bridge with its addresses, forwarding, and how all of it goes again.

Everything here looks first and does what lacks, so it may be cut off anywhere and called again.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Final

from trikubelet.embedded.network.bridge import forwarding
from trikubelet.embedded.network.bridge.addresses import choose_ipv4, gateway, is_gateway, overlapping, private_ipv6
from trikubelet.embedded.network.bridge.names import BRIDGES
from trikubelet.embedded.network.model import NetworkError
from trikubelet.formats.values import frozen
from trikubelet.linux.iptables_legacy import forward_policy_drops
from trikubelet.linux.netlink import links, nftables, routes
from trikubelet.linux.netlink.links import Link
from trikubelet.linux.netlink.nftables import NFNL_SUBSYS_NFTABLES
from trikubelet.linux.netlink.routes import AssignedAddress, Network, Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from trikubelet.embedded.network.bridge.forwarding import ProcFiles
    from trikubelet.embedded.network.bridge.names import Names
    from trikubelet.linux.netlink.client import NetlinkError, NetlinkSocket
    from trikubelet.linux.netlink.messages import Request

_ETHERNET_MTU: Final = 1500


@frozen(kw_only=True)
class Machine:
    """What the machine's network was when it was looked at."""

    links: tuple[Link, ...]
    addresses: tuple[AssignedAddress, ...]
    routes: tuple[Route, ...]

    def bridge(self, names: Names) -> Link | None:
        return next((each for each in self.links if each.name == names.bridge), None)

    def other_bridges(self, names: Names) -> list[Link]:
        """Those of other runtimes."""
        return [
            each
            for each in self.links
            if each.kind == "bridge" and each.name.startswith(BRIDGES) and each.name != names.bridge
        ]

    @property
    def mtu(self) -> int:
        """The largest packet that gets out of the machine, by every default route."""
        ways = {each.link for each in self.routes if not each.destination.prefixlen}
        return min((each.mtu for each in self.links if each.index in ways), default=_ETHERNET_MTU)

    def taken(self, bridge: int) -> list[Network]:
        """What others than this bridge have routes to, or addresses in."""
        routed = [each.destination for each in self.routes if each.link != bridge]
        return routed + [each.interface.network for each in self.addresses if each.link != bridge]


@frozen(kw_only=True)
class Host:
    """The bridge as it was made."""

    bridge: int
    """Its index."""
    mtu: int
    subnets: tuple[Network, ...]
    """Where new pods get addresses."""


async def look(route: NetlinkSocket) -> Machine:
    """Raises NetlinkError."""
    return Machine(
        links=tuple(filter(None, map(links.decode_link, await route.dump(links.list_links())))),
        addresses=tuple(filter(None, map(routes.decode_address, await route.dump(routes.list_addresses())))),
        routes=tuple(filter(None, map(routes.decode_route, await route.dump(routes.list_routes())))),
    )


async def make_bridge(
    route: NetlinkSocket,
    names: Names,
    machine: Machine,
    proc: ProcFiles,
    *,
    wanted: Sequence[Network],
    leased: Sequence[Network],
) -> Host:
    """A bridge with a gateway's address in each subnet: those wanted, or chosen here, and those that pods are in.

    Raises NetworkError, OSError.
    """
    bridge = machine.bridge(names)
    if bridge is None:
        await route.change([links.make_bridge(names.bridge, mac=names.bridge_mac, mtu=machine.mtu)])
        bridge = links.only_link(await route.get(links.get_link(names.bridge)))
    elif bridge.kind != "bridge":
        raise NetworkError(
            f"{names.bridge}, which should be the bridge of {names.root}, is a {bridge.kind or 'device'}"
        )
    taken = machine.taken(bridge.index)
    here = [
        each.interface.network for each in machine.addresses if each.link == bridge.index and is_gateway(each.interface)
    ]
    subnets = list(wanted)
    if not subnets:
        known = [each for each in (*here, *leased) if each.version == 4]
        subnets = [known[0] if known else choose_ipv4(names.root, taken)]
        subnets += [private_ipv6(names.root)] if forwarding.has_ipv6(proc) else []
    _write(proc, forwarding.bridge_sysctls(names.bridge, ipv6=any(each.version == 6 for each in (*subnets, *leased))))
    await route.change([links.set_up(names.bridge), links.allow_local_addresses(names.bridge)])
    for at, subnet in enumerate(subnets):
        while not await _claim(route, machine, bridge.index, subnets[at]):
            if wanted or subnet.version == 6 or subnet in leased:
                raise NetworkError(f"the machine has another route to the pods' subnet {subnet}: set another one")
            taken.append(subnets[at])
            subnets[at] = choose_ipv4(names.root, taken)
    for subnet in set(leased).difference(subnets):
        if not await _claim(route, machine, bridge.index, subnet):
            raise NetworkError(f"the machine has another route to {subnet}, where pods have addresses")
    for subnet in set(here).difference(subnets, leased):
        gone = (
            routes.delete_link_route(bridge.index, subnet),
            routes.delete_address(bridge.index, gateway(subnet)),
        )
        _raise_unless(await route.try_each(gone), {errno.ESRCH, errno.EADDRNOTAVAIL})
    return Host(bridge=bridge.index, mtu=bridge.mtu, subnets=tuple(subnets))


async def _claim(route: NetlinkSocket, machine: Machine, bridge: int, subnet: Network) -> bool:
    """Give the bridge this subnet, unless somebody else has it.

    The route is the claim: the kernel allows one to each destination, so of two runtimes that choose the same at the
    same time one is refused.
    """
    if not any(each.destination == subnet and each.link == bridge for each in machine.routes):
        (error,) = await route.try_each([routes.add_link_route(bridge, subnet)])
        if error is not None and error.errno == errno.EEXIST:
            return False
        _raise_unless([error], set())
    if AssignedAddress(bridge, gateway(subnet)) not in machine.addresses:
        await route.change([routes.add_address(bridge, gateway(subnet), prefix_route=False)])
    return True


async def make_ports(
    route: NetlinkSocket, names: Names, machine: Machine, host: Host, veths: Iterable[str]
) -> frozenset[str]:
    """Of all links that this runtime made keep these as ports of the bridge, and delete the others.

    The answer are those that are not there. Raises NetlinkError.
    """
    wanted = frozenset(veths)
    ours = [each for each in machine.links if each.name.startswith(names.veths) and each.kind == "veth"]
    lost = [each.name for each in ours if each.name in wanted and (each.master != host.bridge or not each.up)]
    for name in lost:
        await route.change([links.bridge_port(name, bridge=host.bridge), links.hairpin(name)])
    left = [links.delete_link(each.name) for each in ours if each.name not in wanted]
    _raise_unless(await route.try_each(left), {errno.ENODEV})
    return wanted.difference(each.name for each in ours)


async def forward(route: NetlinkSocket, names: Names, machine: Machine, proc: ProcFiles, *, ipv6: bool) -> None:
    """Let the machine forward packets. What was before is written on the bridge first. Raises NetworkError, OSError."""
    if proc.read(forwarding.IP_FORWARD) is None:
        raise NetworkError(f"/proc/{forwarding.IP_FORWARD} is not there, so the machine cannot forward for pods")
    wanted = forwarding.wanted_sysctls(proc, ipv6=ipv6)
    earlier = {name: proc.read(name) or "" for name in wanted}
    own = machine.bridge(names)
    for each in (*machine.other_bridges(names), *([] if own is None else [own])):
        earlier |= forwarding.earlier_in_note(each.alias)
    note = forwarding.note_of_earlier(earlier)
    if note != ("" if own is None else own.alias):
        await route.change([links.set_alias(names.bridge, note)])
    _write(proc, wanted)


async def dropping_chains(netfilter: NetlinkSocket) -> list[nftables.Chain]:
    """Those that drop what is forwarded. Raises NetlinkError."""
    return forwarding.dropping(await _chains(netfilter))


async def open_chains(netfilter: NetlinkSocket, chains: Iterable[nftables.Chain], names: Names) -> tuple[str, ...]:
    """Let these chains of others accept what pods send and get, or say what has to be done. Raises NetlinkError."""
    warnings = []
    for chain in chains:
        if not forwarding.is_iptables_forward(chain):
            warnings.append(forwarding.warning(chain, names))
        elif not await _own_rules(netfilter, chain, names):
            await netfilter.transact(NFNL_SUBSYS_NFTABLES, forwarding.openings(chain, names))
    return tuple(warnings)


async def legacy_chains(
    open_socket: Callable[[int, int, int], Awaitable[socket.socket]], names: Names, proc: ProcFiles
) -> tuple[str, ...]:
    """What to tell of chains of iptables-legacy that drop what is forwarded. Raises OSError."""
    warnings = []
    for family, listed in forwarding.LEGACY_TABLES.items():
        if "filter" in (proc.read(listed) or "").split():
            with await open_socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as opened:
                if forward_policy_drops(opened):
                    warnings.append(forwarding.legacy_warning(family, names))
    return tuple(warnings)


async def take_back(
    route: NetlinkSocket, netfilter: NetlinkSocket, names: Names, machine: Machine, proc: ProcFiles
) -> None:
    """Nothing of this runtime is on the machine any more. Raises NetworkError, OSError."""
    bridge = machine.bridge(names)
    earlier = {} if bridge is None else forwarding.earlier_in_note(bridge.alias)
    others = machine.other_bridges(names)
    if not others:
        _restore(proc, earlier)
    for chain in await _chains(netfilter):
        if forwarding.is_iptables_forward(chain):
            await netfilter.transact(NFNL_SUBSYS_NFTABLES, await _own_rules(netfilter, chain, names))
    await netfilter.transact(NFNL_SUBSYS_NFTABLES, nftables.delete_table(nftables.INET, names.table))
    ours = [each.name for each in machine.links if each.kind == "veth" and each.name.startswith(names.veths)]
    ours += [] if bridge is None else [bridge.name]
    _raise_unless(await route.try_each([links.delete_link(each) for each in ours]), {errno.ENODEV})
    if others and not (await look(route)).other_bridges(names):
        _restore(proc, earlier)


def collisions(machine: Machine, host: Host) -> tuple[str, ...]:
    """What to tell of routes of others into the pods' subnets."""
    return tuple(
        f"the machine has a route to {other}, which overlaps with the pods' subnet {subnet}: some of it is out of reach"
        for subnet in host.subnets
        for other in overlapping(subnet, (each.destination for each in machine.routes if each.link != host.bridge))
    )


async def _chains(netfilter: NetlinkSocket) -> list[nftables.Chain]:
    return list(filter(None, map(nftables.decode_chain, await netfilter.dump(nftables.list_chains()))))


async def _own_rules(netfilter: NetlinkSocket, chain: nftables.Chain, names: Names) -> list[Request]:
    """Requests that delete the rules that were put into a chain of others."""
    listed = await netfilter.dump(nftables.list_rules(chain.family, chain.table, chain.name))
    return [
        nftables.delete_rule(chain.family, chain.table, chain.name, each.handle)
        for each in filter(None, map(nftables.decode_rule, listed))
        if each.comment == forwarding.comment(names)
    ]


def _write(proc: ProcFiles, sysctls: Mapping[str, str]) -> None:
    """Set those that are there and otherwise. Raises NetworkError."""
    for name, value in sysctls.items():
        if proc.read(name) in (None, value):
            continue
        try:
            proc.write(name, value)
        except OSError as error:
            raise NetworkError(
                f"/proc/{name} has to be {value} for pods to have a network, and cannot be set: {error.strerror}"
            ) from error


def _restore(proc: ProcFiles, earlier: Mapping[str, str]) -> None:
    """Put back what is still as it was set here; what else switches comes after forwarding, as it needs it off."""
    order = sorted(earlier, key=lambda name: name not in (forwarding.IP_FORWARD, forwarding.IP6_FORWARD))
    _write(proc, {name: earlier[name] for name in order if proc.read(name) == forwarding.value_while_running(name)})


def _raise_unless(errors: Iterable[NetlinkError | None], fine: set[int]) -> None:
    for error in errors:
        if error is not None and error.errno not in fine:
            raise error
