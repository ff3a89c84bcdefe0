"""`/logs/`: files of the node's log folder, and, where it is switched on, the logs of the node's services."""

from __future__ import annotations

import errno
import subprocess
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.http.messages import AnyResponse, HTTPError, Request, Response, StreamResponse, Writer
from trikubelet.node_api.file_answers import file_response, listing
from trikubelet.node_api.node_files import NodeFile, NodeFolder, NoSuchFileError, open_in
from trikubelet.node_api.node_log_query import (
    UNITS,
    JournalOptions,
    NodeLogQuery,
    file_names,
    journal_command,
    known_to_journal,
    read_node_log_query,
)
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

log = get_logger("http")

LOG_FOLDER: Final = Path("/var/log")
QUERY_SECONDS: Final = 30.0
"""For all of a query; then what there is has to do."""
QUERIES_AT_ONCE: Final = 4
_BLOCK: Final = 64 * 2**10
_MOST_UNITS: Final = 4 * 2**20
"""Bytes of the list of units that are looked at."""
_GZIP: Final = 31
_TYPE: Final = "text/plain;charset=UTF-8"


class NodeLogHandlers:
    """`queries`: whether services may be asked for (`enableSystemLogQuery`)."""

    def __init__(self, *, queries: bool, folder: Path = LOG_FOLDER) -> None:
        self._queries = queries
        self._folder = folder
        self._at_once = trio.CapacityLimiter(QUERIES_AT_ONCE)

    async def logs(self, request: Request) -> AnyResponse:
        """GET `/logs/{path:*}`."""
        query = read_node_log_query(request.query) if self._queries else None
        if query is None:
            return await self._file(request, request.params["path"])
        if query.file is not None:
            return await self._queried_file(request, query.file)
        return self._services(request, query)

    # Files

    async def _file(self, request: Request, path: str) -> AnyResponse:
        found = await self._open(path)
        ends_with_slash = request.path.endswith("/")
        if isinstance(found, NodeFolder):
            return listing(found) if ends_with_slash else _redirect(request, request.path.rpartition("/")[2] + "/")
        if ends_with_slash:
            found.close()
            return _redirect(request, "../" + request.path.rstrip("/").rpartition("/")[2])
        return await file_response(found, request, path)

    async def _queried_file(self, request: Request, path: str) -> AnyResponse:
        found = await self._open(path)
        return listing(found) if isinstance(found, NodeFolder) else await file_response(found, request, path)

    async def _open(self, path: str) -> NodeFile | NodeFolder:
        """Raises HTTPError."""
        try:
            return await open_in(self._folder, path)
        except NoSuchFileError:
            raise HTTPError(404, "404 page not found") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL):
                raise HTTPError(404, "404 page not found") from None
            if error.errno in (errno.EACCES, errno.EPERM):
                raise HTTPError(403, "403 Forbidden") from None
            raise HTTPError(500, f"500 Internal Server Error: {error.strerror}") from error

    # Services

    def _services(self, request: Request, query: NodeLogQuery) -> StreamResponse:
        """Whatever goes wrong from here on is a line of the answer, as in the kubelet."""
        packed = request.headers.get("accept-encoding") == "gzip"

        async def produce(writer: Writer) -> None:
            out = _Packing(writer) if packed else writer
            await out.write(b"")
            deadline = trio.current_time() + QUERY_SECONDS
            complete = False
            with trio.move_on_at(deadline):
                await self._at_once.acquire()
                complete = True
            if complete:
                try:
                    complete = await self._copy(query, out, deadline)
                finally:
                    self._at_once.release()
            if not complete:
                await out.write(f"\nerror: cut off after {QUERY_SECONDS:g} seconds\n".encode())
            if isinstance(out, _Packing):
                await out.finish()

        headers = (("Content-Encoding", "gzip"),) if packed else ()
        return StreamResponse(produce, content_type=_TYPE, headers=headers)

    async def _copy(self, query: NodeLogQuery, out: Writer, deadline: float) -> bool:
        """False: there was more, but no more time."""
        units = await _units(deadline)
        in_files = [service for service in query.services if not known_to_journal(service, units)]
        if not in_files:
            return await _copy_journal(journal_command(query.services, query.options), out, deadline)
        if query.options != JournalOptions():
            names = " ".join(in_files)
            await out.write(
                f"\noptions present and query resolved to log files for [{names}]\n"
                "try without specifying options\n".encode()
            )
            return True
        for service in in_files:
            if not await self._copy_file(service, out, deadline):
                return False
        return True

    async def _copy_file(self, service: str, out: Writer, deadline: float) -> bool:
        for name in file_names(service):
            try:
                found = await open_in(self._folder, name)
            except NoSuchFileError:
                continue
            except OSError as error:
                await out.write(f"\nerror getting log for {service}: {error.strerror}\n".encode())
                return True
            if isinstance(found, NodeFile):
                return await _copy_open_file(found, out, deadline)
        await out.write(f"\nlog not found for {service}\n".encode())
        return True


