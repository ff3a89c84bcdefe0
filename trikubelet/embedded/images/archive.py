"""An image archive as a set of named files: a tar, plain or gzipped, read without unpacking it.

`oci_layout` and `docker_save` know what the files mean. Layers come out as streams; documents (JSON) are read whole,
up to a limit. Blocking: everything here is called from a worker thread.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

from trikubelet.embedded.images.entry_path import split_entry_name
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.reference import is_digest
from trikubelet.embedded.images.regular_file import WatchedFile, open_regular_file
from trikubelet.embedded.images.tar_stream import (
    CHUNK,
    Checkpoint,
    CopyingReader,
    DigestReader,
    Readable,
    broken_input_is_an_archive_error,
    decompressed,
    open_tar,
)
from trikubelet.formats import go_json
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    import tarfile
    from pathlib import Path

    from trikubelet.embedded.images.memory import MemoryBudget
    from trikubelet.embedded.images.model import UnpackLimits


_MOST_VALUES = 2**16
"""In one document: an image has a thousand layers at most, and each is described by a handful."""
_DEEPEST = 100
"""Objects and lists in one another. Python gives up at a thousand, less what is on its stack at that moment."""
_STRINGS_AND_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_KEPT_OF_A_FILE = 500
"""Bytes, and its name."""
_KEPT_OF_A_PIECE = 120
"""Bytes, for each piece of a sparse file."""
_KEPT_OF_A_VALUE = 100
"""Bytes, for each value in a document."""


@frozen
class ArchivedLayer:
    """A layer still packed."""

    file: str
    """Its name in the archive."""
    diff_id: str
    """Digest of the uncompressed tar stream."""
    digest: str = ""
    """Digest of the file itself; empty where the archive tells none."""
    checked: bool = False
    """Whether the file has been compared with that digest already."""


@frozen
class ArchivedImage:
    """An image of an archive, its documents read and checked, its layers not yet."""

    id: str
    names: tuple[str, ...]
    """As the archive spells them."""
    bare_tag: str
    """A tag without a repository, where the archive tells only that."""
    digests: tuple[str, ...]
    """Of the manifest, and of the index that led to it (first)."""
    spec: Mapping[str, Any]
    layers: tuple[ArchivedLayer, ...]
    documents: tuple[bytes, ...] = ()
    """The configuration, its manifest, and the indexes that led to it, as they came."""


class ArchiveFiles:
    """The files of one archive."""

    def __init__(
        self, tar: tarfile.TarFile, limits: UnpackLimits, memory: MemoryBudget, checkpoint: Checkpoint
    ) -> None:
        self._tar = tar
        self._limits = limits
        self._memory = memory
        self._checkpoint = checkpoint
        self._members: dict[str, tarfile.TarInfo] = {}
        self._links: dict[str, str] = {}
        count = 0
        while (member := tar.next()) is not None:
            checkpoint()
            count += 1
            if count > limits.max_archive_entries:
                raise ArchiveError(f"the archive has more than {limits.max_archive_entries} files", entry=member.name)
            self._index(member)
            tar.members = []  # type: ignore[attr-defined]  # typeshed leaves it out

    def _index(self, member: tarfile.TarInfo) -> None:
        name = "/".join(split_entry_name(member.name, max_depth=self._limits.max_depth))
        pieces = member.sparse or ()
        self._memory.take(_KEPT_OF_A_FILE + len(name) + len(member.linkname) + _KEPT_OF_A_PIECE * len(pieces))
        member.pax_headers = {}
        if member.isreg():
            self._members[name] = member
        elif member.issym() or member.islnk():  # docker save wrote a layer that two images share once, and linked it
            base = posixpath.dirname(name) if member.issym() else ""
            target = posixpath.normpath(posixpath.join(base, member.linkname))
            if target.startswith(("/", "../")):
                raise ArchiveError(f"it is a link out of the archive, to {member.linkname!r}", entry=member.name)
            self._links[name] = target
        elif not member.isdir():
            raise ArchiveError("neither a file nor a directory: image archives hold no such things", entry=member.name)

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def _find(self, name: str) -> tarfile.TarInfo | None:
        for _ in range(8):
            if name not in self._links:
                break
            name = self._links[name]
        return self._members.get(name)

    def open(self, name: str) -> IO[bytes]:
        """The file's bytes. Raises ArchiveError where the archive has no such file."""
        member = self._find(name)
        source = self._tar.extractfile(member) if member is not None else None
        if source is None:
            raise ArchiveError(f"the archive lacks the file {name!r} that it speaks of")
        return source

    @contextmanager
    def open_layer(self, layer: ArchivedLayer, kept: Path) -> Iterator[Readable]:
        """The layer's file, which is copied to `kept` as it is read."""
        with self.open(layer.file) as source, kept.open("wb") as copy:
            yield CopyingReader(source, copy)

    def diff_id(self, name: str) -> str:
        """The digest of an uncompressed layer, for archives that do not tell it."""
        subject = f"layer {name}"
        stream = decompressed(self.open(name), subject=subject)
        limit = self._limits.max_layer_bytes
        plain = DigestReader(stream, limit=limit, subject=subject, checkpoint=self._checkpoint)
        plain.drain()
        return plain.digest

    def read_document(self, name: str, *, digest: str = "") -> tuple[bytes, Any]:
        """A JSON file's bytes and content. Raises ArchiveError: missing, too large, no JSON, or not of that digest."""
        with self.open(name) as source:
            data = source.read(self._limits.max_document_bytes + 1)
        if len(data) > self._limits.max_document_bytes:
            raise ArchiveError(f"has more than {self._limits.max_document_bytes} bytes", entry=name)
        if digest and digest != (found := digest_of(data, digest.partition(":")[0])):
            raise ArchiveError(f"its content has the digest {found}, expected {digest}", entry=name)
        # Python keeps a text with one character beyond Latin in two or four bytes for each.
        width = 1 if data.isascii() and b"\\u" not in data else 4
        self._memory.take((1 + width) * len(data) + _KEPT_OF_A_VALUE * _count_values(data))
        return data, parse_json(data, name)

    def read_object(self, name: str, *, digest: str = "") -> tuple[bytes, dict[str, Any]]:
        """As `read_document`, for a JSON object."""
        data, document = self.read_document(name, digest=digest)
        return data, expect_object(document, name)


