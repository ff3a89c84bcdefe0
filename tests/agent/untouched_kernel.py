"""The command line, except that an agent leaves the kernel of whoever tests as it is set.

What an agent writes to /proc/sys is tested on folders (`tests/node/test_start_checks.py`).
"""

from __future__ import annotations

from unittest.mock import patch

from trikubelet.cli.main import main as command_line
from trikubelet.node import start_checks


def main() -> None:
    with patch.dict(start_checks.KERNEL_SETTINGS, clear=True):
        command_line()
