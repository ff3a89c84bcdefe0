"""Host ports that lead nowhere: those of a pod on the machine's own network, which nothing maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from trikubelet.api import ContainerPort, Pod


def mapped_ports(pod: Pod) -> Iterator[tuple[str, ContainerPort]]:
    """Ports of the node that are to lead to others of the pod, each with its field. Where both are the same, a
    container that shares the machine's network listens on it by itself."""
    if pod.spec.host_network:
        return
    for index, container in enumerate(pod.spec.containers):
        for number, port in enumerate(container.ports):
            if port.host_port and port.host_port != port.container_port:
                yield f"spec.containers[{index}].ports[{number}].hostPort", port


def unmapped_ports(pod: Pod, ips: Collection[str], host_ips: Collection[str]) -> list[ContainerPort]:
    """Those of a pod with these addresses that nothing leads to: the pod has the node's. `host_ips`: the node's."""
    if not ips or not set(ips) <= set(host_ips):
        return []
    return [port for _, port in mapped_ports(pod)]


def explain(port: ContainerPort) -> str:
    """Why the port leads nowhere, and what to do."""
    return (
        f"host port {port.host_port} does not lead to port {port.container_port}: pods are on the machine's own "
        f"network here, and nothing maps ports. Have the container listen on {port.host_port}, or see with "
        "`trikubelet check` which other network this machine can give pods"
    )
