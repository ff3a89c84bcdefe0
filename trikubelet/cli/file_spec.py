"""What `cp` copies from where to where."""

from __future__ import annotations

import posixpath
import re
from typing import Final

from trikubelet.cli.failures import CommandError
from trikubelet.formats.values import frozen

_REMOTE: Final = re.compile(
    r"(?:(?P<namespace>[a-z0-9][-a-z0-9]*)/)?(?P<pod>[a-z0-9][-.a-z0-9]*):(?P<path>.*)", re.DOTALL
)


@frozen
class FileSpec:
    """A path, of a pod or (`pod` is "") of this machine."""

    path: str
    pod: str = ""
    namespace: str | None = None


def parse_spec(text: str) -> FileSpec:
    """`[[NAMESPACE/]POD:]PATH`. Local paths with a colon begin with `/` or `./`. Raises CommandError."""
    remote = _REMOTE.fullmatch(text)
    spec = FileSpec(text) if remote is None else FileSpec(remote["path"], remote["pod"], remote["namespace"])
    if text.startswith(":"):
        raise CommandError("filespec must match the canonical format: [[namespace/]pod:]file/path")
    if not spec.path or "\0" in spec.path:
        raise CommandError("filepath can not be empty")
    return spec


def split_remote(path: str) -> tuple[str, str]:
    """The folder to archive from, and what in it: never something that tar would take for an option."""
    folder, name = posixpath.split(path.rstrip("/") or "/")
    if name in ("", ".", ".."):
        return posixpath.join(folder, name) if folder or name else ".", "."
    return folder or ".", f"./{name}"
