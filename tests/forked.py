"""Processes of our own code that start at once: forked from one that has imported everything already.

What costs most when an agent starts is that Python reads the agent's modules, a second of a processor for each of the
hundreds that the tests start, and that attrs makes the methods of its classes. So a process in which that has happened,
and nothing else, waits for orders: it forks, and the child becomes what `python -c 'from MODULE import main; main()'
ARGUMENTS` would be, with the standard streams, folder, environment and command line that it was given. Whether the
modules can be read one after the other is tested by those who start a process of their own
(`tests/agent/test_joining_options.py` and the benchmarks).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from tests.patience import PATIENCE
from trikubelet.telemetry.logs import flush

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

PREPARED: Final = "trikubelet"
"""The package whose modules the first process reads, but for programs."""
BESIDES: Final = (
    "tests.agent.untouched_kernel",
    "tests.cli.command_line",
    "encodings.idna",
    "encodings.utf_8_sig",
    "yaml",
)
"""What else it reads."""
_ROOM: Final = 8192
"""Characters for a command line."""
_MESSAGE: Final = 1 << 17


class ForkedProcess:
    """As far as tests need it, what `subprocess.Popen` is of a process that was executed."""

    def __init__(self, origin: _Origin, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._origin = origin
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit code, or None; a signal's number is negative."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait_async(self) -> int:
        """The exit code."""
        if self.returncode is None:
            await trio.lowlevel.wait_readable(self._pidfd)
        return self.wait()

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if poll.poll(None if timeout is None else timeout * 1000):
                self.returncode = self._origin.reap(self.pid)
                os.close(self._pidfd)
        return self.returncode


def fork(
    module: str,
    arguments: Sequence[str],
    *,
    main: str = "main",
    stdin: IO[bytes] | int | None = None,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> ForkedProcess:
    """Start the `main` of a module. Without `stdin` there is nothing to read; environment and folder may be ours."""
    order = {
        "module": module,
        "main": main,
        "arguments": list(arguments),
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or Path.cwd()),
    }
    with Path(os.devnull).open("rb") as nothing:
        streams = (nothing if stdin is None else stdin, stdout, stderr)
        return _origin().fork(order, [each if isinstance(each, int) else each.fileno() for each in streams])


def run(
    module: str, arguments: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the `main` of a module to its end. Raises subprocess.TimeoutExpired after `PATIENCE`, when it was killed."""
    with TemporaryFile() as out, TemporaryFile() as errors:
        process = fork(module, arguments, stdout=out, stderr=errors, env=env, cwd=cwd)
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, out.read().decode(), errors.read().decode())


@attrs.define(eq=False)
class _Origin:
    """The process that all others are forked from."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    lock: threading.Lock = attrs.field(factory=threading.Lock)
    """One question at a time, also when tests ask from threads."""

    @classmethod
    def start(cls) -> _Origin:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"import sys; from tests.forked import _serve; _serve({its.fileno()})"
        command = [sys.executable, "-c", code, " " * _ROOM]
        root = Path(__file__).parents[1]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
        with its:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], env=env, cwd=root)
        return cls(process, ours)

    def fork(self, order: Mapping[str, Any], descriptors: Sequence[int]) -> ForkedProcess:
        return ForkedProcess(self, self._ask(order, descriptors))

    def reap(self, pid: int) -> int:
        return self._ask({"reap": pid})

    def _ask(self, order: Mapping[str, Any], descriptors: Sequence[int] = ()) -> int:
        with self.lock:
            socket.send_fds(self.socket, [json.dumps(order).encode()], descriptors)
            answer = self.socket.recv(_MESSAGE)
        assert answer, "the process that others are forked from is gone"
        return int(answer)

    def stop(self) -> None:
        """It ends when nobody can ask it any more."""
        self.socket.close()
        self.process.wait()


_started: list[_Origin] = []


def _origin() -> _Origin:
    if not _started:
        _started.append(_Origin.start())
        atexit.register(_started[0].stop)
    return _started[0]


# --- In the process that is forked, and in its children --------------------------------------------------------------


def _serve(descriptor: int) -> None:
    _prepare()
    with socket.socket(fileno=descriptor) as asked:
        while True:
            message, descriptors, _, _ = socket.recv_fds(asked, _MESSAGE, 3)
            if not message:
                return
            order = json.loads(message)
            if "reap" in order:
                _, status = os.waitpid(order["reap"], 0)
                asked.send(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            pid = os.fork()
            if pid == 0:
                break
            for each in descriptors:
                os.close(each)
            asked.send(str(pid).encode())
    _become(order, descriptors)
    _run(order["module"], order["main"])


def _prepare() -> None:
    """Do what each child would do first: read the modules, and use their classes, for attrs to make its parts."""
    package = importlib.import_module(PREPARED)
    for found in pkgutil.walk_packages(package.__path__, f"{PREPARED}."):
        if "__main__" not in found.name:
            importlib.import_module(found.name)
    for name in BESIDES:
        importlib.import_module(name)
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{PREPARED}."):
            for part in vars(module).values():
                if isinstance(part, type) and part.__module__ == name:
                    for method in ("__init__", "__eq__"):
                        getattr(part, method)
    # Children look for garbage as if they had begun with nothing.
    gc.collect()
    gc.freeze()


def _become(order: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["-c", *order["arguments"]]
    trio._core._run._r.seed()  # else all would take turns in the same way
    code = f"from {order['module']} import {order['main']}; {order['main']}()"
    _show([sys.executable, "-c", code, *order["arguments"]])


def _run(module: str, main: str) -> None:
    """Run a program, and end the process. Python itself would take apart all that was read: 45 ms of a processor."""
    code: object = 0
    try:
        getattr(importlib.import_module(module), main)()
    except SystemExit as ended:
        code = ended.code
    others = any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
    if not others and (code is None or isinstance(code, int)):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # Python says so in its own way, below
            flush()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit((code or 0) & 0xFF)
    sys.exit(code)  # type: ignore[arg-type]


def _show(command: Sequence[str]) -> None:
    """Let everybody see a command line where this process's own lies, which has room for it."""
    line = b"\0".join(word.encode() for word in command) + b"\0"
    start, end = (int(word) for word in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    assert len(line) <= end - start, f"no room for a command line of {len(line)} bytes"
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)
