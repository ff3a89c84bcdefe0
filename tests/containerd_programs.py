"""Which containerd the tests run: the machine's, or another one that TRIKUBELET_CONTAINERD names.

The variable is the path of a containerd, or of a folder that has one, with its shim and `ctr` beside it. What else lies
there (runc, criu) goes before the machine's, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

CONTAINERD: Final = "TRIKUBELET_CONTAINERD"
"""Name of the environment variable."""
PROGRAMS: Final = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")


def search_path() -> str:
    """A PATH. Raises ValueError when the variable names no containerd."""
    path = os.environ.get("PATH", os.defpath)
    given = os.environ.get(CONTAINERD)
    if not given:
        return path
    named = Path(given).resolve()
    folder = named if named.is_dir() else named.parent
    for name in PROGRAMS[:3]:
        if not os.access(folder / name, os.X_OK):
            raise ValueError(f"{CONTAINERD}={given}: expected {', '.join(PROGRAMS[:3])} in {folder}, found no {name}")
    return f"{folder}{os.pathsep}{path}"


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]


def program(name: str) -> str:
    """Its path."""
    found = shutil.which(name, path=search_path())
    assert found is not None, f"{name} is not installed"
    return found


@cache
def containerd_version() -> tuple[int, int]:
    """Major and minor number."""
    told = subprocess.run([program("containerd"), "--version"], capture_output=True, check=True, text=True).stdout
    numbers = re.search(r" v?(\d+)\.(\d+)\.", told)
    assert numbers is not None, told
    return int(numbers[1]), int(numbers[2])
