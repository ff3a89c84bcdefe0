"""What goes wrong with a call: chosen by a test in the process, or by a file that is read at each call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, Protocol

import attrs
from grpclib import GRPCError, Status


@attrs.frozen
class Fault:
    """`error`: refused, nothing is done. `hang`: nothing is done, and there is no answer. `lost`: it is done, and the
    answer is UNAVAILABLE. `late`: it is done, and there is no answer."""

    kind: Literal["error", "hang", "lost", "late"]
    status: Status = Status.INTERNAL
    message: str = "the test wants it so"
    times: int | None = None
    """How many calls it hits; None: all."""

    @property
    def error(self) -> GRPCError:
        return GRPCError(self.status, self.message)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Fault:
        """`{"kind": "error", "status": "ABORTED", "message": "…", "times": 1}`; all but the kind may be missing."""
        return cls(**{**values, "status": Status[values.get("status", "INTERNAL")]})


class FaultSource(Protocol):
    def take(self, rpc: str) -> Fault | None:
        """The fault that a call hits."""
        ...


@attrs.define
class Faults:
    """By the name of the call."""

    by_call: dict[str, Fault] = attrs.field(factory=dict)

    def take(self, rpc: str) -> Fault | None:
        fault = self.by_call.get(rpc)
        if fault is not None and fault.times is not None:
            if fault.times <= 1:
                del self.by_call[rpc]
            else:
                self.by_call[rpc] = attrs.evolve(fault, times=fault.times - 1)
        return fault


@attrs.define
class FaultFile:
    """The same from a JSON file: an object with a fault for each call. Who writes it renames it into place."""

    path: Path
    _read: str = ""
    _faults: Faults = attrs.field(factory=Faults)

    def take(self, rpc: str) -> Fault | None:
        content = self.path.read_text() if self.path.exists() else "{}"
        if content != self._read:
            self._read = content
            by_call = {name: Fault.from_dict(values) for name, values in json.loads(content).items()}
            self._faults = Faults(by_call)
        return self._faults.take(rpc)
