"""`trikubelet install` and `uninstall`: the agent as a service of systemd."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from trikubelet.cli.failures import CommandError
from trikubelet.cli.output import echo
from trikubelet.cli.service_files import UNIT, ServiceFile, ServiceSettings, service_files

SYSTEM_MANIFESTS: Final = Path("/etc/kubernetes/manifests")
RUNS_SYSTEMD: Final = Path("/run/systemd/system")
TIMEOUT: Final = 360.0
"""Seconds for a command of systemd: stopping a service may take its TimeoutStopSec."""

_of_user = click.option(
    "--user/--system",
    "user",
    default=None,
    help="A service for this user, or for the whole machine.  [default: the machine's as root]",
)
_destination = click.option(
    "--destdir",
    type=click.Path(path_type=Path),
    help="Write below this folder and start nothing: for building packages and images.",
)


@click.command(short_help="Make the agent a service.", context_settings={"ignore_unknown_options": True})
@_of_user
@_destination
@click.option("--manifests", type=click.Path(path_type=Path), help="The folder of static pods.")
@click.option("--program", help="The command that the service starts.  [default: this one]")
@click.option("--dry-run", is_flag=True, help="Only show what would be written and run.")
@click.option("--start/--no-start", default=True, help="Start it now, and at each boot.  [default: start]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def install(
    user: bool | None,
    destdir: Path | None,
    manifests: Path | None,
    program: str | None,
    dry_run: bool,
    start: bool,
    arguments: tuple[str, ...],
) -> None:
    """Make the agent a service of systemd: write its unit and what belongs to it, and start it.

    ARGUMENTS are further flags of `trikubelet run`, after --: `trikubelet install -- --kubeconfig FILE`.
    """
    of_user = _is_user_s(user)
    settings = ServiceSettings(
        program=this_program() if program is None else [program],
        manifests=_absolute(manifests) if manifests is not None else _default_manifests(of_user),
        arguments=arguments,
        user=of_user,
    )
    if install_service(settings, destdir=destdir, start=start and destdir is None, dry_run=dry_run):
        echo(f"The agent runs. Put manifests of pods into {settings.manifests}; `trikubelet pods` shows them.")


def install_service(
    settings: ServiceSettings, *, destdir: Path | None = None, start: bool = True, dry_run: bool = False
) -> bool:
    """Write the service's files and start it; whether it runs then. Raises CommandError."""
    files = service_files(settings, Path.home())
    commands = _commands_to_start(settings.user) if start else []
    if dry_run:
        for file in files:
            echo(f"# {_below(destdir, file.path)}", *file.text.split("\n"))
        for command in commands:
            echo(f"$ {' '.join(command)}")
        return False
    for file in files:
        _write(_below(destdir, file.path), file)
    if destdir is None:
        _make_folder(settings.manifests)
    if commands and not RUNS_SYSTEMD.exists():
        echo("systemd does not run here: start the service where it does.")
        return False
    for command in commands:
        _run(command)
    return bool(commands)


@click.command(short_help="Undo install.")
@_of_user
@_destination
@click.option("--dry-run", is_flag=True, help="Only show what would be removed and run.")
@click.option(
    "--purge", is_flag=True, help="Remove the state folder too, but for manifests of yours. Its pods must have ended."
)
def uninstall(user: bool | None, destdir: Path | None, dry_run: bool, purge: bool) -> None:
    """Stop the service and remove what `install` wrote. Pods keep running: use `trikubelet stop` first to end them.

    Manifests stay: they are yours.
    """
    of_user = _is_user_s(user)
    state = _state_folder() if purge else None
    if state is not None and not dry_run:
        refuse_running_pods(state)
    uninstall_service(of_user, destdir=destdir, dry_run=dry_run)
    if state is not None and dry_run:
        echo(f"remove {state}")
    elif state is not None and state.exists():
        remove_folder(state)


