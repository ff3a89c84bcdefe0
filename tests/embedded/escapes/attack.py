"""What the tests of escapes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from grpclib import GRPCError

if TYPE_CHECKING:
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
