"""The screen as lines of text, for any size of terminal. Pure.

Nothing depends on colours: each stage has a sign of its own, and the chosen pod a mark. Texts are ASCII wherever
columns have to be straight. What does not fit is left out from the least important on.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from trikubelet.cli.pod_columns import human_duration
from trikubelet.cli.ui.model import NOTHING
from trikubelet.cli.ui.text import fitted, narrow, plain
from trikubelet.cli.ui.timeline import Stage, cells, lasted
from trikubelet.cli.usage_rows import cores, mebibytes
from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trikubelet.api import ContainerStatus
    from trikubelet.cli.ui.model import Model, PodView

    Part = tuple[str, str]
    """A style, and text."""
    Line = list[Part]

SPANS: Final = (20, 60, 300, 1800, 3 * 3600, 24 * 3600)
"""Seconds that pictures of timelines may show."""
KEYS: Final = "l logs  d describe  w why  x shell  r restart  +- time  ? help  q quit"
_FEW_KEYS: Final = "? help  q quit  l logs  d describe  w why  x shell"
"""Where there is no room for all."""
_TOO_SHORT: Final = 0.05
"""Seconds: shorter stages are not told beside longer ones."""
HELP: Final = """
Keys

  up down        choose a pod; also k and j, page up, page down, home, end
  l              logs of its containers: tab shows the next container's
  d              everything about it, as `trikubelet describe`
  w              what it waits for now, as `trikubelet why`
  x              a shell in its first container, as `trikubelet exec -it`
  r              restart its containers in place (asks first)
  + -            timelines of less, and of more time
  ?              this page
  q              back, and quit; also escape; Ctrl-C quits at once

Timelines run to the right, where now is. Their signs:

  .  wait          not yet allowed to start, as while another pod has its name
  v  pull          an image is being pulled
  >  start         volumes, network, init containers, containers
  -  not ready     runs, and a probe has not said yes yet
  =  ready
  x  down          nothing of it runs, though it should: a back-off, a failure
  !  terminating   hooks run, and the grace runs down, as its status tells
  ~  clean up      nothing runs any more; volumes and cgroups go

