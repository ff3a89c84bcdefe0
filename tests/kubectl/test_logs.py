"""`kubectl logs`: what a container wrote, chosen and followed."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.kubectl.one_node import UNTIL_TERM

if TYPE_CHECKING:
    from tests.kubectl.one_node import OneNode

pytestmark = pytest.mark.kubectl

LINES = [f"line {number:03}" for number in range(1, 101)]


def logs(node: OneNode, *options: str) -> list[str]:
    return node.kubectl("logs", "web", *options).decode().splitlines()


def test_the_whole_log(node: OneNode) -> None:
    found = logs(node)  # of the first container, which kubectl takes by itself
    assert [line for line in found if line != "complaint"] == LINES
    assert "complaint" in found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--tail=3"], 3),
        (["--tail=0"], 0),
        (["--since=1h"], 101),
        (["--since-time=2999-01-01T00:00:00Z"], 0),
        (["--since=1h", "--tail=2"], 2),
    ],
)
def test_a_part_of_it(node: OneNode, options: list[str], expected: int) -> None:
    assert len(logs(node, "-c", "main", *options)) == expected


def test_no_more_bytes_than_asked_for(node: OneNode) -> None:
    limited = node.kubectl("logs", "web", "--limit-bytes=223")
    assert len(limited) == 223
    assert node.kubectl("logs", "web").startswith(limited)


def test_timestamps(node: OneNode) -> None:
    found = logs(node, "-c", "main", "--timestamps", "--tail=2")
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}\S+ ", line) for line in found)
    since = found[-1].partition(" ")[0]
    assert 1 <= len(logs(node, "-c", "main", f"--since-time={since}")) <= 101


def test_all_containers_of_a_pod(node: OneNode) -> None:
    found = logs(node, "--all-containers", "--prefix", "--tail=1")
    assert any(line.startswith("[pod/web/main] ") for line in found)


def test_following_to_the_end(node: OneNode) -> None:
    go = node.node.shared / "go"
    script = "echo one; echo two; while [ ! -e /shared/go ]; do sleep 0.05; done; echo three; exit 0"
    node.start("counts", node.container("counts", script), restartPolicy="Never")
    with node.going("logs", "-f", "counts", stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert [following.stdout.readline() for _ in range(2)] == [b"one\n", b"two\n"]
        go.touch()
        assert following.stdout.read() == b"three\n"
        assert following.wait(20) == 0
    node.kubectl("delete", "pod", "counts", "--wait=true")


def test_what_the_container_before_wrote(node: OneNode) -> None:
    script = f"if mkdir /shared/was-here 2>/dev/null; then echo first; exit 3; fi; echo second; {UNTIL_TERM}"
    node.start("again", node.container("again", script))
    node.until(lambda: node.status("again", "again")["restartCount"] == 1, "it has been restarted")
    assert node.kubectl("logs", "again", "--previous") == b"first\n"
    node.until(lambda: node.kubectl("logs", "again") == b"second\n", "it has written")
    node.kubectl("delete", "pod", "again", "--now")


def test_what_there_is_not(node: OneNode) -> None:
    refused = node.run("logs", "web", "-c", "main", "--previous")
    assert refused.returncode == 1
    assert refused.stderr.startswith(b"Error from server (BadRequest): previous terminated container")
    assert b"container other is not valid for pod web" in node.run("logs", "web", "-c", "other").stderr
