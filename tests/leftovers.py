"""What a run of the tests left on the machine: links, nf_tables tables, mounts, processes, network namespaces."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

import trio

from tests.embedded.runtime_node import mounts_with, processes_with
from trikubelet.linux.netlink import nftables
from trikubelet.linux.netlink.client import NETLINK_NETFILTER, NetlinkSocket

LINKS: Final = ("tkb-", "br-test", "veth", "cni")
TABLES: Final = "tkb-"
NAMED_NAMESPACES: Final = Path("/run/netns")
CONTAINERD_STATES: Final = "br-test*"
"""In /run, folders of the containerds of test sessions, called as their bridges."""


def outside() -> set[str]:
    """Links, tables, named network namespaces and states of containerds of the kind that tests make."""
    found = {f"link {name}" for _, name in socket.if_nameindex() if name.startswith(LINKS)}
    if NAMED_NAMESPACES.is_dir():
        found |= {f"network namespace {path.name}" for path in NAMED_NAMESPACES.iterdir()}
    if os.geteuid() == 0:
        found |= {f"nf_tables table {name}" for name in trio.run(_tables)}
    return found | {f"folder {path}" for path in Path("/run").glob(CONTAINERD_STATES)}


def below(folder: Path) -> set[str]:
    """Mounts in the folder, and processes that have it in their command line."""
    marker = f"{folder}/"
    mounts = {f"mount {line.split()[1]}" for line in mounts_with(marker)}
    return mounts | {f"process {pid}" for pid in processes_with(marker)}


async def _tables() -> list[str]:
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_NETFILTER)
    with NetlinkSocket(channel) as netfilter:
        names = [nftables.decode_table_name(each) for each in await netfilter.dump(nftables.list_tables())]
    return [name for name in names if name is not None and name.startswith(TABLES)]
