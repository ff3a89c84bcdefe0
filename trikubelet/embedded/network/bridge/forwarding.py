"""What on the machine, beside our own, decides whether packets of pods are forwarded: sysctls, and others' chains.

Forwarding is off by default, and one switch turns it on for the whole machine. It is put back when the last runtime of
this machine ends, so each notes on its bridge what it found, or what another runtime's bridge says was there before.

Others forbid what they do not know of: Docker and ufw set the policy of iptables' FORWARD chain to DROP, and no rule of
another table can overrule that. With iptables-nft that chain is one of nf_tables: rules for the bridge can be put in
front, as a person would do. Chains that somebody wrote for nf_tables, and those of iptables-legacy, are left alone and
spoken of.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.linux.netlink import expressions as x
from trikubelet.linux.netlink.links import LONGEST_ALIAS
from trikubelet.linux.netlink.nftables import HOOK_FORWARD, INET, insert_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.embedded.network.bridge.names import Names
    from trikubelet.linux.netlink.messages import Request
    from trikubelet.linux.netlink.nftables import Chain

IP_FORWARD: Final = "sys/net/ipv4/ip_forward"
IP6_FORWARD: Final = "sys/net/ipv6/conf/all/forwarding"
LEGACY_TABLES: Final = {
    socket.AF_INET: "thread-self/net/ip_tables_names",
    socket.AF_INET6: "thread-self/net/ip6_tables_names",
}
"""Where the kernel lists what iptables-legacy made, for each family."""
_IP6_INTERFACES: Final = "sys/net/ipv6/conf"
_FIREWALLD: Final = "firewalld"
_NOTE: Final = "trikubelet "
_FAMILIES: Final = {INET: "inet", x.IPV4: "ip", x.IPV6: "ip6"}
_DISABLE_IP6: Final = ("sys/net/ipv6/conf/all/disable_ipv6", "sys/net/ipv6/conf/default/disable_ipv6")


@frozen
class ProcFiles:
    """Small files of /proc. Those of the network are of the namespace that the caller's thread is in."""

    root: Path = Path("/proc")

    def read(self, name: str) -> str | None:
        """Its content without the end of its line; None where there is no such file. Raises OSError."""
        try:
            return (self.root / name).read_text().strip()
        except FileNotFoundError:
            return None

    def write(self, name: str, value: str) -> None:
        """Raises OSError."""
        (self.root / name).write_text(value)

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing where it is not there. Raises OSError."""
        try:
            return sorted(each.name for each in (self.root / folder).iterdir())
        except FileNotFoundError:
            return []


# --- Sysctls ----------------------------------------------------------------------------------------------------------


def has_ipv6(proc: ProcFiles) -> bool:
    """Whether the machine uses IPv6 at all."""
    return all(proc.read(name) == "0" for name in _DISABLE_IP6)


def wanted_sysctls(proc: ProcFiles, *, ipv6: bool) -> dict[str, str]:
    """What has to be set, in this order, and is not yet. Raises OSError.

    Who forwards IPv6 stops to listen to routers, unless the interface says otherwise (`accept_ra` of 2): without it the
    machine would lose its own default route.
    """
    wanted = {} if proc.read(IP_FORWARD) == "1" else {IP_FORWARD: "1"}
    if ipv6 and proc.read(IP6_FORWARD) == "0":
        for interface in proc.names(_IP6_INTERFACES):
            name = f"{_IP6_INTERFACES}/{interface}/accept_ra"
            if interface not in ("all", "default", "lo") and proc.read(name) == "1":
                wanted[name] = "2"
        wanted[IP6_FORWARD] = "1"
    return wanted


def value_while_running(name: str) -> str:
    """What one of those is set to."""
    return "1" if name in (IP_FORWARD, IP6_FORWARD) else "2"


def bridge_sysctls(bridge: str, *, ipv6: bool) -> dict[str, str]:
    """What the bridge's own have to be, before it is up.

    No pod may tell the machine which way to go, as a router may. And nobody else can have the bridge's address: it does
    not ask around for two seconds, in which the kernel could not ask for pods' addresses either.
    """
    folder = f"{_IP6_INTERFACES}/{bridge}"
    return {f"{folder}/accept_ra": "0", f"{folder}/accept_dad": "0", f"{folder}/disable_ipv6": "0" if ipv6 else "1"}


def note_of_earlier(earlier: Mapping[str, str]) -> str:
    """What to write on the bridge, nothing where nothing was changed.

    There is room for a handful of interfaces that listen to routers; what does not fit is left out.
    """
    if not earlier:
        return ""
    kept = dict(earlier)
    while len(note := _NOTE + json.dumps(kept, separators=(",", ":"))) > LONGEST_ALIAS:
        kept.pop(next(each for each in kept if each not in (IP_FORWARD, IP6_FORWARD)))
    return note


def earlier_in_note(note: str) -> dict[str, str]:
    """What a bridge says that sysctls were before."""
    if not note.startswith(_NOTE):
        return {}
    try:
        found = json.loads(note.removeprefix(_NOTE))
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, str) and value.isdecimal() and name.startswith("sys/net/ipv") and ".." not in name
    }


# --- Chains of others -------------------------------------------------------------------------------------------------


def is_iptables_forward(chain: Chain) -> bool:
    """Whether it is the chain that iptables-nft or ip6tables-nft calls FORWARD."""
    return chain.family in (x.IPV4, x.IPV6) and (chain.table, chain.name) == ("filter", "FORWARD")


def dropping(chains: Iterable[Chain]) -> list[Chain]:
    """Those that drop what is forwarded unless a rule of theirs accepts it.

    firewalld's accept by their policy, and reject by their last rule.
    """
    return [
        each
        for each in chains
        if each.hook == HOOK_FORWARD and each.family in _FAMILIES and (each.drops or each.table == _FIREWALLD)
    ]


def plans(sysctls: Mapping[str, str], chains: Iterable[Chain], names: Names) -> tuple[str, ...]:
    """What to tell beforehand of what will be changed on the machine."""
    changed = [f"/proc/{name} will be {value} while the runtime is there" for name, value in sysctls.items()]
    opened = [
        f"{'iptables' if each.family == x.IPV4 else 'ip6tables'} drops what is forwarded: two rules for the bridge "
        f"{names.bridge} will be in front of its chain FORWARD while the runtime is there"
        for each in chains
        if is_iptables_forward(each)
    ]
    return (*changed, *opened)


def openings(chain: Chain, names: Names) -> list[Request]:
    """Rules in front of all others of a chain, that accept what comes from the bridge and goes to it."""
    return [
        insert_rule(chain.family, chain.table, chain.name, matches(names.bridge), x.accept(), comment=comment(names))
        for matches in (x.to_interface, x.from_interface)
    ]


def comment(names: Names) -> str:
    """By which the rules are found again."""
    return f"trikubelet {names.bridge}"


def legacy_warning(family: int, names: Names) -> str:
    """What to tell of the chain FORWARD of iptables-legacy, which nobody else can put rules into."""
    program = "iptables-legacy" if family == socket.AF_INET else "ip6tables-legacy"
    return (
        f"{program} drops what is forwarded, so pods may reach no other machine: let it accept what comes from and "
        f"goes to the bridge, as by: {program} -I FORWARD -i {names.bridge} -j ACCEPT; "
        f"{program} -I FORWARD -o {names.bridge} -j ACCEPT"
    )


def warning(chain: Chain, names: Names) -> str:
    """What to tell of a chain that drops and is left alone."""
    if chain.table == _FIREWALLD:
        return (
            "firewalld rejects what is forwarded, so pods may reach no other machine: let it trust the bridge by: "
            f"firewall-cmd --permanent --zone=trusted --add-interface={names.bridge}; firewall-cmd --reload"
        )
    where = f"{_FAMILIES[chain.family]} {chain.table} {chain.name}"
    return (
        f"the chain {where} of nf_tables drops what is forwarded, so pods may reach no other machine: let it accept "
        f"what comes from and goes to the bridge, as by: nft insert rule {where} iifname {names.bridge} accept; "
        f"nft insert rule {where} oifname {names.bridge} accept"
    )
