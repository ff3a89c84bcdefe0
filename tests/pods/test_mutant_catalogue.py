"""The quick part of `make mutants`: the catalogue fits the source. That the mutants are killed takes minutes."""

from __future__ import annotations

from typing import Final

import attrs
import pytest

from tests.mutants.catalogue import MUTANTS, Mutant, Promise
from tests.mutants.patch import changed_functions
from tests.mutants.workshop import PACKAGE, PROJECT, EditError, edited

GUARDS_AT_LEAST: Final = 75


def source(mutant: Mutant) -> str:
    return (PROJECT / PACKAGE / mutant.file).read_text(encoding="utf-8")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_edit_fits_the_source_once_and_changes_functions_alone(mutant: Mutant) -> None:
    before = source(mutant)
    assert changed_functions(mutant.file, before, edited(mutant, before))


def test_the_catalogue_covers_every_invariant_and_enough_guards() -> None:
    assert {mutant.promise for mutant in MUTANTS} >= set(Promise)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS) >= GUARDS_AT_LEAST
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_an_edit_that_no_longer_fits_is_refused_with_the_place_to_mend() -> None:
    stale = attrs.evolve(MUTANTS[0], old="a text that is not there")
    with pytest.raises(EditError, match=r"found 0 times; move the edit in tests/mutants/catalogue.py") as info:
        edited(stale, source(stale))
    assert (info.value.mutant, info.value.found) == (stale, 0)
    with pytest.raises(EditError, match="found 2 times"):
        edited(attrs.evolve(stale, old="guard"), "guard, guard")
