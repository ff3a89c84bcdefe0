"""What can go wrong with an image: each kind an exception with fields, and a text that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


_LONGEST: Final = 500
"""Characters of a part of a text."""


class ImageError(Exception):
    """Anything that an image operation refuses to do."""


class InvalidReferenceError(ImageError, ValueError):
    """A text that is no image name, digest or id."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(
            f"{reference!r} is no image reference: {reason} (expected [HOST/]NAME[:TAG][@sha256:DIGEST] or an image id)"
        )
        self.reference = reference
        self.reason = reason


class ArchiveError(ImageError):
    """An archive that cannot or must not be imported. `entry` names the offending part of it."""

    def __init__(self, reason: str, *, entry: str | None = None) -> None:
        # Both may quote what somebody made to be long.
        reason, entry = _shortened(reason), entry and _shortened(entry)
        super().__init__(reason if entry is None else f"entry {entry!r}: {reason}")
        self.entry = entry
        self.reason = reason


class ImagePinnedError(ImageError):
    """An image that is always there, and cannot be removed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"image {name!r} is this machine's own root filesystem and cannot be removed or replaced")
        self.name = name


class ImageInUseError(ImageError):
    """An image that containers are made of."""

    def __init__(self, name: str, users: Sequence[str]) -> None:
        super().__init__(f"image {name!r} is in use by container {', '.join(users)}: remove the container first")
        self.name = name
        self.users = tuple(users)


class ImageGoneError(ImageError):
    """An image that was removed meanwhile."""

    def __init__(self, image_id: str) -> None:
        super().__init__(f"image {image_id} was removed meanwhile")
        self.image_id = image_id


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
