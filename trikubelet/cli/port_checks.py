"""Whether the agent's ports can be had: each is bound for a moment."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

from trikubelet.cli.machine_checks import ok, warn
from trikubelet.formats.values import frozen
from trikubelet.node.port_holder import Holder, port_holder

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


def check_ports(configuration: KubeletConfiguration, pid: int | None = None) -> CheckResult:
    """Which of the configuration's ports cannot be listened on. The node's own is served in a cluster only.

    `pid`: the agent's, if it runs; its own ports are as they should be.
    """
    ports = list(_ports(configuration))
    found = {port: why for port in ports if (why := _problem(port.address, port.number)) is not None}
    own = [port for port, why in found.items() if pid is not None and isinstance(why, Holder) and why.pid == pid]
    problems = {port: why for port, why in found.items() if port not in own}
    if problems:
        whys = {port: f"{why} listens there" if isinstance(why, Holder) else why for port, why in problems.items()}
        finding = "; ".join(f"{port}: {why}" for port, why in whys.items())
        fields = " and ".join(port.field for port in problems)
        return warn(SUBJECT, finding, f"end what listens there (another agent?), or give another {fields}")
    free = [port for port in ports if port not in own]
    parts = [
        *([f"the agent listens on {', '.join(map(str, own))}"] if own else []),
        *([f"{', '.join(map(str, free))} can be had"] if free else []),
    ]
    return ok(SUBJECT, "; ".join(parts) or "none is asked for")


def _ports(configuration: KubeletConfiguration) -> Iterator[_Port]:
    if configuration.enable_server:
        yield _Port(configuration.address, configuration.port, "port")
    if configuration.read_only_port:
        yield _Port(configuration.address, configuration.read_only_port, "readOnlyPort")
    if configuration.healthz_port:
        yield _Port(configuration.healthz_bind_address, configuration.healthz_port, "healthzPort")


def _problem(address: str, number: int) -> Holder | str | None:
    """Why nobody could listen there, or the process that does; None when it works."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, number))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return port_holder(address, number) or Holder(None, "another process")
        return os.strerror(error.errno) if error.errno else str(error)
    return None