Below the pods: the chosen one's whole life, its containers with what their probes
say, and its newest events; then manifests that have problems. CPU is in thousandths
of a core, MEM the working set.
"""
_LEAST_TIMELINE: Final = 12
_LEAST_NAME: Final = 12
_LONGEST_NAME: Final = 80
_STATUS: Final = 17
"""Columns for `ContainerCreating`."""
_COLUMNS: Final = (("READY", 5), ("RST", 3), ("AGE", 5), ("CPU", 5), ("MEM", 6))
"""With their widths; on a narrow terminal the last ones are left out."""
_DETAIL: Final = 9
"""Lines for the chosen pod, where there are at least twice as many."""
_SHARE_OF_MANIFESTS: Final = 4
"""One line of so many may tell of broken manifests."""
_LEAST_OF_MANIFESTS: Final = 3
_STYLES: Final = {
    Stage.ENDING: "ending",
    Stage.DOWN: "down",
    Stage.START: "start",
    Stage.PULL: "pull",
    Stage.WAIT: "wait",
    Stage.CLEANUP: "wait",
    Stage.RUN: "run",
    Stage.READY: "ready",
    Stage.DONE: "",
}


@define
class Look:
    """What a person has chosen to see."""

    chosen: str = ""
    """UID of a pod."""
    first: int = 0
    """The first pod on the screen."""
    span: int = 1
    """Index in SPANS."""
    message: str = ""
    """Instead of the keys."""

    def choose(self, uids: Sequence[str], by: int) -> None:
        """Another pod, so many further on."""
        if uids:
            self.chosen = uids[min(max(self._index(uids) + by, 0), len(uids) - 1)]

    def scroll(self, uids: Sequence[str], room: int) -> None:
        """Have the chosen pod on a screen with room for so many; choose one where the chosen one is gone."""
        index = self._index(uids)
        self.chosen = uids[index] if uids else ""
        self.first = max(0, min(self.first, index, len(uids) - room), index - room + 1)

    def zoom(self, by: int) -> None:
        self.span = min(max(self.span + by, 0), len(SPANS) - 1)

    def _index(self, uids: Sequence[str]) -> int:
        return uids.index(self.chosen) if self.chosen in uids else max(0, min(self.first, len(uids) - 1))


def picture(model: Model, look: Look, columns: int, lines: int, now: datetime) -> list[Line]:
    """Exactly so many lines. Moves `look` on when its pod is gone or elsewhere."""
    views = model.shown(now)
    detail = _DETAIL if lines >= 2 * _DETAIL else 0
    manifests = _manifests(model, columns, lines // _SHARE_OF_MANIFESTS)
    room = max(0, lines - 3 - detail - len(manifests))
    uids = [view.uid for view in views]
    look.scroll(uids, max(1, room))
    table = Table(columns, [_name_in_table(view) for view in views])
    drawn = [_title(model, views, columns, now), [("header", table.header(SPANS[look.span]))]]
    for view in views[look.first : look.first + room]:
        drawn.append(table.line(view, SPANS[look.span], now, chosen=view.uid == look.chosen))
    if not views:
        drawn.append([("", fitted(" no pods" if not model.trouble else "", columns))])
    drawn = [*drawn[: 2 + room], *([("", "")] for _ in range(2 + room - len(drawn)))]
    chosen = next((view for view in views if view.uid == look.chosen), None)
    if detail:
        about = [] if chosen is None else list(_about(chosen, SPANS[look.span], columns, now))[:detail]
        drawn += [*about, *([("", "")] for _ in range(detail - len(about)))]
    drawn += manifests
    keys = KEYS if len(KEYS) <= columns else _FEW_KEYS
    footer = plain(look.message) if look.message else fitted(keys, columns)
    return [*drawn, [("message" if look.message else "footer", footer)]][-lines:]


def _manifests(model: Model, columns: int, most: int) -> list[Line]:
    """The manifests that have problems, in so many lines at most."""
    if not model.manifests or most < _LEAST_OF_MANIFESTS:
        return []
    told = [fitted(narrow(line), columns) for line in model.manifests[: most - 1]]
    return [[("rule", "-- manifests "[:columns].ljust(columns, "-"))], *([("", line)] for line in told)]


def _name_in_table(view: PodView) -> str:
    """Without the namespace when that is `default`."""
    return narrow(view.name.removeprefix("default/"))


def span_text(seconds: float) -> str:
    return human_duration(timedelta(seconds=seconds)).removesuffix("0s") if seconds > 60 else f"{seconds:.0f}s"


class Table:
    """The columns that fit on a terminal."""

    def __init__(self, columns: int, names: Sequence[str]) -> None:
        self._columns = columns
        kept = list(_COLUMNS)
        while kept and self._rest(kept) < _LEAST_NAME + 1 + _LEAST_TIMELINE:
            kept.pop()
        self._kept = kept
        rest = self._rest(kept)
        longest = min(max([len("NAME"), *map(len, names)]), _LONGEST_NAME)
        self._name = max(1, min(longest, max(_LEAST_NAME, rest - 1 - _LEAST_TIMELINE)))
        self._timeline = max(0, rest - self._name - 1)

    def _rest(self, kept: Sequence[tuple[str, int]]) -> int:
        return self._columns - 1 - 1 - _STATUS - 1 - sum(width + 1 for _, width in kept)

    def header(self, span: float) -> str:
        cells = ["NAME".ljust(self._name), "STATUS".ljust(_STATUS), *(name.rjust(width) for name, width in self._kept)]
        axis = f"{span_text(span)} ago"
        if len(axis) + 4 <= self._timeline:
            cells.append(axis + "now".rjust(self._timeline - len(axis)))
        return fitted(" " + " ".join(cells), self._columns)

    def line(self, view: PodView, span: float, now: datetime, *, chosen: bool) -> Line:
        row = view.row(now)
        usage = view.usage
        told = {
            "READY": row.ready,
            "RST": row.restarts.partition(" ")[0],
            "AGE": row.age,
            "CPU": NOTHING if usage.cpu is None else cores(usage.cpu),
            "MEM": NOTHING if usage.memory is None else mebibytes(usage.memory),
        }
        numbers = "".join(" " + fitted(narrow(told[name]).rjust(width), width) for name, width in self._kept)
        name = (">" if chosen else " ") + fitted(_name_in_table(view), self._name) + " "
        status = fitted(narrow(row.status), _STATUS)
        head = "chosen" if chosen else ""
        parts = [(head, name), (head or _style_of_status(view), status), (head, numbers), ("", " ")]
        return [*parts, *strip(view, span, self._timeline, now)]


def strip(view: PodView, span: float, width: int, now: datetime) -> Line:
    """The picture of a timeline."""
    parts: Line = []
    for stage in cells(view.timeline, now, span, width) if width else ():
        style, sign = ("", " ") if stage is None else (_STYLES[stage], stage.value)
        if parts and parts[-1][0] == style:
            parts[-1] = style, parts[-1][1] + sign
        else:
            parts.append((style, sign))
    return parts


def _style_of_status(view: PodView) -> str:
    return {Stage.READY: "good", Stage.DOWN: "bad", Stage.DONE: ""}.get(view.timeline.stage, "warn")


def _title(model: Model, views: Sequence[PodView], columns: int, now: datetime) -> Line:
    stages = [view.timeline.stage for view in views]
    counts = [f"{len(views)} pod{'s' * (len(views) != 1)}", f"{stages.count(Stage.READY)} ready"]
    counts += [f"{stages.count(stage)} {stage.word}" for stage in (Stage.ENDING, Stage.DOWN) if stage in stages]
    left = f" {narrow(model.node) or 'trikubelet'}: {', '.join(counts)} "
    if not model.trouble:
        return [("title", fitted(left + "live ".rjust(columns - len(left)), columns))]
    away = f"for {human_duration(now - model.since)}" if model.since else ""
    return [("trouble", fitted(f" NOT LIVE {away}: {narrow(model.trouble)}; trying again", columns))]


def _about(view: PodView, span: float, columns: int, now: datetime) -> Iterator[Line]:
    pod, timeline = view.pod, view.timeline
    address = "" if pod is None or not pod.status.pod_ip else f"{narrow(pod.status.pod_ip)} "
    yield [("rule", f"-- {narrow(view.name)} {address}"[:columns].ljust(columns, "-"))]
    yield strip(view, span, columns - 1, now)
    yield [("", _life(view, columns - 1, now))]
    if timeline.stage is Stage.ENDING:
        yield [("ending", _grace(view, columns - 1, now))]
    if pod is not None:
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)[-3:]:
            yield [("", fitted(_container(status, now), columns - 1))]
    for event in reversed(timeline.events):
        ago = human_duration(now - event.at)
        yield [("", f"{ago + ' ago':>9}  {plain(event.reason)}: {plain(' '.join(event.message.split()))}")]


def _life(view: PodView, width: int, now: datetime) -> str:
    """Each stage with its duration, as many of the newest as fit."""
    told = ""
    for stage, duration in reversed(lasted(view.timeline, now)):
        if told and duration.total_seconds() < _TOO_SHORT:
            continue
        if stage is Stage.DONE:
            part = stage.word
        else:
            seconds = duration.total_seconds()
            part = f"{stage.word} {seconds:.1f}s" if seconds < 10 else f"{stage.word} {human_duration(duration)}"
        longer = part + (" > " + told if told else "")
        if len(longer) > width - 6:
            return f"... > {told}"
        told = longer
    return told


def _grace(view: PodView, width: int, now: datetime) -> str:
    """How the grace runs down."""
    left, grace = view.grace_left(now), view.timeline.grace
    asked = f"; asked by: {narrow(', then '.join(view.timeline.asked_by))}" if view.timeline.asked_by else ""
    if left is None or not grace:
        return f"terminating{asked}"[:width]
    filled = round(20 * min(left, grace) / grace)
    return f"[{'#' * filled}{'.' * (20 - filled)}] {left} s left of {grace} s of grace{asked}"[:width]


def _container(status: ContainerStatus, now: datetime) -> str:
    state = status.state
    if state.running is not None:
        since = state.running.started_at
        told = "running" if since is None else f"running {human_duration(now - since)}"
    elif state.terminated is not None:
        ended = state.terminated
        told = f"ended: {ended.reason or 'exit'} ({ended.exit_code})"
    else:
        told = f"waiting: {state.waiting.reason}" if state.waiting and state.waiting.reason else "waiting"
    probes = f"{'started' if status.started else 'not started'}, {'ready' if status.ready else 'not ready'}"
    last = status.last_state.terminated
    before = f", last: {last.reason or 'exit'} ({last.exit_code})" if last is not None else ""
    return narrow(f"  {status.name}: {told}; {probes}; {status.restart_count} restarts{before}")
