"""The scopes of pods, as far as what they refer to goes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trikubelet.api import Pod
    from trikubelet.kube_client.volume_objects import References, WatchedObjects


class PodScopes:
    """Opens what a pod refers to when the pod is first followed, and closes it when the pod has ended."""

    def __init__(self, objects: WatchedObjects) -> None:
        self._objects = objects
        self._open: dict[str, tuple[ExitStack, References]] = {}

    def follow(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid not in self._open:
            stack = ExitStack()
            self._open[uid] = stack, stack.enter_context(self._objects.references(uid))
        self._open[uid][1].follow(pod)

    def end(self, uid: str) -> None:
        """Fine when it has ended already."""
        if uid in self._open:
            self._open.pop(uid)[0].close()
