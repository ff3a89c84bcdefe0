"""What a container said at its end: its termination file, or the end of its log when it asked for that.

The kubelet's limits: 4096 bytes of the file; 80 lines and 2048 bytes of the log, which is in the CRI's format
(`<time> <stream> <F|P> <text>`).
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

from trikubelet.container.labels import read_container_record

if TYPE_CHECKING:
    from trikubelet.rpc.cri import v1
    from trikubelet.runtime.pod_files import PodFiles

FALLBACK_TO_LOGS_ON_ERROR: Final = "FallbackToLogsOnError"
MAX_MESSAGE: Final = 4096
MAX_LOG_MESSAGE: Final = 2048
MAX_LOG_LINES: Final = 80
# Eighty lines of a log are within its last bytes, unless lines are longer than the message may be anyway.
_LOG_TAIL: Final = 64 * 1024


def termination_message(status: v1.ContainerStatus, files: PodFiles) -> str:
    """The message of an ended container. Problems with reading become part of the message, as in the kubelet."""
    record = read_container_record(status.annotations)
    # A container that never ran has no log.
    fall_back = (
        record.termination_message_policy == FALLBACK_TO_LOGS_ON_ERROR
        and status.exit_code != 0
        and status.reason != "ContainerCannotRun"
    )
    path = _host_path(status, record.termination_message_path)
    if path is not None:
        try:
            data = files.read_tail(path, MAX_MESSAGE)
        except OSError as error:
            return f"Error on reading termination log {path}: {error}"
        if data:
            return data.decode(errors="replace")
    if not fall_back or not status.log_path:
        return ""
    try:
        tail = files.read_tail(status.log_path, _LOG_TAIL)
    except OSError as error:
        return f"Error on reading termination message from logs: {error}"
    return last_log_text(tail or b"", whole=len(tail or b"") < _LOG_TAIL)


def last_log_text(tail: bytes, *, whole: bool) -> str:
    """The text of the last lines of a CRI log. `whole`: this is all of the log, so its first line is whole."""
    lines = tail.splitlines()
    if not whole:
        lines = lines[1:]
    texts: list[bytes] = []
    for line in lines[-MAX_LOG_LINES:]:
        fields = line.split(b" ", 3)
        if len(fields) == 4:
            texts.append(fields[3] + (b"" if fields[2].startswith(b"P") else b"\n"))
    return b"".join(texts)[-MAX_LOG_MESSAGE:].decode(errors="replace")


def _host_path(status: v1.ContainerStatus, container_path: str) -> str | None:
    if not container_path:
        return None
    wanted = posixpath.join("/", container_path)
    return next((mount.host_path for mount in status.mounts if mount.container_path == wanted), None)
