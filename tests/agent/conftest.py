"""A real node per test, on each runtime. At its end nothing may be left of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.agent.private_cgroups import PrivateCgroups, private_cgroups
from tests.agent.real_node import RealNode

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNTIMES = (
    pytest.param("embedded", marks=pytest.mark.root),
    pytest.param("containerd", marks=[pytest.mark.containerd, pytest.mark.again]),
)


UNPRIVILEGED = 65534


def node_on(request: pytest.FixtureRequest, folder: Path) -> RealNode:
    """For a fixture with the parameters RUNTIMES: on the one that it is asked for."""
    if request.param == "embedded":
        return RealNode(folder, "localhost/host")
    return RealNode(folder, "localhost/test:1", request.getfixturevalue("containerd"))


@pytest.fixture(params=RUNTIMES)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealNode]:
    """Ended with SIGTERM if the test has not: it must drain, unless the test started it otherwise."""
    yield from until_clean(node_on(request, tmp_path))


@pytest.fixture
def embedded_node(tmp_path: Path) -> Iterator[RealNode]:
    yield from until_clean(RealNode(tmp_path, "localhost/host"))


@pytest.fixture
def unprivileged_node() -> Iterator[RealNode]:
    """An agent of a user without any rights, in a folder that this user can reach."""
    become = ("setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups")
    # An environment is of no use to others when the interpreter that it links to lies in somebody's home.
    candidates = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
    python = next((path for path in candidates if _works(*become, "sh", "-c", f"exec {path} -c ''")), None)
    if python is None:
        pytest.skip(f"needs a Python within reach of unprivileged users, {sys.executable} is not")
    with TemporaryDirectory(prefix="trikubelet-test-") as name:
        node = RealNode(Path(name), "localhost/host", prefix=become, python=python)
        for path in (node.folder, *node.folder.rglob("*")):
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        yield from until_clean(node)


@pytest.fixture
def cgroups() -> Iterator[PrivateCgroups]:
    """A cgroup root that belongs to this test. To be named before the node, whose agent makes groups until it ends."""
    with private_cgroups() as made:
        yield made


def _works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def until_clean(node: RealNode) -> Iterator[RealNode]:
    """Yield the node. Afterwards end its agent if the test has not; nothing may be left."""
    try:
        yield node
        if node.agent is not None:
            assert node.stop() == 0, node.told()
        node.until(lambda: not node.leftovers(), f"nothing is left of {node.leftovers()}")
    finally:
        node.clean()
