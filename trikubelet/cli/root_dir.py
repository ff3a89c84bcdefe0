"""The root folder, where the agent keeps its state and commands find it, and others that several commands take."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

SOCKET_NAME: Final = "trikubelet.sock"
ENVIRONMENT: Final = "TRIKUBELET_ROOT"
KUBELET_ROOT: Final = Path("/var/lib/kubelet")
"""Where nodes of a cluster have their state: CSI drivers and others look for it there."""

F = TypeVar("F", bound=Callable[..., Any])


def default_root_dir(environ: Mapping[str, str] = os.environ, *, uid: int | None = None) -> Path:
    """`/var/lib/trikubelet` for root, else a folder in the user's state directory (XDG)."""
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/lib/trikubelet")
    return _user_root_dir(environ)


def running_agent_root_dir(default: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """`default`, or, when no agent listens there, one of these folders if one does there.

    The user's state directory is where `make run` puts an agent, also root's; the kubelet's where `join` does.
    """
    candidates = (default, _user_root_dir(environ), KUBELET_ROOT)
    return next((path for path in candidates if _has_socket(path)), default)


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
    help="Where folders with a registry's hosts.toml are.  [default: /etc/trikubelet, containerd and docker/certs.d]",
)
"""Adds the argument `hosts_dirs: tuple[Path, ...]`."""
