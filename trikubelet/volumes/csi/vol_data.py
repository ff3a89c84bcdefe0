"""vol_data.json: what we tell ourselves beside each CSI volume, since undoing needs more than a path.

It is written before the driver gets the volume and removed after the driver has forgotten it, so that whatever
ended the agent in between, the volume can be found and undone. It comes into being by renaming: it is whole or it is
not there. Names and values are the kubelet's, either agent reads the other's.

Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.volumes.csi.paths import VOL_DATA
from trikubelet.volumes.layout import DIRECTORY_MODE

if TYPE_CHECKING:
    from trikubelet.linux.mounter import Mounter

_NEW: Final = f".{VOL_DATA}.new"

EPHEMERAL: Final = "Ephemeral"


class VolumeDataError(Exception):
    """There is a file, but without what it should have."""


@frozen
class VolumeData:
    """About a volume of a pod; of a staged volume only the first two and the label."""

    driver: str
    handle: str
    spec_name: str = ""
    """The persistent volume's name, of an inline volume the name in the pod."""
    node: str = ""
    lifecycle: str = ""
    """`Persistent` or `Ephemeral`; block devices do not say."""
    attachment: str = ""
    label: str = ""
    """The SELinux label that it is mounted with; empty for none."""

    @property
    def ephemeral(self) -> bool:
        return self.lifecycle == EPHEMERAL


_KEYS: Final = {
    "driver": "driverName",
    "handle": "volumeHandle",
    "spec_name": "specVolID",
    "node": "nodeName",
    "lifecycle": "volumeLifecycleMode",
    "attachment": "attachmentID",
    "label": "seLinuxMountContext",
}


def save(folder: Path, data: VolumeData) -> None:
    """Raises OSError."""
    values = attrs.asdict(data)
    content = {_KEYS[name]: value for name, value in sorted(values.items()) if value}
    new = folder / _NEW
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")
    new.rename(folder / VOL_DATA)


def load(folder: Path) -> VolumeData | None:
    """None when there is none. Raises VolumeDataError and OSError."""
    path = folder / VOL_DATA
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise VolumeDataError(f"failed to parse volume data file [{path}]: {error}") from error
    values = content if isinstance(content, dict) else {}
    found = {name: str(values.get(key, "")) for name, key in _KEYS.items()}
    if not found["driver"] or not found["handle"]:
        raise VolumeDataError(f"expected driverName and volumeHandle in [{path}], got {sorted(values)}")
    return VolumeData(**found)


def make_folder(folder: Path) -> None:
    """With its parents, whatever the umask is. Raises OSError."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(exist_ok=True)
        missing.chmod(DIRECTORY_MODE)


def is_mounted(mounter: Mounter, path: Path) -> bool:
    """Asks the mount table, not the path: what is mounted there may not answer. Raises OSError."""
    return mounter.table().at(real(path)) is not None


def real(path: Path) -> Path:
    """A path as the mount table has it, without looking at the path's own end."""
    return Path(os.path.realpath(path.parent)) / path.name


def remove_target(path: Path) -> None:
    """Remove what a driver may have left where it published, if that is nothing: never what is in a folder. Raises
    OSError (kubelet: `removeMountDir`)."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return
    except NotADirectoryError:
        path.unlink()


def forget(folder: Path) -> None:
    """Remove vol_data.json and the folder that it is in, which has nothing else. Raises OSError."""
    for name in (VOL_DATA, _NEW):
        (folder / name).unlink(missing_ok=True)
    remove_folder(folder)


def clear_unwritten(folder: Path) -> None:
    """Remove a folder where vol_data.json was still to be written, unless something else is in it. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (folder / _NEW).unlink()
    with contextlib.suppress(NotADirectoryError):
        remove_if_empty(folder)


def remove_folder(folder: Path) -> None:
    """Remove an empty folder that may be gone already. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that may be in use by others. Raises OSError."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
            raise


def remove_leftovers(folder: Path) -> None:
    """Remove a folder with the files and empty folders in it; nothing that is mounted. Raises OSError."""
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return
    for entry in entries:
        remove_target(entry)
    remove_folder(folder)
