"""crictl and critest, where they are, on `trikubelet runtime serve`: its clients are not only agents of ours.

They are no packages of Debian. TRIKUBELET_CRICTL and TRIKUBELET_CRITEST name the two programs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest

from tests.agent.real_node import COMMAND
from tests.containerd_node import TEST_IMAGE
from tests.embedded.runtime_node import processes_with
from tests.oci_image import OciImage, make_root_folder
from tests.own_machine import run, run_there
from tests.patience import PATIENCE, SLOWER
from tests.registry_node import RegistryNode, needs_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CRICTL: Final = "TRIKUBELET_CRICTL"
CRITEST: Final = "TRIKUBELET_CRITEST"
"""Names of environment variables."""
SCRIPT: Final = "echo started; httpd -f -p 8080 -h / & trap 'exit 0' TERM; wait"
FOCUS: Final = (
    "Runtime info",
    "PodSandbox",
    "Idempotence",
    "Container runtime should support basic operations",
    "Container runtime should support adding volume",
    "Container runtime should support log",
    "Container Mount Propagation",
    "Container Mount Readonly",
    "Networking runtime should support networking runtime should support (DNS config|set hostname)",
    "Security Context bucket",
    "Security Context SeccompProfilePath should support seccomp (unconfined|localhost)",
    "Streaming runtime should support streaming interfaces runtime should support exec",
)
"""Specs that need no image but a shell, so that they run without the internet."""
WITHOUT: Final = ("execSync with timeout", "MaskedPaths")
"""Need commands that Debian's busybox has not, or not as files."""
SPECS: Final = 50
"""So many there are at least in these, in every release since 1.26."""

pytestmark = [pytest.mark.root, needs_registry]


def named(variable: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not os.environ.get(variable), reason=f"{variable} names no program")


