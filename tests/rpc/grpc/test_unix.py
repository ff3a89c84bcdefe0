"""Listening and connecting where a path is longer than a socket address."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
import trio

from trikubelet.rpc.grpc import SocketInUseError
from trikubelet.rpc.grpc.unix import connect_unix, listen_unix

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def long_path(tmp_path: Path) -> Path:
    folder = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 8)
    folder.mkdir(parents=True)
    assert len(os.fsencode(folder)) > 107
    return folder / "agent.sock"


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208  (as few descriptors of our own as possible)


async def test_a_path_longer_than_a_socket_address_is_served(long_path: Path) -> None:
    before = descriptors()
    listener = listen_unix(long_path, mode=0o640)
    assert long_path.is_socket()
    assert long_path.stat().st_mode & 0o777 == 0o640
    with trio.fail_after(5):
        client, server = await connect_unix(long_path), await listener.accept()
        await client.send_all(b"hello")
        assert await server.receive_some() == b"hello"
        await client.aclose()
        await server.aclose()
        await listener.aclose()
    assert not long_path.exists()
    assert descriptors() == before


async def test_a_live_listener_at_a_long_path_is_left_alone_and_a_dead_one_replaced(long_path: Path) -> None:
    listener = listen_unix(long_path)
    with pytest.raises(SocketInUseError):
        listen_unix(long_path)
    listener._socket.close()  # as a killed process leaves it
    assert long_path.is_socket()
    await listen_unix(long_path).aclose()


async def test_nobody_at_a_long_path_is_an_ordinary_error(long_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await connect_unix(long_path)
    with pytest.raises(FileNotFoundError):
        await connect_unix(long_path.parent / "missing" / "agent.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        folder = os.open(long_path.parent, os.O_PATH)
        dead.bind(f"/proc/self/fd/{folder}/{long_path.name}")
        os.close(folder)
    with pytest.raises(ConnectionRefusedError):
        await connect_unix(long_path)


async def test_every_use_of_a_closed_stream_says_that_it_is_closed(tmp_path: Path) -> None:
    listener = listen_unix(tmp_path / "a.sock")
    client = await connect_unix(tmp_path / "a.sock")
    await client.aclose()
    for _ in range(2):
        with pytest.raises(trio.ClosedResourceError):
            await client.receive_some()
        with pytest.raises(trio.ClosedResourceError):
            await client.wait_send_all_might_not_block()
    await listener.aclose()
