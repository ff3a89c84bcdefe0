"""What a call costs, counted and not timed: the same on every machine."""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that Python's objects took for it at a time."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def steps(call: Callable[[], object]) -> int:
    """How many lines of Python it ran. What is written in C counts as one line that calls it, however long it takes."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
