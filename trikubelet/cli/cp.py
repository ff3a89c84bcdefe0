"""`trikubelet cp`: files and folders into containers and out of them, like `kubectl cp`."""

from __future__ import annotations

import posixpath
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.exec import command_failure, container_target, explained
from trikubelet.cli.failures import CommandError
from trikubelet.cli.file_spec import FileSpec, parse_spec, split_remote
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.output import echo
from trikubelet.cli.pod_containers import chosen_container, refuse_ended_pod
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from trikubelet.cli.command_session import Target
    from trikubelet.http.streaming.command import CommandResult


@click.command("cp", short_help="Copy files to and from a container.")
@click.argument("source")
@click.argument("destination")
@click.option("-c", "--container", help="Which container.  [default: the pod's first]")
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@click.option("--no-preserve", is_flag=True, help="In the container: do not keep owners and permissions.")
@agent_root_dir_option
def cp(
    source: str, destination: str, container: str | None, namespace: str | None, no_preserve: bool, root_dir: Path
) -> int:
    """Copy SOURCE to DESTINATION: one of them is [NAMESPACE/]POD:PATH, the other a path of this machine.

    Needs tar in the container. Out of a container, a folder's content goes into the destination folder; links that may
    lead out of it and special files are left out, and the exit code then is 1.
    """
    from_spec, to_spec = parse_spec(source), parse_spec(destination)
    if from_spec.pod and to_spec.pod:
        raise CommandError("one of src or dest must be a local file specification")
    if not from_spec.pod and not to_spec.pod:
        raise CommandError("one of src or dest must be a remote file specification")
    copying = _Copying(AgentClient(root_dir), from_spec if from_spec.pod else to_spec, container, namespace)
    if from_spec.pod:
        left_out = copying.out_of_pod(from_spec.path, Path(to_spec.path))
    else:
        left_out = copying.into_pod(Path(from_spec.path), to_spec.path, preserve=not no_preserve)
    return 1 if left_out else 0


class _Copying:
    def __init__(self, client: AgentClient, spec: FileSpec, container: str | None, namespace: str | None) -> None:
        self._client = client
        self._pod = find_pod(client, spec.pod, spec.namespace or namespace)
        refuse_ended_pod(self._pod, "exec into")
        self._container = chosen_container(self._pod, container).name

    def out_of_pod(self, source: str, destination: Path) -> int:
        """How many entries were left out. Raises CommandError."""
        from trikubelet.cli.copy_session import receive_archive
        from trikubelet.cli.tar_extraction import TarExtraction
        from trikubelet.embedded.images.errors import ArchiveError

        folder, name = split_remote(source)
        extraction = TarExtraction(destination, posixpath.basename(name), _warn)
        target = self._target("tar", "-C", folder, "-cf", "-", name)
        try:
            self._run(partial(receive_archive, target, extraction.run), "tar")
        except ArchiveError as error:
            raise CommandError(f"tar contents corrupted: {error}") from None
        except OSError as error:
            raise CommandError(f"cannot write below {destination}: {error}") from None
        return extraction.left_out

    def into_pod(self, source: Path, destination: str, *, preserve: bool) -> int:
        """How many files were left out. Raises CommandError."""
        from trikubelet.cli.copy_session import run_quietly, send_archive
        from trikubelet.cli.tar_creation import TarCreation

        if not source.exists() and not source.is_symlink():
            raise CommandError(f"{source} doesn't exist in local filesystem")
        folder, name = posixpath.split(destination.rstrip("/") or "/")
        is_folder = self._run(partial(run_quietly, self._target("test", "-d", destination)), "test", may_fail=True)
        if is_folder or not name:
            folder, name = destination, source.resolve().name if source.name in ("", "..") else source.name
        flags = ("-xmf",) if preserve else ("--no-same-permissions", "--no-same-owner", "-xmf")
        creation = TarCreation(source, name, _warn)
        target = self._target("tar", *flags, "-", "-C", folder or ".", stdin=True)
        try:
            self._run(partial(send_archive, target, creation.run), "tar")
        except OSError as error:
            raise CommandError(f"cannot read {error.filename or source}: {error.strerror or error}") from None
        return creation.left_out

    def _target(self, *command: str, stdin: bool = False) -> Target:
        from trikubelet.http.streaming.command import CommandStreams

        streams = CommandStreams(stdin=stdin, stdout=True, stderr=True)
        return container_target(self._client, "exec", self._pod, self._container, streams, command)

    def _run(
        self, session: Callable[[], Coroutine[Any, Any, CommandResult]], program: str, *, may_fail: bool = False
    ) -> bool:
        """Whether the command said that all is well. Raises CommandError when it did not, unless that may be."""
        import trio

        from trikubelet.http.streaming.command import Failed

        try:
            result = trio.run(session)
        except CommandError as error:
            raise explained(error, self._pod, self._container) from None
        if isinstance(result, Failed):
            failure = command_failure(result.message)
            why = f"cp needs {program} in the container: " if failure.exit_code == 127 else ""
            raise CommandError(why + failure.message, failure.exit_code)
        if result.code and not may_fail:
            raise CommandError(f"{program} in the container terminated with exit code {result.code}", result.code)
        return not result.code


def _warn(message: str) -> None:
    echo(f"warning: left out {message}", err=True)
