"""What a CRI call raises when it did not do what was asked."""

from __future__ import annotations

from grpclib.const import Status

from trikubelet.formats.values import frozen
from trikubelet.rpc.status_text import status_text


@frozen
class CRIError(Exception):
    """A call to the container runtime failed: the runtime said no, did not answer, or answered nonsense.

    Its text is the one that a Go client prints, without the call's name.
    """

    rpc: str
    """Name of the call as in the CRI, e.g. `StartContainer`."""
    status: Status
    """The gRPC status. UNAVAILABLE: no connection; DEADLINE_EXCEEDED: no answer in time; UNKNOWN: see the message."""
    message: str
    """The runtime's own words where it gave any."""

    @property
    def not_found(self) -> bool:
        """The runtime does not know the container, sandbox or image."""
        return self.status is Status.NOT_FOUND

    @property
    def timed_out(self) -> bool:
        """The deadline passed; whether the call took effect is unknown. For ExecSync: the command ran too long."""
        return self.status is Status.DEADLINE_EXCEEDED

    @property
    def unavailable(self) -> bool:
        """There is no connection to the runtime, or it was lost; whether the call took effect is unknown."""
        return self.status is Status.UNAVAILABLE

    @property
    def unimplemented(self) -> bool:
        """The runtime does not have this call."""
        return self.status is Status.UNIMPLEMENTED

    @property
    def still_starting(self) -> bool:
        """The container cannot be removed yet: containerd starts it, or gives up the start of a client that left."""
        return "container is in starting state" in self.message

    def __str__(self) -> str:
        return status_text(self.status, self.message)
