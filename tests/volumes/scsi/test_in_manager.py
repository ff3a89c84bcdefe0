"""Disks in the volume manager: a controller says when they may be used, and a restart forgets nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import trio
import trio.testing

from tests.patience import PATIENCE
from tests.volumes.scsi.san import IQN, PORTAL, San, own_disk
from tests.volumes.stage import InlineDisk, Stage, empty_dir, pod, stage
from trikubelet.volumes.sources import EMPTY_DIR, ISCSI

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.volumes.fake_kind import FakeKind

__all__ = ["stage"]

NAME = f"{ISCSI}/{PORTAL}:{IQN}:0"
WEB = pod("web", {"name": "data", "iscsi": own_disk(secretRef=None)})
UID = WEB.metadata.uid


def use(stage: Stage, san: San, **more: Any) -> None:
    kind = san.iscsi(stage.root, stage.mounter, stage.storage, **more)
    stage.kinds[ISCSI] = cast("FakeKind", kind)


async def test_a_disk_is_logged_in_to_when_a_controller_says_so(stage: Stage, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    use(stage, san)
    with trio.fail_after(PATIENCE):
        async with stage.running() as manager, trio.open_nursery() as nursery:
            nursery.start_soon(manager.prepare, WEB)
            await manager.in_use_changes.wait()
            assert manager.in_use() == (NAME,)
            manager.reported_in_use((NAME,))
            await trio.testing.wait_all_tasks_blocked()
            assert san.calls() == []
            stage.storage.attach({NAME: ""})
        assert manager.host_path(WEB, "data") is not None
        assert san.sessions() == ["host2"]


async def test_a_session_ends_with_the_pod_of_an_agent_that_was_killed(stage: Stage, san: San) -> None:
    san.portal(PORTAL, 2, "sda")
    use(stage, san, attached_by_controller=False)
    with trio.fail_after(PATIENCE):
        async with stage.running() as manager:
            await manager.prepare(WEB)
        assert san.sessions() == ["host2"]
        async with stage.running() as manager:
            assert (manager.reconstructed, manager.not_understood) == (1, 0)
            await manager.remove(UID)
        assert san.sessions() == []
        assert stage.mounter.mounts == []
        assert [path for path in stage.root.rglob("*") if path.is_file() and "san" not in path.parts] == []


async def test_a_sub_path_of_a_disk_is_looked_for_with_a_deadline(
    stage: Stage, san: San, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    async def run_foreign(disk: InlineDisk, where: object, work: Callable[[], Path], **_: float) -> Path:
        asked.append(where)
        return await disk.run(work)

    monkeypatch.setattr(InlineDisk, "run_foreign", run_foreign)
    san.portal(PORTAL, 2, "sda")
    use(stage, san, attached_by_controller=False)
    stage.kind(EMPTY_DIR)
    web = pod("web", {"name": "data", "iscsi": own_disk(secretRef=None)}, empty_dir())
    with trio.fail_after(PATIENCE):
        async with stage.running() as manager:
            await manager.prepare(web)
            del asked[:]
            await manager.bind_subpath(web, "main", 0, "data", "inside")
            await manager.bind_subpath(web, "main", 1, "cache", "inside")
            assert asked == [manager.host_path(web, "data")], "its disk may be away; the agent's own is not"
