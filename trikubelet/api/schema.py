"""How the classes of this package say what they look like on the wire.

Every class is a frozen attrs class whose annotations are the schema: `decode` and `encode` read them, once per class
and only when an object of the class is first seen, so that importing the package builds no codecs. The wire name of a
field is its camelCase form unless the field's metadata names another, since Kubernetes writes `hostIP` but
`httpGet`, and no rule gives both.

Defaults are Go's zero values: a field that is absent, null or zero on the wire is the same thing. Pointers are
`X | None`, and keep the difference between absent and zero. What nearly every pod has absent is one object for all;
elsewhere an empty object is made when it is needed (`factory`), so that nobody makes classes that no node uses.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import attrs

from trikubelet.formats.values import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Empty(dict[str, Any]):
    """An empty map that stays empty."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this map is everybody's: make one of your own")

    __setitem__ = __ior__ = update = setdefault = _refuse


EMPTY: Final[dict[str, Any]] = _Empty()
"""The default of every map. An object has dozens of them, and most are empty: one for all saves a third of a pod."""

WIRE_NAME: Final = "wire"
ALWAYS_WRITTEN: Final = "always"


@frozen
class Bits:
    """Marks an integer that has fewer than 64 bits on the wire."""

    count: int


@frozen
class Microseconds:
    """Marks a time that is written with microseconds (`metav1.MicroTime`)."""


Int32 = Annotated[int, Bits(32)]
MicroTime = Annotated[datetime, Microseconds()]

REQUIRED: Final[Mapping[str, Any]] = {ALWAYS_WRITTEN: True}
"""Metadata of a field that is written even when it is empty."""


def wire(name: str, *, required: bool = False) -> dict[str, Any]:
    """Metadata of a field whose wire name does not follow from its Python name."""
    return {WIRE_NAME: name, ALWAYS_WRITTEN: required}


@frozen(repr=False)
class APIObject:
    """The base of everything that has fields on the wire.

    `unknown_fields` holds the fields of a newer API, by wire name and as they came; they are written back. Maps, this
    one included, are shared between copies that `attrs.evolve` makes: treat them as read-only.
    """

    unknown_fields: dict[str, Any] = attrs.field(default=EMPTY, kw_only=True)

    def __repr__(self) -> str:
        """Only what differs from the defaults: pods have hundreds of empty fields."""
        shown = []
        for attribute in sorted(attrs.fields(type(self)), key=lambda attribute: attribute.name == "unknown_fields"):
            if attribute.repr is False:
                continue
            value = getattr(self, attribute.name)
            default = attribute.default
            if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
                default = default.factory()
            if value != default:
                shown.append(f"{attribute.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"
