"""The command line, for processes that tests start."""

from __future__ import annotations

import fcntl
import os
import signal
import termios

from trikubelet.cli.main import main as command_line


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in background
    command_line()


def main_on_terminal() -> None:
    """Being the terminal's session tells a process when it changes its size."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    main()
