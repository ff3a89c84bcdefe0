"""Which paths a file of a volume may have (kubelet: `validatePath`).

Names that begin with two dots are the writer's own. What the kubelet finds out while it writes, a path that names a
folder or lies below a file of the same payload, is found out here: then nothing has been written yet.
"""

from __future__ import annotations

import itertools
import os
import posixpath
from typing import TYPE_CHECKING, Final

from trikubelet.volumes.payload.files import PayloadError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.volumes.payload.files import Payload, PayloadFile

MAX_NAME: Final = 255
MAX_PATH: Final = 4096
"""Bytes."""


def with_clean_paths(payload: Mapping[str, PayloadFile]) -> Payload:
    """The payload with each path in its shortest form. Raises PayloadError."""
    clean = {clean_path(path): file for path, file in payload.items()}
    # What is below a path comes right after it when all of them end with a slash.
    for path, following in itertools.pairwise(sorted(f"{path}/" for path in clean)):
        if following.startswith(path):
            raise PayloadError(f"invalid path: {following[:-1]} is below a file: {path[:-1]}")
    return clean


def clean_path(path: str) -> str:
    """The path without empty components and single dots. Raises PayloadError."""
    if not path:
        raise PayloadError('invalid path: must not be empty: ""')
    if path.startswith("/"):
        raise PayloadError(f"invalid path: must be relative path: {path}")
    try:
        names = os.fsencode(path).split(b"/")
    except UnicodeEncodeError:
        raise PayloadError(f"invalid path: must be text: {path!r}") from None
    if sum(map(len, names)) + len(names) - 1 > MAX_PATH:
        raise PayloadError(f"invalid path: must be less than or equal to {MAX_PATH} characters")
    if b".." in names:
        raise PayloadError(f"invalid path: must not contain '..': {path}")
    if max(map(len, names)) > MAX_NAME:
        raise PayloadError(f"invalid path: filenames must be less than or equal to {MAX_NAME} characters")
    clean = posixpath.normpath(path)
    if clean.startswith(".."):
        raise PayloadError(f"invalid path: must not start with '..': {path}")
    if clean == "." or "\0" in clean:
        raise PayloadError(f"invalid path: must name a file: {path!r}")
    return clean
