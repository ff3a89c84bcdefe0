"""A node of a cluster on a real runtime, whose pods tell what they see of their volumes, and what is left of them.

A pod's container runs `see` on paths and `mounted` on mount points, and `JoinedNode.seen` has what it wrote:

    /cm/key: 644 0:0 value          permissions, owner and group, content with ~ for each end of a line
    mount /cm: ro tmpfs rw          options of the mount, kind and options of the file system
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from tests.agent.real_node import NODE_NAME, NODES_NETWORK, REPOSITORY, RealNode
from tests.patience import PATIENCE
from tests.volumes.real.served_cluster import DRIVER, ServedCluster
from trikubelet.cli.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.apiserver.documents import Document

UNTIL_TERM: Final = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
LOOKING: Final = r"""
see() {
  for path; do
    if [ ! -e "$path" ]; then printf '%s: missing\n' "$path"; continue; fi
    content=
    if [ -f "$path" ]; then content=" $(head -c 300 "$path" | tr '\n' '~')"; fi
    printf '%s: %s%s\n' "$path" "$(stat -Lc '%a %u:%g' "$path")" "$content"
  done
}
mounted() {
  for path; do
    while read -r _ _ _ _ point options rest; do
      if [ "$point" = "$path" ]; then rest="${rest#*- }"; echo "mount $path: $options ${rest%% *} ${rest##* }"; fi
    done < /proc/self/mountinfo
  done
}
try() { what="$1"; shift; if "$@" 2>/dev/null >/dev/null; then echo "$what: yes"; else echo "$what: no"; fi; }
"""
DRIVER_SPEC: Final = {
    "attachRequired": True,
    "podInfoOnMount": True,
    "fsGroupPolicy": "File",
    "volumeLifecycleModes": ["Persistent", "Ephemeral"],
    "tokenRequests": [{"audience": "storage"}],
}
_STAGED: Final = (
    f"kubernetes.io/csi/{DRIVER}/*",
    "kubernetes.io/csi/volumeDevices/pv*",
    "kubernetes.io/csi/volumeDevices/staging/*",
    "kubernetes.io/csi/volumeDevices/publish/*",
    "kubernetes.io/local-volume/*/*",
    "kubernetes.io~local-volume/*/*",
)
"""Folders of volumes that several pods may use."""
END: Final = "-- seen"


@attrs.frozen
class State:
    """What pods can leave behind: of mounts their places, of the agent's descriptors where they lead to."""

    mounts: frozenset[tuple[str, str]]
    """Whose process, and the place."""
    folders: frozenset[str]
    files: tuple[str, ...]
    loops: frozenset[str]


