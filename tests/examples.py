"""How many examples a test tries: all of them at night, a quarter by day.

The night is a run with the profile `nightly` in HYPOTHESIS_PROFILE, which `make nightly` sets. By day a property that
says no number of its own gets 25 examples, always the same.
"""

from __future__ import annotations

import os
from typing import Final

PROFILE: Final = "HYPOTHESIS_PROFILE"
EXAMPLES: Final = "HYPOTHESIS_EXAMPLES"
FIRST_SEED: Final = "FIRST_SEED"
"""Names of environment variables. Each night has another number in the last one."""
NIGHTLY: Final = "nightly"
IS_NIGHT: Final = os.environ.get(PROFILE) == NIGHTLY
SHARE: Final = 4
BY_DAY: Final = 100 // SHARE
"""Examples of a property that says no number."""


def examples(count: int) -> int:
    """Return `count` at night, and a quarter of it by day, at least 1."""
    return count if IS_NIGHT else max(1, count // SHARE)


def first_seed() -> int:
    """Return a number for what a test does by chance: always the same by day, and a new one each night."""
    return int(os.environ.get(FIRST_SEED, "0"))


def seeds(count: int) -> range:
    """Return so many numbers from there on, for examples that a test makes itself."""
    return range(first_seed(), first_seed() + count)
