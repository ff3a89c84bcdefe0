"""`dra_manager_state`: which claims are prepared for which pods, in the kubelet's file (`cm/dra/state`).

    {"Data": "{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",
               \"ClaimInfoStateList\":[{\"ClaimUID\":…,\"ClaimName\":…,\"Namespace\":…,\"PodUIDs\":{\"<uid>\":{}},
                                        \"DriverState\":{\"<driver>\":{\"Devices\":[{\"PoolName\":…,…}]}}}]}",
     "Checksum": …}

The checksum is CRC-32 of the text in `Data`. Other versions are read alike, as the kubelet does: fields come and go,
and what is missing is empty.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.formats.go_checkpoint import (
    GoCheckpointError,
    by_lower_name,
    go_json,
    mapping_of,
    number_of,
    read_object,
    text_of,
)
from trikubelet.linux.checkpoint import BrokenCheckpointError, CheckpointError
from trikubelet.linux.durable_files import write_atomically
from trikubelet.node.dra.model import ClaimDevice, ClaimState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    Write = Callable[[Path, bytes], Awaitable[None]]

FILE: Final = "dra_manager_state"
"""Below the agent's root directory."""
_KIND: Final = "DRACheckpoint"
_VERSION: Final = "checkpoint.dra.kubelet.k8s.io/v1"


def to_bytes(claims: Iterable[ClaimState]) -> bytes:
    """What the file says."""
    data = go_json(
        {"kind": _KIND, "apiVersion": _VERSION, "ClaimInfoStateList": [_claim_to_wire(one) for one in claims]}
    )
    return go_json({"Data": data, "Checksum": _checksum(data)}).encode()


def from_bytes(content: bytes) -> list[ClaimState]:
    """Raises GoCheckpointError for a file that is not as it was written."""
    outer = read_object(content)
    data, expected = text_of(outer.get("data")), number_of(outer.get("checksum"))
    actual = _checksum(data)
    if actual != expected:
        raise GoCheckpointError(f"its data has the checksum {actual}, and should have {expected}: it is not as written")
    return [_claim_from_wire(one) for one in _list(read_object(data.encode()).get("claiminfostatelist"))]


def read_claims(path: Path) -> list[ClaimState]:
    """Those of an earlier agent. Blocks on the disk. Raises CheckpointError, with what to do."""
    try:
        return from_bytes(path.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    except GoCheckpointError as error:
        raise BrokenCheckpointError(
            path,
            f"{error}; it told which resource claims are prepared: drain this node, delete the file, then start the "
            "agent again",
        ) from error


async def replace_file(path: Path, content: bytes) -> None:
    """See `write_atomically`. Raises OSError. Not cut short by a cancellation."""
    await trio.to_thread.run_sync(write_atomically, path, content)


class ClaimCheckpoint:
    """Keeps the file as `claims` says."""

    def __init__(self, path: Path, claims: Callable[[], Iterable[ClaimState]], write: Write = replace_file) -> None:
        """`write` replaces the file, and raises OSError."""
        self._path = path
        self._claims = claims
        self._write = write
        self._seen = tuple(claims())
        self._written = to_bytes(self._seen)
        """What the file means, if there is one; without one it says nothing of any claim."""
        self._one_at_a_time = trio.Lock()

    async def durable(self) -> None:
        """Return when all that is so now is on the disk. Raises CheckpointError; the next call tries again.

        A write that has begun is finished when this is cancelled. Those who wait for one share the next.
        """
        async with self._one_at_a_time:
            claims = tuple(self._claims())
            if claims == self._seen:
                return
            content = to_bytes(claims)
            try:
                if content != self._written:
                    await self._write(self._path, content)
            except OSError as error:
                raise CheckpointError(self._path, f"cannot be written: {error.strerror}") from error
            self._seen, self._written = claims, content


def _checksum(data: str) -> int:
    try:
        return zlib.crc32(data.encode())
    except UnicodeEncodeError as error:
        raise GoCheckpointError(f"its data is no text: {error}") from error


def _claim_to_wire(claim: ClaimState) -> dict[str, Any]:
    return {
        "ClaimUID": claim.uid,
        "ClaimName": claim.name,
        "Namespace": claim.namespace,
        "PodUIDs": {uid: {} for uid in sorted(claim.pods)},
        "DriverState": {
            driver: {"Devices": [_device_to_wire(one) for one in devices] or None}
            for driver, devices in sorted(claim.drivers.items())
        },
    }


def _device_to_wire(device: ClaimDevice) -> dict[str, Any]:
    return {
        "PoolName": device.pool,
        "DeviceName": device.name,
        "ShareID": device.share_id,
        "RequestNames": list(device.requests) or None,
        "CDIDeviceIDs": list(device.cdi_ids) or None,
    }


def _claim_from_wire(wire: Any) -> ClaimState:
    fields = by_lower_name(wire)
    return ClaimState(
        uid=text_of(fields.get("claimuid")),
        name=text_of(fields.get("claimname")),
        namespace=text_of(fields.get("namespace")),
        pods=frozenset(mapping_of(fields.get("poduids"), lambda _: None)),
        drivers=mapping_of(fields.get("driverstate"), _devices_from_wire),
    )


def _devices_from_wire(wire: Any) -> tuple[ClaimDevice, ...]:
    return tuple(map(_device_from_wire, _list(by_lower_name(wire).get("devices"))))


def _device_from_wire(wire: Any) -> ClaimDevice:
    fields = by_lower_name(wire)
    share_id = fields.get("shareid")
    return ClaimDevice(
        pool=text_of(fields.get("poolname")),
        name=text_of(fields.get("devicename")),
        requests=tuple(map(text_of, _list(fields.get("requestnames")))),
        cdi_ids=tuple(map(text_of, _list(fields.get("cdideviceids")))),
        share_id=None if share_id is None else text_of(share_id),
    )


def _list(wire: Any) -> list[Any]:
    """Raises GoCheckpointError."""
    if wire is None:
        return []
    if not isinstance(wire, list):
        raise GoCheckpointError(f"expected a list, got {json.dumps(wire):.60}")
    return wire
