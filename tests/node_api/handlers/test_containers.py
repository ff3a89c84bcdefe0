"""`/run`, `/checkpoint`, and logs by the query of our own."""

from __future__ import annotations

import json
import stat
import time
from typing import TYPE_CHECKING

import pytest

from tests.node_api.handlers.stage import FakeNode, ask, clock, fake_parts
from trikubelet.node_api.node_api import Switches, node_api
from trikubelet.node_api.view import Ran

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.http.routing import Router


def router(node: FakeNode) -> Router:
    return node_api(node, fake_parts(), Switches(), clock())


@pytest.mark.parametrize(
    ("query", "command"),
    [("?cmd=ls", ["ls"]), ("?cmd=ls+-l++/a%22b", ["ls", "-l", "", '/a"b']), ("", [""]), ("?cmd=a&cmd=b", ["a"])],
)
async def test_a_command_is_split_at_spaces_only(query: str, command: list[str]) -> None:
    node = FakeNode()
    answer = await ask(router(node), f"/run/default/web/main{query}", "POST")
    assert (answer.status, answer.content_type, answer.body) == (200, "application/json", b"outerr")
    assert node.calls == [("run", "c1", command)]


async def test_a_command_that_fails_says_how() -> None:
    node = FakeNode(ran=Ran(b"out", b"no such\nfile \xff", 2))
    answer = await ask(router(node), "/run/default/web/main?cmd=ls+/x", "POST")
    assert (answer.status, answer.body) == (500, b"command 'ls /x' exited with 2: no such\nfile \xff")


@pytest.mark.parametrize(
    ("query", "timeout"),
    [
        ("", 0),
        ("?timeout=5", 5),
        ("?timeout=5&timeout=7", 7),
        ("?timeout=%2B5", 5),
        (f"?timeout={'0' * 5000}5", 5),
        (f"?timeout={2**63 - 1}", 2**63 - 1),
    ],
)
async def test_a_checkpoint_is_an_archive_that_only_root_sees(tmp_path: Path, query: str, timeout: int) -> None:
    node = FakeNode(tmp_path)
    answer = await ask(router(node), f"/checkpoint/default/web/main{query}", "POST")
    name = "checkpoint-web_default-main-2026-01-01T00:00:00Z.tar"
    assert json.loads(answer.body) == {"items": [str(tmp_path / "checkpoints" / name)]}
    assert node.calls == [("checkpoint", "c1", name, timeout)]
    assert stat.S_IMODE((tmp_path / "checkpoints").stat().st_mode) == 0o700


@pytest.mark.parametrize("text", ["", "x", "1.5", "1h", "-", "+5", "%D9%A5", "9" * 30, str(2**63)])
async def test_a_timeout_that_is_none_reaches_no_runtime(tmp_path: Path, text: str) -> None:
    node = FakeNode(tmp_path)
    answer = await ask(router(node), f"/checkpoint/default/web/main?timeout={text}", "POST")
    assert (answer.status, answer.text) == (404, "cannot parse value of timeout parameter\n")
    assert node.calls == []


async def test_a_timeout_before_now_is_refused_as_by_the_kubelet(tmp_path: Path) -> None:
    node = FakeNode(tmp_path)
    answer = await ask(router(node), "/checkpoint/default/web/main?timeout=-1", "POST")
    text = "checkpointing of default/web/main failed (CheckpointContainer requires the timeout value to be > 0)\n"
    assert (answer.status, answer.text, node.calls) == (500, text, [])


@pytest.mark.parametrize(
    ("zone", "stamp"),
    [("UTC", "2026-01-01T00:00:00Z"), ("CET-1", "2026-01-01T01:00:00+01:00"), ("NST3:30", "2025-12-31T20:30:00-03:30")],
)
async def test_an_archive_is_named_by_the_machines_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str, stamp: str
) -> None:
    with monkeypatch.context() as environment:
        environment.setenv("TZ", zone)
        time.tzset()
        answer = await ask(router(FakeNode(tmp_path)), "/checkpoint/default/web/main", "POST")
    time.tzset()
    (archive,) = json.loads(answer.body)["items"]
    assert archive == str(tmp_path / "checkpoints" / f"checkpoint-web_default-main-{stamp}.tar")


async def test_a_container_that_does_not_run_has_no_checkpoint(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, running={})
    answer = await ask(router(node), "/checkpoint/default/web/main", "POST")
    text = "checkpointing of default/web/main failed (container main not found)\n"
    assert (answer.status, answer.text) == (500, text)


async def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    answer = await ask(router(FakeNode(tmp_path)), "/checkpoint/default/web/main", "POST")
    assert answer.status == 500
    assert "File exists" in answer.text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "new"),
        ("?previousFiles=true", "oldest older new"),
        ("?previousFiles", "oldest older new"),
        ("?previousFiles=1", "older new"),
        ("?previousFiles=99999999999", "oldest older new"),
        ("?previousFiles=0", "new"),
        ("?previousFiles=false", "new"),
        ("?previousFiles=true&tailLines=2", "older new"),
    ],
)
async def test_logs_with_what_rotation_has_put_aside(tmp_path: Path, query: str, expected: str) -> None:
    for name, text in (("0.log.20260101-000000", "oldest"), ("0.log.20260101-000001", "older"), ("0.log", "new")):
        (tmp_path / name).write_text(f"2026-01-01T00:00:00Z stdout F {text}\n")
    answer = await ask(router(FakeNode(log=tmp_path / "0.log")), f"/containerLogs/default/web/main{query}")
    assert (answer.status, answer.text.split()) == (200, expected.split())


@pytest.mark.parametrize(("text", "status"), [("-1", 422), ("x", 400), ("1.5", 400)])
async def test_a_number_of_files_that_is_none(text: str, status: int) -> None:
    answer = await ask(router(FakeNode()), f"/containerLogs/default/web/main?previousFiles={text}")
    assert answer.status == status
    assert "previousFiles" in answer.text
