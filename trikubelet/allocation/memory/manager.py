"""The memory manager, as the topology manager sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from trikubelet.allocation.demands import ends_before_others
from trikubelet.allocation.memory.state import MemoryState
from trikubelet.allocation.memory.static_policy import MEMORY, StaticPolicy
from trikubelet.allocation.topology.hints import giving
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trikubelet.allocation.topology.hints import Hints, TopologyHint
    from trikubelet.api import Container, Pod


@frozen
class MemoryManager:
    """The static policy and who has memory of which NUMA nodes. See `topology.admit.ResourceManager`."""

    policy: StaticPolicy
    state: MemoryState

    def is_settled(self, pod: Pod, container: Container) -> bool:
        return self.policy.is_settled(self.state, pod, container)

    def hints(self, pod: Pod, container: Container) -> Hints:
        return self.policy.hints(self.state, pod, container)

    def pod_hints(self, pod: Pod) -> Hints:
        return self.policy.pod_hints(self.state, pod)

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> MemoryManager:
        with giving(MEMORY):
            return attrs.evolve(self, state=self.policy.allocate(self.state, pod, container, hint))

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> MemoryManager:
        with giving(MEMORY):
            return attrs.evolve(self, state=self.policy.allocate_pod(self.state, pod, hint))

    def when_it_starts(self, pod: Pod, container: Container) -> MemoryManager:
        """Without what init containers have that have ended when this container starts."""
        state = self.state
        for one in pod.spec.init_containers:
            if one.name == container.name:
                break
            if ends_before_others(pod, one):
                state = self.policy.end_container(state, pod.metadata.uid, one.name)
        return attrs.evolve(self, state=state)

    def keep_only(self, pods: Mapping[str, Collection[str]]) -> MemoryManager:
        """Without what containers have that are none of these: names by the pod's UID."""
        state = self.state
        for uid, containers in self.state.containers.items():
            for name in containers.keys() - set(pods.get(uid, ())):
                state = self.policy.remove_container(state, uid, name)
        return attrs.evolve(self, state=state)
