"""The machine loses its power while an agent without a cluster runs: whatever has become of its files, pods run again.

A file that was being written may be empty afterwards, full of zeros, or half. What is written durably is not, on a disk
that keeps its word.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.agent.real_node import RealNode

UNTIL_TERM = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
IMAGES = "runtime/images/"
"""Their layers and records are checked when the store is opened (`tests/embedded/images`)."""


def emptied(_content: bytes) -> bytes:
    return b""


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


def zeroed(content: bytes) -> bytes:
    return bytes(len(content))


def state_files(root: Path) -> list[Path]:
    """All that tells the next agent something, locks and what containers wrote left out."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [
        path
        for path in files
        if path.stat().st_size
        and path.suffix not in (".lock", ".log")
        and not str(path.relative_to(root)).startswith(IMAGES)
        and not {"upper", "work", "volumes"} & {*path.relative_to(root).parts}
    ]


@pytest.mark.parametrize("cut", [emptied, halved, zeroed])
def test_pods_run_again_whatever_has_become_of_the_agents_files(
    embedded_node: RealNode, cut: Callable[[bytes], bytes]
) -> None:
    node = embedded_node
    for name in ("allocated_pods_state", "actuated_pods_state", "cpu_manager_state", "memory_manager_state"):
        node.root.mkdir(exist_ok=True)
        (node.root / name).write_bytes(b"")
    node.run("web", node.container(UNTIL_TERM), terminationGracePeriodSeconds=1)
    node.start()
    node.until_running("web")
    node.until((node.root / "allocated_pods_state").exists, "what the pod was given is written")
    node.stop(signal.SIGKILL)
    os.kill(node.runtime_pid, signal.SIGKILL)  # and all containers with it
    files = state_files(node.root)
    assert {path.name for path in files} >= {"allocated_pods_state", "container.json", "sandbox.json", "run.json"}
    for path in files:
        path.write_bytes(cut(path.read_bytes()))
    node.start()
    node.until_running("web")
    assert (node.root / "allocated_pods_state.broken").exists()
