"""The hash that shows whether a running container still is the one that the pod asks for.

It is stored in a container's annotations when the container is made and compared at every sync. A node that is taken
over from a Go kubelet holds containers with the Go kubelet's hashes, so the value must be the same to the bit:
FNV-1a, 32 bits, over how Go prints the bytes of a small JSON object with the container's image and name. Nothing
else of a container can change while it runs, so nothing else is hashed.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from trikubelet.formats.hashing import fnv1a_32, go_json_string

if TYPE_CHECKING:
    from trikubelet.api import Container, EphemeralContainer

MOST_HASHED: Final = 4096
"""Characters of an image and a name; runtimes take no image beyond a few hundred."""


def hash_container(container: Container | EphemeralContainer) -> int:
    """The container's hash (kubelet: `HashContainer`). Beyond MOST_HASHED characters it is another one: no container
    has such an image or name, so none has the kubelet's hash of it either, and that takes a second a megabyte."""
    if len(container.image) + len(container.name) > MOST_HASHED:
        return zlib.crc32(f"{container.image}\0{container.name}".encode(errors="surrogatepass"))
    fields = f'{{"image":{go_json_string(container.image)},"name":{go_json_string(container.name)}}}'
    printed = "([]uint8)[" + " ".join(str(byte) for byte in fields.encode()) + "]"
    return fnv1a_32(printed.encode())
