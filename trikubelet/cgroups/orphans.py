"""Cgroups of unknown pods: what an earlier agent, or a pod that only the runtime knew, has left.

Housekeeping decides which those are; here they are found and dealt with, one after the other, beside the sync loop. To
look for them costs a walk, so that it is done while there may be some: after the start, and when unknown pods were
found, until a walk finds only groups of desired pods.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from trikubelet.cgroups.errors import CgroupError
from trikubelet.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.cgroups.interface import PodCgroups

log = get_logger("cgroups")


class OrphanCgroups:
    """`run` it; the other methods never wait, but `look` and `remove_all`."""

    def __init__(self, cgroups: PodCgroups, *, is_gone: Callable[[str], bool]) -> None:
        """`is_gone` is asked just before a pod's group is removed: whether the pod is still unknown."""
        self._cgroups = cgroups
        self._is_gone = is_gone
        self._expected = True
        self._send, self._orphans = trio.open_memory_channel[str](math.inf)
        self._going: set[str] = set()
        self._throttled: set[str] = set()
        self._slow: set[str] = set()
        """UIDs to be throttled."""

    async def find(self) -> frozenset[str]:
        """The UIDs of all pods with a group, of those that are known too; empty where there can be no orphan."""
        if not self._expected:
            return frozenset()
        try:
            return frozenset(await self._cgroups.found())
        except CgroupError as error:
            log.warning("cannot look for cgroups of pods that are gone", problem=str(error))
            return frozenset()

    def expect(self, *, orphans: bool) -> None:
        """Whether the last look, or the runtime, showed any: then there may be some at the next look."""
        self._expected = orphans

    def remove(self, uid: str) -> None:
        """Kill what is left in a pod's group, and delete it."""
        if uid not in self._going:
            self._going.add(uid)
            self._send.send_nowait(uid)

    def throttle(self, uid: str) -> bool:
        """Leave a pod's group the smallest share of the processors. False: that was done before."""
        if uid in self._throttled:
            return False
        self._throttled.add(uid)
        self._slow.add(uid)
        self._send.send_nowait(uid)
        return True

    async def run(self) -> None:
        """Until cancelled. What cannot be done is logged, and comes again with the next round of housekeeping."""
        async for uid in self._orphans:
            try:
                if uid in self._slow:
                    self._slow.discard(uid)
                    await self._cgroups.throttle(uid)
                elif self._is_gone(uid):
                    self._throttled.discard(uid)
                    await self._cgroups.release(uid)
                    log.info("removed the cgroup of a pod that is gone", uid=uid)
            except CgroupError as error:
                log.warning("the cgroup of a pod that is gone cannot be removed yet", uid=uid, problem=str(error))
            finally:
                self._going.discard(uid)

    async def remove_all(self) -> None:
        """Every pod's group, when no pod is left. Raises CgroupError."""
        for uid in await self._cgroups.found():
            await self._cgroups.release(uid)
