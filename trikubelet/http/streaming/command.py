"""What both sides of exec and attach speak of: which streams, how large the terminal, how it ended. Values only."""

from __future__ import annotations

import json
from typing import Any, Final

from trikubelet.formats import go_json
from trikubelet.formats.values import frozen

CREATION_TIMEOUT: Final = 30.0
IDLE_TIMEOUT: Final = 4 * 3600.0
_SUCCESS, _FAILURE = "Success", "Failure"
_NON_ZERO, _EXIT_CODE = "NonZeroExitCode", "ExitCode"


@frozen
class StreamingTimeouts:
    """How long a streaming connection may take and rest, in seconds."""

    creation: float = CREATION_TIMEOUT
    """From the upgrade until the client has opened every stream; and until a forwarded port's second stream came."""
    idle: float = IDLE_TIMEOUT
    """Without a byte in either direction (`streamingConnectionIdleTimeout`). Pings are traffic."""


DEFAULT_TIMEOUTS: Final = StreamingTimeouts()


@frozen
class CommandStreams:
    """Which streams a command has. With a terminal, stderr arrives on stdout."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


@frozen
class TerminalSize:
    """In characters; 0 to 65535 each."""

    width: int
    height: int

    def to_json(self) -> bytes:
        return json.dumps({"Width": self.width, "Height": self.height}, separators=(",", ":")).encode()


@frozen
class Exited:
    """The command ran and ended. What a signal ended has 128 + its number, as in a shell; attach always says 0."""

    code: int = 0


@frozen
class Failed:
    """The command could not be run, or its outcome is unknown."""

    message: str


CommandResult = Exited | Failed


def encode_status(result: CommandResult) -> bytes:
    """The `metav1.Status` that v4 and v5 send on the error stream (kubelet: `ServeExec`)."""
    status: dict[str, Any] = {"metadata": {}}
    if isinstance(result, Failed):
        message = f"Internal error occurred: {result.message}"
        status |= {"status": _FAILURE, "message": message, "reason": "InternalError"}
        status |= {"details": {"causes": [{"message": result.message}]}, "code": 500}
    elif result.code:
        message = f"command terminated with non-zero exit code: {result.code}"
        status |= {"status": _FAILURE, "message": message, "reason": _NON_ZERO}
        status["details"] = {"causes": [{"reason": _EXIT_CODE, "message": str(result.code)}]}
    else:
        status["status"] = _SUCCESS
    return json.dumps(status, separators=(",", ":")).encode()


def encode_text(result: CommandResult) -> bytes:
    """What versions before v4 send on the error stream: nothing unless something went wrong."""
    if isinstance(result, Failed):
        return f"Internal error occurred: {result.message}".encode()
    return f"command terminated with non-zero exit code: {result.code}".encode() if result.code else b""


def decode_status(message: bytes) -> CommandResult:
    """What a server said on the error stream of v4 or v5; what cannot be understood is a failure that says so.

    Servers of v4 and v5 always say something. (client-go takes nothing for success, and so a lost server too.)
    """
    if not message:
        return Failed("the connection ended before the server said how the command ended")
    try:
        status = go_json.loads(message)
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict):
        return Failed(f"expected a status as JSON on the error stream, got {message[:200]!r}")
    if status.get("status") == _SUCCESS:
        return Exited(0)
    if status.get("reason") != _NON_ZERO:
        return Failed(str(status.get("message") or f"the server failed and did not say why: {message[:200]!r}"))
    code = _exit_code(status)
    return Exited(code) if code is not None else Failed(f"the server sent no valid exit code: {message[:200]!r}")


def _exit_code(status: dict[str, Any]) -> int | None:
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and cause.get("reason") == _EXIT_CODE:
            text = str(cause.get("message"))
            return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None
    return None
