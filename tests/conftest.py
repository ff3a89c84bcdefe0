"""Markers that need more than Python: skipped with one line of reason, never silently under CI.

And the profile for nights (`python -m tests.nightly`), chosen like Hypothesis' own by the name in HYPOTHESIS_PROFILE.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import hypothesis
import pytest

from tests import worker_machine
from tests.containerd_programs import missing_programs
from tests.examples import BY_DAY, EXAMPLES, IS_NIGHT, NIGHTLY, PROFILE
from tests.watchdog import bounded
from tests.workers import LEFTOVERS, MACHINE
from trikubelet.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.containerd_node import ContainerdNode

FREEZE_EACH: Final = 300
"""Tests."""
_finished: Final = itertools.count(1)
CONTAINERDS: Final = 3 if IS_NIGHT else 2
"""Processes for the tests on containerd, each with one of its own."""
LAST_TO_GO: Final = 10.0
"""Seconds for what goes by itself: a keeper's cgroups go a moment after whoever ended it."""
NIGHTLY_EXAMPLES: Final = 10_000

hypothesis.settings.register_profile(
    NIGHTLY,
    max_examples=int(os.environ.get(EXAMPLES, NIGHTLY_EXAMPLES)),
    deadline=None,
    derandomize=False,
    print_blob=True,
)
# How long an example takes says how busy the machine is. New examples are for nights: by day a test that fails does so
# because of what was changed.
hypothesis.settings.register_profile("by day", max_examples=BY_DAY, deadline=None, derandomize=True)
hypothesis.settings.load_profile(os.environ.get(PROFILE, "by day"))


def pytest_configure(config: pytest.Config) -> None:
    """Where Python shall leave no compiled modules behind, they go where pytest keeps what it knows of earlier runs.

    Else every run, in each of its processes, prepares the assertions of every test module anew, and every agent and
    command that a test starts compiles all of its modules, which is a third of what it costs to start one.
    """
    if sys.dont_write_bytecode and getattr(config, "cache", None) is not None:
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(config.cache.mkdir("compiled"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's job in the background ignores it, and so would all that tests start and interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.pluginmanager.is_blocked(LEFTOVERS):
        config.pluginmanager.register(Leftovers(), LEFTOVERS)


def _missing(item: pytest.Item) -> str | None:
    again = item.get_closest_marker("again") and not item.get_closest_marker("both")
    if (again or item.get_closest_marker("night")) and not IS_NIGHT:
        return "runs at night"
    if item.get_closest_marker("root") and os.geteuid() != 0:
        return "needs root"
    if item.get_closest_marker("containerd"):
        if os.geteuid() != 0:
            return "needs root to run containerd"
        try:
            missing = missing_programs()
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        if missing:
            return f"needs {', '.join(missing)}: apt-get install containerd runc"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a containerd run one after the other, in one process or in a few. So do those that use the
    machine otherwise where workers have no machines of their own, since they look whether they left something."""
    have_machines = worker_machine.possible()
    for item in items:
        if not item.get_closest_marker("together"):
            if item.get_closest_marker("containerd"):
                item.add_marker(pytest.mark.together("containerd", parts=CONTAINERDS if have_machines else 1))
            elif item.get_closest_marker("root") and not have_machines:
                item.add_marker(pytest.mark.together(MACHINE))
        if item.get_closest_marker("fuzz"):
            _bound_examples(item)
        reason = _missing(item)
        if reason is None:
            continue
        if os.environ.get("CI") == "true" and reason.startswith("needs ") and "root" not in reason:
            raise pytest.UsageError(f"{item.nodeid} {reason}; under CI=true nothing may be skipped for that")
        item.add_marker(pytest.mark.skip(reason=reason))


def _bound_examples(item: pytest.Item) -> None:
    """Those that Hypothesis makes. Others are made by a loop in the test, which knows where each begins."""
    assert isinstance(item, pytest.Function)
    handle = getattr(item.obj, "hypothesis", None)
    if handle is not None:
        handle.inner_test = bounded(handle.inner_test)
    elif inspect.iscoroutinefunction(item.obj):
        item.obj = bounded(item.obj)


def pytest_collection_finish() -> None:
    """What there is of ten thousand tests stays: let collections of garbage not look at it each time."""
    freeze_garbage()


def pytest_runtest_logfinish() -> None:
    """Nor at what the tests so far have left for good: modules, and what these and Hypothesis remember."""
    if next(_finished) % FREEZE_EACH == 0:
        freeze_garbage()


def freeze_garbage() -> None:
    """Have Python look for garbage as an agent does that has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 10)


class Leftovers:
    """Fails a run that leaves something on the machine, or on that of a worker."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self._shared: tuple[str, ...] = ()
        self.begin()

    def begin(self) -> None:
        """Remember what there is on this machine before the tests."""
        from tests import leftovers

        self._before = leftovers.outside()
        self._seen: dict[str, str] = {}

    def enter(self) -> None:
        """Begin on the machine of a worker, which shares processes and the tree of cgroup v2 with the others."""
        v2 = [each.folder for each in worker_machine.hierarchies() if each.kind == "cgroup2"]
        self._shared = ("process ", *(f"cgroup {folder}/" for folder in v2))
        self.begin()

    def _now(self, folder: Path | None = None) -> set[str]:
        """Return what is there and was not before, and what is left in a folder."""
        from tests import leftovers

        found = leftovers.outside() - self._before
        if folder is not None:
            found |= leftovers.below(folder)
        return {each for each in found if not each.startswith(self._shared)}

    def look(self, when: str) -> None:
        """Remember when it was that something was there for the first time."""
        for each in self._now():
            self._seen.setdefault(each, when)

    def last(self, session: pytest.Session) -> list[str]:
        """Return what was left, after some seconds for what goes by itself."""
        folder = session.config._tmp_path_factory._basetemp  # type: ignore[attr-defined]  # None where no test had one
        give_up = time.monotonic() + LAST_TO_GO
        while True:
            left = self._now(folder)
            if not left or time.monotonic() > give_up:
                return [f"{each} ({self._seen[each]})" if each in self._seen else each for each in sorted(left)]
            time.sleep(0.2)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.left += self.last(session)
        if self.left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left:
            terminalreporter.section("left on the machine (or made by another run beside this one)")
            for each in self.left:
                terminalreporter.line(each)


@pytest.fixture(scope="session")
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerdNode]:
    """A containerd of this test session with the sandbox image and `localhost/test:1`."""
    from tests.containerd_node import ContainerdNode

    node = ContainerdNode(root=tmp_path_factory.mktemp("containerd"), bridge=f"br-test{os.getpid() % 10000}")
    try:
        node.start()
        node.import_images()
        yield node
    finally:
        node.stop()


@pytest.fixture(autouse=True, scope="session")
def quiet_logs() -> None:
    """Without the debug level, whose tracebacks cost a mock clock's test more than the test."""
    configure_logging("json", 0)
