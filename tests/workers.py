"""Runs the tests in processes that are forked from the one that has collected them: `pytest --processes 4`.

The story: pytest collects the tests and rewrites their assertions once, in the first process. Then it forks workers,
which have all of that already. The tests are cut into units: tests with the same name in the marker `together` are one
unit, or as many as `parts` says, and each other module is one. A worker asks for its next unit when it has run the one
before, and takes all fixtures down in between, those of the session too: tests that share a costly one belong together.
A worker sends each report as soon as it has it, and the first process passes it on to pytest, as if the test had run
there.

For root, each worker but the first has a machine of its own (`tests.worker_machine`), so that tests which change the
machine run beside each other. The first worker is in the machine itself, and the only one that gets the unit `machine`:
tests that need the real network, or what there is only once.

A worker that dies fails the test that it ran, and another worker gets what is left of its unit.

pytest-xdist starts its workers by executing them: each of them collects all tests again, which takes a minute of
processor time for each of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest

from tests import worker_machine
from tests.worker_machine import WorkerMachine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import FrameType

TOGETHER: Final = "together"
"""Marker: tests of one name run in one process, one after the other. With `parts`, in so many at most."""
MACHINE: Final = "machine"
"""The unit of those tests for which the machine of a worker does not do."""
SECONDS: Final = Path(__file__).with_name("seconds.json")
"""Seconds of each unit that took more than one, as `--record-seconds` wrote them: the longest begin first."""
LEFTOVERS: Final = "leftovers"
"""The plugin that says what a run left. A run within another's passes `-p no:leftovers`, since it would find what is
the other's."""
_LENGTH: Final = struct.Struct("!I")
_WORKER: Final = "TRIKUBELET_TEST_WORKER"


