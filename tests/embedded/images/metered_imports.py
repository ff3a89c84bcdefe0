"""`python -m tests.embedded.images.metered_imports STORE FORMAT ARCHIVE…`: import archives one after the other.

The process has all of an agent's modules. Written for each archive is a line of JSON: the most memory that the process
had meanwhile, what it had afterwards, both in MiB, and what became of the archive.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import trio

from trikubelet.clock import SystemClock
from trikubelet.embedded.images.errors import ImageError
from trikubelet.embedded.images.model import LayerFormat
from trikubelet.embedded.images.store import ImageStore

_AGENT = ("trikubelet.agent.run", "trikubelet.agent.server", "trikubelet.agent.stats", "trikubelet.agent.volumes")


def _memory(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


async def _import(store: ImageStore, archive: Path) -> str:
    try:
        names = await store.import_archive(archive)
    except (ImageError, OSError) as error:
        return str(error)
    for name in names:
        await store.remove(name)
    return "imported"


async def _import_all(store: ImageStore, archives: list[Path]) -> None:
    for archive in archives:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        began = time.monotonic()
        became = await _import(store, archive)
        line = {"archive": archive.stem, "peak": _memory("VmHWM"), "after": _memory("VmRSS"), "became": became}
        print(json.dumps({**line, "seconds": round(time.monotonic() - began, 1)}), flush=True)


def main() -> None:
    for name in _AGENT:
        importlib.import_module(name)
    root, layer_format, *archives = sys.argv[1:]
    store = ImageStore(Path(root), clock=SystemClock(), layer_format=LayerFormat(layer_format), host=False)
    trio.run(_import_all, store, [Path(archive) for archive in archives])


if __name__ == "__main__":
    main()
