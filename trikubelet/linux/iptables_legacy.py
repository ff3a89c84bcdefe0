"""What old iptables' table `filter` does with packets that are forwarded and that none of its rules decides about.

Its rules are no part of nf_tables: iptables-legacy reads and writes them as one block of memory, by options of a socket
(linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h). Only the chain's policy is read here.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from typing import Any, Final

_GET_INFO: Final = 64
_GET_ENTRIES: Final = 65
_INFO: Final = struct.Struct("=32sI5I5III")
_HEAD: Final = struct.Struct("=32sI4x")
_TARGET_OFFSET: Final = {socket.AF_INET: 88, socket.AF_INET6: 140}
"""Of an entry: where it says at which offset its target begins."""
_TARGET_HEAD: Final = 32
_FORWARD: Final = 2
_DROP: Final = -1
"""How NF_DROP is written as a verdict."""
_LEVEL: Final = {socket.AF_INET: socket.IPPROTO_IP, socket.AF_INET6: socket.IPPROTO_IPV6}


def forward_policy_drops(opened: socket.socket) -> bool:
    """Whether the policy of FORWARD is DROP. The socket is of the family that is asked about, and of any kind.

    To ask makes the table where there is none: look into /proc/net/ip_tables_names first. Raises OSError.
    """
    info = _INFO.unpack(_read_option(opened, _GET_INFO, b"filter".ljust(_INFO.size, b"\0")))
    policies, size = info[7:12], info[13]
    entries = _read_option(opened, _GET_ENTRIES, _HEAD.pack(b"filter", size) + bytes(size))[_HEAD.size :]
    policy_at = policies[_FORWARD]
    try:
        (target_at,) = struct.unpack_from("=H", entries, policy_at + _TARGET_OFFSET[opened.family])
        (verdict,) = struct.unpack_from("=i", entries, policy_at + target_at + _TARGET_HEAD)
    except struct.error as error:
        raise OSError(f"a table of {size} bytes whose policy would be at {policy_at}: {error}") from error
    return bool(verdict == _DROP)


def _read_option(opened: socket.socket, option: int, question: bytes) -> bytes:
    """Python's own `getsockopt` cannot ask for anything in particular."""
    libc: Any = ctypes.CDLL(None, use_errno=True)
    answer = ctypes.create_string_buffer(question, len(question))
    length = ctypes.c_uint32(len(question))
    if libc.getsockopt(opened.fileno(), _LEVEL[opened.family], option, answer, ctypes.byref(length)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot read iptables' table filter: {os.strerror(code)}")
    return answer.raw[: length.value]
