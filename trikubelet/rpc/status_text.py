"""How a failed call reads in events, statuses, logs and replies: as Go's gRPC prints it, which clients look for."""

from __future__ import annotations

from grpclib.const import Status


def code_name(status: Status) -> str:
    """Go's name of a status code, `DeadlineExceeded`."""
    match status:
        case Status.OK:
            return "OK"
        case Status.CANCELLED:
            return "Canceled"
        case _:
            return status.name.title().replace("_", "")


def status_text(status: Status, message: str | None) -> str:
    """`rpc error: code = NotFound desc = no such container`."""
    return f"rpc error: code = {code_name(status)} desc = {message or ''}"
