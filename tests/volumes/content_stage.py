"""A place for configMap, secret, downwardAPI and projected volumes, and what is in them."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import pytest

from tests.volumes.fake_mounter import FakeMounter
from trikubelet.api import ConfigMap, Pod, Quantity, Secret, pod_from_dict, set_pod_defaults
from trikubelet.broadcast import Broadcast, Subscription
from trikubelet.kube_client.object_getter import ObjectError
from trikubelet.kube_client.volume_objects import CertificateAndKey, References, Token
from trikubelet.linux.mounter import Mounter
from trikubelet.volumes.disk import Disk
from trikubelet.volumes.errors import VolumeError
from trikubelet.volumes.kinds.content import ConfigMapKind, ContentKind, DownwardAPIKind, ProjectedKind, SecretKind
from trikubelet.volumes.model import MountedVolume, SetUpRequest, VolumeSpec
from trikubelet.volumes.payload.files import PayloadFile
from trikubelet.volumes.stats import VolumeMeter

if TYPE_CHECKING:
    from trikubelet.api import ClusterTrustBundleProjection, PodCertificateProjection

T = TypeVar("T")

NOW = datetime(2026, 2, 1, 15, 4, 5, tzinfo=UTC)
GROUP = 4321


class Clock:
    def now(self) -> datetime:
        return NOW


@attrs.define
class Objects:
    """ConfigMaps and Secrets by name, or why they cannot be had."""

    config_maps: dict[str, ConfigMap | ObjectError] = attrs.field(factory=dict)
    secrets: dict[str, Secret | ObjectError] = attrs.field(factory=dict)
    asked: list[tuple[str, str]] = attrs.field(factory=list)

    @contextmanager
    def references(self, _uid: str) -> Iterator[References]:
        yield self

    def follow(self, pod: Pod) -> None: ...

    def referring(self, plural: str, namespace: str, name: str) -> Sequence[str]:
        return ()

    changes: Broadcast[tuple[str, str, str]] = attrs.field(factory=Broadcast)

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        self.asked.append((namespace, name))
        return _found(self.config_maps.get(name, ObjectError(f'configmap "{name}" not found', "not found")))

    async def secret(self, namespace: str, name: str) -> Secret:
        self.asked.append((namespace, name))
        return _found(self.secrets.get(name, ObjectError(f'secret "{name}" not found', "not found")))


@attrs.define
class Credentials:
    renew_at: datetime = NOW + timedelta(minutes=48)
    certificate_renew_at: datetime | None = None
    problem: ObjectError | None = None
    asked: list[tuple[object, ...]] = attrs.field(factory=list)
    forgotten: list[str] = attrs.field(factory=list)
    tokens: int = 0

    async def token(self, pod: Pod, audiences: tuple[str, ...], seconds: int | None) -> Token:
        self.asked.append((pod.metadata.uid, audiences, seconds))
        if self.problem is not None:
            raise self.problem
        self.tokens += 1
        return Token(f"token-{self.tokens}", NOW + timedelta(hours=1), self.renew_at)

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    async def trust_bundle(self, source: ClusterTrustBundleProjection) -> bytes:
        return f"anchors of {source.name or source.signer_name}".encode()

    async def pod_certificate(
        self, pod: Pod, volume: str, index: int, source: PodCertificateProjection
    ) -> CertificateAndKey:
        self.asked.append((volume, index, source.signer_name))
        return CertificateAndKey(b"CHAIN", b"KEY", self.certificate_renew_at)

    def changes(self) -> Subscription[str]:
        return Subscription(None)


def _found(answer: T | ObjectError) -> T:
    if isinstance(answer, ObjectError):
        raise answer
    return answer


@attrs.define
class Stage:
    root: Path
    mounter: Mounter = attrs.field(factory=FakeMounter)
    objects: Objects = attrs.field(factory=Objects)
    credentials: Credentials = attrs.field(factory=Credentials)
    allocatable: Mapping[str, Quantity] = attrs.field(factory=dict)

    def kind(self, volume: Mapping[str, Any]) -> ContentKind:
        common: dict[str, Any] = {
            "root": self.root,
            "mounter": self.mounter,
            "disk": Disk(),
            "meter": VolumeMeter(Clock()),
            "clock": Clock(),
            "allocatable": lambda: self.allocatable,
        }
        if "configMap" in volume:
            return ConfigMapKind(objects=self.objects, **common)
        if "secret" in volume:
            return SecretKind(objects=self.objects, **common)
        if "downwardAPI" in volume:
            return DownwardAPIKind(**common)
        return ProjectedKind(objects=self.objects, credentials=self.credentials, **common)

    def request(self, volume: Mapping[str, Any], **more: Any) -> SetUpRequest:
        """`pod`: fields of the specification; the rest are the request's."""
        pod = pod_of(volume, more.pop("pod", {}))
        kind = self.kind(volume)
        spec = VolumeSpec("vol", "vol", kind.plugin, pod.spec.volumes[0])
        return SetUpRequest(pod=pod, spec=spec, path=kind.path("uid-1", "vol"), **more)

    async def set_up(self, volume: Mapping[str, Any], **more: Any) -> MountedVolume:
        return await self.kind(volume).set_up(self.request(volume, **more))

    async def problem(self, volume: Mapping[str, Any], **more: Any) -> str:
        with pytest.raises(VolumeError) as failed:
            await self.set_up(volume, **more)
        assert failed.value.volume == "vol"
        return failed.value.problem

    async def tear_down(self, volume: Mapping[str, Any]) -> None:
        await self.kind(volume).tear_down("uid-1", "vol")

    def options(self, path: Path) -> tuple[str, ...]:
        found = self.mounter.table().at(path)
        assert found is not None, f"nothing is mounted at {path}"
        return found.super_options

    def left(self) -> list[str]:
        return sorted(str(path.relative_to(self.root / "pods/uid-1")) for path in self.root.glob("pods/uid-1/*/*/*"))


