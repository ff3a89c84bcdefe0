"""The CPU manager, as the topology manager sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from trikubelet.allocation.cpus.state import CpuState
from trikubelet.allocation.cpus.static_policy import StaticPolicy
from trikubelet.allocation.topology.hints import giving
from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from trikubelet.allocation.topology.hints import Hints, TopologyHint
    from trikubelet.api import Container, Pod

CPU: Final = "cpu"


@frozen
class CpuManager:
    """The static policy and who has which CPUs. See `topology.admit.ResourceManager`."""

    policy: StaticPolicy
    state: CpuState

    def is_settled(self, pod: Pod, container: Container) -> bool:
        return self.policy.is_settled(self.state, pod, container)

    def hints(self, pod: Pod, container: Container) -> Hints:
        found = self.policy.hints(self.state, pod, container)
        return {} if found is None else {CPU: found}

    def pod_hints(self, pod: Pod) -> Hints:
        found = self.policy.pod_hints(self.state, pod)
        return {} if found is None else {CPU: found}

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> CpuManager:
        with giving(CPU):
            return attrs.evolve(self, state=self.policy.allocate(self.state, pod, container, hint.nodes))

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> CpuManager:
        with giving(CPU):
            return attrs.evolve(self, state=self.policy.allocate_pod(self.state, pod, hint.nodes))

    def keep_only(self, pods: Mapping[str, Collection[str]]) -> CpuManager:
        """Without what containers have that are none of these: names by the pod's UID."""
        state = self.state
        for uid, containers in self.state.containers.items():
            for name in containers.keys() - set(pods.get(uid, ())):
                state = self.policy.remove_container(state, uid, name)
        return attrs.evolve(self, state=state)
