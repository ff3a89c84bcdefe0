"""Classes whose methods attrs makes when they are first needed."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import attrs
import pytest

from trikubelet.formats.values import frozen

T = TypeVar("T")


@frozen
class Point:
    x: int
    y: int = 0
    tags: list[str] = attrs.field(factory=list, eq=False, repr=False)
    dimensions: ClassVar[int] = 2

    def moved(self, by: int) -> Point:
        return attrs.evolve(self, x=self.x + by)


@frozen(kw_only=True)
class NamedPoint(Point):
    name: str

    def moved(self, by: int) -> Point:
        return attrs.evolve(super().moved(by), y=-1)

    @classmethod
    def origin(cls) -> NamedPoint:
        return __class__(0, name="origin")  # type: ignore[name-defined,no-any-return]


def test_a_value_is_made_compared_hashed_shown_and_changed_as_attrs_does() -> None:
    point = Point(1, tags=["a"])
    assert (point.x, point.y, point.tags) == (1, 0, ["a"])
    assert point == Point(1)
    assert hash(point) == hash(Point(1))
    assert point != Point(2)
    assert point.moved(2) == Point(3)
    assert repr(point) == "Point(x=1, y=0)"
    assert Point.dimensions == 2


def test_each_part_may_be_the_first_that_is_needed() -> None:
    def fresh() -> Any:
        @frozen
        class Fresh:
            x: int
            y: int = 0

        return Fresh

    assert [field.name for field in attrs.fields(fresh())] == ["x", "y"]
    assert attrs.has(fresh())
    assert fresh().__match_args__ == ("x", "y")
    made = object.__new__(one := fresh())
    object.__setattr__(made, "x", 1)
    object.__setattr__(made, "y", 0)
    assert made == one(1)
    made = object.__new__(one := fresh())
    object.__setattr__(made, "x", 1)
    object.__setattr__(made, "y", 0)
    assert hash(made) == hash(one(1))
    with pytest.raises(TypeError, match=r"Fresh\.__init__\(\) missing 1 required positional argument: 'x'"):
        fresh()()


def test_what_attrs_makes_is_the_classes_own_from_then_on() -> None:
    Point(1)
    assert {"__init__", "__eq__", "__hash__"} <= vars(Point).keys()
    assert all(type(vars(Point)[name]).__name__ == "function" for name in ("__init__", "__eq__", "__hash__"))


def test_a_value_cannot_be_changed_and_takes_no_other_attributes() -> None:
    point = Point(1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del point.x
    assert not hasattr(point, "__dict__")
    assert weakref.ref(point)() is point


def test_a_class_inherits_fields_and_calls_its_base() -> None:
    point = NamedPoint(1, name="p")
    assert [field.name for field in attrs.fields(NamedPoint)] == ["x", "y", "tags", "name"]
    assert point.moved(1) == NamedPoint(2, -1, name="p")
    assert NamedPoint.origin() == NamedPoint(0, name="origin")
    assert Point(1) != NamedPoint(1, name="p")
    assert "x" not in vars(NamedPoint)["__slots__"]


def test_a_field_may_be_shown_in_a_way_of_its_own() -> None:
    @frozen
    class Key:
        name: str
        secret: bytes = attrs.field(repr=lambda secret: f"{len(secret)} bytes")
        other: bytes = attrs.field(default=b"", repr=False)

    assert repr(Key("a", b"s3cret", b"s3cret")).endswith("Key(name='a', secret=6 bytes)")


def test_patterns_match_by_position() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_own_methods_stay() -> None:
    @frozen
    class Loose:
        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Loose)

        def __hash__(self) -> int:
            return 0

        def __repr__(self) -> str:
            return "loose"

    assert Loose(1) == Loose(2)
    assert hash(Loose(1)) == 0
    assert repr(Loose(1)) == "loose"


def test_without_eq_values_are_compared_by_identity() -> None:
    @frozen(eq=False)
    class Thing:
        x: int

    thing = Thing(1)
    assert thing == thing
    assert thing != Thing(1)
    assert len({thing, Thing(1)}) == 2


def test_generic_and_abstract_classes_can_be_frozen() -> None:
    @frozen
    class Box(Generic[T]):
        content: T

    @frozen
    class Shape(ABC):
        size: int

        @abstractmethod
        def area(self) -> int: ...

    @frozen
    class Square(Shape):
        def area(self) -> int:
            return self.size**2

    assert Box[int](1) == Box(1)
    assert Square(3).area() == 9
    with pytest.raises(TypeError, match="abstract"):
        Shape(1)  # type: ignore[abstract]


def test_defaults_that_need_the_value_and_hooks_are_attrs_own() -> None:
    @frozen
    class Range:
        start: int
        end: int = attrs.field()
        width: int = attrs.field(init=False)

        @end.default
        def _end(self) -> int:
            return self.start + 1

        def __attrs_post_init__(self) -> None:
            object.__setattr__(self, "width", self.end - self.start)

    assert Range(1) == Range(1, 2)
    assert Range(1, 5).width == 4


def test_exceptions_and_own_initializers_stay_with_attrs() -> None:
    with pytest.raises(TypeError, match=r"WrongError: use attrs\.frozen there"):

        @frozen
        class WrongError(Exception):
            reason: str

    with pytest.raises(TypeError, match=r"AlsoWrong: use attrs\.frozen there"):

        @frozen
        class AlsoWrong:
            def __init__(self) -> None: ...
