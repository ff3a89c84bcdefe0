"""Telling the runtime the pods' networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from grpclib.const import Status

from trikubelet.node.pod_cidrs import PodCIDRUpdater
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_networks_are_told_when_they_change_and_again_after_a_failure(autojump_clock: MockClock) -> None:
    told: list[str] = []
    failures = [CRIError("UpdateRuntimeConfig", Status.UNAVAILABLE, "no")]

    async def tell(cidr: str) -> None:
        await trio.lowlevel.checkpoint()
        told.append(cidr)
        if failures:
            raise failures.pop()

    teller = PodCIDRUpdater(tell)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(teller.run)
        await trio.sleep(30)
        assert told == []
        teller.update(("10.0.0.0/24", "2000::/10"))
        await trio.sleep(1)
        assert told == ["10.0.0.0/24,2000::/10"]
        await trio.sleep(30)
        assert told == ["10.0.0.0/24,2000::/10"] * 2
        teller.update(("10.0.0.0/24", "2000::/10"))
        teller.update(())
        await trio.sleep(30)
        assert len(told) == 2
        nursery.cancel_scope.cancel()
