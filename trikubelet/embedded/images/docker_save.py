"""Images of what `docker save` writes: `manifest.json` names configurations, layers and tags.

Docker before 1.10 wrote only `repositories` and a folder per layer, each with its parent's name; that is read too.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import Any

from trikubelet.embedded.images.archive import (
    ArchivedImage,
    ArchivedLayer,
    ArchiveFiles,
    diff_ids_of,
    digest_of,
    expect_object,
    expect_objects,
    expect_strings,
)
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.platform import Platform

MANIFEST = "manifest.json"
REPOSITORIES = "repositories"
_CONFIG_NAME = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?")
_MOST_LAYERS = 512


def find_images(files: ArchiveFiles, platform: Platform) -> list[ArchivedImage]:
    """The archive's images. Raises ArchiveError, also for one that this machine cannot run."""
    if MANIFEST not in files:
        return _find_legacy_images(files)
    _, document = files.read_document(MANIFEST)
    images = [_image(files, item, platform) for item in expect_objects(document, MANIFEST)]
    if not images:
        raise ArchiveError("the archive holds no image", entry=MANIFEST)
    return images


def _image(files: ArchiveFiles, item: dict[str, Any], platform: Platform) -> ArchivedImage:
    config = item.get("Config")
    if not isinstance(config, str):
        raise ArchiveError(f"expected a file name in 'Config', got {config!r}", entry=MANIFEST)
    named = _CONFIG_NAME.fullmatch(config)
    data, spec = files.read_object(config, digest=f"sha256:{named.group(1)}" if named else "")
    if Platform.from_json(spec).rank_on(platform) is None:
        raise ArchiveError(f"the image is for {Platform.from_json(spec)}; this machine is {platform}", entry=config)
    layers = expect_strings(item.get("Layers"), f"{MANIFEST}: Layers")
    diff_ids = diff_ids_of(spec, config, len(layers))
    return ArchivedImage(
        id=digest_of(data),
        names=tuple(expect_strings(item.get("RepoTags"), f"{MANIFEST}: RepoTags")),
        bare_tag="",
        digests=(),
        spec=spec,
        layers=tuple(
            ArchivedLayer(posixpath.normpath(layer), diff_id) for layer, diff_id in zip(layers, diff_ids, strict=True)
        ),
        documents=(data,),
    )


def _find_legacy_images(files: ArchiveFiles) -> list[ArchivedImage]:
    _, repositories = files.read_object(REPOSITORIES)
    names: dict[str, list[str]] = {}
    for repository, tags in repositories.items():
        for tag, top in expect_object(tags, f"{REPOSITORIES}: {repository}").items():
            names.setdefault(str(top), []).append(f"{repository}:{tag}")
    if not names:
        raise ArchiveError("the archive holds no image", entry=REPOSITORIES)
    return [_legacy_image(files, top, tuple(tags)) for top, tags in names.items()]


def _legacy_image(files: ArchiveFiles, top: str, names: tuple[str, ...]) -> ArchivedImage:
    """Follow the layers from the top one to the one without a parent, and write the configuration that they lack."""
    chain: list[str] = []
    config: object = {}
    layer: object = top
    while isinstance(layer, str) and layer:
        if len(chain) == _MOST_LAYERS:
            raise ArchiveError(f"more than {_MOST_LAYERS} layers, or a cycle of them", entry=REPOSITORIES)
        _, document = files.read_object(f"{layer}/json")
        if not chain:
            config = document.get("config")
        chain.append(layer)
        layer = document.get("parent")
    layers = [ArchivedLayer(f"{name}/layer.tar", files.diff_id(f"{name}/layer.tar")) for name in reversed(chain)]
    spec = {
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    }
    data = json.dumps(spec, sort_keys=True).encode()
    return ArchivedImage(
        id=digest_of(data),
        names=names,
        bare_tag="",
        digests=(),
        spec=spec,
        layers=tuple(layers),
        documents=(data,),
    )
