"""Paths of Unix sockets may be longer than the 107 bytes of a socket address.

The way round is the folder's descriptor, through which procfs gives every file of the folder a short name.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST: Final = 107
"""Bytes, without the final zero (`sockaddr_un.sun_path`)."""


@contextmanager
def socket_address(path: str) -> Iterator[str]:
    """A name to bind or connect to, valid inside the block.

    Raises OSError when the folder cannot be opened, and for a path with a NUL, which the kernel would cut there.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, "a socket's path cannot contain a NUL", path)
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    folder, name = os.path.split(path)
    descriptor = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
