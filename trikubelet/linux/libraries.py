"""Libraries of others, loaded without what they import and an agent mostly does not use.

While such a library is imported, stand-ins take the places of modules that it asks for, and no longer: who asks for one
of them afterwards gets the real one.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TRIO_MAY_NEED: Final = ("ssl", "hmac", "idna")
"""TLS, which with `hmac` brings OpenSSL's library, and names of hosts beyond ASCII: 4.4 MiB."""


class LaterModule(ModuleType):
    """Is there for `import name`, and imports the module when something in it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def module_of(name: str, contents: Mapping[str, object]) -> ModuleType:
    """A module that has nothing else in it."""
    module = ModuleType(name)
    vars(module).update(contents)
    return module


@contextmanager
def standing_in(*modules: ModuleType) -> Iterator[None]:
    """For the time of a library's import. Modules that are there already stay as they are."""
    absent = [module for module in modules if module.__name__ not in sys.modules]
    for module in absent:
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for module in absent:
            if sys.modules.get(module.__name__) is module:
                del sys.modules[module.__name__]


def load_trio() -> None:
    """Import Trio, unless it is there already. It loads the rest when a connection needs it."""
    if "trio" in sys.modules:
        return
    with standing_in(*map(LaterModule, _TRIO_MAY_NEED)):
        import trio  # noqa: F401
