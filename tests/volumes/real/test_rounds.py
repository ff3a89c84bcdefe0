"""Pods with volumes of every kind that come and go, again and again: nothing adds up.

`VOLUME_ROUNDS=200` in the environment makes it as many rounds as a night has time for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.examples import examples
from tests.volumes.real.joined_node import mounts
from tests.volumes.real.served_cluster import DRIVER, PROVISIONED
from tests.volumes.real.test_storage import claimed, csi

if TYPE_CHECKING:
    from tests.volumes.real.joined_node import JoinedNode

ROUNDS: Final = int(os.environ.get("VOLUME_ROUNDS", examples(12)))
AT_ONCE: Final = 5


def volumes_of_every_kind(node: JoinedNode) -> list[dict[str, Any]]:
    folder = node.node.shared / "rounds"
    folder.mkdir()
    node.cluster.create("ConfigMap", "rounds", data={"a": "1"})
    node.cluster.create("Secret", "rounds", data={"a": "MQ=="})
    template = {"storageClassName": PROVISIONED, "accessModes": ["ReadWriteOnce"]}
    request = {"resources": {"requests": {"storage": "1Mi"}}}
    sources = [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "rounds"}}]
    items = [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]
    return [
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "host", "hostPath": {"path": str(folder)}},
        {"name": "map", "configMap": {"name": "rounds"}},
        {"name": "secret", "secret": {"secretName": "rounds"}},
        {"name": "me", "downwardAPI": {"items": items}},
        {"name": "projected", "projected": {"sources": sources}},
        {"name": "inline", "csi": {"driver": DRIVER}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {**template, **request}}}},
        claimed(node, "rounds-csi", csi=csi("rounds")),
        claimed(node, "rounds-local", local={"path": str(folder)}, nodeAffinity=None),
        claimed(node, "rounds-host", hostPath={"path": str(folder)}),
    ]


def test_rounds_leave_nothing(node: JoinedNode) -> None:
    volumes = volumes_of_every_kind(node)
    at = mounts(*((volume["name"], f"/v/{volume['name']}") for volume in volumes))
    at += [{"name": "disk", "mountPath": "/part", "subPath": "a/b"}]
    container = node.container("echo x > /part/file; try looks test -f /v/map/a", volumeMounts=at)

    def play(numbers: range) -> None:
        names = [f"round-{number}" for number in numbers]
        for name in names:
            node.start(name, container, volumes=volumes)
        for name in names:
            assert node.seen(name) == {"looks": "yes"}
        node.end(*names)

    play(range(-2, 0))  # what is opened once and kept
    before = node.state()
    used = open_descriptors(node)
    for first in range(0, ROUNDS, AT_ONCE):
        play(range(first, min(first + AT_ONCE, ROUNDS)))
    node.until_as(before)
    node.until(lambda: open_descriptors(node) <= used, f"there are not more descriptors than {used}")


def open_descriptors(node: JoinedNode) -> int:
    """How many the agent has, connections and all."""
    assert node.node.agent is not None
    return len(list(Path(f"/proc/{node.node.agent.pid}/fd").iterdir()))
