"""Sockets in a folder, as the kernel tells of them."""

from __future__ import annotations

import os
import socket
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
import trio

from tests.plugins.stage import FakePlugin, NotingHandler
from trikubelet.linux.socket_address import socket_address
from trikubelet.plugins import watcher
from trikubelet.plugins.registration import PluginRegistrar
from trikubelet.plugins.watcher import SocketWatch
from trikubelet.rpc.grpc import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trio.testing import MockClock

WITHIN = 10


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock, socket_address(str(path)) as address:
        sock.bind(address)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "plugins_registry"


@pytest.fixture
def watch(folder: Path) -> Iterator[SocketWatch]:
    with SocketWatch(folder) as watch:
        yield watch


def names(watch: SocketWatch, folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in watch.sockets)


async def settled(watch: SocketWatch, folder: Path, expected: list[str]) -> None:
    with trio.fail_after(WITHIN):
        while names(watch, folder) != expected:
            await watch.changed()


def test_the_folder_is_made(watch: SocketWatch, folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o755


async def test_only_sockets_count_and_no_hidden_names(folder: Path) -> None:
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("a.sock", ".b.sock", "deep/deeper/c.sock", ".hidden/d.sock"):
        make_socket(folder / name)
    (folder / "file").touch()
    (folder / "link").symlink_to(folder / "a.sock")
    (folder / "dangling").symlink_to("nowhere")
    with SocketWatch(folder) as watch:
        assert names(watch, folder) == ["a.sock", "deep/deeper/c.sock", "link"]


async def test_sockets_come_and_go(watch: SocketWatch, folder: Path) -> None:
    make_socket(folder / "a.sock")
    await settled(watch, folder, ["a.sock"])
    make_socket(folder / "b.sock")
    await settled(watch, folder, ["a.sock", "b.sock"])
    (folder / "a.sock").unlink()
    await settled(watch, folder, ["b.sock"])


async def test_sockets_in_new_folders_are_seen(watch: SocketWatch, folder: Path) -> None:
    (folder / "one" / "two").mkdir(parents=True)
    make_socket(folder / "one" / "two" / "a.sock")
    await settled(watch, folder, ["one/two/a.sock"])
    make_socket(folder / "one" / "b.sock")
    await settled(watch, folder, ["one/b.sock", "one/two/a.sock"])
    (folder / "one").rename(folder / "other")
    await settled(watch, folder, ["other/b.sock", "other/two/a.sock"])
    make_socket(folder / "other" / "c.sock")
    await settled(watch, folder, ["other/b.sock", "other/c.sock", "other/two/a.sock"])


async def test_a_socket_that_is_made_again_before_anybody_looks_is_another_one(
    watch: SocketWatch, folder: Path
) -> None:
    make_socket(folder / "a.sock")
    await settled(watch, folder, ["a.sock"])
    first = watch.sockets[folder / "a.sock"]
    (folder / "a.sock").unlink()
    make_socket(folder / "a.sock")
    with trio.fail_after(WITHIN):
        await watch.changed()
    assert watch.sockets[folder / "a.sock"] > first


async def test_a_socket_that_replaces_another_is_another_one(watch: SocketWatch, folder: Path, tmp_path: Path) -> None:
    make_socket(folder / "a.sock")
    await settled(watch, folder, ["a.sock"])
    first = watch.sockets[folder / "a.sock"]
    make_socket(tmp_path / "new")
    (tmp_path / "new").rename(folder / "a.sock")
    with trio.fail_after(WITHIN):
        await watch.changed()
    assert watch.sockets[folder / "a.sock"] > first


async def test_another_mode_makes_no_other_socket(watch: SocketWatch, folder: Path) -> None:
    make_socket(folder / "a.sock")
    await settled(watch, folder, ["a.sock"])
    first = watch.sockets[folder / "a.sock"]
    (folder / "a.sock").chmod(0o700)
    make_socket(folder / "b.sock")
    await settled(watch, folder, ["a.sock", "b.sock"])
    assert watch.sockets[folder / "a.sock"] == first


async def test_a_folder_that_was_removed_is_made_again(watch: SocketWatch, folder: Path) -> None:
    make_socket(folder / "a.sock")
    await settled(watch, folder, ["a.sock"])
    (folder / "a.sock").unlink()
    folder.rmdir()
    await settled(watch, folder, [])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settled, watch, folder, ["a.sock"])
        with trio.fail_after(WITHIN):
            while not folder.exists():
                await trio.sleep(0.001)
        make_socket(folder / "a.sock")


async def test_without_inotify_the_folder_is_looked_at(folder: Path, autojump_clock: MockClock) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    with patch.object(watcher, "Inotify", refuse), SocketWatch(folder) as watch:
        make_socket(folder / "a.sock")
        started = trio.current_time()
        await watch.changed()
        assert names(watch, folder) == ["a.sock"]
        assert trio.current_time() - started <= 2 * watcher.LOOK_SECONDS


async def test_a_plugin_registers_through_a_real_socket_and_again_after_a_restart(folder: Path) -> None:
    plugin, handler = FakePlugin("driver"), NotingHandler()
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            with SocketWatch(folder) as watch:
                registrar = PluginRegistrar(watch, {"Test": handler}, rng=Random(1))
                await nursery.start(registrar.run)
                server = nursery.cancel_scope
                await nursery.start(Server([plugin]).serve_unix, folder / "driver.sock")
                with trio.fail_after(WITHIN):
                    while not registrar.statistics() or not registrar.statistics()[0].registered:
                        await trio.sleep(0.001)
                server.cancel()
        handler.registered.clear()
    assert plugin.told == ["", ""]
    assert not os.path.lexists(folder / "driver.sock")
