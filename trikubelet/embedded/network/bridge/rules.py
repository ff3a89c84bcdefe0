"""The runtime's table of nf_tables: as `nft list table inet tkb-…` shows it, for one IPv4 subnet,

    map host-ports4    { inet_proto . inet_service : ipv4_addr . inet_service }
    map address-ports4 { ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
    chain guard        { hook prerouting priority raw:    iifname BRIDGE ip daddr 127.0.0.0/8 drop }
    chain prerouting   { hook prerouting priority dstnat: fib daddr type local jump host-ports }
    chain output       { hook output priority dstnat:     fib daddr type local jump host-ports }
    chain host-ports   { dnat ip to ip daddr . meta l4proto . th dport map @address-ports4
                         dnat ip to meta l4proto . th dport map @host-ports4 }
    chain postrouting  { hook postrouting priority srcnat:
                         oifname BRIDGE ct status dnat ip saddr 127.0.0.0/8 masquerade
                         oifname BRIDGE ct status dnat ip saddr SUBNET masquerade
                         oifname != BRIDGE ip saddr SUBNET ip daddr CLUSTER accept
                         oifname != BRIDGE ip saddr SUBNET masquerade }

and the same for IPv6. CLUSTER is where pods of other nodes are, which see each other's addresses, if that is set. A pod
that comes or goes changes elements of the maps; all else is the same for any pods.

The second rule of the last chain is for pods that reach another pod, or themselves, by a host port: the answer would go
straight to the asker, who knows nothing of its address. The guard is the price of host ports on 127.0.0.1: the bridge
lets such packets pass, and a pod could send them to what listens on the machine's loopback alone (CVE-2020-8558).
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from trikubelet.embedded.network.bridge.ports import map_name
from trikubelet.linux.netlink import expressions as x
from trikubelet.linux.netlink.nftables import (
    ADDRESS4,
    ADDRESS6,
    HOOK_OUTPUT,
    HOOK_POSTROUTING,
    HOOK_PREROUTING,
    INET,
    PORT,
    PRIORITY_DNAT,
    PRIORITY_RAW,
    PRIORITY_SNAT,
    PROTOCOL,
    add_elements,
    append_rule,
    base_chain,
    called_chain,
    delete_elements,
    make_map,
    replace_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trikubelet.embedded.network.bridge.names import Names
    from trikubelet.embedded.network.bridge.ports import Binding
    from trikubelet.linux.netlink.messages import Request
    from trikubelet.linux.netlink.nftables import Element
    from trikubelet.linux.netlink.routes import Network

_LOOPBACK: Final = ipaddress.IPv4Network("127.0.0.0/8")
_PORTS: Final = "host-ports"
_FAMILIES: Final = ((x.IPV4, 4, ADDRESS4), (x.IPV6, 6, ADDRESS6))


def table(
    names: Names, subnets: Sequence[Network], bindings: Iterable[Binding], cluster: Sequence[Network] = ()
) -> list[Request]:
    """All of it, in place of what is there: one transaction. `cluster`: where pods of other nodes are."""
    name, bridge = names.table, names.bridge
    requests = replace_table(INET, name, f"trikubelet {names.root}")
    for identity, (_, version, address) in enumerate(_FAMILIES):
        value = (address, PORT)
        requests += [
            make_map(INET, name, map_name(version, addressed=False), (PROTOCOL, PORT), value, 2 * identity + 1),
            make_map(INET, name, map_name(version, addressed=True), (address, PROTOCOL, PORT), value, 2 * identity + 2),
        ]
    requests += [
        base_chain(INET, name, "guard", kind="filter", hook=HOOK_PREROUTING, priority=PRIORITY_RAW),
        base_chain(INET, name, "prerouting", kind="nat", hook=HOOK_PREROUTING, priority=PRIORITY_DNAT),
        base_chain(INET, name, "output", kind="nat", hook=HOOK_OUTPUT, priority=PRIORITY_DNAT),
        base_chain(INET, name, "postrouting", kind="nat", hook=HOOK_POSTROUTING, priority=PRIORITY_SNAT),
        called_chain(INET, name, _PORTS),
        append_rule(INET, name, "guard", x.from_interface(bridge), x.destination_in(_LOOPBACK), x.drop()),
        append_rule(INET, name, "prerouting", x.destination_is_local(), x.jump(_PORTS)),
        append_rule(INET, name, "output", x.destination_is_local(), x.jump(_PORTS)),
    ]
    for family, version, _ in _FAMILIES:
        requests += _port_rules(name, family, version)
    translated = x.to_interface(bridge) + x.destination_was_translated()
    requests += [
        append_rule(INET, name, "postrouting", translated, x.source_in(source), x.masquerade())
        for source in (_LOOPBACK, *subnets)
    ]
    for subnet in subnets:
        leaving = x.not_to_interface(bridge) + x.source_in(subnet)
        requests += [
            append_rule(INET, name, "postrouting", leaving, x.destination_in(each), x.accept())
            for each in cluster
            if each.version == subnet.version
        ]
        requests.append(append_rule(INET, name, "postrouting", leaving, x.masquerade()))
    return requests + open_ports(names, bindings)


def open_ports(names: Names, bindings: Iterable[Binding]) -> list[Request]:
    requests = []
    for name, elements in _by_map(bindings).items():
        requests += add_elements(INET, names.table, name, elements)
    return requests


def close_ports(names: Names, bindings: Iterable[Binding]) -> list[Request]:
    """Refused as a whole where one of them is not open."""
    requests = []
    for name, elements in _by_map(bindings).items():
        requests += delete_elements(INET, names.table, name, elements)
    return requests


def _by_map(bindings: Iterable[Binding]) -> dict[str, list[Element]]:
    maps: dict[str, list[Element]] = {}
    for binding in bindings:
        maps.setdefault(binding.map_name, []).append(binding.element())
    return maps


def _port_rules(table_name: str, family: int, version: int) -> list[Request]:
    width = 1 if version == 4 else 4
    addressed = (x.load_destination(family), x.load_protocol(width), x.load_destination_port(width + 1))
    plain = (x.load_protocol(), x.load_destination_port(1))
    return [
        append_rule(
            INET,
            table_name,
            _PORTS,
            x.is_family(family),
            *key,
            x.look_up(map_name(version, addressed=is_addressed)),
            x.translate_destination(family),
        )
        for key, is_addressed in ((addressed, True), (plain, False))
    ]
