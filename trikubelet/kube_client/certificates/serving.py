"""The certificate that the node shows to its clients: one of three kinds, behind one interface.

    tlsCertFile, tlsPrivateKeyFile    files that somebody else keeps current: `WatchedPair`
    serverTLSBootstrap                asked for at the API server, for the node's addresses: `serving_manager`
    neither                           made by the node itself, once (`self_signed.py`), read by a `WatchedPair`

No controller approves requests for serving certificates: until an administrator does, there is none.
"""

from __future__ import annotations

import ipaddress
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Protocol

import trio

from trikubelet.kube_client.certificates.requests import SERVER_AUTH, SERVING_SIGNER, Wanted, wanted_for_node
from trikubelet.kube_client.certificates.rotation import CertificateManager
from trikubelet.kube_client.certificates.store import (
    CertificateError,
    CertificateStore,
    CertifiedKey,
    load_files,
)
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trikubelet.api import NodeAddress
    from trikubelet.clock import WallClock
    from trikubelet.kube_client.types import ApiClient

log = get_logger("certificates")

STORE_PREFIX: Final = "kubelet-server"
LOOK: Final = 10.0
"""Seconds between two looks at files."""


class ServingCertificate(Protocol):
    """What a server needs to know of its certificate."""

    @property
    def current(self) -> CertifiedKey | None: ...

    def on_change(self, listener: Callable[[], None]) -> None: ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...


class WatchedPair:
    """A pair in files that may be replaced. What is no pair is not taken: the last good one stays."""

    def __init__(self, certificate_file: Path, key_file: Path, *, watches: bool = True) -> None:
        """Reads the files; raises CertificateError. Unless it `watches`, the first pair is the only one."""
        self._watches = watches
        self._certificate_file, self._key_file = certificate_file, key_file
        self._seen = self._signature()
        self._current = load_files(certificate_file, key_file)
        self._listeners: list[Callable[[], None]] = []

    @property
    def current(self) -> CertifiedKey:
        """The last good pair, even when it has expired: clients of the node seldom look."""
        return self._current

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called synchronously when `current` is another pair. It must not block.

        Synchronously, so that no connection is made with the old pair afterwards.
        """
        self._listeners.append(listener)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at the files from time to time, until cancelled."""
        task_status.started()
        while self._watches:
            await trio.sleep(LOOK)
            self.reload()

    def reload(self) -> None:
        """Read the files again if they have changed."""
        seen = self._signature()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            new = load_files(self._certificate_file, self._key_file)
        except CertificateError as error:
            log.warning("the serving certificate cannot be read again, the last good one stays", error=str(error))
            return
        if new.pair == self._current.pair:
            return
        self._current = new
        log.info("new serving certificate", file=str(self._certificate_file))
        for listener in self._listeners:
            listener()

    def _signature(self) -> list[tuple[int, int, int, int] | None]:
        return [_signature(path) for path in (self._certificate_file, self._key_file)]


def _signature(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def names_and_addresses(addresses: Sequence[NodeAddress]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The DNS names and the IP addresses of a node, each sorted and once. What is no address is left out."""
    names, ips = set(), set()
    for entry in addresses:
        ip = _ip(entry.address)
        if entry.type in ("Hostname", "InternalIP", "ExternalIP") and ip is not None:
            ips.add(ip)
        elif entry.type in ("Hostname", "InternalDNS", "ExternalDNS") and entry.address:
            names.add(entry.address)
    return tuple(sorted(names)), tuple(sorted(ips))


def _ip(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def wanted_for_serving(
    node_name: str, addresses: Sequence[NodeAddress], *, names_suffice: bool = False
) -> Wanted | None:
    """What a node's serving certificate has to say; None while the node has no IP address.

    `names_suffice`: a DNS name is enough (feature gate AllowDNSOnlyNodeCSR).
    """
    names, ips = names_and_addresses(addresses)
    return wanted_for_node(node_name, names, ips) if ips or (names_suffice and names) else None


def serving_manager(
    client: ApiClient,
    node_name: str,
    folder: Path,
    addresses: Callable[[], Sequence[NodeAddress]],
    *,
    clock: WallClock,
    names_suffice: bool = False,
    rng: random.Random | None = None,
) -> CertificateManager:
    """Asks for serving certificates. Call `check_soon` when the node's addresses change. Raises CertificateError."""
    return CertificateManager(
        CertificateStore(folder, STORE_PREFIX, clock=clock),
        client=lambda _: nullcontext(client),
        wanted=lambda: wanted_for_serving(node_name, addresses(), names_suffice=names_suffice),
        signer=SERVING_SIGNER,
        purpose=SERVER_AUTH,
        clock=clock,
        rng=rng,
    )