def pod_of(volume: Mapping[str, Any], spec: Mapping[str, Any]) -> Pod:
    return set_pod_defaults(
        pod_from_dict(
            {
                "metadata": {"name": "web", "namespace": "space", "uid": "uid-1", "labels": {"app": "<web>"}},
                "spec": {
                    "containers": [{"name": "main", "image": "i", "volumeMounts": [mount("vol", "/v")]}],
                    "volumes": [{"name": "vol", **volume}],
                    **spec,
                },
            }
        )
    )


def mount(name: str, path: str) -> dict[str, str]:
    return {"name": name, "mountPath": path}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


def filled_stage(root: Path) -> Stage:
    """With a ConfigMap and a Secret."""
    objects = Objects({"cm": ConfigMap(data={"a": "1", "b": "2"})}, {"sec": Secret(data={"pw": b"hunter2"})})
    return Stage(root, objects=objects)


CONFIG: dict[str, Any] = {"configMap": {"name": "cm"}}
SECRET: dict[str, Any] = {"secret": {"secretName": "sec"}}
NAME = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
LABELS = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
DOWNWARD: dict[str, Any] = {"downwardAPI": {"items": [NAME, LABELS]}}
TOKEN: dict[str, Any] = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
API_ACCESS: dict[str, Any] = {
    "projected": {
        "sources": [
            TOKEN,
            {"configMap": {"name": "cm", "items": [{"key": "a", "path": "ca.crt"}]}},
            {
                "downwardAPI": {
                    "items": [{**NAME, "path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
                }
            },
        ]
    }
}
ALL = [CONFIG, SECRET, DOWNWARD, API_ACCESS]
FOLDERS = ["configmap", "secret", "downward-api", "projected"]


def place(kind: ContentKind, request: SetUpRequest, payload: Mapping[str, bytes]) -> None:
    files = {path: PayloadFile(data, 0o644) for path, data in payload.items()}
    kind._place(request, files, ("inner",), None, NOW)
