from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.linux.huge_pages import huge_pages_folder, page_size_name, page_sizes

if TYPE_CHECKING:
    from pathlib import Path

KI = 2**10
MI = 2**20
GI = 2**30


@pytest.mark.parametrize(
    ("size", "name"),
    [(64 * KI, "64KB"), (2 * MI, "2MB"), (32 * MI, "32MB"), (GI, "1GB"), (1536 * KI, "1536KB")],
)
def test_page_sizes_are_named_as_the_kernel_names_them(size: int, name: str) -> None:
    assert page_size_name(size) == name


def test_a_machines_page_sizes_are_those_of_its_folders(tmp_path: Path) -> None:
    assert page_sizes(tmp_path) == ()
    for name in ("hugepages-1048576kB", "hugepages-2048kB", "hugepages-many"):
        (tmp_path / "sys/kernel/mm/hugepages" / name).mkdir(parents=True)
    assert page_sizes(tmp_path) == (2 * MI, GI)
    assert [huge_pages_folder(size, tmp_path).is_dir() for size in page_sizes(tmp_path)] == [True, True]