def uninstall_service(of_user: bool, *, destdir: Path | None = None, dry_run: bool = False) -> None:
    """Stop the service and remove its files. Raises CommandError."""
    settings = ServiceSettings(program=(), manifests=_default_manifests(of_user), user=of_user)
    files = [_below(destdir, file.path) for file in service_files(settings, Path.home())]
    commands = [_systemctl(of_user, "disable", "--now", UNIT)] if destdir is None and RUNS_SYSTEMD.exists() else []
    if dry_run:
        for command in commands:
            echo(f"$ {' '.join(command)}")
        for path in files:
            echo(f"remove {path}")
        return
    if files[-1].exists():
        for command in commands:
            _run(command)
    for path in files:
        with suppress(FileNotFoundError):
            path.unlink()
            echo(f"removed {path}")
    if commands:
        _run(_systemctl(of_user, "daemon-reload"))


# --- Pieces ----------------------------------------------------------------------------------------------------------


def _is_user_s(asked: bool | None) -> bool:
    root = os.geteuid() == 0
    if asked is False and not root:
        raise CommandError("a service of the machine's is root's to install: use sudo, or --user")
    return not root if asked is None else asked


def this_program() -> list[str]:
    """The words that start this program anew: the script that was called, or Python and the module.

    The one file with its own Python names itself: its Python is in a cache, which may be removed.
    """
    if program := os.environ.get("TRIKUBELET_PROGRAM"):
        return [program]
    script = Path(sys.argv[0])
    if script.name == "__main__.py" or not os.access(script, os.X_OK):
        return [sys.executable, "-m", "trikubelet"]
    return [str(_absolute(script))]


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay: they are what an upgrade changes


def _default_manifests(user: bool) -> Path:
    return Path.home() / ".config/trikubelet/manifests" if user else SYSTEM_MANIFESTS


def _state_folder() -> Path:
    from trikubelet.cli.root_dir import default_root_dir

    return default_root_dir()


def refuse_running_pods(state: Path) -> None:
    """Raises CommandError while something in the folder may still be used."""
    from trikubelet.linux.mount_table import MountTable
    from trikubelet.linux.shared_folder import unshare_folder

    if not state.exists():
        return
    unshare_folder(state)
    at = state.resolve()
    # The folder itself may be a file system of its own.
    if mounts := [mount for mount in MountTable.read().below(at) if mount.point != at]:
        raise CommandError(
            f"{state} is in use, {mounts[0].point} is mounted in there: end the pods with `trikubelet stop` first"
        )


def remove_folder(folder: Path) -> None:
    """Remove a root folder with what is in it, but for a person's manifests. A folder that is a file system of its own
    is emptied. Raises CommandError."""
    from trikubelet.cli.root_dir import own_manifests
    from trikubelet.linux.trees import remove_tree
    from trikubelet.sources.manifest_folder import REMOVED

    try:
        persons = [path for path in (own_manifests(folder), folder / REMOVED) if path.is_dir() and any(path.iterdir())]
        emptied = bool(persons) or folder.is_mount()
        for path in folder.iterdir() if emptied else [folder]:
            if path not in persons:
                remove_tree(path)
    except OSError as error:
        raise CommandError(f"{folder} could not be removed: {error}") from None
    echo(f"{'emptied' if emptied else 'removed'} {folder}")
    for path in persons:
        echo(f"kept {path}, which holds manifests of yours")


def _below(destdir: Path | None, path: Path) -> Path:
    return path if destdir is None else _absolute(destdir) / path.relative_to("/")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make {folder}: {error.strerror}") from None


def _write(path: Path, file: ServiceFile) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(file.text)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    echo(f"wrote {path}")


def _commands_to_start(user: bool) -> list[list[str]]:
    settings = (
        []
        if user
        else [
            ["systemd-tmpfiles", "--create", "trikubelet.conf"],
            ["sysctl", "--quiet", "--load=/etc/sysctl.d/90-trikubelet.conf"],
        ]
    )
    return [*settings, _systemctl(user, "daemon-reload"), _systemctl(user, "enable", "--now", UNIT)]


def _systemctl(user: bool, *arguments: str) -> list[str]:
    return ["systemctl", *(["--user"] if user else []), *arguments]


def _run(command: list[str]) -> None:
    """Raises CommandError."""
    try:
        subprocess.run(command, check=True, timeout=TIMEOUT)
    except FileNotFoundError:
        raise CommandError(f"{command[0]} is not installed") from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"`{' '.join(command)}` failed: {error}; see `journalctl -u {UNIT}`") from None
