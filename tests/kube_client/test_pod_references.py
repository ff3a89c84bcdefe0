"""Which objects a pod refers to, and that those are kept."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.kube_client.pod_scopes import PodScopes
from trikubelet.api import (
    LocalObjectReference,
    ObjectMeta,
    Pod,
    PodSpec,
    SecretVolumeSource,
    Volume,
    pod_from_dict,
)
from trikubelet.broadcast import Broadcast
from trikubelet.kube_client.pod_objects import PodObjects
from trikubelet.kube_client.pod_references import Key, references


def referred(**spec: Any) -> dict[tuple[str, str], bool]:
    """By plural and name."""
    document = {"metadata": {"name": "web", "namespace": "ns"}, "spec": {"containers": [], **spec}}
    found = references(pod_from_dict(document))
    assert {namespace for _, namespace, _ in found} <= {"ns"}
    return {(plural, name): lasting for (plural, _, name), lasting in found.items()}


@pytest.mark.parametrize("place", ["containers", "initContainers", "ephemeralContainers"])
def test_by_the_variables_of_every_container(place: str) -> None:
    container = {
        "name": "main",
        "image": "x",
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        "env": [
            {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "D", "valueFrom": {"secretKeyRef": {"name": "d", "key": "k"}}},
        ],
    }
    expected = {("configmaps", "a"), ("secrets", "b"), ("configmaps", "c"), ("secrets", "d")}
    assert referred(**{"containers": [], place: [container]}) == dict.fromkeys(expected, False)


def test_by_pull_secrets() -> None:
    assert referred(imagePullSecrets=[{"name": "pull"}, {}]) == {("secrets", "pull"): False}


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"configMap": {"name": "a"}}, {("configmaps", "a")}),
        ({"secret": {"secretName": "a"}}, {("secrets", "a")}),
        (
            {"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}}, {"downwardAPI": {}}]}},
            {("configmaps", "a"), ("secrets", "b")},
        ),
        ({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "a"}}}, {("secrets", "a")}),
        ({"azureFile": {"secretName": "a", "shareName": "s"}}, {("secrets", "a")}),
        *(
            ({kind: {"secretRef": {"name": "a"}}}, {("secrets", "a")})
            for kind in ("cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos")
        ),
        ({"emptyDir": {}}, set()),
        ({"persistentVolumeClaim": {"claimName": "a"}}, set()),
        ({"secret": {}}, set()),
    ],
)
def test_by_volumes_for_as_long_as_the_pod_lives(volume: dict[str, Any], expected: set[tuple[str, str]]) -> None:
    assert referred(volumes=[{"name": "v", **volume}]) == dict.fromkeys(expected, True)


def test_a_volume_counts_more_than_a_variable() -> None:
    container = {"name": "main", "image": "x", "envFrom": [{"configMapRef": {"name": "a"}}]}
    volume = {"name": "v", "configMap": {"name": "a"}}
    assert referred(containers=[container], volumes=[volume]) == {("configmaps", "a"): True}


@attrs.define
class Counted:
    """`Copies` that only remember who refers to what."""

    users: dict[Key, dict[str, bool]] = attrs.field(factory=dict)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...

    def refer(self, key: Key, uid: str, *, lasting: bool) -> None:
        self.users.setdefault(key, {})[uid] = lasting

    def release(self, key: Key, uid: str) -> None:
        del self.users[key][uid]
        if not self.users[key]:
            del self.users[key]

    async def get(self, key: Key) -> None: ...

    changes: Broadcast[Key] = attrs.field(factory=Broadcast)


NAMES = st.frozensets(st.sampled_from("abc"))
STEPS = st.lists(st.tuples(st.sampled_from("123"), st.none() | st.tuples(NAMES, NAMES)))


@given(STEPS)
def test_what_is_kept_is_what_the_registered_pods_refer_to(
    steps: list[tuple[str, tuple[frozenset[str], frozenset[str]] | None]],
) -> None:
    copies = Counted()
    objects = PodObjects(copies)
    scopes = PodScopes(objects)
    pods: dict[str, Pod] = {}
    for uid, change in steps:
        if change is None:
            scopes.end(uid)
            pods.pop(uid, None)
            continue
        pulls, shown = change
        pods[uid] = Pod(
            metadata=ObjectMeta(name=uid, namespace="ns", uid=uid),
            spec=PodSpec(
                image_pull_secrets=tuple(LocalObjectReference(name) for name in pulls),
                volumes=tuple(Volume(name=name, secret=SecretVolumeSource(name)) for name in shown),
            ),
        )
        scopes.follow(pods[uid])
    expected: dict[Key, dict[str, bool]] = {}
    for uid, pod in pods.items():
        for key, lasting in references(pod).items():
            expected.setdefault(key, {})[uid] = lasting
    assert copies.users == expected
    assert objects.registered == len(pods)