def expect_object(value: object, entry: str) -> dict[str, Any]:
    """The value as a JSON object. Raises ArchiveError."""
    if not isinstance(value, dict):
        raise ArchiveError(f"expected a JSON object, got {type(value).__name__}", entry=entry)
    return value


def parse_json(data: bytes, entry: str) -> Any:
    """The content of a document, which has few values: empty ones take eighty times their size. Raises ArchiveError."""
    if (values := _count_values(data)) > _MOST_VALUES:
        raise ArchiveError(f"it has {values} values, more than {_MOST_VALUES}", entry=entry)
    if _is_deeper_than(_DEEPEST, data):
        raise ArchiveError(f"it has more than {_DEEPEST} objects and lists in one another", entry=entry)
    try:
        return go_json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"expected JSON: {error}", entry=entry) from error


def _count_values(data: bytes) -> int:
    """At least as many as the document has."""
    return sum(map(data.count, (b",", b"{", b"[")))


def _is_deeper_than(most: int, data: bytes) -> bool:
    depth = 0
    for found in _STRINGS_AND_BRACKETS.finditer(data):
        first = data[found.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        if depth > most:
            return True
    return False


def expect_objects(value: object, entry: str) -> list[dict[str, Any]]:
    """The value as a list of JSON objects. Raises ArchiveError."""
    if not isinstance(value, list):
        raise ArchiveError(f"expected a list of JSON objects, got {type(value).__name__}", entry=entry)
    return [expect_object(item, entry) for item in value]


def expect_strings(value: object, entry: str) -> list[str]:
    """The value as a list of strings, `[]` for null. Raises ArchiveError."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ArchiveError(f"expected a list of strings, got {value!r}", entry=entry)
    return value


def digest_of(data: bytes, algorithm: str = "sha256") -> str:
    """`sha256:…` of the bytes."""
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


def diff_ids_of(spec: Mapping[str, Any], entry: str, expected: int) -> list[str]:
    """The digests of an image configuration's layers. Raises ArchiveError unless there are `expected` many."""
    rootfs = expect_object(spec.get("rootfs"), f"{entry}: rootfs")
    diff_ids = expect_strings(rootfs.get("diff_ids"), f"{entry}: rootfs.diff_ids")
    if len(diff_ids) != expected:
        raise ArchiveError(
            f"its configuration tells of {len(diff_ids)} layers, the manifest of {expected}", entry=entry
        )
    for diff_id in diff_ids:
        if not is_digest(diff_id):
            raise ArchiveError(f"expected a sha256 or sha512 digest in rootfs.diff_ids, got {diff_id!r}", entry=entry)
    return diff_ids


@contextmanager
def open_archive(
    path: Path, scratch: Path, limits: UnpackLimits, memory: MemoryBudget, checkpoint: Checkpoint
) -> Iterator[ArchiveFiles]:
    """Open an archive file. A compressed one is first decompressed into `scratch`, as its files are read in any order.

    Every read of the file asks `checkpoint`. Raises ArchiveError for what is no file or no tar archive, OSError for
    what cannot be read.
    """
    subject = f"archive {str(path)!r}"
    with ExitStack() as files, broken_input_is_an_archive_error(subject):
        source = WatchedFile(files.enter_context(open_regular_file(path)), checkpoint)
        is_plain = source.read(262)[257:] == b"ustar"
        source.seek(0)
        if not is_plain:
            plain = files.enter_context((scratch / "archive.tar").open("w+b"))
            _decompress(source, plain, limits, checkpoint, subject)
            source = WatchedFile(plain, checkpoint)
            source.seek(0)
        with open_tar(source, "r:") as tar:
            yield ArchiveFiles(tar, limits, memory, checkpoint)


def _decompress(
    source: Readable, target: IO[bytes], limits: UnpackLimits, checkpoint: Checkpoint, subject: str
) -> None:
    stream = DigestReader(
        decompressed(source, subject=subject), limit=limits.max_bytes, subject=subject, checkpoint=checkpoint
    )
    while chunk := stream.read(CHUNK):
        target.write(chunk)
