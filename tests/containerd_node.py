"""A containerd of its own for one test session: socket, root, state and bridge in one folder, nothing shared, nothing
left.

The images it needs are made here: a root folder with static busybox packed as an OCI archive, once as the sandbox
image and once as `localhost/test:1`, since no registry is at hand.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

SANDBOX_IMAGE = "registry.k8s.io/pause:3.10"
TEST_IMAGE = "localhost/test:1"
CALL_TIMEOUT = 60.0

CONFIG = """\
version = 2
root = "{root}/root"
state = "{root}/state"
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
"""


@attrs.define
class ContainerdNode:
    """One running containerd."""

    root: Path
    bridge: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.root / "containerd.sock"

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        (self.root / "cni").mkdir(parents=True, exist_ok=True)
        (self.root / "config.toml").write_text(CONFIG.format(root=self.root, sandbox_image=SANDBOX_IMAGE))
        (self.root / "cni" / "10-bridge.conflist").write_text(json.dumps(self._network()))
        with (self.root / "containerd.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["containerd", "-c", str(self.root / "config.toml")],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + CALL_TIMEOUT
        while subprocess.run(["ctr", "-a", self.socket, "version"], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"containerd does not answer: {(self.root / 'containerd.log').read_text()[-2000:]}")
            time.sleep(0.1)

    def import_images(self) -> None:
        """Make and import the sandbox image and the test image."""
        busybox = shutil.which("busybox")
        if busybox is None:
            raise RuntimeError("expected a static busybox on PATH; apt-get install busybox-static")
        rootfs = self.root / "rootfs"
        for folder in ("bin", "tmp", "etc", "proc", "sys", "dev"):
            (rootfs / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(busybox, rootfs / "bin" / "busybox")
        for applet in ("sh", "sleep", "cat", "echo", "ls", "date", "id", "env", "kill", "touch", "true", "false", "ps"):
            link = rootfs / "bin" / applet
            if not link.is_symlink():
                link.symlink_to("busybox")
        (rootfs / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n")
        (rootfs / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\n")
        for name, config in (
            (SANDBOX_IMAGE, {"Entrypoint": ["/bin/sleep", "infinity"]}),
            (TEST_IMAGE, {"Cmd": ["sh"]}),
        ):
            archive = self.root / "image.tar"
            write_oci_archive(archive, rootfs, name, config)
            self._ctr("images", "import", str(archive))
            archive.unlink()

    def kill(self) -> None:
        """End containerd with SIGKILL: containers live on under their shims."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(CALL_TIMEOUT)
            self.process = None

    def stop(self) -> None:
        """End it with everything that it runs, and check that nothing is left mounted."""
        if self.process is not None:
            self._remove_everything()
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True, check=False)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            mount_point = line.split()[1]
            if mount_point.startswith(f"{self.root}/"):
                subprocess.run(["umount", "-l", mount_point], check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def _remove_everything(self) -> None:
        for task in self._ctr("tasks", "list", "-q").split():
            subprocess.run(
                ["ctr", "-a", self.socket, "-n", "k8s.io", "tasks", "kill", "-s", "KILL", "-a", task], check=False
            )
        deadline = time.monotonic() + 10
        while self._ctr("tasks", "list", "-q").split() and time.monotonic() < deadline:
            for task in self._ctr("tasks", "list", "-q").split():
                subprocess.run(
                    ["ctr", "-a", self.socket, "-n", "k8s.io", "tasks", "delete", "-f", task],
                    capture_output=True,
                    check=False,
                )
            time.sleep(0.1)
        for container in self._ctr("containers", "list", "-q").split():
            subprocess.run(
                ["ctr", "-a", self.socket, "-n", "k8s.io", "containers", "delete", container],
                capture_output=True,
                check=False,
            )

    def _ctr(self, *arguments: str) -> str:
        done = subprocess.run(
            ["ctr", "-a", str(self.socket), "-n", "k8s.io", *arguments],
            capture_output=True,
            check=True,
            timeout=CALL_TIMEOUT,
            text=True,
        )
        return done.stdout

    def _network(self) -> dict[str, object]:
        subnet = f"10.{100 + os.getpid() % 100}.0.0/24"
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
                        "ranges": [[{"subnet": subnet}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "loopback"},
            ],
        }


def write_oci_archive(out: Path, rootfs: Path, name: str, config: Mapping[str, object]) -> None:
    """Pack a root folder into a one-layer OCI image archive called `name`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(rootfs, ".")
    layer_bytes = layer.getvalue()
    image_config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer_bytes)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", image_config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer_bytes)],
        }
    ).encode()
    annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1]}
    manifest_entry = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest) | {"annotations": annotations}
    index = json.dumps({"schemaVersion": 2, "manifests": [manifest_entry]}).encode()
    with tarfile.open(out, "w") as archive:
        files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index}
        files |= {"blobs/sha256/" + _digest(blob)[7:]: blob for blob in (layer_bytes, image_config, manifest)}
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}
