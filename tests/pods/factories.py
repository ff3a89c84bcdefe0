"""Pods, requests and statuses for the tests of the pod workers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs
import trio

from trikubelet.api import Container, ObjectMeta, Pod, PodCondition, PodSpec, PodStatus
from trikubelet.api.pod_kinds import CONFIG_HASH_ANNOTATION, CONFIG_MIRROR_ANNOTATION, CONFIG_SOURCE_ANNOTATION
from trikubelet.container.model import (
    ContainerID,
    ContainerState,
    ContainerStatus,
    PodRuntimeStatus,
    RunningPod,
    SandboxStatus,
)
from trikubelet.pods.types import KillPod, KillRuntimePod, SyncPodType, UpdatePod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trikubelet.pods.types import Request

CREATE, UPDATE, SYNC, KILL = SyncPodType.CREATE, SyncPodType.UPDATE, SyncPodType.SYNC, SyncPodType.KILL
DELETED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def make_pod(
    uid: str,
    name: str = "web",
    *,
    static: bool = False,
    phase: str = "",
    grace: int | None = 30,
    deletion_grace: int | None = None,
    deleted: bool = False,
) -> Pod:
    """A pod in namespace `ns`. `deletion_grace` implies deleted."""
    return Pod(
        metadata=ObjectMeta(
            uid=uid,
            name=name,
            namespace="ns",
            annotations={CONFIG_SOURCE_ANNOTATION: "file", CONFIG_HASH_ANNOTATION: uid} if static else {},
            deletion_timestamp=DELETED_AT if deleted or deletion_grace is not None else None,
            deletion_grace_period_seconds=deletion_grace,
        ),
        spec=PodSpec(containers=(Container(name="main", image="image"),), termination_grace_period_seconds=grace),
        status=PodStatus(phase=phase),
    )


def make_mirror(pod: Pod, uid: str) -> Pod:
    annotations = {
        **pod.metadata.annotations,
        CONFIG_SOURCE_ANNOTATION: "api",
        CONFIG_MIRROR_ANNOTATION: pod.metadata.annotations.get(CONFIG_HASH_ANNOTATION, ""),
    }
    return attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, uid=uid, annotations=annotations))


def request(
    update_type: SyncPodType,
    pod: Pod | None = None,
    *,
    running_pod: RunningPod | None = None,
    mirror_pod: Pod | None = None,
    kill: Mapping[str, Any] | None = None,
    start_time: float = 0.0,
) -> Request:
    if pod is None:
        assert running_pod is not None
        return KillRuntimePod(running_pod=running_pod, start_time=start_time, **kill or {})
    if update_type is SyncPodType.KILL:
        return KillPod(pod=pod, mirror_pod=mirror_pod, start_time=start_time, **kill or {})
    return UpdatePod(update_type=update_type, pod=pod, mirror_pod=mirror_pod, start_time=start_time)


def running(uid: str, name: str = "web") -> RunningPod:
    return RunningPod(uid=uid, name=name, namespace="ns")


def runtime_status(uid: str, *, containers: bool = False, sandbox: bool = False, at: float = 0.0) -> PodRuntimeStatus:
    """A status with or without something that runs."""
    main = ContainerStatus(
        id=ContainerID("test", f"{uid}-main"),
        name="main",
        state=ContainerState.RUNNING if containers else ContainerState.EXITED,
    )
    return PodRuntimeStatus(
        uid=uid,
        name="web",
        namespace="ns",
        container_statuses=(main,),
        sandbox_statuses=(SandboxStatus(id=f"{uid}-sandbox", attempt=0, ready=sandbox),),
        observed_at=at,
    )


class AsAskedFor:
    """Stands for an AllocationManager: pods have what their specs say."""

    def allocated(self, pod: Pod) -> Pod:
        return pod

    def conditions(self, _uid: str) -> tuple[PodCondition, ...]:
        return ()

    def synced(self, _pod: Pod, *, in_progress: bool, error: str | None = None) -> bool:
        return False

    async def durable(self) -> None:
        await trio.lowlevel.checkpoint()
