"""An image registry of its own for tests, on loopback, that may ask for a name and a password."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Final

import attrs
import pytest
import trustme

from tests.free_ports import free_port
from tests.oci_image import MANIFEST_TYPE, OciImage, digest
from trikubelet.api import ObjectMeta, Secret

USER: Final = "ali"
PASSWORD: Final = "open sesame"
# The only kind of hash that the registry takes is bcrypt, which Python has not. Made once, from the above, at cost 5.
HTPASSWD: Final = f"{USER}:$2y$05$trikubelettestregistr.n75ngfRze8V6pYxszKl.GH8N9b7yYoW\n"
START_PATIENCE: Final = 20.0

# Under CI nothing may be skipped: there it fails.
needs_registry = pytest.mark.skipif(
    shutil.which("docker-registry") is None and os.environ.get("CI") != "true",
    reason="needs docker-registry: apt-get install docker-registry",
)


@attrs.define
class RegistryNode:
    """One running docker-registry."""

    root: Path
    protected: bool = True
    """Whether it asks for the name and the password. Else it lets everybody in."""
    authority: trustme.CA | None = None
    """Whose certificate it shows; None: it speaks plain HTTP."""
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def host(self) -> str:
        """As it stands in images' names. Runtimes talk plain HTTP to this machine itself."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "htpasswd").write_text(HTPASSWD)
        self.port = free_port()
        http: dict[str, object] = {"addr": self.host}
        configuration = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.root / "images")}},
            "http": http,
        }
        if self.authority is not None:
            key, certificate = self.root / "key.pem", self.root / "certificate.pem"
            issued = self.authority.issue_cert("127.0.0.1")
            issued.private_key_pem.write_to_path(str(key))
            issued.cert_chain_pems[0].write_to_path(str(certificate))
            http["tls"] = {"certificate": str(certificate), "key": str(key)}
        if self.protected:
            configuration["auth"] = {"htpasswd": {"realm": "tests", "path": str(self.root / "htpasswd")}}
        (self.root / "config.yml").write_text(json.dumps(configuration))
        with (self.root / "registry.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["docker-registry", "serve", str(self.root / "config.yml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_PATIENCE
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"the registry does not answer: {(self.root / 'registry.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None:
            self.resume()
            self.process.terminate()
            self.process.wait(START_PATIENCE)
            self.process = None

    def freeze(self) -> None:
        """Let it take connections and answer none: whatever is pulled hangs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def push(self, name: str, image: OciImage) -> str:
        """Put an image where `name` (`repository:tag`) says; returns its full name for pods."""
        repository, tag = name.split(":")
        for blob in image.blobs:
            location = self._request("POST", f"/v2/{repository}/blobs/uploads/")["Location"]
            path = location.partition(self.host)[2]
            self._request("PUT", f"{path}&digest={digest(blob)}", blob, "application/octet-stream")
        self._request("PUT", f"/v2/{repository}/manifests/{tag}", image.manifest, MANIFEST_TYPE)
        return f"{self.host}/{name}"

    def _request(self, method: str, path: str, body: bytes = b"", content_type: str = "") -> dict[str, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=START_PATIENCE)
        if self.authority is not None:
            context = ssl.create_default_context()
            self.authority.configure_trust(context)
            connection = HTTPSConnection("127.0.0.1", self.port, timeout=START_PATIENCE, context=context)
        try:
            login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            headers = {"Authorization": f"Basic {login}", "Content-Type": content_type}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {text}")
            return dict(response.getheaders())
        finally:
            connection.close()

    def _answers(self) -> bool:
        try:
            self._request("GET", "/v2/")
        except (OSError, RuntimeError):
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, number)


def pull_secret(name: str, registry: str, user: str = USER, password: str = PASSWORD) -> Secret:
    """A pull secret in the namespace `default`, as `kubectl create secret docker-registry` makes it."""
    login = {"username": user, "password": password, "auth": base64.b64encode(f"{user}:{password}".encode()).decode()}
    return Secret(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        type="kubernetes.io/dockerconfigjson",
        data={".dockerconfigjson": json.dumps({"auths": {registry: login}}).encode()},
    )
