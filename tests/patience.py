"""How long tests wait for what real programs do. It is long, since nothing is slower for it but a failure."""

from __future__ import annotations

import os
from typing import Final

SLOWER: Final = float(os.environ.get("TESTS_SLOWER", "1"))
"""How much slower than usual this machine is: ten times where its processor is emulated (`tests.guest`)."""
PATIENCE: Final = 60.0 * SLOWER
"""Seconds."""
