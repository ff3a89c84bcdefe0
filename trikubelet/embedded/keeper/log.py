"""What the keeper has to say goes to its stderr, which is `keeper.log`.

A disk that has no room for it must not end the keeper, and every container with it: what cannot be written is lost.
"""

from __future__ import annotations

import os


def log(text: str) -> None:
    try:
        os.write(2, f"{text}\n".encode(errors="replace"))
    except OSError:
        pass


def log_exception() -> None:
    """The one that is being handled."""
    import traceback  # seldom needed, and a tenth of what each fork of this process would have to copy

    log(traceback.format_exc().rstrip())
