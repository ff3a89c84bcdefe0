"""How a failed call reads in events, statuses, logs and replies: as Go's gRPC prints it, which clients look for."""

from __future__ import annotations

from grpclib.const import Status

from trikubelet.formats.go_quote import go_quote


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


def connection_error(problem: str) -> str:
    """The words of a call that there is no connection for, or whose connection was lost."""
    return f"connection error: desc = {go_quote(problem)}"


def system_text(error: BaseException) -> str:
    """An error of the system in Go's words, `connection refused`; of another its own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