def number() -> int:
    """Return the number of this worker, 0 in a run without workers."""
    return int(os.environ.get(_WORKER, "0"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("workers")
    group.addoption("--processes", type=int, default=0, help="run the tests in this many forked processes")
    group.addoption("--record-seconds", action="store_true", help=f"write how long units took into {SECONDS.name}")


@attrs.define
class Unit:
    """Tests that one worker runs in their order, by their positions in the session's list."""

    name: str
    left: deque[int] = attrs.field(factory=deque)
    modules: dict[str, float] = attrs.field(factory=dict)
    """Seconds of each of its modules."""

    def put(self, module: str, positions: Iterable[int], seconds: float) -> None:
        """Add the tests of a module."""
        self.left.extend(positions)
        self.modules[module] = seconds

    @property
    def seconds(self) -> float:
        return sum(self.modules.values())


@attrs.define(eq=False)
class Worker:
    """A forked process, seen from the first one."""

    place: int
    pid: int
    channel: socket.socket
    machine: WorkerMachine | None
    unit: Unit | None = None
    """The unit that it runs."""
    received: bytearray = attrs.field(factory=bytearray)


def units_of(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> list[Unit]:
    """Return the units of a session, those first that will take longest by the seconds of their modules.

    A group that may be cut is cut between modules, into parts that take as long as each other.
    """
    modules: dict[tuple[str, str], list[int]] = {}
    parts: dict[str, int] = {}
    for position, item in enumerate(items):
        module = item.nodeid.partition("::")[0]
        marker = item.get_closest_marker(TOGETHER)
        name = module if marker is None else str(marker.args[0])
        parts[name] = 1 if marker is None else marker.kwargs.get("parts", 1)
        modules.setdefault((name, module), []).append(position)
    units = {name: [Unit(name) for _ in range(count)] for name, count in parts.items()}
    for (name, module), positions in sorted(modules.items(), key=lambda each: -seconds.get(each[0][1], 0.0)):
        least = min(units[name], key=lambda unit: (unit.seconds, len(unit.left)))
        least.put(module, positions, seconds.get(module, 0.0))
    found = [unit for each in units.values() for unit in each if unit.left]
    return sorted(found, key=lambda unit: -unit.seconds)


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Replace pytest's loop where `--processes` asks for it."""
    processes = session.config.option.processes
    if processes < 1 or session.config.option.collectonly:
        return None
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    with _Pool(session, units_of(session.items, seconds), processes) as pool:
        pool.run()
    if session.config.option.record_seconds:
        took = {module: round(each, 1) for module, each in pool.seconds.items() if each >= 1}
        SECONDS.write_text(json.dumps(dict(sorted(took.items())), indent=0) + "\n")
    return True


class _Pool:
    """The workers of a session."""

    def __init__(self, session: pytest.Session, units: Sequence[Unit], processes: int) -> None:
        self._session = session
        self._units = deque(unit for unit in units if unit.name != MACHINE)
        self._of_machine = deque(unit for unit in units if unit.name == MACHINE)
        self._processes = processes
        self._have_machines = worker_machine.possible()
        self.seconds: dict[str, float] = {}
        self._workers: dict[int, Worker] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _Pool:
        # One folder for all: the workers make numbered ones in it.
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        if self._have_machines:
            worker_machine.remove_those_of_killed_sessions()
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers that still run: only after an interruption are there any."""
        for worker in list(self._workers.values()):
            ended = select.poll()
            ended.register(pidfd := os.pidfd_open(worker.pid), select.POLLIN)
            while True:  # where Python ignores exceptions, in a finalizer for example, the first one is lost
                os.kill(worker.pid, signal.SIGTERM)
                if ended.poll(1000):
                    break
            os.close(pidfd)
            self._reap(worker)
        self._selector.close()

    def _units_for(self, place: int) -> deque[Unit]:
        """Return the units of which a worker gets its next one."""
        return self._of_machine if self._of_machine and (place == 0 or not self._have_machines) else self._units

    def run(self) -> None:
        """Run all units. Raises pytest.Session.Failed and Interrupted, as pytest's own loop."""
        for place in range(min(self._processes, len(self._units) + len(self._of_machine))):
            self._start(place)
        while self._workers:
            for key, _ in self._selector.select():
                self._receive(key.data)
            if self._session.shouldfail:
                raise self._session.Failed(self._session.shouldfail)
            if self._session.shouldstop:
                raise self._session.Interrupted(self._session.shouldstop)

    def _start(self, place: int) -> None:
        ours, its = socket.socketpair()
        machine = WorkerMachine(worker_machine.name_of(place)) if place and self._have_machines else None
        if machine is not None:
            machine.make()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for other in self._workers.values():
                other.channel.close()
            _work(self._session, its, place, machine)
        its.close()
        worker = self._workers[place] = Worker(place, pid, ours, machine)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _hand_out(self, worker: Worker) -> None:
        """Give a worker its next unit, or tell it that there is none."""
        units = self._units_for(worker.place)
        unit = worker.unit = units.popleft() if units else None
        with contextlib.suppress(BrokenPipeError):  # it has died: what it had is given to another one
            _send(worker.channel, None if unit is None else list(unit.left))

    def _receive(self, worker: Worker) -> None:
        try:
            data = worker.channel.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self._ended(worker)
            return
        worker.received += data
        for message in _messages(worker.received):
            self._take(worker, *message)

    def _take(self, worker: Worker, kind: str, content: Any) -> None:
        hook = self._session.config.hook
        match kind:
            case "next":
                self._hand_out(worker)
            case "start":
                hook.pytest_runtest_logstart(**content)
            case "finish":
                hook.pytest_runtest_logfinish(**content)
                assert worker.unit is not None
                worker.unit.left.popleft()
            case "report":
                report = hook.pytest_report_from_serializable(config=self._session.config, data=content)
                module = report.nodeid.partition("::")[0]
                self.seconds[module] = self.seconds.get(module, 0.0) + report.duration
                hook.pytest_runtest_logreport(report=report)
            case "warning":
                hook.pytest_warning_recorded.call_historic(kwargs=content)
            case "left":
                self._left(content)

    def _ended(self, worker: Worker) -> None:
        code = self._reap(worker)
        del self._workers[worker.place]
        if worker.unit is None or not worker.unit.left:
            if code:
                raise self._session.Interrupted(f"a worker ended with {code} between two tests")
            return
        item = self._session.items[worker.unit.left.popleft()]
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"the worker ended ({code}) in this test", "call"
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.unit.left:
            (self._of_machine if worker.unit.name == MACHINE else self._units).appendleft(worker.unit)
        if self._units_for(worker.place):
            self._start(worker.place)

    def _reap(self, worker: Worker) -> int:
        self._selector.unregister(worker.channel)
        worker.channel.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if worker.machine is not None:
            self._left(worker.machine.remove())
        return code

    def _left(self, what: Sequence[str]) -> None:
        """Take note of what a worker left on its machine."""
        leftovers = self._session.config.pluginmanager.getplugin(LEFTOVERS)
        if leftovers is not None:
            leftovers.left += what


# --- In a worker -----------------------------------------------------------------------------------------------------


def _work(session: pytest.Session, channel: socket.socket, place: int, machine: WorkerMachine | None) -> None:
    """Run what the first process hands out, and leave the process."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        os.environ[_WORKER] = str(place)
        plugins = session.config.pluginmanager
        leftovers = plugins.getplugin(LEFTOVERS) if machine is not None else None
        if machine is not None:
            machine.enter(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
        if leftovers is not None:
            leftovers.enter()
        be_quiet(plugins)
        plugins.register(_Reports(session.config, channel))
        for positions in _units(channel):
            items = [session.items[position] for position in positions]
            for item, nextitem in zip(items, [*items[1:], None], strict=True):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
                _send(channel, ("finish", {"nodeid": item.nodeid, "location": item.location}))
            if leftovers is not None and any(item.get_closest_marker("root") for item in items):
                leftovers.look(f"seen after {items[0].nodeid.partition('::')[0]}")
        if leftovers is not None:
            _send(channel, ("left", leftovers.last(session)))
        code = 0
    except KeyboardInterrupt:
        pass  # the first process tells of it
    except BaseException:  # noqa: BLE001 - a forked process has nobody to raise to
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def be_quiet(plugins: pytest.PytestPluginManager) -> None:
    """Leave reports to the first process, and capture this one's output apart from that of the others."""
    for name in ("terminalreporter", "junitxml", "lfplugin", "nfplugin"):
        plugins.unregister(name=name)
    capture = plugins.getplugin("capturemanager")
    # The files that capture output have one position for all processes that share them.
    capture.stop_global_capturing()
    capture.start_global_capturing()


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def _units(channel: socket.socket) -> Iterator[list[int]]:
    """Ask for units, until there is none. Yield the positions of the tests of each."""
    received = bytearray()
    while True:
        _send(channel, ("next", None))
        while not (messages := list(_messages(received))):
            data = channel.recv(1 << 16)
            if not data:
                raise EOFError("the first process has ended")
            received += data
        [positions] = messages
        if positions is None:
            return
        yield positions


class _Reports:
    """The plugin of a worker that sends what its tests give."""

    def __init__(self, config: pytest.Config, channel: socket.socket) -> None:
        self._config = config
        self._channel = channel

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        _send(self._channel, ("start", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        _send(self._channel, ("report", data))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        try:
            pickle.dumps(warning_message)
        except Exception:  # noqa: BLE001 - whatever a warning holds
            warning_message.message, warning_message.source = UserWarning(str(warning_message.message)), None
        content = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        _send(self._channel, ("warning", content))


def _send(channel: socket.socket, message: object) -> None:
    data = pickle.dumps(message)
    channel.sendall(_LENGTH.pack(len(data)) + data)


def _messages(received: bytearray) -> Iterator[Any]:
    """Take whole messages from what was received."""
    while len(received) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
        if len(received) < end:
            return
        message = pickle.loads(bytes(received[_LENGTH.size : end]))
        del received[:end]
        yield message
