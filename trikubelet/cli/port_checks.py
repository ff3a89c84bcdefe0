"""Whether the agent's ports can be had: each is bound for a moment."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

from trikubelet.cli.machine_checks import ok, warn
from trikubelet.formats.values import frozen
from trikubelet.node.port_holder import port_holder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trikubelet.cli.machine_checks import CheckResult
    from trikubelet.config.kubelet_configuration import KubeletConfiguration

SUBJECT: Final = "ports"


@frozen
class _Port:
    address: str
    number: int
    field: str
    """What the configuration calls the number."""

    def __str__(self) -> str:
        return f"[{self.address}]:{self.number}" if ":" in self.address else f"{self.address}:{self.number}"


def check_ports(configuration: KubeletConfiguration) -> CheckResult:
    """Which of the configuration's ports cannot be listened on. The node's own is served in a cluster only."""
    ports = list(_ports(configuration))
    problems = {port: why for port in ports if (why := _problem(port.address, port.number)) is not None}
    if problems:
        finding = "; ".join(f"{port}: {why}" for port, why in problems.items())
        fields = " and ".join(port.field for port in problems)
        return warn(SUBJECT, finding, f"end what listens there (another agent?), or give another {fields}")
    return ok(SUBJECT, f"{', '.join(map(str, ports))} can be had" if ports else "none is asked for")


def _ports(configuration: KubeletConfiguration) -> Iterator[_Port]:
    if configuration.enable_server:
        yield _Port(configuration.address, configuration.port, "port")
    if configuration.read_only_port:
        yield _Port(configuration.address, configuration.read_only_port, "readOnlyPort")
    if configuration.healthz_port:
        yield _Port(configuration.healthz_bind_address, configuration.healthz_port, "healthzPort")


def _problem(address: str, number: int) -> str | None:
    """Why nobody could listen there; None when it works."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, number))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"{port_holder(address, number) or 'another process'} listens there"
        return os.strerror(error.errno) if error.errno else str(error)
    return None
