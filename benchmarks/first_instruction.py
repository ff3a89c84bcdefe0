"""When a container's first instruction was: a shell that opens a pipe before anything else."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from benchmarks.agent_process import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@attrs.define
class Signed:
    """When a container's first instruction was."""

    at: float = 0.0


@asynccontextmanager
async def first_instruction(pipe: Path) -> AsyncIterator[Signed]:
    """Ends when somebody has opened the pipe, which is made and deleted here."""
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    signed = Signed()

    async def wait() -> None:
        await trio.lowlevel.wait_readable(reader)
        signed.at = time.perf_counter()

    try:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                yield signed
    finally:
        os.close(reader)
        pipe.unlink()  # noqa: ASYNC240
