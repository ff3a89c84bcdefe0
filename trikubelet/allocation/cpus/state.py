"""Who has which CPUs."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from trikubelet.formats.values import frozen

Containers = Mapping[str, Mapping[str, int]]
"""By the pod's UID, then by the container's name."""


@frozen
class CpuState:
    """The CPUs of containers that have their own, and those that all others share. Never changed: a change makes
    another one."""

    shared: int = 0
    """The CPUs of all containers that have none of their own (kubelet: the default set)."""
    containers: Containers = attrs.field(factory=dict)
    pods: Mapping[str, int] = attrs.field(factory=dict)
    """The CPUs of pods that have them as a whole; those of their containers are among them."""

    def get(self, uid: str, container: str) -> int | None:
        """The container's own CPUs; None when it shares."""
        return self.containers.get(uid, {}).get(container)

    def of_pod(self, uid: str) -> int:
        """The CPUs of all its containers."""
        cpus = 0
        for one in self.containers.get(uid, {}).values():
            cpus |= one
        return cpus

    def with_container(self, uid: str, container: str, cpus: int) -> CpuState:
        of_pod = {**self.containers.get(uid, {}), container: cpus}
        return attrs.evolve(self, containers={**self.containers, uid: of_pod})

    def without_container(self, uid: str, container: str) -> CpuState:
        of_pod = {name: cpus for name, cpus in self.containers.get(uid, {}).items() if name != container}
        others = {other: containers for other, containers in self.containers.items() if other != uid}
        return attrs.evolve(self, containers={**others, uid: of_pod} if of_pod else others)
