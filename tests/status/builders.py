"""Pods and statuses in few words, for the tables of this folder."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import attrs

from trikubelet.api import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
)
from trikubelet.container import model
from trikubelet.container.model import ContainerID, PodRuntimeStatus, SandboxStatus

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
LOST = "The container could not be located when the pod was deleted.  The container used to be Running"


def pod(
    *containers: Container | str,
    init: tuple[Container | str, ...] = (),
    restart: str = "Always",
    status: PodStatus | None = None,
    deleted: bool = False,
    static: bool = False,
    **spec: Any,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name="p",
            namespace="default",
            uid="u",
            deletion_timestamp=NOW if deleted else None,
            annotations={"kubernetes.io/config.source": "file" if static else "api"},
        ),
        spec=PodSpec(
            containers=tuple(_container(one) for one in containers),
            init_containers=tuple(_container(one) for one in init),
            restart_policy=restart,
            **spec,
        ),
        status=status or PodStatus(),
    )


def _container(one: Container | str) -> Container:
    return one if isinstance(one, Container) else Container(name=one)


def sidecar(name: str) -> Container:
    return Container(name=name, restart_policy="Always")


def with_rule(name: str, policy: str = "Never", action: str = "RestartAllContainers", code: int = 42) -> Container:
    codes = ContainerRestartRuleOnExitCodes(operator="In", values=(code,))
    rule = ContainerRestartRule(action=action, exit_codes=codes)
    return Container(name=name, restart_policy=policy, restart_policy_rules=(rule,))


def ended_state(code: int, reason: str = "", message: str = "") -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(exit_code=code, reason=reason, message=message))


def running(name: str, *, started: bool | None = None, **fields: Any) -> ContainerStatus:
    state = ContainerState(running=ContainerStateRunning())
    return ContainerStatus(name=name, state=state, started=started, **fields)


def ended(name: str, code: int = 0, **fields: Any) -> ContainerStatus:
    return ContainerStatus(name=name, state=ended_state(code), **fields)


def waiting(name: str, reason: str = "", last: int | None = None, **fields: Any) -> ContainerStatus:
    """Waits; `last` is the exit code of the container before."""
    return ContainerStatus(
        name=name,
        state=ContainerState(waiting=ContainerStateWaiting(reason=reason)),
        last_state=ContainerState() if last is None else ended_state(last),
        **fields,
    )


def lost(name: str, restarts: int, reason: str = "ContainerCreating") -> ContainerStatus:
    status = waiting(name, reason, restart_count=restarts)
    return attrs.evolve(status, last_state=ended_state(137, "ContainerStatusUnknown", LOST))


def restarting_all(name: str, restarts: int = 0) -> ContainerStatus:
    message = "The container is removed because RestartAllContainers in place"
    waits = ContainerStateWaiting(reason="RestartingAllContainers", message=message)
    return ContainerStatus(
        name=name,
        state=ContainerState(waiting=waits),
        last_state=ended_state(137, "RestartingAllContainers", message),
        restart_count=restarts,
    )


def seen(name: str, state: str = "running", code: int = 0, id_: str = "", **fields: Any) -> model.ContainerStatus:
    """A container as the runtime shows it."""
    return model.ContainerStatus(
        id=ContainerID("test", id_ or name),
        name=name,
        state=model.ContainerState(state),
        exit_code=code,
        pod_sandbox_id=fields.pop("pod_sandbox_id", "s"),
        **fields,
    )


def observed(*containers: model.ContainerStatus, sandbox: bool = True) -> PodRuntimeStatus:
    """What the runtime shows; with a ready sandbox unless told otherwise."""
    sandboxes = (SandboxStatus(id="s", attempt=0, ready=True, ips=("10.0.0.10",), network_reported=True),)
    return PodRuntimeStatus(
        uid="u",
        name="p",
        namespace="default",
        ips=("10.0.0.10",) if sandbox else (),
        container_statuses=containers,
        sandbox_statuses=sandboxes if sandbox else (),
    )
