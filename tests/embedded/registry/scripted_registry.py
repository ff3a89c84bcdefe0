"""A registry on loopback whose every answer can be scripted: slow, cut, wrong, refused, redirected, endless."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import trio

from tests.embedded.images.archives import ARCHITECTURE, digest, image_spec, layer

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Sequence

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


@attrs.frozen
class Asked:
    """One request that came."""

    method: str
    target: str
    headers: Mapping[str, str]
    """Names in lower case."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@attrs.frozen
class Answer:
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    length: int | None = None
    """A Content-Length other than the body's: the connection ends early, or says too much."""
    pause: float = 0.0
    """Seconds before the body."""
    repeat: int = 1
    """How often the body is sent, without a length."""


Handler = "Callable[[Asked], Answer]"


@attrs.define
class ScriptedRegistry:
    """Serves what was put into it. `scripts` hold answers that come first, by path, one per request."""

    documents: dict[str, Answer] = attrs.field(factory=dict)
    scripts: dict[str, list[Callable[[Asked], Answer]]] = attrs.field(factory=lambda: defaultdict(list))
    asked: list[Asked] = attrs.field(factory=list)
    guard: Callable[[Asked], Answer | None] = lambda asked: None
    """Asked first of all; None lets the request pass."""
    senders: dict[str, Callable[[trio.abc.Stream, Asked, Answer], Awaitable[None]]] = attrs.field(factory=dict)
    """Who sends the answer for a path, where it is to be sent in another way."""
    ranges: bool = True
    port: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def requests(self, path: str, method: str = "GET") -> list[Asked]:
        return [asked for asked in self.asked if (asked.method, asked.path) == (method, path)]

    def first(self, path: str, *answers: Answer | Callable[[Asked], Answer]) -> None:
        """Answer the next requests for a path like this."""
        for answer in answers:
            self.scripts[path].append(partial(_always, answer) if isinstance(answer, Answer) else answer)

    # What it has

    def put_blob(self, repository: str, data: bytes) -> str:
        self.documents[f"/v2/{repository}/blobs/{digest(data)}"] = Answer(body=data)
        return digest(data)

    def put_manifest(self, repository: str, tag: str, data: bytes, media_type: str = MANIFEST) -> str:
        answer = Answer(headers={"Content-Type": media_type, "Docker-Content-Digest": digest(data)}, body=data)
        for name in (tag, digest(data)):
            if name:
                self.documents[f"/v2/{repository}/manifests/{name}"] = answer
        return digest(data)

    def put_image(
        self,
        repository: str,
        tag: str,
        layers: Sequence[bytes] = (layer("file"),),
        pack: Callable[[bytes], bytes] = lambda data: gzip.compress(data, mtime=0),
        **top: str,
    ) -> PutImage:
        """An image for this machine, with layers from their tars."""
        config = image_spec(layers, None, **top)
        blobs = [pack(data) for data in layers]
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar+gzip", blob) for blob in blobs],
        }
        for blob in (config, *blobs):
            self.put_blob(repository, blob)
        manifest = json.dumps(document).encode()
        self.put_manifest(repository, tag, manifest)
        return PutImage(digest(config), digest(manifest), tuple(map(digest, blobs)), _descriptor(MANIFEST, manifest))

    def put_index(self, repository: str, tag: str, *entries: tuple[PutImage, Mapping[str, str]]) -> str:
        manifests = [{**image.descriptor, "platform": platform} for image, platform in entries]
        document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        return self.put_manifest(repository, tag, json.dumps(document).encode(), INDEX)

    # Serving

    async def serve(self, stream: trio.abc.Stream) -> None:
        try:
            async with stream:
                received = b""
                while b"\r\n\r\n" not in received:
                    more = await stream.receive_some()
                    if not more:
                        return
                    received += more
                    if received.startswith(b"\x16"):  # TLS, which servers of plain HTTP answer like this
                        await stream.send_all(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                        return
                head = received.partition(b"\r\n\r\n")[0].decode("latin-1")
                first, *lines = head.split("\r\n")
                method, target, _ = first.split(" ")
                pairs = (line.partition(":") for line in lines)
                asked = Asked(method, target, {name.lower(): value.strip() for name, _, value in pairs})
                self.asked.append(asked)
                send = self.senders.get(asked.path, self._send)
                await send(stream, asked, self._answer(asked))
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass

    def _answer(self, asked: Asked) -> Answer:
        guarded = self.guard(asked)
        if guarded is not None:
            return guarded
        if asked.method != "HEAD" and self.scripts[asked.path]:
            return self.scripts[asked.path].pop(0)(asked)
        answer = self.documents.get(asked.path)
        if answer is None:
            return Answer(404, body=b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}')
        wanted = asked.headers.get("range", "")
        if wanted and self.ranges:
            return from_range(asked, answer.body)
        return answer

    async def _send(self, stream: trio.abc.Stream, asked: Asked, answer: Answer) -> None:
        length = len(answer.body) if answer.length is None else answer.length
        lengths = {"Content-Length": str(length)} if answer.repeat == 1 else {}
        headers = {**lengths, "Connection": "close", **answer.headers}
        lines = [f"HTTP/1.1 {answer.status} Said", *(f"{name}: {value}" for name, value in headers.items())]
        await stream.send_all("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if asked.method == "HEAD":
            return
        await trio.sleep(answer.pause)
        for _ in range(answer.repeat):
            await stream.send_all(answer.body)


@attrs.frozen
class PutImage:
    id: str
    digest: str
    layers: tuple[str, ...]
    descriptor: Mapping[str, object]


def from_range(asked: Asked, data: bytes) -> Answer:
    """What a server says that knows ranges."""
    start = int(asked.headers["range"].removeprefix("bytes=").removesuffix("-"))
    return Answer(206, {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}, data[start:])


def ask_for_password(asked: Asked) -> Answer | None:
    """What basic authentication is like."""
    if asked.headers.get("authorization") == "Basic YWxpOm9wZW4gc2VzYW1l":
        return None
    return Answer(401, {"WWW-Authenticate": 'Basic realm="tests"'})


def _always(answer: Answer, asked: Asked) -> Answer:
    return answer


def this_platform(**more: str) -> dict[str, str]:
    return {"os": "linux", "architecture": ARCHITECTURE, **more}


@asynccontextmanager
async def scripted_registry(tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedRegistry]:
    """Serves while the context is open; everything in it ends with the context."""
    registry = ScriptedRegistry()
    async with trio.open_nursery() as nursery:
        tcp = await trio.open_tcp_listeners(0, host="127.0.0.1")
        registry.port = tcp[0].socket.getsockname()[1]
        listeners: list[Any] = list(tcp) if tls is None else [trio.SSLListener(one, tls) for one in tcp]
        nursery.start_soon(trio.serve_listeners, registry.serve, listeners)
        yield registry
        nursery.cancel_scope.cancel()


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}
