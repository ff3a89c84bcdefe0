"""What is given as an archive may be no file at all, and a file may take long to read: neither holds a thread."""

from __future__ import annotations

import gzip
import os
import socket
import tarfile
import tempfile
from pathlib import Path

import pytest
import trio

from tests.embedded.images.archives import layer, oci_archive
from trikubelet.clock import SystemClock
from trikubelet.embedded.images.archive import open_archive
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.memory import MemoryBudget
from trikubelet.embedded.images.model import LayerFormat, UnpackLimits
from trikubelet.embedded.images.store import ImageStore


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store", clock=SystemClock(), layer_format=LayerFormat.FLAT)


async def refusal(store: ImageStore, path: Path) -> str:
    with trio.fail_after(10), pytest.raises(ArchiveError) as failure:
        await store.import_archive(path)
    return str(failure.value)


async def test_a_named_pipe_is_refused_at_once(store: ImageStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    assert await refusal(store, tmp_path / "pipe.tar") == (
        f"{str(tmp_path / 'pipe.tar')!r} is a named pipe: expected a regular file"
    )


async def test_an_endless_device_is_refused_at_once(store: ImageStore) -> None:
    assert await refusal(store, Path("/dev/zero")) == "'/dev/zero' is a device: expected a regular file"


async def test_a_folder_is_refused(store: ImageStore, tmp_path: Path) -> None:
    assert "is a directory: expected a regular file" in await refusal(store, tmp_path)


async def test_a_socket_is_refused(store: ImageStore) -> None:
    with tempfile.TemporaryDirectory(prefix="tk-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        assert "is a socket: expected a regular file" in await refusal(store, Path(folder, "socket"))


async def test_an_archive_behind_a_symlink_is_imported(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "link.tar").symlink_to(oci_archive(tmp_path / "a.tar", [layer("app/main")], "example.com/app:1"))
    with trio.fail_after(10):
        assert await store.import_archive(tmp_path / "link.tar") == ("example.com/app:1",)


class GaveUpError(Exception):
    pass


class Patience:
    """A checkpoint that is cancelled at its `limit`th call."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def __call__(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise GaveUpError


def test_compressed_input_that_never_gives_a_byte_can_be_cancelled(tmp_path: Path) -> None:
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b"") * 50_000)
    with pytest.raises(GaveUpError):
        with open_archive(tmp_path / "empty.gz", tmp_path, UnpackLimits(), MemoryBudget(2**25), Patience(50)):
            raise AssertionError("not reached")


def test_a_header_that_goes_on_for_ever_can_be_cancelled(tmp_path: Path) -> None:
    """A sparse file's map goes on block after block, each of which says whether another one follows."""
    header = bytearray(tarfile.TarInfo("sparse").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[482] = 1
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "sparse.tar").write_bytes(header + (b"\0" * 504 + b"\1" + b"\0" * 7) * 1000)
    for patience, expected in ((50, GaveUpError), (10_000, ArchiveError)):
        with pytest.raises(expected):
            with open_archive(
                tmp_path / "sparse.tar", tmp_path, UnpackLimits(), MemoryBudget(2**25), Patience(patience)
            ):
                raise AssertionError("not reached")
