"""Image references, read as containerd and Docker read them (distribution/reference: ParseDockerRef).

Pure: text in, values out. A name without a host means Docker Hub (`docker.io`), a one-word name there means its
`library/` folder, no tag and no digest means `latest`; where a digest is given, the tag is dropped.
"""

from __future__ import annotations

import re

from trikubelet.embedded.images.errors import InvalidReferenceError
from trikubelet.formats.values import frozen

DEFAULT_HOST = "docker.io"
DEFAULT_TAG = "latest"
SHORTEST_ID_PREFIX = 12
"""What image lists show. A shorter prefix is no id: a missing image called `cafe` must not become another one."""

_MAX_NAME_LENGTH = 255
_HOST_PART = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_PATH_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_PATH_PART}(?:/{_PATH_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_HEX_ID = re.compile(r"[0-9a-f]{64}")
_ID_PREFIX = re.compile(rf"(?:sha256:)?([0-9a-f]{{{SHORTEST_ID_PREFIX},64}})")


@frozen
class Reference:
    """A full image reference: a repository with either a tag or a digest."""

    repository: str
    """With host: `docker.io/library/busybox`."""
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference as people write it. Raises InvalidReferenceError."""
        name, at, digest = text.partition("@")
        if at and not _DIGEST.fullmatch(digest):
            raise InvalidReferenceError(text, f"{digest!r} is no sha256 or sha512 digest")
        repository, tag = _split_tag(name)
        if tag is not None and not _TAG.fullmatch(tag):
            raise InvalidReferenceError(text, f"{tag!r} is no tag")
        if _HEX_ID.fullmatch(repository):
            raise InvalidReferenceError(text, "64 hexadecimal digits are an image id, not a name")
        host, path = _split_host(repository)
        if path != path.lower():
            raise InvalidReferenceError(text, "a repository name must be lowercase")
        if not _HOST.fullmatch(host) or not _PATH.fullmatch(path):
            raise InvalidReferenceError(text, f"{repository!r} is no repository name")
        full = f"{host}/{path}"
        if len(full) > _MAX_NAME_LENGTH:
            raise InvalidReferenceError(text, f"a repository name has at most {_MAX_NAME_LENGTH} characters")
        return cls(full, digest=digest) if digest else cls(full, tag=tag or DEFAULT_TAG)


def bare_repository(text: str) -> str | None:
    """The full name of a repository, where the text is one without tag and digest; else None."""
    if "@" in text or _split_tag(text)[1] is not None:
        return None
    try:
        return Reference.parse(text).repository
    except InvalidReferenceError:
        return None


def is_digest(text: str) -> bool:
    """Whether the text is a complete digest, `sha256:…` or `sha512:…`."""
    return _DIGEST.fullmatch(text) is not None


def id_prefix(text: str) -> str | None:
    """The hexadecimal digits of an image id or a prefix of one (with or without `sha256:`), None for other texts."""
    match = _ID_PREFIX.fullmatch(text)
    return match.group(1) if match else None


def _split_tag(name: str) -> tuple[str, str | None]:
    colon = name.rfind(":")
    if colon == -1 or "/" in name[colon:]:  # `host:5000/path` has a port, no tag
        return name, None
    return name[:colon], name[colon + 1 :]


def _split_host(repository: str) -> tuple[str, str]:
    first, slash, rest = repository.partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    host, path = (first, rest) if is_host else (DEFAULT_HOST, repository)
    if host == "index.docker.io":
        host = DEFAULT_HOST
    if host == DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    return host, path
