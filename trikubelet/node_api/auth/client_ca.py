"""The authorities whose client certificates are accepted: a PEM file that is read again when it changes.

The file is replaced while the agent runs, when an authority is rotated, and what lies there for a moment may be half of
it. The last good bundle stays in use until the next good one. (apiserver: `dynamiccertificates.DynamicFileCAContent`.)
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.formats.pem import pem_blocks
from trikubelet.formats.values import frozen
from trikubelet.kube_client.certificates.reading import certificate_blocks, read_certificate
from trikubelet.linux.inotify import ENTRIES, Inotify, Mask
from trikubelet.telemetry.logs import get_logger

REREAD_SECONDS: Final = 60.0
"""The file is read again so often even without an event (`FileRefreshDuration`)."""
SETTLE_SECONDS: Final = 0.1
"""After an event: writers write more than once."""
LARGEST: Final = 4 * 2**20
"""Bytes of a bundle; all public authorities together have a quarter of a million."""

_DATA_LINK: Final = "..data"
"""What a volume replaces to change all of its files at once."""

log = get_logger("auth")


@frozen
class ClientCAError(Exception):
    """The file is no bundle."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"client CA file {self.path}: {self.problem}"


@frozen(eq=False)
class Bundle:
    """Authorities; any of them is trusted by itself."""

    pem: bytes = attrs.field(repr=False)
    certificates: tuple[bytes, ...] = attrs.field(repr=False)
    """Each as PEM of its own."""
    digest: bytes
    """Of the file's content: what tells bundles apart."""


class ClientCA:
    """The bundle in a file."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises ClientCAError."""
        self._path = path
        self._bundle = read_bundle(path)
        self._problem = ""
        self.changed: Broadcast[Bundle] = Broadcast()
        """Each new bundle."""

    @property
    def bundle(self) -> Bundle:
        """The last good one."""
        return self._bundle

    @property
    def problem(self) -> str:
        """Why the file's present content is not in use; empty when it is."""
        return self._problem

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the file until cancelled."""
        task_status.started()
        with _Watch(self._path) as watch:
            while True:
                watch.renew()
                await self.reread()
                with trio.move_on_after(REREAD_SECONDS):
                    await watch.changed()
                    await trio.sleep(SETTLE_SECONDS)

    async def reread(self) -> None:
        """Take what the file holds now, if it is a bundle; tell the log once of each problem."""
        try:
            bundle = await trio.to_thread.run_sync(read_bundle, self._path, self._bundle, abandon_on_cancel=True)
        except ClientCAError as error:
            if error.problem != self._problem:
                self._problem = error.problem
                log.error("the client CA file cannot be used, its last good content stays", problem=str(error))
            return
        self._problem = ""
        if bundle.digest == self._bundle.digest:
            return
        self._bundle = bundle
        log.info("client CA file was read", path=str(self._path), authorities=len(bundle.certificates))
        self.changed.send(bundle)


def read_bundle(path: Path, last: Bundle | None = None) -> Bundle:
    """The bundle in a file; `last` if that is what the file still has.

    Raises ClientCAError for a file that cannot be read, or holds anything else than certificates.
    """
    try:
        with path.open("rb") as file:
            pem = file.read(LARGEST + 1)
    except OSError as error:
        raise ClientCAError(path, error.strerror or str(error)) from None
    if len(pem) > LARGEST:
        raise ClientCAError(path, f"expected at most {LARGEST} bytes")
    digest = hashlib.sha256(pem).digest()
    if last is not None and last.digest == digest:
        return last
    return Bundle(pem, _certificates(path, pem), digest)


def _certificates(path: Path, pem: bytes) -> tuple[bytes, ...]:
    if not pem.strip():
        raise ClientCAError(path, "expected certificates in PEM, got an empty file")
    blocks = certificate_blocks(pem)
    whole = sum(1 for block in pem_blocks(pem) if block.label == b"CERTIFICATE")
    if not blocks or whole != pem.count(b"-----BEGIN CERTIFICATE-----"):
        raise ClientCAError(path, f"expected certificates in PEM, found {whole} that have an end")
    try:
        for block in blocks:
            read_certificate(block)
    except (ValueError, OSError) as error:
        raise ClientCAError(path, f"expected certificates in PEM: {error}") from None
    return tuple(blocks)


class _Watch:
    """Inotify on the file's folder; without it (limits reached, no folder) only the periodic reread remains."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self._names = (path.name, _DATA_LINK)
        self._inotify: Inotify | None = None

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            self._inotify.close()

    def renew(self) -> None:
        with suppress(OSError):
            if self._inotify is None:
                self._inotify = Inotify()
            self._inotify.watch(self._folder, ENTRIES | Mask.ONLYDIR)

    async def changed(self) -> None:
        """Return when the file may have changed; never when nothing is watched."""
        if self._inotify is None:
            await trio.sleep_forever()
        else:
            while not any(event.name in self._names or not event.name for event in await self._inotify.wait()):
                pass
