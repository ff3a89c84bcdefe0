"""When a node that is new joined: what the kubelet's `node_startup_…` metrics are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trikubelet.formats.values import define

if TYPE_CHECKING:
    from datetime import datetime


@define
class NodeStartup:
    """Times on the wire's clock; None for what has not happened. A node that was there before is no new one."""

    attempted_at: datetime | None = None
    """The first attempt to register."""
    created_at: datetime | None = None
    """This agent created the node."""
    ready_at: datetime | None = None
    """The API server had it as ready for the first time since."""

    def attempt(self, now: datetime) -> None:
        self.attempted_at = self.attempted_at or now

    def created(self, now: datetime) -> None:
        self.created_at = self.created_at or now

    def ready(self, now: datetime) -> None:
        if self.created_at is not None:
            self.ready_at = self.ready_at or now
