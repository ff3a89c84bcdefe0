"""How the devices of drivers do, as their plugins tell, and until when that holds (kubelet: `healthInfoCache`).

What a plugin says of a device holds for as long as the plugin says, half a minute as a rule; then nothing is known. It
outlives the agent in `dra_health_state`, the kubelet's file:

    {"<driver>": {"Devices": {"<pool>/<device>": {"PoolName": …, "DeviceName": …, "Health": "Healthy",
                                                  "LastUpdated": …, "HealthCheckTimeout": <ns>, "Message": …}}}}

It may be lost: then devices are unknown until their plugins tell.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from trikubelet.api.timestamps import format_micro_time, parse_time
from trikubelet.formats.go_checkpoint import GoCheckpointError, by_lower_name, go_json, mapping_of, text_of
from trikubelet.formats.values import frozen
from trikubelet.rpc.dra_health.v1alpha1 import HealthStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trikubelet.rpc.dra_health import v1alpha1

FILE: Final = "dra_health_state"
"""Below the agent's root directory."""
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
UNKNOWN: Final = "Unknown"
DEFAULT_TIMEOUT: Final = timedelta(seconds=30)
MESSAGE_LIMIT: Final = 1024
"""Bytes."""

_LONGEST: Final = timedelta(days=3650)
_LATEST: Final = datetime.max.replace(tzinfo=UTC) - _LONGEST
"""What is told later can have no end that Python knows."""
_STATUSES: Final = {HealthStatus.HEALTHY: HEALTHY, HealthStatus.UNHEALTHY: UNHEALTHY}

DeviceName: TypeAlias = tuple[str, str]
"""Pool, and name in it."""


@frozen
class DeviceHealth:
    """What was last told of a device."""

    health: str
    told_at: datetime
    timeout: timedelta = DEFAULT_TIMEOUT
    message: str = ""

    def is_over(self, now: datetime) -> bool:
        return now - self.told_at > self.timeout


def told(device: v1alpha1.DeviceHealth, now: datetime) -> tuple[DeviceName, DeviceHealth]:
    """What a plugin says."""
    seconds = device.health_check_timeout_seconds
    timeout = min(timedelta(seconds=min(seconds, 10**9)), _LONGEST) if seconds > 0 else DEFAULT_TIMEOUT
    health = _STATUSES.get(device.health, UNKNOWN)
    name = (device.device.pool_name, device.device.device_name)
    return name, DeviceHealth(health, now, timeout, _cut(device.message))


class HealthBook:
    """The health of all devices."""

    def __init__(self, known: Mapping[str, Mapping[DeviceName, DeviceHealth]] | None = None) -> None:
        self._drivers: dict[str, dict[DeviceName, DeviceHealth]] = {
            driver: dict(devices) for driver, devices in (known or {}).items()
        }

    def get(self, driver: str, device: DeviceName, now: datetime) -> tuple[str, str]:
        """`Healthy`, `Unhealthy` or `Unknown`, and a message."""
        found = self._drivers.get(driver, {}).get(device)
        if found is None or found.is_over(now):
            return UNKNOWN, ""
        return found.health, found.message

    def update(self, driver: str, devices: Iterable[tuple[DeviceName, DeviceHealth]], now: datetime) -> set[DeviceName]:
        """A plugin has told of all its devices. Returns those that do otherwise than before.

        Of one that it leaves out, what was told last goes on to hold for its time.
        """
        known = self._drivers.setdefault(driver, {})
        changed = set()
        for name, told_now in devices:
            before = known.get(name)
            if before is None or attrs.evolve(before, told_at=told_now.told_at) != told_now:
                changed.add(name)
            known[name] = told_now
        return changed | self._expire(driver, now)

    def expire(self, now: datetime) -> dict[str, set[DeviceName]]:
        """What was told too long ago is unknown. Returns devices of which that is new, by driver."""
        expired = {driver: self._expire(driver, now) for driver in self._drivers}
        return {driver: names for driver, names in expired.items() if names}

    def next_expiry(self) -> datetime | None:
        """When something will be unknown that is known now; None where nothing is."""
        return min(
            (
                min(one.told_at, _LATEST) + one.timeout
                for devices in self._drivers.values()
                for one in devices.values()
                if one.health != UNKNOWN
            ),
            default=None,
        )

    def clear(self, driver: str) -> set[DeviceName]:
        """Nobody tells of a driver's devices any more. Returns those of which something was known."""
        return {name for name, one in self._drivers.pop(driver, {}).items() if one.health != UNKNOWN}

    def _expire(self, driver: str, now: datetime) -> set[DeviceName]:
        known = self._drivers[driver]
        over = {name for name, one in known.items() if one.health != UNKNOWN and one.is_over(now)}
        for name in over:
            known[name] = attrs.evolve(known[name], health=UNKNOWN, message="", told_at=now)
        return over

    def to_bytes(self) -> bytes:
        """For the file."""
        return go_json(
            {
                driver: {
                    "Devices": {
                        f"{pool}/{name}": {
                            "PoolName": pool,
                            "DeviceName": name,
                            "Health": one.health,
                            "LastUpdated": format_micro_time(one.told_at),
                            "HealthCheckTimeout": one.timeout // timedelta(microseconds=1) * 1000,
                            "Message": one.message,
                        }
                        for (pool, name), one in sorted(devices.items())
                    }
                }
                for driver, devices in sorted(self._drivers.items())
            }
        ).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> HealthBook:
        """Raises GoCheckpointError."""
        try:
            wire = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise GoCheckpointError(f"expected JSON: {error}") from error
        return cls(mapping_of(wire, _devices_from_wire))


def _devices_from_wire(wire: Any) -> dict[DeviceName, DeviceHealth]:
    return dict(map(_from_wire, mapping_of(by_lower_name(wire).get("devices"), by_lower_name).values()))


def _from_wire(fields: dict[str, Any]) -> tuple[DeviceName, DeviceHealth]:
    nanoseconds = fields.get("healthchecktimeout") or 0
    told_at = parse_time(text_of(fields.get("lastupdated")))
    if type(nanoseconds) is not int or told_at is None:
        raise GoCheckpointError("expected a time LastUpdated, and nanoseconds as HealthCheckTimeout")
    timeout = timedelta(seconds=min(max(nanoseconds, 0) // 10**9, 10**8)) or DEFAULT_TIMEOUT
    name = (text_of(fields.get("poolname")), text_of(fields.get("devicename")))
    return name, DeviceHealth(text_of(fields.get("health")), told_at, timeout, text_of(fields.get("message")))


def _cut(message: str) -> str:
    """Not longer than the API allows."""
    content = message.encode("utf-8", "replace")
    if len(content) <= MESSAGE_LIMIT:
        return message
    return content[: MESSAGE_LIMIT - 3].decode("utf-8", "ignore") + "..."
