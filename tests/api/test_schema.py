"""What all objects have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trikubelet.api import ObjectMeta, Pod, to_dict

if TYPE_CHECKING:
    from collections.abc import Callable


def test_empty_maps_are_one() -> None:
    assert ObjectMeta().labels is Pod().metadata.annotations
    assert ObjectMeta().labels == {}
    assert to_dict(ObjectMeta()) == to_dict(ObjectMeta(labels={}))


@pytest.mark.parametrize(
    "change",
    [
        lambda labels: labels.update(a="b"),
        lambda labels: labels.setdefault("a", "b"),
        lambda labels: labels.__setitem__("a", "b"),
        lambda labels: labels.__ior__({"a": "b"}),
    ],
)
def test_what_is_everybodys_takes_nothing(change: Callable[[dict[str, str]], object]) -> None:
    with pytest.raises(TypeError, match="make one of your own"):
        change(ObjectMeta().labels)
    assert ObjectMeta().labels == {}
