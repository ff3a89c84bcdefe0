"""Classes whose methods attrs makes when they are first needed."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import attrs
import pytest

from trikubelet.formats.values import define, frozen

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
    assert hash(Point(1)) == hash(Point(1))
    assert Point(1) == Point(1)
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


def test_own_initializers_stay_with_attrs() -> None:
    with pytest.raises(TypeError, match=r"expected no __init__ in .*Wrong: use attrs' decorator there"):

        @frozen
        class Wrong:
            def __init__(self) -> None: ...


def test_an_exception_has_its_fields_as_arguments_and_is_compared_by_identity() -> None:
    @frozen
    class NotFoundError(ValueError):
        name: str
        place: str = "here"

        def __str__(self) -> str:
            return f"{self.name} is not {self.place}, {super().__str__()}"

    @frozen
    class GoneError(NotFoundError):
        pass

    error = GoneError("a")
    assert error.args == ("a", "here")
    assert str(error) == "a is not here, ('a', 'here')"
    assert repr(error).endswith("GoneError(name='a', place='here')")
    assert error != GoneError("a")
    assert len({error, error}) == 1
    with pytest.raises(NotFoundError) as caught:
        raise error from KeyError("a")  # sets `__cause__` and `__traceback__`, which alone may be set
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        error.name = "b"  # type: ignore[misc]


@define
class Counter:
    name: str
    count: int = 0

    def __attrs_post_init__(self) -> None:
        self.count += 1


@define(eq=False)
class Named(Counter):
    alias: str = attrs.field(default="", repr=False)


def test_a_mutable_class_changes_its_fields_and_has_no_others() -> None:
    counter = Counter("a")
    counter.count += 1
    assert counter == Counter("a", 1)
    assert counter != Counter("b", 1)
    assert repr(counter) == "Counter(name='a', count=2)"
    assert not hasattr(counter, "__dict__")
    with pytest.raises(AttributeError):
        counter.other = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unhashable"):
        hash(counter)


def test_a_mutable_class_may_be_compared_by_identity_and_inherits_fields() -> None:
    named = Named("a", alias="b")
    named.alias = "c"
    assert [field.name for field in attrs.fields(Named)] == ["name", "count", "alias"]
    assert (named.count, repr(named)) == (1, "Named(name='a', count=1)")
    assert attrs.evolve(named, count=5).count == 6


def test_what_is_checked_or_converted_stays_with_attrs() -> None:
    @define
    class Checked:
        number: int = attrs.field(converter=int)

    with pytest.raises(TypeError, match=r"expected no converters and validators in Checked: use attrs\.define there"):
        Checked("1")
