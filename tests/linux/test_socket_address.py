"""Sockets whose paths are longer than a socket address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from trikubelet.linux.socket_address import LONGEST, socket_address
from trikubelet.rpc.grpc.unix import SocketInUseError, connect_unix, listen_unix

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("length", [LONGEST, LONGEST + 1, 200])
async def test_a_path_of_any_length_is_listened_on_connected_to_and_removed(tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("d" * (length - len(str(tmp_path)) - len("//socket")))
    folder.mkdir()
    path = folder / "socket"
    assert len(str(path)) == length
    listener = listen_unix(path)
    assert path.is_socket()
    with trio.fail_after(5):
        client = await connect_unix(path)
        server = await listener.accept()
        await client.send_all(b"hello")
        assert await server.receive_some(5) == b"hello"
    with pytest.raises(SocketInUseError):
        listen_unix(path)
    await client.aclose()
    await server.aclose()
    await listener.aclose()
    assert not path.exists()


@pytest.mark.parametrize("path", ["/run/a\0b", "/run/" + "a" * 200 + "\0b"])
async def test_a_path_with_a_nul_is_one_that_cannot_be_reached(path: str) -> None:
    with pytest.raises(OSError, match="cannot contain a NUL"):
        await connect_unix(path)


def test_a_path_that_fits_is_used_as_it_is(tmp_path: Path) -> None:
    with socket_address("/run/x.sock") as address:
        assert address == "/run/x.sock"
