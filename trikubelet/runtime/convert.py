"""From the CRI's messages to the values of `model`. Pure."""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import attrs
import betterproto

from trikubelet.cgroups.settings import milli_of_quota, milli_of_shares
from trikubelet.container.labels import CONTAINER_NAME, read_container_record
from trikubelet.container.model import (
    ContainerID,
    ContainerState,
    ContainerStatus,
    ContainerUser,
    RuntimeContainer,
    RuntimeResources,
    SandboxStatus,
)
from trikubelet.rpc.cri import v1
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

log = get_logger("runtime")

START_ERROR: Final = "StartError"
START_ERROR_CODE: Final = 128
"""Reason and exit code of a container that the runtime could not start."""
_NOTHING_SAID: Final = RuntimeResources()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CUT_OFF: Final = re.compile(
    r"(?!failed to start )(failed to [^:]*: |start failed: |unix:[^:]*: |: )+"
    r"(context cancell?ed|signal: killed)(: unknown)?"
)
"""containerd's words where its client left before the process began: its own steps, and no word of the OCI runtime. A
start that was cut off later ("failed to start containerd task") may have run the process for a moment."""
_STATES: Final = {
    v1.ContainerState.CONTAINER_CREATED: ContainerState.CREATED,
    v1.ContainerState.CONTAINER_RUNNING: ContainerState.RUNNING,
    v1.ContainerState.CONTAINER_EXITED: ContainerState.EXITED,
}


def time_from_nanoseconds(nanoseconds: int) -> datetime | None:
    """A CRI timestamp, None for the zero that means there is none."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000) if nanoseconds > 0 else None


def container_state(state: v1.ContainerState) -> ContainerState:
    return _STATES.get(state, ContainerState.UNKNOWN)


def listed_container(container: v1.Container, runtime_name: str) -> RuntimeContainer:
    """An entry of ListContainers."""
    record = read_container_record(container.annotations)
    return RuntimeContainer(
        id=ContainerID(runtime_name, container.id),
        name=container.metadata.name,
        state=container_state(container.state),
        image=container.image.image,
        image_id=container.image_id or container.image_ref,
        hash=record.hash,
        created_at=time_from_nanoseconds(container.created_at),
        pod_sandbox_id=container.pod_sandbox_id,
        attempt=container.metadata.attempt,
    )


def listed_sandbox(sandbox: v1.PodSandbox, runtime_name: str) -> RuntimeContainer:
    """An entry of ListPodSandbox, seen as a container."""
    ready = sandbox.state == v1.PodSandboxState.SANDBOX_READY
    return RuntimeContainer(
        id=ContainerID(runtime_name, sandbox.id),
        name="",
        state=ContainerState.RUNNING if ready else ContainerState.EXITED,
        created_at=time_from_nanoseconds(sandbox.created_at),
        pod_sandbox_id=sandbox.id,
        attempt=sandbox.metadata.attempt,
    )


def start_was_cut_off(status: v1.ContainerStatus) -> bool:
    """True if the start of the container ended with the client that asked for it, before any process of it ran."""
    return (
        status.state == v1.ContainerState.CONTAINER_EXITED
        and status.started_at == 0
        and status.exit_code == START_ERROR_CODE
        and status.reason == START_ERROR
        and _CUT_OFF.fullmatch(status.message) is not None
    )


def container_status(
    status: v1.ContainerStatus,
    *,
    runtime_name: str,
    pod_sandbox_id: str,
    termination_message: str = "",
    start_cut_off: bool = False,
) -> ContainerStatus:
    """A container's status; what it wrote at its end is added to the runtime's message."""
    record = read_container_record(status.annotations)
    state = container_state(status.state)
    exited = state is ContainerState.EXITED
    messages = (status.message, termination_message) if exited else ()
    return ContainerStatus(
        id=ContainerID(runtime_name, status.id),
        name=status.labels.get(CONTAINER_NAME, ""),
        state=state,
        created_at=time_from_nanoseconds(status.created_at),
        started_at=None if state is ContainerState.CREATED else time_from_nanoseconds(status.started_at),
        finished_at=time_from_nanoseconds(status.finished_at) if exited else None,
        exit_code=status.exit_code if exited else 0,
        image=status.image.image,
        image_id=status.image_id or status.image_ref,
        image_ref=status.image_ref,
        image_runtime_handler=status.image.runtime_handler,
        hash=record.hash,
        restart_count=record.restart_count,
        reason=status.reason if exited else "",
        message=": ".join(message for message in messages if message),
        start_cut_off=start_cut_off,
        user=_user(status),
        resources=_resources(status.resources.linux),
        log_path=status.log_path,
        pod_sandbox_id=pod_sandbox_id,
        labels=status.labels,
        annotations=status.annotations,
    )


def cut_off_container(status: ContainerStatus, *, sandbox_ready: bool) -> ContainerStatus:
    """Return a container whose start was cut off: one that was only made while its sandbox is ready. In a sandbox that
    is not, nothing is started any more, and it has ended as the runtime says."""
    if not sandbox_ready:
        return attrs.evolve(status, start_cut_off=False)
    return attrs.evolve(
        status,
        state=ContainerState.CREATED,
        started_at=None,
        finished_at=None,
        exit_code=0,
        reason="",
        message="",
    )


def sandbox_status(status: v1.PodSandboxStatus) -> SandboxStatus:
    network = status.network
    return SandboxStatus(
        id=status.id,
        attempt=status.metadata.attempt,
        ready=status.state == v1.PodSandboxState.SANDBOX_READY,
        created_at=time_from_nanoseconds(status.created_at),
        ips=_valid_addresses((network.ip, *(extra.ip for extra in network.additional_ips))),
        host_network=status.linux.namespaces.options.network == v1.NamespaceMode.NODE,
        network_reported=betterproto.serialized_on_wire(network),
        labels=status.labels,
        annotations=status.annotations,
    )


def _user(status: v1.ContainerStatus) -> ContainerUser | None:
    """Root is all zeros, so whether the runtime told it must be asked of the message."""
    user = status.user.linux
    if not betterproto.serialized_on_wire(user):
        return None
    return ContainerUser(user.uid, user.gid, tuple(user.supplemental_groups))


def _resources(linux: v1.LinuxContainerResources) -> RuntimeResources | None:
    """Shares and quota as what they were made from (kubelet: `toKubeContainerResources`)."""
    said = RuntimeResources(
        cpu_request=milli_of_shares(linux.cpu_shares) or None,
        cpu_limit=milli_of_quota(linux.cpu_quota, linux.cpu_period) or None if linux.cpu_period > 0 else None,
        memory_limit=linux.memory_limit_in_bytes if linux.memory_limit_in_bytes > 0 else None,
    )
    return None if said == _NOTHING_SAID else said


def _valid_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    """The addresses, or none at all when one of them is not an address (kubelet: `determinePodSandboxIPs`)."""
    given = [address for address in addresses if address]
    for address in given:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            log.warning("sandbox reported an address that is none", address=address)
            return ()
    return tuple(given)
