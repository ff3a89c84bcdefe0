"""What the log was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.captured_logs import capture_logs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Every line of the log, with its fields."""
    with capture_logs() as lines:
        yield lines
