"""What the processes in simulated containers do: pure values, no clock.

A `Life` is one run of a container, a `Program` the sequence of lives that a container of a pod has, one for each time
it is started. `ProgramBook` finds the program of a container by its name, its image or its pod.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Final

import attrs

from trikubelet.formats.values import frozen
from trikubelet.probes.types import Outcome, ProbeAnswer, ProbeKind
from trikubelet.sim.images import normalize


@frozen
class Life:
    """One run of a container, from its start to its end."""

    duration: float | None = None
    """Seconds until it ends by itself; None: it runs until something ends it."""
    exit_code: int = 0
    """Exit code of the end that comes after `duration`."""
    reason: str = ""
    """Reason in the status, such as OOMKilled. Empty: Completed or Error, by the exit code."""
    message: str = ""
    sigterm: float | None = 0.0
    """Seconds from the stop signal to its end; None: it ignores the signal."""
    sigterm_exit_code: int = 143
    sigkill: float = 0.0
    """Seconds from SIGKILL to its end: above 0 for a process that hangs in the kernel."""
    start_error: str = ""
    """If not empty, StartContainer fails with this message and the container is exited with code 128."""


@frozen
class ExecOutcome:
    """What a command in a container does."""

    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0


ExecHandler = Callable[[Sequence[str]], ExecOutcome]


def _exec_succeeds(command: Sequence[str]) -> ExecOutcome:
    return ExecOutcome()


ANSWERS_WELL: Final = ProbeAnswer(Outcome.SUCCESS)


@frozen
class Late:
    """An answer to a probe that takes its time; by default it never comes."""

    seconds: float = math.inf
    answer: ProbeAnswer = ANSWERS_WELL


HANGS: Final = Late()

AnswerHandler = Callable[[ProbeKind, float], "ProbeAnswer | Late"]
"""Gets the kind of probe and the seconds since the container's start."""


def _answers_well(kind: ProbeKind, age: float) -> ProbeAnswer:
    return ANSWERS_WELL


@frozen
class Program:
    """The lives of a container, in the order of its starts within one pod. The last life repeats."""

    lives: tuple[Life, ...] = attrs.field(default=(Life(),), validator=attrs.validators.min_len(1))
    exec: ExecHandler = _exec_succeeds
    """Called with the command of each ExecSync."""
    answers: AnswerHandler = _answers_well
    """Called for each probe over the network (`probing.SimulatedTargets`); probes by command use `exec`."""
    create_error: str = ""
    """If not empty, CreateContainer fails with this message."""

    def life(self, start_number: int) -> Life:
        """The life of the start with this number, counted from 0."""
        return self.lives[min(start_number, len(self.lives) - 1)]

    @classmethod
    def runs_forever(cls, *, sigterm: float | None = 0.0, sigkill: float = 0.0) -> Program:
        """Runs until it is stopped. `sigterm=None` ignores SIGTERM, a number takes so many seconds to end."""
        return cls((Life(sigterm=sigterm, sigkill=sigkill),))

    @classmethod
    def exits(cls, after: float, exit_code: int = 0) -> Program:
        """Every run ends by itself, so many seconds after its start."""
        return cls((Life(duration=after, exit_code=exit_code),))

    @classmethod
    def crashes(cls, times: int, *, after: float = 0.0, exit_code: int = 1, then: Life | None = None) -> Program:
        """Crashes so many times, then lives `then` (default: runs forever)."""
        return cls((*(Life(duration=after, exit_code=exit_code),) * times, then or Life()))

    @classmethod
    def fails_to_start(cls, message: str, times: int | None = None) -> Program:
        """StartContainer fails: always, or the first `times` times."""
        broken = Life(start_error=message)
        return cls((broken,)) if times is None else cls((broken,) * times + (Life(),))


@frozen
class _Rule:
    program: Program
    container: str
    image: str
    pod: str

    def fits(self, container: str, images: Collection[str], pod: str) -> bool:
        return (
            self.container in ("", container)
            and self.pod in ("", pod)
            and (not self.image or self.image in images or normalize(self.image) in images)
        )


class ProgramBook:
    """Which program a container runs. Rules added later win over earlier ones."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def add(self, program: Program, *, container: str = "", image: str = "", pod: str = "") -> None:
        """Containers with this name, image reference and pod name run `program`. An empty string fits all."""
        rule = _Rule(program, container, image, pod)
        self._rules = [old for old in self._rules if (old.container, old.image, old.pod) != (container, image, pod)]
        self._rules.append(rule)

    def find(self, container: str, images: Collection[str], pod: str) -> Program:
        """The program of a container. `images`: all references by which its image is known."""
        for rule in reversed(self._rules):
            if rule.fits(container, images, pod):
                return rule.program
        return Program()
