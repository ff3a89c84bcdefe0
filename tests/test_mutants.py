"""How mutants are made and tried, on a module and tests of its own."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.mutants.patch import PatchError, patch

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

SOURCE = """
import functools

LIMIT = 3

def plain(x):
    return x + 1

def outer():
    def inner(x):
        return x * 2
    return inner

class Kept:
    LIMIT = 7

    @property
    def size(self):
        return 10

    @functools.cached_property
    def other(self):
        return 20

    @staticmethod
    def plain(x):
        return -x
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / "patched.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("patched", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def apply(module: ModuleType, old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert module.__file__ is not None
    patch(module.__file__, SOURCE, SOURCE.replace(old, new))


def test_who_has_a_function_has_the_edited_one(module: ModuleType) -> None:
    had = module.plain
    apply(module, "return x + 1", "x = x * 100\n    return x + 2")
    assert (had(1), module.Kept.plain(1)) == (102, -1)


def test_each_closure_of_a_function_is_edited(module: ModuleType) -> None:
    had = module.outer(), module.outer()
    apply(module, "return x * 2", "return x * 3")
    assert [each(2) for each in had] == [4, 4], "they were made before"
    assert module.outer()(2) == 6


def test_methods_and_what_wraps_them_are_edited(module: ModuleType) -> None:
    kept = module.Kept()
    apply(module, "return 10", "return 11")
    assert kept.size == 11
    apply(module, "return 20", "return 21")
    assert kept.other == 21
    apply(module, "return -x", "return x")
    assert kept.plain(5) == 5


@pytest.mark.parametrize(
    ("old", "new"), [("LIMIT = 3", "LIMIT = 'x'"), ("LIMIT = 7", "LIMIT = 8"), ("x + 1", "x +  1")]
)
def test_what_is_in_no_function_cannot_be_edited(module: ModuleType, old: str, new: str) -> None:
    with pytest.raises(PatchError):
        apply(module, old, new)


def test_a_function_that_nobody_has_cannot_be_edited(module: ModuleType) -> None:
    del module.plain
    with pytest.raises(PatchError, match="nobody has plain"):
        apply(module, "return x + 1", "return x + 2")