@attrs.define
class JoinedNode:
    node: RealNode
    cluster: ServedCluster
    flags: tuple[str, ...] = ()
    """The agent's."""
    drivers: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    @property
    def root(self) -> Path:
        return self.node.root

    @property
    def is_containerd(self) -> bool:
        return self.node.containerd is not None

    # Pods.

    def container(self, script: str, name: str = "main", **fields: Any) -> dict[str, Any]:
        """Looks, and goes on until it is asked to end."""
        made = self.node.container(f"{LOOKING}\n{script}\necho '{END}'\n{UNTIL_TERM}", name, **fields)
        made["volumeMounts"] = [mount for mount in made["volumeMounts"] if mount["name"] != "shared"]
        return made

    def start(
        self, name: str, *containers: dict[str, Any], metadata: dict[str, Any] | None = None, **spec: Any
    ) -> None:
        document = {
            "kind": "Pod",
            "metadata": {"name": name, **(metadata or {})},
            "spec": {
                "nodeName": NODE_NAME,
                "terminationGracePeriodSeconds": 5,
                "dnsPolicy": "Default",
                "containers": containers,
                **spec,
            },
        }
        self.cluster.do(lambda server: server.admin.create(document))

    def pod(self, name: str) -> Document | None:
        return self.cluster.find("pods", name)

    def lines(self, pod: str, container: str = "main") -> list[str]:
        """Of its log; none as long as there is no log."""
        try:
            blocks = list(self.node.client.blocks(f"/containerLogs/default/{pod}/{container}"))
        except CommandError:
            return []
        return b"".join(blocks).decode(errors="replace").splitlines()

    def seen(self, pod: str, container: str = "main") -> dict[str, str]:
        """Wait until the container has looked; what it found, by path."""
        self.until(lambda: END in self.lines(pod, container), f"{container} of {pod} looks around", pod)
        lines = self.lines(pod, container)
        return dict(line.split(": ", 1) for line in lines[: lines.index(END)] if ": " in line)

    def waiting(self, pod: str, container: str = "main") -> str:
        """Why it waits, as `Reason: message`."""
        document = self.pod(pod) or {}
        for status in document.get("status", {}).get("containerStatuses", ()):
            if status["name"] == container:
                waiting = status["state"].get("waiting") or {}
                return f"{waiting.get('reason')}: {waiting.get('message')}"
        return ""

    def until_message(self, pod: str, text: str) -> None:
        """An event says so."""
        self.until(lambda: any(text in line for line in self.cluster.messages(pod)), f"{pod} is told {text}", pod)

    def end(self, *pods: str) -> None:
        """Delete pods and wait until they are gone."""
        for pod in pods:
            self.cluster.delete("pods", pod)
        for pod in pods:
            self.until(lambda pod=pod: self.pod(pod) is None, f"{pod} is gone", pod)

    def until(self, condition: Any, what: str, pod: str = "", within: float = PATIENCE) -> None:
        try:
            self.node.until(condition, what, within)
        except AssertionError as error:
            messages = "\n".join(self.cluster.messages(pod)) if pod else ""
            raise AssertionError(f"{error}\n{messages}") from None

    def volume(self, pod: str, plugin: str, name: str) -> Path:
        """The path of a pod's volume on the node."""
        document = self.pod(pod)
        assert document is not None
        uid = str(document["metadata"]["uid"])
        return self.root / "pods" / uid / "volumes" / f"kubernetes.io~{plugin}" / name

    # What is left.

    def state(self) -> State:
        agent = self.node.agent
        assert agent is not None
        pids = {"this": "self", "the agent": str(agent.pid)}
        if not self.is_containerd and (self.root / "runtime" / "keeper.json").exists():
            pids["the keeper"] = str(self.node.runtime_pid)
        ours = [str(self.node.folder)]
        if self.node.containerd is not None:
            ours += [str(self.node.containerd.root), str(self.node.containerd.state)]
        mounts = {(who, point) for who, pid in pids.items() for point in _mount_points(pid, ours)}
        folders = [str(path) for path in (self.root / "pods").glob("*")]
        staged = [str(path) for pattern in _STAGED for path in (self.root / "plugins").glob(pattern)]
        return State(
            frozenset(mounts), frozenset([*folders, *staged]), _open_files(agent.pid), _loops(self.node.folder)
        )

    def until_as(self, before: State) -> None:
        """What pods had is gone. Says what is not."""

        def same() -> bool:
            return not self._new_since(before)

        try:
            self.node.until(same, "nothing is left of the pods")
        except AssertionError as error:
            raise AssertionError(f"{self._new_since(before)}\n{error}") from None

    def _new_since(self, before: State) -> list[str]:
        now = self.state()
        files = list(now.files)
        for file in before.files:
            if file in files:
                files.remove(file)
        new = [f"mount of {who} at {point}" for who, point in sorted(now.mounts - before.mounts)]
        new += [f"lost mount of {who} at {point}" for who, point in sorted(before.mounts - now.mounts)]
        new += [f"folder {path}" for path in sorted(now.folders - before.folders)]
        new += [f"descriptor of {path}" for path in files]
        return new + [f"loop device {line}" for line in sorted(now.loops - before.loops)]

    def leftovers(self) -> list[str]:
        """What is left of the agent that has drained. Whoever has copied all mounts meanwhile is not of it."""
        folder = str(self.node.folder)
        return [one for one in self.node.leftovers() if not one.startswith("process ") or folder in one]

    # Drivers.

    def run_driver(self) -> None:
        """Start the CSI driver and wait until it is of use."""
        folder = self.node.folder / "driver"
        folder.mkdir()
        command = [
            *(sys.executable, "-m", "tests.csi_driver", f"--socket={folder / 'csi.sock'}", f"--name={DRIVER}"),
            *(f"--registry={self.root / 'plugins_registry'}", f"--storage={folder / 'storage'}", "--mounts=loop"),
            *(f"--node-id={NODE_NAME}", f"--log={folder / 'calls'}", "--writes-context"),
            f"--faults={folder / 'faults'}",
        ]
        with (folder / "log").open("wb") as log:
            self.drivers.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPOSITORY)
            )

        def known() -> bool:
            node = self.cluster.find("csinodes", NODE_NAME)
            return node is not None and any(driver["name"] == DRIVER for driver in node["spec"].get("drivers") or ())

        self.until(known, f"the driver is registered: {(folder / 'log').read_text()}")

    def fault(self, **by_call: dict[str, Any]) -> None:
        """What goes wrong with the driver's calls from now on; see `Fault.from_dict`."""
        new = self.node.folder / "driver" / "faults.new"
        new.write_text(json.dumps(by_call))
        new.rename(new.with_name("faults"))

    def kill_agent(self) -> None:
        """And start another one."""
        self.node.stop(signal.SIGKILL)
        self.node.start(*self.flags)

    def calls(self) -> list[str]:
        """The driver's log."""
        return (self.node.folder / "driver" / "calls").read_text().splitlines()

    def clean(self) -> None:
        for driver in self.drivers:
            driver.terminate()
            driver.wait(PATIENCE)


