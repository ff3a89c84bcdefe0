"""How devices do, and how pods tell (`healthinfo_test.go`, and the manager's own tests)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.dra_driver import ToyDriver, a_device
from tests.dra_driver.driver import a_health
from tests.node.dra.situations import TOY, make_pod
from tests.node.dra.stage import claim_stage, settle
from trikubelet.api import to_dict
from trikubelet.formats.go_checkpoint import GoCheckpointError
from trikubelet.node.dra.claims import ClaimGates
from trikubelet.node.dra.health import HealthBook, told

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from tests.node.dra.stage import Stage
    from trikubelet.rpc.dra_health import v1alpha1

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = ("pool", "one"), ("pool", "two")
POD = make_pod("p", "c")


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def tell(book: HealthBook, *devices: v1alpha1.DeviceHealth, at: float = 0) -> set[tuple[str, str]]:
    now = later(at)
    return book.update("x", [told(device, now) for device in devices], now)


def test_what_a_plugin_tells_holds_for_its_time() -> None:
    book = HealthBook()
    assert book.get("x", ONE, NOW) == ("Unknown", "")
    assert tell(book, a_health("one", "HEALTHY", message="well"), a_health("two", "UNHEALTHY", seconds=60)) == {
        ONE,
        TWO,
    }
    assert book.get("x", ONE, later(30)) == ("Healthy", "well")
    assert book.get("x", ONE, later(30.1)) == ("Unknown", "")
    assert book.get("x", TWO, later(60)) == ("Unhealthy", "")
    assert book.get("x", TWO, later(60.1)) == ("Unknown", "")
    assert book.get("other", ONE, NOW) == ("Unknown", "")
    assert book.next_expiry() == later(30)


@pytest.mark.parametrize(("seconds", "holds"), [(0, 30), (-5, 30), (7, 7), (2**62, 10**6)])
def test_the_time_is_the_plugins_if_it_has_one(seconds: int, holds: float) -> None:
    book = HealthBook()
    tell(book, a_health("one", "HEALTHY", seconds=seconds))
    assert book.get("x", ONE, later(holds))[0] == "Healthy"


def test_only_changes_are_changes() -> None:
    book = HealthBook()
    tell(book, a_health("one", "HEALTHY"))
    assert tell(book, a_health("one", "HEALTHY"), at=10) == set()
    assert book.get("x", ONE, later(40))[0] == "Healthy", "but it holds longer"
    assert tell(book, a_health("one", "HEALTHY", message="x"), at=10) == {ONE}
    assert tell(book, a_health("one", "HEALTHY", message="x", seconds=5), at=10) == {ONE}
    assert tell(book, a_health("one", "UNHEALTHY", message="x", seconds=5), at=10) == {ONE}


def test_a_device_that_is_left_out_is_unknown_after_its_time() -> None:
    book = HealthBook()
    tell(book, a_health("one", "HEALTHY"), a_health("two", "HEALTHY"))
    assert tell(book, a_health("one", "HEALTHY"), at=20) == set()
    assert tell(book, a_health("one", "HEALTHY"), at=40) == {TWO}
    assert book.expire(later(60)) == {}
    assert book.expire(later(71)) == {"x": {ONE}}
    assert book.next_expiry() is None


@pytest.mark.parametrize("nanoseconds", [0, 2**62])
def test_what_was_told_at_the_end_of_time_holds_until_then(nanoseconds: int) -> None:
    device = {"PoolName": "pool", "DeviceName": "one", "Health": "Healthy", "HealthCheckTimeout": nanoseconds}
    device["LastUpdated"] = "9999-12-31T23:59:59Z"
    book = HealthBook.from_bytes(json.dumps({"x": {"Devices": {"pool/one": device}}}).encode())
    expiry = book.next_expiry()
    assert expiry is not None
    assert expiry.year > 9900
    assert book.expire(NOW) == {}
    assert HealthBook.from_bytes(book.to_bytes()).get("x", ONE, NOW) == ("Healthy", "")


def test_without_a_plugin_nothing_is_known() -> None:
    book = HealthBook()
    tell(book, a_health("one", "HEALTHY"), a_health("two", "UNKNOWN"))
    assert book.clear("x") == {ONE}
    assert book.get("x", ONE, NOW) == ("Unknown", "")
    assert book.clear("x") == set()


@pytest.mark.parametrize(
    ("message", "kept"),
    [("x" * 1024, "x" * 1024), ("x" * 1025, "x" * 1021 + "..."), ("ü" * 513, "ü" * 510 + "..."), ("", "")],
)
def test_a_message_is_as_long_as_the_api_allows(message: str, kept: str) -> None:
    assert told(a_health("one", "HEALTHY", message=message), NOW)[1].message == kept


def test_it_outlives_the_agent() -> None:
    book = HealthBook()
    tell(book, a_health("one", "HEALTHY", message="m"), a_health("two", "UNHEALTHY", seconds=60))
    content = book.to_bytes()
    assert content.startswith(
        b'{"x":{"Devices":{"pool/one":{"PoolName":"pool","DeviceName":"one","Health":"Healthy",'
        b'"LastUpdated":"2026-01-01T00:00:00.000000Z","HealthCheckTimeout":30000000000,"Message":"m"}'
    )
    again = HealthBook.from_bytes(content)
    assert again.get("x", ONE, later(30)) == ("Healthy", "m")
    assert again.get("x", TWO, later(60)) == ("Unhealthy", "")
    without = b'{"x":{"Devices":{"pool/one":{"PoolName":"pool","DeviceName":"one","Health":"Healthy",'
    assert HealthBook.from_bytes(without + b'"LastUpdated":"2026-01-01T01:00:00+01:00"}}}}').get(
        "x", ONE, later(30)
    ) == (
        "Healthy",
        "",
    )


@pytest.mark.parametrize(
    "content", [b"{", b"[1]", b'{"x":1}', b'{"x":{"Devices":{"a":{}}}}', b'{"x":{"Devices":{"a":{"LastUpdated":1}}}}']
)
def test_a_broken_file_is_told(content: bytes) -> None:
    with pytest.raises(GoCheckpointError):
        HealthBook.from_bytes(content)


# In the manager.


def shown(stage: Stage, pod: Any = POD, container: str = "main") -> Any:
    return [to_dict(status) for status in stage.manager.health(pod)(container)]


async def test_a_pod_hears_of_its_devices(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver(devices={"c": [a_device("one", cdi=["a/b=1"]), a_device("two")]}, tells_health=True)
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        assert shown(stage) == []
        await stage.manager.prepare(POD)
        unknown = {"name": "claim:c", "resources": [{"resourceID": "a/b=1", "health": "Unknown"}]}
        unknown["resources"].append({"resourceID": f"{TOY}/pool/two", "health": "Unknown"})  # type: ignore[attr-defined]
        assert shown(stage) == [unknown]
        await driver.tell(one="HEALTHY", other="UNHEALTHY")
        await trio.sleep(1)
        assert stage.told == ["p"]
        assert [one["health"] for one in shown(stage)[0]["resources"]] == ["Healthy", "Unknown"]
        await driver.tell_devices(a_health("one", "UNHEALTHY", message="too hot"), a_health("two", "HEALTHY"))
        await trio.sleep(1)
        assert shown(stage)[0]["resources"] == [
            {"resourceID": "a/b=1", "health": "Unhealthy", "message": "too hot"},
            {"resourceID": f"{TOY}/pool/two", "health": "Healthy"},
        ]
        assert stage.told == ["p", "p"]
        await trio.sleep(31)
        assert shown(stage) == [unknown], "it was told too long ago"
        assert stage.told == ["p"] * 3
        assert shown(stage, container="other") == []


async def test_of_a_request_only_its_devices_are_shown(tmp_path: Path, autojump_clock: MockClock) -> None:
    devices = [a_device("one", requests=["gpu"]), a_device("two", requests=["nic"])]
    claims = [{"name": "c", "request": name} for name in ("gpu/large", "none")]
    pod = make_pod("p", "c", containers=[{"name": "main", "image": "x", "resources": {"claims": claims}}])
    async with claim_stage(tmp_path) as stage:
        await stage.register(ToyDriver(devices={"c": devices}))
        stage.claims("c")
        await stage.manager.prepare(pod)
        resources = [{"resourceID": f"{TOY}/pool/one", "health": "Unknown"}]
        assert shown(stage, pod) == [{"name": "claim:c/gpu/large", "resources": resources}]


async def test_the_end_of_a_plugin_is_the_end_of_what_it_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver(devices={"c": [a_device("one")]}, tells_health=True)
    async with claim_stage(tmp_path) as stage:
        await stage.register(driver)
        stage.claims("c")
        await stage.manager.prepare(POD)
        await driver.tell(one="HEALTHY")
        await trio.sleep(1)
        stage.kill(driver)
        await settle()
        assert shown(stage)[0]["resources"][0]["health"] == "Unknown"
        stage.listen(driver)
        await driver.tell(one="HEALTHY")
        await trio.sleep(1)
        assert shown(stage)[0]["resources"][0]["health"] == "Healthy"
        await stage.restart()
        assert shown(stage)[0]["resources"][0]["health"] == "Healthy", "the next agent knows what this one was told"
        await trio.sleep(31)
        assert shown(stage)[0]["resources"][0]["health"] == "Unknown"


async def test_gates_keep_health_and_messages_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    driver = ToyDriver(devices={"c": [a_device("one")]}, tells_health=True)
    async with claim_stage(tmp_path, ClaimGates(health_message=False)) as stage:
        await stage.register(driver)
        stage.claims("c")
        await stage.manager.prepare(POD)
        await driver.tell_devices(a_health("one", "HEALTHY", message="secret"))
        await trio.sleep(1)
        assert shown(stage)[0]["resources"] == [{"resourceID": f"{TOY}/pool/one", "health": "Healthy"}]
    async with claim_stage(tmp_path, ClaimGates(resource_health=False)) as stage:
        assert shown(stage) == []
