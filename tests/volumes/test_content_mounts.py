"""Volumes of the agent's own content with the kernel's mounts, owners and kills."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from tests.volumes.content_stage import (
    API_ACCESS,
    CONFIG,
    GROUP,
    NOW,
    SECRET,
    Stage,
    contents,
    filled_stage,
    mode,
    place,
)
from tests.volumes.payload.steps import before_each_step, killed_before
from trikubelet.api import Quantity
from trikubelet.linux.mounter import Mounter
from trikubelet.volumes.payload.files import PayloadFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.root


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Stage]:
    """With the kernel's mounts."""
    stage = filled_stage(tmp_path)
    stage.mounter = Mounter()
    yield stage
    for found in stage.mounter.table().below(stage.root):
        stage.mounter.unmount(found.point)


async def test_a_secret_is_on_a_tmpfs_that_goes_with_the_volume(real: Stage) -> None:
    real.allocatable = {"memory": Quantity("16Mi")}
    path = (await real.set_up(SECRET)).path
    assert path is not None
    found = real.mounter.table().at(path)
    assert found is not None
    assert found.kind == "tmpfs"
    assert stat.S_IMODE(path.stat().st_mode) == 0o1777
    figures = os.statvfs(path)
    assert figures.f_blocks * figures.f_frsize == 16 * 2**20
    assert contents(path) == {"pw": b"hunter2"}
    await real.tear_down(SECRET)
    assert real.left() == []
    assert list(real.mounter.table().below(real.root)) == []


@pytest.mark.parametrize(
    ("user", "group", "token_mode", "token_owner", "other_mode", "root_mode"),
    [
        (None, None, 0o644, (0, 0), 0o644, 0o1777),
        (1000, None, 0o600, (1000, 0), 0o644, 0o1777),
        (0, None, 0o600, (0, 0), 0o644, 0o1777),
        (None, GROUP, 0o640, (0, GROUP), 0o644, 0o3777),
        (1000, GROUP, 0o640, (1000, GROUP), 0o644, 0o3777),
    ],
)
async def test_tokens_are_for_the_pods_user_and_group(
    real: Stage,
    user: int | None,
    group: int | None,
    token_mode: int,
    token_owner: tuple[int, int],
    other_mode: int,
    root_mode: int,
) -> None:
    for refresh in (False, True):  # a new token each time
        path = (await real.set_up(API_ACCESS, user=user, group=group, refresh=refresh)).path
        assert path is not None
        token = (path / "token").stat()
        assert (stat.S_IMODE(token.st_mode), (token.st_uid, token.st_gid)) == (token_mode, token_owner)
        assert mode(path / "ca.crt") == other_mode
        assert ((path / "ca.crt").stat().st_uid, (path / "ca.crt").stat().st_gid) == (0, group or 0)
        assert (mode(path), path.stat().st_gid) == (root_mode, group or 0)


async def test_a_config_map_is_the_groups(real: Stage) -> None:
    path = (await real.set_up({"configMap": {"name": "cm", "defaultMode": 0o400}}, group=GROUP)).path
    assert path is not None
    assert (mode(path), path.stat().st_gid) == (0o2777, GROUP)
    assert (mode(path / "a"), (path / "a").stat().st_gid) == (0o440, GROUP)
    assert mode((path / "..data").resolve()) == 0o2755


async def test_a_new_token_is_never_shown_to_others_before_it_is_the_users(real: Stage) -> None:
    kind, request = real.kind(API_ACCESS), real.request(API_ACCESS, user=1000, group=GROUP)
    seen: set[tuple[int, int, int]] = set()

    def look(_: str, __: tuple[object, ...]) -> None:
        if (request.path / "a").exists():
            info = (request.path / "a").stat()
            seen.add((stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid))

    with before_each_step(look):
        for number in range(3):
            kind._place(request, {"a": PayloadFile(b"%d" % number, 0o600, 1000)}, (), None, NOW)
    assert seen == {(0o640, 1000, GROUP)}


async def test_a_foreign_mount_on_a_volumes_folder_keeps_its_files(real: Stage, tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (share / "data").write_bytes(b"precious")
    path = (await real.set_up(CONFIG)).path
    assert path is not None
    real.mounter.bind(share, path)
    await real.tear_down(CONFIG)
    assert (share / "data").read_bytes() == b"precious"
    assert real.left() == []


@pytest.mark.parametrize("volume", [CONFIG, SECRET])
def test_an_agent_killed_at_any_step_leaves_what_the_next_one_repairs(real: Stage, volume: dict[str, Any]) -> None:
    kind, request = real.kind(volume), real.request(volume)
    payload = {"a": b"1"}
    for step in range(200):
        done = False
        with killed_before(step):
            place(kind, request, payload)
            done = True
        place(kind, request, payload)
        assert contents(request.path) == payload
        assert real.mounter.is_mount(request.path) is (volume is SECRET)
        with killed_before(step):
            kind._folder("uid-1", "vol").remove()
        kind._folder("uid-1", "vol").remove()
        assert real.left() == []
        assert real.mounter.table().below(real.root) == []
        if done:
            return
    pytest.fail("expected it to be set up in 200 steps")
