"""Which ConfigMaps and Secrets a pod refers to (kubelet: `VisitPodConfigmapNames`, `VisitPodSecretNames`). Pure.

Only what the pod itself names: the secrets of a persistent volume are somebody else's, of another namespace perhaps,
and are asked for when they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.api import volume_config_maps, volume_secrets
from trikubelet.api.environment import config_map_names, secret_names
from trikubelet.kube_client.types import CONFIG_MAPS, SECRETS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.api import Pod

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
        found.update(((CONFIG_MAPS.plural, namespace, name), True) for name in volume_config_maps(volume))
        found.update(((SECRETS.plural, namespace, name), True) for name in volume_secrets(volume))
    return {key: in_volume for key, in_volume in found.items() if key[2]}
