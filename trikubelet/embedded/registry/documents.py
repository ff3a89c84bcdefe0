"""From a reference to the image that it names for this machine: index, manifest, configuration, each by its digest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from trikubelet.embedded.images.archive import ArchivedImage, digest_of, expect_object, expect_objects, parse_json
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.oci_layout import (
    DEEPEST_INDEX,
    INDEX_TYPES,
    Manifest,
    config_of,
    digest_in,
    fittest_children,
    image_of,
    is_index,
)
from trikubelet.embedded.images.platform import Platform
from trikubelet.embedded.images.reference import is_digest
from trikubelet.embedded.registry.client import read_limited
from trikubelet.embedded.registry.errors import HostError, PullFailure
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.embedded.images.reference import Reference
    from trikubelet.embedded.registry.client import HostConnections, RegistryClient

MANIFEST_TYPES: Final = (
    *INDEX_TYPES,
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ACCEPT: Final = {"Accept": ", ".join(MANIFEST_TYPES)}
MOST_BYTES: Final = 4 * 2**20
"""Of one document, as containerd's limit."""
_MOST_PLATFORMS: Final = 10
"""To be told of."""


@frozen
class PulledImage:
    """An image whose documents are here and checked, its layers not yet."""

    image: ArchivedImage
    """Its only digest is what the reference meant. Its layers' files are named by their digests, which are compared
    while they are read, so that unpacking need not."""
    sizes: dict[str, int]
    """Of the packed layers, by digest."""


@frozen
class _Document:
    body: bytes
    content: dict[str, Any]
    digest: str
    media_type: str


async def resolve(client: RegistryClient, reference: Reference) -> str:
    """The digest that a reference means now, without reading what it names; empty where the host does not tell.

    Raises HostError.
    """

    async def ask(host: HostConnections) -> str:
        path = f"manifests/{reference.digest or reference.tag}"
        async with host.request("HEAD", path, _ACCEPT, by_digest=False) as response:
            digest: str = response.headers.get("docker-content-digest", "")
        return reference.digest or (digest if is_digest(digest) else "")

    return await client.on_hosts(ask, resolves=not reference.digest)


async def read_image(client: RegistryClient, reference: Reference, digest: str, platform: Platform) -> PulledImage:
    """The image for `platform`. `digest` is what `resolve` said. Raises HostError, ArchiveError."""
    top = document = await _read(client, "manifests", digest, tag=reference.tag)
    documents = [document.body]
    for _ in range(DEEPEST_INDEX):
        if not is_index(document.media_type, document.content):
            break
        children, others = fittest_children(document.content, document.digest, platform)
        if not children:
            raise _no_match(others, platform)
        document = await _read(client, "manifests", digest_in(children[0]), size=size_in(children[0]))
        documents.insert(0, document.body)
    else:
        raise ArchiveError(f"more than {DEEPEST_INDEX} indexes lead to it", entry=document.digest)
    described = config_of(document.content, document.digest)
    config = await _read(client, "blobs", digest_in(described), size=size_in(described))
    configured = Platform.from_json(config.content)
    if configured.rank_on(platform) is None:
        raise _no_match([str(configured)], platform)
    manifest = Manifest(
        document.digest, document.content, config.content, config.digest, (top.digest,), (config.body, *documents)
    )
    layers = expect_objects(document.content.get("layers"), document.digest)
    image = image_of(manifest, str(reference), "")
    files = tuple(attrs.evolve(layer, file=layer.digest, checked=True) for layer in image.layers)
    return PulledImage(attrs.evolve(image, layers=files), {digest_in(layer): size_in(layer) for layer in layers})


async def _read(client: RegistryClient, kind: str, digest: str, *, tag: str = "", size: int = 0) -> _Document:
    """A JSON document by its digest; where there is none yet, by tag."""

    async def ask(host: HostConnections) -> _Document:
        if size > MOST_BYTES:
            raise HostError(PullFailure.WRONG_CONTENT, f"{digest} is said to have {size} bytes, more than {MOST_BYTES}")
        headers = _ACCEPT if kind == "manifests" else {}
        async with host.request("GET", f"{kind}/{digest or tag}", headers, by_digest=bool(digest)) as response:
            with trio.fail_after(client.timeouts.document):
                body = await read_limited(response, MOST_BYTES, host.name)
            media_type = response.headers.get("content-type", "").partition(";")[0].strip()
        found = digest_of(body, (digest or "sha256:").partition(":")[0])
        if digest and found != digest:
            raise HostError(
                PullFailure.WRONG_CONTENT, f"{host.name} sent other content than {digest}: its digest is {found}"
            )
        return _Document(body, parse_document(body, found), found, media_type)

    return await client.on_hosts(ask, resolves=not digest)


def parse_document(body: bytes, entry: str) -> dict[str, Any]:
    """Raises ArchiveError."""
    return expect_object(parse_json(body, entry), entry)


def size_in(descriptor: dict[str, Any]) -> int:
    """A descriptor's size. Raises ArchiveError."""
    size = descriptor.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**63:
        raise ArchiveError(f"expected a number of bytes in a descriptor, got {size!r}")
    return size


def _no_match(others: list[str], platform: Platform) -> HostError:
    names = sorted(set(others))
    found = ", ".join(names[:_MOST_PLATFORMS] + ["others"] * (len(names) > _MOST_PLATFORMS)) or "no platform"
    return HostError(PullFailure.NO_PLATFORM, f"no match for this machine ({platform}): the image is for {found}")
