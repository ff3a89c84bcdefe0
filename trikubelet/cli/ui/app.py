"""The screen on a terminal, and what its keys do.

run                            until `q` or a signal; the terminal is given back as it was, however it ends
└─ feed                        keeps the model true
└─ refresh                     a new picture when something changed, ten a second at most, and each second for ages
└─ urwid's loop                reads keys, draws
└─ what a key began            a log that is followed, a question, a shell; the next view ends it
"""

from __future__ import annotations

import errno
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
import urwid

from trikubelet.cli.command_session import Interrupted, Target, interact
from trikubelet.cli.failures import CommandError
from trikubelet.cli.pod_containers import why_not_running
from trikubelet.cli.pod_description import describe_pod
from trikubelet.cli.ui.asking import ACTION_TIMEOUT, answer, asked
from trikubelet.cli.ui.feed import AgentsClock, Feed
from trikubelet.cli.ui.model import Model
from trikubelet.cli.ui.screen import HELP, Look, picture
from trikubelet.cli.ui.text import plain
from trikubelet.cli.ui.text_view import TextView
from trikubelet.cli.why import why_lines
from trikubelet.http.streaming.command import CommandStreams, Exited, Failed
from trikubelet.node_api.log_location import default_container

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from trikubelet.cli.ui.model import PodView
    from trikubelet.clock import WallClock

LEAST_PAUSE: Final = 0.1
"""Seconds between two pictures."""
TICK: Final = 1.0
LONGEST_LINE: Final = 2**16
"""Bytes of a line of a log until which its end is waited for."""
LOG_LINES: Final = 200
"""The newest of a log that are shown at first."""
SHELL: Final = ("sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh")
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10, "home": -(10**6), "end": 10**6}
_BACK: Final = ("q", "Q", "esc")
_PALETTE: Final = [
    ("title", "white", "dark blue", "standout"),
    ("trouble", "white", "dark red", "standout"),
    ("header", "default,bold", "default", "bold"),
    ("chosen", "default,standout", "default", "standout"),
    ("rule", "default,bold", "default", "bold"),
    ("footer", "default,bold", "default", "bold"),
    ("message", "yellow,bold", "default", "standout"),
    ("good", "dark green", "default", "default"),
    ("warn", "brown", "default", "default"),
    ("bad", "light red", "default", "bold"),
    ("wait", "dark gray", "default", "default"),
    ("pull", "black", "dark cyan", "default"),
    ("start", "black", "brown", "default"),
    ("run", "black", "light gray", "default"),
    ("ready", "black", "dark green", "default"),
    ("down", "white", "dark red", "default"),
    ("ending", "white", "dark magenta", "default"),
]


class PodList(urwid.Widget):
    """The picture of the model."""

    _sizing = frozenset([urwid.BOX])
    _selectable = True

    def __init__(self, model: Model, look: Look, clock: WallClock) -> None:
        super().__init__()
        self.model = model
        self.look = look
        self._clock = clock

    def render(self, size: tuple[int, int], focus: bool = False) -> urwid.Canvas:  # type: ignore[override]  # a box, always
        columns, lines = size
        drawn = picture(self.model, self.look, columns, lines, self._clock.now())
        texts = [urwid.Text(list(line), wrap="clip").render((columns,)) for line in drawn]
        return urwid.CanvasCombine([(canvas, None, False) for canvas in texts])

    def redraw(self) -> None:
        self._invalidate()

    def keypress(self, size: tuple[int, int], key: str) -> str | None:  # type: ignore[override]  # a box, always
        return key


