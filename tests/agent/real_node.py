"""A whole agent as a process on a real runtime, everything of it in one folder, and short ways to ask it.

Nothing here is of the agent's own: it is started as a person starts it, told what to run by files in its manifest
folder, and asked over its socket or by its commands. `leftovers` says what is still there of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import site
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests import forked, leftovers
from tests.cgroup_folders import cgroups_with
from tests.containerd_node import ContainerdNode
from tests.containerd_programs import program
from tests.forked import ForkedProcess, fork
from tests.patience import PATIENCE, pauses
from trikubelet.api import ContainerStatus, Pod, pod_from_dict
from trikubelet.cgroups.kernel_files import KernelFiles
from trikubelet.cli.client import AgentClient
from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


REPOSITORY = Path(__file__).parents[2]
UNTOUCHED = "tests.agent.untouched_kernel"
AGENT = ("-c", f"from {UNTOUCHED} import main; main()")
COMMAND = (sys.executable, "-c", "from trikubelet.cli.main import main; main()")
NODE_NAME = "node-1"
NODES_NETWORK = "--pod-network=host"
"""A flag for agents in a cluster, which would wait for CNI plugins. On containerd it changes nothing."""
WITHOUT_CGROUPS: dict[str, Any] = {"cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failCgroupV1": False}
"""Fields of a KubeletConfiguration: a machine's /kubepods belongs to nobody who tests."""


