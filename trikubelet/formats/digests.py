"""SHA-256 of short texts: names of links and files, keys of what is remembered.

By Python's own code. hashlib takes OpenSSL's, which is faster for whole images, and with its library needs 3.6 MiB and
3 ms: too much for a few names, as Python's own `random` finds too. Without that code it is hashlib's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        if sys.version_info >= (3, 12):
            from _sha2 import sha256
        else:
            from _sha256 import sha256
    except ImportError:
        from hashlib import sha256

__all__ = ("sha256",)
