"""Programs that are ended as an agent is, and that something keeps from ending."""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import Final
from unittest.mock import patch

import trio

from trikubelet.agent import ending
from trikubelet.agent.ending import Ending, until_ended

FOR_EVER: Final = 3600.0


def main() -> None:
    [_, what] = sys.argv
    with patch.object(ending, "CLEANUP_TIMEOUT", 0.2):
        sys.exit(trio.run(_run, what))


async def _run(what: str) -> int:
    asked = Ending(runtime_started=what != "cleanup of a start")
    with asked.by_signals():
        return await until_ended(HANGING[what], asked)


async def _thread() -> int:
    _ready()
    await trio.to_thread.run_sync(_hang)
    return 0


async def _loop() -> int:
    _ready()
    _hang()
    return 0


def _hang() -> None:
    time.sleep(FOR_EVER)


async def _cleanup() -> int:
    try:
        _ready()
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()


async def _exit() -> int:
    atexit.register(_hang)
    _ready()
    await trio.sleep_forever()


HANGING: Final = {
    "thread": _thread,
    "loop": _loop,
    "cleanup": _cleanup,
    "cleanup of a start": _cleanup,
    "exit": _exit,
}


def _ready() -> None:
    os.write(1, b"ready\n")
