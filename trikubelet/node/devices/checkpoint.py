"""The file of what must survive the agent: which containers have which devices, and what they need for them.

    {"resources": ["vendor.com/kind"],
     "pods": {"<uid>": {"<container>": {"vendor.com/kind": {"devices": {"<id>": [0]}, "environment": {…}, …}}}}}

within a checkpoint (`trikubelet.linux.checkpoint`), kept as a `StateFile`. It has a name and a form of its own: the
checksum of the kubelet's file is of Go's way to print a structure, which nothing else can compute reliably. So a
kubelet that takes over the node, or the agent from one, knows nothing of the devices of running containers until
plugins are there and containers restart.

That there is a file at all says something too: without one the node is new, and what its object says of devices is of
another machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.linux.checkpoint import BrokenCheckpointError, CheckpointError, read_checkpoint, to_bytes
from trikubelet.linux.state_file import StateFile
from trikubelet.node.devices.model import DeviceFile, DeviceMount, Grant, Grants, Needs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILE: Final = "device_grants_state"
"""In the folder of device plugins."""


@frozen
class Remembered:
    """What a file says."""

    resources: tuple[str, ...] = ()
    grants: Mapping[str, Grants] = attrs.field(factory=dict)


def to_text(known: Remembered) -> str:
    pods = {
        uid: {
            container: {resource: _to_wire(grant) for resource, grant in granted.items()}
            for container, granted in containers.items()
        }
        for uid, containers in known.grants.items()
    }
    return json.dumps({"resources": sorted(known.resources), "pods": pods}, separators=(",", ":"), sort_keys=True)


def from_text(text: str) -> Remembered:
    """Raises ValueError."""
    wire = _mapping(json.loads(text))
    grants = {
        uid: {
            container: {resource: _from_wire(grant) for resource, grant in _mapping(granted).items()}
            for container, granted in _mapping(containers).items()
        }
        for uid, containers in _mapping(wire.get("pods")).items()
    }
    return Remembered(_texts(wire.get("resources")), grants)


class DeviceCheckpoint:
    """The file. What `snapshot` gives must not change afterwards: it is written by a thread."""

    def __init__(self, path: Path, snapshot: Callable[[], Remembered]) -> None:
        self._read_something = False

        def content() -> Callable[[], bytes]:
            return partial(_to_bytes, snapshot())

        self.file = StateFile(path, content)

    @property
    def exists(self) -> bool:
        """Whether there is a file, be it a broken one. To be asked when it has been read."""
        return self._read_something or self.file.written is not None

    def read(self) -> Remembered:
        """What the file says; nothing when there is none. Blocks on the disk. Raises CheckpointError."""
        path = self.file.path
        try:
            text = read_checkpoint(path)
        except CheckpointError:
            self._read_something = True
            raise
        if text is None:
            return Remembered()
        self._read_something = True
        try:
            remembered = from_text(text)
        except (ValueError, RecursionError) as error:
            raise BrokenCheckpointError(path, str(error)) from error
        self.file.written = to_bytes(text)
        return remembered


def _to_bytes(known: Remembered) -> bytes:
    return to_bytes(to_text(known))


def _to_wire(grant: Grant) -> dict[str, Any]:
    return {"devices": grant.devices, **attrs.asdict(grant.needs)}


def _from_wire(wire: Any) -> Grant:
    fields = _mapping(wire)
    devices = {device: tuple(map(_whole, _list(nodes))) for device, nodes in _mapping(fields.get("devices")).items()}
    needs = Needs(
        environment=_pairs(fields.get("environment")),
        mounts=tuple(
            DeviceMount(_text(one.get("container_path")), _text(one.get("host_path")), one.get("read_only") is True)
            for one in map(_mapping, _list(fields.get("mounts")))
        ),
        files=tuple(
            DeviceFile(_text(one.get("container_path")), _text(one.get("host_path")), _text(one.get("permissions")))
            for one in map(_mapping, _list(fields.get("files")))
        ),
        annotations=_pairs(fields.get("annotations")),
        cdi_devices=_texts(fields.get("cdi_devices")),
    )
    return Grant(devices, needs)


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ValueError(f"expected an object, got {value!r:.60}")


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    raise ValueError(f"expected a list, got {value!r:.60}")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"expected a text, got {value!r:.60}")


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    raise ValueError(f"expected a whole number, got {value!r:.60}")


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _list(value)))


def _pairs(value: Any) -> dict[str, str]:
    return {name: _text(text) for name, text in _mapping(value).items()}
