"""The simulated runtime: everything a test touches, in one object.

    sim = SimulatedRuntime(seed=7)
    sim.program(Program.crashes(3), container="web")
    sim.delays["StartContainer"] = (0.02, 0.1)
    async with sim.connect() as channel:
        runtime = RuntimeClient(channel)
        ...
    assert len(sim.started("web")) == 4

It needs no task of its own: what is due happens when somebody looks, or waits for it.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from trikubelet.clock import TrioClock, WallClock
from trikubelet.sim.abilities import Abilities
from trikubelet.sim.calls import CallDesk, CallLog, Delay
from trikubelet.sim.faults import FaultPlan
from trikubelet.sim.feed import EventFeed
from trikubelet.sim.image_service import SimulatedImageService
from trikubelet.sim.images import ImageShelf
from trikubelet.sim.machine import Container, Machine, PlannedEnd, Run, Sandbox
from trikubelet.sim.programs import Program, ProgramBook
from trikubelet.sim.runtime_service import SimulatedRuntimeService
from trikubelet.sim.streams import pipe_stream_pair
from trikubelet.supervision import contain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from trikubelet.rpc.grpc import Channel, Servable
    from trikubelet.sim.faults import When


class SimulatedRuntime:
    """A container runtime in memory.

    `seed` fixes ids, random delays and random faults. `clock` gives the time stamps in replies (default: Trio's time).
    `write_logs` creates empty log files where containers would log. `log_limit` bounds how many calls and runs are
    remembered.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        clock: WallClock | None = None,
        runtime_name: str = "simulated",
        write_logs: bool = False,
        log_limit: int = 100_000,
    ) -> None:
        self.seed = seed
        self.clock = clock or TrioClock()
        """What the node's time stamps come from, the agent's on it too."""
        self.checkpoints: dict[Path, str] = {}
        """What agents on this node keep for those that follow."""
        self.images = ImageShelf()
        self.programs = ProgramBook()
        self.faults = FaultPlan(seed)
        self.machine = Machine(self.clock, self.images, self.programs, seed=seed, run_limit=log_limit)
        self.events = EventFeed(self.machine, self.faults.random("events"))
        self._desk = CallDesk(self.faults, self.restart, log_limit=log_limit)
        self.abilities = Abilities()
        """What pods may ask of it."""
        self.refuses_watches = False
        """Its processes cannot be watched from now on, as when there are no descriptors left."""
        self.runtime_service = SimulatedRuntimeService(
            self.machine,
            self.images,
            self._desk,
            self.events,
            self.abilities,
            runtime_name=runtime_name,
            write_logs=write_logs,
        )
        self.image_service = SimulatedImageService(self.images, self.machine, self._desk)
        self._connections: dict[trio.CancelScope, None] = {}
        self._down_until = -math.inf

    # Connecting

    @property
    def handlers(self) -> Sequence[Servable]:
        """The two services, for a gRPC server."""
        return [self.runtime_service, self.image_service]

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Channel]:
        """A running gRPC channel to the runtime, over in-memory streams. It reconnects after `restart`."""
        from trikubelet.rpc.grpc import Channel, Server

        async with trio.open_nursery() as nursery:
            server = Server(self.handlers)

            async def serve(stream: trio.abc.Stream) -> None:
                with trio.CancelScope() as scope:
                    self._connections[scope] = None
                    try:
                        await server.serve_stream(stream)
                    finally:
                        self._connections.pop(scope, None)
                        await trio.aclose_forcefully(stream)

            async def open_stream() -> trio.abc.Stream:
                await trio.lowlevel.checkpoint()
                if trio.current_time() < self._down_until:
                    raise ConnectionRefusedError("simulated: the runtime is down")
                ours, theirs = pipe_stream_pair()
                nursery.start_soon(contain, serve, theirs)
                return ours

            async with Channel(open_stream) as channel:
                yield channel
            nursery.cancel_scope.cancel()

    def restart(self, downtime: float = 0.0) -> None:
        """The runtime's daemon restarts: connections break, calls in flight end, events are missed.

        Containers go on.
        """
        self._down_until = trio.current_time() + downtime
        for connection in list(self._connections):
            connection.cancel()
        self.events.disconnect()

    def restart_at(self, rpc: str, nth: int = 1, *, when: When = "before", downtime: float = 1.0) -> None:
        """Restart, as `restart`, at the `nth` call of `rpc` (or of anything, "*") from now on, and there:

        - before: when it has arrived, and nothing of it has happened;
        - during: a moment after it began. What it waits for then does not happen: a pull brings no image, a signal that
          was sent takes its course. A call that takes no time has had its effect;
        - after: when it had its effect. Only the reply does not come.

        Nothing can connect for `downtime` seconds.
        """
        self.faults.restart_at(rpc, nth, when=when, downtime=downtime)

    def reboot(self, downtime: float = 0.0) -> None:
        """The node restarts: as `restart`, and every sandbox and container has ended."""
        self.machine.reboot()
        self.restart(downtime)

    # Programming

    def program(self, program: Program, *, container: str = "", image: str = "", pod: str = "") -> None:
        """Containers with this name, image and pod name run `program` from their creation on. Empty: any."""
        self.programs.add(program, container=container, image=image, pod=pod)

    @property
    def delays(self) -> dict[str, Delay]:
        """Seconds that a call takes before its effect, by its CRI name; "*" for all others."""
        return self._desk.delays

    def end_container(self, container: Container, exit_code: int = 0, reason: str = "") -> None:
        """A running container ends now."""
        self.machine.plan_end(container, PlannedEnd(trio.current_time(), exit_code, reason))
        self.machine.settle()

    def fail_sandbox(self, sandbox: Sandbox) -> None:
        """A sandbox stops being ready by itself. Its containers go on."""
        self.machine.fail_sandbox(sandbox)

    def freeze_lists(self, seconds: float) -> None:
        """For so long, list calls show the node as it is now."""
        self.runtime_service.freeze_lists(seconds)

    def stop_faults(self) -> None:
        """No faults from here on: calls work, events arrive once, lists are fresh."""
        self.faults.stop()
        self.events.stop_faults()
        self.refuses_watches = False
        self.runtime_service.freeze_lists(0)

    # Asking

    @property
    def calls(self) -> CallLog:
        """The calls that arrived."""
        return self._desk.log

    def running_containers(self, pod_uid: str = "") -> list[Container]:
        """Containers that run now, of one pod or of all."""
        return [container for container in self.machine.running() if pod_uid in ("", container.pod_uid)]

    def started(self, container_name: str, pod_uid: str = "") -> list[Run]:
        """Every run of containers with this name, oldest first."""
        return [run for run in self.runs(pod_uid) if run.container_name == container_name]

    def runs(self, pod_uid: str = "") -> list[Run]:
        """Every run there was, oldest first."""
        self.machine.settle()
        return [run for run in self.machine.runs if pod_uid in ("", run.pod_uid)]

    async def wait_pid_exit(self, pid: int) -> None:
        """Wait for the end of a container's first process: what a pidfd does for a real one.

        Raises ProcessLookupError where no running container has this pid.
        """
        container = self.machine.by_pid(pid)
        if container is None:
            raise ProcessLookupError(f"no simulated process {pid}")
        await self.machine.wait_ended(container)
