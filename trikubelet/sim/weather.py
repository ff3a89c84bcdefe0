"""Faults that come and go: a while of calm, then a storm in which calls fail, replies are lost and things restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from grpclib.const import Status

from trikubelet.formats.values import define
from trikubelet.sim.faults import Fault, FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from trikubelet.rpc.cri import v1
    from trikubelet.sim.runtime import SimulatedRuntime
    from trikubelet.sim.watch import Watch

CALM: Final = (600.0, 2400.0)
STORM: Final = (60.0, 300.0)
"""Least and most seconds."""
LONGEST_HANG: Final = 20.0

_ERROR: Final = Fault(FaultKind.ERROR, Status.UNKNOWN)
_LOST_REPLY: Final = Fault(FaultKind.LOST_REPLY)
_HANG: Final = Fault(FaultKind.HANG, seconds=LONGEST_HANG)
_CHANGING: Final = ("RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox")


@define
class Weather:
    """Makes storms on a simulated runtime until it is cancelled."""

    sim: SimulatedRuntime
    watch: Watch
    random: Random
    restart_agent: Callable[[], None]
    storms: int = 0
    runtime_restarts: int = 0
    reboots: int = 0
    agent_restarts: int = 0

    async def run(self) -> None:
        while True:
            await trio.sleep(self.random.uniform(*CALM))
            self.storms += 1
            self.watch.faults_begin()
            try:
                await self._storm(self.random.uniform(*STORM))
            finally:
                self.clear()

    def clear(self) -> None:
        """The storm is over."""
        self.sim.stop_faults()
        self.sim.runtime_service.network_ready = self._network(ready=True)
        self.watch.lists_are_stale(False)
        self.watch.faults_end()

    async def _storm(self, seconds: float) -> None:
        faults = self.sim.faults
        faults.fail_randomly("*", self.random.uniform(0, 0.1), _ERROR)
        faults.fail_randomly("*", self.random.uniform(0, 0.02), _HANG)
        for rpc in _CHANGING:
            faults.fail_randomly(rpc, self.random.uniform(0, 0.2), _LOST_REPLY)
        self.sim.events.lose_probability = self.random.uniform(0, 0.3)
        self.sim.events.duplicate_probability = self.random.uniform(0, 0.3)
        until = trio.current_time() + seconds
        happenings = (
            self._restart_runtime,
            self._restart_agent,
            self._stale_lists,
            self._stale_lists,
            self._no_network,
            self._reboot,
        )
        weights = (4, 4, 2, 2, 2, 1)
        while True:
            pause = self.random.expovariate(1 / 60)
            if trio.current_time() + pause >= until:
                break
            await trio.sleep(pause)
            await self.random.choices(happenings, weights)[0]()
        await trio.sleep_until(max(until, trio.current_time()))

    async def _restart_runtime(self) -> None:
        self.runtime_restarts += 1
        self.sim.restart(self.random.uniform(0, 20))
        await trio.lowlevel.checkpoint()

    async def _restart_agent(self) -> None:
        self.agent_restarts += 1
        self.restart_agent()
        await trio.lowlevel.checkpoint()

    async def _stale_lists(self) -> None:
        seconds = self.random.uniform(1, 10)
        self.watch.lists_are_stale(True)
        self.sim.freeze_lists(seconds)
        await trio.sleep(seconds + 1)
        self.watch.lists_are_stale(False)

    async def _no_network(self) -> None:
        self.sim.runtime_service.network_ready = self._network(ready=False)
        await trio.sleep(self.random.uniform(1, 20))
        self.sim.runtime_service.network_ready = self._network(ready=True)

    async def _reboot(self) -> None:
        self.reboots += 1
        self.sim.reboot(self.random.uniform(0, 20))
        await trio.lowlevel.checkpoint()

    @staticmethod
    def _network(*, ready: bool) -> v1.RuntimeCondition:
        from trikubelet.rpc.cri import v1

        message = "" if ready else "simulated: no network"
        return v1.RuntimeCondition(
            type="NetworkReady", status=ready, reason="" if ready else "NoNetwork", message=message
        )
