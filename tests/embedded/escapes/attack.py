"""What the tests of escapes share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from grpclib import GRPCError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.runtime_node import Node


def needs_isolation(node: Node) -> None:
    """Skip where containers are plain processes of the machine: they have no files of their own to break out of."""
    if node.cri.capabilities()["mode"] == "plain":
        pytest.skip("containers are plain processes here")


async def start_fails(node: Node, container: str, text: str) -> None:
    """The container cannot be started, and the error says why."""
    with pytest.raises(GRPCError) as failure:
        await node.start(container)
    assert text in str(failure.value.message)


def nest(top: Path, depth: int) -> None:
    """Folders nested deeper than any path may be long, and than Python's stack."""
    here = os.open(top, os.O_PATH)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_PATH, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
