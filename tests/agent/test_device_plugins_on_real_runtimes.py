"""A device plugin as a process, an agent as a process, and containers that use its devices."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from base64 import b64decode
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from trikubelet.node.devices.server import FOLDER
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.real_node import RealNode

BRICK = "toy.example.com/brick"
LOOK = (
    'echo "$BRICKS|$(ls /dev | grep brick)|$(cat /toolbox/hammer)"; '
    "echo x > /dev/brick-$BRICKS && [ -c /dev/brick-$BRICKS ] && echo usable; "
    "(echo x > /toolbox/saw) 2> /dev/null && echo written; "
    "trap 'exit 0' TERM; while :; do sleep 0.1; done"
)


@contextmanager
def plugin(node: RealNode) -> Iterator[subprocess.Popen[bytes]]:
    folder = node.root / FOLDER
    (node.folder / "toolbox").mkdir()
    (node.folder / "toolbox" / "hammer").write_text("a hammer\n")
    command = [
        *(sys.executable, "-m", "tests.device_plugin", "--folder", str(folder), "--pre-start"),
        *("--devices", str(node.folder / "bricks.json"), "--log", str(node.folder / "calls.jsonl")),
        *("--toolbox", str(node.folder / "toolbox"), "--socket", str(folder / "toy.sock")),
    ]
    with (node.folder / "plugin.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        (folder / "toy.sock").unlink(missing_ok=True)


def tell(node: RealNode, **health: str) -> None:
    """Have the plugin tell how its devices do."""
    unfinished = node.folder / "bricks.new"
    unfinished.write_text(json.dumps(health))
    unfinished.rename(node.folder / "bricks.json")


def amounts(node: RealNode) -> tuple[int, int, int] | None:
    """How many bricks the node has, how many of them do well, and how many are taken."""
    for one in node.client.get("/statistics")["agent"]["devices"]:
        if one["resource"] == BRICK:
            return one["capacity"], one["healthy"], one["taken"]
    return None


def run_with_bricks(node: RealNode, name: str, number: int = 1) -> None:
    limits = {"limits": {BRICK: str(number)}}
    node.run(name, node.container(LOOK, name, resources=limits), terminationGracePeriodSeconds=2)


def health(node: RealNode, name: str) -> dict[str, str]:
    statuses = node.status(name, name).allocated_resources_status
    return {one.resource_id: one.health for status in statuses for one in status.resources}


def asked(node: RealNode, call: str) -> list[list[str]]:
    lines = map(json.loads, (node.folder / "calls.jsonl").read_text().splitlines())
    return [line["devices"] for line in lines if line["call"] == call]


def annotation(node: RealNode) -> str:
    """What the runtime was told of the only container's bricks."""
    if node.containerd is None:
        [file] = (node.root / "runtime" / "containers").glob("*/container.json")
        config = v1.ContainerConfig().parse(b64decode(json.loads(file.read_text())["config"]))
        return config.annotations["toy.example.com/bricks"]
    socket = node.containerd.socket

    async def ask() -> str:
        async with open_unix_channel(socket) as channel:
            found = [one.annotations for one in await RuntimeClient(channel).list_containers()]
            return next(one["toy.example.com/bricks"] for one in found if "toy.example.com/bricks" in one)

    return trio.run(ask)


def test_the_devices_of_a_plugin(node: RealNode) -> None:
    tell(node, a="Healthy", b="Healthy")
    node.start()
    with plugin(node) as process:
        node.until(lambda: amounts(node) == (2, 2, 0), "the plugin has registered")
        run_with_bricks(node, "first")
        node.until_running("first")
        node.until(lambda: len(node.lines("first", "first")) == 2, "the container has looked around")
        assert node.lines("first", "first") == ["a|brick-a|a hammer", "usable"]
        assert annotation(node) == "a"
        assert health(node, "first") == {"a": "Healthy"}
        assert (asked(node, "Allocate"), asked(node, "PreStartContainer")) == ([["a"]], [["a"]])

        run_with_bricks(node, "greedy", 2)
        pod = node.until_phase("greedy", "Failed")
        problem = f"requested number of devices unavailable for {BRICK}. Requested: 2, Available: 1"
        message = f"Pod was rejected: Allocate failed due to {problem}, which is unexpected"
        assert (pod.status.reason, pod.status.message) == ("UnexpectedAdmissionError", message)
        node.delete("greedy")

        pid = node.until_process("first")
        assert node.stop(signal.SIGKILL) == -signal.SIGKILL
        node.start()
        node.until(lambda: amounts(node) == (2, 2, 1), "the plugin has found the next agent")
        run_with_bricks(node, "second")
        node.until_running("second")
        node.until(lambda: len(node.lines("second", "second")) == 2, "the container has looked around")
        assert node.lines("second", "second")[0] == "b|brick-b|a hammer"
        assert asked(node, "Allocate") == [["a"], ["b"]]
        assert node.process("first") == pid

        tell(node, a="Unhealthy", b="Healthy")
        node.until(lambda: health(node, "first") == {"a": "Unhealthy"}, "the pod's status tells of it")
        assert health(node, "second") == {"b": "Healthy"}
        assert amounts(node) == (2, 1, 2)
        process.kill()
        node.until(lambda: amounts(node) == (2, 0, 2), "the plugin is gone")
        assert node.process("first") == pid
    for name in ("first", "second"):
        node.delete(name)
        node.until_gone(name)
