"""The file that tells of the last shutdown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from trikubelet.node.shutdown.record import FILE, NEVER, ShutdownRecord, ShutdownTimes

if TYPE_CHECKING:
    from pathlib import Path

BEGAN = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
ENDED = datetime(2026, 1, 31, 12, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize("times", [ShutdownTimes(BEGAN), ShutdownTimes(BEGAN, ENDED), ShutdownTimes()])
async def test_the_next_agent_finds_what_was_written(tmp_path: Path, times: ShutdownTimes) -> None:
    await ShutdownRecord(tmp_path / FILE).store(times)
    assert await ShutdownRecord(tmp_path / FILE).load() == times
    assert [path.name for path in tmp_path.iterdir()] == ["graceful_node_shutdown_state"]


async def test_the_file_is_the_kubelets(tmp_path: Path) -> None:
    await ShutdownRecord(tmp_path / FILE).store(ShutdownTimes(BEGAN))
    document = json.loads((tmp_path / FILE).read_text())
    assert document == {"startTime": "2026-01-31T12:00:00.250000Z", "endTime": NEVER}
    (tmp_path / FILE).write_text('{"startTime":"2026-01-31T13:00:00.25+01:00","endTime":"2026-01-31T12:00:30Z"}')
    assert await ShutdownRecord(tmp_path / FILE).load() == ShutdownTimes(BEGAN, ENDED)


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[]", b'{"startTime": 3}', b"[" * 100_000])
async def test_a_file_that_says_nothing_is_as_good_as_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    assert await ShutdownRecord(tmp_path / FILE).load() == ShutdownTimes()


async def test_a_folder_that_cannot_be_written_only_costs_the_record(tmp_path: Path) -> None:
    record = ShutdownRecord(tmp_path / "missing" / FILE)
    await record.store(ShutdownTimes(BEGAN))
    assert record.times == ShutdownTimes(BEGAN)
