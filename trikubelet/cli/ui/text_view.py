"""A full screen of text of others, with a title and its keys: logs, descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import urwid

from trikubelet.cli.ui.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_LINES: Final = 2000
"""The newest that are kept."""
_KEYS: Final = {"j": "down", "k": "up", " ": "page down", "g": "home", "G": "end"}


class TextView(urwid.WidgetWrap[urwid.Widget]):
    """Goes on with what is added as long as its end is on the screen."""

    def __init__(self, title: str, keys: str, lines: Iterable[str] = ()) -> None:
        self._walker = urwid.SimpleFocusListWalker[urwid.Text](())
        self._list = urwid.ListBox(self._walker)
        header = urwid.AttrMap(urwid.Text(" " + plain(title), wrap="clip"), "title")
        footer = urwid.AttrMap(urwid.Text(keys, wrap="clip"), "footer")
        super().__init__(urwid.Frame(self._list, header, footer))
        for line in lines:
            self.add(line)

    def add(self, *lines: str) -> None:
        """More lines at the end."""
        at_end = not self._walker or (self._walker.focus or 0) >= len(self._walker) - 1
        lines = lines[-MOST_LINES:]
        self._walker.extend(urwid.Text(plain(line), wrap="any") for line in lines)
        if len(self._walker) > MOST_LINES:
            del self._walker[: len(self._walker) - MOST_LINES]
        if at_end and self._walker:
            self._walker.set_focus(len(self._walker) - 1)

    def to_top(self) -> None:
        """Show the beginning."""
        if self._walker:
            self._walker.set_focus(0)

    def selectable(self) -> bool:
        return True

    def keypress(self, size: tuple[int, int], key: str) -> str | None:  # type: ignore[override]  # a box, always
        return self._list.keypress((size[0], max(1, size[1] - 2)), _KEYS.get(key, key))
