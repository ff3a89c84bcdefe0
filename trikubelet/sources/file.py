"""The file source: a folder of manifests (or one manifest) as the pods that this node should run.

The story of a change: the kernel tells that a file was written (`trikubelet.linux.inotify`); the folder is listed and
every file whose inode, size or times changed is parsed in a worker thread (`manifests.py`); the pods of all files, in
the order of the file names, are sent on when they differ from what was sent last. Every `period` the same happens
without an event, for network file systems, memory maps and links that lead elsewhere.

Broken files. The kubelet ends a pod whose file has become unreadable or invalid at its next reread. Here a file's pods
stay those of its last good version for as long as the file exists: a slip of the editor should not end a service.
Deleting the file ends them, as does emptying the folder or removing it. Only what is known to be gone is gone: a file
or folder that may not be looked at (no permission, a failing disk) keeps its pods and is tried again. What is wrong
stands in `problems`, and is told to `on_problems` once per change.

Half-written files. A file that was created or modified but not closed yet is left alone until it is closed (or has
not changed for a second), since half a manifest may well be a valid one; and a file that does not parse is reported
only when it has stayed that way for a second. What is told when nobody watches (no inotify) is the file's age.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from trikubelet.api.pod_kinds import FILE_SOURCE
from trikubelet.sources.file_watch import FolderWatch
from trikubelet.sources.manifests import (
    Manifest,
    ManifestPod,
    ManifestProblem,
    Signature,
    display_path,
    read_manifest,
    unread_manifest,
)
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.clock import WallClock

SETTLE_SECONDS: Final = 1.0
"""How long a file must stay broken before it is reported."""
MISSING_RETRY_SECONDS: Final = 1.0
READ_TIMEOUT_SECONDS: Final = 60.0
WARNED_FIELDS: Final = 10
"""Unknown fields that one warning names."""

OnProblems = Callable[[Path, tuple[ManifestProblem, ...]], None]
"""Told the file and what is wrong with it now; an empty tuple when it is well again or gone."""

log = get_logger("file-source")


@attrs.frozen
class _Seen:
    """One entry of a listing; `manifest` is None when the file is the version that was parsed last."""

    path: Path
    signature: Signature | None
    manifest: Manifest | None


@attrs.define
class _File:
    """What is known of one file."""

    signature: Signature | None
    """None when the file has to be read again in any case."""
    pods: tuple[ManifestPod, ...] = ()
    """Of the last good version, as `warnings`."""
    warnings: tuple[ManifestProblem, ...] = ()
    problems: tuple[ManifestProblem, ...] = ()
    report_at: float = 0.0
    """Trio time from which the problems are told."""


@attrs.frozen
class _Listing:
    entries: tuple[_Seen, ...] = ()
    problem: str | None = None
    """Why the path itself could not be listed; then the entries mean nothing."""
    missing: bool = False


class FileSource:
    """Pods from a manifest folder or file. One task runs it; `problems` may be read at any time.

    `period` (seconds) is the kubelet's `fileCheckFrequency`.
    """

    name = FILE_SOURCE

    def __init__(
        self,
        path: Path,
        *,
        node_name: str,
        clock: WallClock,
        period: float = 20.0,
        on_problems: OnProblems | None = None,
    ) -> None:
        self._path = _absolute(path)
        self._node_name = node_name
        self._clock = clock
        self._period = period
        self._on_problems = on_problems
        self._files: dict[Path, _File] = {}
        self._problems: dict[Path, tuple[ManifestProblem, ...]] = {}
        self._path_problem: str | None = None
        self._sent: tuple[Pod, ...] | None = None
        self._limiter = trio.CapacityLimiter(1)
        self._watch = FolderWatch(self._path)

    @property
    def problems(self) -> Mapping[Path, tuple[ManifestProblem, ...]]:
        """What is wrong now, by file: reported problems only."""
        return self._problems

    @property
    def path_problem(self) -> str | None:
        """Why the path itself cannot be read now; None when it can."""
        return self._path_problem

    async def run(
        self,
        send: trio.MemorySendChannel[tuple[Pod, ...]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send the pods of all files, at once and after every change. Runs until cancelled; closes `send` then.

        `task_status.started` is called when changes are being watched, before the first read. A missing path counts as
        an empty folder, as in the kubelet; one that cannot be listed sends nothing, so that nothing is ended for it.
        """
        with self._watch:
            task_status.started()
            async with send:
                while True:
                    await self._reread(send)
                    await self._wait()

    async def _reread(self, send: trio.MemorySendChannel[tuple[Pod, ...]]) -> None:
        self._watch.renew()
        now = trio.current_time()
        busy = self._watch.busy_names(now)
        known = {path: file.signature for path, file in self._files.items()}
        try:
            with trio.fail_after(READ_TIMEOUT_SECONDS):
                listing = await trio.to_thread.run_sync(
                    _list, self._path, self._node_name, known, busy, limiter=self._limiter, abandon_on_cancel=True
                )
        except trio.TooSlowError:
            listing = _Listing(problem=f"could not be read within {READ_TIMEOUT_SECONDS:.0f} s")
        except RuntimeError as error:  # the process may have no more threads
            listing = _Listing(problem=str(error))
        self._watch.missing = listing.missing
        self._report_path_problem(listing)
        if listing.problem is not None and not listing.missing:
            return
        self._take(listing.entries, now)
        self._notify(now)
        pods = tuple(entry.pod for entry in self._winners())
        if (
            self._sent is None
            or len(pods) != len(self._sent)
            or any(a is not b for a, b in zip(pods, self._sent, strict=True))
        ):
            self._sent = pods
            await send.send(pods)

    async def _wait(self) -> None:
        now = trio.current_time()
        wake = [now + (MISSING_RETRY_SECONDS if self._watch.missing else self._period)]
        wake.extend(file.report_at for file in self._files.values() if file.problems and file.report_at > now)
        with trio.move_on_at(max(min(wake), now)):
            await self._watch.changed()

    def _take(self, entries: tuple[_Seen, ...], now: float) -> None:
        """Bring what is known of the files to what was listed."""
        listed = {entry.path for entry in entries}
        for path in [path for path in self._files if path not in listed]:
            del self._files[path]
        for entry in entries:
            if entry.manifest is None:
                continue
            before = self._files.get(entry.path)
            signature = None if entry.manifest.unread else entry.signature
            if entry.manifest.problems:
                file = _File(signature) if before is None else attrs.evolve(before, signature=signature)
                file.problems = entry.manifest.problems
                file.report_at = now + self._settle_time(entry.signature)
            else:
                file = _File(signature, entry.manifest.pods, entry.manifest.warnings)
                if file.warnings != (before.warnings if before is not None else ()):
                    _warn_of_fields(entry.path, file.warnings)
            self._files[entry.path] = file
        # A listing is sorted; the dictionary follows it, so that the order of the pods is that of the names.
        self._files = {entry.path: self._files[entry.path] for entry in entries if entry.path in self._files}

    def _settle_time(self, signature: Signature | None) -> float:
        """Seconds until a broken file may be called broken: none when it was left alone for long enough already."""
        if signature is None:
            return 0.0
        age = self._clock.now().timestamp() - signature.mtime_ns / 1e9
        return 0.0 if age >= SETTLE_SECONDS or age < 0 else SETTLE_SECONDS

    def _winners(self) -> Iterator[ManifestPod]:
        """The pods of all files; of pods with one name or UID the one whose file comes first."""
        names: set[str] = set()
        for file in self._files.values():
            for entry in file.pods:
                keys = {entry.pod.full_name, entry.pod.metadata.uid}
                if names.isdisjoint(keys):
                    names |= keys
                    yield entry

    def _current_problems(self, now: float) -> Iterator[tuple[Path, tuple[ManifestProblem, ...]]]:
        owners: dict[str, Path] = {}
        for path, file in self._files.items():
            settled = now >= file.report_at
            problems = list(file.problems if settled else self._problems.get(path, ()))
            for entry in file.pods:
                for key, what in ((entry.pod.full_name, "pod"), (entry.pod.metadata.uid, "UID")) if settled else ():
                    owner = owners.setdefault(key, path)
                    if owner != path:
                        message = f"the {what} {key} is taken by {display_path(Path(owner.name))}, this one is ignored"
                        problems.append(ManifestProblem(path, entry.line, "metadata", message))
                        break
            if problems:
                yield path, tuple(problems)

    def _notify(self, now: float) -> None:
        before, self._problems = self._problems, dict(self._current_problems(now))
        if self._on_problems is None:
            return
        for path in sorted(before.keys() | self._problems.keys()):
            problems = self._problems.get(path, ())
            if problems != before.get(path, ()):
                self._on_problems(path, problems)

    def _report_path_problem(self, listing: _Listing) -> None:
        if listing.problem == self._path_problem:
            return
        self._path_problem = listing.problem
        if listing.problem is None:
            log.info("manifest path can be read", path=display_path(self._path))
        else:
            log.warning("manifest path cannot be read", path=display_path(self._path), reason=listing.problem)


