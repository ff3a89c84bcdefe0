"""Which tests look at a mutant, and its source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.mutants.catalogue import Mutant

PROJECT: Final = Path(__file__).parents[2]
PACKAGE: Final = Path("trikubelet")

FACTS: Final = (
    "tests/pods/test_termination.py",
    "tests/pods/test_registry.py",
    "tests/pods/test_machine.py",
)
LIFE_FACTS: Final = (
    "tests/pods/test_lives_and_faults.py",
    "tests/pods/test_life.py",
)
SYNCER_FACTS: Final = (
    "tests/pods/test_syncer_ends.py",
    "tests/pods/test_syncer.py",
)
CONTAINER_FACTS: Final = (
    "tests/runtime/containers/test_life.py",
    "tests/runtime/test_pre_stop.py",
    "tests/runtime/test_manager_kills.py",
)
FACTS_OF_FILES: Final = {
    "pods/life.py": LIFE_FACTS,
    "pods/workers.py": LIFE_FACTS,
    "supervision.py": LIFE_FACTS,
    "pods/syncer.py": SYNCER_FACTS,
    "runtime/containers/life.py": CONTAINER_FACTS,
    "runtime/kill.py": CONTAINER_FACTS,
}
"""What is not pure has facts of its own."""
MACHINE: Final = ("tests/pods/test_machine_properties.py",)
"""For what is pure."""
LIVES_MACHINE: Final = ("tests/pods/test_life_properties.py",)
"""For the lives of pods, where no fact notices."""


class EditError(Exception):
    """An edit does not fit the source that it was written for."""

    def __init__(self, mutant: Mutant, found: int) -> None:
        super().__init__(
            f"{mutant.name!r}: its text must be in {PACKAGE / mutant.file} once and was found {found} times; "
            f"move the edit in tests/mutants/catalogue.py to where the guard is now:\n{mutant.old}"
        )
        self.mutant = mutant
        self.found = found


def edited(mutant: Mutant, source: str) -> str:
    """The source without the guard. Raises EditError unless the edit fits exactly once."""
    found = source.count(mutant.old)
    if found != 1:
        raise EditError(mutant, found)
    return source.replace(mutant.old, mutant.new)


def facts_of(mutant: Mutant) -> tuple[str, ...]:
    """The tests that say in words what the mutant breaks."""
    return FACTS_OF_FILES.get(mutant.file, FACTS)


def machine_of(mutant: Mutant) -> tuple[str, ...]:
    """Return the tests by chance that may notice what the mutant breaks."""
    if is_pure(mutant):
        return MACHINE
    return LIVES_MACHINE if facts_of(mutant) == LIFE_FACTS else ()


def is_pure(mutant: Mutant) -> bool:
    """Whether the property machine runs what the mutant changes."""
    return mutant.file not in FACTS_OF_FILES


def tests_of(mutant: Mutant) -> tuple[str, ...]:
    """Return all tests that may look at the mutant."""
    return (*facts_of(mutant), *machine_of(mutant))
