"""Images written as an OCI archive, which `docker load` reads too.

An image is written as it came: its configuration, its manifest, the indexes above that, and its packed layers; so it
has the same id and digests wherever it is imported. One that came without a manifest gets one of its own. Of an image
that an earlier release brought in there are unpacked layers alone, whose tars are made again: the files are the same,
the digests of layers and image are not.

Blocking: called from a worker thread, and asks `checkpoint` often whether it is still wanted.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import stat
import tarfile
from typing import IO, TYPE_CHECKING, Any, Final

from trikubelet.embedded.images.archive import digest_of
from trikubelet.embedded.images.attributes import Attributes
from trikubelet.embedded.images.entry_path import OPAQUE_WHITEOUT, WHITEOUT_PREFIX
from trikubelet.embedded.images.lower import is_opaque, is_whiteout
from trikubelet.embedded.images.model import StoredImage
from trikubelet.embedded.images.oci_layout import INDEX, digest_in
from trikubelet.embedded.images.records import packed_layer, read_layer
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trikubelet.embedded.images.model import ImageDocuments
    from trikubelet.embedded.images.tar_stream import Checkpoint

_MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
_INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
_LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
_COMPRESSIONS: Final = {b"\x1f\x8b": "+gzip", b"\x28\xb5": "+zstd"}
"""By a file's first bytes."""


@frozen
class SavedName:
    """An image to save, and the names that the archive tells for it."""

    image: StoredImage
    names: tuple[str, ...]


def write_archive(
    images: Sequence[SavedName],
    documents: Callable[[str], ImageDocuments],
    out: IO[bytes],
    scratch: Path,
    checkpoint: Checkpoint,
) -> None:
    """Write them to `out`, which need not be seekable. `scratch` holds one layer's tar at a time. Raises OSError.

    `documents` reads those of the image with an id.
    """
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        archive = _Archive(tar, scratch, checkpoint)
        for saved in images:
            archive.add_image(saved, documents(saved.image.id))
        archive.finish()


class _Archive:
    def __init__(self, tar: tarfile.TarFile, scratch: Path, checkpoint: Checkpoint) -> None:
        self._tar = tar
        self._scratch = scratch / "layer.tar"
        self._checkpoint = checkpoint
        self._written: set[str] = set()
        self._layers: dict[Path, dict[str, Any]] = {}
        self._index: list[dict[str, Any]] = []
        self._docker: list[dict[str, Any]] = []

    def add_image(self, saved: SavedName, documents: ImageDocuments) -> None:
        packed = _packed_layers(saved.image, documents)
        if packed is None:
            layers = [self._layer(path) for path in saved.image.layers]
            data = json.dumps(_config(documents.spec, [layer["digest"] for layer in layers])).encode()
            above: list[bytes] = []
        else:
            layers = [self._packed_layer(path, digest) for path, digest in packed]
            data, *above = (text.encode() for text in documents.texts)
        config = self._document(_CONFIG_TYPE, data)
        if not above or [digest_in(layer) for layer in json.loads(above[0])["layers"]] != _digests(layers):
            manifest = {"schemaVersion": 2, "mediaType": _MANIFEST_TYPE, "config": config, "layers": layers}
            above = [json.dumps(manifest).encode()]
        for document in above:
            described = self._document(_media_type(document), document)
        for name in saved.names or ("",):
            annotations = {"io.containerd.image.name": name} if name else {}
            self._index.append({**described, "annotations": annotations})
        names = {"Config": _blob(config["digest"]), "RepoTags": list(saved.names)}
        self._docker.append({**names, "Layers": [_blob(digest) for digest in _digests(layers)]})

    def finish(self) -> None:
        index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": self._index}
        self._file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        self._file("manifest.json", json.dumps(self._docker).encode())
        self._file(INDEX, json.dumps(index).encode())

    def _packed_layer(self, path: Path, digest: str) -> dict[str, Any]:
        self._checkpoint()
        with path.open("rb") as file:
            compression = _COMPRESSIONS.get(file.read(2), "")
            file.seek(0)
            size = os.fstat(file.fileno()).st_size
            self._blob(digest, size, file)
        return {"mediaType": _LAYER_TYPE + compression, "digest": digest, "size": size}

    def _layer(self, root: Path) -> dict[str, Any]:
        if root not in self._layers:
            with self._scratch.open("w+b") as file:
                with tarfile.open(
                    fileobj=file, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
                ) as tar:
                    _write_layer(os.fspath(root), tar, self._checkpoint)
                size = file.tell()
                file.seek(0)
                digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
                file.seek(0)
                self._blob(digest, size, file)
            self._layers[root] = {"mediaType": _LAYER_TYPE, "digest": digest, "size": size}
        return self._layers[root]

    def _document(self, media_type: str, data: bytes) -> dict[str, Any]:
        self._blob(digest_of(data), len(data), io.BytesIO(data))
        return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}

    def _blob(self, digest: str, size: int, content: IO[bytes]) -> None:
        if digest not in self._written:
            self._written.add(digest)
            self._add(_blob(digest), size, content)

    def _file(self, name: str, data: bytes) -> None:
        self._add(name, len(data), io.BytesIO(data))

    def _add(self, name: str, size: int, content: IO[bytes]) -> None:
        info = tarfile.TarInfo(name)
        info.size = size
        self._tar.addfile(info, content)


