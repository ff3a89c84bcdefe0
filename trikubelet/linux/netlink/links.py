"""Network devices over rtnetlink: bridges, veth pairs, and what is known of any device."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.linux.netlink.messages import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    MalformedMessageError,
    Request,
    attribute,
    decode_attributes,
    decode_text,
    native32,
    nested,
    text,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.linux.netlink.messages import Message

_RTM_NEWLINK: Final = 16
_RTM_DELLINK: Final = 17
_RTM_GETLINK: Final = 18
_RTM_SETLINK: Final = 19

_AF_INET: Final = 2
_IFF_UP: Final = 0x1
_IFLA_ADDRESS: Final = 1
_IFLA_IFNAME: Final = 3
_IFLA_MTU: Final = 4
_IFLA_LINK: Final = 5
_IFLA_MASTER: Final = 10
_IFLA_OPERSTATE: Final = 16
_IF_OPER_UP: Final = b"\6"
_IFLA_LINKINFO: Final = 18
_IFLA_IFALIAS: Final = 20
_IFLA_AF_SPEC: Final = 26
_IFLA_NET_NS_FD: Final = 28
_IFLA_EXT_MASK: Final = 29
_IFLA_INFO_KIND: Final = 1
_IFLA_INFO_DATA: Final = 2
_IFLA_INFO_SLAVE_KIND: Final = 4
_IFLA_INFO_SLAVE_DATA: Final = 5
_IFLA_BRPORT_MODE: Final = 4
_IFLA_INET_CONF: Final = 1
_IPV4_DEVCONF_ROUTE_LOCALNET: Final = 26
_VETH_INFO_PEER: Final = 1
_RTEXT_FILTER_SKIP_STATS: Final = 1 << 3

_HEADER: Final = struct.Struct("=BxHiII")
LONGEST_NAME: Final = 15
LONGEST_ALIAS: Final = 255


@frozen(kw_only=True)
class Link:
    """A network device."""

    index: int
    name: str
    kind: str = ""
    """`bridge`, `veth`; empty for hardware and the loopback device."""
    up: bool = False
    """Somebody brought it up."""
    running: bool = False
    """It is up, and so is what it is connected to: it passes packets."""
    master: int = 0
    """The index of the bridge that it is a port of, or 0."""
    peer: int = 0
    """The index of a veth's other end in its own namespace, or 0."""
    mtu: int = 0
    alias: str = ""
    """What somebody wrote on it (`ip link set alias`)."""


def make_bridge(name: str, *, mac: bytes, mtu: int) -> Request:
    """A bridge, not up yet. Its MAC is given, since by default it changes with its ports."""
    body = _header() + text(_IFLA_IFNAME, name) + attribute(_IFLA_ADDRESS, mac) + native32(_IFLA_MTU, mtu)
    body += nested(_IFLA_LINKINFO, text(_IFLA_INFO_KIND, "bridge"))
    return Request(_RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL, f"make bridge {name}")


def make_veth(name: str, *, bridge: int, mtu: int, peer_name: str, peer_mac: bytes, peer_namespace: int) -> Request:
    """A veth pair: one end up and a port of a bridge here, its peer in another network namespace (a descriptor).

    The peer is to be brought up there: the kernel refuses it here, since the pair is not one yet by then.
    """
    peer = _header() + text(_IFLA_IFNAME, peer_name) + attribute(_IFLA_ADDRESS, peer_mac)
    peer += native32(_IFLA_MTU, mtu) + native32(_IFLA_NET_NS_FD, peer_namespace)
    body = _header(flags=_IFF_UP) + text(_IFLA_IFNAME, name) + native32(_IFLA_MTU, mtu) + native32(_IFLA_MASTER, bridge)
    body += nested(
        _IFLA_LINKINFO,
        text(_IFLA_INFO_KIND, "veth"),
        nested(_IFLA_INFO_DATA, nested(_VETH_INFO_PEER, peer)),
    )
    return Request(_RTM_NEWLINK, body, NLM_F_CREATE | NLM_F_EXCL, f"make veth {name}")


