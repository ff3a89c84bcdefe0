"""The file source: folders of manifests (or single manifests) as the pods that this node should run.

The story of a change: inotify tells that a file was written (`FolderWatch`); the folder is listed and every file whose
inode, size or times changed is parsed in a worker thread (`manifests.py`); the pods of all files, in the order of the
file names, are sent on when they differ from what was sent last. Every `period` the same happens without an event, for
network file systems, memory maps and links that lead elsewhere.

Several folders are one source. If two of them define one pod, that of the folder named first runs, and the other one
is a problem of its file.

Broken files. The kubelet ends a pod whose file has become unreadable or invalid at its next reread. Here a file's pods
stay those of its last good version for as long as the file exists: an editing mistake should not end a service.
Deleting the file ends them, as does emptying the folder or removing it. Only what is known to be gone is gone: a file
or folder that may not be looked at (no permission, a failing disk) keeps its pods and is tried again. What is wrong
stands in `problems`, and is told to `on_problems` once per change.

Half-written files. A file that was created or modified is *busy* until its writer closes it, or has not written for a
second, since half a manifest may well be a valid one. Until then it is left alone, and its events cause no reread, so a
program that writes into the folder all day costs little. A link (symbolic or hard) is complete when it appears. A file
that does not parse is reported only when it has stayed that way for a second; without inotify its age counts instead.

Without inotify (limits reached) no file is ever busy: the periodic reread remains, and tries each time to watch again.
"""

from __future__ import annotations

import contextlib
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import trio

from trikubelet.api import Pod
from trikubelet.api.pod_kinds import FILE_SOURCE
from trikubelet.formats.values import define, frozen
from trikubelet.linux.inotify import ENTRIES, ITSELF, FileEvent, Inotify, Mask
from trikubelet.sources.manifests import (
    UNKNOWN_FIELD,
    WARNED_FIELDS,
    Manifest,
    ManifestPod,
    ManifestProblem,
    Signature,
    display_path,
    list_fields,
    place_of,
    read_manifest,
    unread_manifest,
)
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.clock import WallClock
    from trikubelet.sources.mux import SendPods

Read: TypeAlias = Callable[[Path], Manifest]

SETTLE_SECONDS: Final = 1.0
"""How long a file must stay broken before it is reported."""
MISSING_RETRY_SECONDS: Final = 1.0
READ_TIMEOUT_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 1.0
"""A writer that has not written for so long counts as done."""
LONGEST_WRITE_SECONDS: Final = 10.0
"""A writer that never stops does not hide its file for longer than this."""

_APPEARS: Final = Mask.CREATE | Mask.MOVED_TO

OnProblems = Callable[[Path, tuple[ManifestProblem, ...]], None]
"""Told the file and what is wrong with it now; an empty tuple when it is well again or gone."""

log = get_logger("file-source")


@frozen
class _Seen:
    """One entry of a listing; `manifest` is None when the file is the version that was parsed last."""

    path: Path
    signature: Signature | None
    manifest: Manifest | None


