from __future__ import annotations

import gzip
import os
import stat
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.node_api.handlers.stage import ask, talk
from tests.patience import PATIENCE
from trikubelet.http.routing import Route, Router
from trikubelet.node_api.handlers import node_logs
from trikubelet.node_api.handlers.node_logs import NodeLogHandlers

MODIFIED = int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp())
SECRET = "the secret outside"


@attrs.frozen
class Node:
    """A log folder with something beside it."""

    logs: Path

    def router(self, *, queries: bool = False) -> Router:
        handlers = NodeLogHandlers(queries=queries, folder=self.logs)
        return Router([Route("GET", "/logs/{path:*}", handlers.logs, ("log",))])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    logs = tmp_path / "log"
    (logs / "pods" / "a").mkdir(parents=True)
    (logs / "containers").mkdir()
    (logs / "sys log").write_text("0123456789")
    os.utime(logs / "sys log", (MODIFIED, MODIFIED))
    (logs / "pods" / "a" / "0.log").write_text("of a pod\n")
    (logs / "containers" / "a.log").symlink_to(logs / "pods" / "a" / "0.log")
    (logs / "relative").symlink_to("pods/a")
    (logs / "binary").write_bytes(b"\x7fELF\0\0")
    (logs / "old.gz").write_bytes(gzip.compress(b"x"))
    (tmp_path / "secret").write_text(SECRET)
    return Node(logs)


async def test_a_folder_is_a_page_of_links(node: Node) -> None:
    (node.logs / '<b>"&').write_text("")
    answer = await ask(node.router(), "/logs/")
    assert (answer.status, answer.content_type) == (200, "text/html; charset=utf-8")
    assert answer.text.startswith('<pre>\n<a href="./%3Cb%3E%22%26">&lt;b&gt;&quot;&amp;</a>\n')
    assert '<a href="./pods/">pods/</a>\n' in answer.text
    assert '<a href="./sys%20log">sys log</a>\n' in answer.text
    assert answer.text.endswith("</pre>\n")


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/logs", "logs/"),
        ("/logs/pods", "pods/"),
        ("/logs/pods/a?x=1", "a/?x=1"),
        ("/logs/sys%20log/", "../sys%20log"),
        ("/logs/relative", "relative/"),
    ],
)
async def test_folders_end_with_a_slash_and_files_do_not(node: Node, path: str, location: str) -> None:
    answer = await ask(node.router(), path)
    assert (answer.status, answer.headers["Location"]) == (301, location)


@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/logs/sys%20log", "text/plain; charset=utf-8", b"0123456789"),
        ("/logs/pods/a/0.log", "text/plain; charset=utf-8", b"of a pod\n"),
        ("/logs/containers/a.log", "text/plain; charset=utf-8", b"of a pod\n"),
        ("/logs/relative/0.log", "text/plain; charset=utf-8", b"of a pod\n"),
        ("/logs/binary", "application/octet-stream", b"\x7fELF\0\0"),
    ],
)
async def test_a_file_is_shown_also_over_links_that_stay_inside(
    node: Node, path: str, content_type: str, body: bytes
) -> None:
    answer = await ask(node.router(), path)
    assert (answer.status, answer.content_type, answer.body) == (200, content_type, body)
    assert answer.headers["Content-Length"] == str(len(body))


async def test_a_compressed_file_stays_as_it_is(node: Node) -> None:
    answer = await ask(node.router(), "/logs/old.gz")
    assert (answer.content_type, gzip.decompress(answer.body)) == ("application/gzip", b"x")
    assert "Content-Encoding" not in answer.headers


@pytest.mark.parametrize(
    ("wanted", "status", "body", "range_"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=2-", 206, b"23456789", "bytes 2-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, b"invalid range\n", "bytes */10"),
        ("bytes=-0", 416, b"invalid range\n", "bytes */10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        (f"bytes=0-{'9' * 5000}", 200, b"0123456789", None),
    ],
)
async def test_a_range_of_a_file(node: Node, wanted: str, status: int, body: bytes, range_: str | None) -> None:
    answer = await ask(node.router(), "/logs/sys%20log", headers={"range": wanted})
    assert (answer.status, answer.body, answer.headers.get("Content-Range")) == (status, body, range_)