def _packed_layers(image: StoredImage, documents: ImageDocuments) -> list[tuple[Path, str]] | None:
    """Files and digests of the packed layers, the lowest first; None where not all of them are there."""
    if not documents.texts:
        return None
    found: list[tuple[Path, str]] = []
    for layer in image.layers:
        packed = read_layer(layer.parent).packed
        found += [(packed_layer(layer.parent, number), digest) for number, digest in enumerate(packed)]
    return found if len(found) == len((documents.spec.get("rootfs") or {}).get("diff_ids") or ()) else None


def _digests(layers: list[dict[str, Any]]) -> list[str]:
    return [str(layer["digest"]) for layer in layers]


def _media_type(document: bytes) -> str:
    """Of a manifest or an index. OCI lets both leave it out."""
    content = json.loads(document)
    return str(content.get("mediaType") or (_INDEX_TYPE if "manifests" in content else _MANIFEST_TYPE))


def _config(spec: Mapping[str, Any], diff_ids: list[str]) -> dict[str, Any]:
    """The image's configuration, with other layers."""
    config = copy.deepcopy(dict(spec))
    before = (config.get("rootfs") or {}).get("diff_ids") or []
    config["rootfs"] = {"type": "layers", "diff_ids": diff_ids}
    if len(before) != len(diff_ids):  # several layers that were unpacked into one: its history has no meaning
        config.pop("history", None)
    return config


def _write_layer(root: str, tar: tarfile.TarFile, checkpoint: Checkpoint) -> None:
    links: dict[int, str] = {}
    for path, name in _walk(root):
        checkpoint()
        info = os.lstat(path)
        if is_whiteout(info):
            parent, _, base = name.rpartition("/")
            tar.addfile(tarfile.TarInfo(f"{parent}/{WHITEOUT_PREFIX}{base}" if parent else WHITEOUT_PREFIX + base))
            continue
        member = _member(path, name, info, links)
        if member is None:
            continue
        if member.isreg():
            with open(path, "rb", opener=_without_links) as file:
                tar.addfile(member, file)
        else:
            tar.addfile(member)
        if member.isdir() and name and is_opaque(path):
            tar.addfile(tarfile.TarInfo(f"{name}/{OPAQUE_WHITEOUT}"))
        tar.members = []  # type: ignore[attr-defined]  # memory stays constant; typeshed leaves it out


def _member(path: str, name: str, info: os.stat_result, links: dict[int, str]) -> tarfile.TarInfo | None:
    """The entry of a file; None for what archives do not hold."""
    member = tarfile.TarInfo(name or ".")
    attributes = Attributes.of_file(path, info)
    member.uid, member.gid, member.mode = attributes.uid, attributes.gid, attributes.mode
    member.mtime = int(info.st_mtime)
    xattrs = ((key, value.decode("utf-8", "surrogateescape")) for key, value in attributes.xattrs)
    member.pax_headers = {f"SCHILY.xattr.{key}": value for key, value in xattrs}
    if stat.S_ISDIR(info.st_mode):
        member.type = tarfile.DIRTYPE
    elif info.st_nlink > 1 and info.st_ino in links:
        member.type, member.linkname = tarfile.LNKTYPE, links[info.st_ino]
    elif stat.S_ISREG(info.st_mode):
        member.size = info.st_size
    elif stat.S_ISLNK(info.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)  # noqa: PTH115
    elif stat.S_ISFIFO(info.st_mode):
        member.type = tarfile.FIFOTYPE
    elif stat.S_ISCHR(info.st_mode):
        member.type = tarfile.CHRTYPE
        member.devmajor, member.devminor = os.major(info.st_rdev), os.minor(info.st_rdev)
    else:
        return None
    if not member.isdir():
        links.setdefault(info.st_ino, name)
    return member


def _walk(root: str) -> Iterator[tuple[str, str]]:
    """Each file's path and name in the layer, folders before what is in them, always in the same order."""
    pending = [""]
    while pending:
        name = pending.pop()
        path = f"{root}/{name}" if name else root
        yield path, name
        if stat.S_ISDIR(os.lstat(path).st_mode):
            names = sorted(os.listdir(path), reverse=True)  # noqa: PTH208
            pending += [f"{name}/{below}" if name else below for below in names]


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
