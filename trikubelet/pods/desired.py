"""What the agent's parts may ask of the desired pods before its sync loop is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.pods.cleanup import is_inactive

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from trikubelet.api import Pod
    from trikubelet.pods.manager import PodManager
    from trikubelet.pods.registry import PodWorkerRegistry
    from trikubelet.sources.mux import SourceMux
    from trikubelet.status.manager import StatusManager


class DesiredPods:
    """Joins what the pod manager, the pod workers and the status manager know of the desired pods."""

    def __init__(self, pods: PodManager, registry: PodWorkerRegistry, statuses: StatusManager) -> None:
        self._pods = pods
        self._registry = registry
        self._statuses = statuses
        self._sources_ready = False

    def active(self) -> list[Pod]:
        """Those that have not ended (kubelet: `GetActivePods`)."""
        pods = self._pods.pods()
        workers = self._registry.summaries({pod.metadata.uid for pod in pods})
        return [pod for pod in pods if not is_inactive(pod, workers.get(pod.metadata.uid), self._reported(pod))]

    def active_uids(self) -> set[str]:
        return {pod.metadata.uid for pod in self.active()}

    def sources_ready(self) -> bool:
        """Whether the first pods of every source have been handled."""
        return self._sources_ready

    def handled(self, sources: SourceMux, names: AbstractSet[str]) -> bool:
        """The sync loop has handled the first pods of the sources with these names. Returns whether that is all."""
        self._sources_ready = sources.sources_ready(names)
        return self._sources_ready

    def _reported(self, pod: Pod) -> str | None:
        status = self._statuses.get_pod_status(pod.metadata.uid)
        return None if status is None else status.phase
