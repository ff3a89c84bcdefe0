"""Names of objects: which are allowed, and how the server makes one from a prefix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def random_suffix(rng: random.Random) -> str:
    """What follows `generateName`."""
    return "".join(rng.choice(_SUFFIX_LETTERS) for _ in range(5))


def is_path_segment(text: str) -> bool:
    """The least that is asked of any name: it can be a part of a path."""
    return text not in ("", ".", "..") and not set(text) & set("/%")


def is_name(text: str) -> bool:
    """A DNS subdomain."""
    return len(text) <= 253 and _NAME.fullmatch(text) is not None