@pytest.mark.parametrize(("later", "status"), [(0, 304), (60, 304), (-1, 200)])
async def test_a_file_that_the_client_has_is_not_sent_again(node: Node, later: int, status: int) -> None:
    date = format_datetime(datetime.fromtimestamp(MODIFIED + later, UTC), usegmt=True)
    answer = await ask(node.router(), "/logs/sys%20log", headers={"if-modified-since": date})
    assert (answer.status, answer.headers["Last-Modified"]) == (status, "Fri, 02 Jan 2026 03:04:05 GMT")


@pytest.mark.parametrize(("later", "status"), [(0, 206), (1, 200)])
async def test_a_range_holds_only_for_the_file_that_the_client_has(node: Node, later: int, status: int) -> None:
    date = format_datetime(datetime.fromtimestamp(MODIFIED + later, UTC), usegmt=True)
    answer = await ask(node.router(), "/logs/sys%20log", headers={"if-range": date, "range": "bytes=0-1"})
    assert answer.status == status


@pytest.mark.parametrize("date", ["", "yesterday", "Fri, 99 Jan 2026", "0"])
async def test_a_date_that_is_none_says_nothing(node: Node, date: str) -> None:
    assert (await ask(node.router(), "/logs/sys%20log", headers={"if-modified-since": date})).status == 200


async def test_an_absurd_time_of_a_file_does_no_harm(node: Node) -> None:
    os.utime(node.logs / "sys log", (-(10**9), -(10**9)))
    assert (await ask(node.router(), "/logs/sys%20log")).headers["Last-Modified"].endswith("1970 00:00:00 GMT")


async def test_over_a_connection_head_and_length_are_right(node: Node) -> None:
    request = b"%s /logs/sys%%20log HTTP/1.1\r\nHost: n\r\n%s\r\n"
    both = request % (b"HEAD", b"") + request % (b"GET", b"Connection: close\r\n")
    received = await talk(node.router(), both)
    first, second = received.split(b"HTTP/1.1 200")[1:]
    assert b"Content-Length: 10" in first
    assert first.endswith(b"\r\n\r\n")
    assert second.endswith(b"\r\n\r\n0123456789")


