"""A clock for code that works on files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    """Jumps whenever nothing can run; work on files is done in place, as it would jump while a thread does it."""

    async def run_sync(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    return MockClock(autojump_threshold=0)
