"""A browser's requests as handlers see them, and an API behind the page that notes what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

import attrs

from trikubelet.http.messages import AnyResponse, Handler, HTTPError, Request, Response, StreamResponse, Writer


@attrs.define
class NotingApi:
    """Answers everything with `lines`, in as many writes, or with an error."""

    lines: Sequence[bytes] = (b"{}\n",)
    error: HTTPError | None = None
    asked: list[str] = attrs.field(factory=list)

    async def __call__(self, request: Request) -> AnyResponse:
        self.asked.append(f"{request.method} {request.target}")
        assert urlsplit(request.target).path == request.path
        assert parse_qs(urlsplit(request.target).query) == {name: [*texts] for name, texts in request.query.items()}

        async def produce(writer: Writer) -> None:
            for line in self.lines:
                await writer.write(line)
            if self.error is not None:
                raise self.error

        return StreamResponse(produce)


@attrs.define
class Sink:
    """A writer for tests."""

    data: bytes = b""

    async def write(self, data: bytes) -> None:
        self.data += data


async def ask(
    handler: Handler, target: str, *, method: str = "GET", host: str = "127.0.0.1:80", cookie: str = ""
) -> Response:
    """The answer as a whole. A stream's error is raised."""
    parts = urlsplit(target)
    headers = {"host": host} | ({"cookie": cookie} if cookie else {})
    answer = await handler(Request(method, parts.path, parse_qs(parts.query), headers, target=target))
    if isinstance(answer, StreamResponse):
        sink = Sink()
        await answer.produce(sink)
        return Response(sink.data, answer.status, answer.content_type, answer.headers)
    assert isinstance(answer, Response)
    return answer
