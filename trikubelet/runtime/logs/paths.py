"""Where containers' logs are: names that other programs (log collectors, a Go kubelet) rely on.

    <logs>/<namespace>_<name>_<uid>/<container>/<restart count>.log

The restart count in the file's name is also what survives a reboot that makes the runtime forget its containers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trikubelet.api import Pod

_NUMBERED_LOG: Final = re.compile(r"(\d+)\.log(\..*)?", re.DOTALL)
_MAX_FILE_NAME: Final = 255
_SUFFIX: Final = ".log"
_MAX_RESTART_COUNT: Final = 2**31 - 1
"""A file with a greater number is not a log of this agent's or a kubelet's."""


def pod_logs_directory(base: Path, pod: Pod) -> Path:
    return base / f"{pod.metadata.namespace}_{pod.metadata.name}_{pod.metadata.uid}"


def container_logs_directory(base: Path, pod: Pod, container_name: str) -> Path:
    return pod_logs_directory(base, pod) / container_name


def container_log_path(container_name: str, restart_count: int) -> str:
    """The log file's path below the pod's directory."""
    return f"{container_name}/{restart_count}.log"


def pod_uid_of_directory(name: str) -> str:
    """The pod that a directory of logs belongs to, by the directory's name."""
    return name.rpartition("_")[2]


def restart_count_from_log_names(names: Iterable[str]) -> int:
    """The restart count that follows the highest one in a container's log directory, 0 for an empty one.

    Rotated logs (`3.log.20260101-000000`) count too (kubelet: `calcRestartCountByLogDir`).
    """
    counts = (int(match[1]) for name in names if (match := _NUMBERED_LOG.match(name)) is not None)
    return max((count + 1 for count in counts if count < _MAX_RESTART_COUNT), default=0)


def legacy_symlink_name(container_id: str, container_name: str, pod_name: str, pod_namespace: str) -> str:
    """The file in /var/log/containers that collectors look for, cut to what a file's name may be."""
    stem = f"{pod_name}_{pod_namespace}_{container_name}-{container_id}"
    return stem[: _MAX_FILE_NAME - len(_SUFFIX)] + _SUFFIX


def container_id_of_symlink(name: str) -> str | None:
    """The container id, or what is left of it, in a symlink's name. None when there is none to be seen."""
    stem = name.rpartition("-")[2]
    identifier = stem.removesuffix(_SUFFIX)
    return identifier if stem.endswith(_SUFFIX) and len(identifier) >= 6 else None
