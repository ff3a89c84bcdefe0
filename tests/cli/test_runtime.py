"""`trikubelet runtime serve`, as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from tests.embedded.runtime_node import is_alive, wait_until
from tests.patience import PATIENCE
from trikubelet.linux.trees import remove_tree
from trikubelet.rpc.cri.client import ImageClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

COMMAND = (sys.executable, "-c", "from trikubelet.cli.main import main; main()", "runtime", "serve")


@asynccontextmanager
async def served(folder: Path, *flags: str) -> AsyncIterator[ImageClient]:
    """A runtime that has no pods."""
    socket, root = folder / "cri.sock", folder / "runtime"
    process = await trio.lowlevel.open_process(
        [*COMMAND, f"--listen=unix://{socket}", f"--root={root}", *flags], stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        with trio.fail_after(PATIENCE):
            said = b""
            while b"serving CRI" not in said:
                block = await process.stderr.receive_some()
                assert block, said.decode()
                said += block
        async with open_unix_channel(socket) as channel:
            yield ImageClient(channel, timeout=PATIENCE)
    finally:
        process.terminate()
        with trio.fail_after(PATIENCE, shield=True):
            await process.wait()
        await process.stderr.aclose()
        keeper = json.loads((root / "keeper.json").read_text())["pid"]
        remove_tree(root)  # with which the keeper ends
        await wait_until(lambda: not is_alive(keeper), "the keeper has ended")


@pytest.mark.parametrize(("flags", "offered"), [((), []), (("--host-image",), ["localhost/host:latest"])])
async def test_the_machines_own_files_are_an_image_only_where_a_flag_says_so(
    tmp_path: Path, flags: tuple[str, ...], offered: list[str]
) -> None:
    async with served(tmp_path, *flags) as runtime:
        images = await runtime.list_images()
    assert [tag for image in images for tag in image.repo_tags] == offered
