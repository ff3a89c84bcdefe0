"""An agent to be killed: starts one container in the folder of its first argument, says so, and waits.

With a third argument it also has a client in a terminal of the container, whose command carries that as its marker and
forks without end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from tests.embedded.remote import TTY, executing
from tests.embedded.runtime_node import running_node
from tests.embedded.test_endings import ESCAPER


async def main(folder: Path, script: str, markers: list[str]) -> None:
    async with running_node(folder / "runtime", folder / "logs") as node:
        container = await node.launch(await node.sandbox(), ["bash", "-c", script], name="main")
        for marker in markers:
            async with executing(node, container, ["python3", "-c", ESCAPER, marker], TTY) as client:
                await client.wait_for(b"running")
                print(f"container={container}", flush=True)
        print(f"container={container}", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
