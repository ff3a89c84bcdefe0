"""Requests of httpGet hooks and probes: the kubelet's table, and what Go's client makes of redirects."""

from __future__ import annotations

import attrs
import pytest

from tests.runtime.conftest import make_container
from trikubelet.api import ContainerPort, HTTPGetAction, HTTPHeader
from trikubelet.http.client.request import HTTPRequest, HTTPRequestError, http_get_request, redirected

CONTAINER = make_container(ports=(ContainerPort(name="web", container_port=8080),))


def request_for(pod_ip: str = "10.0.0.1", **action: object) -> HTTPRequest:
    action.setdefault("port", 80)
    return http_get_request(HTTPGetAction(**action), CONTAINER, pod_ip, "lifecycle")  # type: ignore[arg-type]


def with_headers(*headers: tuple[str, str]) -> list[tuple[str, str]]:
    request = request_for(http_headers=tuple(HTTPHeader(name=name, value=value) for name, value in headers))
    return request.header_lines()


@pytest.mark.parametrize(
    ("scheme", "path", "url", "target"),
    [
        ("http", "", "http://10.0.0.1:80", "/"),
        ("HTTPS", "/path", "https://10.0.0.1:80/path", "/path"),
        ("HTTP", "?foo", "http://10.0.0.1:80?foo", "/?foo"),
        ("https", "/path?bar", "https://10.0.0.1:80/path?bar", "/path?bar"),
        ("", "path", "http://10.0.0.1:80/path", "/path"),
        ("", "/a b/%2F/ä?q=a b&x=%20#part", "http://10.0.0.1:80/a%20b/%2F/%C3%A4?q=a%20b&x=%20", None),
        ("", "http://elsewhere:99/path", "http://10.0.0.1:80/path", "/path"),
        ("", "/100%?really", "http://10.0.0.1:80/100%25%3Freally", "/100%25%3Freally"),
        ("", "/a\nb", "http://10.0.0.1:80/a%0Ab", "/a%0Ab"),
    ],
)
def test_a_path_becomes_a_url(scheme: str, path: str, url: str, target: str | None) -> None:
    request = request_for(scheme=scheme, path=path)
    assert request.url == url
    if target is not None:
        assert request.target == target


def test_the_host_is_the_actions_or_else_the_pods_address() -> None:
    assert request_for(host="example").url == "http://example:80"
    assert request_for(pod_ip="fd00::1").url == "http://[fd00::1]:80"


@pytest.mark.parametrize(("port", "number"), [(8081, 8081), ("web", 8080), ("9090", 9090)])
def test_a_port_is_a_number_or_a_name_of_this_container(port: int | str, number: int) -> None:
    assert request_for(port=port).port == number


@pytest.mark.parametrize(
    ("port", "problem"),
    [(0, "invalid port number: 0"), (65536, "invalid port number: 65536"), ("-1", "invalid port number: -1")],
)
def test_a_port_out_of_range_is_refused(port: int | str, problem: str) -> None:
    with pytest.raises(HTTPRequestError, match=problem):
        request_for(port=port)


def test_a_port_that_the_container_does_not_name_is_refused() -> None:
    with pytest.raises(HTTPRequestError, match="port metrics not found"):
        request_for(port="metrics")


def test_without_headers_the_usual_ones_are_sent() -> None:
    assert with_headers() == [
        ("Host", "10.0.0.1:80"),
        ("User-Agent", "kube-lifecycle/1.36"),
        ("Accept", "*/*"),
        ("Connection", "close"),
    ]


def test_given_headers_win() -> None:
    lines = with_headers(("HOST", "shop.example"), ("user-agent", "mine"), ("accept", "a"), ("Accept", "b"))
    assert lines == [
        ("Host", "shop.example"),
        ("User-Agent", "mine"),
        ("Accept", "a"),
        ("Accept", "b"),
        ("Connection", "close"),
    ]


def test_an_empty_header_takes_a_default_away() -> None:
    assert with_headers(("User-Agent", ""), ("Accept", "")) == [("Host", "10.0.0.1:80"), ("Connection", "close")]


def test_names_are_written_as_go_writes_them_and_values_stay_on_their_line() -> None:
    assert ("X-Forwarded-For", "a  b") in with_headers(("X-forwarded-FOR", " a\r\nb "))


def test_headers_that_belong_to_the_protocol_are_not_the_specs_to_set() -> None:
    names = [name for name, _ in with_headers(("Content-Length", "5"), ("transfer-encoding", "chunked"))]
    assert names == ["Host", "User-Agent", "Accept", "Connection"]


@pytest.mark.parametrize(
    ("status", "location", "url"),
    [
        (302, "/next?x=1#part", "http://10.0.0.1:80/next?x=1"),
        (301, "next", "http://10.0.0.1:80/dir/next"),
        (307, "http://10.0.0.1:8443/", "http://10.0.0.1:8443/"),
        (308, "https://10.0.0.1/", "https://10.0.0.1:443/"),
        (303, "//10.0.0.1:81", "http://10.0.0.1:81"),
    ],
)
def test_a_redirect_to_the_same_host_is_followed(status: int, location: str, url: str) -> None:
    following = redirected(request_for(path="/dir/page"), status, location)
    assert following is not None
    assert following.url == url


@pytest.mark.parametrize(
    ("status", "location"), [(302, "http://10.0.0.2/"), (302, ""), (304, "/"), (200, "/"), (302, "ftp://else/")]
)
def test_any_other_answer_is_taken_as_it_is(status: int, location: str) -> None:
    assert redirected(request_for(), status, location) is None


@pytest.mark.parametrize("location", ["http://10.0.0.1:99999/", "ftp://10.0.0.1/"])
def test_a_redirect_that_cannot_be_followed_is_an_error(location: str) -> None:
    with pytest.raises(HTTPRequestError):
        redirected(request_for(), 302, location)


def test_a_chosen_host_name_survives_relative_redirects_only() -> None:
    request = attrs.evolve(request_for(), host_header="shop.example")
    for location, kept in (("/next", "shop.example"), ("http://10.0.0.1/next", "")):
        following = redirected(request, 302, location)
        assert following is not None
        assert following.host_header == kept


def test_a_redirect_tells_where_it_came_from() -> None:
    following = redirected(request_for(path="/dir/page"), 302, "other")
    assert following is not None
    assert ("Referer", request_for(path="/dir/page").url) in following.header_lines()


def test_a_redirect_from_https_to_http_does_not_tell_it() -> None:
    request = attrs.evolve(request_for(), scheme="https")
    following = redirected(request, 302, f"http://{request.address}/")
    assert following is not None
    assert "Referer" not in dict(following.header_lines())


def test_the_specs_own_referer_stays() -> None:
    request = attrs.evolve(request_for(), headers=(("Referer", "mine"),))
    following = redirected(request, 302, "/other")
    assert following is not None
    assert [value for name, value in following.header_lines() if name == "Referer"] == ["mine"]
