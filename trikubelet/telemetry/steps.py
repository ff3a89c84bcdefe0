"""Steps: what is being done for each pod at this moment, and since when. Whoever asks why a pod waits finds it here.

A part of the agent says that it begins a step and that it has ended, in the words of CRI and of the kubelet. Nothing is
kept of a step that has ended, so nobody has to clean up, and a step costs no more than an object.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from trikubelet.formats.values import define

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


TURN: Final = "turn at the runtime"
"""A step around others: it is all that is known while a call has to wait for those of other pods."""


@define(eq=False)
class Step:
    """Something that goes on."""

    what: str
    """As `StopContainer`."""
    since: float
    """Trio time."""
    container: str = ""
    """Empty when it concerns the pod as a whole."""
    subject: str = ""
    """What it is done to, where that is no container: an image, say. Of the end of a container: why it ends."""
    deadline: Callable[[], float] | None = None
    """When its grace is over, in Trio time, as it is now: it may come sooner. None where it has none."""


class Steps:
    """The steps of all pods that go on."""

    def __init__(self) -> None:
        self._of_pods: dict[str, list[Step]] = {}

    @contextmanager
    def step(
        self,
        uid: str,
        what: str,
        *,
        container: str = "",
        subject: str = "",
        deadline: Callable[[], float] | None = None,
    ) -> Iterator[None]:
        """A step of the pod of this UID goes on within the block. Fields as of a `Step`."""
        step = Step(what, trio.current_time(), container, subject, deadline)
        steps = self._of_pods.setdefault(uid, [])
        steps.append(step)
        try:
            yield
        finally:
            steps.remove(step)
            if not steps and self._of_pods.get(uid) is steps:
                del self._of_pods[uid]

    def of_pod(self, uid: str) -> tuple[Step, ...]:
        """In the order in which they began: of two that contain each other the inner one is later."""
        return tuple(self._of_pods.get(uid, ()))
