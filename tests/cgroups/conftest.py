"""Groups of their own for tests on real hierarchies, named after the test process and gone at the end."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from trikubelet.cgroups.files_v1 import V1Files
from trikubelet.cgroups.files_v2 import V2Files
from trikubelet.cgroups.hierarchy import Hierarchies
from trikubelet.cgroups.kernel_files import KernelFiles
from trikubelet.cgroups.version import read_hierarchies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trikubelet.cgroups.names import CgroupName


@contextmanager
def _swept(mount_points: tuple[Path, ...], name: str) -> Iterator[None]:
    kernel = KernelFiles()
    try:
        yield
    finally:
        left = [path for point in mount_points for path in kernel.below(f"{point}/{name}")]
        for path in left:
            for pid in kernel.processes(path):
                kernel.kill(pid)
        for path in reversed(left):
            with suppress(OSError):
                kernel.write(f"{path}/freezer.state", "THAWED")
        give_up = time.monotonic() + 5
        while any(kernel.processes(path) for path in left) and time.monotonic() < give_up:
            time.sleep(0.01)
        for path in left:
            kernel.delete(path)


@pytest.fixture
def v1(own_root: CgroupName) -> Iterator[V1Files]:
    """A driver on this machine's hierarchies of version 1."""
    hierarchies = read_hierarchies()
    if hierarchies.version != 1 or hierarchies.lacking:
        pytest.skip("needs cgroup v1")
    with _swept(hierarchies.mount_points, own_root[0]):
        yield V1Files(hierarchies)


@pytest.fixture
def v2(own_root: CgroupName, tmp_path: Path) -> Iterator[V2Files]:
    """A driver on the machine's hierarchy of version 2, mounted once more; controllers that version 1 has are not in
    it."""
    point = tmp_path / "unified"
    point.mkdir()
    subprocess.run(["mount", "-t", "cgroup2", "none", point], check=True)
    control = point / "cgroup.subtree_control"
    before = set(control.read_text().split())
    try:
        with _swept((point,), own_root[0]):
            yield V2Files(Hierarchies(2, {}, point, (2 * 1024 * 1024,)))
        for controller in set(control.read_text().split()) - before:
            control.write_text(f"-{controller}")
    finally:
        subprocess.run(["umount", point], check=True)


@pytest.fixture
def own_root() -> CgroupName:
    return (f"trikubelet-test-{os.getpid()}",)