async def test_a_file_that_shrinks_while_it_is_sent_ends_the_connection(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shrinking(_: int, offset: int, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return b"0123"[offset:][:most]

    monkeypatch.setattr("trikubelet.node_api.node_files.read_at", shrinking)
    received = await talk(node.router(), b"GET /logs/sys%20log HTTP/1.1\r\nHost: n\r\n\r\n")
    assert b"Content-Length: 10\r\n" in received
    assert received.endswith(b"\r\n\r\n0123")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/logs/", "/logs/sys%20log", "/logs/sys%20log/", "/logs/x", "/logs/pods", "/logs/up"])
async def test_nothing_stays_open(node: Node, method: str, path: str) -> None:
    (node.logs / "up").symlink_to("../secret")
    await ask(node.router(), path, method)
    before = open_files()
    for headers in ({}, {"range": "bytes=99-"}, {"if-modified-since": "Fri, 02 Jan 2026 03:04:05 GMT"}):
        await ask(node.router(), path, method, headers=headers)
    assert open_files() == before


# What must not be reached.


@pytest.mark.parametrize(
    "target",
    ["../secret", "{outside}/secret", "../log/../secret", "pods/../../secret", "/proc/self/root/etc/passwd", "/etc"],
)
@pytest.mark.parametrize("place", ["link", "pods/link"])
async def test_a_link_that_leads_out_is_not_there(node: Node, target: str, place: str) -> None:
    (node.logs / place).symlink_to(target.format(outside=node.logs.parent))
    for path in (f"/logs/{place}", f"/logs/{place}/", f"/logs/{place}/passwd"):
        answer = await ask(node.router(), path)
        assert (answer.status, answer.text) == (404, "404 page not found\n")


async def test_links_in_a_circle_are_not_there(node: Node) -> None:
    (node.logs / "circle").symlink_to("circle")
    assert (await ask(node.router(), "/logs/circle")).status == 404


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
async def test_only_files_and_folders_are_opened(node: Node, kind: int) -> None:
    try:
        os.mknod(node.logs / "special", kind | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("needs root for devices")
    with trio.fail_after(5):
        assert (await ask(node.router(), "/logs/special")).status == 404
        assert (await ask(node.router(queries=True), "/logs/?query=/special")).status == 404


async def test_what_the_agent_may_not_read_is_forbidden(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("trikubelet.node_api.node_files._for_reading", denied)
    assert (await ask(node.router(), "/logs/sys%20log")).status == 403


async def test_a_name_that_is_too_long_is_not_there(node: Node) -> None:
    assert (await ask(node.router(), f"/logs/{'x' * 5000}")).status == 404


PIECES = st.sampled_from(
    [
        *("..", ".", "", "%2e%2e", "%2E.", "secret", "log", "pods", "link", "%2f", "%2F..%2fsecret", "%00"),
        *("up", "proc", "self", "root", "..%5c", "a;b", "\\..", "%c0%ae%c0%ae", "%252e%252e", "etc", "passwd"),
    ]
)


@given(st.lists(PIECES, max_size=6).map("/".join), st.booleans())
@example("../secret", False)
@example("up/secret", False)
@example("link", True)
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_shows_what_is_outside(node: Node, path: str, as_query: bool) -> None:
    for name, target in (("up", ".."), ("link", "../secret"), ("proc", "/proc")):
        if not (node.logs / name).is_symlink():
            (node.logs / name).symlink_to(target)
    router = node.router(queries=True)
    answer = trio.run(ask, router, f"/logs/?query=/{path}" if as_query else f"/logs/{path}")
    assert SECRET not in answer.text
    assert "root:" not in answer.text
    assert answer.status in (200, 301, 404, 406)
    if any(name in path.split("/") for name in ("up", "proc", "link", "..")):
        assert answer.status != 200


# The journal, by a program that is not journalctl.

JOURNALCTL = r"""#!/bin/sh
echo "$@" >> "$FAKE/calls"
for argument; do
    case "$argument" in
        --field) printf 'kubelet.service\ncron@x.service\n'; exit 0;;
        --unit=cron@x) echo 'cannot' >&2; exit 1;;
        --lines=7) echo $$ > "$FAKE/pid"; echo begun; exec sleep 1000;;
    esac
done
echo "an entry"
"""


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the program was called with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "journalctl").write_text(JOURNALCTL)
    (folder / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tmp_path))
    return tmp_path / "calls"


async def test_a_service_is_shown_by_the_journal(node: Node, journal: Path) -> None:
    query = (
        "query=kubelet&query=cron@x&sinceTime=2026-01-31T12:00:00%2B02:00&untilTime=2026-02-01T00:00:00Z"
        "&tailLines=5&boot=-1&pattern=a.*%5Bb%5D"
    )
    answer = await ask(node.router(queries=True), f"/logs/?{query}")
    assert (answer.status, answer.content_type) == (200, "text/plain;charset=UTF-8")
    assert answer.text == "cannot\n"
    units, call = journal.read_text().splitlines()
    assert units == "--field _SYSTEMD_UNIT"
    assert call == (
        "--utc --no-pager --since=2026-01-31 10:00:00 UTC --until=2026-02-01 00:00:00 UTC --pager-end --lines=5 "
        "--unit=kubelet --unit=cron@x --grep=a.*[b] --case-sensitive=false --boot=-1 --output=short-precise"
    )


async def test_who_takes_gzip_gets_it(node: Node, journal: Path) -> None:
    answer = await ask(node.router(queries=True), "/logs/?query=kubelet", headers={"accept-encoding": "gzip"})
    assert answer.headers == {"Content-Encoding": "gzip"}
    assert gzip.decompress(answer.body) == b"an entry\n"
    answer = await ask(node.router(queries=True), "/logs/?query=kubelet", headers={"accept-encoding": "gzip, br"})
    assert (answer.headers, answer.body) == ({}, b"an entry\n")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"app": "by its name"}, "by its name"),
        ({"app.log": "with an ending"}, "with an ending"),
        ({"app/app.log": "in a folder"}, "in a folder"),
        ({"app.log": "first", "app/app.log": "second"}, "first"),
        ({}, "\nlog not found for app\n"),
    ],
)
async def test_a_service_that_the_journal_does_not_know_may_have_a_file(
    node: Node, journal: Path, files: dict[str, str], text: str
) -> None:
    for name, content in files.items():
        (node.logs / name).parent.mkdir(exist_ok=True)
        (node.logs / name).write_text(content)
    assert (await ask(node.router(queries=True), "/logs/?query=app")).text == text


