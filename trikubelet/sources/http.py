"""The http source: a URL whose answer says which pods this node should run.

The URL is asked at once and then every `period` seconds. An answer of 200 is one Pod or a PodList, in YAML or JSON
(here also several documents). What is the same as before is not looked at again. While the URL cannot be read, or says
something that is no pod, the pods stay those of its last good answer; before the first one nothing is sent, so that no
pod of an earlier life is ended for it. Only an empty answer, or a list without items, says that there are no pods.

What is wrong stands in `problem`. It is logged three times, then quietly, until it is over. The headers may hold a
password and are never shown.
"""

from __future__ import annotations

import re
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import HTTP_SOURCE
from trikubelet.formats.values import frozen
from trikubelet.formats.yaml_documents import Document, YamlError, read_documents
from trikubelet.sources.manifests import MAX_MANIFEST_SIZE, MAX_PROBLEMS, list_fields, read_static_pod
from trikubelet.sources.other_kinds import what_runs
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import httpx

    from trikubelet.sources.mux import SendPods

TIMEOUT_SECONDS: Final = 10.0
MAX_REDIRECTS: Final = 10
LOUD_FAILURES: Final = 3
"""This many failures in a row are logged as warnings, the others at level debug."""
SMALL_BODY: Final = 32 * 2**10
"""Bytes that are parsed within some milliseconds."""
SHOWN_BODY: Final = 200

_PASSWORD: Final = re.compile(r"(//[^/@:]*):[^/@]*@")

log = get_logger("http-source")


