"""`trikubelet port-forward`: ports of this machine that lead to ports of a pod, like `kubectl port-forward`."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import click

from trikubelet.cli.client import AgentClient
from trikubelet.cli.completion import complete_pods
from trikubelet.cli.failures import CommandError
from trikubelet.cli.find_pod import find_pod
from trikubelet.cli.root_dir import agent_root_dir_option

if TYPE_CHECKING:
    from pathlib import Path

    from trikubelet.api import ContainerPort, Pod


@click.command("port-forward", short_help="Forward local ports to a pod.")
@click.argument("pod", shell_complete=complete_pods)
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
@click.option("-n", "--namespace", help="The pod's namespace, when its name is not enough.")
@click.option(
    "--address",
    default="localhost",
    show_default=True,
    help="Where to listen: IP addresses or localhost, separated by commas.",
)
@agent_root_dir_option
def port_forward(pod: str, ports: tuple[str, ...], namespace: str | None, address: str, root_dir: Path) -> int:
    """Forward ports of this machine to ports of POD, until it is interrupted.

    8080:80 listens on 8080, 80 on the same port, :80 on any that is free; REMOTE may be the name of a container's port.
    What goes wrong on one connection ends that connection only, so it goes on when the pod or the agent was restarted.
    """
    client = AgentClient(root_dir)
    found = find_pod(client, pod, namespace)
    pairs = [_pair(text, found) for text in ports]
    if found.status.phase != "Running":
        raise CommandError(
            f"unable to forward port because pod is not running. Current status={found.status.phase or 'Unknown'}"
        )
    import trio

    from trikubelet.cli.forwarding import Forwarding, listen_addresses

    path = f"/portForward/{found.metadata.namespace}/{found.metadata.name}"
    forwarding = Forwarding(client.socket, path, listen_addresses(address), pairs)
    number = trio.run(partial(forwarding.run, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
    return 128 + number


def _pair(text: str, pod: Pod) -> tuple[int, int]:
    """The local port (0: any) and the pod's. Raises CommandError."""
    local, colon, remote = text.rpartition(":")
    named = _named_port(remote, pod)
    port = _number(remote) if named is None else named
    if port is None:
        raise CommandError(f"pod {pod.metadata.name} has no port named {remote!r}, and port numbers end at 65535")
    if port == 0:
        raise CommandError("remote port must be > 0")
    if {declared.protocol for declared in _declared(pod) if declared.container_port == port} == {"UDP"}:
        raise CommandError(f"UDP protocol is not supported for {remote}")
    number = _number(local or "0") if colon else port
    if number is None:
        raise CommandError(f"expected a port from 0 to 65535 as local port, got {local!r}")
    return number, port


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 and int(text) < 2**16 else None


def _named_port(name: str, pod: Pod) -> int | None:
    return next((port.container_port for port in _declared(pod) if port.name == name and name), None)


def _declared(pod: Pod) -> list[ContainerPort]:
    every = (*pod.spec.containers, *pod.spec.init_containers)
    return [port for container in every for port in container.ports]
