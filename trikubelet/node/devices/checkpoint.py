"""The file of what must survive the agent: which containers have which devices, and what they need for them.

    {"resources": ["vendor.com/kind"],
     "pods": {"<uid>": {"<container>": {"vendor.com/kind": {"devices": {"<id>": [0]}, "environment": {…}, …}}}}}

within a checkpoint (`trikubelet.linux.checkpoint`). It has a name and a form of its own: the checksum of the kubelet's
file is of Go's way to print a structure, which nothing else can compute reliably. So a kubelet that takes over the
node, or the agent from one, knows nothing of the devices of running containers until plugins are there and containers
restart.

That there is a file at all says something too: without one the node is new, and what its object says of devices is of
another machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.broadcast import Broadcast
from trikubelet.linux.checkpoint import BrokenCheckpointError, CheckpointError, read_checkpoint, write_checkpoint
from trikubelet.node.devices.model import DeviceFile, DeviceMount, Grant, Grants, Needs
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from trio_typing import TaskStatus

FILE: Final = "device_grants_state"
"""In the folder of device plugins."""

log = get_logger("devices")


@attrs.frozen
class Remembered:
    """What a file says."""

    resources: tuple[str, ...] = ()
    grants: Mapping[str, Grants] = attrs.field(factory=dict)


def to_text(resources: Iterable[str], grants: Mapping[str, Grants]) -> str:
    pods = {
        uid: {
            container: {resource: _to_wire(grant) for resource, grant in granted.items()}
            for container, granted in containers.items()
        }
        for uid, containers in grants.items()
    }
    return json.dumps({"resources": sorted(resources), "pods": pods}, separators=(",", ":"), sort_keys=True)


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
    """Keeps the file as `text` says. `run` writes; changes that come while it does share the next write."""

    def __init__(self, path: Path, text: Callable[[], str]) -> None:
        self._path = path
        self._text = text
        self._changes = 0
        self._tried = 0
        """With so many changes the file was written, or could not be."""
        self._error: CheckpointError | None = None
        """Why it could not, the last time."""
        self._written: str | None = None
        self._changed: Broadcast[None] = Broadcast()
        self._wanted = self._changed.subscribe()
        self._progress: Broadcast[None] = Broadcast()
        self._one_at_a_time = trio.CapacityLimiter(1)
        self.exists = False

    def read(self) -> Remembered:
        """What the file says; nothing when there is none. Blocks on the disk. Raises CheckpointError."""
        try:
            text = read_checkpoint(self._path)
        except CheckpointError:
            self.exists = True
            raise
        self.exists = text is not None
        if text is None:
            return Remembered()
        try:
            remembered = from_text(text)
        except (ValueError, RecursionError) as error:
            raise BrokenCheckpointError(self._path, str(error)) from error
        self._written = text
        return remembered

    def changed(self) -> None:
        """The file is to be written. Never waits."""
        self._changes += 1
        self._changed.send(None)

    async def durable(self) -> None:
        """Return when all changes so far are on the disk. Raises CheckpointError when they cannot be written.

        Cancelling it loses nothing, and works while the disk hangs.
        """
        wanted = self._changes
        while self._tried < wanted:
            await self._progress.wait()
        if self._error is not None:
            raise CheckpointError(self._path, self._error.problem)

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write, until cancelled; a write that has begun is finished. What cannot be written is written with the next
        change."""
        task_status.started()
        while True:
            if self._tried == self._changes:
                await self._wanted.receive()
            changes, text = self._changes, self._text()
            self._error = None if text == self._written else await self._write(text)
            self._tried = changes
            self._progress.send(None)

    async def _write(self, text: str) -> CheckpointError | None:
        try:
            await trio.to_thread.run_sync(write_checkpoint, self._path, text, limiter=self._one_at_a_time)
        except CheckpointError as error:
            log.error("devices of containers cannot be written down", error=str(error))
            return error
        self._written, self.exists = text, True
        return None


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
