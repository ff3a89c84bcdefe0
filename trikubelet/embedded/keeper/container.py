"""One container, from fork to recorded exit.

    CREATED ──▶ STARTING ──exec worked──▶ RUNNING ──command ended──▶ ENDING ──nothing left of it──▶ EXITED
        │           └──────exec failed, the exact error is known───────────────────────────────────────┘
        └──it failed, or nobody wants it any more──▶ DISCARDED

A file in the container's folder says what a keeper that comes later must know (pid, start time, cgroups):
`created.json`, from the start on `run.json`, and then `exit.json` (how it ended), written before the end is reported.

A container that is created is a bet that it will be started. Its process has its root, its cgroups and its user, and
waits. Whatever ends it before is no event: nothing is recorded, and its start begins anew.

The first container of a pod is expected as soon as the pod has its namespaces: then its process is forked, with its
cgroups and in those namespaces, and waits for the specification.
"""

from __future__ import annotations

import errno
import json
import marshal
import os
import signal
import sys
import time

from trikubelet.embedded.keeper import rootfs
from trikubelet.embedded.keeper.cgroups import ContainerCgroup
from trikubelet.embedded.keeper.context import ChildContext
from trikubelet.embedded.keeper.log import log, words_of
from trikubelet.embedded.keeper.logfile import LogFile
from trikubelet.embedded.keeper.output import Output
from trikubelet.embedded.keeper.process import Process, exit_code
from trikubelet.embedded.keeper.protocol import boot_id, close, process_start_ticks
from trikubelet.linux.trees import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trikubelet.embedded.keeper.environment import Environment

CREATED, DISCARDED = "created", "discarded"
STARTING, RUNNING, ENDING, EXITED = "starting", "running", "ending", "exited"
START_ERROR_CODE = 128
_RETRY = 0.01
_LONGEST_RETRY = 2.0
_LOOK_AGAIN = 0.001
_KILL_AGAIN = 0.1
_OTHER_PROCESSES_TIMEOUT = 5.0


class StartError(Exception):
    """A container for which not even a fork could be asked."""


