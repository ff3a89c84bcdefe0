"""The configuration that a pod's sandbox is created with.

Pure: the node's resolv.conf comes in as settings, and what was given to the pod (user ids, a cgroup) as values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.admission.sysctls import dotted_sysctl as dotted_sysctl
from trikubelet.container.labels import sandbox_annotations, sandbox_labels
from trikubelet.rpc.cri import v1
from trikubelet.runtime.containers.resources import overhead_resources, sandbox_resources
from trikubelet.runtime.containers.security import sandbox_security_context
from trikubelet.runtime.logs.paths import pod_logs_directory
from trikubelet.runtime.sandboxes.hostname import kernel_hostname, pod_hostname_and_domain
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trikubelet.api import Container, ContainerPort, Pod
    from trikubelet.runtime.options import RuntimeOptions
    from trikubelet.runtime.sandboxes.dns import DNSSettings

log = get_logger("runtime")


def sandbox_config(
    pod: Pod,
    attempt: int,
    dns: DNSSettings,
    options: RuntimeOptions,
    *,
    userns: v1.UserNamespace | None = None,
    volume_groups: Sequence[int] = (),
    cgroup_parent: str = "",
) -> v1.PodSandboxConfig:
    """Build the message for RunPodSandbox (kubelet: `generatePodSandboxConfig`). Raises SandboxConfigError.

    `userns`: the pod's (`UserNamespaces.for_pod`). `volume_groups`: those that own the pod's volumes. `cgroup_parent`:
    the pod's cgroup, empty where the runtime is to choose.
    """
    config = v1.PodSandboxConfig(
        metadata=v1.PodSandboxMetadata(
            name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid, attempt=attempt
        ),
        labels=sandbox_labels(pod),
        annotations=sandbox_annotations(pod),
        log_directory=str(pod_logs_directory(options.pod_logs_dir, pod)),
        dns_config=v1.DnsConfig(servers=list(dns.servers), searches=list(dns.searches), options=list(dns.options)),
        port_mappings=[mapping for container in pod.spec.containers for mapping in port_mappings(container)],
        linux=v1.LinuxPodSandboxConfig(
            cgroup_parent=cgroup_parent,
            security_context=sandbox_security_context(pod, userns=userns, volume_groups=volume_groups),
            sysctls=_sysctls(pod),
            resources=sandbox_resources(pod, options),
            overhead=overhead_resources(pod, options),
        ),
    )
    if not pod.spec.host_network:
        hostname, domain = pod_hostname_and_domain(pod, options.cluster_domain)
        config.hostname = kernel_hostname(pod, hostname, domain)
    return config


def port_mappings(container: Container) -> list[v1.PortMapping]:
    """The container's ports, each name once (kubelet: `MakePortMappings`)."""
    mappings: dict[str, v1.PortMapping] = {}
    for port in container.ports:
        name = port.name or _port_name(port)
        if name in mappings:
            log.warning("port is defined more than once", container=container.name, port=name)
            continue
        mappings[name] = v1.PortMapping(
            protocol=_protocol(port.protocol),
            container_port=port.container_port,
            host_port=port.host_port,
            host_ip=port.host_ip,
        )
    return list(mappings.values())


def _sysctls(pod: Pod) -> dict[str, str]:
    if pod.spec.security_context is None:
        return {}
    return {dotted_sysctl(sysctl.name): sysctl.value for sysctl in pod.spec.security_context.sysctls}


def _port_name(port: ContainerPort) -> str:
    family = "any" if not port.host_ip else "v6" if ":" in port.host_ip else "v4"
    return f"{family}-{port.protocol}-{port.host_ip}:{port.container_port}:{port.host_port}"


def _protocol(name: str) -> v1.Protocol:
    match name:
        case "UDP":
            return v1.Protocol.UDP
        case "SCTP":
            return v1.Protocol.SCTP
    return v1.Protocol.TCP