@frozen
class HttpSourceError(Exception):
    """The URL did not give pods."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen
class HttpPods:
    """What an answer holds."""

    pods: tuple[Pod, ...]
    unknown_fields: tuple[str, ...] = ()
    """Fields that Kubernetes does not have and that have no effect, with their lines."""


class HttpSource:
    """Static pods from a URL. One task runs it; `problem` may be read at any time.

    `period` (seconds) is the kubelet's `httpCheckFrequency`, `headers` its `staticPodURLHeader`. Proxies are those of
    the environment. `transport` stands in for the network.
    """

    name = HTTP_SOURCE

    def __init__(
        self,
        url: str,
        *,
        node_name: str,
        period: float = 20.0,
        headers: Mapping[str, Sequence[str]] | None = None,
        may_refer: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._node_name = node_name
        self._period = period
        # The host is that of the URL, as in the kubelet.
        self._headers = [
            (name, value) for name, values in (headers or {}).items() if name.lower() != "host" for value in values
        ]
        self._pods_of = partial(parse_pods, url=url, node_name=node_name, may_refer=may_refer)
        self._transport = transport
        self._body: bytes | None = None
        """Of the last answer that pods were taken from, or that was empty."""
        self._failures = 0
        self._limiter = trio.CapacityLimiter(1)
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the URL's pods are not the newest, None when they are."""
        return self._problem

    async def run(self, send: SendPods, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send the pods of every new answer, until cancelled.

        `task_status.started` is called before the first request.
        """
        from trikubelet import __version__
        from trikubelet.http.httpx_library import httpx

        task_status.started()
        # Python's own authorities are those of the system; a deadline around each request replaces httpx's timeouts.
        client = httpx.AsyncClient(
            verify=ssl.create_default_context(),
            timeout=None,
            follow_redirects=True,
            max_redirects=MAX_REDIRECTS,
            transport=self._transport,
            headers={"User-Agent": f"trikubelet/{__version__}", "Accept": "*/*"},
        )
        async with client:
            while True:
                await self._reread(client, send)
                await trio.sleep(self._period)

    async def _reread(self, client: httpx.AsyncClient, send: SendPods) -> None:
        try:
            body = await self._fetch(client)
            if not body:
                if self._body != body:
                    await send(())
                    self._body = body
                raise HttpSourceError(f"zero-length data received from {self._shown_url}")
            found = None if body == self._body else await self._parse(body)
        except HttpSourceError as error:
            self._fail(str(error))
            return
        self._recover()
        if found is not None:
            if found.unknown_fields:
                fields = list_fields(found.unknown_fields)
                log.warning("unknown fields have no effect", url=self._shown_url, fields=fields)
            await send(found.pods)
            self._body = body

    async def _fetch(self, client: httpx.AsyncClient) -> bytes:
        """The body of the answer. Raises HttpSourceError."""
        from trikubelet.http.httpx_library import httpx

        body = bytearray()
        try:
            with trio.fail_after(TIMEOUT_SECONDS):
                async with client.stream("GET", self._url, headers=self._headers) as response:
                    if response.status_code != 200:
                        status = f"{response.status_code} {response.reason_phrase}".rstrip()
                        raise HttpSourceError(f"{self._shown_url}: {status}")
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        if len(body) > MAX_MANIFEST_SIZE:
                            raise HttpSourceError(f"{self._shown_url}: the read limit is reached")
        except trio.TooSlowError:
            raise HttpSourceError(f'Get "{self._shown_url}": no answer within {TIMEOUT_SECONDS:g} s') from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise HttpSourceError(f'Get "{self._shown_url}": {str(error) or type(error).__name__}') from error
        return bytes(body)

    async def _parse(self, body: bytes) -> HttpPods:
        """In a thread when it takes long: a body may be ten megabytes. Raises HttpSourceError."""
        if len(body) <= SMALL_BODY:
            return self._pods_of(body)
        try:
            return await trio.to_thread.run_sync(self._pods_of, body, limiter=self._limiter, abandon_on_cancel=True)
        except RuntimeError as error:  # the process may have no more threads
            raise HttpSourceError(f"{self._shown_url}: {error}") from error

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._failures += 1
        if self._failures <= LOUD_FAILURES:
            log.warning("failed to read pods from URL", error=problem)
        elif self._failures == LOUD_FAILURES + 1:
            log.warning("failed to read pods from URL; further failures are logged with -v=4", error=problem)
        else:
            log.debug("failed to read pods from URL", error=problem)

    def _recover(self) -> None:
        if self._failures:
            log.info("successfully read pods from URL", url=self._shown_url)
        self._problem = None
        self._failures = 0

    @property
    def _shown_url(self) -> str:
        return without_password(self._url)


def without_password(url: str) -> str:
    """A URL for logs and errors."""
    return _PASSWORD.sub(r"\1:xxxxx@", url)


def parse_pods(body: bytes, url: str, node_name: str, *, may_refer: bool = False) -> HttpPods:
    """The static pods of an answer. Raises HttpSourceError naming everything that is wrong; then no pod is taken.

    `may_refer`: see `read_static_pod`.
    """
    shown = without_password(url)
    pods: list[Pod] = []
    unknown: list[str] = []
    try:
        documents = [document for document in read_documents(body) if not document.empty]
        manifests = [manifest for document in documents for manifest in _manifests(document)]
        if not documents:
            raise _NoPodsError("expected a Pod or PodList, got nothing")
    except (YamlError, _NoPodsError) as error:
        received = body[:SHOWN_BODY].decode(errors="replace") + ("..." if len(body) > SHOWN_BODY else "")
        problem = f"{shown}: received '{received}', but couldn't parse as single or multiple pods: {error}"
        raise HttpSourceError(problem) from None
    problems: list[str] = []
    for document, path, data in manifests:
        found = read_static_pod(data, node_name=node_name, url=url, may_refer=may_refer)
        problems += [_place(document, path, problem.path, problem.message) for problem in found.problems]
        unknown += [_place(document, path, field, "") for field in found.unknown_fields]
        pods += [found.pod] if found.pod is not None else []
    if problems:
        more = len(problems) - MAX_PROBLEMS
        told = [*problems[:MAX_PROBLEMS], *([f"and {more} more problems"] if more > 0 else [])]
        raise HttpSourceError(f"{shown}: invalid pod: {'; '.join(told)}")
    return HttpPods(tuple(pods), tuple(unknown))


class _NoPodsError(Exception):
    pass


def _manifests(document: Document) -> Iterator[tuple[Document, str, Any]]:
    """The pods of a document: where each stands in it, and its data. Raises _NoPodsError and YamlError."""
    data = document.data()
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in ("Pod", "PodList"):
        why = what_runs(data) if isinstance(data, dict) else "the agent runs pods only"
        raise _NoPodsError(f"line {document.line}: expected the kind Pod or PodList, got {kind or 'none'}: {why}")
    if data.get("apiVersion") != "v1":
        raise _NoPodsError(f"line {document.line}: expected apiVersion v1, got {data.get('apiVersion') or 'none'}")
    if kind == "Pod":
        yield document, "", data
        return
    items = data.get("items") or []
    if not isinstance(items, list):
        raise _NoPodsError(f"line {document.line_of('items')}: items: expected a list")
    for index, item in enumerate(items):
        yield document, f"items[{index}]", item


def _place(document: Document, prefix: str, field: str, message: str) -> str:
    path = ".".join(part for part in (prefix, field) if part)
    return ": ".join(part for part in (f"line {document.line_of(path)}", path, message) if part)
