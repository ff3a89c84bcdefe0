"""Reading tar streams of unknown origin: decompression, digests and limits around the standard library's tarfile.

tarfile itself believes headers: it reads an extended header of any size into memory and steps backwards on a negative
size. `GuardedTarInfo` looks at every header before tarfile acts on it. Everything that tarfile and the decompressors
raise for broken input leaves here as ArchiveError.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Protocol, cast

from trikubelet.embedded.images.errors import ArchiveError

CHUNK = 2**20
MAX_HEADER_BYTES = 2**20
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


class GuardedTarInfo(tarfile.TarInfo):
    """A tar header, refused when reading on would exhaust memory or never end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> GuardedTarInfo:
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0:
            raise ArchiveError("its size is negative", entry=info.name)
        if info.type in _EXTENDED_HEADERS and info.size > MAX_HEADER_BYTES:
            raise ArchiveError(f"its header has {info.size} bytes, more than {MAX_HEADER_BYTES}", entry=info.name)
        return info


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
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, IndexError) as error:
        # IndexError is tarfile's own for a sparse file's map that is cut short.
        raise ArchiveError(f"{subject} is damaged or not a tar archive: {error}") from error
    except RecursionError as error:
        raise ArchiveError(f"{subject} nests its headers too deep") from error


def entries(stream: Readable, *, subject: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The entries of an uncompressed tar stream in their order, each with the TarFile to read its content from.

    Memory stays constant: an entry is forgotten when the next one is asked for. Raises ArchiveError.
    """
    with broken_input_is_an_archive_error(subject):
        with tarfile.open(
            fileobj=cast("IO[bytes]", stream),
            mode="r|",
            bufsize=CHUNK // 4,
            tarinfo=GuardedTarInfo,
            encoding="utf-8",
            errors="surrogateescape",
        ) as tar:
            while (member := tar.next()) is not None:
                if member.size < 0:
                    raise ArchiveError("its size is negative", entry=member.name)
                yield tar, member
                tar.members = []  # type: ignore[attr-defined]  # typeshed leaves it out
