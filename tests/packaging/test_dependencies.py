"""What the wheel says of itself: the packages that the code imports, and the command."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_IMPORT: Final = re.compile(
    r"^ *(?:from ([a-zA-Z]\w*)[\w.]* import |import ([a-zA-Z]\w*)[\w.]*(?: as \w+)?$)", re.MULTILINE
)


def imported() -> dict[str, Path]:
    """What is neither Python's nor ours, and where."""
    known = {*sys.stdlib_module_names, "trikubelet"}
    return {
        name: file
        for file in (ROOT / "trikubelet").rglob("*.py")
        for found in _IMPORT.finditer(file.read_text(encoding="utf-8"))
        if (name := found[1] or found[2]) not in known
    }


def asked_for(requirements: list[str]) -> set[str]:
    """Names of packages, without those that only an extra wants."""
    names = (re.match(r"[\w.-]+", each) for each in requirements if "extra ==" not in each)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


def test_every_package_that_the_code_imports_is_installed_with_it() -> None:
    declared = asked_for(PROJECT["dependencies"])
    conditional = asked_for([each for each in PROJECT["dependencies"] if "python_version" in each])
    installed = declared.union(*(asked_for(requires(name) or []) for name in declared - conditional))
    providers = packages_distributions()
    found = imported()
    assert len(found) > 10
    for module, file in found.items():
        packages = {re.sub(r"[-_.]+", "-", each).lower() for each in providers.get(module, [module])}
        assert packages & installed, f"{file.relative_to(ROOT)} imports {module}: no dependency of ours brings it"


def test_the_command_is_there() -> None:
    assert PROJECT["scripts"].keys() == {"trikubelet"}
    module, _, function = PROJECT["scripts"]["trikubelet"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