class Container:
    """A container of this keeper, CREATED with its process being forked, that waits or not; then STARTING.

    `on_started(error)` is called once after the start, `on_exited()` once if it had started, `on_discarded()` once when
    nothing is left of one that was not started.
    """

    def __init__(
        self,
        environment: Environment,
        spec: dict[str, Any],
        *,
        on_exited: Callable[[], None],
        on_discarded: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._spec = _sharing_filter(spec)
        self._packed: bytes | None = None
        self.id: str = spec["container"]
        self.directory: str = spec["directory"]
        self.state = CREATED
        self.started_at = 0
        self.user: dict[str, Any] = {}
        self.exit: dict[str, Any] | None = None
        self.cgroup: ContainerCgroup | None = None
        self.with_reaper = spec["pid_namespace"] != "container" or not environment.isolated
        self._on_started: Callable[[str | None], None] = lambda _error: None
        self._on_exited = on_exited
        self._on_discarded = on_discarded
        self._error: str | None = None
        self._status = 0
        self._finished_at = 0
        self._oom_kills_before = 0
        """Those that it outlived: it still ran when it was killed by us."""
        self.namespace_flags = 0
        """CLONE flags of the pod's own namespaces that it is in, for commands to enter."""
        self._input = -1
        self._input_kind: str | None = None
        """"stdin" (a pipe) or "terminal"; None without, or when it has been closed."""
        self.log = LogFile(environment.stamp)
        self._output = Output(environment.loop, self.log, environment.stamp)
        self.process = Process(
            environment.loop,
            environment.forker,
            on_born=self._born,
            on_report=self._reported,
            on_ready=self._ready,
            on_end=self._ended,
            on_gone=self._gone,
        )

    @property
    def spec(self) -> dict[str, Any]:
        """What it is created as. Of a container that runs it is unpacked for each who asks: that is seldom."""
        return self._spec if self._packed is None else {**marshal.loads(self._packed), **self._spec}

    @spec.setter
    def spec(self, spec: dict[str, Any]) -> None:
        self._spec = _sharing_filter(spec)

    def _pack(self) -> None:
        """To 2 KiB from 8, all but the system call filter, which many containers share."""
        call_filter = self._spec.pop("seccomp", None)
        self._packed, self._spec = marshal.dumps(self._spec), {"seccomp": call_filter}

    @property
    def can_wait(self) -> bool:
        """Whether it can be created before its start: nobody else is in its PID namespace, where it would be seen."""
        return self._environment.isolated and self.spec["pid_namespace"] == "container"

    def open_log(self) -> None:
        """Before it is started. Raises StartError."""
        try:
            self.log.open(self.spec["log_path"])
        except OSError as error:
            raise StartError(f"open log {self.spec['log_path']}: {error.strerror or error}") from None

    def create(
        self, namespaces: list[tuple[int, int]], pid_namespace: int | None, shared_memory: int | None, proc: int | None
    ) -> None:
        """Have it forked. One that can wait then does all but to execute its program; others wait for nothing.

        Raises StartError with nothing left behind. Later errors go to `on_started`.
        """
        for _, flag in namespaces:
            self.namespace_flags |= flag
        try:
            self._make_cgroup()
            self._fork(namespaces, pid_namespace, shared_memory, proc)
        except OSError as error:
            self._clean_up()
            raise self._start_error(error) from None

    def expect(self, namespaces: list[tuple[int, int]], shared_memory: int | None) -> None:
        """Have it forked before its specification is there: `spec` has only what `expected_spec` says.

        Raises StartError with nothing left behind.
        """
        try:
            self._make_cgroup()
            context = self._context((), namespaces=namespaces, shared_memory=shared_memory, is_expected=True)
            self.process.spawn(self.spec, context, fresh=True, with_reaper=self.with_reaper)
        except OSError as error:
            self._clean_up()
            raise self._start_error(error) from None
        for _, flag in namespaces:
            self.namespace_flags |= flag

    @property
    def is_expected(self) -> bool:
        """Whether its specification is yet to come."""
        return self.state is CREATED and "argv" not in self.spec

    def can_become(self, spec: dict[str, Any]) -> bool:
        """Whether an expected one is made as this specification has it."""
        return self.process.is_on_its_way() and all(
            spec[name] == value for name, value in self.spec.items() if name != "resources"
        )

    def specify(self, spec: dict[str, Any]) -> None:
        """Tell an expected one what it is to become. Raises StartError, after which it is of no use."""
        expected, self.spec = self.spec, spec
        try:
            if self.cgroup is not None:
                self.cgroup.update(spec["resources"])
            streams = self._open_streams()
            try:
                score = spec["oom_score_adj"] or 0
                self.process.tell(spec, self._context(streams, oom_score=score))
            finally:
                for descriptor in streams:
                    os.close(descriptor)
        except OSError as error:
            self.spec = expected
            raise self._start_error(error) from None

    def _start_error(self, error: OSError) -> StartError:
        if error.errno != errno.ENOMEM:
            return StartError(words_of(error))
        limit = self.spec.get("resources", {}).get("memory_limit_in_bytes")
        own = "the memory limit of its pod" if limit is None else f"the memory limit ({limit} bytes) or its pod's"
        return StartError(f"no memory to begin with: {own} leaves no room for a process; raise it: {words_of(error)}")

    def record_failure(self, error: str) -> None:
        """Of `open_log` or `create`, at its start."""
        self._error, self._finished_at = error, time.time_ns()
        self._write("exit.json", self._exit_record())

    def waits_for(self, spec: dict[str, Any]) -> bool:
        """Whether it is ready to be started, or will be, and as `spec` says: limits may have been changed."""
        return self.state is CREATED and self.spec == spec and self.process.is_on_its_way()

    def start(self, on_started: Callable[[str | None], None]) -> None:
        """Let it execute its program."""
        self._on_started = on_started
        self.state = STARTING
        if self.process.child != 0:
            try:
                os.rename(f"{self.directory}/created.json", f"{self.directory}/run.json")
            except OSError as error:
                log(f"container {self.id}: write run.json: {error}")
        if self.can_wait:
            self.process.let_go_on()

    def discard(self) -> None:
        """End one that has not been started."""
        if self.state is CREATED:
            self.state = DISCARDED
            self.process.kill()

    def _make_cgroup(self) -> None:
        cgroups = self._environment.cgroups
        if cgroups.usable:
            self.cgroup = cgroups.create(
                self.id,
                self.spec["cgroup_parent"],
                self.spec["resources"],
                privileged=self.spec["privileged"],
                devices=[device["rule"] for device in self.spec["devices"]],
            )

    def _fork(
        self, namespaces: list[tuple[int, int]], pid_namespace: int | None, shared_memory: int | None, proc: int | None
    ) -> None:
        streams = self._open_streams()
        context = self._context(
            streams,
            namespaces=namespaces,
            shared_memory=shared_memory,
            proc=proc,
            proc_of=pid_namespace if self.spec["pid_namespace"] == "target" else None,
            pid_namespace=pid_namespace,
        )
        fresh = self._environment.isolated and self.spec["pid_namespace"] == "container"
        try:
            self.process.spawn(self.spec, context, fresh=fresh, with_reaper=self.with_reaper)
        finally:
            for descriptor in streams:
                os.close(descriptor)

    def _context(self, streams: tuple[int, ...], **particular: Any) -> ChildContext:
        return ChildContext(
            streams,
            cgroup=self.cgroup,
            reaper_keeps_orphans=True,
            namespace_flags=self.namespace_flags,
            waits=self.can_wait,
            **particular,
        )

    def _open_streams(self) -> tuple[int, int, int]:
        """The child's three descriptors; the keeper's ends are watched or kept."""
        theirs: list[int] = []
        try:
            if self.spec["stdin"] and not self.spec["tty"]:
                # Held open while nobody is attached: a program that waits for input must not see its end.
                stdin, writer = os.pipe2(os.O_CLOEXEC)
                theirs.append(stdin)
                self._take_input(writer, "stdin")
            else:
                theirs.append(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
            for stream in ("stdout", "stderr"):
                if self.spec["tty"]:
                    theirs.append(os.dup(theirs[0]))
                    continue
                reader, writer = os.pipe2(os.O_CLOEXEC)
                theirs.append(writer)
                self._output.add(reader, stream)
        except OSError:
            close(theirs)
            raise
        return theirs[0], theirs[1], theirs[2]

    def _take_input(self, descriptor: int, kind: str) -> None:
        # Attached clients share it, and none of them may ever wait in a write.
        os.set_blocking(descriptor, False)
        self._input, self._input_kind = descriptor, kind

    # -- attached clients --------------------------------------------------------------------------------------------

    def attach(self, outputs: dict[str, int], *, with_input: bool) -> tuple[str | None, int]:
        """Copy output into `outputs` (descriptors by stream, taken over by this) from now on.

        Returns the kind of input, and a copy of its descriptor for the caller to close; None and -1 if there is none.
        Raises OSError, and then has taken nothing over.
        A terminal is its own output: it is handed out even without input, to be resized.
        """
        kind, descriptor = None, -1
        if self._input_kind is not None and (with_input or self._input_kind == "terminal"):
            kind, descriptor = self._input_kind, os.dup(self._input)
        for stream, output in outputs.items():
            self._output.followers.add(stream, output)
        return kind, descriptor

    def close_stdin(self) -> None:
        """Let go of the pipe to the container's stdin; it ends when attached clients have let go too."""
        if self._input_kind == "stdin":
            self._close_input()

    def _close_input(self) -> None:
        if self._input_kind is not None:
            os.close(self._input)
            self._input, self._input_kind = -1, None

    # -- the way to RUNNING ------------------------------------------------------------------------------------------

    def _born(self) -> None:
        if self.state is not DISCARDED:
            self._write("created.json" if self.state is CREATED else "run.json", self._run_record())

    def _reported(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "error" in message:
            self._error = message["error"]
        elif "terminal" in message:
            self._take_input(os.dup(descriptors[0]), "terminal")
            self._output.add(descriptors.pop(), "stdout")
        else:
            self.user = message

    def _ready(self) -> None:
        if self._error is not None or self.state is not STARTING:
            return  # told when the process is gone
        self.state = RUNNING
        self.started_at = time.time_ns()
        self._pack()
        self._on_started(None)

    # -- the way to EXITED -------------------------------------------------------------------------------------------

    def send_signal(self, number: int) -> None:
        """Signal the container's first process. Raises ProcessLookupError when it has ended."""
        if number == signal.SIGKILL:
            self._record_oom_kills()
        self.process.send_signal(number)

    def kill(self) -> None:
        """End everything inside, now."""
        self._record_oom_kills()
        self.process.kill()
        self._kill_group()

    def _kill_group(self) -> None:
        """Again until it can be done: what the container has frozen of itself ends no other way."""
        if self.cgroup is None or self.state is EXITED or not self.cgroup.can_kill():
            return
        try:
            self.cgroup.kill()
        except OSError as error:
            log(f"container {self.id}: cgroup kill: {error}")
            self._environment.loop.after(_KILL_AGAIN, self._kill_group)

    def _record_oom_kills(self) -> None:
        if self.state is RUNNING and self.cgroup is not None:
            self._oom_kills_before = self.cgroup.oom_kills()

    def _ended(self, status: int) -> None:
        self._status = status
        self._finished_at = time.time_ns()
        if self.state is RUNNING:
            self.state = ENDING
        if self.with_reaper:
            self.process.kill()

    def _gone(self) -> None:
        self._wait_for_the_rest(time.monotonic() + _OTHER_PROCESSES_TIMEOUT)

    def _wait_for_the_rest(self, deadline: float) -> None:
        """Behind a killed reaper something may still be dying: the container has ended when its cgroup is empty.

        A process that the kernel does not let go of holds this up for a while, not for good.
        """
        if self.cgroup is not None:
            again = _LOOK_AGAIN
            try:
                self.cgroup.kill()
                left = self.with_reaper and bool(self.cgroup.processes())
            except OSError as error:
                log(f"container {self.id}: cgroup kill: {error}")
                left, again = self.with_reaper, _KILL_AGAIN
            if left and time.monotonic() < deadline:
                self._environment.loop.after(again, lambda: self._wait_for_the_rest(deadline))
                return
        self._finish()

    def _finish(self) -> None:
        if self.state in (CREATED, DISCARDED):
            self.state = DISCARDED
            self._clean_up(self._leave_as_it_was)
            return
        self._output.drain()
        self.exit = self._exit_record()
        self.state = EXITED
        self._clean_up()
        self._record_exit(_RETRY)
        if self._error is not None:
            self._on_started(self._error)
        else:
            self._on_exited()

    def _exit_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"started_at": self.started_at, "finished_at": self._finished_at, "user": self.user}
        if self._error is not None:
            return {**record, "exit_code": START_ERROR_CODE, "reason": "StartError", "message": self._error}
        code = exit_code(self._status)
        oom = self.cgroup is not None and self.cgroup.oom_kills() > self._oom_kills_before
        # As containerd: the reason is about the container's first process, and OOM only if that is what killed it.
        reason = "OOMKilled" if oom and code == 128 + signal.SIGKILL else "Completed" if code == 0 else "Error"
        return {**record, "exit_code": code, "reason": reason, "message": ""}

    def _record_exit(self, retry: float) -> None:
        """Until it is on disk, however full that is."""
        if not os.path.isdir(self.directory):
            return
        if not self._write("exit.json", self.exit or {}):
            following = min(2 * retry, _LONGEST_RETRY)
            self._environment.loop.after(retry, lambda: self._record_exit(following))

    def _clean_up(self, then: Callable[[], None] = lambda: None) -> None:
        self._output.drain()
        self.log.close()
        self._close_input()
        self._remove_cgroup(_RETRY, then)

    def _remove_cgroup(self, retry: float, then: Callable[[], None]) -> None:
        """A group stays busy for a moment after its last process died."""
        if self.cgroup is not None and not self.cgroup.remove() and retry < 60:
            self._environment.loop.after(min(retry, _LONGEST_RETRY), lambda: self._remove_cgroup(2 * retry, then))
        else:
            then()

    def _leave_as_it_was(self) -> None:
        """It may be created anew."""
        _delete_what_was_made(self.directory)
        self._on_discarded()

    # -- what is known -----------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The container for the agent."""
        return {
            "container": self.id,
            "state": self.state,
            "pid": self.process.pid,
            "started_at": self.started_at,
            "user": self.user,
            "cgroup": None if self.cgroup is None else self.cgroup.to_json(),
            "exit": self.exit,
        }

    def _run_record(self) -> dict[str, Any]:
        return {
            "pid": self.process.child,
            "start_ticks": process_start_ticks(self.process.child),
            "boot_id": boot_id(),
            # Of the fork: to write the file once more after the exec, some milliseconds later, is not worth its cost.
            "started_at": time.time_ns(),
            "cgroup": None if self.cgroup is None else self.cgroup.to_json(),
        }

    def _write(self, name: str, record: dict[str, Any]) -> bool:
        try:
            write_json(f"{self.directory}/{name}", record)
        except OSError as error:
            log(f"container {self.id}: write {name}: {error}")
            return False
        return True


def expected_spec(container: str, directory: str, sandbox: str, cgroup_parent: str) -> dict[str, Any]:
    """What is assumed of a pod's first container before its specification is there."""
    return {
        "container": container,
        "directory": directory,
        "sandbox": sandbox,
        "cgroup_parent": cgroup_parent,
        "pid_namespace": "container",
        "privileged": False,
        "devices": [],
        "resources": {},
    }


def _sharing_filter(spec: dict[str, Any]) -> dict[str, Any]:
    """Containers have few different filters: each is in memory once."""
    if spec.get("seccomp"):
        spec["seccomp"]["program"] = sys.intern(spec["seccomp"]["program"])
    return spec


def write_json(path: str, record: dict[str, Any]) -> None:
    """Replace a file in one step."""
    temporary = f"{path}.new"
    with open(temporary, "wb") as file:
        file.write(json.dumps(record).encode())  # `json.dump` would go through it in Python
    os.replace(temporary, path)


def reap(directory: str) -> bool:
    """Kill what is left of a container whose keeper died, and record its end if it was started. True if it was."""
    created = _read_record(f"{directory}/created.json")
    if created is not None:
        _end_leftovers(created)
        _delete_what_was_made(directory)
    record = _read_record(f"{directory}/run.json")
    if record is None or os.path.exists(f"{directory}/exit.json"):
        return False
    _end_leftovers(record)
    write_json(
        f"{directory}/exit.json",
        {
            "started_at": record.get("started_at", 0),
            "finished_at": time.time_ns(),
            "user": {},
            "exit_code": 255,
            "reason": "Unknown",
            "message": "the process that kept this container ended before it; the exit code is not known",
        },
    )
    return True


def _read_record(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            record: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    return record


def _delete_what_was_made(directory: str) -> None:
    """For a container that was not started: an overlay does not take the folders of another one."""
    for name in (*rootfs.FOLDERS, "created.json"):
        try:
            remove_tree(f"{directory}/{name}")
        except OSError as error:
            log(f"cannot delete {directory}/{name}: {error}")


def _end_leftovers(record: dict[str, Any]) -> None:
    if record.get("boot_id") != boot_id():
        return
    pid = record["pid"]
    if process_start_ticks(pid) == record["start_ticks"] and record["start_ticks"] is not None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if record.get("cgroup"):
        group = ContainerCgroup.from_json(record["cgroup"])
        group.kill()
        deadline = time.monotonic() + 0.5
        while not group.remove() and time.monotonic() < deadline:
            time.sleep(0.005)
