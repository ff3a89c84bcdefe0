"""Two pods behind pasta, as whoever this process is: prints as JSON what can be reached of them and from them."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import trio

from tests.embedded.runtime_node import Node, processes_with, running_node, wait_until
from trikubelet.embedded.network.choice import NetworkOptions
from trikubelet.http.client.connect import connect_tcp
from trikubelet.rpc.cri import v1

SERVE = (
    "import socket, sys; s = socket.create_server(('', 8080)); print('up', flush=True)\n"
    "while True: c, _ = s.accept(); c.sendall(sys.argv[1].encode()); c.close()"
)
HOST_PORT = 18080
PORTS = [v1.PortMapping(container_port=8080, host_port=HOST_PORT)]


async def main(folder: Path) -> None:
    outcome: dict[str, object] = {}
    options = NetworkOptions(way="pasta")
    async with running_node(folder / "runtime", folder / "logs", networks=None, network=options) as node:
        first = await node.sandbox("first", port_mappings=PORTS)
        second = await node.sandbox("second")
        for name, sandbox in (("first", first), ("second", second)):
            await node.wait_for_output(await node.launch(sandbox, ["python3", "-c", SERVE, name]), "up")
        outcome["at their addresses"] = [await heard(await address(node, pod)) for pod in (first, second)]
        outcome["at the host port"] = await heard("127.0.0.1", HOST_PORT)
        interfaces = await node.run(first, ["ls", "/sys/class/net"])
        outcome["interfaces"] = interfaces.out.split()
        pasta = next(pid for pid in processes_with("pasta") if f"{HOST_PORT}:8080" in command_line(pid))
        os.kill(pasta, signal.SIGKILL)
        await wait_until(lambda: not is_ready(node, first), "the pod without pasta is not ready")
        outcome["ready without pasta"] = [is_ready(node, pod) for pod in (first, second)]
    async with running_node(folder / "runtime", folder / "logs", networks=None, network=options) as node:
        outcome["ready for the next agent"] = [is_ready(node, pod) for pod in (first, second)]
        again = await node.sandbox("first-1", port_mappings=PORTS)
        outcome["made anew"] = is_ready(node, again)
        await node.remove_everything()
        outcome["host port afterwards"] = await heard("127.0.0.1", HOST_PORT)
        outcome["ended"] = await node.runtime.shutdown()
    print("outcome=" + json.dumps(outcome))


def is_ready(node: Node, sandbox: str) -> bool:
    return node.lifecycle.inventory.sandboxes[sandbox].ready


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def address(node: Node, sandbox: str) -> str:
    reply = await node.cri.pod_sandbox_status(v1.PodSandboxStatusRequest(pod_sandbox_id=sandbox))
    return reply.status.network.ip


async def heard(host: str, port: int = 8080) -> str:
    """What a server says, in the way of a probe."""
    try:
        async with await connect_tcp(host, port) as stream:
            return b"".join([bytes(block) async for block in stream]).decode()
    except OSError as error:
        return type(error).__name__


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
