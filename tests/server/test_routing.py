from __future__ import annotations

import pytest

from trikubelet.server.messages import AnyResponse, HTTPError, Request, Response
from trikubelet.server.routing import Router


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
