"""Which subnet a runtime's pods are in, and which address of it a pod gets."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from trikubelet.embedded.network.model import NetworkError
from trikubelet.formats.digests import sha256

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from trikubelet.linux.netlink.routes import Address, Interface, Network

_POOLS: Final = tuple(map(ipaddress.IPv4Network, ("10.210.0.0/16", "172.30.0.0/16", "192.168.0.0/16")))
"""Where a subnet is looked for when none is set: away from what Docker, Podman and usual pod networks take."""
_SUBNET_LENGTH: Final = 24
_SMALLEST: Final = {4: 30, 6: 126}
"""Longest prefixes: with a gateway there is room for one pod."""


def parse_subnets(texts: Sequence[str], what: str = "pod subnet") -> tuple[Network, ...]:
    """What was set, at most one of each family. Raises NetworkError."""
    subnets: list[Network] = []
    for text in texts:
        try:
            subnet = ipaddress.ip_network(text)
        except ValueError as error:
            raise NetworkError(f"{what} {text!r}: {error}") from error
        if subnet.prefixlen > _SMALLEST[subnet.version]:
            raise NetworkError(f"{what} {subnet} has no room for a gateway and a pod")
        if any(each.version == subnet.version for each in subnets):
            raise NetworkError(f"{what}s {', '.join(texts)}: at most one of IPv4 and one of IPv6")
        subnets.append(subnet)
    return tuple(subnets)


def choose_ipv4(seed: str, taken: Collection[Network]) -> ipaddress.IPv4Network:
    """A private subnet that overlaps with none of these.

    For the same seed and the same machine it is the same one, and it is likely another one for another seed.
    Raises NetworkError.
    """
    start = int.from_bytes(sha256(seed.encode()).digest()[:4], "big")
    for pool in _POOLS:
        candidates = list(pool.subnets(new_prefix=_SUBNET_LENGTH))
        for at in range(len(candidates)):
            candidate = candidates[(start + at) % len(candidates)]
            if not overlapping(candidate, taken):
                return candidate
    pools = ", ".join(map(str, _POOLS))
    raise NetworkError(f"no subnet for pods: the machine has routes to all of {pools}; set one")


def private_ipv6(seed: str) -> ipaddress.IPv6Network:
    """A unique local subnet (RFC 4193): its 40 bits come from the seed, so that nobody else has it."""
    digest = sha256(seed.encode()).digest()
    return ipaddress.IPv6Network((b"\xfd" + digest[:5] + bytes(10), 64))


def overlapping(subnet: Network, taken: Iterable[Network]) -> list[Network]:
    """Those that share addresses with the subnet; a default route does not count."""
    return [each for each in taken if each.prefixlen and each.version == subnet.version and each.overlaps(subnet)]


def gateway(subnet: Network) -> Interface:
    """The bridge's address."""
    return ipaddress.ip_interface(f"{subnet[1]}/{subnet.prefixlen}")


def is_gateway(interface: Interface) -> bool:
    """Whether it is one that `gateway` gives."""
    return (
        interface.network.num_addresses > 2 and not interface.is_link_local and gateway(interface.network) == interface
    )


def next_free(subnet: Network, taken: Collection[Address], last: Address | None) -> Address:
    """The first free address after the one that was given last, and from the beginning after the end.

    So an address rests for as long as possible before another pod has it. Raises NetworkError.
    """
    first = int(subnet.network_address) + 2
    # IPv4's last address is for everybody on the subnet.
    count = subnet.num_addresses - (3 if subnet.version == 4 else 2)
    start = 0 if last is None or last not in subnet else int(last) + 1 - first
    for at in range(min(count, len(taken) + 1)):
        address = subnet[2 + (start + at) % count]
        if address not in taken:
            return address
    raise NetworkError(f"no address is free in {subnet}: all {count} are taken by pods")
