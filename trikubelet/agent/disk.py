"""What keeps images and logs from filling the node's disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trikubelet.agent.options import image_gc_policy, log_rotation_policy
from trikubelet.runtime.images.gc import ImageCollector
from trikubelet.runtime.logs.rotation import LogRotator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from datetime import datetime

    from trikubelet.clock import WallClock
    from trikubelet.config.kubelet_configuration import KubeletConfiguration
    from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
    from trikubelet.runtime.manager import RuntimeManager
    from trikubelet.runtime.pod_files import PodFiles
    from trikubelet.telemetry.events import EventRecorder


def disk_garbage_collectors(
    configuration: KubeletConfiguration,
    runtime_client: RuntimeClient,
    image_client: ImageClient,
    runtime: RuntimeManager,
    files: PodFiles,
    *,
    recorder: EventRecorder,
    clock: WallClock,
    on_collected: Callable[[Collection[str], datetime], Awaitable[None]],
) -> tuple[ImageCollector, LogRotator]:
    """`on_collected`: see `ImageCollector`."""
    images = ImageCollector(
        image_client,
        runtime_client,
        recorder=recorder,
        clock=clock,
        policy=image_gc_policy(configuration),
        holds=runtime.image_holds,
        on_collected=on_collected,
        removed=runtime.metrics.images_removed,
    )
    logs = LogRotator(
        runtime_client,
        files,
        logs_dir=Path(configuration.pod_logs_dir),
        clock=clock,
        policy=log_rotation_policy(configuration),
    )
    return images, logs
