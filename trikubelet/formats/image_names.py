"""Names of images: which are valid, and what a short one means.

`busybox` is `docker.io/library/busybox:latest` to a registry, but it is given to the runtime as `busybox:latest`: which
registry a short name goes to is the runtime's to say. The grammar is that of `distribution/reference`, and so are the
errors, since users find them by searching.
"""

from __future__ import annotations

import re
from typing import Final

from trikubelet.formats.values import frozen

_DOMAIN_COMPONENT: Final = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN: Final = rf"(?:{_DOMAIN_COMPONENT}(?:\.{_DOMAIN_COMPONENT})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PATH_COMPONENT: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATH: Final = rf"{_PATH_COMPONENT}(?:/{_PATH_COMPONENT})*"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST: Final = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE: Final = re.compile(
    rf"(?P<name>(?:{_DOMAIN}/)?{_PATH})(?::(?P<tag>{_TAG}))?(?:@(?P<digest>{_DIGEST}))?", re.ASCII
)
_IMAGE_ID: Final = re.compile(r"[a-f0-9]{64}")

_DEFAULT_DOMAIN: Final = "docker.io"
_OFFICIAL_PREFIX: Final = "library/"
_DEFAULT_TAG: Final = "latest"
_MAX_NAME: Final = 255
_MAX_TEXT: Final = 4096
"""Characters of all of it, tag and digest included."""


@frozen
class InvalidImageNameError(ValueError):
    """A text is no image name."""

    image: str
    problem: str

    def __str__(self) -> str:
        return f'couldn\'t parse image name "{self.image}": {self.problem}'


@frozen
class ImageName:
    """A complete image name."""

    repository: str
    """With the registry: `docker.io/library/busybox`."""
    tag: str
    """`latest` when neither tag nor digest is given; empty when only a digest is."""
    digest: str

    def __str__(self) -> str:
        """As a registry knows it; of an image with tag and digest only the digest counts."""
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"


def parse_image_name(image: str) -> ImageName:
    """Read an image name (Kubernetes: `parsers.ParseImageName`). Raises InvalidImageNameError."""
    if len(image) > _MAX_TEXT:
        raise InvalidImageNameError(image, "invalid reference format")
    if _IMAGE_ID.fullmatch(image):
        problem = f"invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
        raise InvalidImageNameError(image, problem)
    domain, remainder = _split_domain(image)
    path = remainder.partition(":")[0]
    if path.lower() != path:
        raise InvalidImageNameError(image, f"invalid reference format: repository name ({path}) must be lowercase")
    match = _REFERENCE.fullmatch(f"{domain}/{remainder}")
    if match is None:
        raise InvalidImageNameError(image, "invalid reference format")
    repository = match["name"]
    if len(repository) - len(domain) - 1 > _MAX_NAME:
        raise InvalidImageNameError(image, f"repository name must not be more than {_MAX_NAME} characters")
    tag, digest = match["tag"] or "", match["digest"] or ""
    if not tag and not digest:
        tag = _DEFAULT_TAG
    return ImageName(repository, tag, digest)


def with_default_tag(image: str) -> str:
    """The name with `:latest` where it has neither tag nor digest. Raises InvalidImageNameError."""
    name = parse_image_name(image)
    if not name.digest and not image.endswith(f":{name.tag}"):
        return f"{image}:{name.tag}"
    return image


def without_tag_and_digest(image: str) -> str:
    """The name as it was written, but without its tag and digest: `busybox:1` is `busybox`.

    Raises InvalidImageNameError.
    """
    match = _REFERENCE.fullmatch(image)
    if match is None:
        raise InvalidImageNameError(image, "invalid reference format")
    return match["name"]


def _split_domain(image: str) -> tuple[str, str]:
    first, slash, rest = image.partition("/")
    is_domain = slash and ("." in first or ":" in first or first == "localhost" or first.lower() != first)
    domain, remainder = (first, rest) if is_domain else (_DEFAULT_DOMAIN, image)
    if domain == "index.docker.io":
        domain = _DEFAULT_DOMAIN
    if domain == _DEFAULT_DOMAIN and "/" not in remainder:
        remainder = _OFFICIAL_PREFIX + remainder
    return domain, remainder
