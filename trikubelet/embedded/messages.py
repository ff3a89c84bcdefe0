"""Records as CRI messages."""

from __future__ import annotations

import json
from typing import Any

from trikubelet.embedded.inventory import STATES
from trikubelet.embedded.records import ContainerRecord, Phase, SandboxRecord
from trikubelet.rpc.cri import v1


def sandbox_state(record: SandboxRecord) -> v1.PodSandboxState:
    return v1.PodSandboxState.SANDBOX_READY if record.ready else v1.PodSandboxState.SANDBOX_NOTREADY


def sandbox_item(record: SandboxRecord) -> v1.PodSandbox:
    """An entry of ListPodSandbox."""
    return v1.PodSandbox(
        id=record.id,
        metadata=record.config.metadata,
        state=sandbox_state(record),
        created_at=record.created_at,
        labels=record.config.labels,
        annotations=record.config.annotations,
        runtime_handler=record.runtime_handler,
    )


def sandbox_status(record: SandboxRecord, address: str) -> v1.PodSandboxStatus:
    """A pod's status. `address` is the node's, for pods on its network that did not ask for that."""
    namespaces = record.config.linux.security_context.namespace_options
    return v1.PodSandboxStatus(
        id=record.id,
        metadata=record.config.metadata,
        state=sandbox_state(record),
        created_at=record.created_at,
        network=_addresses(record, address),
        linux=v1.LinuxPodSandboxStatus(namespaces=v1.Namespace(options=namespaces)),
        labels=record.config.labels,
        annotations=record.config.annotations,
        runtime_handler=record.runtime_handler,
    )


def _addresses(record: SandboxRecord, address: str) -> v1.PodSandboxNetworkStatus:
    """None of a pod that asked for the node's network, whose address the client knows, or that is not ready."""
    namespaces = record.config.linux.security_context.namespace_options
    if namespaces.network == v1.NamespaceMode.NODE or not record.ready:
        return v1.PodSandboxNetworkStatus()
    if record.network is None:
        return v1.PodSandboxNetworkStatus(ip=address)
    ips = () if record.network.attachment is None else record.network.attachment.ips
    return v1.PodSandboxNetworkStatus(ip=next(iter(ips), ""), additional_ips=[v1.PodIp(ip=ip) for ip in ips[1:]])


def sandbox_info(record: SandboxRecord) -> dict[str, str]:
    """What a verbose status adds: JSON under "info"."""
    info: dict[str, Any] = {"pid": 0, "runtimeType": "embedded", "network": None}
    if record.network is not None:
        attachment = record.network.attachment
        info["network"] = {
            "kind": record.network.kind,
            "phase": record.network.phase.value,
            "interface": None if attachment is None else attachment.interface,
            "ips": [] if attachment is None else list(attachment.ips),
        }
    return {"info": json.dumps(info)}


def container_item(record: ContainerRecord) -> v1.Container:
    """An entry of ListContainers."""
    return v1.Container(
        id=record.id,
        pod_sandbox_id=record.sandbox_id,
        metadata=record.config.metadata,
        image=record.config.image,
        image_ref=record.image.reference,
        image_id=record.image.id,
        state=STATES[record.phase],
        created_at=record.created_at,
        labels=record.config.labels,
        annotations=record.config.annotations,
    )


def container_status(record: ContainerRecord) -> v1.ContainerStatus:
    """A container's status."""
    status = v1.ContainerStatus(
        id=record.id,
        metadata=record.config.metadata,
        state=STATES[record.phase],
        created_at=record.created_at,
        image=v1.ImageSpec(image=record.image.name, user_specified_image=record.config.image.user_specified_image),
        image_ref=record.image.reference,
        image_id=record.image.id,
        labels=record.config.labels,
        annotations=record.config.annotations,
        mounts=record.config.mounts,
        log_path=record.spec["log_path"],
        stop_signal=_stop_signal(record.stop_signal),
    )
    resources = record.config.linux.resources
    if bytes(resources):
        status.resources = v1.ContainerResources(linux=resources)
    if record.user:
        status.user = v1.ContainerUser(
            linux=v1.LinuxContainerUser(
                uid=record.user["uid"], gid=record.user["gid"], supplemental_groups=record.user["groups"]
            )
        )
    if record.phase is not Phase.CREATED:
        status.started_at = record.started_at
    if record.exit is not None:
        status.finished_at = record.exit.finished_at
        status.exit_code = record.exit.code
        status.reason = record.exit.reason
        status.message = record.exit.message
    return status


def container_info(record: ContainerRecord) -> dict[str, str]:
    """What a verbose status adds: JSON under "info", with the pid where containerd has it."""
    info = {
        "sandboxID": record.sandbox_id,
        "pid": record.pid,
        "cgroup": record.cgroup,
        "runtimeType": "embedded",
        "runtimeSpec": record.spec,
    }
    return {"info": json.dumps(info)}


def container_attributes(record: ContainerRecord) -> v1.ContainerAttributes:
    return v1.ContainerAttributes(
        id=record.id,
        metadata=record.config.metadata,
        labels=record.config.labels,
        annotations=record.config.annotations,
    )


def sandbox_attributes(record: SandboxRecord) -> v1.PodSandboxAttributes:
    return v1.PodSandboxAttributes(
        id=record.id,
        metadata=record.config.metadata,
        labels=record.config.labels,
        annotations=record.config.annotations,
    )


def _stop_signal(number: int) -> v1.Signal:
    """CRI numbers its signals by a list of names of its own."""
    import signal

    if signal.SIGRTMIN <= number <= signal.SIGRTMAX:
        return v1.Signal(number + (v1.Signal.SIGRTMIN - signal.SIGRTMIN))
    try:
        return v1.Signal[signal.Signals(number).name]
    except (ValueError, KeyError):
        return v1.Signal.RUNTIME_DEFAULT


def merged_resources(
    before: v1.LinuxContainerResources, changes: v1.LinuxContainerResources
) -> v1.LinuxContainerResources:
    """`before` with what `changes` says; its zeros leave things as they are."""
    kept = v1.LinuxContainerResources.FromString(bytes(before))
    if changes.hugepage_limits:
        kept.hugepage_limits = []
    return v1.LinuxContainerResources.FromString(bytes(kept) + bytes(changes))
