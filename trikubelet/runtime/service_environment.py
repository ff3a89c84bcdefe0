"""The variables that tell a container where its cluster's services are (kubelet: `envvars`, `getServiceEnvVarMap`).

Two families, both from the time before cluster DNS: `REDIS_MASTER_SERVICE_HOST` and its like, and those that Docker's
links had, `REDIS_MASTER_PORT_6379_TCP_ADDR`. Every pod gets those of the API server's service, which clients inside the
cluster read; those of its own namespace's services only if it has service links enabled. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

API_SERVER: Final = ("default", "kubernetes")
"""Namespace and name of the service that every pod may see."""
_NO_ADDRESS: Final = ("", "None")


@attrs.frozen
class ServicePort:
    """A port of a service."""

    port: int
    name: str = ""
    protocol: str = "TCP"


@attrs.frozen
class Service:
    """What the variables say of a service."""

    namespace: str
    name: str
    cluster_ip: str
    """Empty or `None` for a service without an address, of which pods are not told."""
    ports: tuple[ServicePort, ...] = ()


def service_variables(services: Iterable[Service], namespace: str, *, links: bool) -> dict[str, str]:
    """The variables for a pod in `namespace`; `links`: with those of all services there (enableServiceLinks)."""
    seen: dict[str, Service] = {}
    for service in services:
        if service.cluster_ip in _NO_ADDRESS:
            continue
        if links and service.namespace == namespace:
            seen[service.name] = service
        elif (service.namespace, service.name) == API_SERVER:
            seen.setdefault(service.name, service)
    variables: dict[str, str] = {}
    for service in seen.values():
        variables |= _variables_of(service)
    return variables


def _variables_of(service: Service) -> dict[str, str]:
    prefix = _variable_name(service.name)
    variables = {f"{prefix}_SERVICE_HOST": service.cluster_ip}
    if not service.ports:
        return variables
    first = service.ports[0]
    variables[f"{prefix}_SERVICE_PORT"] = str(first.port)
    for port in service.ports:
        if port.name:
            variables[f"{prefix}_SERVICE_PORT_{_variable_name(port.name)}"] = str(port.port)
    variables[f"{prefix}_PORT"] = _url(service, first)
    for port in service.ports:
        link = f"{prefix}_PORT_{port.port}_{port.protocol.upper()}"
        variables[link] = _url(service, port)
        variables[f"{link}_PROTO"] = port.protocol.lower()
        variables[f"{link}_PORT"] = str(port.port)
        variables[f"{link}_ADDR"] = service.cluster_ip
    return variables


def _url(service: Service, port: ServicePort) -> str:
    host = f"[{service.cluster_ip}]" if ":" in service.cluster_ip else service.cluster_ip
    return f"{port.protocol.lower()}://{host}:{port.port}"


def _variable_name(name: str) -> str:
    return name.replace("-", "_").upper()
