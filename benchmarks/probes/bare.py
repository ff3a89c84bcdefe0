"""A bare client of a runtime: one container in a pod, started without an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.detect.processes import COMMAND, POD_NAME, POD_UID
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.rpc.cri.client import RuntimeClient


async def start_container(client: RuntimeClient, image: str, name: str, logs: Path) -> str:
    """It runs until it is asked to end; its id."""
    (logs / name / "main").mkdir(parents=True)
    own_pids = v1.NamespaceOption(pid=v1.NamespaceMode.CONTAINER)
    sandbox = v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name=name, namespace="default", uid=name),
        hostname=name,
        log_directory=str(logs / name),
        labels={POD_NAME: name, POD_UID: name},
        linux=v1.LinuxPodSandboxConfig(security_context=v1.LinuxSandboxSecurityContext(namespace_options=own_pids)),
    )
    container = v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="main"),
        image=v1.ImageSpec(image=image),
        command=COMMAND,
        log_path="main/0.log",
        linux=v1.LinuxContainerConfig(security_context=v1.LinuxContainerSecurityContext(namespace_options=own_pids)),
    )
    sandbox_id = await client.run_pod_sandbox(sandbox)
    container_id = await client.create_container(sandbox_id, container, sandbox)
    await client.start_container(container_id)
    return container_id
