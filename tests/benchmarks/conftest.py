"""Benchmarks silence the log of the process that they run in, which tests of others want back. And their tables are as
wide as their numbers, which a busy machine makes wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.telemetry.logs import configured_as_before

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    with configured_as_before():
        yield


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
