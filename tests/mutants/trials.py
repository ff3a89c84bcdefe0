"""Tries mutants in children of one process that has collected all tests.

    python -m tests.mutants.trials NAMES FILE [OPTION...]

It is a session of pytest with another loop. Each mutant is a child that is forked from it, patches the module and runs
the tests that look at the mutant, until one fails. What came of it goes into FILE, a line of JSON for each mutant. The
options are pytest's. Collecting the tests for each mutant would take five times as long as running them.

By day the tests have the examples that they have in `make test`, at night (HYPOTHESIS_PROFILE) many new ones. None is
made smaller, since only the fact that one failed matters.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import hypothesis
import pytest

from tests.examples import IS_NIGHT
from tests.mutants import workshop
from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.patch import PatchError, patch
from tests.workers import be_quiet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

AT_ONCE: Final = min(2, os.cpu_count() or 1)
TIMEOUT: Final = 600
"""Seconds for one mutant, a hundred times what it takes."""
UNCHANGED: Final = "the unchanged package"
PROFILE: Final = "mutants"


@attrs.frozen
class Failure:
    """What caught a mutant."""

    test: str
    check: str
    """The innermost function of a test file on the way to the failure."""
    message: str

    def __str__(self) -> str:
        said = "" if self.message.startswith("assert") else self.message
        return said or self.check


@attrs.frozen
class Trial:
    """What came of a mutant by day or at night."""

    name: str
    seconds: float = 0.0
    """Of processor time."""
    by_facts: Failure | None = None
    by_machine: Failure | None = None
    problem: str | None = None
    """Why nothing can be said of it."""

    @property
    def killed(self) -> bool:
        return self.by_facts is not None or self.by_machine is not None

    @classmethod
    def from_json(cls, line: str) -> Trial:
        fields = json.loads(line)
        for each in ("by_facts", "by_machine"):
            if fields[each] is not None:
                fields[each] = Failure(**fields[each])
        return cls(**fields)


class Trials:
    """The plugin with the loop."""

    def __init__(self, mutants: Sequence[Mutant], file: Path) -> None:
        self._mutants = mutants
        self._file = file
        self._failures: list[Failure] = []
        """Of one run, in a child."""

    def pytest_sessionstart(self) -> None:
        """After conftest has chosen a profile, and before the tests build upon it."""
        hypothesis.settings.register_profile(
            PROFILE,
            hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name()),
            database=None,
            report_multiple_bugs=False,
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        )
        hypothesis.settings.load_profile(PROFILE)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("the tests could not be collected")
        # That the tests pass at night takes long to see, and is not the question.
        waiting: list[Mutant | None] = [*self._mutants] if IS_NIGHT else [None, *self._mutants]
        running: dict[int, tuple[int, int, str]] = {}
        with self._file.open("w") as results:
            while waiting or running:
                while waiting and len(running) < AT_ONCE:
                    mutant = waiting.pop(0)
                    pid, channel = self._fork(session, mutant)
                    pidfd = os.pidfd_open(pid)
                    running[pidfd] = (pid, channel, UNCHANGED if mutant is None else mutant.name)
                for pidfd in select.select(running, [], [])[0]:
                    trial = _reap(*running.pop(pidfd))
                    os.close(pidfd)
                    results.write(json.dumps(attrs.asdict(trial)) + "\n")
                    results.flush()
                    if trial.name == UNCHANGED and (trial.killed or trial.problem):
                        waiting.clear()
        return True

    def _fork(self, session: pytest.Session, mutant: Mutant | None) -> tuple[int, int]:
        """Return a child's number, and where it writes what came of the mutant."""
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            os.close(writing)
            return pid, reading
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(TIMEOUT)
            trial = self._try(session, mutant)
            os.write(writing, json.dumps(attrs.asdict(trial)).encode())
        except BaseException:  # noqa: BLE001 - a forked process has nobody to raise to
            os.write(writing, traceback.format_exc()[-2000:].encode())
        finally:
            os._exit(0)

    def _try(self, session: pytest.Session, mutant: Mutant | None) -> Trial:
        be_quiet(session.config.pluginmanager)
        if mutant is None:
            every = dict.fromkeys(test for each in self._mutants for test in workshop.tests_of(each))
            return Trial(UNCHANGED, by_facts=self._run(session, every), seconds=_processor_time())
        path = workshop.PROJECT / workshop.PACKAGE / mutant.file
        source = path.read_text(encoding="utf-8")
        gc.unfreeze()  # what the tests and their modules have
        try:
            patch(str(path), source, workshop.edited(mutant, source))
        except (workshop.EditError, PatchError) as problem:
            return Trial(mutant.name, problem=str(problem))
        by_facts = self._run(session, workshop.facts_of(mutant))
        asks_machine = by_facts is None or mutant.promise is not None
        by_machine = self._run(session, workshop.machine_of(mutant)) if asks_machine else None
        return Trial(mutant.name, _processor_time(), by_facts, by_machine)

    def _run(self, session: pytest.Session, modules: Iterable[str]) -> Failure | None:
        """Run the tests of modules until one fails."""
        self._failures.clear()
        items = [item for module in modules for item in session.items if item.nodeid.startswith(f"{module}::")]
        for item in items:
            # Without a next one all fixtures end: another module's tests may follow after a failure.
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._failures:
                break
        return self._failures[0] if self._failures else None

    def pytest_exception_interact(
        self, node: pytest.Item, call: pytest.CallInfo[object], report: pytest.TestReport | pytest.CollectReport
    ) -> None:
        """Note a failure."""
        if call.excinfo is None or isinstance(report, pytest.CollectReport):
            return
        check, first = _origin(call.excinfo.value)
        said = str(first).partition("\n")[0][:200]
        error = type(first).__name__
        message = said if error == "AssertionError" else f"{error}: {said}"
        self._failures.append(Failure(node.nodeid.rpartition("/")[2], check, message))


def _reap(pid: int, channel: int, name: str) -> Trial:
    with os.fdopen(channel) as file:
        said = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGALRM:
        return Trial(name, problem=f"{name}: its tests took longer than {TIMEOUT} seconds")
    if code or not said.startswith("{"):
        return Trial(name, problem=f"{name}: its tests neither passed nor failed ({code}):\n{said}")
    return Trial.from_json(said)


def _processor_time() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _origin(error: BaseException) -> tuple[str, BaseException]:
    """The innermost function of a test file on the way to the failure, and the failure.

    A machine's teardown runs after a failure and may fail for the same reason: what counts is the first.
    """
    check, first = "", error
    context: BaseException | None = error
    while context is not None:
        names = [
            frame.f_code.co_name
            for frame, _line in traceback.walk_tb(context.__traceback__)
            if Path(frame.f_code.co_filename).name.startswith("test_")
        ]
        if names:
            check, first = names[-1], context
        context = context.__context__
    return check, first


def main(arguments: Sequence[str]) -> int:
    """Try the mutants of the names in the first argument, a list in JSON, and write what came of each into a file."""
    names, file = json.loads(arguments[0]), Path(arguments[1])
    mutants = [mutant for mutant in MUTANTS if mutant.name in names]
    tests = dict.fromkeys(test for each in mutants for test in workshop.tests_of(each))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:leftovers", *arguments[2:], *tests]
    return int(pytest.main(options, plugins=[Trials(mutants, file)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
