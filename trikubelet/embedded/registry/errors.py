"""Why an image could not be pulled, in kinds that a caller can act upon."""

from __future__ import annotations

import enum

from trikubelet.embedded.images.errors import ImageError
from trikubelet.formats.values import frozen


class PullFailure(enum.Enum):
    """What kept an image from coming."""

    NOT_FOUND = "not found"
    DENIED = "denied"
    """Credentials are missing, wrong, or not enough."""
    UNREACHABLE = "unreachable"
    """No connection, no answer in time, or the server's own failure, also after several tries."""
    WRONG_CONTENT = "wrong content"
    """Other bytes than the digest says, or a document that is no image's."""
    NO_PLATFORM = "no platform"
    """The image is for other machines."""
    NO_SPACE = "no space"
    CONFIGURATION = "configuration"
    """A hosts.toml, certificate or credential that cannot be used."""


class PullError(ImageError):
    """An image did not come. The text names the reference, the host and the reason."""

    def __init__(self, failure: PullFailure, reference: str, reason: str) -> None:
        super().__init__(f"{reference}: {reason}")
        self.failure = failure
        self.reference = reference
        self.reason = reason


class HostsFileError(Exception):
    """A registry's host configuration cannot be used; the text names the file."""


@frozen
class HostError(Exception):
    """One try at one host failed."""

    failure: PullFailure
    reason: str
    """With the host's name."""
    may_pass: bool = False
    """Whether the same request may succeed a little later."""
    retry_after: float | None = None
    """Seconds that the server asked to wait."""

    def __str__(self) -> str:
        return self.reason
