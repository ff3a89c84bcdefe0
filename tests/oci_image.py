"""Small images for tests: static busybox in a root folder, as one layer of an OCI image."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"


@attrs.frozen
class OciImage:
    """The three blobs of an image."""

    layer: bytes
    config: bytes
    manifest: bytes

    @classmethod
    def from_folder(cls, rootfs: Path, config: Mapping[str, object]) -> OciImage:
        """An image whose only layer is that folder; `config` is what containers get of it (`Cmd`, `User`, …).

        The same content makes the same image.
        """
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.add(rootfs, ".", filter=_without_time)
        layer_bytes = layer.getvalue()
        image_config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [digest(layer_bytes)]},
            }
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPE,
                "config": _descriptor("application/vnd.oci.image.config.v1+json", image_config),
                "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer_bytes)],
            }
        ).encode()
        return cls(layer_bytes, image_config, manifest)

    @property
    def blobs(self) -> tuple[bytes, ...]:
        """What the manifest names."""
        return self.layer, self.config

    @property
    def id(self) -> str:
        """What the CRI calls the image."""
        return digest(self.config)

    def write_archive(self, out: Path, name: str) -> None:
        """Write an OCI archive with this image, called `name`."""
        annotations = {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1],
        }
        entry = _descriptor(MANIFEST_TYPE, self.manifest) | {"annotations": annotations}
        index = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
        files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index}
        files |= {"blobs/sha256/" + digest(blob)[7:]: blob for blob in (*self.blobs, self.manifest)}
        with tarfile.open(out, "w") as archive:
            for path, data in files.items():
                info = tarfile.TarInfo(path)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def make_root_folder(rootfs: Path) -> Path:
    """Static busybox with all its commands, and two users. Raises RuntimeError where there is no busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise RuntimeError("expected a static busybox on PATH; apt-get install busybox-static")
    for folder in ("bin", "tmp", "etc", "proc", "sys", "dev"):
        (rootfs / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(busybox, rootfs / "bin" / "busybox")
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    for command in {*listed.split()} - {"busybox"}:
        link = rootfs / "bin" / command
        if not link.is_symlink():
            link.symlink_to("busybox")
    (rootfs / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n")
    (rootfs / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\nmore:x:5000:user\n")
    return rootfs


def write_oci_archive(out: Path, rootfs: Path, name: str, config: Mapping[str, object]) -> None:
    """Pack a root folder into an OCI image archive with one image, called `name`."""
    OciImage.from_folder(rootfs, config).write_archive(out, name)


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _without_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = 0
    return member


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}
