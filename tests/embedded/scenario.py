"""One container in a folder, as whoever this process is, stopped with a grace: prints what became of it as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio
from grpclib import GRPCError

from tests.embedded.fake_network import FakeNetwork
from tests.embedded.remote import TTY, executing
from tests.embedded.runtime_node import running_node
from trikubelet.rpc.cri import v1

MACHINE = v1.NamespaceOption(network=v1.NamespaceMode.NODE, ipc=v1.NamespaceMode.NODE, pid=v1.NamespaceMode.CONTAINER)


async def main(folder: Path, grace: int, command: list[str]) -> None:
    async with running_node(folder / "runtime", folder / "logs", networks={"fake": FakeNetwork()}) as node:
        outcome: dict[str, object] = {"capabilities": node.cri.capabilities()}
        try:
            sandbox = await node.sandbox()
            container = await node.launch(sandbox, command)
            probe = await node.exec(container, ["sh", "-c", "echo from exec"])
            outcome["exec"] = probe.stdout.decode()
            async with executing(node, container, ["sh", "-c", "tty && id -u > /dev/tty"], TTY) as client:
                pass
            outcome["terminal"] = client.out.decode()
            await node.wait_for_output(container, "ready")
            machine = await node.sandbox("on-the-machine", options=MACHINE)
            inside = await node.launch(machine, ["sleep", "1000"])
            probe = await node.exec(inside, ["readlink", "/proc/self/ns/net", "/proc/self/ns/ipc", "/proc/self/ns/uts"])
            outcome["machine's namespaces"] = probe.stdout.decode().split() == [
                str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("net", "ipc", "uts")
            ]
            await node.stop(container, grace)
            ended = await node.ended(container)
            outcome |= {"out": ended.out, "err": ended.err, "exit": ended.exit_code}
        except GRPCError as error:
            outcome["error"] = error.message
        await node.remove_everything()
        outcome["ended"] = await node.runtime.shutdown()
    print("outcome=" + json.dumps(outcome))


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
