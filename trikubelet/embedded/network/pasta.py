"""Pods' networks by pasta: for whoever is not root. Each pod has a program that speaks for it on the machine's network.

pasta gives the pod's namespace an interface, and opens sockets of the machine for what the pod sends. So a pod reaches
what the machine reaches, other than its loopback, and `hostPort` is a socket of the machine's. Nothing else leads into
a pod: its address is its own, but no other knows the way there. The keeper starts pasta and ends it with the pod.

An address is given to each pod all the same, so that the agent's probes can tell pods apart: they connect by a socket
in the pod's network (`EmbeddedRuntime.reach`).
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import shutil
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.network.bridge.addresses import choose_ipv4, gateway, next_free, parse_subnets
from trikubelet.embedded.network.model import Attachment, NetworkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.embedded.network.model import NetworkNamespace, PodNetworkSpec, PortMapping
    from trikubelet.linux.netlink.routes import Address

StartHelper = Callable[[str, Sequence[str], int], Awaitable[int]]
NAMESPACE: Final = "{namespace}"
"""In the place of the namespace's path, which is the keeper's to know."""
_PROGRAM: Final = "pasta"
_INTERFACE: Final = "eth0"
_TUN: Final = Path("/dev/net/tun")
_DEADLINE: Final = 20.0
_NEW_ADDRESSES: Final = 0x10
"""RTMGRP_IPV4_IFADDR."""
_SIOCGIFADDR: Final = 0x8915
_MOST_SAID: Final = 4096
_NOISE: Final = "Failed to send"
"""What it says where there is no system log."""


class PastaNetwork:
    """`PodNetwork` by a process for each pod."""

    def __init__(
        self,
        root: str,
        *,
        subnets: Sequence[str] = (),
        start: StartHelper | None = None,
    ) -> None:
        """`start(sandbox, argv, output)` has the keeper run a program for a pod, and returns a pidfd of it.

        It raises NetworkError; None: nothing is ever started. `root` is the runtime's folder. Raises NetworkError for
        bad subnets.
        """
        ipv4 = [subnet for subnet in parse_subnets(subnets) if subnet.version == 4]
        self._subnet = ipv4[0] if ipv4 else choose_ipv4(root, ())
        self._start = start
        self._addresses: dict[str, Address] = {}
        """By sandbox id."""
        self._last: Address | None = None

    async def problem(self) -> str:
        """Why no pod can have this network; empty when one can."""
        await trio.lowlevel.checkpoint()
        if os.geteuid() == 0 and _is_first_user_namespace():
            return "pasta is for agents without root"
        if shutil.which(_PROGRAM) is None:
            return "pasta is not installed (Debian's package is passt)"
        if not os.access(_TUN, os.R_OK | os.W_OK):
            return f"this user may not open {_TUN}, which pasta needs: chmod 666 {_TUN}"
        if not _has_default_route():
            return "pasta needs a default route, and the machine has none"
        return ""

    async def set_subnets(self, subnets: Sequence[str]) -> None:
        """See `PodNetwork`. A cluster cannot reach these pods: they have the addresses that they were made with."""
        await trio.lowlevel.checkpoint()

    async def attach(self, spec: PodNetworkSpec, namespace: NetworkNamespace) -> Attachment:
        """See `PodNetwork`. What was started ends with the namespace, which the keeper lets go after a failure."""
        if spec.sandbox_id in self._addresses:
            raise NetworkError("it is attached already, or was not taken down")
        _refuse_others(spec.ports)
        address = next_free(self._subnet, set(self._addresses.values()), self._last)
        self._addresses[spec.sandbox_id] = self._last = address
        try:
            with trio.fail_after(_DEADLINE):
                await self._run(spec, address, namespace)
        except trio.TooSlowError:
            self._addresses.pop(spec.sandbox_id, None)
            raise NetworkError(f"pasta did not set the pod's network up within {_DEADLINE:g} s") from None
        except BaseException:
            self._addresses.pop(spec.sandbox_id, None)
            raise
        return Attachment(ips=(str(address),), interface=_INTERFACE)

    async def detach(
        self, spec: PodNetworkSpec, attachment: Attachment | None, namespace: NetworkNamespace | None
    ) -> None:
        """See `PodNetwork`. The process ends with the namespace."""
        await trio.lowlevel.checkpoint()
        self._addresses.pop(spec.sandbox_id, None)

    async def reconcile(self, pods: Mapping[str, tuple[PodNetworkSpec, Attachment | None]]) -> frozenset[str]:
        """See `PodNetwork`: the keeper has ended what belongs to no pod."""
        await trio.lowlevel.checkpoint()
        for sandbox_id, (_, attachment) in pods.items():
            if attachment is not None:
                self._addresses[sandbox_id] = ipaddress.ip_address(attachment.ips[0])
        return frozenset()

    async def close(self) -> None:
        """See `PodNetwork`: nothing of it is on the machine."""
        await trio.lowlevel.checkpoint()

    def sandbox_out_of_reach(self, address: str) -> str | None:
        """See `PodNetwork`: every pod is."""
        return next((sandbox for sandbox, held in self._addresses.items() if str(held) == address), None)

    async def _run(self, spec: PodNetworkSpec, address: Address, namespace: NetworkNamespace) -> None:
        """Start pasta, and wait until the pod has its address."""
        if self._start is None:
            raise NetworkError("pasta cannot be started here")
        output = os.memfd_create("pasta-output", os.MFD_CLOEXEC)
        try:
            with await namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as news:
                news.bind((0, _NEW_ADDRESSES))
                process = await self._start(spec.sandbox_id, self._command(spec, address), output)
                try:
                    await self._wait(news, process, namespace, output)
                finally:
                    trio.lowlevel.notify_closing(process)
                    os.close(process)
        finally:
            os.close(output)

    def _command(self, spec: PodNetworkSpec, address: Address) -> list[str]:
        program = shutil.which(_PROGRAM)
        if program is None:
            raise NetworkError("pasta is not installed (Debian's package is passt)")
        return [
            program,
            *("--foreground", "--quiet", "--no-netns-quit", "--netns", NAMESPACE),
            *("--config-net", "--ns-ifname", _INTERFACE, "--no-map-gw"),
            *("--address", str(address), "--netmask", str(self._subnet.prefixlen)),
            *("--gateway", str(gateway(self._subnet).ip)),
            *_ports("--tcp-ports", [port for port in spec.ports if port.protocol == "tcp"]),
            *_ports("--udp-ports", [port for port in spec.ports if port.protocol == "udp"]),
            *("--tcp-ns", "none", "--udp-ns", "none"),
        ]

    async def _wait(self, news: socket.socket, process: int, namespace: NetworkNamespace, output: int) -> None:
        with await namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            while not _has_address(asker):
                if not await _first_readable(news, process):
                    raise NetworkError(f"pasta ended: {_said(output)}")
                news.recv(_MOST_SAID)


async def _first_readable(news: socket.socket, process: int) -> bool:
    """Wait for either; False when it is the end of the process."""
    ended = False

    async def watch() -> None:
        nonlocal ended
        await trio.lowlevel.wait_readable(process)
        ended = True
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.lowlevel.wait_readable(news)
        nursery.cancel_scope.cancel()
    return not ended


def _has_address(asker: socket.socket) -> bool:
    request = struct.pack("16s24x", _INTERFACE.encode())
    try:
        fcntl.ioctl(asker, _SIOCGIFADDR, request)
    except OSError:
        return False  # no such interface, or no address yet
    return True


def _said(output: int) -> str:
    text = os.pread(output, _MOST_SAID, 0).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_NOISE)]
    return "; ".join(lines) or "it did not say why"


def _refuse_others(ports: Sequence[PortMapping]) -> None:
    """Raises NetworkError for what pasta cannot forward."""
    for port in ports:
        if port.protocol not in ("tcp", "udp"):
            raise NetworkError(f"host port {port.host_port}/{port.protocol}: pasta forwards tcp and udp alone")


def _ports(flag: str, ports: Sequence[PortMapping]) -> list[str]:
    if not ports:
        return [flag, "none"]
    found = []
    for port in ports:
        where = f"{port.host_ip}/" if port.host_ip not in ("", "0.0.0.0", "::") else ""
        found += [flag, f"{where}{port.host_port}:{port.container_port}"]
    return found


def _is_first_user_namespace() -> bool:
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def _has_default_route() -> bool:
    try:
        lines = Path("/proc/net/route").read_text().splitlines()[1:]
        return any(line.split()[1] == "00000000" for line in lines)
    except OSError:
        return False
