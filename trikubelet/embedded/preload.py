"""Images that are to be there ahead of pods: the folder `preload` of a runtime's root.

Archives in it (`*.tar`, also compressed) are imported, and the references in its lists (`*.txt`, one a line) are
pulled, each once: a file that was done and has not changed since is left alone, also after a restart. The folder is
watched, so a file counts as soon as it is written or moved there. A broken archive is logged, and tried again when it
has changed; a reference that cannot be pulled is tried again, less and less often.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.backoff import Backoff
from trikubelet.embedded.images.errors import ImageError, InvalidReferenceError
from trikubelet.embedded.images.reference import Reference
from trikubelet.linux.durable_files import write_atomically
from trikubelet.linux.inotify import Inotify, Mask
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.embedded.images.store import ImageStore
    from trikubelet.embedded.registry.puller import Puller

log = get_logger("images")

_ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_LIST: Final = ".txt"
_LONGEST_LIST: Final = 2**20
_RETRIES: Final = Backoff(first=10.0, longest=300.0)

Signature = list[int]


class Preload:
    """One folder. `state` is the file that says what was done."""

    def __init__(self, folder: Path, state: Path, store: ImageStore, puller: Puller) -> None:
        self._folder = folder
        self._state = state
        self._store = store
        self._puller = puller
        self._done: dict[str, Signature] = {}
        self._failures = 0

    async def run(self) -> None:
        """Runs until cancelled. Where the folder cannot be used, it says so and returns."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._done = self._read_state()
            with Inotify() as inotify:
                inotify.watch(self._folder, Mask.CLOSE_WRITE | Mask.MOVED_TO)
                while True:
                    whole = await self._look()
                    self._failures = 0 if whole else self._failures + 1
                    with trio.move_on_after(math.inf if whole else _RETRIES.delay(self._failures)):
                        await inotify.wait()
        except OSError as error:
            log.warning("images cannot be loaded ahead", folder=str(self._folder), error=str(error))

    async def _look(self) -> bool:
        """Do what is not done yet. Whether nothing is left to be tried again."""
        whole = True
        before = dict(self._done)
        found: dict[str, Signature] = {}
        for path in sorted(self._folder.iterdir()):
            if not path.name.endswith((*_ARCHIVES, _LIST)):
                continue
            try:
                info = path.stat()
                found[path.name] = [info.st_mtime_ns, info.st_size, info.st_ino]
                if self._done.get(path.name) == found[path.name]:
                    continue
                done = await (self._pull_listed(path) if path.name.endswith(_LIST) else self._import(path))
            except FileNotFoundError:  # taken away meanwhile
                continue
            except (OSError, ValueError) as error:
                log.warning("images cannot be loaded ahead", file=str(path), error=str(error))
                done = False
            if done:
                self._done[path.name] = found[path.name]
            else:
                whole = False
        self._done = {name: signature for name, signature in self._done.items() if name in found}
        if self._done != before:
            write_atomically(self._state, json.dumps(self._done).encode(), mode=0o600)
        return whole

    async def _import(self, path: Path) -> bool:
        try:
            await self._store.import_archive(path)
        except ImageError as error:
            log.warning("archive cannot be imported", file=str(path), error=str(error))
        return True

    async def _pull_listed(self, path: Path) -> bool:
        with path.open("rb") as file:
            text = file.read(_LONGEST_LIST + 1)
        if len(text) > _LONGEST_LIST:
            raise ValueError(f"expected a list of at most {_LONGEST_LIST} bytes")
        whole = True
        for line in text.decode().splitlines():
            word = line.partition("#")[0].strip()
            if not word:
                continue
            try:
                reference = Reference.parse(word)
                if self._store.resolve(str(reference)) is None:
                    await self._puller.pull(reference)
            except InvalidReferenceError as error:
                log.warning("image cannot be pulled ahead", file=str(path), error=str(error))
            except ImageError as error:
                log.warning("image cannot be pulled ahead", file=str(path), error=str(error))
                whole = False
        return whole

    def _read_state(self) -> dict[str, Signature]:
        try:
            state = json.loads(self._state.read_bytes())
        except (OSError, ValueError):
            return {}
        return {str(name): list(signature) for name, signature in state.items()} if isinstance(state, dict) else {}
