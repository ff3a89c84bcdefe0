"""The live page as an agent serves it: on loopback for those with a link, elsewhere for whom the node knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
import trio
from click.testing import CliRunner

from tests.agent.serving import POD, UID, Answer, Caller, Served, client_context, served
from tests.agent.sim_node import static_pod
from tests.agent.test_access import introduce
from tests.node_api.auth.people import client
from trikubelet.agent.server import ServerError
from trikubelet.agent.ui import KEY_FILE, UiError, guarded_port, kept_sessions
from trikubelet.cli.run import run
from trikubelet.config.kubelet_configuration import Authorization

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK: Final = ("127.0.0.1", 0)
ELSEWHERE: Final = ("0.0.0.0", 0)
ALONE: Final[dict[str, Any]] = {"cluster": False, "enable_server": False, "read_only_port": 0}


def visitor(node: Served) -> Caller:
    async def dial() -> trio.abc.Stream:
        return await trio.open_tcp_stream(*node.server.addresses["ui"])

    return Caller(dial, host="127.0.0.1")


async def link_to(node: Served) -> str:
    answer = await node.caller("socket").ask("POST", "/ui/link")
    assert answer.status == 200, answer.text
    url: str = json.loads(answer.text)["url"]
    return url


async def enter(node: Served, who: Caller) -> tuple[str, str]:
    """Where the page is, and the cookie for it."""
    url = urlsplit(await link_to(node))
    assert url.port == node.server.addresses["ui"][1]
    entered = await who.ask("GET", f"{url.path}?{url.query}")
    assert entered.status == 200
    return url.path, entered.headers["set-cookie"].partition(";")[0]


async def test_the_page_shows_what_the_agent_knows(tmp_path: Path) -> None:
    async with served(tmp_path, ui_address=LOOPBACK, **ALONE) as node:
        who = visitor(node)
        place, cookie = await enter(node, who)

        async def ask(path: str) -> Answer:
            return await who.ask("GET", place + path, ("Cookie", cookie))

        assert "<title>Pods" in (await ask("")).text
        pod = json.loads((await ask(f"api/pods/default/{POD}")).text)
        assert pod["metadata"]["uid"] == UID
        why = json.loads((await ask(f"api/pods/default/{POD}/why")).text)
        assert why["cause"] == "nothing: the pod is Running and ready"
        tree = json.loads((await ask(f"api/tasks/{UID}")).text)
        assert tree["name"] == f"pod {POD}_default {UID}"
        assert (await ask("api/pods/default/other")).status == 404
        assert (await ask(f"api/logs/default/{POD}/other")).status == 404


async def test_the_stream_begins_with_all_and_goes_on_with_news(tmp_path: Path) -> None:
    async with served(tmp_path, ui_address=LOOPBACK, **ALONE) as node:
        place, cookie = await enter(node, visitor(node))
        stream = await trio.open_tcp_stream(*node.server.addresses["ui"])
        request = f"GET {place}api/journal HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"
        await stream.send_all(request.encode())
        read = b""
        while b'"SNAPSHOT"' not in read:
            read += await stream.receive_some()
        assert b"text/event-stream" in read
        node.source.put(static_pod("new"))
        while b'data: {"type":"ENTRY"' not in read or b"default/new-node" not in read:
            more = await stream.receive_some()
            assert more
            read += more
        await stream.aclose()


async def test_who_has_no_link_sees_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, ui_address=LOOPBACK, **ALONE) as node:
        place = urlsplit(await link_to(node)).path
        for path in ("/", "/pods", "/ui/link", place, f"{place}api/journal", f"{place}?token=0"):
            for method in ("GET", "POST"):
                assert await visitor(node).status(method, path) == 403


async def test_a_browser_stays_in_when_the_agent_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    before = kept_sessions(tmp_path / "root")
    key = tmp_path / "root" / KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    assert kept_sessions(tmp_path / "root").cookie() == before.cookie()
    key.write_bytes(b"half")
    assert kept_sessions(tmp_path / "root").cookie() != before.cookie(), "a damaged key is none"
    key.unlink()
    key.mkdir()
    with pytest.raises(UiError, match="cannot keep the key of the page"):
        kept_sessions(tmp_path / "root")


async def test_without_the_flag_there_is_no_page(tmp_path: Path) -> None:
    async with served(tmp_path, **ALONE) as node:
        assert "ui" not in node.server.addresses
        assert await node.caller("socket").status("POST", "/ui/link") == 404
        assert not (tmp_path / "root" / KEY_FILE).exists()


async def test_elsewhere_the_page_is_for_whom_the_node_knows(tmp_path: Path) -> None:
    async with served(tmp_path, ui_address=ELSEWHERE) as node:
        assert node.api is not None
        introduce(node.api, "watcher", ["proxy"])
        introduce(node.api, "collector", ["metrics", "pods", "stats"])
        number = node.server.addresses["ui"][1]

        def who(name: str, host: str = "simulated") -> Caller:
            certificate = client(name) if name else None
            context = client_context(tmp_path, certificate)

            async def dial() -> trio.abc.Stream:
                stream = await trio.open_tcp_stream("127.0.0.1", number)
                return trio.SSLStream(stream, context, https_compatible=True)

            return Caller(dial, host=host)

        for path in ("/", "/ui/", "/ui/page.js", "/ui/api/journal", f"/ui/api/pods/default/{POD}", "/pods", "/ui/link"):
            assert await who("").status("GET", path) == 401
            assert await who("collector").status("GET", path) in (403, 404), path
        watcher = who("watcher")
        assert "<title>Pods" in (await watcher.ask("GET", "/ui/")).text
        assert await watcher.status("GET", f"/ui/api/pods/default/{POD}") == 200
        assert await watcher.status("GET", "/pods") == 404, "the rest of the API is not there"
        assert await who("watcher", host="127.0.0.1:1").status("GET", "/ui/") == 200
        assert await who("watcher", host="evil.example").status("GET", "/ui/") == 421
        assert await node.caller("socket").status("POST", "/ui/link") == 404, "there are no links to it"


async def test_elsewhere_there_is_no_page_where_nobody_can_be_told_from_others(tmp_path: Path) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(ServerError, match="nobody's right to it can be checked"), flatten_subgroups=True
    ):
        async with served(tmp_path, ui_address=ELSEWHERE, **ALONE):
            pass
    with pytest.raises(UiError, match=r"cannot serve the page on 10\.0\.0\.1"):
        guarded_port(("10.0.0.1", 80), None, None, None, [])  # type: ignore[arg-type]


async def test_an_agent_that_lets_all_in_does_so_here_too(tmp_path: Path) -> None:
    """It was told to: its page is no more than its port."""
    everybody: dict[str, Any] = {"authorization": Authorization(mode="AlwaysAllow")}
    async with served(tmp_path, ui_address=ELSEWHERE, **everybody) as node:
        assert "ui" in node.server.addresses


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("8080", "expected an IP address and a port"),
        ("node:8080", "expected an IP address and a port"),
        ("127.0.0.1", "expected an IP address and a port"),
        ("127.0.0.1:", "expected a port from 0 to 65535"),
        ("127.0.0.1:65536", "expected a port from 0 to 65535"),
        ("127.0.0.1:-1", "expected a port from 0 to 65535"),
        ("[::1]:²", "expected a port from 0 to 65535"),
    ],
)
def test_an_address_that_is_none(text: str, problem: str) -> None:
    result = CliRunner().invoke(run, ["--ui", text])
    assert result.exit_code == 2
    assert problem in " ".join(result.output.split())
