"""Builds image archives for tests: layers from a few words, packed as an OCI layout or as docker save does."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs

from trikubelet.embedded.images.platform import host_platform

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ARCHITECTURE = host_platform(platform.machine()).architecture
OTHER_ARCHITECTURE = "s390x" if ARCHITECTURE != "s390x" else "amd64"


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@attrs.frozen
class Entry:
    """An entry of a tar. Directories end with a slash."""

    name: str
    content: bytes = b""
    link: str = ""
    hard: bool = False
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: float = 1_700_000_000
    kind: bytes = b""
    device: tuple[int, int] = (0, 0)
    size: int | None = None
    """A size that the header claims, with no content to follow."""
    pax: Mapping[str, str] = attrs.field(factory=dict)

    def info(self) -> tarfile.TarInfo:
        info = tarfile.TarInfo(self.name.rstrip("/") if self.name != "/" else "/")
        info.mode, info.uid, info.gid, info.mtime = self.mode, self.uid, self.gid, self.mtime
        info.pax_headers = dict(self.pax)
        info.size = len(self.content) if self.size is None else self.size
        if self.name.endswith("/"):
            info.type = tarfile.DIRTYPE
        if self.link:
            info.type = tarfile.LNKTYPE if self.hard else tarfile.SYMTYPE
            info.linkname = self.link
        if self.kind:
            info.type = self.kind
            info.devmajor, info.devminor = self.device
        return info


def directory(name: str, mode: int = 0o755, **more: Any) -> Entry:
    return Entry(f"{name}/", mode=mode, **more)


def layer(*entries: Entry | str) -> bytes:
    """A layer's tar; a text is a file of this name that holds it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for item in entries:
            entry = Entry(item, content=item.encode()) if isinstance(item, str) else item
            tar.addfile(entry.info(), io.BytesIO(entry.content) if entry.size is None else None)
    return buffer.getvalue()


def pack(path: Path, files: Mapping[str, bytes], *, gzipped: bool = False) -> Path:
    """Write an archive of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    path.write_bytes(gzip.compress(buffer.getvalue()) if gzipped else buffer.getvalue())
    return path


def image_spec(layers: Sequence[bytes], config: Mapping[str, Any] | None = None, **top: Any) -> bytes:
    document: dict[str, Any] = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": config or {},
        "rootfs": {"type": "layers", "diff_ids": [digest(data) for data in layers]},
        **top,
    }
    return json.dumps(document).encode()


@lru_cache(maxsize=8)
def _compressed(data: bytes) -> bytes:
    """Many images have one and the same layer below their own."""
    return gzip.compress(data, mtime=0)


class OciLayout:
    """Collects the files of an OCI image layout."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
        self.descriptors: list[dict[str, Any]] = []

    def blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        self.files[f"blobs/sha256/{digest(data)[7:]}"] = data
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}

    def manifest(
        self, layers: Sequence[bytes], config: Mapping[str, Any] | None = None, *, gzipped: bool = True, **top: Any
    ) -> dict[str, Any]:
        spec = image_spec(layers, config, **top)
        blobs = [_compressed(data) if gzipped else data for data in layers]
        document = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.blob(spec, "application/vnd.oci.image.config.v1+json"),
            "layers": [self.blob(data, "application/vnd.oci.image.layer.v1.tar+gzip") for data in blobs],
        }
        return self.blob(json.dumps(document).encode(), "application/vnd.oci.image.manifest.v1+json")

    def add(self, descriptor: dict[str, Any], name: str = "") -> None:
        annotations = {"io.containerd.image.name": name} if name else {}
        self.descriptors.append({**descriptor, "annotations": annotations})

    def write(self, path: Path, *, gzipped: bool = False) -> Path:
        index = json.dumps({"schemaVersion": 2, "manifests": self.descriptors}).encode()
        return pack(path, {**self.files, "index.json": index}, gzipped=gzipped)


def oci_archive(
    path: Path,
    layers: Sequence[bytes],
    name: str = "example.com/app:1",
    config: Mapping[str, Any] | None = None,
    *,
    gzipped: bool = False,
) -> Path:
    """An OCI archive of one image."""
    layout = OciLayout()
    layout.add(layout.manifest(layers, config), name)
    return layout.write(path, gzipped=gzipped)


def docker_archive(
    path: Path, layers: Sequence[bytes], names: Sequence[str] = ("app:1",), config: Mapping[str, Any] | None = None
) -> Path:
    """What docker save wrote before it wrote OCI layouts."""
    spec = image_spec(layers, config)
    config_name = f"{digest(spec)[7:]}.json"
    files = {f"{index}/layer.tar": data for index, data in enumerate(layers)}
    manifest = [{"Config": config_name, "RepoTags": list(names), "Layers": list(files)}]
    return pack(path, {**files, config_name: spec, "manifest.json": json.dumps(manifest).encode()})