def bridge_port(name: str, *, bridge: int) -> Request:
    """Make a device that is there a port of a bridge, and bring it up."""
    body = _header(flags=_IFF_UP) + text(_IFLA_IFNAME, name) + native32(_IFLA_MASTER, bridge)
    return Request(_RTM_SETLINK, body, about=f"make {name} a port of bridge {bridge}")


def hairpin(name: str) -> Request:
    """Let a bridge send back through a port what came from it."""
    mode = nested(_IFLA_INFO_SLAVE_DATA, attribute(_IFLA_BRPORT_MODE, b"\1"))
    body = _header() + text(_IFLA_IFNAME, name)
    body += nested(_IFLA_LINKINFO, text(_IFLA_INFO_SLAVE_KIND, "bridge"), mode)
    return Request(_RTM_NEWLINK, body, about=f"set hairpin mode of {name}")


def set_up(name: str) -> Request:
    return Request(_RTM_SETLINK, _header(flags=_IFF_UP) + text(_IFLA_IFNAME, name), about=f"bring {name} up")


def set_alias(name: str, alias: str) -> Request:
    """Write something on a device, at most `LONGEST_ALIAS` bytes."""
    body = _header() + text(_IFLA_IFNAME, name) + attribute(_IFLA_IFALIAS, alias.encode())
    return Request(_RTM_SETLINK, body, about=f"set alias of {name}")


def allow_local_addresses(name: str) -> Request:
    """Let packets with addresses of 127.0.0.0/8 pass a device (sysctl `route_localnet`)."""
    setting = native32(_IPV4_DEVCONF_ROUTE_LOCALNET, 1)
    body = _header() + text(_IFLA_IFNAME, name)
    body += nested(_IFLA_AF_SPEC, nested(_AF_INET, nested(_IFLA_INET_CONF, setting)))
    return Request(_RTM_SETLINK, body, about=f"set route_localnet of {name}")


def delete_link(name: str) -> Request:
    """Its peer goes with it."""
    return Request(_RTM_DELLINK, _header() + text(_IFLA_IFNAME, name), about=f"delete {name}")


def get_link(name: str) -> Request:
    return Request(_RTM_GETLINK, _header() + text(_IFLA_IFNAME, name), about=f"look for {name}")


def list_links() -> Request:
    """All devices."""
    body = _header() + native32(_IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
    return Request(_RTM_GETLINK, body, about="list network devices")


def decode_link(message: Message) -> Link | None:
    """A device, or None for a message about something else. Raises MalformedMessageError."""
    if message.kind != _RTM_NEWLINK:
        return None
    _, _, index, flags, _ = unpack(_HEADER.format, message.body)
    found = decode_attributes(message.body[_HEADER.size :])
    kind = decode_attributes(found.get(_IFLA_LINKINFO, b"")).get(_IFLA_INFO_KIND, b"")
    return Link(
        index=index,
        name=decode_text(found.get(_IFLA_IFNAME, b"")),
        kind=decode_text(kind),
        up=bool(flags & _IFF_UP),
        running=found.get(_IFLA_OPERSTATE) == _IF_OPER_UP,
        master=unpack("=I", found[_IFLA_MASTER])[0] if _IFLA_MASTER in found else 0,
        peer=unpack("=I", found[_IFLA_LINK])[0] if _IFLA_LINK in found else 0,
        mtu=unpack("=I", found[_IFLA_MTU])[0] if _IFLA_MTU in found else 0,
        alias=decode_text(found.get(_IFLA_IFALIAS, b"")),
    )


def only_link(messages: Sequence[Message]) -> Link:
    """What `get_link` asked for. Raises MalformedMessageError."""
    found = [link for each in messages if (link := decode_link(each)) is not None]
    if len(found) != 1:
        raise MalformedMessageError(f"{len(found)} network devices, where one was expected")
    return found[0]


def _header(*, flags: int = 0) -> bytes:
    return _HEADER.pack(0, 0, 0, flags, flags)
