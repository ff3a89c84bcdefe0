"""Values: a device of a claim, and a claim as the agent knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import attrs

from trikubelet.formats.values import frozen

ClaimKey: TypeAlias = tuple[str, str]
"""Namespace and name."""


@frozen
class ClaimDevice:
    """A device that a driver has prepared for a claim."""

    pool: str
    name: str
    """Unique in its pool."""
    requests: tuple[str, ...] = ()
    """Requests of the claim that it was allocated for; empty: all of them."""
    cdi_ids: tuple[str, ...] = ()
    """`vendor.com/class=name`."""
    share_id: str | None = None
    """Which share of the device, where claims have shares."""

    def is_for(self, request: str) -> bool:
        """Whether who names this request gets the device; an empty name is all of the claim."""
        return not request or not self.requests or request in self.requests


@frozen
class ClaimState:
    """A claim that pods of this node use, or did until a moment ago."""

    uid: str
    name: str
    namespace: str
    pods: frozenset[str] = frozenset()
    """UIDs."""
    drivers: Mapping[str, tuple[ClaimDevice, ...]] = attrs.field(factory=dict)
    """Every driver that the claim has devices of, with what it has prepared: nothing before, and some never tell."""
    prepared: bool = False
    """Whether this agent has seen all drivers prepare it. Not on the disk: preparing again does no harm."""

    @property
    def key(self) -> ClaimKey:
        return (self.namespace, self.name)

    def devices(self) -> Iterator[tuple[str, ClaimDevice]]:
        """All, each with its driver, by the drivers' names."""
        for driver, devices in sorted(self.drivers.items()):
            for device in devices:
                yield driver, device

    def cdi_ids(self, request: str) -> Iterator[str]:
        """Of the devices that a request is given."""
        for _, device in self.devices():
            if device.is_for(request):
                yield from device.cdi_ids
