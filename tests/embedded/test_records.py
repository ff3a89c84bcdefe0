"""Deleting what containers leave behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trikubelet.embedded.records import delete_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

SOMEBODY = 65534


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder of a user who is not root, who runs the test."""
    folder = Path(tempfile.mkdtemp(prefix="trikubelet-test-"))
    was_root = os.geteuid() == 0
    if was_root:
        os.chown(folder, SOMEBODY, SOMEBODY)
        os.setegid(SOMEBODY)
        os.seteuid(SOMEBODY)
    try:
        yield folder
    finally:
        if was_root:
            os.seteuid(0)
            os.setegid(0)
            shutil.rmtree(folder)


def test_a_user_deletes_a_containers_files_whatever_their_modes(own_folder: Path) -> None:
    container, outside = own_folder / "container", own_folder / "outside"
    outside.mkdir(mode=0o555)
    upper = container / "upper"
    for name in ("readonly/below/deep", "closed/below", "unlistable/below"):
        (upper / name).mkdir(parents=True)
        (upper / name / "file").write_text("content")
        (upper / name / "file").chmod(0)
    (upper / "readonly" / "link").symlink_to(outside)
    (container / "work" / "work").mkdir(parents=True)
    for name, mode in (("readonly/below", 0o555), ("readonly", 0o555), ("closed", 0), ("unlistable", 0o311)):
        (upper / name).chmod(mode)
    (container / "work" / "work").chmod(0)
    upper.chmod(0o555)
    with pytest.raises(PermissionError):
        os.listdir(upper / "closed")  # noqa: PTH208
    delete_tree(container)
    assert [path.name for path in own_folder.iterdir()] == ["outside"]
    assert outside.stat().st_mode & 0o777 == 0o555, "a link's target is not touched"