@frozen
class ManifestState:
    """One file of manifests as it is known now."""

    file: Path
    pods: tuple[Pod, ...] = ()
    """Pods of its last good version."""
    names: tuple[str, ...] = ()
    """Namespace and name of each pod that it defines now, as far as they can be read."""
    problems: tuple[ManifestProblem, ...] = ()
    broken: bool = False
    """True if the pods are not those that the file defines now."""

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values; of a problem `line`, `field` and `message`."""
        return {
            "file": display_path(self.file),
            "pods": [*map(place_of, self.pods)],
            "names": [*self.names],
            "problems": [{"line": one.line, "field": one.path, "message": one.message} for one in self.problems],
            "broken": self.broken,
        }


@define
class _File:
    """What is known of one file."""

    signature: Signature | None
    """None when the file has to be read again in any case."""
    pods: tuple[ManifestPod, ...] = ()
    """Of the last good version, as `warnings`."""
    warnings: tuple[ManifestProblem, ...] = ()
    names: tuple[str, ...] = ()
    problems: tuple[ManifestProblem, ...] = ()
    report_at: float = 0.0
    """Trio time from which the problems are told."""


@frozen
class _Listing:
    entries: tuple[_Seen, ...] = ()
    problem: str | None = None
    """Why the path itself could not be listed; then the entries mean nothing."""
    missing: bool = False


@define
class _Place:
    """A folder of manifests, or a single manifest."""

    path: Path
    watch: FolderWatch
    files: dict[Path, _File] = attrs.field(factory=dict)
    problem: str | None = None
    """Why the path cannot be listed."""
    listed: bool = False
    """Whether it was listed once: before that its pods are unknown."""


class FileSource:
    """Pods from folders of manifests, or from single files. One task runs it; `problems` may be read at any time.

    `period` (seconds) is the kubelet's `fileCheckFrequency`.
    """

    name = FILE_SOURCE

    def __init__(
        self,
        *paths: Path,
        node_name: str,
        clock: WallClock,
        period: float = 20.0,
        may_refer: bool = False,
        on_problems: OnProblems | None = None,
    ) -> None:
        self._places = tuple(_Place(path, FolderWatch(path)) for path in map(_absolute, paths))
        self._read = partial(read_manifest, node_name=node_name, may_refer=may_refer)
        self._clock = clock
        self._period = period
        self._on_problems = on_problems
        self._problems: dict[Path, tuple[ManifestProblem, ...]] = {}
        self.version = 0
        """Another one, growing, when `manifests_with_problems` may tell something else: it is read again then only."""
        self._sent: tuple[Pod, ...] | None = None
        self._all_at = -math.inf
        """Trio time at which every place is listed again, also without an event."""
        self._limiter = trio.CapacityLimiter(1)

    @property
    def problems(self) -> Mapping[Path, tuple[ManifestProblem, ...]]:
        """What is wrong now, by file: reported problems only."""
        return self._problems

    @property
    def path_problems(self) -> Mapping[Path, str]:
        """Why a path itself cannot be read now, for those that cannot."""
        return {place.path: place.problem for place in self._places if place.problem is not None}

    def manifests(self) -> Iterator[ManifestState]:
        """Every file, and every folder that cannot be read."""
        yield from self._unreadable_places()
        for path, file in self._files():
            yield self._state(path, file)

    def manifests_with_problems(self) -> Iterator[ManifestState]:
        """Those of `manifests` that have problems."""
        yield from self._unreadable_places()
        for path in self._problems:
            for place in self._places:
                if path in place.files:
                    yield self._state(path, place.files[path])

    def _unreadable_places(self) -> Iterator[ManifestState]:
        for place in self._places:
            if place.problem is not None and not place.watch.missing:  # a folder that is not there is an empty one
                problem = ManifestProblem(place.path, None, "", f"cannot be read: {place.problem}")
                yield ManifestState(place.path, problems=(problem,))

    def _state(self, path: Path, file: _File) -> ManifestState:
        problems = self._problems.get(path, ())
        pods = tuple(entry.pod for entry in file.pods)
        return ManifestState(path, pods, file.names, problems, broken=bool(file.problems and problems))

    def pods_of(self, file: Path) -> tuple[Pod, ...]:
        """Pods of the last good version of a file, whatever stands in it now."""
        known = next((place.files[file] for place in self._places if file in place.files), None)
        return () if known is None else tuple(entry.pod for entry in known.pods)

    async def run(self, send: SendPods, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send the pods of all files, at once and after every change, until cancelled.

        `task_status.started` is called before the first read. A missing path counts as an empty folder, as in the
        kubelet. One that cannot be listed keeps the pods that it had; before its first listing nothing is sent, so that
        nothing is ended for it.
        """
        with contextlib.ExitStack() as stack:
            for place in self._places:
                stack.callback(place.watch.close)
            task_status.started()
            self._sent = None  # begun again, it does not know what arrived
            places = self._places
            while True:
                await self._reread(send, places)
                places = await self._wait()

    async def _reread(self, send: SendPods, places: Sequence[_Place]) -> None:
        for place in places:
            await self._list(place)
        if len(places) == len(self._places):
            self._all_at = trio.current_time() + self._period
        if not all(place.listed for place in self._places):
            return
        # With thousands of files each of these takes its time; the event loop turns in between.
        self._notify(trio.current_time())
        await trio.lowlevel.checkpoint()
        pods = tuple(entry.pod for entry in self._winners())
        if self._sent is None or [*map(id, pods)] != [*map(id, self._sent)]:
            self._sent = pods
            await send(pods)

    async def _list(self, place: _Place) -> None:
        place.watch.renew()
        now = trio.current_time()
        busy = place.watch.busy_names(now)
        known = {path: file.signature for path, file in place.files.items()}
        try:
            with trio.fail_after(READ_TIMEOUT_SECONDS):
                listing = await trio.to_thread.run_sync(
                    _list, place.path, self._read, known, busy, limiter=self._limiter, abandon_on_cancel=True
                )
        except trio.TooSlowError:
            listing = _Listing(problem=f"could not be read within {READ_TIMEOUT_SECONDS:.0f} s")
        except RuntimeError as error:  # the process may have no more threads
            listing = _Listing(problem=str(error))
        if (listing.missing, listing.problem) != (place.watch.missing, place.problem):
            self.version += 1
        place.watch.missing = listing.missing
        _report_path_problem(place, listing)
        if listing.problem is None or listing.missing:
            place.listed = True
            self._take(place, listing.entries, now)
            await trio.lowlevel.checkpoint()

    async def _wait(self) -> tuple[_Place, ...]:
        """Wait until something is to be listed, and return it: all places, or the missing ones alone."""
        now = trio.current_time()
        missing = tuple(place for place in self._places if place.watch.missing)
        wake = [self._all_at]
        for place in self._places:
            wake.extend(file.report_at for file in place.files.values() if file.problems and file.report_at > now)
        all_at = max(min(wake), now)
        retry_at = now + MISSING_RETRY_SECONDS if missing else math.inf
        with trio.move_on_at(min(all_at, retry_at)) as waiting:
            async with trio.open_nursery() as nursery:
                for place in self._places:
                    nursery.start_soon(_until_changed, place.watch, nursery.cancel_scope)
        return missing if waiting.cancelled_caught and retry_at < all_at else self._places

    def _take(self, place: _Place, entries: tuple[_Seen, ...], now: float) -> None:
        """Bring what is known of the files to what was listed."""
        listed = {entry.path for entry in entries}
        if listed != place.files.keys() or any(entry.manifest is not None for entry in entries):
            self.version += 1
        for path in [path for path in place.files if path not in listed]:
            del place.files[path]
        for entry in entries:
            if entry.manifest is None:
                continue
            before = place.files.get(entry.path)
            signature = None if entry.manifest.unread else entry.signature
            if entry.manifest.problems:
                file = _File(signature) if before is None else attrs.evolve(before, signature=signature)
                file.names, file.problems = entry.manifest.names, entry.manifest.problems
                file.report_at = now + self._settle_time(entry.signature)
            else:
                file = _File(signature, entry.manifest.pods, entry.manifest.warnings, entry.manifest.names)
                if file.warnings != (before.warnings if before is not None else ()):
                    _warn_of_fields(entry.path, file.warnings)
            place.files[entry.path] = file
        # A listing is sorted; the dictionary follows it, so that the order of the pods is that of the names.
        place.files = {entry.path: place.files[entry.path] for entry in entries if entry.path in place.files}

    def _settle_time(self, signature: Signature | None) -> float:
        """Seconds until a broken file may be called broken: none when it was left alone for long enough already."""
        if signature is None:
            return 0.0
        age = self._clock.now().timestamp() - signature.mtime_ns / 1e9
        return 0.0 if age >= SETTLE_SECONDS or age < 0 else SETTLE_SECONDS

    def _files(self) -> Iterator[tuple[Path, _File]]:
        for place in self._places:
            yield from place.files.items()

    def _winners(self) -> Iterator[ManifestPod]:
        """The pods of all files; of pods with one name or UID the one whose file comes first."""
        names: set[str] = set()
        for _, file in self._files():
            for entry in file.pods:
                keys = {entry.pod.full_name, entry.pod.metadata.uid}
                if names.isdisjoint(keys):
                    names |= keys
                    yield entry

    def _current_problems(self, now: float) -> Iterator[tuple[Path, tuple[ManifestProblem, ...]]]:
        owners: dict[str, Path] = {}
        for path, file in self._files():
            settled = now >= file.report_at
            problems = list(file.problems if settled else self._problems.get(path, ()))
            for entry in file.pods:
                for key, what in ((entry.pod.full_name, "pod"), (entry.pod.metadata.uid, "UID")) if settled else ():
                    owner = owners.setdefault(key, path)
                    if owner != path:
                        holder = display_path(Path(owner.name) if owner.parent == path.parent else owner)
                        message = f"the {what} {key} is taken by {holder}, this one is ignored"
                        problems.append(ManifestProblem(path, entry.line, "metadata", message))
                        break
            if problems:
                yield path, tuple(problems)

    def _notify(self, now: float) -> None:
        before, self._problems = self._problems, dict(self._current_problems(now))
        self.version += self._problems != before
        if self._on_problems is None:
            return
        for path in sorted(before.keys() | self._problems.keys()):
            problems = self._problems.get(path, ())
            if problems != before.get(path, ()):
                self._on_problems(path, problems)


