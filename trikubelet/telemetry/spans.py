"""Where parts of the agent say what takes time. Who makes spans of it (`trikubelet.tracing`) they do not know."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

_NOBODY: Final = nullcontext()


class Spans(Protocol):
    """Makes spans."""

    def span(self, name: str, *, scope: str) -> AbstractContextManager[object]:
        """A span around the block. `scope`: which part tells of it."""
        ...


def spanned(spans: Spans | None, name: str, *, scope: str) -> AbstractContextManager[object]:
    """A span around the block, if anybody wants one."""
    return _NOBODY if spans is None else spans.span(name, scope=scope)
