"""Small CRI configs for tests against the simulated runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from trikubelet.rpc.cri.client import ImageClient, RuntimeClient


def sandbox_config(
    name: str = "web", *, uid: str = "", attempt: int = 0, host_network: bool = False
) -> v1.PodSandboxConfig:
    uid = uid or f"uid-{name}"
    network = v1.NamespaceMode.NODE if host_network else v1.NamespaceMode.POD
    return v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(name=name, uid=uid, namespace="default", attempt=attempt),
        log_directory=f"/var/log/pods/default_{name}_{uid}",
        labels={"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.name": name},
        linux=v1.LinuxPodSandboxConfig(
            security_context=v1.LinuxSandboxSecurityContext(namespace_options=v1.NamespaceOption(network=network))
        ),
    )


def container_config(name: str = "main", *, image: str = "nginx", attempt: int = 0) -> v1.ContainerConfig:
    return v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name=name, attempt=attempt),
        image=v1.ImageSpec(image=image),
        labels={"io.kubernetes.container.name": name},
        log_path=f"{name}/{attempt}.log",
    )


async def run_pod(
    runtime: RuntimeClient, images: ImageClient, *containers: str, pod: str = "web"
) -> tuple[str, list[str]]:
    """A sandbox with one started container per name; returns the ids."""
    await images.pull_image(v1.ImageSpec(image="nginx"))
    config = sandbox_config(pod)
    sandbox_id = await runtime.run_pod_sandbox(config)
    ids = []
    for name in containers or ("main",):
        container_id = await runtime.create_container(sandbox_id, container_config(name), config)
        await runtime.start_container(container_id)
        ids.append(container_id)
    return sandbox_id, ids
