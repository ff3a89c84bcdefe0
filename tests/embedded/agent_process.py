"""An agent to be killed: starts one container in the folder of its first argument, says so, and waits."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from tests.embedded.runtime_node import running_node


async def main(folder: Path, script: str) -> None:
    async with running_node(folder / "runtime", folder / "logs") as node:
        container = await node.launch(await node.sandbox(), ["bash", "-c", script], name="main")
        print(f"container={container}", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2])
