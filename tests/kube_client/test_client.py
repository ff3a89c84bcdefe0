from __future__ import annotations

import gzip
import json
from itertools import count
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from tests.kube_client.stage import Protocol, Script, event, pod, staged, status, stream_of
from trikubelet.api import Lease, ObjectMeta, Pod, RuntimeClass, TokenRequest, TokenRequestSpec, to_dict
from trikubelet.http.messages import AnyResponse, Request, Response, json_response
from trikubelet.kube_client.client import HttpApiClient
from trikubelet.kube_client.errors import ApiAnswerError, ApiStatusError, ApiUnreachable, CredentialsError
from trikubelet.kube_client.types import (
    LEASES,
    NODES,
    PODS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    ApiClient,
    PatchType,
    RateLimit,
    Urgency,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

both = pytest.mark.parametrize("protocol", ["h2", "http/1.1"])


async def hang(request: Request) -> AnyResponse:
    await trio.sleep_forever()
    raise AssertionError


def test_the_client_is_an_api_client() -> None:
    def accept(client: ApiClient) -> None: ...

    def check(client: HttpApiClient) -> None:
        accept(client)


# What is asked.


@both
async def test_a_get_asks_for_json_as_who_we_are(protocol: Protocol, autojump_clock: MockClock) -> None:
    server = Script(json_response(pod()))
    async with staged(server, protocol) as (client, _):
        found = await client.get(PODS, "a", "ns", resource_version="0")
    assert found.metadata.uid == "uid-a"
    asked = server.last
    assert (asked.method, asked.path, asked.query) == (
        "GET",
        "/api/v1/namespaces/ns/pods/a",
        {"resourceVersion": ["0"]},
    )
    assert asked.headers["authorization"] == "Bearer one"
    assert asked.headers["user-agent"] == "trikubelet/test"
    assert asked.headers["accept"] == "application/json"
    assert asked.headers["host"] == "api.test:6443"


CALLS: list[tuple[Callable[[HttpApiClient], Awaitable[Any]], str, str, str, Any]] = [
    (
        lambda client: client.create(PODS, Pod(metadata=ObjectMeta(name="a", namespace="ns"))),
        "POST",
        "/api/v1/namespaces/ns/pods",
        "application/json",
        to_dict(Pod(metadata=ObjectMeta(name="a", namespace="ns"))),
    ),
    (
        lambda client: client.update(PODS, Pod(metadata=ObjectMeta(name="a", namespace="ns")), subresource="status"),
        "PUT",
        "/api/v1/namespaces/ns/pods/a/status",
        "application/json",
        to_dict(Pod(metadata=ObjectMeta(name="a", namespace="ns"))),
    ),
    (
        lambda client: client.patch(
            PODS, "a", "ns", PatchType.STRATEGIC, {"metadata": {"uid": "u"}}, subresource="status"
        ),
        "PATCH",
        "/api/v1/namespaces/ns/pods/a/status",
        "application/strategic-merge-patch+json",
        {"metadata": {"uid": "u"}},
    ),
    (
        lambda client: client.patch(PODS, "a", "ns", PatchType.JSON, [{"op": "remove", "path": "/x"}]),
        "PATCH",
        "/api/v1/namespaces/ns/pods/a",
        "application/json-patch+json",
        [{"op": "remove", "path": "/x"}],
    ),
    (
        lambda client: client.delete(PODS, "a", "ns", grace_period=0, uid="u"),
        "DELETE",
        "/api/v1/namespaces/ns/pods/a",
        "application/json",
        {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": "u"}},
    ),
    (
        lambda client: client.delete_collection(RESOURCE_SLICES, field_selector="spec.nodeName=a"),
        "DELETE",
        "/apis/resource.k8s.io/v1/resourceslices",
        "application/json",
        {"apiVersion": "v1", "kind": "DeleteOptions"},
    ),
]


@both
@pytest.mark.parametrize(("call", "method", "path", "content_type", "body"), CALLS)
async def test_a_write_sends_its_body_where_it_belongs(
    protocol: Protocol,
    call: Callable[[HttpApiClient], Awaitable[Any]],
    method: str,
    path: str,
    content_type: str,
    body: Any,
    autojump_clock: MockClock,
) -> None:
    server = Script(json_response(pod()))
    async with staged(server, protocol) as (client, _):
        await call(client)
    asked = server.last
    assert (asked.method, asked.path) == (method, path)
    assert asked.headers["content-type"] == content_type
    assert json.loads(asked.body) == body


async def test_objects_outside_namespaces_and_tokens_have_paths_of_their_own(autojump_clock: MockClock) -> None:
    answer = TokenRequest(spec=TokenRequestSpec(audiences=("a",))).__class__
    token = {"kind": "TokenRequest", "spec": {"audiences": ["a"], "expirationSeconds": 1, "boundObjectRef": None}}
    token["status"] = {"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"}
    lease = {"kind": "Lease", "metadata": {"name": "n", "namespace": "kube-node-lease"}}
    server = Script(
        json_response({"kind": "Node", "metadata": {"name": "n"}}), json_response(token), json_response(lease)
    )
    async with staged(server) as (client, _):
        await client.get(NODES, "n")
        request = TokenRequest(spec=TokenRequestSpec(audiences=("a",)))
        given = await client.create_subresource(SERVICE_ACCOUNTS, "sa", "ns", "token", request)
        await client.update(LEASES, Lease(metadata=ObjectMeta(name="n", namespace="kube-node-lease")))
    assert isinstance(given, answer)
    assert given.status.token == "t"
    assert [asked.path for asked in server.requests] == [
        "/api/v1/nodes/n",
        "/api/v1/namespaces/ns/serviceaccounts/sa/token",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
    ]


async def test_what_would_mean_all_objects_is_never_sent(autojump_clock: MockClock) -> None:
    server = Script(json_response(pod()))
    nameless = Pod(metadata=ObjectMeta(name="a"))
    async with staged(server) as (client, _):
        for call in (
            client.delete(PODS, "", "ns"),
            client.delete_collection(PODS, "ns", field_selector=""),
            client.get(PODS, "", "ns"),
            client.patch(PODS, "", "ns", PatchType.MERGE, {}),
            client.create(PODS, nameless),
            client.update(PODS, nameless),
        ):
            with pytest.raises(ValueError, match="expected"):
                await call
    assert server.requests == []


async def test_what_http_cannot_carry_is_an_error_of_the_call(autojump_clock: MockClock) -> None:
    async with staged(Script(json_response(pod()))) as (client, access):
        access.credentials = {"Authorization": "Bearer schlüssel"}
        with pytest.raises(ApiUnreachable, match="the request cannot be made") as failed:
            await client.get(PODS, "a", "ns")
    assert not failed.value.sent
    assert "schl" not in str(failed.value)


async def test_names_are_escaped_once(autojump_clock: MockClock) -> None:
    server = Script(json_response(pod()))
    async with staged(server) as (client, _):
        await client.get(PODS, "a/b %20", "ns")
    assert server.last.path == "/api/v1/namespaces/ns/pods/a%2Fb%20%2520"


# What is answered.


@both
async def test_a_list_keeps_apart_what_cannot_be_read(protocol: Protocol, autojump_clock: MockClock) -> None:
    pods = [pod(f"p{index}", managedFields=[{"manager": 7}]) for index in range(25)]
    pods[3]["spec"]["containers"] = "none"
    body = {"kind": "PodList", "metadata": {"resourceVersion": "12", "continue": "more"}, "items": pods}
    server = Script(json_response(body))
    async with staged(server, protocol) as (client, _):
        listing = await client.list(PODS, field_selector="spec.nodeName=n", limit=25, continue_="here")
    assert server.last.query == {"fieldSelector": ["spec.nodeName=n"], "limit": ["25"], "continue": ["here"]}
    assert (listing.resource_version, listing.continue_) == ("12", "more")
    assert len(listing.items) == 24
    assert [item.metadata.name for item in listing.undecodable] == ["p3"]
    assert "spec.containers" in listing.undecodable[0].problems[0].path


async def test_a_list_of_nothing_may_say_null(autojump_clock: MockClock) -> None:
    server = Script(json_response({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": None}))
    async with staged(server) as (client, _):
        assert (await client.list(PODS)).items == ()


@both
async def test_answers_may_be_compressed(protocol: Protocol, autojump_clock: MockClock) -> None:
    body = gzip.compress(json.dumps(pod()).encode())
    server = Script(Response(body, content_type="application/json", headers=(("Content-Encoding", "gzip"),)))
    async with staged(server, protocol) as (client, _):
        assert (await client.get(PODS, "a", "ns")).metadata.name == "a"
    assert server.last.headers["accept-encoding"] == "gzip"


@both
async def test_a_large_body_goes_both_ways(protocol: Protocol, autojump_clock: MockClock) -> None:
    text = "x" * 2**20 * 9

    async def echo(request: Request) -> AnyResponse:
        return json_response(pod("a", annotations={"size": str(len(request.body)), "text": text}))

    async with staged(echo, protocol) as (client, _):
        found = await client.patch(PODS, "a", "ns", PatchType.MERGE, {"x": text[: 2**19]})
    assert int(found.metadata.annotations["size"]) == 2**19 + len('{"x":""}')
    assert found.metadata.annotations["text"] == text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Response(b"<html>hello"), "expected JSON, got '<html>hello'"),
        (json_response([]), "expected a JSON object"),
        (json_response({"kind": "Secret", "metadata": {}}), "expected a Pod, got a Secret"),
        (json_response({"kind": "Pod", "spec": {"containers": 5}}), "spec.containers"),
        (Response(b"no gzip", headers=(("Content-Encoding", "gzip"),)), "not encoded"),
    ],
)
async def test_an_answer_that_is_no_such_object_says_what_it_is(
    answer: Response, text: str, autojump_clock: MockClock
) -> None:
    async with staged(Script(answer)) as (client, _):
        with pytest.raises(ApiAnswerError, match=text):
            await client.get(PODS, "a", "ns")
        assert client.health.reachable


@both
async def test_a_refusal_tells_what_the_server_said(protocol: Protocol, autojump_clock: MockClock) -> None:
    server = Script(status(404, "NotFound", 'pods "a" not found'), Response(b"<h1>bad gateway</h1>", 502))
    async with staged(server, protocol) as (client, _):
        with pytest.raises(ApiStatusError, match='GET /api/v1/namespaces/ns/pods/a: 404 NotFound: pods "a"') as caught:
            await client.get(PODS, "a", "ns")
        assert caught.value.not_found
        with pytest.raises(ApiStatusError, match="bad gateway"):
            await client.get(PODS, "a", "ns")
        assert client.health.reachable


async def test_text_is_text(autojump_clock: MockClock) -> None:
    async with staged(Script(Response(b"ok"))) as (client, _):
        assert await client.get_text("/healthz") == "ok"


# When it goes wrong.


@both
async def test_every_call_has_a_deadline(protocol: Protocol, autojump_clock: MockClock) -> None:
    async with staged(hang, protocol) as (client, access):
        start = trio.current_time()
        with pytest.raises(ApiUnreachable, match="no answer within 30 s") as caught:
            await client.create(PODS, Pod(metadata=ObjectMeta(name="a", namespace="ns")))
        assert trio.current_time() - start == pytest.approx(30)
        assert caught.value.sent
        assert not client.health.reachable
        with pytest.raises(ApiUnreachable, match="no answer within 4 s"):
            await client.view(limit=None, timeout=4).get(PODS, "a", "ns")
        assert trio.current_time() - start == pytest.approx(34)
        assert access.connects >= 1


@both
@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_server_that_asks_for_time_gets_it(protocol: Protocol, code: int, autojump_clock: MockClock) -> None:
    server = Script(status(code, "x", retry_after=2), status(code, "x", retry_after=3), json_response(pod()))
    async with staged(server, protocol) as (client, _):
        start = trio.current_time()
        await client.create(PODS, Pod(metadata=ObjectMeta(name="a", namespace="ns")))
        assert trio.current_time() - start == pytest.approx(5)
    assert len(server.requests) == 3


async def test_a_server_that_asks_for_more_time_than_there_is_is_an_error_at_once(autojump_clock: MockClock) -> None:
    server = Script(status(429, "TooManyRequests", retry_after=31))
    async with staged(server) as (client, _):
        start = trio.current_time()
        with pytest.raises(ApiStatusError) as caught:
            await client.get(PODS, "a", "ns")
        assert trio.current_time() == pytest.approx(start)
    assert caught.value.retry_after == 31


async def test_faults_without_a_wish_are_the_callers(autojump_clock: MockClock) -> None:
    server = Script(status(500, "InternalError"))
    async with staged(server) as (client, _):
        with pytest.raises(ApiStatusError):
            await client.get(PODS, "a", "ns")
    assert len(server.requests) == 1


@both
async def test_a_read_is_repeated_when_its_connection_breaks_and_a_write_is_not(
    protocol: Protocol, autojump_clock: MockClock
) -> None:
    asked: list[str] = []

    async def once_cut(request: Request) -> AnyResponse:
        asked.append(request.method)
        if len(asked) in (1, 3):
            access.cut_all()
            await trio.sleep_forever()
        return json_response(pod())

    async with staged(once_cut, protocol) as (client, access):
        await client.get(PODS, "a", "ns")
        assert asked == ["GET", "GET"]
        with pytest.raises(ApiUnreachable, match="the change may have been made") as caught:
            await client.patch(PODS, "a", "ns", PatchType.MERGE, {})
        assert caught.value.sent
    assert asked == ["GET", "GET", "PATCH"]


@both
async def test_a_server_that_is_away_and_back_is_noticed(protocol: Protocol, autojump_clock: MockClock) -> None:
    number = count()
    async with staged(Script(json_response(pod())), protocol) as (client, access):
        changes = client.health.changes.subscribe(lambda _: next(number))
        access.reachable = False
        with pytest.raises(ApiUnreachable, match="Connection refused") as caught:
            await client.patch(PODS, "a", "ns", PatchType.MERGE, {})
        assert not caught.value.sent
        with pytest.raises(ApiUnreachable):
            await client.get(PODS, "a", "ns")
        assert (client.health.reachable, client.health.recoveries) == (False, 0)
        access.reachable = True
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(client.health.wait_recovery, 0)
            await client.get(PODS, "a", "ns")
        await client.health.wait_recovery(0)
        assert (client.health.reachable, client.health.recoveries) == (True, 1)
    assert [await changes.receive() for _ in range(len(changes))] == [False, True]


async def test_credentials_that_are_not_accepted_are_renewed_once(autojump_clock: MockClock) -> None:
    server = Script(status(401, "Unauthorized"), json_response(pod()), status(401, "Unauthorized"))
    async with staged(server) as (client, access):

        def renew() -> None:
            access.credentials = {"Authorization": f"Bearer {len(access.rejections) + 1}"}

        access.renew = renew
        await client.get(PODS, "a", "ns")
        assert server.last.headers["authorization"] == "Bearer 2"
        with pytest.raises(ApiStatusError) as caught:
            await client.get(PODS, "a", "ns")
        assert caught.value.unauthorized
    assert len(server.requests) == 4
    assert len(access.rejections) == 3


async def test_a_certificate_that_is_not_accepted_is_renewed_too(autojump_clock: MockClock) -> None:
    server = Script(status(401, "Unauthorized"), json_response(pod()))
    async with staged(server) as (client, access):
        access.renew = access.change
        await client.get(PODS, "a", "ns")
        assert access.connects == 2


async def test_the_same_credentials_are_not_sent_again(autojump_clock: MockClock) -> None:
    server = Script(status(401, "Unauthorized"))
    async with staged(server) as (client, _):
        with pytest.raises(ApiStatusError):
            await client.get(PODS, "a", "ns")
    assert len(server.requests) == 1


async def test_without_credentials_nothing_is_sent(autojump_clock: MockClock) -> None:
    server = Script(json_response(pod()))
    async with staged(server) as (client, access):
        access.credentials_problem = "getting credentials: exec: executable x not found"
        with pytest.raises(CredentialsError, match="GET /api/v1/namespaces/ns/pods/a: getting credentials") as caught:
            await client.get(PODS, "a", "ns")
        assert caught.value.request == "GET /api/v1/namespaces/ns/pods/a"
        assert not client.health.reachable
    assert server.requests == []


async def test_those_who_wait_for_a_server_try_again_when_there_are_credentials(autojump_clock: MockClock) -> None:
    async with staged(Script(json_response(pod()))) as (client, access):
        access.credentials_problem = "open current.pem: no such file or directory"
        seen = client.health.recoveries
        with pytest.raises(CredentialsError):
            await client.get(PODS, "a", "ns")
        with trio.move_on_after(300) as waiting:
            await client.health.wait_recovery(seen)
        assert waiting.cancelled_caught
        access.credentials_problem = ""
        access.change()
        with trio.fail_after(0.1):
            await client.health.wait_recovery(seen)
        assert not client.health.reachable, "that the server answers is not known yet"
        await client.get(PODS, "a", "ns")
        assert client.health.reachable


async def test_slow_credentials_do_not_take_the_calls_time(autojump_clock: MockClock) -> None:
    async with staged(Script(json_response(pod())), timeout=10) as (client, access):
        access.headers_take = 55
        await client.get(PODS, "a", "ns")
        assert trio.current_time() > 50


async def test_where_watch_lists_are_switched_off_no_server_is_asked_for_one(autojump_clock: MockClock) -> None:
    async with staged(Script()) as (_, access):
        client = HttpApiClient(access, watch_lists=False)
        for one in (client, client.view(limit=None, timeout=1)):
            with pytest.raises(ApiStatusError, match="WatchListClient is off"):
                async with one.watch(PODS, send_initial_events=True, timeout=10):
                    pass
            with pytest.raises(ApiUnreachable, match="not running"):
                async with one.watch(PODS, timeout=10):
                    pass


async def test_a_client_that_does_not_run_says_so(autojump_clock: MockClock) -> None:
    async with staged(Script(json_response(pod()))) as (_, access):
        with pytest.raises(ApiUnreachable, match="not running"):
            await HttpApiClient(access).get(PODS, "a", "ns")


# Connections.


@both
async def test_all_views_share_connections(protocol: Protocol, autojump_clock: MockClock) -> None:
    async with staged(Script(json_response(pod())), protocol) as (client, access):
        for other in (client, client.view(limit=None, timeout=5), client.view(limit=RateLimit(1, 1), timeout=5)):
            await other.get(PODS, "a", "ns")
            assert other.health is client.health
        assert access.connects == 1


@both
async def test_dropped_connections_fail_their_calls_and_the_next_call_makes_a_new_one(
    protocol: Protocol, autojump_clock: MockClock
) -> None:
    waiting = trio.Event()

    async def hang_once(request: Request) -> AnyResponse:
        if request.method == "PATCH":
            waiting.set()
            await trio.sleep_forever()
        return json_response(pod())

    async with staged(hang_once, protocol) as (client, access):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def call() -> None:
                with pytest.raises(ApiUnreachable):
                    await client.patch(PODS, "a", "ns", PatchType.MERGE, {})

            await waiting.wait()
            client.drop_connections()
        await client.get(PODS, "a", "ns")
        await trio.testing.wait_all_tasks_blocked()
        assert access.connects == 2
        assert len(access.connections) == 1


@both
async def test_changed_credentials_replace_connections_without_a_failure(
    protocol: Protocol, autojump_clock: MockClock
) -> None:
    answer_now = trio.Event()
    waiting = trio.Event()

    async def serve(request: Request) -> AnyResponse:
        if "watch" in request.query:
            return stream_of(event("ADDED", pod()), forever=True)
        if request.method == "PATCH":
            waiting.set()
            await answer_now.wait()
        return json_response(pod())

    async with staged(serve, protocol) as (client, access), trio.open_nursery() as nursery:
        async with client.watch(PODS, timeout=300) as events:
            assert (await anext(events)).type == "ADDED"
            nursery.start_soon(client.patch, PODS, "a", "ns", PatchType.MERGE, {})
            await waiting.wait()
            connected = access.connects
            access.change()
            assert [told async for told in events] == []
        await client.get(PODS, "a", "ns")
        assert access.connects == connected + 1
        assert len(access.connections) == 2
        answer_now.set()
        await trio.testing.wait_all_tasks_blocked()
        assert client.health.reachable
        assert len(access.connections) == 1


@both
async def test_a_cancelled_call_leaves_nothing_behind(protocol: Protocol, autojump_clock: MockClock) -> None:
    ended = trio.Event()

    async def serve(request: Request) -> AnyResponse:
        if request.method == "GET":
            return json_response(pod())
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    async with staged(serve, protocol) as (client, _):
        with trio.move_on_after(1):
            await client.patch(PODS, "a", "ns", PatchType.MERGE, {})
        await ended.wait()
        await client.get(PODS, "a", "ns")
        assert client.statistics().streams == 0


# The rate limit.


async def test_a_batch_of_pods_is_not_stretched_by_the_limit(autojump_clock: MockClock) -> None:
    server = Script(json_response(pod()))
    ordinary: list[float] = []
    urgent: list[float] = []
    async with staged(server, limit=RateLimit(50, 100)) as (client, _), trio.open_nursery() as nursery:
        start = trio.current_time()

        async def start_pod() -> None:
            for urgency, times in ((Urgency.ORDINARY, ordinary), (Urgency.URGENT, urgent), (Urgency.URGENT, urgent)):
                await client.patch(PODS, "a", "ns", PatchType.MERGE, {}, urgency=urgency)
                times.append(trio.current_time() - start)

        for _ in range(100):
            nursery.start_soon(start_pod)
    assert max(urgent) < 0.1
    async with staged(server, limit=RateLimit(50, 100)) as (client, _):
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(client.get, PODS, "a", "ns")
        assert trio.current_time() - start == pytest.approx(2, abs=0.1)


async def test_waiting_for_the_limit_is_not_part_of_the_deadline(autojump_clock: MockClock) -> None:
    async with staged(Script(json_response(pod())), limit=RateLimit(0.01, 1), timeout=5) as (client, _):
        await client.get(PODS, "a", "ns")
        await client.get(PODS, "a", "ns")
        assert trio.current_time() > 99


async def test_a_bookmark_of_an_object_with_required_fields_is_read(autojump_clock: MockClock) -> None:
    mark: dict[str, Any] = {"kind": "RuntimeClass", "metadata": {"resourceVersion": "9"}}
    mark["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
    async with (
        staged(Script(stream_of(event("BOOKMARK", mark)))) as (client, _),
        client.watch(RUNTIME_CLASSES, timeout=300, send_initial_events=True) as events,
    ):
        told = await anext(events)
    assert told.initial_events_end
    assert isinstance(told.object, RuntimeClass)
    assert told.object.metadata.resource_version == "9"


def test_errors_can_be_compared_and_evolved() -> None:
    error = CredentialsError("", "m")
    assert attrs.evolve(error, request="r").request == "r"
