"""What the runtime's messages mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from trikubelet.container.model import ContainerUser
from trikubelet.rpc.cri import v1
from trikubelet.runtime.convert import container_status, start_was_cut_off


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


CREATING: Final = "failed to create containerd task: "
SHIM: Final = f"{CREATING}failed to start shim: start failed: "


@pytest.mark.parametrize(
    ("message", "cut_off"),
    [
        # As containerd 1.6 says it, by the moment in which its client leaves.
        (f"{CREATING}failed to create shim task: context canceled: unknown", True),
        (f"{CREATING}failed to create shim task: context canceled", True),
        (f"{CREATING}failed to create shim: context canceled: unknown", True),
        (f"{SHIM}unix:///run/containerd/s/4284b5da: context canceled: unknown", True),
        (f"{SHIM}: signal: killed: unknown", True),
        (f"{CREATING}context cancelled", True),
        ("failed to update container IO owner: context canceled", True),
        # The process may have run for a moment.
        ('failed to start containerd task "0f": context canceled: unknown', False),
        # Reasons of its own.
        ("", False),
        ("context canceled", False),
        (
            f"{CREATING}failed to create shim task: OCI runtime create failed: hook: context canceled",
            False,
        ),
        (f"{CREATING}failed to create shim task: context deadline exceeded: unknown", False),
        (f"{CREATING}failed to create shim task: context canceled: exit status 1", False),
        ('sandbox container "0f" is not running', False),
    ],
)
def test_a_start_that_ended_with_its_client_is_told_by_its_message(message: str, cut_off: bool) -> None:
    status = v1.ContainerStatus(
        id="c", state=v1.ContainerState.CONTAINER_EXITED, exit_code=128, reason="StartError", message=message
    )
    assert start_was_cut_off(status) == cut_off


@pytest.mark.parametrize(
    "other",
    [
        {"started_at": 1},
        {"exit_code": 1},
        {"reason": "Error"},
        {"state": v1.ContainerState.CONTAINER_RUNNING},
        {"state": v1.ContainerState.CONTAINER_CREATED},
    ],
)
def test_a_container_that_may_have_run_was_not_cut_off_whatever_its_message(other: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"exit_code": 128, "reason": "StartError", "message": f"{CREATING}context canceled"}
    cut_off = v1.ContainerStatus(id="c", **{"state": v1.ContainerState.CONTAINER_EXITED, **fields})
    assert start_was_cut_off(cut_off)
    assert not start_was_cut_off(replace(cut_off, **other))