@attrs.define
class RealNode:
    """One agent at a time in `folder`; `image` has a POSIX shell."""

    folder: Path
    image: str
    containerd: ContainerdNode | None = None
    """None: the embedded runtime."""
    prefix: tuple[str, ...] = ()
    """Put before the agent's command, to run it as somebody else."""
    python: str = sys.executable
    configuration: dict[str, Any] = attrs.field(factory=dict)
    """Fields of the KubeletConfiguration. Nothing listens on ports that others may have, unless they say so."""
    agent: subprocess.Popen[bytes] | ForkedProcess | None = None
    _starts: int = 0
    _tasks_before: frozenset[str] = frozenset()
    _ports_before: frozenset[str] = frozenset()

    def __attrs_post_init__(self) -> None:
        for folder in (self.manifests, self.shared):
            folder.mkdir(parents=True)
        self.shared.chmod(0o777)
        self.configure()
        self._tasks_before, self._ports_before = self._tasks(), self._bridge_ports()

    def configure(self, **fields: Any) -> None:
        """More fields of the KubeletConfiguration, for the next agent."""
        self.configuration.update(fields)
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "podLogsDir": str(self.folder / "logs"),
            "enableServer": False,
            "healthzPort": 0,
            "failSwapOn": False,
            "evictionHard": {"memory.available": "0%"},  # the disk of whoever tests may be nearly full
            **WITHOUT_CGROUPS,
            **self.configuration,
        }
        (self.folder / "config.json").write_text(json.dumps(configuration))

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def manifests(self) -> Path:
        return self.folder / "manifests"

    @property
    def shared(self) -> Path:
        """A folder that tests and containers see, if these mount it as hostPath."""
        return self.folder / "shared"

    @property
    def endpoint(self) -> str:
        return "embedded" if self.containerd is None else self.containerd.endpoint

    @property
    def client(self) -> AgentClient:
        return AgentClient(self.root)

    # -- the agent ---------------------------------------------------------------------------------------------------

    def spawn(self, *flags: str) -> subprocess.Popen[bytes] | ForkedProcess:
        """Start an agent without waiting for it. Its log is `agent.log`, one JSON object a line."""
        self._starts += 1
        arguments = [
            "run",
            f"--config={self.folder / 'config.json'}",
            f"--manifests={self.manifests}",
            f"--root-dir={self.root}",
            f"--runtime-endpoint={self.endpoint}",
            f"--node-name={NODE_NAME}",
            "--log-format=json",
            *flags,
        ]
        with (self.folder / "agent.log").open("ab") as log:
            if self.python == sys.executable and not self.prefix:
                return fork(UNTOUCHED, arguments, stdout=log, stderr=log, env=_environment(), cwd=self.folder)
            return subprocess.Popen(
                [*self.prefix, self.python, *AGENT, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                cwd=self.folder,
            )

    def start(self, *flags: str) -> None:
        """Start an agent, which drains when it is ended unless the flags say otherwise; returns when it answers."""
        assert self.agent is None
        self.agent = self.spawn(*(flags or ("--drain-on-exit",)))
        self.until(lambda: self.agent is None or self.agent.poll() is not None or self.answers(), "the agent answers")
        assert self.agent.poll() is None, self.told()

    def answers(self) -> bool:
        with contextlib.suppress(CommandError):
            self.client.get("/version")
            return True
        return False

    def send(self, number: signal.Signals) -> None:
        assert self.agent is not None
        self.agent.send_signal(number)

    def ended(self, within: float = PATIENCE) -> int:
        """Wait for the agent's end; its exit code."""
        assert self.agent is not None
        try:
            code = self.agent.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the agent did not end within {within:g} s: {self.told()}") from None
        self.agent = None
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM, within: float = PATIENCE) -> int:
        self.send(number)
        return self.ended(within)

    def log(self) -> list[dict[str, Any]]:
        """The lines of every agent that ran here."""
        lines = []
        for line in (self.folder / "agent.log").read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append({"event": line})
        return lines

    def told(self) -> str:
        return "\n".join(json.dumps(line) for line in self.log()[-25:])

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command of ours on this agent."""
        return forked.run("tests.cli.command_line", [*arguments, f"--root-dir={self.root}"], env=_environment())

    def follow(self, *arguments: str) -> ForkedProcess:
        """Start a command that goes on; `followed` is what it wrote so far."""
        with (self.folder / "followed").open("wb") as out:
            words = [*arguments, f"--root-dir={self.root}"]
            return fork("tests.cli.command_line", words, stdout=out, stderr=2, env=_environment())

    def followed(self) -> str:
        return (self.folder / "followed").read_text()

    # -- pods --------------------------------------------------------------------------------------------------------

    def run(self, name: str, *containers: dict[str, Any], **spec: Any) -> None:
        """Write (or replace, in one step) the manifest of a pod. Every container sees `shared` as `/shared`."""
        volumes = [*spec.pop("volumes", []), {"name": "shared", "hostPath": {"path": str(self.shared)}}]
        spec = {
            "terminationGracePeriodSeconds": 5,
            "dnsPolicy": "Default",
            **spec,
            "volumes": volumes,
            "containers": containers,
        }
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        hidden = self.manifests / f".{name}.json"
        hidden.write_text(json.dumps(manifest))
        hidden.rename(self.manifests / f"{name}.json")

    def container(self, script: str, name: str = "main", **fields: Any) -> dict[str, Any]:
        """A container that runs a shell script; `marker(name)` stands in its command line."""
        mounts = [*fields.pop("volumeMounts", []), {"name": "shared", "mountPath": "/shared"}]
        return {
            "name": name,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", f": {self.marker(name)};\n{script}"],
            "volumeMounts": mounts,
            **fields,
        }

    def marker(self, container: str) -> str:
        return f"{self.folder}/{container}/"

    def delete(self, name: str) -> None:
        (self.manifests / f"{name}.json").unlink()

    def pods(self) -> list[Pod]:
        return [pod_from_dict(item) for item in self.client.get("/pods")["items"]]

    def pod(self, name: str) -> Pod | None:
        return next((pod for pod in self.pods() if pod.metadata.name == f"{name}-{NODE_NAME}"), None)

    def status(self, name: str, container: str = "main") -> ContainerStatus:
        """Of a container; an empty one as long as there is none."""
        pod = self.pod(name) or Pod()
        found = (*pod.status.container_statuses, *pod.status.init_container_statuses)
        return next((one for one in found if one.name == container), ContainerStatus(name=container))

    def until(self, condition: Callable[[], object], what: str, within: float = PATIENCE) -> float:
        """Wait until a condition holds; the seconds that it took."""
        began = time.monotonic()
        looks = pauses()
        while not condition():
            if time.monotonic() - began > within:
                with contextlib.suppress(CommandError):
                    what = f"{what}; pods: {json.dumps([item['status'] for item in self.client.get('/pods')['items']])}"
                raise AssertionError(f"not so within {within:g} s: {what}\n{self.told()}")
            time.sleep(next(looks))
        return time.monotonic() - began

    def until_running(self, name: str, within: float = PATIENCE) -> Pod:
        """Wait until every container of a pod is ready."""

        def ready() -> bool:
            pod = self.pod(name)
            return pod is not None and any(
                one.type == "Ready" and one.status == "True" for one in pod.status.conditions
            )

        self.until(ready, f"{name} is ready", within)
        pod = self.pod(name)
        assert pod is not None
        return pod

    def until_gone(self, name: str, within: float = PATIENCE) -> float:
        return self.until(lambda: self.pod(name) is None, f"{name} is gone", within)

    def until_phase(self, name: str, phase: str, within: float = PATIENCE) -> Pod:
        def reached() -> bool:
            pod = self.pod(name)
            return pod is not None and pod.status.phase == phase

        self.until(reached, f"{name} is {phase}", within)
        pod = self.pod(name)
        assert pod is not None
        return pod

    def logs(self, pod: str, container: str = "main") -> list[str]:
        done = self.cli("logs", pod, "-c", container)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def lines(self, pod: str, container: str = "main") -> list[str]:
        """The same without a process of its own: for waiting."""
        blocks = self.client.blocks(f"/containerLogs/default/{pod}-{NODE_NAME}/{container}")
        return b"".join(blocks).decode().splitlines()

    # -- processes ---------------------------------------------------------------------------------------------------

    def process(self, container: str = "main") -> int | None:
        """The pid of a container's first process, as this machine sees it."""
        marked = {pid for pid, words in _command_lines() if self.marker(container) in words}
        return next((pid for pid in sorted(marked) if _parent(pid) not in marked), None)

    def until_process(self, container: str = "main") -> int:
        """Its pid. A runtime may say that a container runs a moment before its process has become the command."""
        self.until(lambda: self.process(container), f"{container} is a process")
        pid = self.process(container)
        assert pid is not None
        return pid

    def listens(self, container: str = "main") -> bool:
        """Whether a container would notice that it shall end."""
        pid = self.process(container)
        return pid is not None and listens_to_sigterm(pid)

    @property
    def runtime_pid(self) -> int:
        """containerd, or the keeper."""
        if self.containerd is not None:
            assert self.containerd.process is not None
            return self.containerd.process.pid
        return int(json.loads((self.root / "runtime" / "keeper.json").read_text())["pid"])

    # -- the end -----------------------------------------------------------------------------------------------------

    def leftovers(self) -> list[str]:
        """What an agent that drained should not have left."""
        folder = str(self.folder)
        left = [f"mount {line}" for line in _mounts("self") if folder in line]
        for pid, words in _command_lines():
            if folder in words or (not left and any(folder in line for line in _mounts(pid))):
                left.append(f"process {pid} {words}")
        left += [f"socket {path}" for path in _files(self.root) if path.is_socket()]
        left += [f"folder {path}" for path in self._named_by_keeper()]
        left += [f"task {task}" for task in self._tasks() - self._tasks_before]
        left += [f"port of the bridge {port}" for port in self._bridge_ports() - self._ports_before]
        left += [f"folder of a pod {path}" for path in (self.root / "pods").glob("*")]
        left += leftovers.of_runtime(self.root / "runtime")
        return left

    def clean(self) -> None:
        """End by force whatever is there, so that a test that failed costs the others nothing."""
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
            self.agent = None
        for pid, words in _command_lines():
            if str(self.folder) in words:
                _kill(pid)
        for line in reversed(_mounts("self")):
            if f" {self.folder}" in line:
                subprocess.run(["umount", "-l", line.split()[4]], check=False)
        leftovers.remove_network(self.root / "runtime")
        for path in self._named_by_keeper():
            for group in KernelFiles().below(str(path)):
                with contextlib.suppress(OSError):
                    KernelFiles().delete(group)
        for task in self._tasks() - self._tasks_before:
            for arguments in (("tasks", "delete", "-f", task), ("containers", "delete", task)):
                self._ctr(*arguments)

    def _named_by_keeper(self) -> Iterable[Path]:
        """Cgroups, which the keeper names after its root."""
        name = "trikubelet-" + hashlib.sha256(str(self.root / "runtime").encode()).hexdigest()[:8]
        return cgroups_with(name)

    def _ctr(self, *arguments: str) -> str:
        if self.containerd is None:
            return ""
        command = [program("ctr"), "-a", str(self.containerd.socket), "-n", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout

    def _tasks(self) -> frozenset[str]:
        return frozenset(self._ctr("tasks", "list", "-q").split() + self._ctr("containers", "list", "-q").split())

    def _bridge_ports(self) -> frozenset[str]:
        if self.containerd is None:
            return frozenset()
        ports = Path("/sys/class/net") / self.containerd.bridge / "brif"
        return frozenset(path.name for path in ports.iterdir()) if ports.exists() else frozenset()


def numbers(lines: Sequence[str]) -> list[int]:
    """The lines that a counting container wrote."""
    return [int(line) for line in lines if re.fullmatch(r"\d+", line)]


def listens_to_sigterm(pid: int) -> bool:
    """Whether a process has got to where it handles the signal. First processes of containers are spared it before."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "SigCgt":
                return bool(int(value, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _environment() -> dict[str, str]:
    packages = os.pathsep.join([str(REPOSITORY), *site.getsitepackages()])
    return {**os.environ, "PYTHONPATH": packages}


def _command_lines() -> list[tuple[int, str]]:
    """Pid and command line of every process but our own; none of zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words:
                    found.append((int(entry.name), words))
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Whatever is below a folder and no folder; `rglob` would fail on folders that an agent removes meanwhile."""
    return (Path(above) / name for above, _, names in os.walk(folder) for name in names)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _mounts(pid: int | str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    except OSError:
        return []


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
