"""Images of an OCI image layout: `index.json` leads to manifests, those to configurations and layers, all by digest.

What the documents mean is the same for a layout in a file and for a registry, which reads them with the functions here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trikubelet.embedded.images.archive import (
    ArchivedImage,
    ArchivedLayer,
    ArchiveFiles,
    diff_ids_of,
    expect_object,
    expect_objects,
)
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.platform import Platform
from trikubelet.embedded.images.reference import is_digest
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

INDEX = "index.json"
_CONTAINERD_NAME = "io.containerd.image.name"
_REF_NAME = "org.opencontainers.image.ref.name"
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_CONFIG_TYPES = (
    "",
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
DEEPEST_INDEX = 4
_MOST_LAYERS = 1024


@frozen
class Manifest:
    """A manifest, its configuration read and checked."""

    digest: str
    document: dict[str, Any]
    spec: dict[str, Any]
    """The image configuration."""
    config_digest: str
    way: tuple[str, ...]
    """Digests from the top to the manifest."""
    documents: tuple[bytes, ...] = ()
    """The configuration, the manifest, and the indexes that led to it, as they are."""


def find_images(files: ArchiveFiles, platform: Platform) -> list[ArchivedImage]:
    """The layout's images that run on `platform`. Raises ArchiveError, also when there is none.

    Where several have the same name (one per platform), the fittest is taken.
    """
    _, index = files.read_object(INDEX)
    best: dict[object, tuple[int, ArchivedImage]] = {}
    others: list[str] = []
    for descriptor in expect_objects(index.get("manifests"), INDEX):
        for candidate in _candidates(files, descriptor, platform, (), (), others):
            name, bare_tag = _name(descriptor)
            image = image_of(candidate, name, bare_tag)
            rank = Platform.from_json(candidate.spec).rank_on(platform)
            if rank is None:
                others.append(str(Platform.from_json(candidate.spec)))
                continue
            key = (name, bare_tag) if name or bare_tag else image.id
            if key not in best or rank < best[key][0]:
                best[key] = (rank, image)
    if not best:
        if others:
            raise ArchiveError(
                f"the archive's images are for {', '.join(sorted(set(others)))}; this machine is {platform}"
            )
        raise ArchiveError("the archive holds no image", entry=INDEX)
    return [image for _, image in best.values()]


def _name(descriptor: dict[str, Any]) -> tuple[str, str]:
    """The image's name, or else its bare tag: `ref.name` may hold either."""
    annotations = expect_object(descriptor.get("annotations") or {}, f"{INDEX}: annotations")
    name = str(annotations.get(_CONTAINERD_NAME) or "")
    ref_name = str(annotations.get(_REF_NAME) or "")
    if name or "/" in ref_name or ":" in ref_name:
        return name or ref_name, ""
    return "", ref_name


def _candidates(
    files: ArchiveFiles,
    descriptor: dict[str, Any],
    platform: Platform,
    way: tuple[str, ...],
    above: tuple[bytes, ...],
    others: list[str],
) -> Iterator[Manifest]:
    """Manifests that a descriptor leads to: its own, or of an index the fittest whose file is in the archive."""
    digest = digest_in(descriptor)
    if len(way) >= DEEPEST_INDEX:
        raise ArchiveError(f"more than {DEEPEST_INDEX} indexes lead to it", entry=_blob(digest))
    data, document = files.read_object(_blob(digest), digest=digest)
    way, above = (*way, digest), (data, *above)
    if not is_index(descriptor.get("mediaType"), document):
        candidate = _manifest(files, digest, document, way, above)
        if candidate is not None:
            yield candidate
        return
    children, unfit = fittest_children(document, _blob(digest), platform)
    others += unfit
    for child in [child for child in children if _blob(digest_in(child)) in files][:1]:
        yield from _candidates(files, child, platform, way, above, others)


