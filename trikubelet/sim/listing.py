"""How the machine's sandboxes and containers look in CRI replies, and which of them a filter lets through."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import betterproto

from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.list_entries import ListedContainer, ListedSandbox
from trikubelet.sim.machine import EXITED, RUNNING, Container, Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def container_entry(container: Container) -> v1.Container:
    """The container in a list reply."""
    if container.entry is None:
        config = container.config
        container.entry = ListedContainer(
            id=container.id,
            pod_sandbox_id=container.sandbox.id,
            metadata=config.metadata,
            image=config.image,
            image_ref=container.image.id,
            image_id=container.image.id,
            state=container.state,
            created_at=container.created_at,
            labels=config.labels,
            annotations=config.annotations,
        )
    return container.entry


def container_status(container: Container) -> v1.ContainerStatus:
    config, image = container.config, container.image
    reason = container.reason
    if container.state is EXITED and not reason:
        reason = "Completed" if container.exit_code == 0 else "Error"
    status = v1.ContainerStatus(
        id=container.id,
        metadata=config.metadata,
        state=container.state,
        created_at=container.created_at,
        started_at=container.started_at,
        finished_at=container.finished_at,
        exit_code=container.exit_code,
        image=v1.ImageSpec(image=image.tags[0]) if image.tags else config.image,
        image_ref=image.digest_reference,
        image_id=image.id,
        reason=reason,
        message=container.message,
        labels=config.labels,
        annotations=config.annotations,
        mounts=config.mounts,
        log_path=log_path(container),
        resources=container.resources or v1.ContainerResources(linux=config.linux.resources),
        stop_signal=config.stop_signal or v1.Signal.SIGTERM,
    )
    if container.user is not None:
        status.user = container.user
    return status


def container_info(container: Container) -> dict[str, str]:
    """The `info` of a verbose status, with the keys that containerd has."""
    pid = container.pid if container.state is RUNNING else 0
    return {"info": json.dumps({"sandboxID": container.sandbox.id, "pid": pid, "removing": False})}


def log_path(container: Container) -> str:
    """Where the container's log is, empty where the agent asked for none."""
    directory, name = container.sandbox.config.log_directory, container.config.log_path
    return str(PurePosixPath(directory, name)) if directory and name else ""


def sandbox_state(sandbox: Sandbox) -> v1.PodSandboxState:
    return v1.PodSandboxState.SANDBOX_READY if sandbox.ready else v1.PodSandboxState.SANDBOX_NOTREADY


def sandbox_entry(sandbox: Sandbox) -> v1.PodSandbox:
    """The sandbox in a list reply."""
    if sandbox.entry is None:
        sandbox.entry = ListedSandbox(
            id=sandbox.id,
            metadata=sandbox.config.metadata,
            state=sandbox_state(sandbox),
            created_at=sandbox.created_at,
            labels=sandbox.config.labels,
            annotations=sandbox.config.annotations,
            runtime_handler=sandbox.runtime_handler,
        )
    return sandbox.entry


def sandbox_status(sandbox: Sandbox) -> v1.PodSandboxStatus:
    options = sandbox.config.linux.security_context.namespace_options
    return v1.PodSandboxStatus(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=sandbox_state(sandbox),
        created_at=sandbox.created_at,
        network=v1.PodSandboxNetworkStatus(ip=sandbox.ip),
        linux=v1.LinuxPodSandboxStatus(namespaces=v1.Namespace(options=options)),
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.runtime_handler,
    )


def sandbox_info(sandbox: Sandbox) -> dict[str, str]:
    status = "running" if sandbox.ready else "deleted"
    return {"info": json.dumps({"pid": sandbox.pid if sandbox.ready else 0, "processStatus": status})}


def filter_containers(entries: Iterable[v1.Container], chosen: v1.ContainerFilter) -> list[v1.Container]:
    """The entries that fit everything that the filter names."""
    by_state = betterproto.serialized_on_wire(chosen.state)
    if not (by_state or chosen.id or chosen.pod_sandbox_id or chosen.label_selector):
        return list(entries)
    return [
        entry
        for entry in entries
        if (not chosen.id or entry.id == chosen.id)
        and (not chosen.pod_sandbox_id or entry.pod_sandbox_id == chosen.pod_sandbox_id)
        and (not by_state or entry.state == chosen.state.state)
        and _has_labels(entry.labels, chosen.label_selector)
    ]


def filter_sandboxes(entries: Iterable[v1.PodSandbox], chosen: v1.PodSandboxFilter) -> list[v1.PodSandbox]:
    """The entries that fit everything that the filter names."""
    by_state = betterproto.serialized_on_wire(chosen.state)
    if not (by_state or chosen.id or chosen.label_selector):
        return list(entries)
    return [
        entry
        for entry in entries
        if (not chosen.id or entry.id == chosen.id)
        and (not by_state or entry.state == chosen.state.state)
        and _has_labels(entry.labels, chosen.label_selector)
    ]


def _has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())
