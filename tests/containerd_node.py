"""A containerd of its own for one test session: socket, root, state and bridge are its own, nothing shared, nothing
left, not even by a session that is killed (`tests.containerd_guard`). It is the one that `tests.containerd_programs`
finds.

The images it needs are made here: a root folder with static busybox packed as an OCI archive, once as the sandbox
image and once as `localhost/test:1`. The second runtime handler, `other`, is the first by another name.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from tests.containerd_guard import is_shim
from tests.containerd_programs import containerd_version, program, search_path
from tests.embedded.runtime_node import processes_with
from tests.oci_image import make_root_folder, write_oci_archive
from tests.patience import PATIENCE
from trikubelet.rpc.cri.client import RuntimeClient
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.rpc.grpc import open_unix_channel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

SANDBOX_IMAGE = "registry.k8s.io/pause:3.10"
TEST_IMAGE = "localhost/test:1"
PROJECT: Final = Path(__file__).parents[1]
GUARD: Final = "tests.containerd_guard"

CONFIG_1 = """\
version = 2
root = "{root}/root"
state = "{state}"
[grpc]
  address = "{root}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{root}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
      runtime_type = "io.containerd.runc.v2"
"""

CONFIG_2 = """\
version = 3
root = "{root}/root"
state = "{state}"
[grpc]
  address = "{root}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{sandbox_image}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["{root}/cdi"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{root}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.other]
      runtime_type = "io.containerd.runc.v2"
"""
"""Of containerd 2. What else would be the machine's (the sockets of NRI, /opt/containerd) is off, or in the folder."""

_PORTMAP: Final = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
_NETWORKS: Final = 2**14
"""Networks of 256 addresses from 10.64.0.0 on."""


@attrs.define
class ContainerdNode:
    """One running containerd."""

    root: Path
    bridge: str
    network: int = 0
    """For a second one at the same time: another number, so that their pods have other addresses."""
    namespace: str = ""
    """Path of a network namespace that is its machine. Only there it has the plugin for host ports, which leaves
    rules."""
    subnet: str = attrs.field(init=False)
    process: subprocess.Popen[bytes] | None = None
    _guard: subprocess.Popen[bytes] | None = None

    def __attrs_post_init__(self) -> None:
        self.subnet = _free_subnet(os.getpid() + _NETWORKS // 4 * self.network)

    @property
    def state(self) -> Path:
        """Where containers' roots are mounted: those of pods with users of their own have to get there."""
        return Path("/run") / self.bridge

    @property
    def _there(self) -> list[str]:
        """Words that begin a command which is to run on its machine."""
        return ["nsenter", f"--net={self.namespace}"] if self.namespace else []

    @property
    def socket(self) -> Path:
        return self.root / "containerd.sock"

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        (self.root / "cni").mkdir(parents=True, exist_ok=True)
        config = CONFIG_1 if containerd_version() < (2, 0) else CONFIG_2
        told = config.format(root=self.root, state=self.state, sandbox_image=SANDBOX_IMAGE)
        (self.root / "config.toml").write_text(told)
        (self.root / "cni" / "10-bridge.conflist").write_text(json.dumps(self._network()))
        with (self.root / "containerd.log").open("ab") as log:
            if self._guard is None:
                self._guard = subprocess.Popen(
                    [*self._there, sys.executable, "-m", GUARD, str(os.getpid()), str(self.root), self.bridge],
                    cwd=PROJECT,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self.process = subprocess.Popen(
                [*self._there, program("containerd"), "-c", str(self.root / "config.toml")],
                env={**os.environ, "PATH": search_path()},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE
        while not _run_apart(self._answers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"containerd does not answer: {(self.root / 'containerd.log').read_text()[-2000:]}")
            time.sleep(0.1)

    async def _answers(self) -> bool:
        """Whether its CRI plugin takes calls, which it does a moment later than it is reached."""
        async with open_unix_channel(self.socket) as channel:
            try:
                await RuntimeClient(channel, timeout=PATIENCE).list_pod_sandboxes()
            except CRIError:
                return False
            return True

    def import_images(self) -> None:
        """Make and import the sandbox image and the test image."""
        root = make_root_folder(self.root / "rootfs")
        for name, config in (
            (SANDBOX_IMAGE, {"Entrypoint": ["/bin/sleep", "infinity"]}),
            (TEST_IMAGE, {"Cmd": ["sh"]}),
        ):
            archive = self.root / "image.tar"
            write_oci_archive(archive, root, name, config)
            self.ctr("images", "import", str(archive))
            archive.unlink()

    def kill(self) -> None:
        """End containerd with SIGKILL: containers live on under their shims, and `start` finds them again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def stop(self) -> None:
        """End it with everything that it runs; nothing stays mounted."""
        if self.process is None:
            self.start()  # for what still runs under it
        assert self.process is not None
        _run_apart(partial(_remove_everything, self.socket))
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None
        self._end_forgotten_shims()
        subprocess.run([*self._there, "ip", "link", "delete", self.bridge], capture_output=True, check=False)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            mount_point = line.split()[1]
            if mount_point.startswith((f"{self.root}/", f"{self.state}/")):
                subprocess.run(["umount", "-l", mount_point], check=False)
        shutil.rmtree(self.state, ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait(PATIENCE)
            self._guard = None

    def _end_forgotten_shims(self) -> None:
        """Of containers that containerd was about to start when it was killed. It knows nothing of them."""
        for pid in processes_with(str(self.socket)):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if is_shim(pid):
                    os.kill(pid, signal.SIGKILL)

    def open_files(self) -> list[str]:
        """The paths of files that containerd has open, containers' logs among them until all is written."""
        assert self.process is not None
        found = []
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(descriptor.readlink()))
        return found

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own command; what it wrote."""
        done = subprocess.run(
            [program("ctr"), "-a", str(self.socket), "-n", "k8s.io", *arguments],
            capture_output=True,
            check=True,
            timeout=PATIENCE,
            text=True,
        )
        return done.stdout

    def _network(self) -> dict[str, object]:
        return {
            "cniVersion": "0.4.0",
            "name": self.bridge,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": self.bridge,
                    "isGateway": True,
                    "ipMasq": False,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.root / "ipam"),
                        "ranges": [[{"subnet": self.subnet}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "loopback"},
                *([_PORTMAP] if self.namespace else []),
            ],
        }


def _free_subnet(preferred: int) -> str:
    """A network that no bridge of this machine has, not even one that a killed run left: pods would be unreachable."""
    routes = subprocess.run(["ip", "-4", "route"], capture_output=True, check=True, text=True).stdout
    for number in range(preferred, preferred + _NETWORKS):
        prefix = f"10.{64 + number % _NETWORKS // 256}.{number % 256}"
        if f"{prefix}." not in routes:
            return f"{prefix}.0/24"
    raise AssertionError("every network for tests is taken: remove the bridges that killed runs left")


def _run_apart(call: Callable[[], Awaitable[T]]) -> T:
    """In a thread: a test that asks for the node may run in Trio already."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(trio.run, call).result()


async def _remove_everything(socket: Path) -> None:
    """Through the CRI, so that networks are taken down too."""
    async with open_unix_channel(socket) as channel:
        runtime = RuntimeClient(channel, timeout=20)
        for sandbox in await runtime.list_pod_sandboxes():
            await runtime.stop_pod_sandbox(sandbox.id)
            await runtime.remove_pod_sandbox(sandbox.id)
