from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import httpx
import pytest
import trio
import trio.testing
import yaml

from trikubelet.api import Pod
from trikubelet.sources import http as http_source
from trikubelet.sources.http import HttpSource, HttpSourceError, parse_pods
from trikubelet.supervision import supervise

if TYPE_CHECKING:
    from collections.abc import Callable

URL = "http://manifests.example/pods"
NODE = "node-a"


def manifest(name: str = "foo", **changes: Any) -> dict[str, Any]:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "mynamespace"},
        "spec": {"containers": [{"name": "1", "image": "foo"}]},
    }
    return {**pod, **changes}


def listing(*pods: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "PodList", "items": list(pods)}


def body(data: Any) -> bytes:
    return json.dumps(data).encode()


def spec(**changes: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "1", "image": "foo"}], **changes}}


INVALID = {
    "no version": {"kind": "Pod", "metadata": {"name": "a"}},
    "invalid version": manifest(apiVersion="v1betta2"),
    "another kind": manifest(kind="Deployment"),
    "invalid volume name": manifest(**spec(volumes=[{"name": "_INVALID_", "emptyDir": {}}])),
    "duplicate volume names": manifest(
        **spec(volumes=[{"name": "repeated", "emptyDir": {}}, {"name": "repeated", "emptyDir": {}}])
    ),
    "unspecified container name": manifest(spec={"containers": [{"name": "", "image": "foo"}]}),
    "invalid container name": manifest(spec={"containers": [{"name": "_INVALID_", "image": "foo"}]}),
    "no name": manifest(metadata={}),
    "a UID that leads elsewhere": manifest(metadata={"name": "a", "uid": "../../etc"}),
    "a reference to a secret": manifest(**spec(imagePullSecrets=[{"name": "s"}])),
    "items that are no list": {"apiVersion": "v1", "kind": "PodList", "items": {"a": 1}},
    "not a mapping": [manifest()],
}


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
def test_what_is_no_valid_pod_is_refused(data: Any) -> None:
    with pytest.raises(HttpSourceError, match=URL):
        parse_pods(body(data), URL, NODE)


def test_one_invalid_pod_makes_a_list_invalid_and_is_named_with_its_line() -> None:
    text = yaml.safe_dump(listing(manifest("a"), manifest("b", spec={"containers": [{"name": "_", "image": "x"}]})))
    with pytest.raises(HttpSourceError, match=r"invalid pod: line \d+: items\[1\]\.spec\.containers\[0\]\.name"):
        parse_pods(text.encode(), URL, NODE)


def test_a_body_that_is_no_manifest_is_shown_up_to_200_characters() -> None:
    with pytest.raises(HttpSourceError) as failed:
        parse_pods(b"<html>" + b"x" * 5000, URL, NODE)
    assert str(failed.value).startswith(f"{URL}: received '<html>xxx")
    assert "but couldn't parse as single or multiple pods: line 1:" in str(failed.value)
    assert len(str(failed.value)) < 500


@pytest.mark.parametrize("dump", [json.dumps, yaml.safe_dump])
@pytest.mark.parametrize(
    ("data", "names"),
    [
        (manifest("foo"), ["foo-node-a"]),
        (listing(manifest("foo")), ["foo-node-a"]),
        (listing(manifest("foo"), manifest("bar")), ["foo-node-a", "bar-node-a"]),
        (listing(), []),
    ],
)
def test_a_pod_or_a_list_of_pods_becomes_static_pods(data: Any, names: list[str], dump: Callable[[Any], str]) -> None:
    pods = parse_pods(dump(data).encode(), URL, NODE).pods
    assert [pod.metadata.name for pod in pods] == names
    for pod in pods:
        assert pod.metadata.namespace == "mynamespace"
        assert pod.spec.node_name == NODE
        assert pod.metadata.annotations["kubernetes.io/config.source"] == "http"
        assert pod.metadata.annotations["kubernetes.io/config.hash"] == pod.metadata.uid
        assert pod.spec.tolerations == ()
        assert pod.spec.restart_policy == "Always"


def test_the_uid_depends_on_the_url_and_not_on_the_node() -> None:
    (here,) = parse_pods(body(manifest()), URL, NODE).pods
    (elsewhere,) = parse_pods(body(manifest()), URL, "node-b").pods
    (other_url,) = parse_pods(body(manifest()), URL + "?b", NODE).pods
    assert here.metadata.uid == elsewhere.metadata.uid != other_url.metadata.uid


def test_unknown_fields_are_found_with_their_lines() -> None:
    text = yaml.safe_dump(manifest(**spec(colour="red")))
    (field,) = parse_pods(text.encode(), URL, NODE).unknown_fields
    assert field.startswith("line ")
    assert field.endswith("spec.colour")


@attrs.define
class Site:
    """A server with one page."""

    answer: bytes = b""
    status: int = 200
    delay: float = 0.0
    failure: Exception | None = None
    requests: list[httpx.Request] = attrs.field(factory=list)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        await trio.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        return httpx.Response(self.status, content=self.answer)


@attrs.define
class Running:
    site: Site
    source: HttpSource
    receive: trio.MemoryReceiveChannel[tuple[Pod, ...]]

    async def sent(self) -> list[str] | None:
        """Names of what the requests of the next 20 seconds bring, None when nothing is sent."""
        await trio.sleep(20.5)
        try:
            return [pod.metadata.name for pod in self.receive.receive_nowait()]
        except trio.WouldBlock:
            return None


