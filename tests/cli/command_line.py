"""The command line, for processes that tests start on a terminal of their own."""

from __future__ import annotations

import fcntl
import os
import termios

from trikubelet.cli.main import main

__all__ = ["main", "main_on_terminal"]


def main_on_terminal() -> None:
    """Being the terminal's session tells a process when it changes its size."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    main()