@contextlib.contextmanager
def joined_node(node: RealNode, cluster: ServedCluster) -> Iterator[JoinedNode]:
    """An agent that has joined, drained at the end: nothing is left of it."""
    kubeconfig = node.folder / "kubeconfig"
    flags = (f"--kubeconfig={kubeconfig}", "--drain-on-exit", "--host-image", NODES_NETWORK)
    joined = JoinedNode(node, cluster, flags)
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(cluster.kubeconfig(NODE_NAME))
    try:
        node.start(*flags)
        joined.until(lambda: cluster.find("nodes", NODE_NAME), "the node is registered")
        cluster.create("CSIDriver", DRIVER, spec=DRIVER_SPEC)
        joined.run_driver()
        yield joined
        assert node.stop() == 0, node.told()
        joined.clean()
        node.until(lambda: not joined.leftovers(), f"nothing is left of {joined.leftovers()}")
    finally:
        node.clean()
        joined.clean()
        for line in _loops(node.folder):
            subprocess.run(["losetup", "-d", line.partition(":")[0]], check=False)


def mounts(*pairs: tuple[str, str] | dict[str, Any]) -> list[dict[str, Any]]:
    """Volume mounts, each from a volume's name and a path, or as it is."""
    return [pair if isinstance(pair, dict) else {"name": pair[0], "mountPath": pair[1]} for pair in pairs]


def _mount_points(pid: str, ours: Sequence[str]) -> list[str]:
    """Of what has to do with these folders: others test things here as well."""
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    except OSError:
        return []
    return [line.split()[4] for line in lines if any(folder in line for folder in ours)]


def _open_files(pid: int) -> tuple[str, ...]:
    """Connections come and go as the agent asks others: they are not counted."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if not target.startswith(("socket:", "pipe:")):
                found.append(target)
    return tuple(sorted(found))


def _loops(folder: Path) -> frozenset[str]:
    listed = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=False).stdout
    return frozenset(line for line in listed.splitlines() if str(folder) in line)
