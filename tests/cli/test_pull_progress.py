"""What people see of a pull while it goes on: a line in a pod's description, and a bar on their terminal."""

from __future__ import annotations

import codecs
import os
import pty
import re
import signal
import subprocess
import tty
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.agent.real_node import COMMAND, RealNode
from tests.embedded.images.archives import Entry, layer
from tests.embedded.registry.scripted_registry import ScriptedRegistry, scripted_registry
from tests.patience import PATIENCE
from trikubelet.api import pod_from_dict
from trikubelet.cli.pod_description import describe_pod, waits_for_images

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from tests.embedded.registry.scripted_registry import Answer, Asked

LAYERS = (layer("one"), layer(Entry("two", os.urandom(3000))))
PROGRESS = "1.0MiB of 2.0MiB, 1 of 2 layers unpacked"
PULLS = [{"reference": "docker.io/library/web:1", "progress": PROGRESS}]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@attrs.define
class HeldRegistry:
    """It sends half of an image's second layer, and the rest when it is let."""

    registry: ScriptedRegistry
    image_id: str
    let: trio.Event = attrs.field(factory=trio.Event)

    @property
    def image(self) -> str:
        return f"{self.registry.host}/app:1"

    async def send(self, stream: trio.abc.Stream, _: Asked, answer: Answer) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
        half = len(answer.body) // 2
        await stream.send_all(head.encode() + answer.body[:half])
        await self.let.wait()
        await stream.send_all(answer.body[half:])


@pytest.fixture
async def held() -> AsyncIterator[HeldRegistry]:
    async with scripted_registry() as registry:
        put = registry.put_image("app", "1", LAYERS)
        held = HeldRegistry(registry, put.id)
        registry.senders[f"/v2/app/blobs/{put.layers[1]}"] = held.send
        yield held


# --- The line in a description ----------------------------------------------------------------------------------------


def described(state: Mapping[str, object], *, image: str = "web:1", init: bool = False) -> list[str]:
    kind = "initContainers" if init else "containers"
    status = {"name": "main", "image": image, "imageID": "", "ready": False, "restartCount": 0, "state": state}
    pod = pod_from_dict(
        {
            "metadata": {"name": "web", "namespace": "default", "uid": "uid-1"},
            "spec": {"containers": [], kind: [{"name": "main", "image": image}]},
            "status": {"phase": "Pending", f"{kind[:-1]}Statuses": [status]},
        }
    )
    return [line.strip() for line in describe_pod(pod, [], NOW, PULLS if waits_for_images(pod) else []).splitlines()]


def pulling(lines: list[str]) -> list[str]:
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Pulling")]


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "ErrImagePull", "ImagePullBackOff"])
@pytest.mark.parametrize("init", [False, True])
def test_a_container_that_waits_shows_how_far_the_pull_of_its_image_is(reason: str, init: bool) -> None:
    assert pulling(described({"waiting": {"reason": reason}}, init=init)) == [PROGRESS]


@pytest.mark.parametrize("image", ["docker.io/library/web:1", "index.docker.io/web:1", "library/web:1"])
def test_an_image_is_known_by_all_of_its_names(image: str) -> None:
    assert pulling(described({}, image=image)) == [PROGRESS]


