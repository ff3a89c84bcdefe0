"""`hostPath`: a path of the node, checked as its type says (kubelet: `host_path.go`)."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.volumes.disk import FOREIGN_DEADLINE
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.kinds.node_kind import NodeKind
from trikubelet.volumes.model import MountedVolume
from trikubelet.volumes.sources import HOST_PATH

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.api import HostPathVolumeSource
    from trikubelet.volumes.disk import Disk
    from trikubelet.volumes.model import SetUpRequest, VolumeSpec

DIRECTORY_OR_CREATE: Final = "DirectoryOrCreate"
FILE_OR_CREATE: Final = "FileOrCreate"

_CHECKS: Final[dict[str, tuple[Callable[[int], bool], str]]] = {
    DIRECTORY_OR_CREATE: (stat.S_ISDIR, "a directory"),
    "Directory": (stat.S_ISDIR, "a directory"),
    FILE_OR_CREATE: (stat.S_ISREG, "a file"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class HostPathKind(NodeKind):
    """Nothing is made for the pod, and nothing is left of it."""

    plugin = HOST_PATH

    def __init__(self, *, root: Path, disk: Disk) -> None:
        super().__init__(root=root)
        self._disk = disk

    async def set_up(self, request: SetUpRequest) -> MountedVolume:
        """A path without a type is not looked at, so it costs no thread."""
        spec = request.spec
        source = _source(spec)
        if source.type:
            try:
                path = await self._disk.run_foreign(Path(source.path), lambda: prepare_host_path(spec.name, source))
            except trio.TooSlowError:
                raise VolumeError(
                    spec.name,
                    f"hostPath {source.path}: expected an answer of its file system within {FOREIGN_DEADLINE:.0f} s, "
                    "got none: see whether a network share there is away",
                ) from None
        else:
            await trio.lowlevel.checkpoint()
            path = prepare_host_path(spec.name, source)
        return MountedVolume(spec, path, read_only=spec.read_only)

    async def tear_down(self, uid: str, inner_name: str, *, block: bool = False) -> None:
        await trio.lowlevel.checkpoint()

    async def reconstruct(self, uid: str, inner_name: str, *, block: bool = False) -> VolumeSpec | None:
        await trio.lowlevel.checkpoint()
        return None


def _source(spec: VolumeSpec) -> HostPathVolumeSource:
    source = None
    if spec.persistent is not None:
        source = spec.persistent.spec.host_path
    elif spec.volume is not None:
        source = spec.volume.host_path
    if source is None:
        raise VolumeError(spec.name, "expected a hostPath volume, got one without a hostPath")
    return source


def prepare_host_path(volume: str, source: HostPathVolumeSource) -> Path:
    """Check the path, and create it where its type says so. Raises VolumeError.

    With a type it blocks for as long as the path's file system takes to answer, for ever on a share that is away.
    """
    path, kind = Path(source.path), source.type or ""
    if ".." in path.parts:
        raise VolumeError(volume, f"invalid HostPath {source.path!r}: must not contain '..'")
    if "\0" in source.path:
        raise VolumeError(volume, f"invalid HostPath {source.path!r}: must not contain a NUL character")
    if not kind:
        return path
    if kind not in _CHECKS:
        raise VolumeError(volume, f"{kind!r} is an invalid hostPath type, expected one of {', '.join(_CHECKS)}")
    is_kind, what = _CHECKS[kind]
    try:
        if kind == DIRECTORY_OR_CREATE:
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        elif kind == FILE_OR_CREATE and not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        mode = path.stat().st_mode
    except FileExistsError:
        raise VolumeError(volume, f"hostPath type check failed: {path} is not {what}") from None
    except FileNotFoundError:
        raise VolumeError(volume, f"hostPath type check failed: {path} is not {what}: it does not exist") from None
    except OSError as error:
        raise VolumeError(volume, f"hostPath {path}: {error.strerror}") from error
    if not is_kind(mode):
        raise VolumeError(volume, f"hostPath type check failed: {path} is not {what}")
    return path