@attrs.frozen
class Served:
    """A runtime that is served to anybody."""

    folder: Path
    socket: Path
    image: str
    """In a registry that answers."""

    def crictl(self, *arguments: str) -> str:
        """What it writes to its standard output."""
        return run(os.environ[CRICTL], *self._endpoints(), "--timeout=30s", *arguments).strip()

    @contextmanager
    def going_on(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """crictl with a command that does not end by itself."""
        command = [os.environ[CRICTL], *self._endpoints(), "--timeout=30s", *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def critest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [os.environ[CRITEST], *self._endpoints(), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200 * SLOWER)

    def file(self, name: str, content: dict[str, Any]) -> str:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return str(path)

    def _endpoints(self) -> list[str]:
        return [f"--runtime-endpoint=unix://{self.socket}", f"--image-endpoint=unix://{self.socket}"]


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """At the end nothing of it may be left, and nothing running in it either."""
    with ExitStack() as stack:
        short = Path(stack.enter_context(TemporaryDirectory()))
        root, path, log = folder / "runtime", short / "cri.sock", folder / "serve.log"
        stack.callback(end_keeper, root)
        rootfs = make_root_folder(folder / "rootfs")
        with (rootfs / "etc" / "passwd").open("a") as users:
            users.write("nobody:x:65534:65534::/:/bin/sh\n")
        image = OciImage.from_folder(rootfs, {"Cmd": ["sh"]})
        image.write_archive(folder / "image.tar", TEST_IMAGE)
        run(*COMMAND, "images", "import", str(folder / "image.tar"), f"--runtime-root={root}")
        registry = RegistryNode(folder / "registry", protected=False)
        stack.callback(registry.stop)
        registry.start()
        pulled = registry.push("crictl:1", image)
        with log.open("wb") as out:
            words = ["runtime", "serve", f"--listen=unix://{path}", f"--root={root}"]
            process = subprocess.Popen([*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            until(lambda: b"serving CRI" in log.read_bytes() or process.poll() is not None, "it serves")
            yield Served(folder, path, pulled)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
        assert list((root / "containers").iterdir()) == [], log.read_text()
        assert list((root / "sandboxes").iterdir()) == [], log.read_text()


def end_keeper(root: Path) -> None:
    """It waits a minute for the next one who serves, if its folder is still there."""
    shutil.rmtree(root, ignore_errors=True)
    until(lambda: not processes_with(str(root)), "its keeper has ended")


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, f"still not so: {what}"
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@named(CRICTL)
async def test_every_command_of_crictl_works(tmp_path: Path) -> None:
    await run_there(every_command, tmp_path, within=4 * PATIENCE)


def every_command(folder: Path) -> None:
    with served(folder) as runtime:
        crictl = runtime.crictl
        known = crictl("--help")
        pod_file = runtime.file(
            "pod.json",
            {
                "metadata": {"name": "pod", "namespace": "default", "uid": "uid-1", "attempt": 0},
                "hostname": "pod",
                "log_directory": str(folder / "logs"),
                "labels": {"app": "a"},
                "linux": {},
            },
        )
        container_file = runtime.file(
            "container.json",
            {
                "metadata": {"name": "main"},
                "image": {"image": runtime.image},
                "command": ["sh", "-c", SCRIPT],
                "log_path": "main.log",
                "stdin": True,
                "linux": {},
            },
        )
        (folder / "logs").mkdir()
        assert "trikubelet" in crictl("version")
        conditions = json.loads(crictl("info"))["status"]["conditions"]
        assert {one["type"]: one["status"] for one in conditions}["RuntimeReady"] is True
        crictl("pull", runtime.image)
        assert runtime.image.rpartition(":")[0] in crictl("images")
        assert runtime.image in json.loads(crictl("inspecti", runtime.image))["status"]["repoTags"]
        assert "usedBytes" in crictl("imagefsinfo")

        pod = crictl("runp", pod_file)
        assert crictl("pods", "-q") == pod
        assert crictl("pods", "-q", "--label", "app=b") == ""
        assert json.loads(crictl("inspectp", pod))["status"]["state"] == "SANDBOX_READY"
        container = crictl("create", pod, container_file, pod_file)
        assert crictl("ps", "-q", "--state", "created") == container
        assert crictl("start", container) == container
        assert crictl("ps", "-q") == container
        assert json.loads(crictl("inspect", container))["status"]["state"] == "CONTAINER_RUNNING"
        assert crictl("exec", "-s", container, "echo", "synchronous") == "synchronous"
        assert crictl("exec", container, "echo", "streamed") == "streamed"
        until(lambda: crictl("logs", container) == "started", "its log is shown")
        crictl("update", "--cpu-share", "512", container)
        assert crictl("exec", "-s", container, "hostname") == "pod"
        until(lambda: container[:13] in crictl("stats", "--seconds", "0"), "it has statistics")
        if " statsp " in known:
            assert "pod" in crictl("statsp")
        if "metricdescs" in known:
            assert "container_cpu_usage_seconds_total" in crictl("metricdescs")
            assert "container_cpu_usage_seconds_total" in crictl("metricsp")
        if "runtime-config" in known:
            assert "cgroup" in crictl("runtime-config").lower()
        with runtime.going_on("port-forward", pod, "18081:8080"):
            until(lambda: listens(18081), "crictl listens")
            fetch = (
                "import urllib.request as r; print(r.urlopen('http://127.0.0.1:18081/etc/hostname').read().decode())"
            )
            assert run(sys.executable, "-c", fetch).strip() == "pod"
        with runtime.going_on("attach", "-i", container) as attached:
            time.sleep(0.5)
            assert attached.poll() is None, "it stays until the container ends or somebody leaves"
        if "events" in known:
            with runtime.going_on("events", "-o", "json") as events:
                assert events.stdout is not None
                # crictl does not say when it has subscribed, and is told of no earlier event: a machine on which that
                # takes longer fails this test.
                time.sleep(3)
                crictl("stop", "--timeout", "5", container)
                assert any(container in line for line in events.stdout)  # the event has several
        else:
            crictl("stop", "--timeout", "5", container)
        assert crictl("ps", "-q") == ""
        assert crictl("ps", "-q", "-a") == container
        crictl("rm", container)
        crictl("stopp", pod)
        assert json.loads(crictl("inspectp", pod))["status"]["state"] == "SANDBOX_NOTREADY"
        crictl("rmp", pod)
        made = crictl("run", container_file, pod_file)
        assert crictl("ps", "-q") == made
        crictl("rmp", "-f", crictl("pods", "-q"))
        crictl("rmi", runtime.image)
        assert runtime.image.rpartition(":")[0] not in crictl("images")


@named(CRITEST)
async def test_what_critest_asks_of_every_runtime_holds(tmp_path: Path) -> None:
    await run_there(validation, tmp_path, within=1300 * SLOWER)


def validation(folder: Path) -> None:
    with served(folder) as runtime:
        images = {"defaultTestContainerImage": TEST_IMAGE, "webServerTestImage": TEST_IMAGE}
        done = runtime.critest(
            f"--test-images-file={runtime.file('images.yaml', images)}",
            f"--ginkgo.focus={'|'.join(FOCUS)}",
            f"--ginkgo.skip={'|'.join(WITHOUT)}",
            f"--report-dir={folder}",
            "--ginkgo.no-color",
        )
        assert done.returncode == 0, done.stdout[-10_000:]
        summary = next(line for line in done.stdout.splitlines() if line.startswith("Ran "))
        assert int(summary.split()[1]) >= SPECS, summary
