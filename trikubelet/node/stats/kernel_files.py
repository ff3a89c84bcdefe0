"""Small files of the kernel, read as often as there are containers: so without Python's layers above `read(2)`.

All functions answer None, or nothing, for what is not there: a cgroup goes while it is read, and no kernel has all
files.
"""

from __future__ import annotations

import os
from typing import Final

from trikubelet.node.stats.model import PsiData, PsiStats

_CHUNK: Final = 65536
_MOST: Final = 4 * 2**20
"""Bytes; the greatest file that is read, `cgroup.procs`, has some ten for each process."""
UNLIMITED: Final = 1 << 62
"""A greater limit is the kernel's word for none."""


def read_text(path: str) -> str | None:
    """The whole of a file, None when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(descriptor, _CHUNK)
        if len(data) >= 4096:  # a page: there may be more
            while len(data) < _MOST and (more := os.read(descriptor, _CHUNK)):
                data += more
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data.decode("utf-8", "replace")


def read_number(path: str) -> int | None:
    """A file with one number."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def read_limit(path: str) -> int | None:
    """A file with one number where `max`, -1 and a huge number mean none; None for those."""
    number = read_number(path)
    return None if number is None or not 0 <= number < UNLIMITED else number


def read_table(path: str) -> dict[str, int]:
    """A file with lines `name value`."""
    return table_of(read_text(path) or "")


def table_of(text: str) -> dict[str, int]:
    """Lines `name value`; others are skipped."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        try:
            found[name] = int(value)
        except ValueError:
            continue
    return found


def read_pressure(path: str) -> PsiStats | None:
    """A `*.pressure` file; None where the kernel does not count it."""
    text = read_text(path)
    if not text:
        return None
    data = {}
    for line in text.splitlines():
        kind, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        try:
            data[kind] = PsiData(
                total=int(values["total"]),
                avg10=float(values["avg10"]),
                avg60=float(values["avg60"]),
                avg300=float(values["avg300"]),
            )
        except (KeyError, ValueError):
            continue
    if "some" not in data and "full" not in data:
        return None
    return PsiStats(some=data.get("some", PsiData()), full=data.get("full", PsiData()))
