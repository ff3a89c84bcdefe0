from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.http.messages import AnyResponse, HTTPError, Request, Response
from trikubelet.http.routing import ANY_METHOD, Route, Router


async def show(request: Request) -> AnyResponse:
    return Response(repr(dict(request.params)).encode())


async def other(_: Request) -> AnyResponse:
    return Response(b"other")


def router() -> Router:
    made = Router()
    made.add("GET", "/", other)
    made.add("GET", "/pods", other)
    made.add("POST", "/pods", show)
    made.add("GET", "/logs/{ns}/{name}", show)
    return made


async def route(method: str, path: str) -> bytes:
    response = await router()(Request(method, path))
    assert isinstance(response, Response)
    return response.body


async def test_names_in_braces_stand_for_one_decoded_segment_each() -> None:
    assert await route("GET", "/logs/a%20b/c%2F..%2Fd") == b"{'ns': 'a b', 'name': 'c/../d'}"


@pytest.mark.parametrize("path", ["/pods", "/pods/", "/p%6fds"])
async def test_a_slash_at_the_end_and_needless_encoding_make_no_difference(path: str) -> None:
    assert await route("GET", path) == b"other"


async def test_get_answers_head_and_other_methods_have_their_own_handler() -> None:
    assert await route("HEAD", "/") == b"other"
    assert await route("POST", "/pods") == b"{}"


@pytest.mark.parametrize("path", ["/nothing", "*", "/logs/a", "/logs//b", "/logs/a/b/c", "/pods//", "/logs/a%2Fb"])
async def test_an_unknown_path_is_not_found(path: str) -> None:
    with pytest.raises(HTTPError) as caught:
        await route("GET", path)
    assert caught.value.status == 404


async def test_a_wrong_method_is_told_the_right_ones() -> None:
    with pytest.raises(HTTPError, match="DELETE is not possible at /pods, only GET, POST") as caught:
        await route("DELETE", "/pods")
    assert caught.value.status == 405
    assert caught.value.headers == (("Allow", "GET, POST"),)


def test_one_route_cannot_be_there_twice() -> None:
    made = router()
    with pytest.raises(ValueError, match="GET /pods"):
        made.add("GET", "/pods", show)
    assert [(found.method, found.pattern) for found in made.routes][:2] == [("GET", "/"), ("GET", "/pods")]


@pytest.mark.parametrize("text", ["x", "1.5", "٣", "--1", "1" * 30, str(2**63)])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(HTTPError, match="expected a whole number"):
        Request("GET", "/", {"n": [text]}).number("n")


def test_query_parameters_have_their_first_value() -> None:
    request = Request("GET", "/", {"n": ["-7", "8"], "yes": [""], "no": ["False"]})
    assert (request.number("n"), request.number("absent")) == (-7, None)
    assert (request.flag("yes"), request.flag("no"), request.flag("absent")) == (True, False, False)
    with pytest.raises(HTTPError, match="true or false"):
        request.flag("n")


TAIL = Router([Route("GET", "/files/{kind}/{path:*}", show), Route(ANY_METHOD, "/any", other)])


@pytest.mark.parametrize(
    ("path", "tail"),
    [
        ("/files/a", ""),
        ("/files/a/", ""),
        ("/files/a/b", "b"),
        ("/files/a/b/c%20d/", "b/c d"),
        ("/files/a/...", "..."),
        ("/files/a/%2e%2e%2e", "..."),
    ],
)
def test_a_tail_is_the_decoded_rest_of_the_path(path: str, tail: str) -> None:
    assert TAIL.find("GET", path).params == {"kind": "a", "path": tail}


@pytest.mark.parametrize(
    "path",
    [
        "/files",
        "/files/a//",
        "/files/a//b",
        "/files/a/./b",
        "/files/a/%2e/b",
        "/files/a/../b",
        "/files/a/%2e%2E/b",
        "/files/a/b%2Fc",
        "/files/a/%2fetc",
        "/files/a/b%00",
        "/files//b",
    ],
)
def test_a_path_that_can_be_read_in_two_ways_has_no_tail(path: str) -> None:
    assert TAIL.find("GET", path).route is None


@given(st.text("ab./%2eEfF05\\", max_size=20))
def test_no_tail_leaves_its_folder(text: str) -> None:
    found = TAIL.find("GET", f"/files/a/{text}")
    if found.route is not None:
        parts = found.params["path"].split("/")
        assert ".." not in parts
        assert "." not in parts
        assert "\0" not in found.params["path"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "BREW"])
def test_a_route_for_any_method_answers_every_one(method: str) -> None:
    assert TAIL.find(method, "/any").route is not None


def test_what_no_route_answers_says_what_would_do() -> None:
    found = TAIL.find("PUT", "/files/a/b")
    assert (found.route, found.allowed, found.bucket) == (None, ("GET",), "other")
    assert TAIL.find("PUT", "/nothing").allowed == ()


@pytest.mark.parametrize(
    ("pattern", "bucket"),
    [("/exec/{a}/{b}", "exec"), ("/metrics", "metrics"), ("/metrics/cadvisor", "metrics/cadvisor"), ("/", "")],
)
def test_a_route_is_counted_by_the_beginning_of_its_pattern(pattern: str, bucket: str) -> None:
    route = Route("GET", pattern, other)
    assert (route.bucket, attrs.evolve(route, method="PUT").bucket) == (bucket, bucket)
    assert Router([route]).find("GET", pattern.format(a="x", b="y")).bucket == bucket
