"""The volumes that are measured: how a pod asks for them, and the objects that they show."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import attrs

from benchmarks.termination.pods import PodPlan
from trikubelet.api import ConfigMap, ObjectMeta, Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMESPACE: Final = "default"
KEYS: Final = 3
VALUE: Final = "x" * 100
MOST_VOLUMES: Final = 50
TOKEN_SECONDS: Final = 3607


class Kind(enum.StrEnum):
    """One kind of volume. Each volume of a pod shows an object of its own, where it shows one."""

    CONFIG_MAP = "configMap"
    SECRET = "secret"
    PROJECTED = "projected"
    """As every pod with a service account has one: a token, a ConfigMap, the namespace."""
    DOWNWARD_API = "downwardAPI"
    EMPTY_DIR = "emptyDir"
    EMPTY_DIR_IN_MEMORY = "emptyDir, Memory"
    HOST_PATH = "hostPath"
    """Nothing is made: what it adds is what the runtime takes to mount a folder."""

    @property
    def asks_api_server(self) -> bool:
        return self in (Kind.CONFIG_MAP, Kind.SECRET, Kind.PROJECTED)

    @property
    def in_memory(self) -> bool:
        """Whether it is a tmpfs."""
        return self in (Kind.SECRET, Kind.PROJECTED, Kind.DOWNWARD_API, Kind.EMPTY_DIR_IN_MEMORY)

    @property
    def files(self) -> int:
        """How many a volume shows."""
        shown = {Kind.CONFIG_MAP: KEYS, Kind.SECRET: KEYS, Kind.PROJECTED: KEYS + 2, Kind.DOWNWARD_API: 2}
        return shown.get(self, 0)

    def source(self, number: int) -> dict[str, Any]:
        """Of the `number`-th volume of a pod, as in its manifest."""
        fields = [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        ]
        match self:
            case Kind.CONFIG_MAP:
                return {"configMap": {"name": object_name(number)}}
            case Kind.SECRET:
                return {"secret": {"secretName": object_name(number)}}
            case Kind.PROJECTED:
                token = {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}}
                namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
                config_map = {"configMap": {"name": object_name(number)}}
                return {"projected": {"sources": [token, config_map, {"downwardAPI": {"items": [namespace]}}]}}
            case Kind.DOWNWARD_API:
                return {"downwardAPI": {"items": fields}}
            case Kind.EMPTY_DIR:
                return {"emptyDir": {}}
            case Kind.EMPTY_DIR_IN_MEMORY:
                return {"emptyDir": {"medium": "Memory"}}
            case Kind.HOST_PATH:
                # There everywhere, and nothing is mounted in it: a runtime mounts a folder with all that is below.
                return {"hostPath": {"path": "/usr/lib"}}


@attrs.frozen
class VolumePlan(PodPlan):
    """A pod with some volumes of one kind, all mounted in its container."""

    kind: Kind = Kind.EMPTY_DIR
    count: int = 0

    def manifest(self, image: str, sign_folder: str, *, deletion_grace: int | None = None) -> dict[str, Any]:
        document = PodPlan.manifest(self, image, sign_folder, deletion_grace=deletion_grace)
        with_volumes(document["spec"], self.kind, self.count)
        return document


def with_volumes(spec: dict[str, Any], kind: Kind, count: int) -> None:
    """Add volumes to a pod's spec, and their mounts to its containers."""
    names = [f"volume-{number}" for number in range(count)]
    added = [{"name": name, **kind.source(number)} for number, name in enumerate(names)]
    spec["volumes"] = [*spec.get("volumes", ()), *added]
    mounts = [{"name": name, "mountPath": f"/volumes/{name}"} for name in names]
    for container in spec["containers"]:
        container["volumeMounts"] = [*container.get("volumeMounts", ()), *mounts]


def object_name(number: int) -> str:
    return f"shown-{number}"


def content() -> Mapping[str, str]:
    return {f"key-{number}": VALUE for number in range(KEYS)}


def config_map(number: int) -> ConfigMap:
    return ConfigMap(metadata=_metadata(number), data=dict(content()))


def secret(number: int) -> Secret:
    return Secret(metadata=_metadata(number), data={key: value.encode() for key, value in content().items()})


def _metadata(number: int) -> ObjectMeta:
    return ObjectMeta(name=object_name(number), namespace=NAMESPACE)
