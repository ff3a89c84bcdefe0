"""The root folder, where the agent keeps its state and commands find it, and others that several commands take."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from trikubelet.cgroups.ownership import USUAL_ROOT_DIR
from trikubelet.cli.failures import CommandError
from trikubelet.linux.socket_address import socket_address

SOCKET_NAME: Final = "trikubelet.sock"
ENVIRONMENT: Final = "TRIKUBELET_ROOT"
KUBELET_ROOT: Final = Path("/var/lib/kubelet")
"""Where nodes of a cluster have their state: CSI drivers and others look for it there."""

CONNECT_TIMEOUT: Final = 5.0
"""Seconds in which an agent that listens takes a connection."""
_CREDENTIALS: Final = struct.Struct("iII")
"""`struct ucred`: pid, uid, gid."""

F = TypeVar("F", bound=Callable[..., Any])


def default_root_dir(environ: Mapping[str, str] = os.environ, *, uid: int | None = None) -> Path:
    """`/var/lib/trikubelet` for root, else a folder in the user's state directory (XDG)."""
    if (os.geteuid() if uid is None else uid) == 0:
        return USUAL_ROOT_DIR
    return _user_root_dir(environ)


def running_agent_root_dir(default: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the root folder of the agent that runs, or `default` where none does.

    An agent is looked for in `default`, in the user's state directory, where `make run` puts one, also root's, and in
    the kubelet's folder, where `join` puts one. Raises CommandError that lists them where several run.
    """
    folders = tuple(dict.fromkeys((default, _user_root_dir(environ), KUBELET_ROOT)))
    running: dict[int, Path] = {}
    for folder in folders:
        with suppress(CommandError):  # another user's
            if (pid := agent_pid(folder)) is not None:
                running.setdefault(pid, folder)
    if len(running) > 1:
        agents = "; ".join(f"--root-dir={folder} (pid {pid})" for pid, folder in running.items())
        raise CommandError(f"{len(running)} agents run here, say which one is meant: {agents}")
    return next(iter(running.values()), None) or next(filter(_has_socket, folders), default)


def agent_pid(root_dir: Path) -> int | None:
    """Return the process that listens on the agent's socket, or None. Raises CommandError for another user's."""
    return listener_pid(root_dir / SOCKET_NAME)


def listener_pid(path: Path, kind: int = socket.SOCK_STREAM) -> int | None:
    """Return the process that listens on a Unix socket, or None. Raises CommandError for another user's."""
    with closing(socket.socket(socket.AF_UNIX, kind)) as connection:
        connection.settimeout(CONNECT_TIMEOUT)
        try:
            with socket_address(str(path)) as address:
                connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            raise CommandError(f"{path} cannot be used: {error}") from None
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid or None


def _has_socket(root_dir: Path) -> bool:
    try:
        return (root_dir / SOCKET_NAME).is_socket()
    except PermissionError:
        return False


def own_manifests(root_dir: Path) -> Path:
    """The folder of manifests of an agent by itself that is told of none."""
    return root_dir / "manifests"


def root_dir_option(function: F) -> F:
    """Adds `--root-dir` of the agent to be; the command gets `root_dir: Path`, absolute."""
    return _option(default_root_dir, "default: /var/lib/trikubelet as root, else ~/.local/state/trikubelet")(function)


def agent_root_dir_option(function: F) -> F:
    """Adds `--root-dir` of a running agent; the command gets `root_dir: Path`, absolute."""
    return _option(lambda: running_agent_root_dir(default_root_dir()), "default: where an agent runs")(function)


def _user_root_dir(environ: Mapping[str, str]) -> Path:
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".local" / "state"
    return base / "trikubelet"


def _option(default: Callable[[], Path], default_text: str) -> Callable[[F], F]:
    return click.option(
        "--root-dir",
        type=click.Path(path_type=Path),
        envvar=ENVIRONMENT,
        callback=lambda _context, _parameter, value: Path.cwd() / value if value else default(),
        help=f"The agent's state folder. [env: {ENVIRONMENT}; {default_text}]",
    )


registry_hosts_option = click.option(
    "--registry-hosts-dir",
    "hosts_dirs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Where registries' hosts.toml are; repeatable.  [default: /etc/trikubelet, containerd and docker/certs.d]",
)
"""Adds the argument `hosts_dirs: tuple[Path, ...]`."""
