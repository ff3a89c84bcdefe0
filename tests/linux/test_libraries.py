"""Libraries that are loaded without what they import themselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from trikubelet.linux.libraries import LaterModule, module_of, standing_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules, which are forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needed.py").write_text("value = 1\n")
    (tmp_path / "library.py").write_text("import needed\ndef value(): return needed.value\n")
    yield tmp_path
    for name in ("needed", "library", "eager"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("modules")
def test_a_module_comes_when_something_in_it_is_asked_for() -> None:
    with standing_in(LaterModule("needed")):
        import library  # type: ignore[import-not-found]
    assert "needed" not in sys.modules
    assert library.value() == 1
    assert sys.modules["needed"] is not library.needed
    with pytest.raises(AttributeError):
        _ = library.needed.other


def test_a_library_that_asks_at_once_gets_it(modules: Path) -> None:
    (modules / "eager.py").write_text("from needed import value\n")
    with standing_in(LaterModule("needed")):
        import eager  # type: ignore[import-not-found]
    assert eager.value == 1
    assert sys.modules["needed"].value == 1


@pytest.mark.usefixtures("modules")
def test_what_is_there_stays() -> None:
    import needed  # type: ignore[import-not-found]

    with standing_in(module_of("needed", {"value": 2})):
        import library
    assert library.needed is needed
    assert sys.modules["needed"] is needed


def test_a_stand_in_is_gone_when_the_library_cannot_be_imported(modules: Path) -> None:
    (modules / "library.py").write_text("import needed\nneeded.value / 0\n")
    with pytest.raises(ZeroDivisionError), standing_in(module_of("needed", {"value": 2})):
        import library  # noqa: F401
    assert "needed" not in sys.modules
