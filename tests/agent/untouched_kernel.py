"""The command line, except that an agent leaves the kernel of whoever tests as it is set.

What an agent writes to /proc/sys is tested on folders (`tests/node/test_start_checks.py`), what it has iptables make in
a network namespace (`tests/node/test_iptables_chains.py`). With a file `clock-ahead` in its folder the agent's wall
clock is so many seconds ahead as the file says at the moment.
"""

from __future__ import annotations

import datetime
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import trio

from trikubelet.agent import service
from trikubelet.cli.main import main as command_line
from trikubelet.clock import SystemClock
from trikubelet.node import start_checks

CLOCK_AHEAD = Path("clock-ahead")


def main() -> None:
    with ExitStack() as stack:
        stack.enter_context(patch.dict(start_checks.KERNEL_SETTINGS, clear=True))
        stack.enter_context(patch.object(service, "keep_chains", trio.sleep_forever))
        if CLOCK_AHEAD.exists():
            right = SystemClock.now
            ahead = CLOCK_AHEAD.absolute()

            def now(clock: SystemClock) -> datetime.datetime:
                return right(clock) + datetime.timedelta(seconds=float(ahead.read_text() or 0))

            stack.enter_context(patch.object(SystemClock, "now", now))
        command_line()
