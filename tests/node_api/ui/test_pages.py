from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.node_api.ui.asking import NotingApi, Sink, ask
from trikubelet.http.messages import HTTPError, Response
from trikubelet.node_api.ui.pages import _TYPES, SECURITY, _Events, ui_pages

STATIC = resources.files("trikubelet.node_api.ui") / "static"


async def test_every_file_that_the_page_names_is_there_and_no_other() -> None:
    page = ui_pages(NotingApi(), "ui")
    texts = {file.name: file.read_text() for file in STATIC.iterdir()}
    named = set(re.findall(r'(?:src|href)="([^"]+)"|from "\./([^"]+)"', "".join(texts.values())))
    assert {one or other for one, other in named} | {"index.html"} == set(texts) == set(_TYPES)
    for name, content_type in _TYPES.items():
        answer = await ask(page, f"/ui/{name}")
        assert (answer.status, answer.content_type, answer.body.decode()) == (200, content_type, texts[name])


@pytest.mark.parametrize("path", ["/ui/", "/ui/page.js", "/ui/api/journal", "/ui/nothing", "/elsewhere"])
async def test_every_answer_has_the_policy(path: str) -> None:
    headers = dict((await ask(ui_pages(NotingApi(), "ui"), path)).headers)
    assert headers.items() >= dict(SECURITY).items()
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy["script-src"], policy["style-src"], policy["connect-src"]} == {"'self'"}
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"


class Inline(HTMLParser):
    """Finds what the policy would forbid."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.found += [name for name in names if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)
        self.found += [url for url in (names.get("src"), names.get("href")) if url and re.match(r"\w+:|//", url)]


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    inline = Inline()
    inline.feed((STATIC / "index.html").read_text())
    assert inline.found == []


def test_no_script_makes_html_of_texts() -> None:
    scripts = "".join(file.read_text() for file in STATIC.iterdir() if file.name.endswith(".js"))
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", scripts) == []


async def test_the_address_of_the_page_ends_with_a_slash() -> None:
    answer = await ask(ui_pages(NotingApi(), "ui"), "/ui")
    assert (answer.status, dict(answer.headers)["Location"]) == (303, "/ui/")


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("api/journal", "/journal?watch=1"),
        ("api/manifests", "/manifests?watch=1"),
        ("api/pods/default/web", "/pods/default/web"),
        ("api/pods/default/web/why", "/pods/default/web/why"),
        ("api/tasks/uid-1", "/debug/tasks?pod=uid-1&format=json"),
        ("api/logs/default/web/main", "/containerLogs/default/web/main?follow=true&tailLines=200"),
        ("api/pods/default/..%2F..%2Fimages", "/pods/default/..%2F..%2Fimages"),
        ("api/pods/%3Cscript%3E/a%3Fb%23c", "/pods/%3Cscript%3E/a%3Fb%23c"),
        ("api/tasks/a%26format=text", "/debug/tasks?pod=a%26format%3Dtext&format=json"),
    ],
)
async def test_what_the_page_asks_is_asked_of_the_agent(path: str, asked: str) -> None:
    api = NotingApi()
    assert (await ask(ui_pages(api, "ui"), f"/ui/{path}")).status == 200
    assert api.asked == [f"GET {asked}"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(method: str) -> None:
    api = NotingApi()
    for path in ("api/pods/default/web", "api/journal", "api/pods/default/web/restart", "manifests/a"):
        assert (await ask(ui_pages(api, "ui"), f"/ui/{path}", method=method)).status in (404, 405)
    assert api.asked == []


async def test_the_journal_is_a_stream_of_events() -> None:
    api = NotingApi([b'{"a":1}\n{"b"', b":2}\n", b'{"c":3}\n'])
    answer = await ask(ui_pages(api, "ui"), "/ui/api/journal")
    assert answer.content_type == "text/event-stream; charset=utf-8"
    assert answer.body == b'retry: 1000\n\ndata: {"a":1}\n\ndata: {"b":2}\n\ndata: {"c":3}\n\n'


@given(st.lists(st.dictionaries(st.text(), st.text()), max_size=5), st.lists(st.integers(0, 200), max_size=5))
async def test_events_are_the_lines_however_they_come(values: list[dict[str, str]], cuts: list[int]) -> None:
    data = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    sink = Sink()
    events = _Events(sink)
    for begin, end in itertools.pairwise(places):
        await events.write(data[begin:end])
    found = [event.removeprefix("data: ") for event in re.split("\r\n\r\n|\n\n|\r\r", sink.data.decode())[1:-1]]
    assert [json.loads(event) for event in found] == values


async def test_an_agent_that_does_not_answer_is_an_error() -> None:
    api = NotingApi([], HTTPError(502, "no agent answers"))
    with pytest.raises(HTTPError, match="no agent answers"):
        await ask(ui_pages(api, "ui"), "/ui/api/journal")


async def test_an_error_that_comes_whole_is_passed_on() -> None:
    async def refuses(_: object) -> Response:
        return Response(b"off\n", 405)

    assert (await ask(ui_pages(refuses, "ui"), "/ui/api/journal")).status == 405
