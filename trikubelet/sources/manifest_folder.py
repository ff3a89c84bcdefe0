"""Writing into a folder of manifests: what `apply` and `delete` do to it for a person.

The folder stays the truth: what is written here the file source finds there, as if an editor had saved it. A manifest
is checked first exactly as the source reads it, and replaced as a whole. One input is one file, byte for byte, so its
comments stay; it replaces the file that holds its pods, if there is one.

All of it blocks on the disk: not for the event loop.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trikubelet.formats.values import frozen
from trikubelet.linux.durable_files import sync_folder, write_atomically
from trikubelet.sources.manifests import display_path, parse_manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.sources.manifests import Manifest

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
MODE: Final = 0o600
"""Of the files: environment variables may be secret."""


class ManifestFolderError(Exception):
    """Nothing was changed. The text says why, and what to do."""


@frozen
class Applied:
    """What was written, or would be."""

    file: Path
    pods: tuple[str, ...]
    """Namespace and name, with a slash between."""
    before: bytes | None
    """What the file held; None when it is new."""
    warnings: tuple[str, ...] = ()


class ManifestFolder:
    """The folder of one agent's static pods. `may_refer`: see `sources.manifests.read_static_pod`."""

    def __init__(self, path: Path, node_name: str, *, may_refer: bool = False) -> None:
        self._path = path
        self._node_name = node_name
        self._may_refer = may_refer

    def apply(self, raw: bytes, name: str, *, dry_run: bool = False) -> Applied:
        """Check a manifest, and write it if it is well. `name`: what to call the file where it is new.

        Raises ManifestFolderError with every warning and problem, one a line, and OSError.
        """
        self._require_folder()
        if _FILE_NAME.fullmatch(name) is None:
            raise ManifestFolderError(f"expected letters, digits, '.', '_' and '-' in the file's name, got {name!r}")
        found = self._parse(raw, Path(name))  # as who wrote it knows it: there is no such file in the folder yet
        if found.problems:
            # A field that is not known is often the one that is missed.
            told = [f"{warning} (warning)" for warning in found.warnings]
            raise ManifestFolderError("\n".join([*told, *map(str, found.problems)]))
        file = self._place(found, name)
        found = self._parse(raw, file)  # of its path a pod's UID is made
        warnings = tuple(map(str, found.warnings))
        before = file.read_bytes() if file.exists() else None
        if not dry_run and before != raw:
            self._path.mkdir(mode=0o750, parents=True, exist_ok=True)
            write_atomically(file, raw, mode=MODE)
        return Applied(file, tuple(_names(found)), before, warnings)

    def delete(self, pod: str) -> Path:
        """Remove the file that holds a pod, by namespace and name with a slash between. Returns the file.

        Raises ManifestFolderError when there is none, or it holds other pods too, and OSError.
        """
        self._require_folder()
        for file in self._files():
            names = [*_names(read_manifest(file, self._node_name, may_refer=self._may_refer))]
            if pod not in names:
                continue
            if others := sorted(set(names) - {pod}):
                raise ManifestFolderError(
                    f"{display_path(file)} also holds {', '.join(others)}: remove the pod from the file by hand"
                )
            file.unlink()
            sync_folder(file.parent)
            return file
        raise ManifestFolderError(f"no manifest in {display_path(self._path)} holds the pod {pod}")

    def _place(self, found: Manifest, name: str) -> Path:
        """The file that the manifest replaces, or a new one."""
        wanted = {*_names(found)}
        taken: dict[str, set[str]] = {}
        for file in self._files():
            taken[file.name] = {*_names(read_manifest(file, self._node_name, may_refer=self._may_refer))}
        holders = [holder for holder, names in taken.items() if names & wanted]
        for holder in holders:
            if len(holders) > 1 or not taken[holder] <= wanted:
                places = "; ".join(f"{other} holds {', '.join(sorted(taken[other]))}" for other in holders)
                raise ManifestFolderError(
                    f"the manifest names pods that others in {display_path(self._path)} hold, beside more: {places}"
                )
            return self._path / holder
        if name not in taken:
            return self._path / name
        own = f"{next(_names(found)).replace('/', '-')}.yaml"
        if own in taken:
            raise ManifestFolderError(f"{display_path(self._path / name)} holds other pods: give the file another name")
        return self._path / own

    def _parse(self, raw: bytes, file: Path) -> Manifest:
        return parse_manifest(raw, file, self._node_name, may_refer=self._may_refer)

    def _files(self) -> list[Path]:
        try:
            entries = sorted(self._path.iterdir())
        except FileNotFoundError:
            return []
        return [entry for entry in entries if not entry.name.startswith(".")]

    def _require_folder(self) -> None:
        if self._path.is_file():
            raise ManifestFolderError(f"{display_path(self._path)} is one manifest, and no folder: edit it by hand")


def _names(manifest: Manifest) -> Iterator[str]:
    for entry in manifest.pods:
        yield f"{entry.pod.metadata.namespace}/{entry.pod.metadata.name}"
