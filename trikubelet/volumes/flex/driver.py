"""A flexVolume driver's program: run for each command, with a deadline, and what it prints is bounded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.formats.values import define
from trikubelet.linux.programs import TooMuchOutputError, run_program
from trikubelet.volumes.errors import UncertainVolumeError, VolumeError
from trikubelet.volumes.flex.answers import Answer, AnswerError, Capabilities, NotSupportedError, parse_answer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MOST_ANSWER: Final = 1 << 18
_MOST_STDERR: Final = 2000
"""Bytes."""
CALL_DEADLINE: Final = 600.0
"""Seconds. The kubelet's has none but for waiting until a disk is attached, which is this."""
_NO_SECRET_IS_SHORTER: Final = 4
HIDDEN: Final = "***"


@define(eq=False)
class FlexDriver:
    """`name`: `<vendor>/<driver>`, or without a vendor."""

    name: str
    program: Path
    capabilities: Capabilities = attrs.field(factory=Capabilities)
    _unsupported: set[str] = attrs.field(factory=set)
    """Commands that it was asked once and has not: it is not asked again."""

    async def call(
        self,
        volume: str,
        command: str,
        *arguments: str,
        secrets: Iterable[str] = (),
        deadline: float = CALL_DEADLINE,
    ) -> Answer:
        """`volume`: the one that errors are about. `secrets` are told in no error.

        Raises NotSupportedError, VolumeError, and UncertainVolumeError for a call that did not come to its end. When
        cancelled, the program is killed with all that it started.
        """
        if command in self._unsupported:
            raise NotSupportedError(command)
        who = f"flexVolume driver {self.name}: {command}"
        try:
            with trio.fail_after(deadline):
                done = await run_program(
                    [str(self.program), command, *arguments],
                    env=os.environ,
                    most_stdout=MOST_ANSWER,
                    most_stderr=_MOST_STDERR,
                )
        except trio.TooSlowError:
            problem = f"{who}: expected an answer within {deadline:.0f} s, got none"
            raise UncertainVolumeError(volume, problem) from None
        except TooMuchOutputError as error:
            raise UncertainVolumeError(volume, f"{who}: {error}") from None
        except OSError as error:
            raise VolumeError(volume, f"{who}: cannot run {self.program}: {error.strerror}") from None
        except ValueError as error:  # its text has no argument in it
            raise VolumeError(volume, f"{who}: cannot run {self.program}: {error}") from None
        try:
            answer = parse_answer(command, done.stdout or done.stderr)
        except NotSupportedError:
            self._unsupported.add(command)
            raise
        except AnswerError as error:
            ended = f" ({done.ending})" if done.code else ""
            raise VolumeError(volume, f"{who}: {_without(secrets, str(error))}{ended}") from None
        if done.code:
            raise VolumeError(volume, f"{who}: it answered that all is well, and ended with {done.ending}")
        return answer


def _without(secrets: Iterable[str], text: str) -> str:
    """Longest first: a secret may be part of another."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _NO_SECRET_IS_SHORTER:
            text = text.replace(secret, HIDDEN)
    return text
