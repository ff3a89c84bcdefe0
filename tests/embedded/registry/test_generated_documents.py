"""Indexes, manifests and configurations from anybody: each is read or refused, whatever is in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.embedded.images.archives import digest
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.model import config_from_spec
from trikubelet.embedded.images.oci_layout import Manifest, config_of, digest_in, fittest_children, image_of, is_index
from trikubelet.embedded.images.platform import Platform
from trikubelet.embedded.registry.documents import parse_document
from trikubelet.embedded.registry.errors import PullError

HOST = Platform("linux", "amd64")
DIGEST = digest(b"")

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([DIGEST, "linux"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _object(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object that has the right fields with the right values, or others."""
    return st.fixed_dictionaries({}, optional={name: value | _ANYTHING for name, value in fields.items()})


_PLATFORM = _object(
    os=st.sampled_from(["linux", "windows", "unknown", ""]),
    architecture=st.sampled_from(["amd64", "arm64", "arm", ""]),
    variant=st.sampled_from(["v8", "v7", "vx", ""]),
)
_DESCRIPTOR = _object(
    mediaType=st.sampled_from(["application/vnd.oci.image.config.v1+json", "text/html"]),
    digest=st.just(DIGEST),
    size=st.integers(-1, 2**70),
    platform=_PLATFORM,
)
_INDEX = _object(schemaVersion=st.integers(1, 2), manifests=st.lists(_DESCRIPTOR, max_size=4))
_MANIFEST = _object(schemaVersion=st.integers(1, 2), config=_DESCRIPTOR, layers=st.lists(_DESCRIPTOR, max_size=3))
_CONFIG = _object(
    os=st.just("linux"),
    architecture=st.just("amd64"),
    rootfs=_object(diff_ids=st.lists(st.just(DIGEST), max_size=3)),
    config=_object(
        Env=st.lists(st.text()), Cmd=st.lists(st.text()), Labels=_ANYTHING, Volumes=_ANYTHING, User=st.text()
    ),
)


@pytest.mark.fuzz
@given(_INDEX)
def test_an_index_is_read_or_refused(index: dict[str, Any]) -> None:
    try:
        children, others = fittest_children(index, "index", HOST)
        for child in children:
            digest_in(child)
    except ArchiveError:
        return
    assert all(isinstance(other, str) for other in others)
    assert is_index(None, index)


@pytest.mark.fuzz
@given(_MANIFEST, _CONFIG)
def test_a_manifest_and_its_configuration_are_read_or_refused(document: dict[str, Any], spec: dict[str, Any]) -> None:
    try:
        config_digest = digest_in(config_of(document, "manifest"))
        image = image_of(Manifest(DIGEST, document, spec, config_digest, (DIGEST,)), "r.example/app:1", "")
        config_from_spec(spec)
    except ArchiveError:
        return
    Platform.from_json(spec).rank_on(HOST)
    assert len(image.layers) == len(document["layers"])


@pytest.mark.fuzz
@given(st.binary(max_size=200) | _ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_only_an_object_is_a_document(body: bytes) -> None:
    try:
        assert isinstance(parse_document(body, "document"), dict)
    except (ArchiveError, PullError):
        return
