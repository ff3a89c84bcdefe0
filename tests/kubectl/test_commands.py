"""`kubectl exec`, `attach` and `debug`, by WebSocket to the node, and by SPDY where the API server knows no better."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.kubectl.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kubectl.one_node import OneNode

pytestmark = pytest.mark.kubectl

DATA = os.urandom(5 * 2**20)
MAIN = ("web", "-c", "main")


@pytest.fixture(params=["websocket", "spdy"])
def way(request: pytest.FixtureRequest, node: OneNode) -> Iterator[str]:
    node.pass_websockets(request.param == "websocket")
    before = node.websocket_requests()
    yield request.param
    grown = node.websocket_requests() != before
    node.pass_websockets(True)
    assert grown == (request.param == "websocket"), "kubectl came another way"


def test_output_error_and_exit_code(node: OneNode, way: str) -> None:
    done = node.run("exec", *MAIN, "--", "sh", "-c", "echo out; echo err >&2; exit 42")
    assert done.returncode == 42
    assert done.stdout == b"out\n"
    # kubectl reads before it has its streams ready: on a busy machine it complains about the first, empty message.
    assert b"err" in done.stderr.splitlines()


def test_much_goes_in_and_out(node: OneNode, way: str) -> None:
    assert node.kubectl("exec", "-i", *MAIN, "--", "cat", stdin=DATA) == DATA


def test_a_command_that_is_not_there(node: OneNode, way: str) -> None:
    done = node.run("exec", *MAIN, "--", "/no/such/command")
    assert done.returncode != 0
    assert b"no such file" in done.stderr.lower()
    assert not [line for line in node.node.log() if "/no/such/command" in str(line)], "a command may hold a secret"


def test_a_terminal_and_its_size(node: OneNode, way: str) -> None:
    with terminal(node, "exec", "-it", *MAIN, "--", "sh", rows=31, columns=93) as person:
        person.until_sized(31, 93)
        person.resize(40, 111)
        person.until_sized(40, 111)
        person.type("exit 7\n")
        assert person.ended() == 7


def test_attaching_to_a_container_that_reads(node: OneNode, way: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with node.going("attach", "-i", "web", "-c", "reads", **pipes) as attached:
        assert attached.stdin is not None
        assert attached.stdout is not None
        attached.stdin.write(f"hello by {way}\n".encode())
        attached.stdin.flush()
        assert attached.stdout.readline() == f"got hello by {way}\n".encode()


def test_attaching_to_a_terminal(node: OneNode, way: str) -> None:
    # Of another size than the client before left it.
    rows, columns = (29, 87) if way == "spdy" else (33, 101)
    with terminal(node, "attach", "-it", "web", "-c", "tty", rows=rows, columns=columns) as person:
        # kubectl makes the terminal larger and then right again, so that what runs there draws it anew. The shell may
        # read before that happens.
        person.until_sized(rows, columns)
        person.type(f"echo $((6 * 7)) by {way}\n")
        person.wait_for(f"42 by {way}")


def test_debugging(node: OneNode) -> None:
    image = node.node.image
    words = ["debug", "web", f"--image={image}", "--image-pull-policy=IfNotPresent", "--profile=general"]
    with terminal(node, *words, "-it", "--container=look", "--target=main", "--", "sh") as person:
        person.until_sized(31, 93)
        person.type("exit\n")
        assert person.ended() == 0
    node.until(lambda: "terminated" in node.status("web", "look", "ephemeralContainerStatuses")["state"], "look ends")
    assert b"size is 31 93" in node.kubectl("logs", "web", "-c", "look")
