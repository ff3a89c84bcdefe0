"""One manifest file: from bytes to static pods, or to problems with file, line and field.

`parse_manifest` is pure. `read_manifest` adds the file, and never blocks on what only looks like one: a FIFO, a
socket or a device is refused by its type before it is opened, and size is looked at before content.

A file is one unit: when anything in it is wrong, none of its pods is new. Beyond the kubelet, which takes one pod a
file, a file may hold several documents, and `PodList`s.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from trikubelet.api import Pod, Problem
from trikubelet.formats.yaml_documents import Document, YamlError, read_documents
from trikubelet.sources.static_pods import read_static_pod

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_MANIFEST_SIZE: Final = 10 * 2**20
"""The kubelet's limit (`maxConfigLength`)."""


@attrs.frozen
class ManifestProblem:
    """One thing that is wrong with a manifest file."""

    file: Path
    line: int | None
    path: str
    """The field, e.g. `spec.containers[0].image`; empty when the whole file is meant."""
    message: str

    def __str__(self) -> str:
        place = display_path(self.file)
        if self.line is not None:
            place = f"{place}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


@attrs.frozen
class ManifestPod:
    """A static pod and the line where its manifest begins."""

    pod: Pod
    line: int


@attrs.frozen
class Manifest:
    """What a file holds: pods, or problems."""

    pods: tuple[ManifestPod, ...] = ()
    problems: tuple[ManifestProblem, ...] = ()
    warnings: tuple[ManifestProblem, ...] = ()
    """What has no effect: fields that Kubernetes does not have."""
    unread: bool = False
    """The content was not seen (no permission, no descriptor left, ...): the same version may be fine next time."""


@attrs.frozen
class Signature:
    """What tells one version of a file from another."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def display_path(path: Path) -> str:
    """A path as text that every terminal, log and JSON document takes: on one line, odd bytes written as escapes.

    A file's name may hold any byte; Python keeps those that are no UTF-8 as surrogates, which cannot be encoded.
    """
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def read_manifest(path: Path, node_name: str) -> Manifest:
    """Read and parse a file. Never raises for what a file can be or hold; blocks only on a disk."""
    try:
        status = path.stat()
        problem = _unreadable(status)
        if problem is None:
            raw = _read_regular(path)
            if raw is not None:
                return parse_manifest(raw, path, node_name)
            return unread_manifest(path, "the file was replaced while it was read")
    except OSError as error:
        return unread_manifest(path, _os_message(path, error))
    return Manifest(problems=(ManifestProblem(path, None, "", problem),))


def unread_manifest(path: Path, message: str) -> Manifest:
    """A file of which nothing is known but that it could not be read."""
    return Manifest(problems=(ManifestProblem(path, None, "", message),), unread=True)


def _unreadable(status: os.stat_result) -> str | None:
    kinds = (
        (stat.S_ISDIR, "a directory: manifests in sub-directories are not read"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    for test, kind in kinds:
        if test(status.st_mode):
            return f"expected a regular file, got {kind}"
    if status.st_size > MAX_MANIFEST_SIZE:
        return f"expected at most {MAX_MANIFEST_SIZE >> 20} MiB, got {status.st_size / 2**20:.1f} MiB"
    return None


def _read_regular(path: Path) -> bytes | None:
    """The content, or None when the path stopped being a regular file of acceptable size since it was looked at."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if _unreadable(os.fstat(descriptor)) is not None:
            return None
        raw = file.read(MAX_MANIFEST_SIZE + 1)
    return raw if len(raw) <= MAX_MANIFEST_SIZE else None


def _os_message(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        with contextlib.suppress(OSError):  # no link, or gone meanwhile
            return f"the symbolic link points to {display_path(path.readlink())}, which does not exist"
    return f"cannot be read: {error.strerror or error}"


def parse_manifest(raw: bytes, file: Path, node_name: str) -> Manifest:
    """The static pods of a file's content, or everything that is wrong with it."""
    parser = _Parser(file, node_name)
    try:
        documents = [document for document in read_documents(raw) if not document.empty]
        for document in documents:
            parser.document(document)
    except YamlError as error:
        parser.problems.append(ManifestProblem(file, error.line, "", error.message))
    else:
        if not documents:
            parser.problems.append(ManifestProblem(file, None, "", "the file holds no pod"))
    pods = () if parser.problems else tuple(parser.pods)
    return Manifest(pods, tuple(parser.problems), tuple(parser.warnings))


class _Parser:
    """Collects the pods, problems and warnings of one file."""

    def __init__(self, file: Path, node_name: str) -> None:
        self._file = file
        self._node_name = node_name
        self._names: dict[str, int] = {}
        self.pods: list[ManifestPod] = []
        self.problems: list[ManifestProblem] = []
        self.warnings: list[ManifestProblem] = []

    def document(self, document: Document) -> None:
        for duplicate in document.duplicates:
            message = "the key is given twice in one mapping"
            self.problems.append(ManifestProblem(self._file, duplicate.line, duplicate.path, message))
        data = document.data()
        if not isinstance(data, dict):
            self._problem(document, "", f"expected a Pod or PodList, got {_name_of(data)}")
            return
        kind, version = data.get("kind"), data.get("apiVersion")
        if kind not in ("Pod", "PodList"):
            self._problem(
                document, "kind", f"expected Pod or PodList, got {kind or 'nothing'}: the agent runs pods only"
            )
        elif version != "v1":
            self._problem(document, "apiVersion", f"expected v1, got {version or 'nothing'}")
        elif kind == "Pod":
            self._pod(document, data, "")
        elif isinstance(items := data.get("items") or [], list):
            for index, item in enumerate(items):
                self._pod(document, item, f"items[{index}]")
        else:
            self._problem(document, "items", f"expected a list, got {_name_of(items)}")

    def _pod(self, document: Document, data: Any, prefix: str) -> None:
        found = read_static_pod(data, node_name=self._node_name, file=str(self._file))
        self._problems(document, prefix, found.problems)
        pod = found.pod
        if pod is None:
            return
        line = document.line_of(prefix) if prefix else document.line
        self._warn_of_unknown_fields(document, prefix, found.unknown_fields)
        if pod.full_name in self._names:
            message = f"the pod {pod.full_name} is defined in line {self._names[pod.full_name]} already"
            self._problems(document, prefix, [Problem("metadata.name", message)])
        self._names.setdefault(pod.full_name, line)
        self.pods.append(ManifestPod(pod, line))

    def _warn_of_unknown_fields(self, document: Document, prefix: str, paths: tuple[str, ...]) -> None:
        for path in paths:
            full = ".".join(part for part in (prefix, path) if part)
            message = "unknown field, it has no effect"
            self.warnings.append(ManifestProblem(self._file, document.line_of(full), full, message))

    def _problems(self, document: Document, prefix: str, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self._problem(document, ".".join(part for part in (prefix, problem.path) if part), problem.message)

    def _problem(self, document: Document, path: str, message: str) -> None:
        self.problems.append(ManifestProblem(self._file, document.line_of(path), path, message))


def _name_of(data: Any) -> str:
    match data:
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case str():
            return "a string"
        case _:
            return "a number"
