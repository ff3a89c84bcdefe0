"""The driver as a program; see the package. SIGTERM ends it and removes its sockets; what is prepared stays so."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import trio

from tests.csi_driver.faults import FaultFile, Faults
from tests.dra_driver.driver import ToyDriver
from trikubelet.rpc.grpc import Server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.dra_driver", description="A driver of devices for tests.")
    parser.add_argument("--socket", type=Path, required=True, help="where to serve DRAPlugin")
    parser.add_argument("--registry", type=Path, required=True, help="the agent's plugins_registry")
    parser.add_argument("--name", default="toy.example.com")
    parser.add_argument("--version", action="append", help="of its interface; by default both")
    parser.add_argument("--state", type=Path, required=True, help="the folder with what is prepared")
    parser.add_argument("--cdi", type=Path, help="the folder for CDI specifications")
    parser.add_argument("--log", type=Path, help="a line of JSON for each call that begins or ends")
    parser.add_argument("--faults", type=Path, help="a file with what goes wrong, read at each call")
    trio.run(run, parser.parse_args())


async def run(arguments: argparse.Namespace) -> None:
    arguments.state.mkdir(exist_ok=True)
    driver = ToyDriver(
        arguments.name,
        endpoint=str(arguments.socket.absolute()),
        versions=tuple(arguments.version or ("v1.DRAPlugin", "v1beta1.DRAPlugin")),
        faults=Faults() if arguments.faults is None else FaultFile(arguments.faults),
        state=arguments.state,
        cdi=arguments.cdi,
        log=arguments.log,
    )
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(Server(driver.services).serve_unix, arguments.socket)
            socket = arguments.registry / f"{arguments.name}-reg.sock"
            await nursery.start(Server(driver.registration).serve_unix, socket)
            print("ready", flush=True)
            await anext(signals)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    main()
