"""A node per test. At its end nothing may be left: no process, no mount, no cgroup.

And `runtime`: a CRI runtime behind its socket, once the embedded one, once containerd.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cgroup_folders import cgroups_with
from tests.containerd_node import TEST_IMAGE, ContainerdNode
from tests.embedded.any_runtime import Runtime, runtime_at
from tests.embedded.runtime_node import Node, is_alive, mounts_with, running_node, wait_until
from tests.oci_image import make_root_folder, write_oci_archive
from tests.own_machine import pod_namespace
from trikubelet.clock import SystemClock
from trikubelet.embedded.runtime import EmbeddedRuntime
from trikubelet.rpc.grpc import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


RUNTIMES = (
    pytest.param("embedded", marks=pytest.mark.root),
    pytest.param("containerd", marks=[pytest.mark.containerd, pytest.mark.again]),
)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    root = tmp_path / "runtime"
    async with running_node(root, tmp_path / "logs") as node:
        keeper = node.keeper_pid()
        yield node
        with trio.move_on_after(30, shield=True):
            await node.remove_everything()
            # What was undone is deleted by and by, and where the agent ends meanwhile, by the next one.
            await wait_until(lambda: list((root / "removing").iterdir()) == [], "what was set aside is deleted")
            assert await node.runtime.shutdown()
    await wait_until(lambda: not is_alive(keeper), "the keeper has ended")
    assert mounts_with(str(root)) == []
    assert cgroups_with(hashlib.sha256(str(root).encode()).hexdigest()[:8]) == []
    assert list((root / "containers").iterdir()) == []
    assert list((root / "removing").iterdir()) == []


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("busybox")
    write_oci_archive(folder / "image.tar", make_root_folder(folder / "root"), TEST_IMAGE, {"Cmd": ["sh"]})
    return folder / "image.tar"


@pytest.fixture(params=RUNTIMES)
async def runtime(request: pytest.FixtureRequest, tmp_path: Path, busybox: Path) -> AsyncIterator[Runtime]:
    if request.param == "containerd":
        node: ContainerdNode = request.getfixturevalue("containerd")

        async with on_containerd(node, tmp_path) as runtime:
            yield runtime
        return
    async with on_embedded(busybox, tmp_path) as runtime:
        yield runtime


@pytest.fixture(params=RUNTIMES)
async def runtime_with_host_ports(
    request: pytest.FixtureRequest, tmp_path: Path, busybox: Path
) -> AsyncIterator[Runtime]:
    """containerd's plugin for them leaves rules of iptables, so it gets another machine."""
    if request.param == "embedded":
        async with on_embedded(busybox, tmp_path) as runtime:
            yield runtime
        return
    with pod_namespace() as machine, TemporaryDirectory() as root:  # whose name is short enough for sockets
        node = ContainerdNode(Path(root), f"br-test-p{os.getpid() % 10000}", namespace=machine)
        try:
            await trio.to_thread.run_sync(node.start)
            await trio.to_thread.run_sync(node.import_images)
            async with on_containerd(node, tmp_path) as runtime:
                yield runtime
        finally:
            node.stop()


@asynccontextmanager
async def on_containerd(node: ContainerdNode, folder: Path) -> AsyncIterator[Runtime]:
    async def import_image(archive: Path) -> None:
        await trio.to_thread.run_sync(node.ctr, "images", "import", str(archive))

    more = {"machine": node.namespace} if node.namespace else {}
    async with runtime_at("containerd", node.socket, folder, import_image, **more) as runtime:
        yield runtime


@asynccontextmanager
async def on_embedded(image: Path, folder: Path) -> AsyncIterator[Runtime]:
    """Its pods may have the bridge, on this machine."""
    embedded = EmbeddedRuntime(folder / "runtime", clock=SystemClock())
    await embedded.images.import_archive(image)
    async with trio.open_nursery() as nursery:
        await nursery.start(embedded.run)
        await nursery.start(Server(embedded.handlers).serve_unix, folder / "cri.sock")
        async with runtime_at("embedded", folder / "cri.sock", folder, embedded.images.import_archive) as runtime:
            yield runtime
        assert await embedded.shutdown()
        nursery.cancel_scope.cancel()
