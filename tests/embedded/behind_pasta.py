"""Two pods behind pasta, as whoever this process is: prints as JSON what can be reached of them and from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from tests.embedded.runtime_node import Node, running_node
from trikubelet.embedded.network.choice import NetworkOptions
from trikubelet.http.client.connect import connect_tcp
from trikubelet.rpc.cri import v1

SERVE = (
    "import socket, sys; s = socket.create_server(('', 8080)); print('up', flush=True)\n"
    "while True: c, _ = s.accept(); c.sendall(sys.argv[1].encode()); c.close()"
)
HOST_PORT = 18080


async def main(folder: Path) -> None:
    outcome: dict[str, object] = {}
    options = NetworkOptions(way="pasta")
    async with running_node(folder / "runtime", folder / "logs", networks=None, network=options) as node:
        first = await node.sandbox("first", port_mappings=[v1.PortMapping(container_port=8080, host_port=HOST_PORT)])
        second = await node.sandbox("second")
        for name, sandbox in (("first", first), ("second", second)):
            await node.wait_for_output(await node.launch(sandbox, ["python3", "-c", SERVE, name]), "up")
        outcome["at their addresses"] = [await heard(await address(node, pod)) for pod in (first, second)]
        outcome["at the host port"] = await heard("127.0.0.1", HOST_PORT)
        interfaces = await node.run(first, ["ls", "/sys/class/net"])
        outcome["interfaces"] = interfaces.out.split()
        await node.remove_everything()
        outcome["host port afterwards"] = await heard("127.0.0.1", HOST_PORT)
        outcome["ended"] = await node.runtime.shutdown()
    print("outcome=" + json.dumps(outcome))


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
