"""Which flexVolume drivers there are: the programs in a folder, as they come, change and go (kubelet: `probe.go`).

The folder and each driver's own are watched by inotify. An event only says that a look is worth while, so none that
was lost can leave a wrong picture. While the folder is not there, the nearest folder above it is watched. A driver that
fails its `init` is asked again when its program changes, and now and then.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import trio

from trikubelet.broadcast import Broadcast
from trikubelet.linux.inotify import ITSELF, Inotify, Mask
from trikubelet.supervision import contain
from trikubelet.telemetry.logs import get_logger
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.flex.answers import NotSupportedError
from trikubelet.volumes.folders import names_in
from trikubelet.volumes.layout import plugin_of_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_typing import TaskStatus

    from trikubelet.volumes.flex.tools import FlexTools
    from trikubelet.volumes.kinds.protocol import Kinds

T = TypeVar("T")

log = get_logger("volumes")

INIT_DEADLINE: Final = 10.0
SETTLED: Final = 0.1
"""Seconds after an event: a program that is copied makes many."""
RETRY: Final = 30.0
"""Seconds until failed drivers are asked again, and until the folder is looked at where it cannot be watched."""
_APPEARS: Final = Mask.CREATE | Mask.MOVED_TO | ITSELF | Mask.ONLYDIR
_CHANGES: Final = _APPEARS | Mask.MOVED_FROM | Mask.DELETE | Mask.CLOSE_WRITE | Mask.ATTRIB


class _Program(NamedTuple):
    """What tells one version of a program from another."""

    path: str
    inode: int
    modified: int
    mode: int


class FlexDrivers:
    """Adds a kind for each driver to `kinds`, and takes it away."""

    def __init__(self, folder: Path, kinds: Kinds, tools: FlexTools) -> None:
        self._folder = folder
        self._kinds = kinds
        self._tools = tools
        self._known: dict[str, _Program] = {}
        """Drivers that were asked, by name."""
        self._failed: dict[str, float] = {}
        """When to ask drivers again that did not answer: Trio times, by name."""
        self._look_at = float("inf")
        """When to look again without an event (Trio time)."""
        self.changes: Broadcast[str] = Broadcast()
        """Names of drivers that came, changed or went."""

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. Started when all drivers that are there were asked."""
        inotify = _opened(self._folder)
        with nullcontext() if inotify is None else inotify:
            await self._look(inotify)
            task_status.started()
            while True:
                with trio.move_on_at(min([self._look_at, *self._failed.values()])):
                    await _changed(inotify)
                await self._look(inotify)

    async def _look(self, inotify: Inotify | None) -> None:
        """Bring what is known to what is there."""
        watched = inotify is not None and await self._do("watch", partial(_watch, inotify, self._folder)) is not None
        found = await self._do("look for", partial(_programs, self._folder))
        self._look_at = float("inf") if watched and found is not None else trio.current_time() + RETRY
        if found is None:  # nobody can be asked before the next look
            self._failed = dict.fromkeys(self._failed, self._look_at)
            return
        for name in self._known.keys() - found.keys():
            self._forget(name)
        now = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name, program in found.items():
                if self._known.get(name) != program or self._failed.get(name, float("inf")) <= now:
                    nursery.start_soon(contain, self._ask, name, program)

    async def _do(self, what: str, work: Callable[[], T]) -> T | None:
        try:
            return await self._tools.disk.run(work)
        except OSError as error:
            log.warning(f"cannot {what} flexVolume drivers", folder=str(self._folder), error=str(error))
            return None

    async def _ask(self, name: str, program: _Program) -> None:
        """What the driver can. One that does not answer is none, or as it was: its volumes have to be undone."""
        # Both are for nodes that have a driver.
        from trikubelet.volumes.flex.driver import FlexDriver
        from trikubelet.volumes.flex.kind import FlexKind

        if name in self._kinds.by_plugin and not isinstance(self._kinds.by_plugin[name], FlexKind):
            log.warning("a flexVolume driver has the name of a kind of volume that the agent has", driver=name)
            self._known[name] = program
            return
        driver = FlexDriver(name, Path(program.path))
        self._known[name] = program
        self._failed[name] = trio.current_time() + RETRY  # until it has answered, whatever comes
        try:
            answer = await driver.call(name, "init", deadline=INIT_DEADLINE)
        except (VolumeError, NotSupportedError) as error:
            log.warning("a flexVolume driver is not used", driver=name, error=str(error))
            return
        driver.capabilities = answer.capabilities
        del self._failed[name]
        self._kinds.add(FlexKind(driver, self._tools))
        log.info("flexVolume driver found", driver=name, capabilities=str(answer.capabilities))
        self.changes.send(name)

    def _forget(self, name: str) -> None:
        from trikubelet.volumes.flex.kind import FlexKind

        self._known.pop(name, None)
        self._failed.pop(name, None)
        if isinstance(self._kinds.by_plugin.get(name), FlexKind):
            self._kinds.remove(name)
            log.info("flexVolume driver gone", driver=name)
            self.changes.send(name)


def _programs(folder: Path) -> dict[str, _Program]:
    """The programs in a folder, by their drivers' names. Blocks. Raises OSError."""
    found = {}
    for name in _visible(folder):
        path = folder / name / name.rpartition("~")[2]
        parts = name.split("~")
        if any(part in ("", ".", "..") for part in parts) or not path.is_file():
            continue
        status = path.stat()
        found[plugin_of_folder(name)] = _Program(str(path), status.st_ino, status.st_mtime_ns, status.st_mode)
    return found


def _visible(folder: Path) -> list[str]:
    """The names in it but for hidden ones: so a driver can be put there in steps."""
    return [name for name in names_in(folder) if not name.startswith(".")]


def _opened(folder: Path) -> Inotify | None:
    try:
        return Inotify()
    except OSError as error:
        log.warning("flexVolume drivers are looked for now and then", folder=str(folder), error=str(error))
        return None


async def _changed(inotify: Inotify | None) -> None:
    """Return a moment after something happened."""
    if inotify is None:
        await trio.sleep_forever()
    await inotify.wait()
    await trio.sleep(SETTLED)


def _watch(inotify: Inotify, folder: Path) -> int:
    """Watch a folder and the folders in it, or the nearest folder above it that is there. Returns how many. Blocks.
    Raises OSError."""
    for place in (folder, *folder.parents):
        if _begin(inotify, place, _CHANGES if place == folder else _APPEARS):
            break
    return 1 + sum(_begin(inotify, folder / name, _CHANGES) for name in _visible(folder))


def _begin(inotify: Inotify, folder: Path, mask: Mask) -> bool:
    try:
        inotify.watch(folder, mask)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
