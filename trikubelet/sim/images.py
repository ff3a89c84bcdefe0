"""The images of a simulated node: which are there, and how a pull of the others goes. No clock, no I/O."""

from __future__ import annotations

import hashlib
from collections import deque

from grpclib.const import Status

from trikubelet.formats.values import frozen

DEFAULT_SIZE = 10_000_000

_NO_CREDENTIALS = (
    "pull access denied, repository does not exist or may require authorization: "
    "authorization failed: no basic auth credentials"
)
_DENIED = (
    "pull access denied, repository does not exist or may require authorization: "
    "server message: insufficient_scope: authorization failed"
)


@frozen
class SimulatedImage:
    """An image as the runtime knows it."""

    reference: str
    """Full reference, e.g. docker.io/library/nginx:1.27."""
    id: str
    size: int = DEFAULT_SIZE
    uid: int | None = None
    """The numeric user that the image runs as, where it names one."""
    username: str = ""
    pinned: bool = False
    groups: tuple[int, ...] = ()
    """The groups that its /etc/group names for its user."""

    @property
    def repository(self) -> str:
        return repository(self.reference)

    @property
    def digest_reference(self) -> str:
        return f"{self.repository}@sha256:{_digest(self.reference + '/manifest')}"

    @property
    def tags(self) -> tuple[str, ...]:
        return () if "@" in self.reference else (self.reference,)


@frozen
class PullError:
    """How a pull fails."""

    message: str
    status: Status = Status.UNKNOWN


class ImageShelf:
    """Images that are there, and a registry that has every image unless told otherwise."""

    def __init__(self) -> None:
        self._present: dict[str, SimulatedImage] = {}
        self._offered: dict[str, SimulatedImage] = {}
        self._pull_seconds: dict[str, float] = {}
        self._pull_errors: dict[str, deque[PullError]] = {}
        self._missing: set[str] = set()
        self._accounts: dict[str, set[tuple[str, str]]] = {}
        self.default_pull_seconds = 0.0

    def add(
        self,
        reference: str,
        *,
        size: int = DEFAULT_SIZE,
        uid: int | None = None,
        username: str = "",
        pinned: bool = False,
        groups: tuple[int, ...] = (),
    ) -> SimulatedImage:
        """Put an image on the node, as if it had been pulled before."""
        image = self.offer(reference, size=size, uid=uid, username=username, pinned=pinned, groups=groups)
        self._present[image.id] = image
        return image

    def offer(
        self,
        reference: str,
        *,
        seconds: float | None = None,
        size: int = DEFAULT_SIZE,
        uid: int | None = None,
        username: str = "",
        pinned: bool = False,
        groups: tuple[int, ...] = (),
    ) -> SimulatedImage:
        """Say what a pull of this reference gives, and how long it takes."""
        name = normalize(reference)
        image = SimulatedImage(name, f"sha256:{_digest(name)}", size, uid, username, pinned, groups)
        self._offered[name] = image
        self._missing.discard(name)
        if seconds is not None:
            self._pull_seconds[name] = seconds
        return image

    def withdraw(self, reference: str) -> None:
        """The registry does not have this image: pulls of it fail with NOT_FOUND."""
        self._missing.add(normalize(reference))

    def protect(self, reference: str, username: str, password: str) -> None:
        """The registry gives the images of this repository to this user only, and to users named in earlier calls.

        An image that is on the node stays usable: the runtime does not know its users.
        """
        self._accounts.setdefault(repository(normalize(reference)), set()).add((username, password))

    def fail_pulls(self, reference: str, error: PullError, *, times: int = 1) -> None:
        """The next pulls of this reference fail, after their usual time."""
        self._pull_errors.setdefault(normalize(reference), deque()).extend([error] * times)

    def find(self, reference: str) -> SimulatedImage | None:
        """The image on the node that an id, tag or digest names."""
        if not reference:
            return None
        if reference in self._present:
            return self._present[reference]
        if f"sha256:{reference}" in self._present:
            return self._present[f"sha256:{reference}"]
        name = normalize(reference)
        for image in self._present.values():
            if name in (image.reference, image.digest_reference):
                return image
        return None

    def remove(self, reference: str) -> None:
        image = self.find(reference)
        if image is not None:
            del self._present[image.id]

    def present(self) -> list[SimulatedImage]:
        return list(self._present.values())

    def used_bytes(self) -> int:
        return sum(image.size for image in self._present.values())

    def pull_seconds(self, reference: str) -> float:
        return self._pull_seconds.get(normalize(reference), self.default_pull_seconds)

    def pull(self, reference: str, username: str = "", password: str = "") -> SimulatedImage | PullError:
        """The end of a pull: the image is on the node now, or the pull's error. No username: without credentials."""
        name = normalize(reference)
        if self._pull_errors.get(name):
            return self._pull_errors[name].popleft()
        unresolved = f'failed to pull and unpack image "{name}": failed to resolve reference "{name}"'
        accounts = self._accounts.get(repository(name))
        if accounts is not None and (username, password) not in accounts:
            return PullError(f"{unresolved}: {_DENIED if username else _NO_CREDENTIALS}")
        if name in self._missing:
            return PullError(f"{unresolved}: {name}: not found", Status.NOT_FOUND)
        image = self._offered.get(name) or self.offer(name)
        self._present[image.id] = image
        return image


def normalize(reference: str) -> str:
    """The full form of a reference: registry, path, and a tag where no digest is given."""
    name, at, digest = reference.partition("@")
    first, slash, rest = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}"
    elif first == "docker.io" and "/" not in rest:
        name = f"docker.io/library/{rest}"
    if at:
        return f"{repository(name)}@{digest}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def repository(reference: str) -> str:
    """A full reference without its tag and digest."""
    name = reference.partition("@")[0]
    path, slash, last = name.rpartition("/")
    return f"{path}{slash}{last.partition(':')[0]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
