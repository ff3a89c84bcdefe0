"""The variables that tell a container where its cluster's services are (kubelet: `envvars`, `getServiceEnvVarMap`).

Two families, both from the time before cluster DNS: `REDIS_MASTER_SERVICE_HOST` and its like, and those that Docker's
links had, `REDIS_MASTER_PORT_6379_TCP_ADDR`. Every pod gets those of the API server's service, which clients inside the
cluster read; those of its own namespace's services only if it has service links enabled. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trikubelet.api import Service, ServicePort

API_SERVER: Final = ("default", "kubernetes")
"""Namespace and name of the service that every pod may see."""
_NO_ADDRESS: Final = ("", "None")
"""Cluster IPs of services that have none, of which pods are not told."""


def service_variables(services: Iterable[Service], namespace: str, *, links: bool) -> dict[str, str]:
    """The variables for a pod in `namespace`; `links`: with those of all services there (enableServiceLinks)."""
    seen: dict[str, Service] = {}
    for service in services:
        metadata = service.metadata
        if service.spec.cluster_ip in _NO_ADDRESS:
            continue
        if (metadata.namespace, metadata.name) == API_SERVER:
            seen.setdefault(metadata.name, service)
        elif links and metadata.namespace == namespace:
            seen[metadata.name] = service
    variables: dict[str, str] = {}
    for service in seen.values():
        variables |= _variables_of(service)
    return variables


def _variables_of(service: Service) -> dict[str, str]:
    address, ports = service.spec.cluster_ip, service.spec.ports
    prefix = _variable_name(service.metadata.name)
    variables = {f"{prefix}_SERVICE_HOST": address}
    if not ports:
        return variables
    variables[f"{prefix}_SERVICE_PORT"] = str(ports[0].port)
    for port in ports:
        if port.name:
            variables[f"{prefix}_SERVICE_PORT_{_variable_name(port.name)}"] = str(port.port)
    variables[f"{prefix}_PORT"] = _url(address, ports[0])
    for port in ports:
        protocol = _protocol(port)
        link = f"{prefix}_PORT_{port.port}_{protocol.upper()}"
        variables[link] = _url(address, port)
        variables[f"{link}_PROTO"] = protocol
        variables[f"{link}_PORT"] = str(port.port)
        variables[f"{link}_ADDR"] = address
    return variables


def _protocol(port: ServicePort) -> str:
    return (port.protocol or "TCP").lower()


def _url(address: str, port: ServicePort) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{_protocol(port)}://{host}:{port.port}"


def _variable_name(name: str) -> str:
    return name.replace("-", "_").upper()
