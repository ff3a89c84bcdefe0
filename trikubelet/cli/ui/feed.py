"""Keeps the model true to the agent, for as long as somebody looks.

journal     followed; when the agent goes, asked again until it is back
pods        the objects of those to which something happened, asked for once for all that happens in a moment
manifests   followed: those that have problems
usage       asked for every few seconds, since nobody tells it
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.backoff import Backoff
from trikubelet.cli.failures import CommandError
from trikubelet.cli.ui.asking import RefusedError, answer, asked

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from trikubelet.cli.ui.model import Model
    from trikubelet.clock import WallClock

USAGE_PERIOD: Final = 5.0
"""Seconds between two questions for what pods use."""
MOMENT: Final = 0.2
"""Seconds within which things that happen are answered together."""
MOST_BY_NAME: Final = 50
"""More pods than these are not named one by one: all are asked for."""
_AGAIN: Final = Backoff(first=0.25, longest=2.0)


class AgentsClock:
    """The agent's time, by this process's clock and what was last told of the agent's."""

    def __init__(self, own: WallClock) -> None:
        self._own = own
        self._ahead = timedelta()

    def now(self) -> datetime:
        return self._own.now() + self._ahead

    def set(self, moment: datetime) -> None:
        self._ahead = moment - self._own.now()


class Feed:
    """`changed` is called whenever the model is another one."""

    def __init__(self, socket: Path, model: Model, clock: AgentsClock, changed: Callable[[], None]) -> None:
        self._socket = socket
        self._model = model
        self._clock = clock
        self._changed = changed
        self._following = False
        self._told = trio.Event()
        """Something is in `model.unread`."""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._read_pods)
            nursery.start_soon(self._follow_manifests)
            nursery.start_soon(self._measure)

    async def _follow(self) -> None:
        failures = 0
        while True:
            try:
                async with asked(self._socket, "/journal", {"watch": True}) as body:
                    while True:
                        self._take(await body.line())
                        self._following = True
                        failures = 0
                        self._fails("")
                        if self._model.unread:
                            self._told.set()
            except CommandError as error:
                self._following = False
                self._fails(error.message)
            failures += 1
            await trio.sleep(_AGAIN.delay(failures))

    def _take(self, line: bytes) -> None:
        try:
            self._model.take(json.loads(line))
            if self._model.told_at is not None:
                self._clock.set(self._model.told_at)
                self._model.told_at = None
        except (KeyError, TypeError, ValueError) as error:
            raise CommandError(f"the agent speaks another version of the journal: {error!r}") from None

    async def _read_pods(self) -> None:
        while True:
            await self._told.wait()
            await trio.sleep(MOMENT)
            self._told = trio.Event()
            wanted, self._model.unread = self._model.unread, set()
            try:
                found = await answer(
                    self._socket, "/pods", {"uid": sorted(wanted)} if len(wanted) <= MOST_BY_NAME else {}
                )
                self._model.take_pods(wanted, found["items"])
                self._well()
            except CommandError as error:
                self._fails(error.message)
                self._model.unread |= wanted
                self._told.set()
                await trio.sleep(_AGAIN.longest)
            except (KeyError, TypeError, ValueError) as error:
                self._fails(f"the agent speaks another version of pods: {error!r}")

    async def _follow_manifests(self) -> None:
        """An agent that is gone is told by its journal."""
        failures = 0
        while True:
            with suppress(CommandError):
                async with asked(self._socket, "/manifests", {"watch": True}) as body:
                    while True:
                        self._take_manifests(await body.line())
                        failures = 0
            failures += 1
            await trio.sleep(_AGAIN.delay(failures))

    def _take_manifests(self, line: bytes) -> None:
        try:
            self._model.take_manifests(json.loads(line))
            self._changed()
        except (KeyError, TypeError, ValueError) as error:
            self._fails(f"the agent speaks another version of manifests: {error!r}")

    async def _measure(self) -> None:
        while True:
            try:
                self._model.take_usage(await answer(self._socket, "/stats/summary", {"only_cpu_and_memory": True}))
                self._well()
            except RefusedError:
                self._model.take_usage({"pods": []})  # nobody knows, and the columns say so
            except CommandError as error:
                self._fails(error.message)
            except (KeyError, TypeError, ValueError) as error:
                self._fails(f"the agent speaks another version of statistics: {error!r}")
            await trio.sleep(USAGE_PERIOD)

    def _well(self) -> None:
        """The agent has answered; the picture is live when its journal is followed, too."""
        if self._following:
            self._fails("")
        self._changed()

    def _fails(self, trouble: str) -> None:
        self._model.fails(trouble, self._clock.now())
        self._changed()
