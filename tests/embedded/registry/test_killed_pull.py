"""A process that is killed while it pulls."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from tests.embedded.images.archives import Entry, layer
from tests.embedded.registry.conftest import PullFixture
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.embedded.registry.scripted_registry import Answer, Asked, ScriptedRegistry


async def test_a_pull_that_is_killed_leaves_nothing_after_the_next_start(
    tmp_path: Path, registry: ScriptedRegistry
) -> None:
    put = registry.put_image("app", "1", [layer("one"), layer(Entry("two", b"2" * 100_000))])
    stuck = f"/v2/app/blobs/{put.layers[1]}"
    hangs = trio.Event()

    async def hang(stream: trio.abc.Stream, asked: Asked, answer: Answer) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer.body)}\r\n\r\n".encode()
        await stream.send_all(head + answer.body[: len(answer.body) // 2])
        hangs.set()
        await trio.sleep_forever()

    registry.senders[stuck] = hang
    command = [sys.executable, "-m", __name__, str(tmp_path), f"{registry.host}/app:1"]
    async with trio.open_nursery() as nursery:
        killed: trio.Process = await nursery.start(_until_killed, command)
        with trio.fail_after(PATIENCE):
            await hangs.wait()
            started = PullFixture.make(tmp_path)  # the next one; the first still pulls
            while not list(tmp_path.glob("store/staging/*/flat-*")):
                await trio.sleep(0.01)
            assert await started.store.collect_garbage() == 0, "nothing of a pull at work is garbage"
            killed.send_signal(signal.SIGKILL)
            await killed.wait()
    assert started.leftovers() != []
    await started.store.collect_garbage()
    assert started.leftovers() == []
    assert [path.name for path in (tmp_path / "store" / "layers").iterdir()] == []
    assert [image.name for image in started.store.list() if not image.is_host] == []
    del registry.senders[stuck]
    assert (await started.pull(f"{registry.host}/app:1")).id == put.id


async def _until_killed(command: Sequence[str], *, task_status: trio.TaskStatus[trio.Process]) -> None:
    process = await trio.lowlevel.open_process(list(command))
    task_status.started(process)
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


if __name__ == "__main__":
    trio.run(PullFixture.make(Path(sys.argv[1])).pull, sys.argv[2])
