"""`frozen` and `define`: attrs' decorators of the same names, which have attrs work on a class when it is first used.

attrs compiles the methods of each class as the class is defined, which takes 0.4 ms and 16 KiB. The agent defines some
nine hundred of them, and before its first pod runs it uses a sixth. So a class gets its slots at once, and its other
parts when the first of them is looked up: by whoever makes a value, matches it by position, or asks `attrs.fields`; and
what compares and hashes values, which most classes never need, when one is compared or hashed. From then on it is what
attrs makes of it, and as fast.

For type checkers they are attrs' decorators. What is rare stays with attrs: classes that write their own `__init__` or
have a `cached_property`, and mutable ones that convert or check what they are given. Values are not pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from attrs import define, frozen
else:

    def frozen(maybe_cls=None, *, repr=True, eq=True, kw_only=False):  # noqa: A002 - attrs' names
        def decorate(cls):
            return _with_slots(cls, attrs.frozen, shown=repr, eq=eq, kw_only=kw_only)

        return decorate if maybe_cls is None else decorate(maybe_cls)

    def define(maybe_cls=None, *, repr=True, eq=True, kw_only=False):  # noqa: A002
        def decorate(cls):
            return _with_slots(cls, attrs.define, shown=repr, eq=eq, kw_only=kw_only)

        return decorate if maybe_cls is None else decorate(maybe_cls)


__all__ = ("define", "frozen")


@attrs.frozen
class _Frozen:
    """Lends the methods by which attrs recognizes a frozen class."""


_REFUSING: Final = {name: vars(_Frozen)[name] for name in ("__setattr__", "__delattr__")}
_MADE: Final = ("__attrs_attrs__", "__init__", "__match_args__")
_MADE_TO_COMPARE: Final = ("__eq__", "__hash__")
"""Of mutable classes only the first: their values cannot be hashed."""


class _MadeLater:
    """Stands in a class for what attrs has yet to make."""

    __slots__ = ("_make", "_name")

    def __init__(self, name: str, make: Callable[[], Mapping[str, Any]]) -> None:
        self._name = name
        self._make = make

    def __get__(self, instance: object, owner: type) -> Any:
        made = self._make()[self._name]
        return made.__get__(instance, owner) if callable(made) else made


def _with_slots(cls: type, decorator: Callable[..., Any], *, shown: bool, eq: bool, kw_only: bool) -> type:
    """The class with slots for its fields, and stand-ins for the rest. Exceptions are compared by identity."""
    if "__init__" in vars(cls):
        raise TypeError(f"expected no __init__ in {cls.__qualname__}: use attrs' decorator there")
    kind: Any = type(cls)
    name, bases = cls.__name__, cls.__bases__
    parts = {key: value for key, value in vars(cls).items() if key not in ("__dict__", "__weakref__")}
    unchanging = decorator is attrs.frozen

    def maker(keys: Iterable[str], **wanted: Any) -> dict[str, _MadeLater]:
        """Stand-ins for what attrs makes together."""
        later = [key for key in keys if key not in parts]

        def make() -> Mapping[str, Any]:
            """Two threads may meet here; they make the same."""
            whole: type = kind(name, bases, dict(parts))
            finished = decorator(whole, repr=False, kw_only=kw_only, getstate_setstate=False, **wanted)
            made: Mapping[str, Any] = vars(finished)
            if not unchanging and "__setattr__" in made:
                raise TypeError(f"expected no converters and validators in {name}: use attrs.define there")
            for key in later:
                setattr(slotted, key, made[key])
            return made

        return {key: _MadeLater(key, make) for key in later}

    fields = [key for key, annotation in cls.__annotations__.items() if not annotation.startswith("ClassVar")]
    body = {key: value for key, value in parts.items() if key not in fields}
    body |= maker(_MADE, eq=False)
    if unchanging:
        body |= _REFUSING
    if eq and not issubclass(cls, BaseException):
        body |= maker(_MADE_TO_COMPARE if unchanging else _MADE_TO_COMPARE[:1], init=False)
    body["__slots__"] = _new_slots(bases, fields)
    if shown:
        body.setdefault("__repr__", _repr)
    slotted: type = kind(name, bases, body)
    _adopt(slotted)
    return slotted


def _new_slots(bases: tuple[type, ...], fields: list[str]) -> tuple[str, ...]:
    """Without those that a base has. As with attrs, there may be weak references to every value."""
    there = {name for base in bases for ancestor in base.__mro__ for name in ancestor.__dict__.get("__slots__", ())}
    if any("__weakref__" in vars(ancestor) for base in bases for ancestor in base.__mro__):
        there.add("__weakref__")
    return tuple(name for name in (*fields, "__weakref__") if name not in there)


def _adopt(cls: type) -> None:
    """Have methods that use `super()` or `__class__` mean this class, not the one without slots that it replaces."""
    for part in vars(cls).values():
        function = getattr(part, "__func__", None) or getattr(part, "fget", None) or part
        if "__class__" in (names := getattr(getattr(function, "__code__", None), "co_freevars", ())):
            function.__closure__[names.index("__class__")].cell_contents = cls


def _repr(self: Any) -> str:
    """A field's `repr` says whether it is shown, or is a function that shows it."""
    cls = type(self)
    shown = (
        f"{field.name}={(repr if field.repr is True else field.repr)(getattr(self, field.name))}"
        for field in attrs.fields(cls)
        if field.repr is not False
    )
    return f"{cls.__qualname__.rsplit('>.', 1)[-1]}({', '.join(shown)})"
