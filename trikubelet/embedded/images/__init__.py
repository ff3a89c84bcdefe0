"""The embedded runtime's images: from an archive file to directories that a container's root is made of.

The way of an image through this package:

1. `archive` opens a file (an OCI layout or the output of `docker save`, plain or gzipped) and finds its images:
   names, configuration, and layers, each checked against its digest. `platform` chooses this machine's image where
   an archive holds several.
2. `unpack` writes a layer's tar stream into a directory, and refuses what a hostile archive would do to the host.
3. `store` keeps the outcome: a directory per layer, named by its content and shared between images, and a JSON record
   per image (`records`). An import or pull works in a staging directory (`staging`) and becomes visible with one
   rename.
4. `reference` reads names as people write them (`busybox`, `localhost/app:1`, an id) into their full form.

`localhost/host`, the machine's own root filesystem, is always among the images (`host`).
"""

from __future__ import annotations

from trikubelet.embedded.images.errors import (
    ArchiveError,
    ImageError,
    ImageInUseError,
    ImagePinnedError,
    InvalidReferenceError,
)
from trikubelet.embedded.images.host import HOST_IMAGE_NAME
from trikubelet.embedded.images.model import ImageConfig, LayerFormat, StoredImage, UnpackLimits
from trikubelet.embedded.images.reference import Reference
from trikubelet.embedded.images.store import ImageStore, StoreUsage

__all__ = [
    "HOST_IMAGE_NAME",
    "ArchiveError",
    "ImageConfig",
    "ImageError",
    "ImageInUseError",
    "ImagePinnedError",
    "ImageStore",
    "InvalidReferenceError",
    "LayerFormat",
    "Reference",
    "StoreUsage",
    "StoredImage",
    "UnpackLimits",
]
