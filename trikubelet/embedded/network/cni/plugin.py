"""Running a plugin: a program that gets a configuration on its standard input, and says on its output what it did.

Its process group is its own, so that a plugin that does not end, and those that it started, can be killed as a whole.
What one attachment's plugins are is known by their environment: an agent that was killed leaves them running, and the
next one must end them before it takes down what they are still making.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.embedded.network.cni.documents import MOST_BYTES, CniDataError, printable
from trikubelet.embedded.network.cni.results import PluginProblem, parse_problem
from trikubelet.embedded.network.model import NetworkError
from trikubelet.formats.values import frozen
from trikubelet.linux.programs import Finished, TooMuchOutputError, run_program
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

log = get_logger("network")

_MOST_STDERR: Final = 16 * 2**10
_BUSY_TRIES: Final = 5
_KILL_TIMEOUT: Final = 10.0
_LOOKS: Final = 2
"""So often none must be found: a process that just executes another program has no environment for a moment."""
_LOOK_AGAIN: Final = 0.02
_PROCESSES: Final = Path("/proc")


class PluginError(NetworkError):
    """A plugin failed; `problem` is what it said."""

    def __init__(self, text: str, problem: PluginProblem) -> None:
        super().__init__(text)
        self.problem = problem


@frozen(kw_only=True)
class PluginCall:
    """What a plugin is asked, but for its configuration."""

    command: str
    """ADD, DEL, GC, STATUS or VERSION."""
    container_id: str = ""
    namespace_path: str = ""
    interface: str = ""
    arguments: Sequence[tuple[str, str]] = ()

    def environment(self, folders: Sequence[Path]) -> dict[str, str]:
        return {
            "CNI_COMMAND": self.command,
            "CNI_CONTAINERID": self.container_id,
            "CNI_NETNS": self.namespace_path,
            "CNI_IFNAME": self.interface,
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in self.arguments),
            "CNI_PATH": ":".join(str(folder) for folder in folders),
        }


async def run_plugin(
    program: Path, environment: Mapping[str, str], configuration: bytes, *, what: str, deadline: float
) -> bytes:
    """What the plugin printed. `what` begins each error. Raises PluginError, NetworkError.

    At the deadline (in Trio's time), or when this is cancelled, the plugin and what it started are killed.
    """
    seconds = deadline - trio.current_time()
    with trio.move_on_at(deadline):
        for _ in range(_BUSY_TRIES):
            try:
                return await _run(program, environment, configuration, what)
            except OSError as error:
                if error.errno != errno.ETXTBSY:
                    raise NetworkError(f"{what}: cannot run {program}: {error.strerror}") from error
            await trio.sleep(1)  # it is being installed
        raise NetworkError(f"{what}: {program} is open for writing and so cannot be run")
    raise NetworkError(f"{what}: killed, since it did not end within {max(seconds, 0):.0f} s")


async def _run(program: Path, environment: Mapping[str, str], configuration: bytes, what: str) -> bytes:
    try:
        ended = await run_program(
            [str(program)],
            env={**os.environ, **environment},
            stdin=configuration,
            most_stdout=MOST_BYTES,
            most_stderr=_MOST_STDERR,
        )
    except TooMuchOutputError as error:
        raise NetworkError(f"{what}: {error}") from None
    said = printable(ended.stderr.decode(errors="replace"))
    if ended.code:
        problem = _problem(ended, said, what)
        number = f" (code {problem.code})" if problem.code else ""
        raise PluginError(f"{what}: {problem.message}{number}", problem)
    if said:
        log.info("a CNI plugin wrote to its standard error", plugin=what, stderr=said)
    return ended.stdout


def _problem(ended: Finished, said: str, what: str) -> PluginProblem:
    """Of a plugin that failed, whatever it managed to say."""
    if ended.stdout.strip():
        try:
            problem = parse_problem(ended.stdout, what)
            if problem.message or problem.code:
                return problem
        except CniDataError:
            said = printable(f"{ended.stdout.decode(errors='replace')} {said}")
    return PluginProblem(0, f"{ended.ending}: {said}" if said else f"{ended.ending}, and it said nothing")


async def end_left_plugins(container_id: str, commands: Collection[str]) -> None:
    """Kill what still runs of a sandbox's plugins, and wait for their ends. Raises NetworkError.

    They are from an agent that was killed: whoever calls this runs none of them itself.
    """
    groups: set[int] = set()
    unseen = 0
    with trio.move_on_after(_KILL_TIMEOUT):
        while unseen < _LOOKS:
            left = await trio.to_thread.run_sync(lambda: list(_processes_of(container_id, commands, groups)))
            for group in {group for _, group in left} - {os.getpgrp()}:
                groups.add(group)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            await _end_all([process for process, _ in left])
            unseen = 0 if left else unseen + 1
            await trio.sleep(_LOOK_AGAIN)
        return
    raise NetworkError(f"CNI plugins of sandbox {container_id} that an earlier agent started do not end when killed")


async def _end_all(processes: Sequence[int]) -> None:
    """Kill processes, given by descriptors, and wait for them. Closes the descriptors."""
    try:
        for descriptor in processes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor in processes:
            await trio.lowlevel.wait_readable(descriptor)
    finally:
        for descriptor in processes:
            trio.lowlevel.notify_closing(descriptor)
            os.close(descriptor)


def _processes_of(container_id: str, commands: Collection[str], groups: Collection[int]) -> Iterator[tuple[int, int]]:
    """Descriptors of them, and their process groups; those of the groups that were found before too."""
    wanted = f"CNI_CONTAINERID={container_id}".encode()
    commanded = {f"CNI_COMMAND={command}".encode() for command in commands}
    ours = (_PROCESSES / "self/ns/pid").stat().st_ino
    for process in _PROCESSES.iterdir():
        if not process.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(int(process.name))
            try:
                variables = (process / "environ").read_bytes().split(b"\0")
                group = os.getpgid(int(process.name))
                matches = (wanted in variables and not commanded.isdisjoint(variables)) or group in groups
                # What runs in a container can have any environment, and is none.
                matches = matches and (process / "ns/pid").stat().st_ino == ours
            except OSError:
                matches = False
            if matches:
                yield descriptor, group
            else:
                os.close(descriptor)
