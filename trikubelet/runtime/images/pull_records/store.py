"""The files of pull intents and records: one for each, where and as the kubelet keeps them.

A file is written beside its place and renamed into it, so that an agent that dies leaves the old one or the new one. A
machine that dies may leave a broken one: such a file makes its image be checked by a pull, which writes a new one.

Single files are a few hundred bytes and are read and written at once, so that nothing can come between reading a
record and writing it. Only what goes through all of them (`records`) belongs into a worker thread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from trikubelet.api import APIObject, DecodeError, from_dict, to_dict
from trikubelet.formats.digests import sha256
from trikubelet.formats.values import frozen
from trikubelet.runtime.images.pull_records.model import (
    API_VERSION,
    BEFORE,
    INTENT,
    READ_VERSIONS,
    RECORD,
    ImageBefore,
    PulledRecord,
    PullIntent,
)
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

log = get_logger("runtime")

_PREFIX: Final = "sha256-"
_UNFINISHED: Final = ".tmp"

_KINDS: Final[dict[type[APIObject], str]] = {PullIntent: INTENT, PulledRecord: RECORD, ImageBefore: BEFORE}
_Kind = TypeVar("_Kind", bound=PullIntent | PulledRecord | ImageBefore)


@frozen
class BrokenRecordError(Exception):
    """A file is not what it should be."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


class RecordStore:
    """Reads and writes the files below `<root_dir>/image_manager`. Every method raises OSError."""

    def __init__(self, root_dir: Path) -> None:
        self._intents = root_dir / "image_manager" / "pulling"
        self._records = root_dir / "image_manager" / "pulled"
        self._before = root_dir / "image_manager" / "before"

    # Intents, by the container's name for the image

    def write_intent(self, image: str) -> None:
        _write(_place(self._intents, image), PullIntent(image=image))

    def write_before(self, before: ImageBefore) -> None:
        _write(_place(self._before, before.image), before)

    def before(self, image: str) -> ImageBefore:
        """What is known of the time before the intent was written; nothing where there is no such note."""
        try:
            found = _read(_place(self._before, image), ImageBefore)
        except BrokenRecordError as error:
            log.warning("which image was there before a pull is not readable", image=image, problem=str(error))
            found = None
        return found if found is not None and found.image == image else ImageBefore(image=image)

    def has_intent(self, image: str) -> bool:
        """Raises BrokenRecordError when the file does not tell."""
        intent = _read(_place(self._intents, image), PullIntent)
        return intent is not None and intent.image == image

    def remove_intent(self, image: str) -> None:
        """No error when there is none."""
        _place(self._intents, image).unlink(missing_ok=True)
        _place(self._before, image).unlink(missing_ok=True)

    def intents(self) -> list[str]:
        """The images of all intents. Broken ones are logged and left out."""
        return [intent.image for intent in _read_all(self._intents, PullIntent)]

    def sizes(self) -> tuple[int, int]:
        """How many files of intents and of records there are, broken ones too."""
        return len(_files(self._intents)), len(_files(self._records))

    # Records, by the runtime's name for the image

    def write(self, record: PulledRecord) -> None:
        _write(_place(self._records, record.image_ref), attrs.evolve(record, api_version=API_VERSION))

    def read(self, image_ref: str) -> PulledRecord | None:
        """None when there is no record. Raises BrokenRecordError."""
        record = _read(_place(self._records, image_ref), PulledRecord)
        return record if record is not None and record.image_ref == image_ref else None

    def remove(self, image_ref: str) -> None:
        """No error when there is none."""
        _place(self._records, image_ref).unlink(missing_ok=True)

    def records(self) -> list[PulledRecord]:
        """All records. Broken ones are logged and left out."""
        return list(_read_all(self._records, PulledRecord))


def _place(folder: Path, key: str) -> Path:
    return folder / f"{_PREFIX}{sha256(key.encode()).hexdigest()}"


def _write(path: Path, content: PullIntent | PulledRecord | ImageBefore) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        unfinished.touch(mode=0o600)
        unfinished.write_text(json.dumps(to_dict(content), separators=(",", ":")))
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _read(path: Path, cls: type[_Kind]) -> _Kind | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    kind = _KINDS[cls]
    try:
        wire = json.loads(text)
        if not isinstance(wire, dict) or wire.get("kind") != kind or wire.get("apiVersion") not in READ_VERSIONS:
            raise BrokenRecordError(path, f"expected a JSON object of kind {kind} and apiVersion {API_VERSION}")
        content = from_dict(cls, wire)
    except (ValueError, RecursionError) as error:
        raise BrokenRecordError(path, f"expected JSON: {error}") from error
    except DecodeError as error:
        raise BrokenRecordError(path, str(error)) from error
    if unknown := _unknown_fields(content):
        # They may say that something is not allowed.
        raise BrokenRecordError(path, f"unknown fields: {', '.join(unknown)}")
    return content


def _files(folder: Path) -> list[Path]:
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    return [path for path in paths if path.name.startswith(_PREFIX) and not path.name.endswith(_UNFINISHED)]


def _read_all(folder: Path, cls: type[_Kind]) -> Iterator[_Kind]:
    for path in _files(folder):
        try:
            content = _read(path, cls)
        except (OSError, BrokenRecordError) as error:
            log.warning("image pull record is not readable", file=str(path), problem=str(error))
            continue
        if content is not None:
            yield content


def _unknown_fields(content: PullIntent | PulledRecord | ImageBefore) -> list[str]:
    objects: list[APIObject] = [content]
    if isinstance(content, PulledRecord):
        for credentials in content.credential_mapping.values():
            objects += [credentials, *credentials.kubernetes_secrets, *credentials.kubernetes_service_accounts]
    return sorted({name for each in objects for name in each.unknown_fields})
