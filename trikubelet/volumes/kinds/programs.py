"""Programs of the node that volumes need: found where the system has them, run with a deadline."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import frozen
from trikubelet.linux import programs
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SYSTEM: Final = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_MAX_OUTPUT: Final = 2000
"""Characters of a program's output in an error."""
MOST_OUTPUT: Final = 1 << 20
"""Bytes."""
HIDDEN: Final = "***"


@frozen
class Ended:
    """How a program ended."""

    code: int
    output: str
    """What it wrote to both, errors last."""
    answer: str
    """What it wrote to its standard output."""


class MissingProgramError(VolumeError):
    """The node has no such program."""

    def __init__(self, volume: str, program: str, package: str) -> None:
        super().__init__(volume, f"{program} is not installed on the node: install {package}")


def find_program(volume: str, name: str, package: str) -> str:
    """Where a program is. `package`: the package that has it. Raises MissingProgramError."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM])
    found = shutil.which(name, path=path)
    if found is None:
        raise MissingProgramError(volume, name, package)
    return found


async def run_program(
    volume: str, name: str, arguments: Sequence[str], *, package: str, deadline: float, secret: str = ""
) -> Ended:
    """Run a program and wait for its end. `secret`: a text that is told in no error and in no output.

    Raises VolumeError when it cannot be run, and UncertainVolumeError when it has not ended after `deadline` seconds,
    or prints without end: it is killed then with all that it started, as it is when this is cancelled.
    """

    def shown(text: str) -> str:
        return text.replace(secret, HIDDEN) if secret else text

    program = find_program(volume, name, package)
    command = shown(" ".join([name, *arguments]))
    try:
        with trio.fail_after(deadline):
            done = await programs.run_program(
                [program, *arguments],
                env={**os.environ, "LC_ALL": "C"},
                most_stdout=MOST_OUTPUT,
                most_stderr=_MAX_OUTPUT,
            )
    except trio.TooSlowError:
        problem = f"expected {name} to end within {deadline:.0f} s, it did not: {command}"
        raise UncertainVolumeError(volume, problem) from None
    except programs.TooMuchOutputError as error:
        raise UncertainVolumeError(volume, f"{command}: {error}") from None
    except OSError as error:
        raise VolumeError(volume, f"cannot run {program}: {error.strerror}") from error
    except ValueError as error:
        raise VolumeError(volume, f"cannot run {command}: {error}") from None
    answer, stderr = (shown(text.decode(errors="replace")) for text in (done.stdout, done.stderr))
    output = "\n".join(part for part in (answer.strip(), stderr.strip()) if part)
    return Ended(done.code, output[-_MAX_OUTPUT:], answer)
