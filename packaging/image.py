"""A container image of the agent as an OCI archive, made without Docker: a Python, our packages, and their libraries.

Nothing else is in it, not even a shell: who wants NFS volumes, iptables or a distribution around it takes the
Dockerfile. `trikubelet images import`, `ctr images import`, `podman load` and `skopeo copy oci-archive:…` take it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import binary

HOME: Final = f"opt/{binary.NAME}"
TYPE: Final = "application/vnd.oci.image"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def build_image(wheel: Path, version: str, target: Path) -> None:
    """Raises subprocess.CalledProcessError and OSError."""
    with TemporaryDirectory() as name:
        root = Path(name) / "root"
        binary.put_python(wheel, root / HOME)
        _put_machine(root)
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for entry in sorted(root.iterdir()):
                tar.add(entry, entry.name, filter=binary.as_roots)
    _write_archive(layer.getvalue(), version, target)


def _put_machine(root: Path) -> None:
    """What other images have from a distribution, as far as a static root folder goes."""
    library = root / HOME / "lib"
    python = root / HOME / "bin" / binary.PYTHON
    programs = (python, *library.rglob("*.so"), *library.rglob("*.so.*"))
    needed = {pair for program in programs for pair in binary.linked(program)}
    for name, found in sorted(needed):
        if name.startswith(binary.OF_EVERY_MACHINE):
            shutil.copy2(Path(found).resolve(), library / name)
    asked = [binary.PATCHELF, "--print-interpreter", python]
    loader = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True)
    place = Path(loader.stdout.strip())
    (root / place.relative_to("/")).parent.mkdir(parents=True)
    shutil.copy2(place.resolve(), root / place.relative_to("/"))
    for folder, mode in (("tmp", 0o1777), ("etc", 0o755), ("root", 0o700), ("var/lib", 0o755)):
        (root / folder).mkdir(parents=True)
        (root / folder).chmod(mode)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/\n")
    (root / "etc/group").write_text("root:x:0:\n")


def _write_archive(layer: bytes, version: str, target: Path) -> None:
    blobs: dict[str, bytes] = {}

    def add(media_type: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{TYPE}.{media_type}", "digest": f"sha256:{digest}", "size": len(content)}

    machine = {"architecture": _ARCHITECTURES[platform.machine()], "os": "linux"}
    config = {
        **machine,
        "config": {
            "Entrypoint": [f"/{HOME}/bin/{binary.PYTHON}", "-I", "-m", binary.NAME],
            "Cmd": ["run"],
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{TYPE}.manifest.v1+json",
        "config": add("config.v1+json", json.dumps(config).encode()),
        "layers": [add("layer.v1.tar+gzip", gzip.compress(layer, compresslevel=6, mtime=0))],
    }
    named = add("manifest.v1+json", json.dumps(manifest).encode())
    name = f"localhost/{binary.NAME}:{version}"
    named |= {
        "platform": machine,
        "annotations": {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name},
    }
    index = {"schemaVersion": 2, "mediaType": f"{TYPE}.index.v1+json", "manifests": [named]}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode(), **blobs}
    with tarfile.open(target, "w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
