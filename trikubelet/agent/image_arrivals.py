"""Pods that wait for an image start when it is there, by another pod's pull, an import, or a command.

The embedded runtime's store is a folder that any process may write to, so the folder is watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.runtime.images.manager import ERR_IMAGE_NEVER_PULL, ERR_IMAGE_PULL
from trikubelet.runtime.results import IMAGE_PULL_BACK_OFF
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio_typing import TaskStatus

    from trikubelet.agent.agent import Agent
    from trikubelet.api import Pod
    from trikubelet.embedded.images.store import ImageStore

log = get_logger("images")

_WAITING: Final = frozenset({ERR_IMAGE_PULL, IMAGE_PULL_BACK_OFF, ERR_IMAGE_NEVER_PULL})


async def watch_image_arrivals(
    agent: Agent, images: ImageStore, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Runs until cancelled. Where the folder cannot be watched, pods wait for their next attempt."""
    try:
        with images.watched() as changed:
            task_status.started()
            while True:
                await changed()
                for pod in agent.pods.pods():
                    wake(agent, pod, images)
    except OSError as error:
        log.warning("the image store cannot be watched", error=str(error))
        task_status.started()


def wake(agent: Agent, pod: Pod, images: ImageStore) -> None:
    """Sync a pod that waits for an image which is there now."""
    for image in _awaited(agent, pod):
        if images.resolve(image) is not None:
            agent.runtime.images.try_again(pod, image)


def _awaited(agent: Agent, pod: Pod) -> Iterator[str]:
    status = agent.statuses.get_pod_status(pod.metadata.uid)
    if status is None:
        return
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason in _WAITING:
            yield container.image
