"""Pods that wait for an image start when it is there, by another pod's pull, an import, or a command.

The embedded runtime's store is a folder that any process may write to, so the folder is watched. Other runtimes tell
nobody what they get; but the node's observer lists their images now and then, and says when the list is another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.image_names import InvalidImageNameError, with_default_tag
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError
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


async def watch_listed_images(agent: Agent) -> None:
    """Runs until cancelled: what somebody else has pulled or imported is seen within `IMAGES_PERIOD` seconds."""
    known = agent.observer.facts().images
    with agent.observer.changed.subscribe() as changes:
        while True:
            await changes.receive()
            changes.drop(None)
            if (listed := agent.observer.facts().images) == known:
                continue
            known = listed
            for pod in agent.pods.pods():
                for image in _awaited(agent, pod):
                    if await _is_there(agent, image):
                        agent.runtime.images.try_again(pod, image)


async def _is_there(agent: Agent, image: str) -> bool:
    try:
        return await agent.image_client.image_status(v1.ImageSpec(image=with_default_tag(image))) is not None
    except (CRIError, InvalidImageNameError) as error:
        log.debug("cannot tell whether an image has come", image=image, error=str(error))
        return False


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
