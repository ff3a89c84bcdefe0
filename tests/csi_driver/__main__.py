"""The driver as a program; see the package. SIGTERM ends it and removes its sockets; what is mounted stays."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import trio

from tests.csi_driver.driver import CAPABILITIES, Capability, FolderDriver
from tests.csi_driver.faults import FaultFile, Faults
from tests.csi_driver.storage import BindMounts, NoMounts, Storage
from trikubelet.rpc.grpc import Server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.csi_driver", description="A CSI driver for tests.")
    parser.add_argument("--socket", type=Path, required=True, help="where to serve CSI")
    parser.add_argument("--registry", type=Path, help="the agent's plugins_registry; not given: do not register")
    parser.add_argument("--storage", type=Path, required=True, help="the folder that volumes are kept in")
    parser.add_argument("--name", default="folder.example.com")
    parser.add_argument("--node-id", default="node-1")
    parser.add_argument("--max-volumes", type=int, default=0)
    parser.add_argument("--topology", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--capability", action="append", choices=[each.name for each in Capability], default=None)
    parser.add_argument("--mounts", choices=["bind", "loop", "none"], default="bind")
    parser.add_argument("--writes-context", action="store_true", help="put the volume context into each volume")
    parser.add_argument("--log", type=Path, default=Path("/dev/null"), help="a line of JSON for each call")
    parser.add_argument("--faults", type=Path, help="a file with what goes wrong, read at each call")
    trio.run(run, parser.parse_args())


async def run(arguments: argparse.Namespace) -> None:
    mounts = NoMounts() if arguments.mounts == "none" else BindMounts(loop=arguments.mounts == "loop")
    capabilities = CAPABILITIES if arguments.capability is None else map(Capability.__getitem__, arguments.capability)
    driver = FolderDriver(
        arguments.storage,
        name=arguments.name,
        endpoint=str(arguments.socket.absolute()),
        node_id=arguments.node_id,
        capabilities=frozenset(capabilities),
        topology=dict(pair.split("=", 1) for pair in arguments.topology),
        max_volumes=arguments.max_volumes,
        faults=Faults() if arguments.faults is None else FaultFile(arguments.faults),
        storage=Storage(arguments.storage, mounts),
        log=arguments.log,
        writes_context=arguments.writes_context,
    )
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(Server(driver.services).serve_unix, arguments.socket)
            if arguments.registry is not None:
                socket = arguments.registry / f"{arguments.name}-reg.sock"
                await nursery.start(Server(driver.registration).serve_unix, socket)
            print("ready", flush=True)
            await anext(signals)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    main()
