"""What the runtime's messages mean."""

from __future__ import annotations

import pytest

from trikubelet.container.model import ContainerUser
from trikubelet.rpc.cri import v1
from trikubelet.runtime.convert import container_status


@pytest.mark.parametrize(
    ("sent", "user"),
    [
        # The field `user` (18) with its field `linux` (1): uid, gid and groups, or all of them zero.
        (bytes.fromhex("9201 0a 0a08 08e807 1064 1a01 32"), ContainerUser(1000, 100, (50,))),
        (bytes.fromhex("9201 02 0a00"), ContainerUser(0, 0)),
        (bytes.fromhex("9201 00"), None),
        (b"", None),
    ],
)
def test_root_is_told_from_a_runtime_that_says_nothing(sent: bytes, user: ContainerUser | None) -> None:
    status = container_status(v1.ContainerStatus().parse(sent), runtime_name="test", pod_sandbox_id="s")
    assert status.user == user