class _Packing:
    """A writer that compresses."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._deflate = zlib.compressobj(1, zlib.DEFLATED, _GZIP)

    async def write(self, data: bytes) -> None:
        await self._writer.write(self._deflate.compress(data))

    async def finish(self) -> None:
        await self._writer.write(self._deflate.flush())


async def _copy_open_file(file: NodeFile, out: Writer, deadline: float) -> bool:
    """What was there when it was opened. False: there was more, but no more time."""
    position = 0
    try:
        while position < file.size and (block := await file.read(position, min(_BLOCK, file.size - position))):
            position += len(block)
            await out.write(block)
            if trio.current_time() > deadline:
                return position == file.size
    finally:
        file.close()
    return True


async def _units(deadline: float) -> bytes:
    """The units that the journal knows; none when it cannot be asked."""
    units = bytearray()

    async def keep(block: bytes) -> None:
        if len(units) < _MOST_UNITS:
            units.extend(block)

    try:
        await _copy_output(UNITS, keep, deadline, errors=subprocess.DEVNULL)
    except OSError as error:
        log.debug("the journal cannot be asked", error=str(error))
    return bytes(units)


async def _copy_journal(command: Sequence[str], out: Writer, deadline: float) -> bool:
    try:
        return await _copy_output(command, out.write, deadline, errors=subprocess.STDOUT)
    except OSError as error:
        log.warning("the journal cannot be asked", error=str(error))
        await out.write(b"\nerror: journal output not available\n")
        return True


async def _copy_output(
    command: Sequence[str], write: Callable[[bytes], Awaitable[None]], deadline: float, errors: int
) -> bool:
    """Pass on what a program prints, until it ends; False: it was killed, since there was no more time.

    Only reading has the deadline: a write that is cancelled leaves half a chunk behind. Raises OSError when the
    program cannot begin. When this is cancelled, the program is killed.
    """
    failure: OSError | None = None
    complete = False
    start = partial(trio.run_process, list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    async with trio.open_nursery() as nursery:
        try:
            process = await nursery.start(partial(start, check=False, deliver_cancel=_kill))
        except OSError as error:
            failure = error
        else:
            async with process.stdout:
                while block := await _read_until(process.stdout, deadline):
                    await write(block)
            complete = block is not None
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return complete


async def _read_until(stream: trio.abc.ReceiveStream, deadline: float) -> bytes | None:
    """None: it took too long."""
    with trio.move_on_at(deadline):
        return bytes(await stream.receive_some(_BLOCK))
    return None


async def _kill(process: trio.Process) -> None:
    process.kill()


def _redirect(request: Request, location: str) -> Response:
    query = request.target.partition("?")[2]
    return Response(status=301, headers=(("Location", location + (f"?{query}" if query else "")),))
