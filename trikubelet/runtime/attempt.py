"""Which run of a container comes next: the number in its attempt, its log's name and its restart count. Pure.

An agent that is killed between CreateContainer and StartContainer leaves a container that was made and never started,
and so does one that is killed in the middle of StartContainer: containerd then gives the start up, and the container is
CREATED here (`convert.cut_off_container`) though containerd calls it exited. The kubelet makes the next one with the
next number, so its death costs the pod a restart. Here the successor takes the number, and the other one is removed
first: two containers of one number cannot be, and what is made now has the image, variables, volumes, resources and
sandbox that the pod has now. Where the runtime refuses to remove it, the next number is taken, as by the kubelet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.container.model import ContainerID, ContainerState
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from trikubelet.container.model import ContainerStatus, PodRuntimeStatus


@frozen
class Attempt:
    """The next run of a container."""

    number: int | None
    """How many came before. None: the runtime knows of none, and logs may tell."""
    replaces: ContainerID | None = None
    """A container that was made and never started. It is to be removed first."""


def next_attempt(status: PodRuntimeStatus, name: str) -> Attempt:
    """Of the container with this name, whose newest one does not run."""
    last = status.find_container(name)
    if last is None:
        return Attempt(None)
    if not was_only_made(last):
        return Attempt(last.restart_count + 1)
    ran = [one.restart_count for one in status.container_statuses if one.name == name and not was_only_made(one)]
    return Attempt(max([last.restart_count, *(number + 1 for number in ran)]), last.id)


def was_only_made(container: ContainerStatus) -> bool:
    """Whether it was never started."""
    return container.state is ContainerState.CREATED
