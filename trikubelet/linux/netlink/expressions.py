"""What rules of nf_tables are made of: each expression loads something into registers, or compares, looks up, acts.

A rule's expressions run one after the other, and one that does not match ends the rule. Registers are of four bytes; a
longer value takes several in a row, and a key of several parts begins each part in a register of its own. `REGISTER` is
the first; expressions with a `register` take an offset from it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from trikubelet.linux.netlink.messages import attribute, nested, network32, text

if TYPE_CHECKING:
    from trikubelet.linux.netlink.routes import Network

REGISTER: Final = 8
"""NFT_REG32_00."""

IPV4: Final = 2
IPV6: Final = 10
"""Families: NFPROTO_IPV4, NFPROTO_IPV6."""

_NFTA_LIST_ELEM: Final = 1
_NFTA_EXPR_NAME: Final = 1
_NFTA_EXPR_DATA: Final = 2
_NFTA_DATA_VALUE: Final = 1
_NFTA_DATA_VERDICT: Final = 2
_NFTA_VERDICT_CODE: Final = 1
_NFTA_VERDICT_CHAIN: Final = 2

_NFT_META_IIFNAME: Final = 6
_NFT_META_OIFNAME: Final = 7
_NFT_META_NFPROTO: Final = 15
_NFT_META_L4PROTO: Final = 16
_NFT_CMP_EQ: Final = 0
_NFT_CMP_NEQ: Final = 1
_NFT_PAYLOAD_NETWORK_HEADER: Final = 1
_NFT_PAYLOAD_TRANSPORT_HEADER: Final = 2
_NFT_CT_STATUS: Final = 2
_IPS_DST_NAT: Final = 1 << 5
_NFT_FIB_RESULT_ADDRTYPE: Final = 3
_NFTA_FIB_F_DADDR: Final = 1 << 1
_RTN_LOCAL: Final = 2
_NFT_NAT_DNAT: Final = 1
_NF_DROP: Final = 0
_NF_ACCEPT: Final = 1
_NFT_JUMP: Final = 0xFFFFFFFD
_NFT_REG_VERDICT: Final = 0
_INTERFACE_NAME: Final = 16

_SOURCE: Final = {IPV4: (12, 4), IPV6: (8, 16)}
_DESTINATION: Final = {IPV4: (16, 4), IPV6: (24, 16)}
"""Offset and length in the header of the network layer."""


def from_interface(name: str) -> bytes:
    """The packet came in through this device."""
    return _meta(_NFT_META_IIFNAME) + _compare(_NFT_CMP_EQ, name.encode().ljust(_INTERFACE_NAME, b"\0"))


def to_interface(name: str) -> bytes:
    """The packet goes out through this device."""
    return _meta(_NFT_META_OIFNAME) + _compare(_NFT_CMP_EQ, name.encode().ljust(_INTERFACE_NAME, b"\0"))


def not_to_interface(name: str) -> bytes:
    return _meta(_NFT_META_OIFNAME) + _compare(_NFT_CMP_NEQ, name.encode().ljust(_INTERFACE_NAME, b"\0"))


def is_family(family: int) -> bytes:
    return _meta(_NFT_META_NFPROTO) + _compare(_NFT_CMP_EQ, bytes([family]))


def source_in(network: Network) -> bytes:
    family = IPV4 if network.version == 4 else IPV6
    return is_family(family) + _address_in(_SOURCE[family], network)


def destination_in(network: Network) -> bytes:
    family = IPV4 if network.version == 4 else IPV6
    return is_family(family) + _address_in(_DESTINATION[family], network)


def destination_is_local() -> bytes:
    """The packet is for an address of this machine, whichever."""
    data = network32(1, REGISTER) + network32(2, _NFT_FIB_RESULT_ADDRTYPE) + network32(3, _NFTA_FIB_F_DADDR)
    return _expression("fib", data) + _compare(_NFT_CMP_EQ, struct.pack("=I", _RTN_LOCAL))


def destination_was_translated() -> bytes:
    """The connection's destination was changed by a rule (DNAT)."""
    status = _expression("ct", network32(1, REGISTER) + network32(2, _NFT_CT_STATUS))
    bit = struct.pack("=I", _IPS_DST_NAT)
    return status + _mask(bit) + _compare(_NFT_CMP_NEQ, bytes(4))


def load_destination(family: int, register: int = 0) -> bytes:
    """The destination address: one register, or four for IPv6."""
    offset, length = _DESTINATION[family]
    return _payload(_NFT_PAYLOAD_NETWORK_HEADER, offset, length, register)


def load_protocol(register: int = 0) -> bytes:
    """The protocol of the transport layer: a byte in one register."""
    return _meta(_NFT_META_L4PROTO, register)


def load_destination_port(register: int = 0) -> bytes:
    """The port: two bytes in one register. Of TCP, UDP and SCTP: look the protocol up as well."""
    return _payload(_NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, register)


def look_up(map_name: str) -> bytes:
    """Take what begins in the first register for a key, and put what the map has for it there instead."""
    return _expression("lookup", text(1, map_name) + network32(2, REGISTER) + network32(3, REGISTER))


def translate_destination(family: int) -> bytes:
    """DNAT to the address that begins in the first register, and the port in the register after it."""
    port = REGISTER + (1 if family == IPV4 else 4)
    data = network32(1, _NFT_NAT_DNAT) + network32(2, family) + network32(3, REGISTER) + network32(5, port)
    return _expression("nat", data)


def masquerade() -> bytes:
    return _expression("masq", b"")


def accept() -> bytes:
    return _verdict(_NF_ACCEPT)


def drop() -> bytes:
    return _verdict(_NF_DROP)


def jump(chain: str) -> bytes:
    return _verdict(_NFT_JUMP, text(_NFTA_VERDICT_CHAIN, chain))


def value(data: bytes) -> bytes:
    """What is compared with, or a map's key or value."""
    return attribute(_NFTA_DATA_VALUE, data)


def _verdict(code: int, chain: bytes = b"") -> bytes:
    verdict = nested(_NFTA_DATA_VERDICT, network32(_NFTA_VERDICT_CODE, code), chain)
    return _expression("immediate", network32(1, _NFT_REG_VERDICT) + nested(2, verdict))


def _address_in(place: tuple[int, int], network: Network) -> bytes:
    offset, length = place
    expressions = _payload(_NFT_PAYLOAD_NETWORK_HEADER, offset, length, 0)
    if network.prefixlen < network.max_prefixlen:
        expressions += _mask(network.netmask.packed)
    return expressions + _compare(_NFT_CMP_EQ, network.network_address.packed)


def _meta(key: int, register: int = 0) -> bytes:
    return _expression("meta", network32(1, REGISTER + register) + network32(2, key))


def _payload(base: int, offset: int, length: int, register: int) -> bytes:
    data = network32(1, REGISTER + register) + network32(2, base) + network32(3, offset) + network32(4, length)
    return _expression("payload", data)


def _mask(mask: bytes) -> bytes:
    data = network32(1, REGISTER) + network32(2, REGISTER) + network32(3, len(mask))
    data += nested(4, value(mask)) + nested(5, value(bytes(len(mask))))
    return _expression("bitwise", data)


def _compare(operation: int, data: bytes) -> bytes:
    return _expression("cmp", network32(1, REGISTER) + network32(2, operation) + nested(3, value(data)))


def _expression(name: str, data: bytes) -> bytes:
    return nested(_NFTA_LIST_ELEM, text(_NFTA_EXPR_NAME, name), nested(_NFTA_EXPR_DATA, data))