async def test_a_file_of_a_service_takes_no_options(node: Node, journal: Path) -> None:
    (node.logs / "app").write_text("x")
    answer = await ask(node.router(queries=True), "/logs/?query=app&query=b&tailLines=3")
    assert answer.text == (
        "\noptions present and query resolved to log files for [app b]\ntry without specifying options\n"
    )


async def test_without_a_journal_there_are_files_still(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(node.logs))
    (node.logs / "app").write_text("x")
    assert (await ask(node.router(queries=True), "/logs/?query=app")).text == "x"


async def test_a_program_that_goes_away_in_between_is_said(
    node: Node, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def known(_: float) -> bytes:
        await trio.lowlevel.checkpoint()
        return b"kubelet.service\n"

    monkeypatch.setattr(node_logs, "_units", known)
    monkeypatch.setenv("PATH", str(node.logs))
    answer = await ask(node.router(queries=True), "/logs/?query=kubelet")
    assert (answer.status, answer.text) == (200, "\nerror: journal output not available\n")


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_a_query_is_cut_off_after_its_time(node: Node, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_logs, "QUERY_SECONDS", 3.0)
    with trio.fail_after(PATIENCE):
        answer = await ask(node.router(queries=True), "/logs/?query=kubelet&tailLines=7")
    assert answer.text == "begun\n\nerror: cut off after 3 seconds\n"
    assert gone(int((journal.parent / "pid").read_text()))


async def test_a_client_that_goes_takes_the_program_with_it(node: Node, journal: Path) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, node.router(queries=True), "/logs/?query=kubelet&tailLines=7")
            while not (journal.parent / "pid").exists() or not (journal.parent / "pid").read_text():
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert gone(int((journal.parent / "pid").read_text()))


async def test_four_queries_run_at_a_time(node: Node, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_logs, "QUERY_SECONDS", 3.0)
    router = node.router(queries=True)
    answers = []

    async def query() -> None:
        answers.append((await ask(router, "/logs/?query=kubelet&tailLines=7")).text)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(query)
    assert sorted(text.startswith("begun") for text in answers) == [False] * 2 + [True] * 4


async def test_without_the_switch_a_query_is_nothing(node: Node, journal: Path) -> None:
    answer = await ask(node.router(), "/logs/?query=kubelet")
    assert "<pre>" in answer.text
    assert not journal.exists()


async def test_a_query_may_name_one_file(node: Node) -> None:
    router = node.router(queries=True)
    assert (await ask(router, "/logs/?query=/pods/a/0.log")).text == "of a pod\n"
    assert (await ask(router, "/logs/?query=pods%5Ca%5C0.log")).text == "of a pod\n"
    assert (await ask(router, "/logs/?query=/pods/")).text.startswith("<pre>")
    assert (await ask(router, "/logs/?query=/nothing")).status == 404
    assert (await ask(router, "/logs/pods/a/0.log")).text == "of a pod\n"
