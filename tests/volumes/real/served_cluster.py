"""The test API server for an agent that is a process: on a port of this machine, with the controllers of a cluster.

A test that waits for processes does not run on Trio, so the server has a thread. `do` runs something there, between two
requests:

    with served_cluster() as cluster:
        cluster.do(lambda server: server.admin.create({"kind": "ConfigMap", ...}))
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import trio

from tests.apiserver.controllers import Controllers
from tests.apiserver.documents import Document, dig
from tests.apiserver.server import ApiServer, open_api_server
from tests.apiserver.storage_controllers import StorageControllers
from trikubelet.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

DRIVER: Final = "folder.example.com"
PROVISIONED: Final = "made-when-wanted"
"""The storage class whose volumes are made for each claim."""
START_TIMEOUT: Final = 20.0
_LOOK_EVERY: Final = 0.05


@attrs.define(eq=False)
class ServedCluster:
    """A cluster from outside of its thread."""

    server: ApiServer
    token: trio.lowlevel.TrioToken
    url: str

    def do(self, work: Callable[[ApiServer], T]) -> T:
        return trio.from_thread.run_sync(work, self.server, trio_token=self.token)

    def kubeconfig(self, node: str) -> str:
        """The node's."""
        return self.do(lambda server: server.kubeconfig(server.node_certificate(node), self.url))

    def create(self, kind: str, name: str, /, *, annotations: dict[str, str] | None = None, **fields: Any) -> Document:
        document = {"kind": kind, "metadata": {"name": name, "annotations": annotations or {}}, **fields}
        return self.do(lambda server: server.admin.create(document))

    def find(self, resource: str, name: str) -> Document | None:
        return self.do(lambda server: server.admin.find(resource, name))

    def delete(self, resource: str, name: str, grace: int | None = None) -> None:
        def delete(server: ApiServer) -> None:
            if server.admin.find(resource, name) is not None:
                server.admin.delete(resource, name, grace=grace)

        self.do(delete)

    def replace_data(self, name: str, data: dict[str, str]) -> None:
        """Of a ConfigMap."""

        def replace(server: ApiServer) -> None:
            found = server.admin.get("configmaps", name)
            server.admin.replace({**found, "data": data})

        self.do(replace)

    def messages(self, name: str) -> list[str]:
        """Of the events about an object, each as `Reason: message`."""

        def read(server: ApiServer) -> list[Document]:
            return server.admin.list("events", "default", fields=f"involvedObject.name={name}")

        return [f"{event['reason']}: {event['message']}" for event in self.do(read)]


@contextmanager
def served_cluster() -> Iterator[ServedCluster]:
    started: list[ServedCluster] = []
    is_up = threading.Event()
    leave = trio.Event()

    async def serve() -> None:
        async with open_api_server(SystemClock()) as server, trio.open_nursery() as nursery:
            port = await nursery.start(server.serve_tcp)
            await nursery.start(StorageControllers(server, provision=_provision).run)
            nursery.start_soon(_issue_certificates, server)
            token = trio.lowlevel.current_trio_token()
            started.append(ServedCluster(server, token, f"https://127.0.0.1:{port}"))
            is_up.set()
            await leave.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(serve,), name="api-server", daemon=True)
    thread.start()
    assert is_up.wait(START_TIMEOUT), "the API server did not start"
    cluster = started[0]
    try:
        yield cluster
    finally:
        cluster.token.run_sync_soon(leave.set)
        thread.join(START_TIMEOUT)
        assert not thread.is_alive(), "the API server did not end"


async def _issue_certificates(server: ApiServer) -> None:
    """The signer of pods' certificates."""
    controllers = Controllers(server)
    while True:
        controllers.issue_pod_certificates()
        await trio.sleep(_LOOK_EVERY)


def _provision(claim: Document) -> Document | None:
    if dig(claim, "spec", "storageClassName") != PROVISIONED:
        return None
    name = f"pv-{claim['metadata']['name']}"
    spec = claim["spec"]
    return csi_volume(name, storageClassName=PROVISIONED, volumeMode=spec.get("volumeMode", "Filesystem"))


def csi_volume(name: str, csi: dict[str, Any] | None = None, **fields: Any) -> Document:
    source = {"driver": DRIVER, "volumeHandle": f"handle-{name}", **(csi or {})}
    return persistent_volume(name, csi=source, **fields)


def persistent_volume(name: str, **fields: Any) -> Document:
    spec = {"capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"], **fields}
    return {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