async def _until_changed(watch: FolderWatch, scope: trio.CancelScope) -> None:
    await watch.changed()
    scope.cancel()


def _report_path_problem(place: _Place, listing: _Listing) -> None:
    if listing.problem == place.problem:
        return
    place.problem = listing.problem
    if listing.problem is None:
        log.info("manifest path can be read", path=display_path(place.path))
    else:
        log.warning("manifest path cannot be read", path=display_path(place.path), reason=listing.problem)


def _absolute(path: Path) -> Path:
    """The path as it is meant now; as it is when the working directory was removed, since then it leads nowhere."""
    try:
        return path if path.is_absolute() else Path.cwd() / path
    except OSError:
        return path


def _warn_of_fields(path: Path, warnings: tuple[ManifestProblem, ...]) -> None:
    fields = [f"{warning.path} (line {warning.line})" for warning in warnings if warning.message == UNKNOWN_FIELD]
    if fields:
        log.warning("unknown fields have no effect", file=display_path(path), fields=list_fields(fields))
    others = [warning for warning in warnings if warning.message != UNKNOWN_FIELD]
    for warning in others[:WARNED_FIELDS]:
        place = f"{display_path(path)}:{warning.line}"
        log.warning("a value of a manifest looks wrong", file=place, field=warning.path, reason=warning.message)


