"""An agent for the handlers: what it has is what a test says."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio
import trio.testing
from grpclib.const import Status

from trikubelet.api import Pod, pod_from_dict
from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.clock import TrioClock
from trikubelet.config.kubelet_configuration import KubeletConfiguration
from trikubelet.http.messages import AnyResponse, HTTPError, Request, Response, StreamResponse, error_response
from trikubelet.http.server import HttpServer
from trikubelet.node_api.handlers.exposition import Exposition, summary_page, text_page
from trikubelet.node_api.log_location import LogNotAvailableError, LogTarget
from trikubelet.node_api.node_api import Parts
from trikubelet.node_api.view import Ran
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trikubelet.http.messages import Handler
    from trikubelet.http.streaming.command import CommandStreams
    from trikubelet.node_api.view import NodeApiView

STARTED = datetime(2025, 12, 31, 22, 57, 56, tzinfo=UTC)


def make_pod(name: str = "web", uid: str = "uid-web") -> Pod:
    return pod_from_dict(
        {
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {
                "containers": [{"name": "main", "image": "x"}],
                "initContainers": [{"name": "setup", "image": "x"}],
                "ephemeralContainers": [{"name": "debugger", "image": "x"}],
            },
            "status": {"phase": "Running"},
        }
    )


@attrs.define
class FakeNode:
    """Implements `NodeApiView`."""

    root_dir: Path = Path("/nowhere")
    known: list[Pod] = attrs.field(factory=lambda: [make_pod()])
    running: dict[str, str] = attrs.field(factory=lambda: {"main": "c1", "setup": "c2", "debugger": "c3"})
    """Ids of running containers by name."""
    problems: dict[str, str | None] = attrs.field(factory=lambda: {"ping": None, "pleg": "stuck", "syncloop": None})
    configuration: KubeletConfiguration = attrs.field(factory=KubeletConfiguration)
    given_flags: dict[str, str] = attrs.field(factory=lambda: {"v": "2", "config": "/etc/k.yaml"})
    started_at: datetime = STARTED
    kubernetes_version: str = "v1.36.2"
    log: Path | None = None
    runtime_error: CRIError | None = None
    ran: Ran = attrs.field(factory=lambda: Ran(b"out", b"err", 0))
    calls: list[tuple[Any, ...]] = attrs.field(factory=list)
    changes: Broadcast[None] = attrs.field(factory=Broadcast)

    def pods(self) -> Sequence[Pod]:
        return self.known

    def pod(self, namespace: str, name: str) -> Pod | None:
        return next(
            (pod for pod in self.known if (pod.metadata.namespace, pod.metadata.name) == (namespace, name)), None
        )

    async def running_pods(self) -> Sequence[Pod]:
        self._call("running_pods")
        return [pod_from_dict({"metadata": {"name": "web", "namespace": "default", "uid": "uid-web"}, "spec": {}})]

    async def running_container(self, pod: Pod, uid: str, container: str) -> str | None:
        return self.running.get(container) if uid in ("", pod.metadata.uid) else None

    async def exec_url(self, container_id: str, command: Sequence[str], streams: CommandStreams) -> str:
        raise NotImplementedError

    async def attach_url(self, container_id: str, streams: CommandStreams) -> str:
        raise NotImplementedError

    async def port_forward_url(self, pod: Pod, ports: Sequence[int]) -> str | None:
        raise NotImplementedError

    async def run_command(self, container_id: str, command: Sequence[str]) -> Ran:
        self._call("run", container_id, list(command))
        return self.ran

    async def checkpoint(self, container_id: str, location: Path, timeout: int) -> None:
        self._call("checkpoint", container_id, location.name, timeout)

    async def log_files(self, namespace: str, pod: str, container: str, previous: bool) -> LogTarget:
        if self.log is None:
            raise LogNotAvailableError(f'container "{container}" in pod "{pod}" is waiting to start - no logs yet')
        return LogTarget(self.log, "c1", running=False)

    def container_running(self, container_id: str) -> bool:
        return False

    def subscribe(self) -> Subscription[None]:
        return self.changes.subscribe()

    def health(self) -> Mapping[str, str | None]:
        return self.problems

    def flags(self) -> Mapping[str, str]:
        return self.given_flags

    def _call(self, *call: object) -> None:
        if self.runtime_error is not None:
            raise self.runtime_error
        self.calls.append(call)


def implements(node: FakeNode) -> NodeApiView:
    return node


RUNTIME_AWAY = CRIError("Any", Status.UNAVAILABLE, "no runtime")


class FakeStreams:
    async def exec(self, request: Request) -> AnyResponse:
        return Response(f"exec {dict(request.params)}".encode())

    async def attach(self, request: Request) -> AnyResponse:
        return Response(f"attach {dict(request.params)}".encode())

    async def port_forward(self, request: Request) -> AnyResponse:
        return Response(f"portForward {dict(request.params)}".encode())


async def _text(text: bytes) -> bytes:
    await trio.lowlevel.checkpoint()
    return text


def fake_exposition(resets: list[str] | None = None, observed: list[tuple[str, bool]] | None = None) -> Exposition:
    resets = [] if resets is None else resets
    observed = [] if observed is None else observed
    return Exposition(
        metrics=text_page(lambda: _text(b"metrics 1\n")),
        resource=text_page(lambda: _text(b"resource 1\n")),
        cadvisor=text_page(lambda: _text(b"cadvisor 1\n")),
        probes=text_page(lambda: _text(b"probes 1\n")),
        slis=text_page(lambda: _text(b"slis 1\n"), lambda: resets.append("slis")),
        summary=summary_page(lambda narrow: _text(b'{"narrow":%d}' % narrow)),
        observe_health=lambda name, well: observed.append((name, well)),
    )


def fake_parts() -> Parts:
    return Parts(streams=FakeStreams(), exposition=fake_exposition())


@attrs.frozen
class Answer:
    """A whole answer."""

    status: int
    body: bytes
    content_type: str
    headers: dict[str, str]

    @property
    def text(self) -> str:
        return self.body.decode()


async def ask(
    handler: Handler, path: str, method: str = "GET", /, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """Ask without a connection; a stream is read to its end. What a handler raises later than that is raised here."""
    from urllib.parse import parse_qs

    bare, _, query = path.partition("?")
    request = Request(
        method, bare, parse_qs(query, keep_blank_values=True), headers=dict(headers or {}), body=body, target=path
    )
    try:
        response = await handler(request)
        written: list[bytes] = []
        if isinstance(response, StreamResponse):
            if method != "HEAD":
                await response.produce(_Collector(written))
            whole = b"".join(written)
        else:
            assert isinstance(response, Response)
            whole = response.body
    except HTTPError as error:
        response = error_response(error)
        whole = response.body
    return Answer(response.status, whole, response.content_type, dict(response.headers))


@attrs.define
class _Collector:
    blocks: list[bytes]

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.blocks.append(data)


async def talk(handler: Handler, sent: bytes) -> bytes:
    """Ask over a connection, and read until the server closes it. In real time: files are opened in threads."""
    ours, theirs = trio.testing.memory_stream_pair()
    received = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpServer(handler).serve_stream, theirs)
        await ours.send_all(sent)
        with trio.fail_after(10):
            while block := await ours.receive_some():
                received += block
        await ours.aclose()
        nursery.cancel_scope.cancel()
    return received


def clock() -> TrioClock:
    return TrioClock()