def is_index(media_type: object, document: dict[str, Any]) -> bool:
    """Whether a document of that type leads to others by platform. Raises ArchiveError for one that may be both.

    Different programs would take the same digest for different images.
    """
    if document.get("manifests") is not None and not {"config", "layers"}.isdisjoint(document):
        raise ArchiveError("an index and a manifest in one", entry=str(media_type or "manifest"))
    return media_type in INDEX_TYPES or "manifests" in document


def fittest_children(
    document: dict[str, Any], entry: str, platform: Platform
) -> tuple[list[dict[str, Any]], list[str]]:
    """The descriptors of an index that suit the platform, the fittest first, and what platforms the others are for.

    Raises ArchiveError.
    """
    ranked: list[tuple[bool, int, dict[str, Any]]] = []
    others: list[str] = []
    for child in expect_objects(document.get("manifests"), entry):
        child_platform = Platform.from_json(expect_object(child.get("platform") or {}, entry))
        rank = child_platform.rank_on(platform)
        if rank is not None:
            ranked.append((not child_platform.os, rank, child))
        elif child_platform.os != "unknown":
            others.append(str(child_platform))
    return [child for *_, child in sorted(ranked, key=lambda item: item[:2])], others


def config_of(document: dict[str, Any], entry: str) -> dict[str, Any]:
    """The descriptor of a manifest's image configuration. Raises ArchiveError for what is no image's manifest."""
    if document.get("schemaVersion") == 1:
        raise ArchiveError("a manifest of Docker's schema 1: save the image again with a newer program", entry=entry)
    config = expect_object(document.get("config"), f"{entry}: config")
    if (media_type := config.get("mediaType") or "") not in _CONFIG_TYPES:
        raise ArchiveError(f"no container image: its configuration is of the type {media_type!r}", entry=entry)
    return config


def _manifest(
    files: ArchiveFiles, digest: str, document: dict[str, Any], way: tuple[str, ...], above: tuple[bytes, ...]
) -> Manifest | None:
    config_digest = digest_in(config_of(document, _blob(digest)))
    data, spec = files.read_object(_blob(config_digest), digest=config_digest)
    if spec.get("os") == "unknown":  # a build attestation dressed as an image
        return None
    return Manifest(digest, document, spec, config_digest, way, (data, *above))


def image_of(candidate: Manifest, name: str, bare_tag: str) -> ArchivedImage:
    """The image that a manifest describes. Raises ArchiveError."""
    entry = _blob(candidate.digest)
    descriptors = expect_objects(candidate.document.get("layers"), f"{entry}: layers")
    if len(descriptors) > _MOST_LAYERS:
        raise ArchiveError(f"it has {len(descriptors)} layers, more than {_MOST_LAYERS}", entry=entry)
    for descriptor in descriptors:
        if "encrypted" in str(descriptor.get("mediaType")):
            raise ArchiveError("its layers are encrypted", entry=entry)
    diff_ids = diff_ids_of(candidate.spec, _blob(candidate.config_digest), len(descriptors))
    digests = [digest_in(descriptor) for descriptor in descriptors]
    return ArchivedImage(
        id=candidate.config_digest,
        names=(name,) if name else (),
        bare_tag=bare_tag,
        digests=candidate.way if len(candidate.way) == 1 else (candidate.way[0], candidate.way[-1]),
        spec=candidate.spec,
        layers=tuple(
            ArchivedLayer(_blob(digest), diff_id, digest) for digest, diff_id in zip(digests, diff_ids, strict=True)
        ),
        documents=candidate.documents,
    )


def digest_in(descriptor: dict[str, Any]) -> str:
    """A descriptor's digest. Raises ArchiveError."""
    digest = descriptor.get("digest")
    if not isinstance(digest, str) or not is_digest(digest):
        raise ArchiveError(f"expected a sha256 or sha512 digest in a descriptor, got {digest!r}")
    return digest


def _blob(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value}"
