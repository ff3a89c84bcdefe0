"""A container whose environment comes from an object that is not there yet starts when the object appears."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.scenarios.stage import Stage, cluster_stage

if TYPE_CHECKING:
    from trio.testing import MockClock

AT_ONCE = 3.0
"""Seconds; without being told, a worker would look again after ten and more."""
MAIN = {"name": "main", "image": "test:1"}


def waiting(stage: Stage, name: str = "web") -> tuple[str, str]:
    """Reason and message of a container that waits."""
    statuses = stage.status(name).get("containerStatuses", [])
    found = statuses[0]["state"].get("waiting", {}) if statuses else {}
    return found.get("reason", ""), found.get("message", "")


@pytest.mark.parametrize(
    ("container", "kind", "missing"),
    [
        ({"envFrom": [{"configMapRef": {"name": "settings"}}]}, "ConfigMap", 'configmap "settings" not found'),
        ({"envFrom": [{"secretRef": {"name": "settings"}}]}, "Secret", 'secret "settings" not found'),
        (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}]},
            "ConfigMap",
            'configmap "settings" not found',
        ),
    ],
)
async def test_a_pod_starts_when_the_object_that_it_lacked_appears(
    container: dict[str, Any], kind: str, missing: str, autojump_clock: MockClock
) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        stage.create_pod("web", containers=[{**MAIN, **container}])
        await stage.until(lambda: waiting(stage)[0] == "CreateContainerConfigError", what="the container does not wait")
        assert waiting(stage) == ("CreateContainerConfigError", missing)
        await trio.sleep(200)
        assert stage.phase("web") == "Pending"
        assert ("Warning", "Failed", f"Error: {missing}") in stage.events("web")
        metadata = {"name": "settings", "namespace": "default"}
        stage.admin.create({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": {"a": "MQ=="}})
        assert await stage.until_ready("web") < AT_ONCE


async def test_a_pod_starts_when_the_key_that_it_lacked_appears(autojump_clock: MockClock) -> None:
    async with cluster_stage() as stage:
        await stage.until_node_ready()
        document = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings", "namespace": "default"},
            "data": {"b": "1"},
        }
        stage.admin.create(document)
        reference = {"configMapKeyRef": {"name": "settings", "key": "a"}}
        stage.create_pod("web", containers=[{**MAIN, "env": [{"name": "A", "valueFrom": reference}]}])
        await stage.until(lambda: waiting(stage)[0] == "CreateContainerConfigError", what="the container does not wait")
        assert waiting(stage)[1] == "couldn't find key a in ConfigMap default/settings"
        await trio.sleep(200)
        stage.admin.patch("configmaps", "settings", body={"data": {"a": "1"}})
        assert await stage.until_ready("web") < AT_ONCE
