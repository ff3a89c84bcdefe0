"""An agent's device manager that is killed as soon as it has admitted a pod: `python -m … ROOT`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import trio

from tests.node.devices.situations import container, make_pod
from trikubelet.node.devices.manager import DeviceManager
from trikubelet.node.devices.server import FOLDER


async def main(root: Path) -> None:
    manager = DeviceManager(root / FOLDER, needed=lambda uid: uid == "p", sources_ready=lambda: True)
    changed = manager.changed.subscribe()
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        await changed.receive()
        await manager.allocate(make_pod("p", container(bricks=1)))
        print("admitted", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
