"""Reading tar streams of unknown origin: decompression, digests and limits around the standard library's tarfile.

tarfile itself believes headers: it reads an extended header of any size into memory and steps backwards on a negative
size. It takes quadratic time for some, and skips what is said to be there though the stream has ended. `GuardedTarInfo`
looks at every header before tarfile acts on it. Everything that tarfile and the decompressors raise for broken input
leaves here as ArchiveError.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Literal, Protocol, cast

from trikubelet.embedded.images.errors import ArchiveError

CHUNK = 2**20
MAX_HEADER_BYTES = 2**20
"""Of all headers of one entry."""
_MAX_GLOBAL_FIELDS = 100
_MAX_FIELDS = 1000
"""Of an extended header. No program writes more than a few, but for extended attributes."""
_MAX_PIECES = 2**15
"""Of a sparse file."""
_MAX_PATH_BYTES = 4096
"""Of a name, or of the target of a link (PATH_MAX)."""
_MAX_EMPTY_READS = 8
"""In a row: tarfile asks once or twice more when a stream has ended."""
_RECORD = re.compile(rb"([0-9]{1,20}) ")
_SHORTEST_RECORD = 5
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{256}")
"""No name of a file is as long."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LARGEST_ZSTD_WINDOW = 23
"""Power of two in bytes: what every decoder has to take (RFC 8878), and all levels up to 19 stay within."""
_EXTENDED_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)

Checkpoint = Callable[[], None]
"""Called often from a worker thread; raises to end the work (cancellation)."""


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class CopyingReader:
    """Passes a stream's bytes on, and writes them to a file."""

    def __init__(self, stream: Readable, copy: IO[bytes]) -> None:
        self._stream = stream
        self._copy = copy

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._copy.write(data)
        return data


class _Headers:
    """What tarfile reads an entry's headers from. Raises ArchiveError when they are too long."""

    def __init__(self, stream: Any, entry: str) -> None:
        self._stream = stream
        self._entry = entry
        self._left = MAX_HEADER_BYTES
        self._put_back = b""

    def read(self, size: int) -> bytes:
        if self._put_back:
            data, self._put_back = self._put_back, b""
            return data
        self._left -= size
        if self._left < 0:
            raise ArchiveError(f"its headers have more than {MAX_HEADER_BYTES} bytes", entry=self._entry)
        return cast("bytes", self._stream.read(size))

    def put_back(self, data: bytes) -> None:
        """To be read once more, all at once."""
        self._put_back = data

    def tell(self) -> int:
        return cast("int", self._stream.tell())


class GuardedTarInfo(tarfile.TarInfo):
    """A tar header, refused when reading on would exhaust memory or never end.

    `_proc_member` is there to be overridden, as the library says. What it calls for extended headers has had this name
    and this way to read since Python 2.6.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> GuardedTarInfo:
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0:
            raise ArchiveError("its size is negative", entry=info.name)
        if info.type in _EXTENDED_HEADERS and info.size > MAX_HEADER_BYTES:
            raise ArchiveError(f"its header has {info.size} bytes, more than {MAX_HEADER_BYTES}", entry=info.name)
        return info

    def _proc_member(self, tar: Any) -> Any:
        """Read what follows the first header: more headers, and the map of a sparse file."""
        stream = tar.fileobj
        if isinstance(stream, _Headers):  # within an extended header
            return super()._proc_member(tar)  # type: ignore[misc]
        tar.fileobj = _Headers(stream, self.name)
        try:
            member = super()._proc_member(tar)  # type: ignore[misc]
        except (IndexError, ValueError) as error:  # which tarfile raises for a sparse file's map
            raise ArchiveError(f"its headers are damaged: {error}", entry=self.name) from error
        finally:
            tar.fileobj = stream
        if member is not None:
            _check_sizes(member)
        return member

    def _proc_pax(self, tar: Any) -> Any:
        header = tar.fileobj.read(self._block(self.size))  # type: ignore[attr-defined]
        _check_records(header, self.name)
        tar.fileobj.put_back(header)
        member = super()._proc_pax(tar)  # type: ignore[misc]
        fields = tar.pax_headers  # of all entries
        if len(fields) > _MAX_GLOBAL_FIELDS or sum(map(len, fields.values())) > MAX_HEADER_BYTES:
            raise ArchiveError("its global headers are too many", entry=self.name)
        return member


def _check_sizes(member: tarfile.TarInfo) -> None:
    """Refuse what no file system takes, and what takes much memory to read. Raises ArchiveError."""
    if len(member.name) > _MAX_PATH_BYTES:
        raise ArchiveError(f"its name is longer than {_MAX_PATH_BYTES} bytes", entry=member.name)
    if len(member.linkname) > _MAX_PATH_BYTES:
        raise ArchiveError(f"it is a link to a name of more than {_MAX_PATH_BYTES} bytes", entry=member.name)
    if member.sparse is not None and len(member.sparse) > _MAX_PIECES:
        raise ArchiveError(f"it is a sparse file of more than {_MAX_PIECES} pieces", entry=member.name)


def _check_records(header: bytes, entry: str) -> None:
    """Refuse what no program writes, and what Python before 3.12.6 takes quadratic time and memory for.

    That reads on to the next equals sign, wherever it is, and looks for numbers with a search that begins anew at each
    of their digits. Raises ArchiveError.
    """
    at = fields = 0
    while at < len(header) and header[at]:
        fields += 1
        if fields > _MAX_FIELDS:
            raise ArchiveError(f"its extended header has more than {_MAX_FIELDS} fields", entry=entry)
        record = _RECORD.match(header, at)
        end = at + int(record[1]) if record is not None else 0
        if record is None or not at + _SHORTEST_RECORD <= end <= len(header):
            raise ArchiveError("its extended header is damaged", entry=entry)
        if header.find(b"=", record.end() + 1, end - 1) < 0 or header[end - 1 : end] != b"\n":
            raise ArchiveError("its extended header has no field where one should be", entry=entry)
        at = end
    if _LONG_NUMBER.search(header):
        raise ArchiveError("its extended header has a number of more than 255 digits", entry=entry)


class _Ending:
    """A stream that is not asked for ever when it has ended. Raises EOFError."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._empty = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._empty = 0 if data else self._empty + 1
        if self._empty > _MAX_EMPTY_READS:
            raise EOFError("it ends in the middle of an entry")
        return data


