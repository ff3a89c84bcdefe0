"""What an agent tells of its manifests: an event of the node when one breaks, is mended, or goes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio
import trio.testing

from tests.captured_logs import capture_logs
from tests.patience import PATIENCE
from trikubelet.agent.options import AgentOptions
from trikubelet.agent.sources import file_source
from trikubelet.clock import SystemClock
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.telemetry.events import EventRecorder

if TYPE_CHECKING:
    from pathlib import Path

GOOD = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, image: x}]}\n"
BAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: A}, {name: B, tty: 5}]}\n"


def put(file: Path, text: str) -> None:
    """Write a file at once, long ago."""
    hidden = file.with_name(".new")
    hidden.write_text(text)
    os.utime(hidden, (0, 0))
    hidden.rename(file)


async def test_a_file_that_breaks_is_an_event_and_all_its_problems_are_logged(tmp_path: Path) -> None:
    recorder = EventRecorder(SystemClock())
    options = AgentOptions(
        configuration=KubeletConfiguration(), root_dir=tmp_path, node_name="node", manifests=tmp_path / "mine"
    )
    source = file_source(options, SystemClock(), recorder)
    assert source is not None
    told: list[tuple[str, str]] = []
    recorder.add_listener(lambda event: told.append((event.reason, event.message)))

    async def ignore(_: object) -> None:
        await trio.lowlevel.checkpoint()

    async def until_told(count: int) -> None:
        with trio.fail_after(PATIENCE):
            while len(told) < count:
                await trio.testing.wait_all_tasks_blocked(0.002)

    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine/web.yaml"
    put(file, GOOD)
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            await nursery.start(source.run, ignore)
            put(file, BAD)
            await until_told(1)
            put(file, GOOD)
            await until_told(2)
            put(file, BAD)
            await until_told(3)
            file.unlink()
            await until_told(4)
            nursery.cancel_scope.cancel()
    first = f"{file}:4: spec.containers[1].tty: expected true or false, got 5"
    assert told == [
        ("InvalidManifest", f"{first} (and 4 more)"),
        ("ManifestMended", f"manifest is well again: {file}"),
        ("InvalidManifest", f"{first} (and 4 more)"),
        ("ManifestMended", f"manifest with problems is gone: {file}"),
    ]
    logged = [line["event"] for line in lines if line["event"].startswith(str(file))]
    assert len(logged) == 2 * 4, "the first one is the event's"
