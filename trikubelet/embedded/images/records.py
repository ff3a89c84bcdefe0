"""The store's records on disk: one JSON file per image, one per unpacked layer.

A record is written beside its place and renamed into it, so a reader sees the old one or the new one. Any process may
write (`trikubelet images import` does, while an agent runs), so readers look again when a file has changed. A record
that cannot be read, or whose layers are gone, is moved aside with a warning: the rest of the store keeps working, and
somebody can still look at it. Containers may run on its layers, so those stay until the image is imported again and
removed, or somebody deletes the file.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.model import ImageDocuments, LayerFormat, StoredImage, config_from_spec
from trikubelet.formats.values import frozen
from trikubelet.linux.durable_files import write_atomically
from trikubelet.telemetry.logs import get_logger

log = get_logger("images")

_VERSION = 1
_ASIDE = ".corrupt"


@frozen
class LayerRecord:
    """What is known of an unpacked layer directory."""

    content_bytes: int
    disk_bytes: int
    inodes: int
    packed: tuple[str, ...] = ()
    """Digests of the packed layers that it was made of, which lie beside it (`packed_layer`), the lowest first."""


@frozen
class _Cached:
    key: tuple[int, int, int]
    image: StoredImage


class ImageRecords:
    """The records of a store's folder: `images/<id>.json` and `layers/<name>/{fs,packed-N,layer.json}`."""

    def __init__(self, root: Path) -> None:
        self.images_dir = root / "images"
        self.layers_dir = root / "layers"
        self._cache: dict[str, _Cached] = {}

    def load(self) -> dict[str, StoredImage]:
        """Every image by id. Reads only what has changed since the last call (a few file stats otherwise)."""
        fresh: dict[str, _Cached] = {}
        with os.scandir(self.images_dir) as entries:
            files = [entry for entry in entries if entry.name.endswith(".json")]
        for entry in files:
            try:
                info = entry.stat(follow_symlinks=False)
                key = (info.st_ino, info.st_mtime_ns, info.st_size)
                cached = self._cache.get(entry.name)
                if cached is None or cached.key != key:
                    cached = _Cached(key, self._read(Path(entry.path)))
            except FileNotFoundError:  # removed between listing and reading
                continue
            except (ValueError, LookupError, TypeError, AttributeError, ArchiveError) as error:
                self._move_aside(Path(entry.path), error)
                continue
            fresh[entry.name] = cached
        self._cache = fresh
        return {cached.image.id: cached.image for cached in fresh.values()}

    def layers_set_aside(self) -> set[str]:
        """Names of the layers in records that were moved aside. Raises OSError, and ValueError if one does not tell."""
        names: set[str] = set()
        for path in self.images_dir.glob(f"*{_ASIDE}"):
            try:
                names.update(map(_file_name, _read_json(path)["layers"]))
            except (ValueError, LookupError, TypeError) as error:
                raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
        return names

    def documents(self, image_id: str) -> ImageDocuments:
        """Read what an image with a record was described by. Raises OSError, ValueError."""
        document = _read_json(self._path(image_id))
        return ImageDocuments(document["spec"], tuple(document.get("documents", ())))

    def write(self, image: StoredImage, documents: ImageDocuments | None = None) -> None:
        """Store the record of an image whose layers are in place. Without `documents` it has a record, with some.

        Raises OSError.
        """
        documents = documents or self.documents(image.id)
        imported_at = image.imported_at.isoformat() if image.imported_at else None
        document = {
            "version": _VERSION,
            "id": image.id,
            "repoTags": list(image.repo_tags),
            "repoDigests": list(image.repo_digests),
            "size": image.size,
            "layerFormat": image.layer_format.value,
            "layers": [layer.parent.name for layer in image.layers],
            "importedAt": imported_at,
            "pulled": list(image.pulled),
            "spec": documents.spec,
            "documents": list(documents.texts),
        }
        write_json(self._path(image.id), document)

    def delete(self, image_id: str) -> None:
        """Delete the image's record, with one that was moved aside."""
        path = self._path(image_id)
        path.unlink(missing_ok=True)
        path.with_suffix(_ASIDE).unlink(missing_ok=True)

    def layer_path(self, name: str) -> Path:
        """Where a layer's files lie."""
        return self.layers_dir / name / "fs"

    def _path(self, image_id: str) -> Path:
        return self.images_dir / f"{image_id.partition(':')[2]}.json"

    def _read(self, path: Path) -> StoredImage:
        document = _read_json(path)
        if document["version"] != _VERSION:
            raise ValueError(f"expected version {_VERSION}, got {document['version']!r}")
        if path != self._path(document["id"]):
            raise ValueError(f"the file is not named after its id {document['id']!r}")
        layers = tuple(self.layer_path(_file_name(name)) for name in document["layers"])
        for layer in layers:
            if not layer.is_dir():
                raise ValueError(f"the layer {layer} is gone")
        return StoredImage(
            id=document["id"],
            repo_tags=tuple(document["repoTags"]),
            repo_digests=tuple(document["repoDigests"]),
            size=int(document["size"]),
            config=config_from_spec(document["spec"]),
            layers=layers,
            layer_format=LayerFormat(document["layerFormat"]),
            imported_at=datetime.fromisoformat(document["importedAt"]) if document["importedAt"] else None,
            pulled=tuple(document.get("pulled", ())),
        )

    @staticmethod
    def _move_aside(path: Path, error: Exception) -> None:
        aside = path.with_suffix(_ASIDE)
        try:
            path.replace(aside)
        except FileNotFoundError:
            return
        log.warning(
            "image record cannot be used and was moved aside; import the image again",
            path=str(path),
            moved_to=str(aside),
            error=f"{type(error).__name__}: {error}",
        )


def _read_json(path: Path) -> Any:
    """Raises OSError, and ValueError for what is no JSON or too deeply nested."""
    try:
        return json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError(f"too deeply nested: {error}") from error


def read_layer(directory: Path) -> LayerRecord:
    """What `write_layer` wrote. Raises OSError or ValueError where the layer is not whole."""
    document = json.loads((directory / "layer.json").read_bytes())
    return LayerRecord(
        content_bytes=int(document["contentBytes"]),
        disk_bytes=int(document["diskBytes"]),
        inodes=int(document["inodes"]),
        packed=tuple(document.get("packed", ())),
    )


def packed_layer(directory: Path, number: int) -> Path:
    """Where a layer's directory has what it was unpacked from."""
    return directory / f"packed-{number}"


def write_layer(directory: Path, record: LayerRecord) -> None:
    """Describe a layer that is ready in `directory/fs`."""
    document = {
        "contentBytes": record.content_bytes,
        "diskBytes": record.disk_bytes,
        "inodes": record.inodes,
        "packed": list(record.packed),
    }
    write_json(directory / "layer.json", document)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace a file by a JSON document, durably and at once."""
    write_atomically(path, json.dumps(document).encode(), mode=0o644)


def _file_name(name: object) -> str:
    if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is no layer name")
    return name
