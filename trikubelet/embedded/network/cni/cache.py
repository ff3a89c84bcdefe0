"""What was attached, on disk: the files that libcni keeps in `/var/lib/cni/results`, with its names and format.

Other tools see our attachments there, and we see theirs. A file is written before a plugin is run, without `result`,
and again with it when all plugins are done. So whatever a plugin may have made has a file that says how to take it
down, wherever the runtime was killed, and a file without `result` is an attachment that was never finished.

Ours are those whose `netns` is one of ours. Functions on files block; they are for a thread.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from trikubelet.embedded.network.cni.documents import (
    CniDataError,
    is_name,
    object_in,
    parse_object,
    render,
    shown,
    text_in,
)
from trikubelet.embedded.network.model import NetworkError
from trikubelet.formats.values import frozen
from trikubelet.linux.durable_files import sync_folder, write_atomically

DEFAULT_CACHE: Final = Path("/var/lib/cni")
_KIND: Final = "cniCacheV1"
_MOST_BYTES: Final = 8 * 2**20
"""Of a file: a configuration in base64 and a result, each as large as they may be, and more than that."""


@frozen(kw_only=True)
class CachedAttachment:
    """One attachment, with all that taking it down needs."""

    network: str
    container_id: str
    interface: str
    namespace_path: str
    config: bytes
    """The network's list, as it was."""
    arguments: tuple[tuple[str, str], ...] = ()
    """CNI_ARGS."""
    capability_arguments: Mapping[str, Any] = attrs.field(factory=dict)
    result: Mapping[str, Any] | None = None
    """What the last plugin answered; None until all of them did."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.network, self.container_id, self.interface

    @property
    def file_name(self) -> str:
        return "-".join(self.key)

    def to_json(self) -> dict[str, Any]:
        fields = {
            "kind": _KIND,
            "containerId": self.container_id,
            "config": base64.b64encode(self.config).decode(),
            "ifName": self.interface,
            "networkName": self.network,
            "netns": self.namespace_path,
            "cniArgs": [list(pair) for pair in self.arguments],
            "capabilityArgs": dict(self.capability_arguments),
        }
        return fields if self.result is None else {**fields, "result": dict(self.result)}


def attachment_from_json(fields: dict[str, Any], what: str) -> CachedAttachment:
    """Raises CniDataError."""
    if fields.get("kind") != _KIND:
        raise CniDataError(f"{what}: expected the kind {_KIND}, got {shown(fields.get('kind'))}")
    names = {key: text_in(fields, key, what) for key in ("networkName", "containerId", "ifName")}
    for key, name in names.items():
        if not name or "/" in name or "\0" in name or (key != "ifName" and not is_name(name)):
            raise CniDataError(f"{what}: expected a name as {key}, got {shown(name)}")
    try:
        config = base64.b64decode(text_in(fields, "config", what), validate=True)
    except ValueError as error:
        raise CniDataError(f"{what}: expected base64 as config: {error}") from error
    return CachedAttachment(
        network=names["networkName"],
        container_id=names["containerId"],
        interface=names["ifName"],
        namespace_path=text_in(fields, "netns", what),
        config=config,
        arguments=_pairs(fields.get("cniArgs"), what),
        capability_arguments=object_in(fields, "capabilityArgs", what),
        result=None if fields.get("result") is None else object_in(fields, "result", what),
    )


@frozen
class ResultCache:
    """The folder of these files."""

    folder: Path

    @property
    def _results(self) -> Path:
        return self.folder / "results"

    def write(self, attachment: CachedAttachment) -> None:
        """Raises NetworkError."""
        try:
            self._results.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._results / attachment.file_name, render(attachment.to_json()))
        except OSError as error:
            raise NetworkError(f"cannot note the attachment in {self._results}: {error.strerror}") from error

    def remove(self, attachment: CachedAttachment) -> None:
        """Idempotent. Raises NetworkError."""
        try:
            (self._results / attachment.file_name).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                sync_folder(self._results)
        except OSError as error:
            raise NetworkError(f"cannot remove {self._results / attachment.file_name}: {error.strerror}") from error

    def remove_unfinished(self, container_id: str) -> None:
        """Files of a sandbox that a killed agent was writing. Raises NetworkError."""
        try:
            for path in self._results.glob(f".*-{container_id}-*.tmp"):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise NetworkError(f"cannot clean {self._results}: {error.strerror}") from error

    def all(self) -> list[CachedAttachment]:
        """Everybody's that can be read, in the order of their names. Raises NetworkError."""
        return self._read("")

    def of(self, container_id: str) -> list[CachedAttachment]:
        """Those of one sandbox. Raises NetworkError."""
        return [each for each in self._read(f"-{container_id}-") if each.container_id == container_id]

    def _read(self, part: str) -> list[CachedAttachment]:
        try:
            paths = sorted(path for path in self._results.iterdir() if part in path.name and path.name[0] != ".")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NetworkError(f"cannot read {self._results}: {error.strerror}") from error
        found = []
        for path in paths:
            # Other programs write here too, not in one step: what cannot be read is not known to be ours.
            with contextlib.suppress(CniDataError, FileNotFoundError, IsADirectoryError):
                found.append(_read_file(path))
        return found


def _read_file(path: Path) -> CachedAttachment:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError):
        raise
    except OSError as error:
        raise NetworkError(f"cannot read {path}: {error.strerror}") from error
    return attachment_from_json(parse_object(data, str(path), most_bytes=_MOST_BYTES), str(path))


def _pairs(value: object, what: str) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if isinstance(value, list):
        pairs = [tuple(pair) for pair in value if isinstance(pair, list)]
        if len(pairs) == len(value) and all(len(pair) == 2 and all(isinstance(t, str) for t in pair) for pair in pairs):
            return tuple(pairs)
    raise CniDataError(f"{what}: expected pairs of strings as cniArgs, got {shown(value)}")
