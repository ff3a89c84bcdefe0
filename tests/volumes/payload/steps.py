"""Stops between any two operations on files: for readers that look just then, and for kills.

Python tells audit hooks of each operation before it is done. A hook cannot be taken away, so there is one for the whole
test run, which does nothing while nobody asks for it.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_active: dict[int, Callable[[str, tuple[object, ...]], None]] = {}
"""By thread."""
_installed = False


class KilledError(BaseException):
    """The end of the process. What it would have done afterwards does not happen: each further operation fails too."""


@contextmanager
def before_each_step(look: Callable[[str, tuple[object, ...]], None]) -> Iterator[None]:
    """`look` is called before each operation on files of this thread, with its name and arguments."""
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    thread = threading.get_ident()
    _active[thread] = look
    try:
        yield
    finally:
        del _active[thread]


@contextmanager
def killed_before(step: int) -> Iterator[None]:
    """End the process, as it were, before its operation number `step`, counted from 0; swallows the KilledError."""
    seen = 0

    def count(_: str, __: tuple[object, ...]) -> None:
        nonlocal seen
        seen += 1
        if seen > step:
            raise KilledError

    try:
        with before_each_step(count):
            yield
    except KilledError:
        pass


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if not _active or not (event == "open" or event.startswith(("os.", "trikubelet.mount"))):
        return
    thread = threading.get_ident()
    look = _active.pop(thread, None)
    if look is None:
        return
    try:
        look(event, arguments)
    finally:
        _active[thread] = look
