"""What we tell ourselves of disks: undoing needs more than a path, also after a restart.

A record lies beside the folder that it is about, hidden from whoever counts folders there; what is in that folder
itself is hidden by what is mounted on it. It is written before the disk is touched, and removed when nothing of it is
left: so a disk has a record if and only if it may be in use. All of it blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.linux.durable_files import write_atomically
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes import layout
from trikubelet.volumes.folders import names_in

log = get_logger("volumes")

DEVICES: Final = "volumeDevices"


@frozen
class ScsiDisk:
    """A disk as a volume."""

    name: str
    """The same as long as it is the same disk: with the plugin in front it is the volume's unique name."""
    folder: str
    """Where it is mounted or mapped, below the plugin's folder: one name or two."""
    volume: str
    """The inner name of the volume that it was first staged for."""
    block: bool
    source: Mapping[str, Any] = attrs.field(repr=False)
    """The persistent volume's source, as the API server writes it."""


@frozen
class DiskRecords:
    """Of one plugin. `top` is its folder."""

    top: Path

    def place(self, disk: ScsiDisk) -> Path:
        """Where the disk is mounted, or where its devices are mapped. Raises ValueError for names that climb."""
        parts = disk.folder.split("/")
        if len(parts) > 2 or any(part in ("", ".", "..", DEVICES) or "\0" in part for part in parts):
            raise ValueError(f"expected names that can be folders, got {disk.folder!r}")
        return (self.top / DEVICES if disk.block else self.top).joinpath(*parts)

    def write(self, disk: ScsiDisk) -> None:
        """Raises OSError and ValueError."""
        record = self._record(disk)
        record.parent.mkdir(mode=layout.DIRECTORY_MODE, parents=True, exist_ok=True)
        if self._load(record) != disk:
            write_atomically(record, json.dumps(attrs.asdict(disk), sort_keys=True).encode())

    def remove(self, disk: ScsiDisk) -> None:
        """Idempotent. Folders that have nothing else go too. Raises OSError and ValueError."""
        record = self._record(disk)
        record.unlink(missing_ok=True)
        if record.parent not in (self.top, self.top / DEVICES):
            try:
                record.parent.rmdir()
            except OSError:  # others are there
                return

    def load(self, disk: ScsiDisk) -> ScsiDisk | None:
        """As it was written down; None when it was not. Raises ValueError."""
        return self._load(self._record(disk))

    def all(self) -> list[ScsiDisk]:
        """Never looks into what is mounted. Raises OSError."""
        found = []
        for top in (self.top, self.top / DEVICES):
            for pattern in (".*.json", "iface-*/.*.json"):
                found += [disk for path in sorted(top.glob(pattern)) if (disk := self._load(path)) is not None]
        return found

    def unrecorded(self) -> list[str]:
        """Names of folders that have no record: another agent left them. Raises OSError."""
        known = {self.place(disk) for disk in self.all()}
        found = []
        for top in (self.top, self.top / DEVICES):
            for folder in top.glob("iface-*"):
                names = [name for name in names_in(folder) if not name.startswith(".")]
                found += [name for name in names if folder / name not in known]
        return found

    def _record(self, disk: ScsiDisk) -> Path:
        place = self.place(disk)
        return place.with_name(f".{place.name}.json")

    def _load(self, path: Path) -> ScsiDisk | None:
        try:
            values: Any = json.loads(path.read_bytes())
            disk = ScsiDisk(**values)
            if not isinstance(disk.source, dict) or self._record(disk) != path:
                raise ValueError("expected the record of a disk at this place")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("a record of a disk cannot be read", path=str(path), error=str(error))
            return None
        return disk
