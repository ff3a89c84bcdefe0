"""Who has registered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from tests.listening import told_by
from trikubelet.volumes.csi.drivers import Driver, Drivers
from trikubelet.volumes.errors import TransientVolumeError

if TYPE_CHECKING:
    from trio.testing import MockClock

OLD = Driver("d.example.com", "/old.sock", "1.0.0")
NEW = Driver("d.example.com", "/new.sock", "1.1.0")


async def test_an_unknown_driver_may_still_come() -> None:
    with pytest.raises(TransientVolumeError) as caught:
        async with Drivers().client("d.example.com", volume="data"):
            pass
    assert caught.value.volume == "data"
    assert caught.value.problem == "driver name d.example.com not found in the list of registered CSI drivers"


def test_the_older_ones_end_does_not_end_the_newer() -> None:
    drivers = Drivers()
    drivers.add(OLD)
    drivers.add(NEW)
    drivers.remove("d.example.com", "/old.sock")
    assert drivers.get("d.example.com") == NEW
    drivers.remove("d.example.com", "/new.sock")
    assert drivers.get("d.example.com") is None
    assert drivers.names() == ()


def test_listeners_hear_of_what_changed_only() -> None:
    drivers = Drivers()
    heard = told_by(drivers.changes)
    drivers.add(OLD)
    drivers.add(OLD)
    drivers.remove("d.example.com", "/elsewhere.sock")
    assert heard == ["d.example.com"]
    drivers.add(NEW)
    drivers.remove("d.example.com", "/new.sock")
    assert heard == ["d.example.com"] * 3


async def test_who_waits_gets_the_driver_when_it_comes(autojump_clock: MockClock) -> None:
    drivers = Drivers()
    found: list[Driver] = []

    async def wait() -> None:
        found.append(await drivers.wait("d.example.com"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        drivers.add(Driver("another.example.com", "/a.sock"))
        await trio.testing.wait_all_tasks_blocked()
        assert found == []
        drivers.add(OLD)
    assert found == [OLD, OLD]
    assert await drivers.wait("d.example.com") == OLD
