"""`localhost/host`: the machine's own root filesystem as an image. It needs no import and cannot be removed."""

from __future__ import annotations

from pathlib import Path

from trikubelet.embedded.images.model import ImageConfig, LayerFormat, StoredImage
from trikubelet.formats.digests import sha256

HOST_IMAGE_NAME = "localhost/host"
HOST_IMAGE_TAG = f"{HOST_IMAGE_NAME}:latest"

# The id has to be the same on every start, so that a pod's recorded image stays known; there is no content to hash.
HOST_IMAGE_ID = "sha256:" + sha256(b"the root filesystem of the host").hexdigest()

KUBELET_FOLDERS = (Path("/var/lib/kubelet"), Path("/etc/kubernetes"))
"""Where a kubelet and a control plane have keys and pods' Secrets: no container of this image sees these."""

_SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST_SPEC = {"os": "linux", "config": {"Cmd": ["/bin/sh"], "Env": [_SEARCH_PATH], "WorkingDir": "/"}}


def host_image() -> StoredImage:
    """The image of `/`. It takes no room of its own; clients take an image without size for broken."""
    return StoredImage(
        id=HOST_IMAGE_ID,
        repo_tags=(HOST_IMAGE_TAG,),
        repo_digests=(),
        size=1,
        config=ImageConfig(cmd=("/bin/sh",), env=(_SEARCH_PATH,), working_dir="/"),
        layers=(Path("/"),),
        is_host=True,
        pinned=True,
        layer_format=LayerFormat.FLAT,
    )