@pytest.fixture
async def running(nursery: trio.Nursery) -> Running:
    site = Site(delay=0.25)
    source = HttpSource(URL, node_name=NODE, headers={"X-Key": ["a", "b"]}, transport=httpx.MockTransport(site))
    send, receive = trio.open_memory_channel[tuple[Pod, ...]](10)
    site.answer = body(manifest("first"))
    await nursery.start(supervise, source.run, send.send)
    return Running(site, source, receive)


async def test_pods_are_sent_at_once_and_again_only_when_the_answer_changes(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    await trio.sleep(0.5)
    assert [pod.metadata.name for pod in running.receive.receive_nowait()] == ["first-node-a"]
    assert await running.sent() is None
    running.site.answer = body(listing(manifest("first"), manifest("second")))
    assert await running.sent() == ["first-node-a", "second-node-a"]


async def test_headers_may_have_several_values(running: Running, autojump_clock: trio.testing.MockClock) -> None:
    await trio.sleep(0.5)
    assert running.site.requests[0].headers.get_list("X-Key") == ["a", "b"]


async def test_an_empty_answer_ends_all_pods_and_the_same_pods_come_back_after_it(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    assert await running.sent() == ["first-node-a"]
    before, running.site.answer = running.site.answer, b""
    assert await running.sent() == []
    assert running.source.problem == f"zero-length data received from {URL}"
    running.site.answer = before
    assert await running.sent() == ["first-node-a"]
    assert running.source.problem is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"status": 404}, f"{URL}: 404 Not Found"),
        ({"failure": httpx.ConnectError("no route")}, f'Get "{URL}": no route'),
        ({"delay": 60.0}, f'Get "{URL}": no answer within 10 s'),
        ({"answer": b"x" * (10 * 2**20 + 1)}, f"{URL}: the read limit is reached"),
        ({"answer": b"kind: Service"}, f"{URL}: received 'kind: Service', but couldn't parse"),
    ],
)
async def test_a_failure_keeps_the_pods_and_is_over_with_the_next_good_answer(
    running: Running, change: dict[str, Any], problem: str, autojump_clock: trio.testing.MockClock
) -> None:
    assert await running.sent() == ["first-node-a"]
    for name, value in change.items():
        setattr(running.site, name, value)
    await trio.sleep(60)
    assert running.receive.statistics().current_buffer_used == 0
    assert (running.source.problem or "").startswith(problem)
    running.site.status, running.site.failure, running.site.delay = 200, None, 0.25
    running.site.answer = body(manifest("first"))
    await trio.sleep(60)
    assert running.source.problem is None
    assert running.receive.statistics().current_buffer_used == 0


async def test_before_the_first_good_answer_nothing_is_sent(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    running.site.status = 500
    assert await running.sent() is None


async def test_failures_are_logged_three_times_and_then_quietly(
    running: Running, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    lines: list[tuple[str, str]] = []

    class Recorded:
        def __getattr__(self, level: str) -> Callable[..., None]:
            return lambda event, **_: lines.append((level, event))

    monkeypatch.setattr(http_source, "log", Recorded())
    running.site.status = 503
    await trio.sleep(6 * 20.5)
    assert [level for level, _ in lines] == ["warning"] * 4 + ["debug"] * 3
    running.site.status = 200
    await trio.sleep(20.5)
    assert lines[-1] == ("info", "successfully read pods from URL")


def test_passwords_in_urls_are_not_shown() -> None:
    with pytest.raises(HttpSourceError) as failed:
        parse_pods(b"", "http://me:secret@host/x", NODE)
    assert "http://me:xxxxx@host/x" in str(failed.value)
    assert "secret" not in str(failed.value)


async def test_pods_are_read_over_a_real_connection(nursery: trio.Nursery) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            content = body(manifest("real"))
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
            await stream.send_all(head.encode() + content)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, [listener])
    port = listener.socket.getsockname()[1]
    source = HttpSource(f"http://127.0.0.1:{port}/", node_name=NODE)
    send, receive = trio.open_memory_channel[tuple[Pod, ...]](0)
    nursery.start_soon(source.run, send.send)
    with trio.fail_after(20):
        (pod,) = await receive.receive()
    assert pod.metadata.name == "real-node-a"


async def test_after_a_fault_the_pods_are_sent_all_the_same(
    running: Running, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await running.sent() == ["first-node-a"]
    running.site.answer = body(manifest("second"))
    parse = running.source._parse

    async def fail_once(text: bytes) -> Any:
        monkeypatch.setattr(running.source, "_parse", parse)
        raise RuntimeError("nobody thought of that")

    monkeypatch.setattr(running.source, "_parse", fail_once)
    # Threads parse, while the clock jumps: the source may be begun again within these 20 seconds, or after them.
    assert (await running.sent() or await running.sent()) == ["second-node-a"]


def test_the_number_of_problems_is_bounded() -> None:
    items = [manifest(**spec(imagePullSecrets=[{"name": "s"}])) for _ in range(100)]
    with pytest.raises(HttpSourceError, match=r"; and 50 more problems$"):
        parse_pods(body({"apiVersion": "v1", "kind": "PodList", "items": items}), URL, NODE)
