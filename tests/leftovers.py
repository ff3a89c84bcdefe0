"""What a run of the tests left on the machine: links, nf_tables tables, mounts, processes, network namespaces, cgroups.

Links, tables and sysctls are those of the network namespace of who asks.
"""

from __future__ import annotations

import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from tests.cgroup_folders import cgroups_with
from tests.embedded.runtime_node import mounts_with, processes_with
from trikubelet.embedded.network.bridge.names import Names
from trikubelet.linux.netlink import nftables
from trikubelet.linux.netlink.client import NETLINK_NETFILTER, NetlinkSocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

LINKS: Final = ("tkb-", "tv", "br-", "veth", "cni")
TABLES: Final = "tkb-"
KEEPERS: Final = "trikubelet-"
"""Cgroups that keepers and tests make."""
FORWARDING: Final = ("ipv4/ip_forward", "ipv6/conf/all/forwarding")
NAMED_NAMESPACES: Final = Path("/run/netns")
CONTAINERD_STATES: Final = "br-test*"
"""In /run, folders of the containerds of test sessions, called as their bridges."""


def outside() -> set[str]:
    """Links, tables, named network namespaces, cgroups and states of containerds of the kind that tests make.

    Whether packets are forwarded is none of it: CNI's plugin for bridges switches that on, and never off.
    """
    found = {f"link {name}" for _, name in socket.if_nameindex() if name.startswith(LINKS)}
    if NAMED_NAMESPACES.is_dir():
        found |= {f"network namespace {path.name}" for path in NAMED_NAMESPACES.iterdir()}
    found |= {f"nf_tables table {name}" for name in tables() if name.startswith(TABLES)}
    found |= {f"cgroup {path}" for path in cgroups_with(KEEPERS)}
    return found | {f"folder {path}" for path in Path("/run").glob(CONTAINERD_STATES)}


def tables() -> list[str]:
    """Names of all tables of nf_tables. Nobody but root may ask for them, or make one."""
    return _run(_tables) if os.geteuid() == 0 else []


def _run(ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Also within a test that is run by Trio: in a thread, which is in the network namespace of who asks."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(trio.run, ask, *arguments).result()


def forwarding() -> dict[str, str]:
    """What decides whether packets are forwarded; without IPv6 only half of it."""
    files = {name: Path("/proc/sys/net") / name for name in FORWARDING}
    return {name: file.read_text().strip() for name, file in files.items() if file.exists()}


def below(folder: Path) -> set[str]:
    """Mounts in the folder, and processes that have it in their command line."""
    marker = f"{folder}/"
    mounts = {f"mount {line.split()[1]}" for line in mounts_with(marker)}
    return mounts | {f"process {pid}" for pid in processes_with(marker)}


def of_runtime(root: Path) -> list[str]:
    """Links and tables of the bridge that an embedded runtime in that folder makes."""
    names = Names(str(root))
    links = [name for _, name in socket.if_nameindex() if name == names.bridge or name.startswith(names.veths)]
    return [f"link {name}" for name in links] + [f"nf_tables table {name}" for name in tables() if name == names.table]


def remove_network(root: Path) -> None:
    """What `of_runtime` finds: nobody is there any more to do it."""
    names = Names(str(root))
    for what in of_runtime(root):
        kind, _, name = what.rpartition(" ")
        if kind == "link":  # a pod's may be gone with its namespace
            subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
        else:
            _run(_delete_table, names.table)


async def _delete_table(name: str) -> None:
    with _netfilter() as netfilter:
        await netfilter.transact(nftables.NFNL_SUBSYS_NFTABLES, nftables.delete_table(nftables.INET, name))


def _netfilter() -> NetlinkSocket:
    return NetlinkSocket(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_NETFILTER))


async def _tables() -> list[str]:
    with _netfilter() as netfilter:
        names = [nftables.decode_table_name(each) for each in await netfilter.dump(nftables.list_tables())]
    return [name for name in names if name is not None]