def _absolute(path: Path) -> Path:
    """The path as it is meant now; as it is when the working directory was removed, since then it leads nowhere."""
    try:
        return path if path.is_absolute() else Path.cwd() / path
    except OSError:
        return path


def _warn_of_fields(path: Path, warnings: tuple[ManifestProblem, ...]) -> None:
    if not warnings:
        return
    fields = [f"{warning.path} (line {warning.line})" for warning in warnings[:WARNED_FIELDS]]
    if len(warnings) > WARNED_FIELDS:
        fields.append(f"and {len(warnings) - WARNED_FIELDS} more")
    log.warning("unknown fields have no effect", file=display_path(path), fields=", ".join(fields))


def _list(path: Path, node_name: str, known: Mapping[Path, Signature | None], busy: frozenset[str]) -> _Listing:
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
    entries = (_inspect(entry, node_name, known, entry.name in busy) for entry in paths)
    return _Listing(tuple(entry for entry in entries if entry is not None))


def _inspect(path: Path, node_name: str, known: Mapping[Path, Signature | None], busy: bool) -> _Seen | None:
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
    return _Seen(path, signature, _read(path, node_name))


def _is_gone(path: Path) -> bool:
    """True only when nothing has that name: what cannot be looked at may well be there."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _read(path: Path, node_name: str) -> Manifest:
    """What nobody thought of must not end the agent, which other pods depend on: it is this file's problem."""
    try:
        return read_manifest(path, node_name)
    except Exception as error:
        log.debug("reading a manifest failed", file=display_path(path), exc_info=error)
        detail = display_path(Path(f"{type(error).__name__}: {error}"))
        return unread_manifest(path, f"cannot be read: {detail}")
