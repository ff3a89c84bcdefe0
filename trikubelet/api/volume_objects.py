"""Which ConfigMaps and Secrets of its pod's namespace a volume names. Names may be empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.api.volumes import Volume


def volume_config_maps(volume: Volume) -> Iterator[str]:
    """Those whose content it shows."""
    if volume.config_map is not None:
        yield volume.config_map.name
    if volume.projected is not None:
        yield from (source.config_map.name for source in volume.projected.sources if source.config_map is not None)


def volume_secrets(volume: Volume) -> Iterator[str]:
    """Those whose content it shows, and those that it is mounted with."""
    if volume.secret is not None:
        yield volume.secret.secret_name
    if volume.projected is not None:
        yield from (source.secret.name for source in volume.projected.sources if source.secret is not None)
    if volume.azure_file is not None:
        yield volume.azure_file.secret_name
    if volume.csi is not None and volume.csi.node_publish_secret_ref is not None:
        yield volume.csi.node_publish_secret_ref.name
    for kind in (
        volume.cephfs,
        volume.cinder,
        volume.flex_volume,
        volume.rbd,
        volume.scale_io,
        volume.iscsi,
        volume.storageos,
    ):
        if kind is not None and kind.secret_ref is not None:
            yield kind.secret_ref.name
