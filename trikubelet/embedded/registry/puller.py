"""All pulls of a runtime: one at a time of each name, its progress logged while it goes on."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.embedded.images.errors import InvalidReferenceError
from trikubelet.embedded.images.reference import Reference
from trikubelet.embedded.registry.credentials import NO_CREDENTIALS
from trikubelet.embedded.registry.hosts import DEFAULT_HOSTS_DIRS
from trikubelet.embedded.registry.progress import PullProgress
from trikubelet.embedded.registry.retry import Timeouts
from trikubelet.formats.values import define
from trikubelet.scopes import running
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trio_typing import TaskStatus

    from trikubelet.clock import WallClock
    from trikubelet.embedded.images.store import ImageStore
    from trikubelet.embedded.registry.credentials import Credentials

log = get_logger("images")

_PROGRESS_PERIOD: Final = 10.0


@define
class _Turn:
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    waiting: int = 0


class Puller:
    """Pulls images into a store. `hosts_dirs`: where `hosts.toml` files are looked for, in order."""

    def __init__(
        self,
        store: ImageStore,
        *,
        clock: WallClock,
        hosts_dirs: Sequence[Path] = DEFAULT_HOSTS_DIRS,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._hosts_dirs = hosts_dirs
        self._timeouts = timeouts or Timeouts()
        self._turns: dict[str, _Turn] = {}
        self._active: list[PullProgress] = []

    def progress(self) -> Sequence[PullProgress]:
        """The pulls at work."""
        return tuple(self._active)

    def progress_of(self, image: str) -> str:
        """How far the pull of an image is, for people; empty when there is none at work."""
        try:
            name = str(Reference.parse(image))
        except InvalidReferenceError:
            return ""
        return next((str(pull) for pull in self._active if pull.reference == name), "")

    async def pull(self, reference: Reference, credentials: Credentials = NO_CREDENTIALS) -> str:
        """Ask the registry for an image, and bring it into the store unless it is there already. Returns its id.

        Raises PullError, OSError. Then, and when cancelled, nothing of it stays.
        """
        # Loads the HTTP client, TLS and tar: tenths of a second, which would hold up Trio's thread.
        module = await trio.to_thread.run_sync(importlib.import_module, "trikubelet.embedded.registry.pull")
        name = str(reference)
        turn = self._turns.setdefault(name, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                progress = PullProgress(name)
                pull = module.Pull(
                    store=self._store,
                    reference=reference,
                    credentials=credentials,
                    hosts_dirs=self._hosts_dirs,
                    timeouts=self._timeouts,
                    clock=self._clock,
                    progress=progress,
                )
                self._active.append(progress)
                try:
                    async with running(partial(_log_progress, progress)):
                        image_id: str = await pull.run()
                finally:
                    self._active.remove(progress)
                log.info("image pulled", image=name, id=image_id, bytes=progress.received_bytes)
                return image_id
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[name]


async def _log_progress(progress: PullProgress, *, task_status: TaskStatus[None]) -> None:
    task_status.started()
    while True:
        await trio.sleep(_PROGRESS_PERIOD)
        log.info("pulling an image", image=progress.reference, progress=str(progress))