@pytest.mark.parametrize(
    ("state", "image"),
    [
        ({"waiting": {"reason": "ContainerCreating"}}, "other:1"),
        ({"waiting": {"reason": "ContainerCreating"}}, "web:2"),
        ({"waiting": {"reason": "InvalidImageName"}}, "Not A Name"),
        ({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "web:1"),
        ({"terminated": {"exitCode": 0}}, "web:1"),
    ],
)
def test_others_show_nothing(state: Mapping[str, object], image: str) -> None:
    assert pulling(described(state, image=image)) == []


@pytest.mark.root
async def test_describe_pod_tells_how_far_a_pull_is(held: HeldRegistry, tmp_path: Path) -> None:
    node = RealNode(tmp_path, held.image)

    def describe() -> list[str]:
        done = node.cli("describe", "pod", "web")
        return pulling([line.strip() for line in done.stdout.splitlines()])

    try:
        await trio.to_thread.run_sync(node.start)
        node.run("web", node.container("true"), hostNetwork=True)
        told: list[str] = []
        with trio.fail_after(PATIENCE):
            while not (told and "1 of 2" in told[0]):
                told = await trio.to_thread.run_sync(describe)
        assert re.fullmatch(r"[\d.]+(B|KiB) of [\d.]+KiB, 1 of 2 layers unpacked", told[0])
        why = await trio.to_thread.run_sync(node.cli, "why", "web")
        assert re.search(r"PullImage of `main`: .*, 1 of 2 layers unpacked", why.stdout)
        held.let.set()
        with trio.fail_after(PATIENCE):
            while told:
                told = await trio.to_thread.run_sync(describe)
        await trio.to_thread.run_sync(node.stop)
    finally:
        await trio.to_thread.run_sync(node.clean)


# --- The bar ----------------------------------------------------------------------------------------------------------


@attrs.define
class Terminal:
    """What a command writes to its standard error, which is a terminal."""

    process: trio.Process
    descriptor: int
    shown: str = ""
    _decoder: codecs.IncrementalDecoder = attrs.field(factory=codecs.getincrementaldecoder("utf-8"))

    async def until(self, pattern: str) -> str:
        """The first match of what is shown."""
        with trio.fail_after(PATIENCE):
            while (found := re.search(pattern, self.shown)) is None:
                await trio.lowlevel.wait_readable(self.descriptor)
                self.shown += self._decoder.decode(os.read(self.descriptor, 65536))
        return found[0]


@asynccontextmanager
async def pulling_on_a_terminal(image: str, root: Path) -> AsyncIterator[Terminal]:
    ours, its = pty.openpty()
    tty.setraw(its)
    command = [*COMMAND, "images", "pull", image, f"--runtime-root={root}"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    try:
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=its, env=environment)
    finally:
        os.close(its)
    try:
        yield Terminal(process, ours)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
        os.close(ours)


async def test_a_bar_shows_layers_and_bytes_and_goes(held: HeldRegistry, tmp_path: Path) -> None:
    async with pulling_on_a_terminal(held.image, tmp_path / "runtime") as terminal:
        shown = await terminal.until(r"1/2 layers[^\r\n]*?([\d.]+/[\d.]+ (kB|bytes))")
        received, total = re.findall(r"([\d.]+)/([\d.]+) (?:kB|bytes)", shown)[-1]
        assert 0 < float(received) < float(total)
        held.let.set()
        assert terminal.process.stdout is not None
        with trio.fail_after(PATIENCE):
            assert await terminal.process.stdout.receive_some() == f"pulled {held.image} ({held.image_id})\n".encode()
            assert await terminal.process.wait() == 0
        await terminal.until(r"\x1b\[2K")  # the line is cleared


async def test_an_interrupted_pull_leaves_no_bar_and_no_layer(held: HeldRegistry, tmp_path: Path) -> None:
    root = tmp_path / "runtime"
    async with pulling_on_a_terminal(held.image, root) as terminal:
        await terminal.until("1/2 layers")
        terminal.process.send_signal(signal.SIGINT)
        with trio.fail_after(PATIENCE):
            assert await terminal.process.wait() != 0
        await terminal.until(r"\x1b\[2K")
        assert "Traceback" not in terminal.shown
    assert list((root / "images" / "staging").iterdir()) == []


async def test_without_a_terminal_there_is_no_bar(held: HeldRegistry, tmp_path: Path) -> None:
    held.let.set()
    command = [*COMMAND, "images", "pull", held.image, f"--runtime-root={tmp_path / 'runtime'}"]
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    assert done.stdout == f"pulled {held.image} ({held.image_id})\n".encode()
    assert b"layers" not in done.stderr
