from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.node_api.ui.asking import NotingApi, ask
from trikubelet.http.messages import Request, Response
from trikubelet.node_api.ui.access import LINK_LIFETIME, MOST_LINKS, Sessions, loopback_ui, node_ui

if TYPE_CHECKING:
    from trio.testing import MockClock

KEY = bytes(range(32))


@attrs.define
class Page:
    sessions: Sessions = attrs.field(factory=lambda: Sessions(KEY))
    api: NotingApi = attrs.field(factory=NotingApi)

    async def ask(self, path: str, *, method: str = "GET", host: str = "127.0.0.1:80", cookie: str = "") -> Response:
        return await ask(loopback_ui(self.api, self.sessions), path, method=method, host=host, cookie=cookie)

    @property
    def root(self) -> str:
        return f"/{self.sessions.place}/"

    async def enter(self) -> str:
        """The cookie, as a browser shows it."""
        entered = await self.ask(self.sessions.link())
        assert entered.status == 200
        return dict(entered.headers)["Set-Cookie"].partition(";")[0]


async def test_a_link_gives_a_cookie_and_the_cookie_gives_the_page() -> None:
    page = Page()
    entered = await page.ask(page.sessions.link())
    assert entered.status == 200
    cookie, *attributes = dict(entered.headers)["Set-Cookie"].split("; ")
    assert attributes == [f"Path={page.root}", "HttpOnly", "SameSite=Strict"]
    assert b'content="0;url=./"' in entered.body
    shown = await page.ask(page.root, cookie=f"other=1; {cookie}")
    assert shown.status == 200
    assert b"<title>Pods" in shown.body


async def test_a_link_is_good_for_one_time() -> None:
    page = Page()
    link = page.sessions.link()
    assert (await page.ask(link)).status == 200
    again = await page.ask(link)
    assert again.status == 403
    assert b"has been used" in again.body
    assert "Set-Cookie" not in dict(again.headers)


async def test_who_has_been_let_in_may_open_an_old_link() -> None:
    page = Page()
    cookie = await page.enter()
    link = page.sessions.link()
    answer = await page.ask(link, cookie=cookie)
    assert (answer.status, dict(answer.headers)["Location"]) == (303, page.root)
    assert (await page.ask(link)).status == 200, "it was not used up"


async def test_a_link_is_good_for_a_while(autojump_clock: MockClock) -> None:
    page = Page()
    old, young = page.sessions.link(), page.sessions.link()
    await trio.sleep(LINK_LIFETIME - 1)
    assert (await page.ask(young)).status == 200
    await trio.sleep(2)
    assert (await page.ask(old)).status == 403


async def test_a_look_ahead_does_not_use_a_link_up() -> None:
    page = Page()
    link = page.sessions.link()
    assert (await page.ask(link, method="HEAD")).status == 403
    assert (await page.ask(link)).status == 200


async def test_links_that_nobody_uses_are_not_kept_for_ever() -> None:
    page = Page()
    first = page.sessions.link()
    for _ in range(MOST_LINKS):
        last = page.sessions.link()
    assert (await page.ask(first)).status == 403
    assert (await page.ask(last)).status == 200


@pytest.mark.parametrize("path", ["", "page.js", "api/journal", "api/pods/a/b", "api/logs/a/b/c", "nothing"])
async def test_without_a_cookie_there_is_nothing(path: str) -> None:
    page = Page()
    for cookie in ("", "trikubelet-ui=", "trikubelet-ui=0", "trikubelet-ui=é", "=;;,", f"other={'0' * 64}"):
        answer = await page.ask(page.root + path, cookie=cookie)
        assert (answer.status, answer.content_type) == (403, "text/plain; charset=utf-8")
        assert b"trikubelet web" in answer.body
    assert page.api.asked == []


async def test_the_cookie_of_another_key_is_of_no_use() -> None:
    cookie = await Page().enter()
    page = Page(Sessions(bytes(32)))
    assert (await page.ask(page.root, cookie=cookie)).status == 403


async def test_who_keeps_the_key_keeps_the_sessions() -> None:
    cookie = await Page().enter()
    page = Page(Sessions(KEY))
    assert (await page.ask(page.root, cookie=cookie)).status == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9000", "localhost:1", "LOCALHOST", "[::1]:80", "127.5.0.1"])
async def test_the_page_of_this_machine(host: str) -> None:
    page = Page()
    cookie = await page.enter()
    assert (await page.ask(page.root, host=host, cookie=cookie)).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "[::1", "a@localhost@b"],
)
async def test_a_name_that_was_rebound_gets_nothing(host: str) -> None:
    page = Page()
    cookie, link = await page.enter(), page.sessions.link()
    for target in (page.root, link, f"{page.root}api/journal"):
        assert (await page.ask(target, host=host, cookie=cookie)).status == 421
    assert (await page.ask(link)).status == 200, "the link was not used up by it"
    assert page.api.asked == []


@pytest.mark.parametrize(
    ("host", "status"),
    [("node-1:9", 200), ("NODE-1", 200), ("10.0.0.1", 200), ("evil.example", 421), ("", 421), ("[", 421)],
)
async def test_behind_the_nodes_authentication_the_node_has_its_names(host: str, status: int) -> None:
    page = node_ui(NotingApi(), ["Node-1", ""])
    assert (await ask(page, "/ui/", host=host)).status == status


async def test_behind_the_nodes_authentication_the_bare_address_leads_to_the_page() -> None:
    answer = await ask(node_ui(NotingApi(), []), "/")
    assert (answer.status, dict(answer.headers)["Location"]) == (303, "/ui/")


@given(st.text(max_size=50), st.text(max_size=50))
def test_senseless_headers_are_refused(host: str, cookie: str) -> None:
    async def refused() -> None:
        page = Page()
        answer = await page.ask(page.root, host=host, cookie=cookie)
        assert answer.status in (403, 421)

    trio.run(refused)


def test_the_place_cannot_be_guessed_and_says_nothing_of_the_cookie() -> None:
    sessions = Sessions(KEY)
    assert re.fullmatch("[0-9a-f]{16}", sessions.place)
    assert sessions.place not in sessions.cookie()[1].partition(";")[0]
    assert not sessions.knows(Request("GET", "/", headers={"cookie": f"trikubelet-ui={sessions.place}"}))
