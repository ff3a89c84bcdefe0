"""Forgetting connections that the kernel tracks, so that their next packet meets the rules of now.

TCP needs none of it: what has no other end begins anew. A UDP client that goes on sending keeps its entry alive, and
with it the translation of the time when it was made.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from trikubelet.linux.netlink.messages import Request, attribute, native32, nested

if TYPE_CHECKING:
    from trikubelet.linux.netlink.routes import Address

_NFNL_SUBSYS_CTNETLINK: Final = 1
_IPCTNL_MSG_CT_DELETE: Final = 2
_CTA_TUPLE_ORIG: Final = 1
_CTA_TUPLE_REPLY: Final = 2
_CTA_FILTER: Final = 25
_CTA_TUPLE_IP: Final = 1
_CTA_TUPLE_PROTO: Final = 2
_CTA_IP_V4_SRC: Final = 1
_CTA_IP_V6_SRC: Final = 3
_CTA_PROTO_NUM: Final = 1
_CTA_PROTO_SRC_PORT: Final = 2
_CTA_PROTO_DST_PORT: Final = 3
_IPPROTO_UDP: Final = 17
_FAMILIES: Final = {4: 2, 6: 10}

_BY_SOURCE: Final = 1 << 0
_BY_PROTOCOL: Final = 1 << 3
_BY_SOURCE_PORT: Final = 1 << 4
_BY_DESTINATION_PORT: Final = 1 << 5
"""Which fields of a tuple have to be equal (the kernel's CTA_FILTER_F_…), in its own byte order."""


def forget_udp_to_port(version: int, port: int) -> Request:
    """Forget what was sent by UDP to this port of any address."""
    wanted = nested(
        _CTA_TUPLE_PROTO,
        attribute(_CTA_PROTO_NUM, bytes([_IPPROTO_UDP])),
        attribute(_CTA_PROTO_DST_PORT, struct.pack("!H", port)),
    )
    chosen = native32(1, _BY_PROTOCOL | _BY_DESTINATION_PORT) + native32(2, 0)
    return _forget(version, nested(_CTA_TUPLE_ORIG, wanted), chosen, f"to port {port}")


def forget_udp_answered_by(address: Address, port: int) -> Request:
    """Forget what is answered by UDP from this address and port, whatever it was sent to."""
    kind = _CTA_IP_V4_SRC if address.version == 4 else _CTA_IP_V6_SRC
    wanted = nested(_CTA_TUPLE_IP, attribute(kind, address.packed)) + nested(
        _CTA_TUPLE_PROTO,
        attribute(_CTA_PROTO_NUM, bytes([_IPPROTO_UDP])),
        attribute(_CTA_PROTO_SRC_PORT, struct.pack("!H", port)),
    )
    chosen = native32(1, 0) + native32(2, _BY_SOURCE | _BY_PROTOCOL | _BY_SOURCE_PORT)
    return _forget(address.version, nested(_CTA_TUPLE_REPLY, wanted), chosen, f"answered by {address} port {port}")


def _forget(version: int, tuples: bytes, chosen: bytes, which: str) -> Request:
    frame = struct.pack("!BBH", _FAMILIES[version], 0, 0)
    body = frame + tuples + nested(_CTA_FILTER, chosen)
    return Request(_NFNL_SUBSYS_CTNETLINK << 8 | _IPCTNL_MSG_CT_DELETE, body, about=f"forget UDP {which}")