class DigestReader:
    """Passes a stream's bytes on, and knows their digest and count. Raises ArchiveError beyond `limit` bytes.

    `algorithm` empty: the digest is not asked for, and not computed.
    """

    def __init__(
        self, stream: Readable, *, limit: int, subject: str, checkpoint: Checkpoint, algorithm: str = "sha256"
    ) -> None:
        self._stream = stream
        self._limit = limit
        self._subject = subject
        self._checkpoint = checkpoint
        self._algorithm = algorithm
        self._hash = hashlib.new(algorithm) if algorithm else None
        self.count = 0

    def read(self, size: int = -1, /) -> bytes:
        self._checkpoint()
        wanted = self._limit - self.count + 1
        data = self._stream.read(wanted if size < 0 else min(size, wanted))
        self.count += len(data)
        if self.count > self._limit:
            raise ArchiveError(f"{self._subject} has more than {self._limit} bytes")
        if self._hash is not None:
            self._hash.update(data)
        return data

    def drain(self) -> None:
        """Read to the end: what follows the end of a tar archive belongs to the digest too."""
        while self.read(CHUNK):
            pass

    @property
    def digest(self) -> str:
        return f"{self._algorithm}:{self._hash.hexdigest()}" if self._hash is not None else ""


class _Rewound:
    """A stream with its first bytes, read to recognise the format, put back."""

    def __init__(self, head: bytes, stream: Readable) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        if not self._head:
            return self._stream.read(size)
        if size < 0:
            data, self._head = self._head + self._stream.read(), b""
        else:
            data, self._head = self._head[:size], self._head[size:]
        return data


def decompressed(stream: Readable, *, subject: str) -> Readable:
    """The stream's content, uncompressed where it is gzip or zstd (by its first bytes, whatever its media type says).

    Raises ArchiveError for zstd where this Python has no decompressor.
    """
    head = b""
    while len(head) < 4 and (more := stream.read(4 - len(head))):
        head += more
    rewound = _Rewound(head, stream)
    if head.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=cast("IO[bytes]", rewound))
    if head.startswith(_ZSTD_MAGIC):
        return _zstd_reader(rewound, subject)
    return rewound


def _zstd_reader(stream: Readable, subject: str) -> Readable:
    import importlib

    for name in ("compression.zstd", "backports.zstd"):
        try:
            zstd = importlib.import_module(name)
        except ImportError:
            continue
        options = {zstd.DecompressionParameter.window_log_max: _LARGEST_ZSTD_WINDOW}
        return cast("Readable", _ZstdReader(zstd.ZstdFile(stream, "rb", options=options), zstd.ZstdError, subject))
    raise ArchiveError(
        f"{subject} is compressed with zstd, which this Python cannot read: install the package 'backports.zstd', "
        "run Python 3.14 or later, or make the archive again with gzip"
    )


class _ZstdReader:
    """Raises ArchiveError for a damaged stream, and for one that needs more memory than a pull may take."""

    def __init__(self, stream: Readable, error: type[Exception], subject: str) -> None:
        self._stream = stream
        self._error = error
        self._subject = subject

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._stream.read(size)
        except self._error as error:
            raise ArchiveError(
                f"{self._subject} is damaged, or was compressed with a zstd window of more than "
                f"{2**_LARGEST_ZSTD_WINDOW >> 20} MiB: {error}"
            ) from error


@contextmanager
def broken_input_is_an_archive_error(subject: str) -> Iterator[None]:
    """Turn what tarfile and the decompressors raise for broken input into an ArchiveError that names the subject."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ArchiveError(f"{subject} is damaged or not a tar archive: {error}") from error
    except RecursionError as error:
        raise ArchiveError(f"{subject} nests its headers too deep") from error


@contextmanager
def open_tar(stream: Readable, mode: Literal["r:", "r|"]) -> Iterator[tarfile.TarFile]:
    """Open a tar of unknown origin. Its entries are `GuardedTarInfo`."""
    tar = tarfile.open(  # noqa: SIM115
        fileobj=cast("IO[bytes]", stream),
        mode=mode,
        bufsize=CHUNK // 4,
        tarinfo=GuardedTarInfo,
        encoding="utf-8",
        errors="surrogateescape",
    )
    try:
        with tar:
            yield tar
    finally:
        vars(tar).clear()  # it and its first entry refer to each other: only Python's collector would free them


def entries(stream: Readable, *, subject: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The entries of an uncompressed tar stream in their order, each with the TarFile to read its content from.

    Nothing at all is an archive without entries: some builders write such layers. Memory stays constant: an entry is
    forgotten when the next one is asked for. Raises ArchiveError.
    """
    with broken_input_is_an_archive_error(subject):
        first = stream.read(1)
        if not first:
            return
        stream = _Rewound(first, stream)
        with open_tar(_Ending(stream), "r|") as tar:
            while (member := tar.next()) is not None:
                if member.size < 0:
                    raise ArchiveError("its size is negative", entry=member.name)
                yield tar, member
                tar.members = []  # type: ignore[attr-defined]  # typeshed leaves it out
