"""A file system that never answers, as one on a network whose server is gone."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from trikubelet.embedded.keeper import linux

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def silent(folder: Path) -> Iterator[None]:
    """Whoever looks into `folder` waits, until it is killed or this is over. Skips where that cannot be made."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pytest.skip("no /dev/fuse")
    try:
        try:
            linux.mount("silent", str(folder), "fuse", 0, f"fd={device},rootmode=40000,user_id=0,group_id=0")
        except OSError as error:
            pytest.skip(f"no fuse: {error}")
        try:
            yield
        finally:
            linux.unmount(str(folder))
    finally:
        os.close(device)


@contextmanager
def shared(folder: Path) -> Iterator[None]:
    """What is mounted in `folder` meanwhile arrives in the containers that listen."""
    linux.mount(str(folder), str(folder), None, linux.MS_BIND)
    try:
        linux.mount(None, str(folder), None, linux.MS_SHARED)
        yield
    finally:
        linux.unmount(str(folder))
