"""Pods and what the runtime shows of them: three containers, with or without init containers, sidecars and guests."""

from __future__ import annotations

from typing import Any

import attrs

from trikubelet.api import Container, EphemeralContainer, ObjectMeta, Pod, PodSpec, Probe
from trikubelet.container.hashing import hash_container
from trikubelet.container.model import (
    ContainerID,
    ContainerState,
    ContainerStatus,
    PodRuntimeStatus,
    SandboxStatus,
)

SANDBOX = SandboxStatus(id="sandboxID", attempt=0, ready=True, ips=("10.0.0.1",), network_reported=True)
MAIN = tuple(Container(name=f"foo{number}", image="busybox") for number in (1, 2, 3))
INIT = tuple(Container(name=f"init{number}", image="bar-image") for number in (1, 2, 3))
SIDECARS = tuple(
    Container(
        name=f"restartable-init-{number}",
        image="bar-image",
        restart_policy="Always",
        liveness_probe=Probe() if number > 1 else None,
        startup_probe=Probe() if number > 1 else None,
    )
    for number in (1, 2, 3)
)
DEBUG = EphemeralContainer(name="debug", image="busybox")


@attrs.frozen
class Situation:
    """A pod and its status, changed step by step by the tests."""

    pod: Pod
    status: PodRuntimeStatus

    def spec(self, **changes: Any) -> Situation:
        return attrs.evolve(self, pod=attrs.evolve(self.pod, spec=attrs.evolve(self.pod.spec, **changes)))

    def policy(self, policy: str) -> Situation:
        return self.spec(restart_policy=policy)

    def container(self, name: str, **changes: Any) -> Situation:
        """Change a container's spec."""

        def change(containers: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(attrs.evolve(one, **changes) if one.name == name else one for one in containers)

        spec = self.pod.spec
        return self.spec(
            init_containers=change(spec.init_containers),
            containers=change(spec.containers),
            ephemeral_containers=change(spec.ephemeral_containers),
        )

    def sandbox(self, **changes: Any) -> Situation:
        sandboxes = (attrs.evolve(self.status.sandbox_statuses[0], **changes), *self.status.sandbox_statuses[1:])
        return attrs.evolve(self, status=attrs.evolve(self.status, sandbox_statuses=sandboxes))

    def no_sandbox(self) -> Situation:
        return attrs.evolve(self, status=attrs.evolve(self.status, sandbox_statuses=()))

    def seen(self, name: str, state: ContainerState, **changes: Any) -> Situation:
        """Change what was seen of a container."""
        return self._statuses(
            attrs.evolve(one, state=state, **changes) if one.name == name else one
            for one in self.status.container_statuses
        )

    def exited(self, name: str, exit_code: int = 0, **changes: Any) -> Situation:
        return self.seen(name, ContainerState.EXITED, exit_code=exit_code, **changes)

    def running(self, name: str) -> Situation:
        return self.seen(name, ContainerState.RUNNING)

    def only(self, *names: str) -> Situation:
        """The runtime knows just these containers."""
        return self._statuses(one for one in self.status.container_statuses if one.name in names)

    def also(self, *statuses: ContainerStatus) -> Situation:
        return self._statuses((*self.status.container_statuses, *statuses))

    def deleted(self, timestamp: Any) -> Situation:
        metadata = attrs.evolve(self.pod.metadata, deletion_timestamp=timestamp)
        return attrs.evolve(self, pod=attrs.evolve(self.pod, metadata=metadata))

    def _statuses(self, statuses: Any) -> Situation:
        return attrs.evolve(self, status=attrs.evolve(self.status, container_statuses=tuple(statuses)))


def status_of(container: Container, identifier: str, state: ContainerState, **changes: Any) -> ContainerStatus:
    return ContainerStatus(
        id=ContainerID("", identifier), name=container.name, state=state, hash=hash_container(container), **changes
    )


def three_running(restart_policy: str = "") -> Situation:
    """Three main containers, all running."""
    pod = Pod(
        metadata=ObjectMeta(uid="12345678", name="foo", namespace="foo-ns"),
        spec=PodSpec(containers=MAIN, restart_policy=restart_policy),
    )
    statuses = [status_of(MAIN[index], f"id{index + 1}", ContainerState.RUNNING) for index in range(3)]
    return _situation(pod, statuses)


def three_initialized() -> Situation:
    """Three init containers that ended well; no main container was made yet."""
    situation = three_running().spec(init_containers=INIT)
    return situation._statuses(
        status_of(INIT[index], f"initid{index + 1}", ContainerState.EXITED) for index in range(3)
    )


def three_sidecars() -> Situation:
    """Three sidecars that run; no main container was made yet."""
    situation = three_running().spec(init_containers=SIDECARS)
    return situation._statuses(
        status_of(SIDECARS[index], f"initid{index + 1}", ContainerState.RUNNING) for index in range(3)
    )


def with_guest() -> Situation:
    """Three main containers that run, an init container that ended well, and an ephemeral container that runs."""
    situation = three_running().spec(init_containers=INIT[:1], ephemeral_containers=(DEBUG,))
    return situation.also(
        status_of(INIT[0], "initid1", ContainerState.EXITED),
        status_of(DEBUG, "debug-1", ContainerState.RUNNING),
    )


def _situation(pod: Pod, statuses: list[ContainerStatus]) -> Situation:
    status = PodRuntimeStatus(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        sandbox_statuses=(SANDBOX,),
        container_statuses=tuple(statuses),
    )
    return Situation(pod, status)
