"""The kernel's table of mounts, read."""

from __future__ import annotations

import os
from pathlib import Path

from trikubelet.volumes.mount_table import mounts_below


def test_names_are_read_as_they_are_whatever_bytes_they_have(tmp_path: Path) -> None:
    names = [
        b"plain",
        rb"a\040blank",
        rb"a\012line",
        rb"a\134slash",
        b"vertical\x0btab",
        b"no-\xff-text",
        rb"x\040-\040y",
    ]
    lines = [b"36 35 98:0 / /pods/uid/%b rw shared:1 master:2 - tmpfs tmpfs rw\n" % name for name in names]
    others = [b"37 35 98:0 / /pods/uid-2 rw - ext4 /dev/sda rw\n", b"38 35 98:0 / / rw - ext4 /dev/sda rw\n"]
    (tmp_path / "table").write_bytes(b"".join([*others, *lines]))
    found = mounts_below(Path("/pods/uid"), tmp_path / "table")
    assert [kind for _, kind in found] == ["tmpfs"] * len(names)
    expected = [b"plain", b"a blank", b"a\nline", b"a\\slash", b"vertical\x0btab", b"no-\xff-text", b"x - y"]
    assert [os.fsencode(point.name) for point, _ in reversed(found)] == expected
