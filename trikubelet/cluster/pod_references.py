"""Which ConfigMaps and Secrets a pod refers to (kubelet: `VisitPodConfigmapNames`, `VisitPodSecretNames`). Pure.

Only what the pod itself names: the secrets of a persistent volume are somebody else's, of another namespace perhaps,
and are asked for when they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.cluster.types import CONFIG_MAPS, SECRETS
from trikubelet.runtime.environment_objects import config_map_names, secret_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trikubelet.api import Pod, Volume

Key = tuple[str, str, str]
"""Plural of the resource, namespace, name."""


def references(pod: Pod) -> Mapping[Key, bool]:
    """What the pod refers to, and whether a volume of it shows the object's content for as long as the pod lives.

    Everything else is read when something starts, and not again before something starts again.
    """
    namespace = pod.metadata.namespace
    found: dict[Key, bool] = {}
    for container in (*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers):
        found.update(((CONFIG_MAPS.plural, namespace, name), False) for name in config_map_names(container))
        found.update(((SECRETS.plural, namespace, name), False) for name in secret_names(container))
    found.update(((SECRETS.plural, namespace, one.name), False) for one in pod.spec.image_pull_secrets)
    for volume in pod.spec.volumes:
        for plural, name in (*_contents(volume), *_credentials(volume)):
            found[plural, namespace, name] = True
    return {key: in_volume for key, in_volume in found.items() if key[2]}


def _contents(volume: Volume) -> Iterator[tuple[str, str]]:
    if volume.config_map is not None:
        yield CONFIG_MAPS.plural, volume.config_map.name
    if volume.secret is not None:
        yield SECRETS.plural, volume.secret.secret_name
    for source in volume.projected.sources if volume.projected is not None else ():
        if source.config_map is not None:
            yield CONFIG_MAPS.plural, source.config_map.name
        if source.secret is not None:
            yield SECRETS.plural, source.secret.name


def _credentials(volume: Volume) -> Iterator[tuple[str, str]]:
    """What a volume is mounted with."""
    if volume.azure_file is not None:
        yield SECRETS.plural, volume.azure_file.secret_name
    if volume.csi is not None and volume.csi.node_publish_secret_ref is not None:
        yield SECRETS.plural, volume.csi.node_publish_secret_ref.name
    for source in (
        volume.cephfs,
        volume.cinder,
        volume.flex_volume,
        volume.rbd,
        volume.scale_io,
        volume.iscsi,
        volume.storageos,
    ):
        if source is not None and source.secret_ref is not None:
            yield SECRETS.plural, source.secret_ref.name
