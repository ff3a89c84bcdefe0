"""A picture of a programmed life: a row for each place, and in it the phases of one pod after the other, as an SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.pods.phases import Syncing, Terminated, Terminating, TerminationRequested, WaitingToStart

if TYPE_CHECKING:
    from trikubelet.pods.phases import Phase

MOST_PLACES: Final = 60
"""Rows that a picture has at most."""
COLOURS: Final[dict[type[Phase], tuple[str, str]]] = {
    WaitingToStart: ("waits", "#d9a441"),
    Syncing: ("started, runs", "#3fa37c"),
    TerminationRequested: ("asked to end", "#e07b39"),
    Terminating: ("ends", "#c8553d"),
    Terminated: ("is cleaned up", "#8c959f"),
}
"""Other phases hold nothing and are not drawn."""

_WIDTH: Final = 1000
_LEFT: Final = 50
_TOP: Final = 58
_ROW: Final = 14
_NARROWEST: Final = 0.8
"""So that what takes seconds of a day can be seen."""
_STYLE: Final = """\
text { font: 12px system-ui, Helvetica, Arial, sans-serif; fill: #24292f }
.grid { stroke: #d0d7de }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .grid { stroke: #3d444d } }"""


class PhasePicture:
    """Is told of each change of a phase by `sim.watch.Watch`. Times are Trio's."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._spans: list[tuple[int, type[Phase], float, float]] = []
        """The place, the phase, and its beginning and end."""
        self._open: dict[str, tuple[type[Phase], float]] = {}

    def moved(self, uid: str, after: Phase | None) -> None:
        """The pod is in another phase from now on; None: it is forgotten."""
        now = trio.current_time()
        self._began = now if self._began is None else self._began
        if (before := self._open.pop(uid, None)) is not None:
            self._spans.append((int(uid.partition("-")[0]), *before, now))
        if type(after) in COLOURS and after is not None:
            self._open[uid] = (type(after), now)

    def draw(self) -> str:
        """The phases that have ended, as an SVG."""
        began = self._began or 0.0
        spans = [one for one in self._spans if one[0] < MOST_PLACES]
        length = max((end for *_, end in spans), default=began + 1) - began
        scale = (_WIDTH - _LEFT - 20) / max(length, 1e-9)
        rows = max((place for place, *_ in spans), default=0) + 1
        height = _TOP + _ROW * rows + 12
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}">',
            f"<style>{_STYLE}</style>",
        ]
        left = _LEFT
        for text, colour in COLOURS.values():
            lines.append(f'<rect x="{left}" y="10" width="12" height="12" rx="2" fill="{colour}"/>')
            lines.append(f'<text x="{left + 18}" y="21">{text}</text>')
            left += 130
        step = 3600 * max(1, round(length / 3600 / 12)) if length > 7200 else 600
        for number in range(int(length // step) + 1):
            x = _LEFT + number * step * scale
            lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - 8}"/>')
            lines.append(f'<text x="{x:.1f}" y="{_TOP - 12}">{_hours(number * step)}</text>')
        for place, phase, start, end in spans:
            lines.append(
                f'<rect x="{_LEFT + (start - began) * scale:.1f}" y="{_TOP + _ROW * place}" '
                f'width="{max((end - start) * scale, _NARROWEST):.1f}" height="{_ROW - 4}" fill="{COLOURS[phase][1]}"/>'
            )
        return "\n".join([*lines, "</svg>", ""])


def _hours(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02}"
