"""Layers on their way from a registry into files: checked while they come, and going on where they broke off."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.images.disk_space import check_space
from trikubelet.embedded.registry.client import RegistryClient
from trikubelet.embedded.registry.errors import HostError, PullFailure
from trikubelet.embedded.registry.retry import bytes_to_skip
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from trikubelet.embedded.registry.client import HostConnections

_BATCH: Final = 512 * 1024
"""Bytes that are hashed and written at once, in a worker thread."""
PROGRESS_UNIT: Final = 64 * 1024
_LOOK_AT_DISK_EVERY: Final = 8 * 2**20


class _File:
    """A blob's file as it grows. Its methods block."""

    def __init__(self, path: Path, digest: str, size: int) -> None:
        self.path = path
        self.digest = digest
        self.size = size
        self.count = 0
        self.resumed = False
        """Whether it holds parts of several answers."""
        self._hash = hashlib.new(digest.partition(":")[0])
        self._looked_at = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def append(self, parts: Sequence[bytes]) -> None:
        """Raises OSError, also when the disk is getting full."""
        for part in parts:
            self._hash.update(part)
            view = memoryview(part)
            while view:
                view = view[os.write(self._fd, view) :]
            self.count += len(part)
        if self.count - self._looked_at >= _LOOK_AT_DISK_EVERY:
            self._looked_at = self.count
            check_space(self.path.parent, self.size - self.count)

    def restart(self) -> None:
        """Forget what came."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.count = self._looked_at = 0
        self.resumed = False
        self._hash = hashlib.new(self.digest.partition(":")[0])

    @property
    def found(self) -> str:
        return f"{self._hash.name}:{self._hash.hexdigest()}"

    def close(self) -> None:
        os.close(self._fd)


@frozen
class BlobReader:
    """Reads blobs of one registry into a folder. `on_bytes` gets how many came."""

    client: RegistryClient
    folder: Path
    on_bytes: Callable[[int], None]

    async def read(self, digest: str, size: int) -> Path:
        """One blob, checked. Raises HostError, OSError. When cancelled, what came stays in the folder."""
        path = self.folder / file_name(digest)
        file = _File(path, digest, size)
        try:
            await self.client.on_hosts(
                lambda host: self._read_from(host, file), progress=lambda: file.count // PROGRESS_UNIT
            )
        finally:
            file.close()
        return path

    async def _read_from(self, host: HostConnections, file: _File) -> None:
        if file.count < file.size or file.size == 0:
            headers = {"Range": f"bytes={file.count}-"} if file.count else {}
            file.resumed = file.count > 0
            async with host.request("GET", f"blobs/{file.digest}", headers, by_digest=True) as response:
                if response.status_code == 416:
                    self._forget(file)
                    raise HostError(PullFailure.UNREACHABLE, f"{host.name} refused to go on with a layer", True)
                skip = bytes_to_skip(response.status_code, response.headers.get("content-range"), file.count, host.name)
                await self._take(host, response, file, skip)
        if file.count < file.size:
            reason = f"the connection to {host.name} ended after {file.count} of {file.size} bytes of {file.digest}"
            raise HostError(PullFailure.UNREACHABLE, reason, True)
        if file.found != file.digest:
            found, resumed = file.found, file.resumed
            self._forget(file)
            reason = f"{host.name} sent other content than {file.digest}: its digest is {found}"
            raise HostError(PullFailure.WRONG_CONTENT, reason, may_pass=resumed)  # perhaps an earlier answer's fault

    async def _take(self, host: HostConnections, response: httpx.Response, file: _File, skip: int) -> None:
        """Append the answer's bytes to the file, in batches. What came before a connection breaks is kept."""
        batch: list[bytes] = []
        pending = 0
        try:
            with trio.CancelScope(deadline=trio.current_time() + self.client.timeouts.progress) as scope:
                since = 0
                async for part in response.aiter_raw():
                    since += len(part)
                    if since >= PROGRESS_UNIT:
                        since = 0
                        scope.deadline = trio.current_time() + self.client.timeouts.progress
                    if skip:
                        part, skip = part[skip:], max(0, skip - len(part))
                    if file.count + pending + len(part) > file.size:
                        batch = []
                        self._forget(file)
                        reason = f"{host.name} sent more than the {file.size} bytes that {file.digest} has"
                        raise HostError(PullFailure.WRONG_CONTENT, reason)
                    batch.append(part)
                    pending += len(part)
                    if pending >= _BATCH:
                        taken, batch, pending = batch, [], 0
                        await self._append(file, taken)
            if scope.cancelled_caught:
                reason = f"{host.name} sent less than 64 KiB in {self.client.timeouts.progress:.0f} s"
                raise HostError(PullFailure.UNREACHABLE, reason, True)
        finally:
            if batch:
                with trio.CancelScope(shield=True):
                    await self._append(file, batch)

    async def _append(self, file: _File, parts: list[bytes]) -> None:
        await trio.to_thread.run_sync(file.append, parts)
        self.on_bytes(sum(map(len, parts)))

    def _forget(self, file: _File) -> None:
        self.on_bytes(-file.count)
        file.restart()


def file_name(digest: str) -> str:
    """What a blob's file is called."""
    return digest.replace(":", "-")
