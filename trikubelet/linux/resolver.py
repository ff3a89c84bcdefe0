"""Where this machine's resolvers are, as seen from another network namespace."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final

RESOLV_CONF: Final = Path("/etc/resolv.conf")
SYSTEMD_RESOLV_CONF: Final = Path("/run/systemd/resolve/resolv.conf")
"""The name servers that systemd-resolved asks itself."""


def resolv_conf_for_pods(path: Path = RESOLV_CONF, upstream: Path = SYSTEMD_RESOLV_CONF) -> Path:
    """The file to read for a pod with a network of its own: `upstream`, where `path` leads to this machine alone.

    A name server on a loopback address cannot be reached from another network. Raises OSError.
    """
    return upstream if leads_nowhere(path) and upstream.exists() else path


def leads_nowhere(path: Path) -> bool:
    """Whether all name servers of a resolv.conf are on loopback addresses. Raises OSError."""
    lines = [line.split() for line in path.read_text(errors="replace").splitlines()]
    servers = [fields[1] for fields in lines if len(fields) > 1 and fields[0] == "nameserver"]
    return bool(servers) and all(map(_is_loopback, servers))


def _is_loopback(server: str) -> bool:
    try:
        return ipaddress.ip_address(server).is_loopback
    except ValueError:
        return False