class App:
    """One person's screen."""

    def __init__(self, socket: Path, clock: WallClock) -> None:
        self._socket = socket
        self._clock = AgentsClock(clock)
        self.model = Model(since=clock.now())
        self.look = Look()
        self._pods = PodList(self.model, self.look, self._clock)
        self._events = urwid.TrioEventLoop()
        self._screen = urwid.display.raw.Screen(bracketed_paste_mode=False, focus_reporting=False)
        self._loop = urwid.MainLoop(
            self._pods,
            _PALETTE,
            screen=self._screen,
            event_loop=self._events,
            handle_mouse=False,
            unhandled_input=self._key,
        )
        self._changed = trio.Event()
        self._asked: PodView | None = None
        """The pod that is restarted when the answer is yes."""
        self._doing = trio.CancelScope()
        """What the last key began."""
        self._nursery: trio.Nursery
        self._code = 0

    async def run(self) -> int:
        """Show it until somebody quits. Returns the exit code: 0, or 128 plus the number of a signal."""
        feed = Feed(self._socket, self.model, self._clock, self._changes)
        with trio.open_signal_receiver(*_ENDING) as signals:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._await_signal, signals)
                self._nursery.start_soon(feed.run)
                self._nursery.start_soon(self._refresh)
                try:
                    with self._loop.start():
                        await self._events.run_async()
                except (urwid.InputClosedError, OSError) as error:
                    if isinstance(error, OSError) and error.errno != errno.EIO:
                        raise
                    self._quit(128 + signal.SIGHUP)  # the terminal is gone
        return self._code

    # --- Pictures ----------------------------------------------------------------------------------------------------

    def _changes(self) -> None:
        self._changed.set()

    async def _refresh(self) -> None:
        while True:
            with trio.move_on_after(TICK):
                await self._changed.wait()
            self._changed = trio.Event()
            if self._loop.widget is self._pods:
                self._pods.redraw()
            await trio.sleep(LEAST_PAUSE)

    async def _await_signal(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            self._quit(128 + number)

    def _quit(self, code: int = 0) -> None:
        self._code = code
        self._nursery.cancel_scope.cancel()

    def _say(self, message: str) -> None:
        self.look.message = message
        self._changes()

    # --- Keys --------------------------------------------------------------------------------------------------------

    def _key(self, key: Any) -> bool:
        if not isinstance(key, str):
            return False
        if isinstance(self._loop.widget, TextView):
            if key in _BACK:
                self._show(self._pods)
            return True
        if self._asked is not None:
            view, self._asked = self._asked, None
            self._say("")
            if key in ("y", "Y"):
                self._nursery.start_soon(self._told, partial(self._restart, view))
            return True
        self._say("")
        self._key_of_list(key)
        return True

    def _key_of_list(self, key: str) -> None:
        view = self.model.pods.get(self.look.chosen)
        match key:
            case "q" | "Q" | "esc":
                self._quit()
            case "?" | "h" | "f1":
                self._show(TextView("trikubelet ui", "q back", HELP.strip().splitlines()), top=True)
            case "+" | "=":
                self.look.zoom(-1)
            case "-":
                self.look.zoom(1)
            case _ if key in _MOVES:
                self.look.choose([each.uid for each in self.model.shown(self._clock.now())], _MOVES[key])
            case "l" | "d" | "enter" | "w" | "x" | "r" if view is None:
                self._say("there is no pod")
            case "l" if view is not None:
                self._show_log(view, "")
            case "d" | "enter" if view is not None:
                self._begin(partial(self._describe, view))
            case "w" if view is not None:
                self._begin(partial(self._why, view))
            case "x" if view is not None:
                self._begin(partial(self._shell, view))
            case "r" if view is not None:
                self._asked = view
                self._say(f"restart the containers of {view.name}? y/n")

    def _show(self, widget: PodList | TextView, *, top: bool = False) -> None:
        self._doing.cancel()
        if top and isinstance(widget, TextView):
            widget.to_top()
        self._loop.widget = widget
        self._changes()

    def _begin(self, do: Callable[[], Awaitable[None]]) -> None:
        """Do it instead of what the last key began."""
        self._doing.cancel()
        self._doing = trio.CancelScope()
        self._nursery.start_soon(self._done_in, self._doing, do)

    async def _done_in(self, scope: trio.CancelScope, do: Callable[[], Awaitable[None]]) -> None:
        with scope:
            await self._told(do)

    async def _told(self, do: Callable[[], Awaitable[None]]) -> None:
        """Its failure is told below the pods."""
        try:
            await do()
        except CommandError as error:
            self._say(error.message)
        except (KeyError, TypeError, ValueError) as error:
            self._say(f"the agent's answer is of another version: {error!r}")

    # --- What keys do ------------------------------------------------------------------------------------------------

    def _show_log(self, view: PodView, container: str) -> None:
        names = (
            []
            if view.pod is None
            else [one.name for one in (*view.pod.spec.containers, *view.pod.spec.init_containers)]
        )
        if view.pod is None or not names:
            self._say(f"{view.name} has no logs any more")
            return
        chosen = container or default_container(view.pod)
        following = names[(names.index(chosen) + 1) % len(names)] if chosen in names else names[0]
        text = _LogView(
            f"log of {view.name} {chosen}",
            "tab next container  up down  q back",
            partial(self._show_log, view, following),
        )
        self._show(text)
        self._begin(partial(self._log, view, chosen, text))

    async def _log(self, view: PodView, container: str, text: TextView) -> None:
        """Follow it until the container ends."""
        path = f"/containerLogs/{view.name}/{container}"
        query: dict[str, Any] = {"follow": True, "tailLines": LOG_LINES}
        try:
            async with asked(self._socket, path, query) as body:
                rest = b""
                while block := await body.block():
                    *lines, rest = (rest + block).split(b"\n")
                    if len(rest) > LONGEST_LINE:
                        lines, rest = [*lines, rest], b""
                    text.add(*(line.decode(errors="replace") for line in lines))
                    await trio.sleep(LEAST_PAUSE)  # nobody reads faster, and the agent is not to read for nobody
                if rest:
                    text.add(rest.decode(errors="replace"))
            text.add("-- the container has ended --")
        except CommandError as error:
            text.add(f"-- {error.message} --")

    async def _describe(self, view: PodView) -> None:
        pod = view.pod
        if pod is None:
            raise CommandError(f"{view.name} is there no more: w tells what became of it")
        events = await answer(self._socket, "/events", {"uid": view.uid})
        pulls = await answer(self._socket, "/images/pulls")
        lines = describe_pod(pod, events, self._clock.now(), pulls).splitlines()
        lines += ["Waits For:", *(f"  {line}" for line in await self._why_lines(view))]
        self._show_text(TextView(view.name, "up down  q back", lines))

    async def _why(self, view: PodView) -> None:
        self._show_text(TextView(f"why {view.name}", "up down  q back", await self._why_lines(view)))

    async def _why_lines(self, view: PodView) -> list[str]:
        return list(why_lines(await answer(self._socket, f"/pods/{view.name}/why")))

    def _show_text(self, text: TextView) -> None:
        text.to_top()
        self._loop.widget = text
        self._changes()

    async def _restart(self, view: PodView) -> None:
        self._say(f"restarting {view.name} ...")
        ended = await answer(self._socket, f"/pods/{view.name}/restart", method="POST", patience=ACTION_TIMEOUT)
        self._say(f"{view.name} restarted: {', '.join(map(str, ended))}")

    async def _shell(self, view: PodView) -> None:
        """The terminal belongs to the container meanwhile."""
        if view.pod is None:
            raise CommandError(f"{view.name} does not run")
        container = default_container(view.pod)
        if why := why_not_running(view.pod, container):
            raise CommandError(why)
        streams = CommandStreams(stdin=True, stdout=True, stderr=False, tty=True)
        target = Target(self._socket, f"/exec/{view.name}/{container}", streams, SHELL)
        self._screen.stop()
        try:
            print(f"\r\n{plain(f'{view.name} {container}')}: leave with exit or Ctrl-D\r\n", end="", flush=True)
            outcome = await interact(target, raw=True)
        finally:
            self._screen.start()
            self._loop.screen_size = None
        if isinstance(outcome, Interrupted):
            self._quit(128 + outcome.number)
            return
        if isinstance(outcome, Failed):
            raise CommandError(outcome.message)
        self._say(
            f"the shell ended with exit code {outcome.code}" if isinstance(outcome, Exited) else "the shell was left"
        )


class _LogView(TextView):
    def __init__(self, title: str, keys: str, next_one: Callable[[], None]) -> None:
        super().__init__(title, keys)
        self._next_one = next_one

    def keypress(self, size: tuple[int, int], key: str) -> str | None:  # type: ignore[override]  # a box, always
        if key == "tab":
            self._next_one()
            return None
        return super().keypress(size, key)
