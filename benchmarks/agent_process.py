"""A whole agent as a process of its own, told of its pods by a manifest folder, as a person would start it."""

from __future__ import annotations

import compileall
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

import trikubelet
from trikubelet.linux.shared_folder import unshare_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PATIENCE: Final = 300.0
"""Seconds that an agent may take to start, and to end its pods."""
NODE_NAME: Final = "benchmark"
WITHOUT_CGROUPS: Final[dict[str, Any]] = {
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failCgroupV1": False,
}
"""The machine's `/kubepods` belongs to nobody who measures."""
COMMAND: Final = (sys.executable, "-c", "from trikubelet.cli.main import main; main()")


@attrs.frozen
class AgentProcess:
    """An agent that runs, with everything of it in `folder`."""

    folder: Path
    process: subprocess.Popen[bytes]
    started_at: float
    """By `time.monotonic`."""

    @property
    def manifests(self) -> Path:
        return self.folder / "manifests"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def log(self) -> Path:
        return self.folder / "agent.log"

    @property
    def keeper(self) -> int:
        """The pid of the embedded runtime's keeper."""
        return int(json.loads((self.root / "runtime" / "keeper.json").read_text())["pid"])

    def wait_until_it_listens(self) -> None:
        """Its socket is there when it is about to take pods. Raises RuntimeError when it ended instead."""
        path = self.root / "trikubelet.sock"
        while not path.exists():
            if self.process.poll() is not None or time.monotonic() - self.started_at > PATIENCE:
                raise RuntimeError(f"the agent does not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.01)


def write_configuration(folder: Path, **settings: Any) -> Path:
    """A KubeletConfiguration whose pods log below `folder`; the file."""
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failSwapOn": False,
        "evictionHard": {"memory.available": "0%"},  # a full disk must not end what is measured
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(folder / "logs"),
        "port": _free_port(),  # another agent may run beside this one
        "healthzPort": 0,
        **WITHOUT_CGROUPS,
        **settings,
    }
    path = folder / "config.json"
    path.write_text(json.dumps(configuration, indent=2))
    return path


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def interruptible_once() -> Iterator[ExitStack]:
    """A stack of what runs. Ctrl-C ends the benchmark, and a second one does not end its tidying up: whoever is
    impatient must not leave containers, mounts and bridges behind."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        with ExitStack() as stack:
            try:
                yield stack
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGINT, handler)


@functools.cache
def compile_package() -> None:
    """Have processes that are started from now on find the agent's modules compiled, as installed ones are.

    Where Python is told to compile anew each time, an agent's start would cost twice as much, and its memory be that of
    a compiler.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(Path(trikubelet.__file__).parent, quiet=1)


@contextmanager
def running_agent(
    folder: Path, endpoint: str = "embedded", flags: Sequence[str] = (), **settings: Any
) -> Iterator[AgentProcess]:
    """Start an agent on `folder/manifests`; at the end it drains and is waited for."""
    compile_package()
    (folder / "manifests").mkdir(exist_ok=True)
    command = [
        *COMMAND,
        "run",
        f"--config={write_configuration(folder, **settings)}",
        f"--manifests={folder / 'manifests'}",
        f"--root-dir={folder / 'root'}",
        f"--runtime-endpoint={endpoint}",
        f"--node-name={NODE_NAME}",
        "--drain-on-exit",
        *flags,
    ]
    with (folder / "agent.log").open("wb") as log:
        started_at = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield AgentProcess(folder, process, started_at)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        unshare_folder(folder / "root")  # of an agent whose pods go on
