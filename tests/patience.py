"""How long tests wait for what real programs do. It is long, since nothing is slower for it but a failure."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOWER: Final = float(os.environ.get("TESTS_SLOWER", "1"))
"""How much slower than usual this machine is: ten times where its processor is emulated (`tests.guest`)."""
PATIENCE: Final = 60.0 * SLOWER
"""Seconds."""


def pauses() -> Iterator[float]:
    """Yield the seconds until the next look at something that may have happened: a tenth of the time since the first.

    So looking costs little, and nobody waits much longer than it takes.
    """
    began = time.monotonic()
    while True:
        yield min(0.25, max(0.01, (time.monotonic() - began) / 10))
