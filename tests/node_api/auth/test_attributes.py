from __future__ import annotations

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trikubelet.http.messages import AnyResponse, Request, Response
from trikubelet.http.routing import Router
from trikubelet.node_api.auth.attributes import Attributes, request_attributes, subresources

# The kubelet's own table (`AuthzTestCases` in pkg/kubelet/server/auth_test.go), fine-grained.
KUBELET = {
    "/attach/{podNamespace}/{podID}/{containerName}": ["proxy"],
    "/attach/{podNamespace}/{podID}/{uid}/{containerName}": ["proxy"],
    "/checkpoint/{podNamespace}/{podID}/{containerName}": ["checkpoint"],
    "/configz": ["configz", "proxy"],
    "/flagz": ["configz"],
    "/statusz": ["statusz"],
    "/containerLogs/{podNamespace}/{podID}/{containerName}": ["proxy"],
    "/debug/flags/v": ["proxy"],
    "/debug/pprof/{subpath}": ["proxy"],
    "/exec/{podNamespace}/{podID}/{containerName}": ["proxy"],
    "/exec/{podNamespace}/{podID}/{uid}/{containerName}": ["proxy"],
    "/healthz": ["healthz", "proxy"],
    "/healthz/log": ["healthz", "proxy"],
    "/healthz/ping": ["healthz", "proxy"],
    "/healthz/syncloop": ["healthz", "proxy"],
    "/logs/": ["log"],
    "/logs/{logpath}": ["log"],
    "/metrics": ["metrics"],
    "/metrics/slis": ["metrics"],
    "/metrics/cadvisor": ["metrics"],
    "/metrics/probes": ["metrics"],
    "/metrics/resource": ["metrics"],
    "/pods/": ["pods", "proxy"],
    "/portForward/{podNamespace}/{podID}": ["proxy"],
    "/portForward/{podNamespace}/{podID}/{uid}": ["proxy"],
    "/run/{podNamespace}/{podID}/{containerName}": ["proxy"],
    "/run/{podNamespace}/{podID}/{uid}/{containerName}": ["proxy"],
    "/runningpods/": ["pods", "proxy"],
    "/stats/": ["stats"],
    "/stats/summary": ["stats"],
}


@pytest.mark.parametrize(("path", "expected"), KUBELET.items())
def test_every_path_of_the_kubelet_has_its_subresources(path: str, expected: list[str]) -> None:
    assert [found.subresource for found in request_attributes("GET", path, "a")] == expected


@pytest.mark.parametrize(
    ("method", "verb"),
    [
        ("POST", "create"),
        ("GET", "get"),
        ("PUT", "update"),
        ("PATCH", "patch"),
        ("DELETE", "delete"),
        ("HEAD", ""),
        ("OPTIONS", ""),
        ("get", ""),
    ],
)
def test_the_method_is_the_verb_and_an_unusual_one_is_none(method: str, verb: str) -> None:
    assert request_attributes(method, "/stats", "a") == (Attributes(verb, "stats", "a", "/stats"),)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "//",
        "*",
        "//pods",
        "/podsx",
        "/PODS",
        "/pods%2Fx",
        "/pods%2f",
        "/%2Fpods",
        "/pods;x",
        "/.",
        "/stat",
        "/%",
    ],
)
def test_what_only_looks_like_a_known_path_needs_the_right_to_everything(path: str) -> None:
    assert subresources(path) == ("proxy",)


@pytest.mark.parametrize("path", ["/p%6fds", "/%70%6F%64%73/", "/pods", "/pods/", "/pods/x/y", "/pods//", "pods"])
def test_needless_encoding_and_slashes_at_the_end_make_no_difference(path: str) -> None:
    assert subresources(path) == ("pods", "proxy")


def router() -> Router:
    async def show(request: Request) -> AnyResponse:
        return Response(b"")

    made = Router()
    for path in KUBELET:
        if path.rstrip("/") not in [route.pattern for route in made.routes]:
            made.add("GET", path.rstrip("/"), show)
    return made


ROUTER = router()
WORDS = sorted({word for path in KUBELET for word in path.split("/") if not word.startswith("{")})
SEGMENTS = st.one_of(
    st.sampled_from([*WORDS, ".", "..", "%2e%2e", "%2F", "..%2f", "%00", "a", "PODS", ";", "%"]),
    st.sampled_from(WORDS).map(lambda word: "".join(f"%{ord(char):02x}" for char in word)),
    st.text(max_size=5).map(quote),
)


def encoded_somehow(text: str, draw: st.DrawFn) -> str:
    """The same text with some of its characters percent-encoded."""
    pieces = []
    for char in text:
        form = draw(st.sampled_from(["plain", "upper", "lower"]))
        pieces.append({"plain": char, "upper": f"%{ord(char):02X}", "lower": f"%{ord(char):02x}"}[form])
    return "".join(pieces)


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str]:
    """A path of the kubelet, and one of the ways to write it."""
    path = draw(st.sampled_from(sorted(KUBELET)))
    words = [word if not word.startswith("{") else "x" for word in path.strip("/").split("/")]
    spelled = "/" + "/".join(encoded_somehow(word, draw) for word in words)
    return path, spelled + draw(st.sampled_from(["", "/"]))


@given(spellings())
def test_however_a_path_is_written_it_needs_the_same_rights(pair: tuple[str, str]) -> None:
    path, spelled = pair
    assert list(subresources(spelled)) == KUBELET[path]


@given(st.lists(SEGMENTS, max_size=6).map(lambda parts: "/" + "/".join(parts)) | st.text(max_size=30))
def test_whatever_the_router_finds_needs_the_rights_of_its_route(path: str) -> None:
    attributes = request_attributes("GET", path, "a")
    assert attributes
    route = ROUTER.find("GET", path).route
    if route is not None:
        assert [found.subresource for found in attributes] == list(subresources(route.pattern))


@given(st.text(max_size=40))
def test_no_path_is_without_rights_and_only_the_first_segment_counts(path: str) -> None:
    found = subresources(path)
    assert found
    assert found == subresources("/" + path.removeprefix("/").partition("/")[0])
    first = unquote(path.removeprefix("/").partition("/")[0])
    assert found == ("proxy",) or (first.isascii() and first.isalpha())


def test_the_size_counts_what_the_client_decides() -> None:
    assert Attributes("get", "stats", "n" * 7, "p" * 100).size == 3 + len("v1nodes") + 5 + 7 + 100
