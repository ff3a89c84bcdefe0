"""What an agent does to its own process before it begins: its log, its limit of open files, the file that it locks."""

from __future__ import annotations

import fcntl
import os
import resource
from typing import TYPE_CHECKING

from trikubelet.agent.options import EMBEDDED, AgentOptions
from trikubelet.api import Quantity
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.linux.inotify import Inotify, Mask
from trikubelet.telemetry.logs import configure_logging, get_logger

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from trikubelet.config.kubelet_configuration import Logging

log = get_logger("agent")


def configure_log(logging: Logging) -> None:
    """As `logging:` of the configuration says."""
    options = logging.options.json if logging.format == "json" else logging.options.text
    configure_logging(
        "json" if logging.format == "json" else "text",
        logging.verbosity,
        by_name=tuple((item.file_pattern, item.verbosity) for item in logging.vmodule),
        split=options.split_stream,
        buffer=Quantity(options.info_buffer_size).value(),
    )


def limit_descriptors(options: AgentOptions) -> str | None:
    """Set how many files the agent may open: `maxOpenFiles`. Every running container takes one, for its pidfd.

    Containers of the embedded runtime would inherit the limit, so with it only what somebody asks for is set. When
    there cannot be so many there are as many as there can; returns a warning about that, if somebody asked for them.
    """
    wanted, usual = options.configuration.max_open_files, KubeletConfiguration().max_open_files
    if options.runtime_endpoint == EMBEDDED and wanted == usual:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (ValueError, OSError) as error:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), most))
        if wanted == usual:
            return None
        return f"maxOpenFiles: cannot set the limit of open files to {wanted}: {error}; it is {min(wanted, most)}"
    return None


class LockFileError(Exception):
    """The file of `--lock-file` cannot be locked."""


def lock_file(path: Path, stack: ExitStack) -> None:
    """Wait until nobody else has the file locked, and lock it until `stack` closes. Raises LockFileError."""
    log.info("acquiring the file lock", path=str(path))
    try:
        file = stack.enter_context(os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600), "r+"))
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        raise LockFileError(
            f"unable to acquire file lock on {path}: {error.strerror}: name another --lock-file"
        ) from None


def watch_lock(options: AgentOptions, stack: ExitStack) -> Inotify | None:
    """Tells when another process opens the lock file, or removes it; None: that is no reason to end."""
    if options.lock_file is None or not options.exit_on_lock_contention:
        return None
    watch = stack.enter_context(Inotify())
    watch.watch(options.lock_file, Mask.OPEN | Mask.DELETE_SELF)
    return watch