def _list(path: Path, read: Read, known: Mapping[Path, Signature | None], busy: frozenset[str]) -> _Listing:
    """Look at every manifest and parse those that changed. Runs in a worker thread and touches nothing else."""
    try:
        if stat.S_ISDIR(path.stat().st_mode):
            paths = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        else:
            paths = [path]
    except FileNotFoundError:
        return _Listing(problem="does not exist", missing=True)
    except OSError as error:
        return _Listing(problem=error.strerror or str(error))
    except ValueError as error:  # a null byte in the path
        return _Listing(problem=str(error))
    entries = (_inspect(entry, read, known, entry.name in busy) for entry in paths)
    return _Listing(tuple(entry for entry in entries if entry is not None))


def _inspect(path: Path, read: Read, known: Mapping[Path, Signature | None], busy: bool) -> _Seen | None:
    if busy:
        return _Seen(path, known.get(path), None)
    try:
        signature = Signature.of(path.stat())
    except OSError:
        if _is_gone(path):
            return None  # removed since the folder was listed
        signature = None
    if path in known and known[path] == signature and signature is not None:
        return _Seen(path, signature, None)
    return _Seen(path, signature, _read(path, read))


def _is_gone(path: Path) -> bool:
    """True only when nothing has that name: what cannot be looked at may well be there."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _read(path: Path, read: Read) -> Manifest:
    """Read and parse a file. An unforeseen error is a problem of this file, and must not end the agent."""
    try:
        return read(path)
    except Exception as error:
        log.debug("reading a manifest failed", file=display_path(path), exc_info=error)
        detail = display_path(Path(f"{type(error).__name__}: {error}"))
        return unread_manifest(path, f"cannot be read: {detail}")


# --- Watching --------------------------------------------------------------------------------------------------------


@define
class _Writing:
    since: float
    last: float

    @property
    def until(self) -> float:
        return min(self.last + QUIET_SECONDS, self.since + LONGEST_WRITE_SECONDS)


class FolderWatch:
    """Inotify on a folder, or on the folder of a single file: when a reread is worthwhile, and which files are busy.

    Used by one task. Watches from the first `renew` on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inotify: Inotify | None = None
        self._folder_watch: int | None = None
        self._parent_watch: int | None = None
        self._single = False
        self._writing: dict[str, _Writing] = {}
        self._unwatched_reason: str | None = None
        self.missing = False
        """Set by the reader: while the path is missing its parent is watched for its return."""

    def close(self) -> None:
        """Stop watching, until the next `renew`."""
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = self._folder_watch = self._parent_watch = None
        self._writing.clear()

    def renew(self) -> None:
        """Watch what the path is now: call before every read, so that no change falls between watch and read."""
        if self._inotify is None:
            try:
                self._inotify = Inotify()
            except OSError as error:
                self._complain(error)
                return
        before = {self._folder_watch, self._parent_watch}
        self._single = self._is_single()
        target = self._path.parent if self._single else self._path
        try:
            self._folder_watch = self._inotify.watch(target, ENTRIES | ITSELF | Mask.ONLYDIR)
        except (FileNotFoundError, NotADirectoryError):
            self._folder_watch = None
            self._writing.clear()
        except OSError as error:
            self._complain(error)  # the watch that there is may still tell when that changes
        self._parent_watch = self._watch_parent(self._inotify) if self._folder_watch is None else None
        for stale in before - {self._folder_watch, self._parent_watch}:
            if stale is not None:
                self._inotify.unwatch(stale)

    def _is_single(self) -> bool:
        """Whether the path is a file; as before when that cannot be told."""
        try:
            return stat.S_ISREG(self._path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            return self._single

    def _watch_parent(self, inotify: Inotify) -> int | None:
        try:
            return inotify.watch(self._path.parent, _APPEARS | Mask.ONLYDIR)
        except OSError:
            return None

    def _complain(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason != self._unwatched_reason:
            self._unwatched_reason = reason
            log.warning("manifests cannot be watched, they are reread periodically", reason=reason)

    def busy_names(self, now: float) -> frozenset[str]:
        """Entries that are being written."""
        for name in [name for name, writing in self._writing.items() if writing.until <= now]:
            del self._writing[name]
        return frozenset(self._writing)

    async def changed(self) -> None:
        """Return when something that a reader would see has changed, or a writer went quiet.

        Cancelling it loses nothing but the wake-up.
        """
        while self._inotify is not None:
            with trio.move_on_at(min((writing.until for writing in self._writing.values()), default=math.inf)):
                try:
                    events = await self._inotify.wait()
                except OSError as error:
                    self._complain(error)
                    self.close()
                    continue
                worth = [self._record(event) for event in events]
                if any(worth):
                    return
                continue
            return
        await trio.sleep_forever()

    def _record(self, event: FileEvent) -> bool:
        """Take one event into account; True when it is worth a reread."""
        if event.mask & Mask.Q_OVERFLOW:
            self._writing.clear()
            return True
        if event.watch == self._parent_watch:
            return event.name == self._path.name
        if event.watch != self._folder_watch:
            return False
        if event.mask & (ITSELF | Mask.IGNORED):
            return True
        if self._single and event.name != self._path.name:
            return bool(event.mask & Mask.MOVED_TO)  # a link that the path goes through may have been replaced
        if event.name.startswith(".") and not event.mask & Mask.MOVED_TO:
            return False
        return self._record_entry(event)

    def _record_entry(self, event: FileEvent) -> bool:
        if event.mask & (Mask.MODIFY | Mask.CREATE):
            if event.mask & Mask.CREATE and self._complete_at_birth(event.name):
                return True
            now = trio.current_time()
            writing = self._writing.setdefault(event.name, _Writing(now, now))
            writing.last = now
            return False
        if not event.mask & Mask.ATTRIB:
            self._writing.pop(event.name, None)
        return True

    def _complete_at_birth(self, name: str) -> bool:
        """Whether an entry needs no writer to close it: a link, or something other than a regular file."""
        folder = self._path.parent if self._single else self._path
        try:
            status = os.lstat(folder / name)
        except OSError:
            return True
        return status.st_nlink > 1 or not stat.S_ISREG(status.st_mode)
