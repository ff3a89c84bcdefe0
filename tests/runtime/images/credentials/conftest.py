"""What the log was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Every line of the log, with its fields."""
    with structlog.testing.capture_logs() as lines:
        yield lines
