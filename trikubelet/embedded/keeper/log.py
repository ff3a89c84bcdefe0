"""What the keeper has to say goes to its stderr, which is `keeper.log`.

Neither a disk without room for it nor the limit of open files may end the keeper, and every container with it: what
cannot be written is lost.
"""

from __future__ import annotations

import os
import sys


def log(text: str) -> None:
    try:
        os.write(2, f"{text}\n".encode(errors="replace"))
    except OSError:
        pass


def words_of(error: OSError) -> str:
    """What an error says to people: without its number, and with the file if it names one."""
    text = error.strerror or str(error)
    return text if error.filename is None else f"{text}: {error.filename}"


def log_exception() -> None:
    """Log the exception that is being handled."""
    error = sys.exception()
    try:
        import traceback  # seldom needed, and a tenth of what each fork of this process would have to copy

        text = traceback.format_exc().rstrip()
    except OSError:  # this process can open no file more
        text = f"{type(error).__name__}: {error}"
    log(text)
