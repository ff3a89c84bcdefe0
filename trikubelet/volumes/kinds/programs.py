"""Programs of the node that volumes need: found where the system has them, run with a deadline."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.volumes.errors import UncertainVolumeError, VolumeError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SYSTEM: Final = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_MAX_OUTPUT: Final = 2000
"""Characters of a program's output in an error."""


@attrs.frozen
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


async def run_program(volume: str, name: str, arguments: Sequence[str], *, package: str, deadline: float) -> Ended:
    """Run a program and wait for its end.

    Raises VolumeError when it cannot be run, and UncertainVolumeError when it has not ended after `deadline` seconds:
    it is ended then, as it is when this is cancelled.
    """
    program = find_program(volume, name, package)
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        with trio.fail_after(deadline):
            done = await trio.run_process(
                [program, *arguments], capture_stdout=True, capture_stderr=True, check=False, env=environment
            )
    except trio.TooSlowError:
        problem = f"expected {name} to end within {deadline:.0f} s, it did not: {' '.join([name, *arguments])}"
        raise UncertainVolumeError(volume, problem) from None
    except OSError as error:
        raise VolumeError(volume, f"cannot run {program}: {error.strerror}") from error
    answer = done.stdout.decode(errors="replace")
    output = "\n".join(part for part in (answer.strip(), done.stderr.decode(errors="replace").strip()) if part)
    return Ended(done.returncode, output[-_MAX_OUTPUT:], answer)
