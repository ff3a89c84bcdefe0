"""Background tasks behind an `async with`, without wrapping what its body raises."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def body_errors() -> Iterator[None]:
    """Around a nursery whose own tasks never raise: what comes out is what its body raised, not a group of it.

    So whoever writes `async with` around a connection can catch errors by their type.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        raise group.exceptions[0] from group.exceptions[0].__cause__
