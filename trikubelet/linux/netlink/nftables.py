"""Tables, chains, rules and maps of nf_tables.

Changes go to `NetlinkSocket.transact(NFNL_SUBSYS_NFTABLES, …)`. Within one transaction a thing can be used that an
earlier change of it makes, so `replace_table` and what fills it replace all rules at once, with no moment without them.
"""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.linux.netlink.expressions import value
from trikubelet.linux.netlink.messages import (
    NLM_F_APPEND,
    NLM_F_CREATE,
    Request,
    attribute,
    decode_attribute_list,
    decode_attributes,
    decode_text,
    nested,
    network32,
    text,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trikubelet.linux.netlink.messages import Message

NFNL_SUBSYS_NFTABLES: Final = 10
INET: Final = 1
"""The family of tables for IPv4 and IPv6 at once."""

HOOK_PREROUTING: Final = 0
HOOK_FORWARD: Final = 2
HOOK_OUTPUT: Final = 3
HOOK_POSTROUTING: Final = 4
PRIORITY_RAW: Final = -300
PRIORITY_DNAT: Final = -100
PRIORITY_SNAT: Final = 100

_NFT_MSG_NEWTABLE: Final = 0
_NFT_MSG_DELTABLE: Final = 2
_NFT_MSG_NEWCHAIN: Final = 3
_NFT_MSG_GETCHAIN: Final = 4
_NFT_MSG_NEWRULE: Final = 6
_NFT_MSG_GETRULE: Final = 7
_NFT_MSG_DELRULE: Final = 8
_NFT_MSG_NEWSET: Final = 9
_NFT_MSG_NEWSETELEM: Final = 12
_NFT_MSG_GETSETELEM: Final = 13
_NFT_MSG_DELSETELEM: Final = 14
_NFT_MSG_GETGEN: Final = 16
_NFT_MSG_GETTABLE: Final = 1

_NFTA_TABLE_NAME: Final = 1
_NFTA_TABLE_USERDATA: Final = 6
_NFTA_CHAIN_TABLE: Final = 1
_NFTA_CHAIN_NAME: Final = 3
_NFTA_CHAIN_HOOK: Final = 4
_NFTA_CHAIN_POLICY: Final = 5
_NFTA_CHAIN_TYPE: Final = 7
_NFTA_HOOK_HOOKNUM: Final = 1
_NFTA_HOOK_PRIORITY: Final = 2
_NFTA_RULE_TABLE: Final = 1
_NFTA_RULE_CHAIN: Final = 2
_NFTA_RULE_HANDLE: Final = 3
_NFTA_RULE_EXPRESSIONS: Final = 4
_NFTA_RULE_USERDATA: Final = 7
_NFTA_SET_TABLE: Final = 1
_NFTA_SET_NAME: Final = 2
_NFTA_SET_FLAGS: Final = 3
_NFTA_SET_KEY_TYPE: Final = 4
_NFTA_SET_KEY_LEN: Final = 5
_NFTA_SET_DATA_TYPE: Final = 6
_NFTA_SET_DATA_LEN: Final = 7
_NFTA_SET_ID: Final = 10
_NFTA_LIST_ELEM: Final = 1
_NFTA_ELEM_KEY: Final = 1
_NFTA_ELEM_DATA: Final = 2
_NFTA_ELEM_USERDATA: Final = 6
_NFTA_ELEM_LIST_TABLE: Final = 1
_NFTA_ELEM_LIST_SET: Final = 2
_NFTA_ELEM_LIST_ELEMENTS: Final = 3
_NFT_SET_MAP: Final = 0x8
_NF_DROP: Final = 0
_COMMENT: Final = 0
"""In the user data of tables, rules and elements: where `nft` and iptables keep a comment."""
_LONGEST_COMMENT: Final = 127
_ELEMENTS_AT_ONCE: Final = 256
"""They have to fit into an attribute of 64 KiB."""

_FRAME: Final = struct.Struct("!BBH")


@frozen
class Type:
    """A type of data as `nft list ruleset` shows it: its number there, and its length."""

    number: int
    length: int


ADDRESS4: Final = Type(7, 4)
ADDRESS6: Final = Type(8, 16)
PROTOCOL: Final = Type(12, 1)
PORT: Final = Type(13, 2)


@frozen
class Element:
    """An entry of a map. Key and value are of parts, each padded to four bytes (`joined`)."""

    key: bytes
    data: bytes = b""
    comment: str = attrs.field(default="", eq=False)


@frozen(kw_only=True)
class Chain:
    """A chain that is called by a hook."""

    family: int
    table: str
    name: str
    hook: int
    drops: bool
    """Its policy: what happens to packets that no rule decides about."""


@frozen(kw_only=True)
class Rule:
    """A rule of some chain."""

    handle: int
    comment: str


def joined(*parts: bytes) -> bytes:
    """A key or value of several parts."""
    return b"".join(each + bytes(-len(each) % 4) for each in parts)


def replace_table(family: int, table: str, comment: str) -> list[Request]:
    """An empty table, whether there is one of this name or not."""
    named = text(_NFTA_TABLE_NAME, table)
    body = named + _user_data(_NFTA_TABLE_USERDATA, comment)
    new = _request(_NFT_MSG_NEWTABLE, family, body, NLM_F_CREATE, f"make table {table}")
    return [new, _request(_NFT_MSG_DELTABLE, family, named, 0, f"delete table {table}"), new]


def delete_table(family: int, table: str) -> list[Request]:
    """No such table, whether there is one or not."""
    return replace_table(family, table, "")[:2]


def base_chain(family: int, table: str, chain: str, *, kind: str, hook: int, priority: int) -> Request:
    """A chain that the kernel calls; `kind` is `filter` or `nat`."""
    place = network32(_NFTA_HOOK_HOOKNUM, hook) + attribute(_NFTA_HOOK_PRIORITY, struct.pack("!i", priority))
    body = text(_NFTA_CHAIN_TABLE, table) + text(_NFTA_CHAIN_NAME, chain)
    body += nested(_NFTA_CHAIN_HOOK, place) + text(_NFTA_CHAIN_TYPE, kind)
    return _request(_NFT_MSG_NEWCHAIN, family, body, NLM_F_CREATE, f"make chain {chain} of table {table}")


def called_chain(family: int, table: str, chain: str) -> Request:
    """A chain that rules of others jump to."""
    body = text(_NFTA_CHAIN_TABLE, table) + text(_NFTA_CHAIN_NAME, chain)
    return _request(_NFT_MSG_NEWCHAIN, family, body, NLM_F_CREATE, f"make chain {chain} of table {table}")


def append_rule(family: int, table: str, chain: str, *expressions: bytes) -> Request:
    return _rule(family, table, chain, expressions, "", NLM_F_APPEND)


def insert_rule(family: int, table: str, chain: str, *expressions: bytes, comment: str) -> Request:
    """Before all other rules of its chain."""
    return _rule(family, table, chain, expressions, comment, 0)


def delete_rule(family: int, table: str, chain: str, handle: int) -> Request:
    body = text(_NFTA_RULE_TABLE, table) + text(_NFTA_RULE_CHAIN, chain)
    body += attribute(_NFTA_RULE_HANDLE, struct.pack("!Q", handle))
    return _request(_NFT_MSG_DELRULE, family, body, 0, f"delete rule {handle} of chain {chain} of table {table}")


def make_map(family: int, table: str, name: str, key: Iterable[Type], data: Iterable[Type], identity: int) -> Request:
    """A map from keys of these parts to values of these. `identity`: a number of its own within the transaction."""
    (key_type, key_length), (data_type, data_length) = _concatenated(key), _concatenated(data)
    body = text(_NFTA_SET_TABLE, table) + text(_NFTA_SET_NAME, name) + network32(_NFTA_SET_FLAGS, _NFT_SET_MAP)
    body += network32(_NFTA_SET_KEY_TYPE, key_type) + network32(_NFTA_SET_KEY_LEN, key_length)
    body += network32(_NFTA_SET_DATA_TYPE, data_type) + network32(_NFTA_SET_DATA_LEN, data_length)
    body += network32(_NFTA_SET_ID, identity)
    return _request(_NFT_MSG_NEWSET, family, body, NLM_F_CREATE, f"make map {name} of table {table}")


def add_elements(family: int, table: str, name: str, elements: Iterable[Element]) -> list[Request]:
    """Refused with EEXIST where the map has another value for a key."""
    return [
        _request(_NFT_MSG_NEWSETELEM, family, body, NLM_F_CREATE, f"add to map {name} of table {table}")
        for body in _elements(table, name, elements)
    ]


def delete_elements(family: int, table: str, name: str, elements: Iterable[Element]) -> list[Request]:
    """Refused with ENOENT where one of them is not there."""
    return [
        _request(_NFT_MSG_DELSETELEM, family, body, 0, f"delete from map {name} of table {table}")
        for body in _elements(table, name, [Element(each.key) for each in elements])
    ]


def get_generation() -> Request:
    """The number of the last transaction; refused where the kernel has no nf_tables."""
    return _request(_NFT_MSG_GETGEN, 0, b"", 0, "ask for nf_tables")


def list_chains() -> Request:
    return _request(_NFT_MSG_GETCHAIN, 0, b"", 0, "list chains")


def list_tables() -> Request:
    return _request(_NFT_MSG_GETTABLE, 0, b"", 0, "list tables")


def list_rules(family: int, table: str, chain: str) -> Request:
    body = text(_NFTA_RULE_TABLE, table) + text(_NFTA_RULE_CHAIN, chain)
    return _request(_NFT_MSG_GETRULE, family, body, 0, f"list rules of chain {chain} of table {table}")


def list_elements(family: int, table: str, name: str) -> Request:
    body = text(_NFTA_ELEM_LIST_TABLE, table) + text(_NFTA_ELEM_LIST_SET, name)
    return _request(_NFT_MSG_GETSETELEM, family, body, 0, f"list map {name} of table {table}")


def decode_table_name(message: Message) -> str | None:
    """Its name, or None for a message about something else. Raises MalformedMessageError."""
    if message.kind != _kind(_NFT_MSG_NEWTABLE):
        return None
    return decode_text(_decode(message)[1].get(_NFTA_TABLE_NAME, b""))


def decode_chain(message: Message) -> Chain | None:
    """A chain with a hook, or None for anything else. Raises MalformedMessageError."""
    if message.kind != _kind(_NFT_MSG_NEWCHAIN):
        return None
    family, found = _decode(message)
    place = decode_attributes(found.get(_NFTA_CHAIN_HOOK, b""))
    if _NFTA_HOOK_HOOKNUM not in place:
        return None
    policy = unpack("!I", found[_NFTA_CHAIN_POLICY])[0] if _NFTA_CHAIN_POLICY in found else None
    return Chain(
        family=family,
        table=decode_text(found.get(_NFTA_CHAIN_TABLE, b"")),
        name=decode_text(found.get(_NFTA_CHAIN_NAME, b"")),
        hook=unpack("!I", place[_NFTA_HOOK_HOOKNUM])[0],
        drops=policy == _NF_DROP,
    )


def decode_rule(message: Message) -> Rule | None:
    """A rule, or None for anything else. Raises MalformedMessageError."""
    if message.kind != _kind(_NFT_MSG_NEWRULE):
        return None
    _, found = _decode(message)
    (handle,) = unpack("!Q", found.get(_NFTA_RULE_HANDLE, b""))
    return Rule(handle=handle, comment=_decode_comment(found.get(_NFTA_RULE_USERDATA, b"")))


def decode_elements(message: Message) -> list[Element]:
    """The elements of a map, or none for a message about anything else. Raises MalformedMessageError."""
    if message.kind != _kind(_NFT_MSG_NEWSETELEM):
        return []
    _, found = _decode(message)
    elements = []
    for element in _decode_entries(found.get(_NFTA_ELEM_LIST_ELEMENTS, b"")):
        comment = _decode_comment(element.get(_NFTA_ELEM_USERDATA, b""))
        elements.append(
            Element(_decode_value(element, _NFTA_ELEM_KEY), _decode_value(element, _NFTA_ELEM_DATA), comment)
        )
    return elements


def _decode_entries(data: bytes) -> Iterator[dict[int, bytes]]:
    """The attributes of each entry of a list. Raises MalformedMessageError."""
    for kind, entry in decode_attribute_list(data):
        if kind == _NFTA_LIST_ELEM:
            yield decode_attributes(entry)


def _concatenated(types: Iterable[Type]) -> tuple[int, int]:
    """The number and the length of a key of several parts: six bits for each type, four bytes or more for each part."""
    number = length = 0
    for each in types:
        number = number << 6 | each.number
        length += each.length + -each.length % 4
    return number, length


def _elements(table: str, name: str, elements: Iterable[Element]) -> Iterator[bytes]:
    encoded = [_element(each) for each in elements]
    for at in range(0, len(encoded), _ELEMENTS_AT_ONCE):
        chunk = itertools.islice(encoded, at, at + _ELEMENTS_AT_ONCE)
        yield (
            text(_NFTA_ELEM_LIST_TABLE, table)
            + text(_NFTA_ELEM_LIST_SET, name)
            + nested(_NFTA_ELEM_LIST_ELEMENTS, *chunk)
        )


def _element(element: Element) -> bytes:
    body = nested(_NFTA_ELEM_KEY, value(element.key))
    body += nested(_NFTA_ELEM_DATA, value(element.data)) if element.data else b""
    return nested(_NFTA_LIST_ELEM, body, _user_data(_NFTA_ELEM_USERDATA, element.comment))


def _rule(family: int, table: str, chain: str, expressions: tuple[bytes, ...], comment: str, flags: int) -> Request:
    body = text(_NFTA_RULE_TABLE, table) + text(_NFTA_RULE_CHAIN, chain)
    body += nested(_NFTA_RULE_EXPRESSIONS, *expressions) + _user_data(_NFTA_RULE_USERDATA, comment)
    about = f"make a rule in chain {chain} of table {table}"
    return _request(_NFT_MSG_NEWRULE, family, body, NLM_F_CREATE | flags, about)


def _user_data(kind: int, comment: str) -> bytes:
    """A comment, cut to what fits, where every tool of nftables shows it."""
    if not comment:
        return b""
    words = comment.encode()[:_LONGEST_COMMENT].decode(errors="ignore").encode() + b"\0"
    return attribute(kind, bytes([_COMMENT, len(words)]) + words)


def _decode_comment(data: bytes) -> str:
    while len(data) >= 2:
        kind, length = data[0], data[1]
        if kind == _COMMENT:
            return data[2 : 2 + length].rstrip(b"\0").decode(errors="replace")
        data = data[2 + length :]
    return ""


def _decode_value(element: dict[int, bytes], kind: int) -> bytes:
    return decode_attributes(element.get(kind, b"")).get(1, b"")


def _decode(message: Message) -> tuple[int, dict[int, bytes]]:
    family, _, _ = unpack(_FRAME.format, message.body)
    return family, decode_attributes(message.body[_FRAME.size :])


def _kind(kind: int) -> int:
    return NFNL_SUBSYS_NFTABLES << 8 | kind


def _request(kind: int, family: int, body: bytes, flags: int, about: str) -> Request:
    return Request(_kind(kind), _FRAME.pack(family, 0, 0) + body, flags, f"nf_tables: {about}")
