"""What a CRI client reads when the disk of the embedded runtime fails."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from grpclib import GRPCError

if TYPE_CHECKING:
    from tests.embedded.runtime_node import Node

pytestmark = pytest.mark.root


async def test_a_full_disk_is_told_in_words(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(GRPCError) as caught:
            await node.sandbox()
    text = str(caught.value.message)
    assert "No space left on device: /" in text
    assert "None" not in text
