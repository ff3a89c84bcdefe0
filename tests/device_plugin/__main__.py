"""The plugin as a program; see the package. SIGTERM ends it and removes its sockets."""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from grpclib import GRPCError

from tests.device_plugin.plugin import Brick, Introduction, ToyPlugin, register
from trikubelet.linux.inotify import Inotify, Mask
from trikubelet.node.devices.server import SOCKET
from trikubelet.rpc.grpc import Server

if TYPE_CHECKING:
    from collections.abc import Sequence

_MADE = Mask.CREATE | Mask.MOVED_TO | Mask.CLOSE_WRITE
_RETRY_SECONDS = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.device_plugin", description="A device plugin for tests.")
    parser.add_argument("--folder", type=Path, help="the agent's device-plugins: register there")
    parser.add_argument("--registry", type=Path, help="the agent's plugins_registry: register there")
    parser.add_argument("--socket", type=Path, help="where to serve; in --folder when not given")
    parser.add_argument("--resource", default="toy.example.com/brick")
    parser.add_argument("--devices", type=Path, required=True, help="a JSON object: how each device does")
    parser.add_argument("--pre-start", action="store_true")
    parser.add_argument("--prefers-last", action="store_true", help="would rather have the last devices than the first")
    parser.add_argument("--toolbox", type=Path, help="a folder that containers with devices see")
    parser.add_argument("--log", type=Path, default=Path("/dev/null"), help="a line of JSON for each call")
    arguments = parser.parse_args()
    if (arguments.folder is None) == (arguments.registry is None):
        parser.error("one of --folder and --registry is needed")
    if arguments.socket is None and arguments.folder is None:
        parser.error("--registry needs --socket")
    trio.run(run, arguments)


async def run(arguments: argparse.Namespace) -> None:
    plugin = ToyPlugin(
        arguments.resource,
        bricks(arguments.devices),
        pre_start=arguments.pre_start,
        preferring=prefer_last if arguments.prefers_last else None,
        log=arguments.log,
        toolbox=arguments.toolbox,
    )
    name = arguments.resource.replace("/", "_") + ".sock"
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_devices, plugin, arguments.devices)
            if arguments.folder is not None:
                nursery.start_soon(follow_agent, plugin, arguments.folder, arguments.socket or arguments.folder / name)
            else:
                await nursery.start(Server([plugin]).serve_unix, arguments.socket)
                introduction = Introduction(arguments.resource, str(arguments.socket))
                await nursery.start(Server([introduction]).serve_unix, arguments.registry / f"{name}-reg.sock")
            print("ready", flush=True)
            await anext(signals)
            nursery.cancel_scope.cancel()


def prefer_last(available: Sequence[str], included: Sequence[str], size: int) -> list[str]:
    rest = sorted(set(available) - set(included), reverse=True)
    return [*included, *rest][:size]


def bricks(file: Path) -> list[Brick]:
    return [Brick(name, health == "Healthy") for name, health in json.loads(file.read_text()).items()]


async def follow_devices(plugin: ToyPlugin, file: Path) -> None:
    with Inotify() as inotify:
        inotify.watch(file.parent, _MADE)
        while True:
            if any(event.name == file.name for event in await inotify.wait()):
                plugin.tell(bricks(file))


async def follow_agent(plugin: ToyPlugin, folder: Path, socket: Path) -> None:
    """Serve and register; from the beginning whenever the agent's socket is made anew, since it removes the others."""
    with Inotify() as inotify:
        inotify.watch(folder, Mask.CREATE)
        while True:
            async with trio.open_nursery() as nursery:
                await nursery.start(serve, plugin, socket)
                nursery.start_soon(keep_registering, plugin.resource, folder / SOCKET, socket)
                while not any(event.name == SOCKET for event in await inotify.wait()):
                    pass
                nursery.cancel_scope.cancel()


async def serve(plugin: ToyPlugin, socket: Path, *, task_status: trio.TaskStatus[None]) -> None:
    while True:
        try:
            return await Server([plugin]).serve_unix(socket, task_status=task_status)
        except FileNotFoundError:
            pass  # the agent, which starts too, removed it right after it was made


async def keep_registering(resource: str, agent: Path, socket: Path) -> None:
    while True:
        try:
            return await register(agent, resource, socket.name)
        except GRPCError as error:
            print(f"not registered: {error.message}", flush=True)
            await trio.sleep(_RETRY_SECONDS)


if __name__ == "__main__":
    main()
