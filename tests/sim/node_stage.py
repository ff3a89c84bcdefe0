"""A simulated node to which anything may happen, one thing at a time, and which is watched all the while."""

from __future__ import annotations

import gc
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import attrs
import trio

from tests.sim.held_run import HeldRun
from trikubelet.api import Pod, pod_from_dict, set_pod_defaults
from trikubelet.pods.workers import KillTimeoutError
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.kinds import with_image
from trikubelet.sim.node import ScriptedSource, simulated_node
from trikubelet.sim.watch import Wanted, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from trikubelet.agent.agent import Agent

PROGRAMS: Final = {
    "obedient": Program.runs_forever(),
    "stubborn": Program.runs_forever(sigterm=None),
    "slow": Program.runs_forever(sigterm=1.5, sigkill=0.2),
    "crasher": Program.crashes(2, after=0.5),
    "batch": Program.exits(after=3.0),
}
VERSIONS: Final = (1, 2)
SEEING: Final = 0.001
"""Seconds in which an agent that runs learns of a change. A pod that goes and comes quicker has never gone."""
LOOK_PERIOD: Final = 1.0
PATIENCE: Final = 1200.0
"""Simulated seconds until the watch has long said what did not come true in time."""
AFTERMATH: Final = 5.0
"""Seconds for which things must be as they shall be before that is believed."""
END_BOUND: Final = 180.0
"""Seconds for the ends of all pods and for removing what they left."""

FaultName = Literal["error", "lost reply", "hang"]
LONGEST_HANG: Final = 20.0


def make_pod(uid: str, name: str, program: str, grace: int) -> Pod:
    metadata = {"name": name, "namespace": "ns", "uid": uid}
    spec = {
        "containers": [{"name": "main", "image": f"test/{program}:1"}],
        "terminationGracePeriodSeconds": grace,
        "restartPolicy": "Never" if program == "batch" else "Always",
    }
    return set_pod_defaults(pod_from_dict({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}))


class NodeStage:
    """The node, its two sources, and the watch. What a method does, it has done when it returns.

    No time passes but where a method says so; after each change of a source there is time for the agent to see it.
    """

    def __init__(self) -> None:
        # What was there before, another stage's things among it, is no leak of this one: it is not searched.
        gc.collect()
        gc.freeze()
        self.sim = SimulatedRuntime(seed=1)
        self.watch = Watch(self.sim.machine)
        self.sources = {name: ScriptedSource(name) for name in ("file", "api")}
        self.evicted: set[str] = set()
        """Pods that are still in their source and that the agent has been told to end for good."""
        for name, program in PROGRAMS.items():
            for version in VERSIONS:
                self.sim.program(program, image=f"test/{name}:{version}")
        self._agent: Agent | None = None
        self._agent_started = trio.Event()
        self._agent_ends = trio.Event()
        self._pause = 0.0
        self._run = HeldRun(seed=1)
        self._run.start_soon(self._run_agents)
        self._run.do(self._begin)

    def close(self) -> None:
        self._run.close()

    @property
    def pods(self) -> dict[str, tuple[str, Pod]]:
        """What the sources want: UID to source and pod."""
        return {uid: (source.name, pod) for source in self.sources.values() for uid, pod in source.pods.items()}

    def running(self) -> list[str]:
        """UIDs of the pods that have a running container."""
        return [uid for uid in self.watch.uids() if self.watch.running(uid)]

    # --- What happens to pods ----------------------------------------------------------------------------------------

    def put(self, source: str, pod: Pod) -> None:
        """A pod comes or changes; one of its source that has its name goes in the same moment (an edited manifest)."""
        uid = pod.metadata.uid
        if uid not in self.sources[source].pods:
            self.evicted.discard(uid)
        for other, (place, each) in self.pods.items():
            if place == source and other != uid and each.metadata.name == pod.metadata.name:
                self.sources[source].remove(other)
        self._put(source, pod)

    def change_image(self, uid: str, version: int) -> None:
        source, pod = self.pods[uid]
        repository = pod.spec.containers[0].image.rpartition(":")[0]
        self._put(source, with_image(pod, f"{repository}:{version}"))

    def remove(self, uid: str) -> None:
        """Its source does not name it any more."""
        self.sources[self.pods[uid][0]].remove(uid)
        self.pass_time(SEEING)

    def mark_deleted(self, uid: str, grace: int) -> None:
        """Marked for deletion, perhaps not for the first time."""
        source, pod = self.pods[uid]
        metadata = attrs.evolve(
            pod.metadata, deletion_timestamp=self.sim.clock.now(), deletion_grace_period_seconds=grace
        )
        self._put(source, attrs.evolve(pod, metadata=metadata))

    def _put(self, source: str, pod: Pod) -> None:
        self.sources[source].put(pod)
        self.pass_time(SEEING)

    def evict(self, uid: str, grace: int | None, patience: float) -> None:
        """The agent ends the pod itself; whoever asked for that waits for so many seconds."""
        self.evicted.add(uid)
        pod = self.pods[uid][1]

        async def kill() -> None:
            assert self._agent is not None
            # With a runtime that is away, a kill takes longer than a killer waits: it goes on all the same.
            with trio.move_on_after(patience), suppress(KillTimeoutError):
                await self._agent.workers.kill_pod(pod, evict=True, grace_period_override=grace)

        self._run.do(kill)

    # --- What happens to the node ------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)

        self._run.do(wait)

    def settle(self) -> None:
        """All tasks run until they wait; no time passes."""
        self._run.do(trio.testing.wait_all_tasks_blocked)

    def crash(self, uid: str) -> None:
        """Every container of the pod is killed by the kernel."""
        for container in self.watch.running(uid):
            self.sim.end_container(container, 137, "OOMKilled")

    def lose_sandbox(self, uid: str) -> None:
        for container in self.watch.running(uid):
            self.sim.fail_sandbox(container.sandbox)

    def break_calls(self, fault: FaultName, rpc: str, times: int) -> None:
        match fault:
            case "error":
                self.sim.faults.fail_next(rpc, times=times)
            case "lost reply":
                self.sim.faults.lose_next_reply(rpc, times=times)
            case "hang":
                self.sim.faults.hang_next(rpc, times=times, seconds=LONGEST_HANG)

    def break_events(self, lost: int, doubled: int) -> None:
        self.sim.events.lose_next(lost)
        self.sim.events.duplicate_next(doubled)

    def show_stale_lists(self, seconds: float) -> None:
        """For so long, and a second more for what was asked meanwhile to be over."""
        self.watch.lists_are_stale(True)
        self.sim.freeze_lists(seconds)
        self.pass_time(seconds + 1)
        self.watch.lists_are_stale(False)

    def restart_runtime(self, downtime: float) -> None:
        self.sim.restart(downtime)

    def restart_agent(self, downtime: float) -> None:
        """As `kill -9`: pods stay as they are."""
        self._pause = downtime
        self._agent_ends.set()

    # --- What must come true -----------------------------------------------------------------------------------------

    def get_well(self) -> None:
        """Without faults, every wanted pod comes to run what it should, and goes on with that."""
        self.sim.stop_faults()
        self.watch.lists_are_stale(False)
        self.watch.faults_end()
        now = trio.current_time()
        self.watch.wanted = {
            uid: Wanted(now, pod.spec.containers[0].image)
            for uid, (_, pod) in self.pods.items()
            if pod.metadata.deletion_timestamp is None
            and pod.spec.restart_policy == "Always"
            and uid not in self.evicted
        }
        self._await_with_sweeps(lambda: self.watch.well, PATIENCE)
        self.watch.wanted.clear()

    def let_faults_come(self) -> None:
        self.watch.faults_begin()

    def end(self) -> None:
        """Without faults and pods, nothing is left, and nothing is held."""
        self.get_well()
        for source in self.sources.values():
            source.remove(*source.pods)
        self._await_with_sweeps(lambda: not self.watch.left(), END_BOUND)
        self.watch.check_nothing_left()
        self._run.do(self.watch.check_leaks)

    def _await_with_sweeps(self, condition: Callable[[], bool], patience: float) -> None:
        async def wait() -> None:
            until, true_since = trio.current_time() + patience, math.inf
            while trio.current_time() < min(until, true_since + AFTERMATH) and not self.watch.violations:
                true_since = min(true_since, trio.current_time()) if condition() else math.inf
                await trio.sleep(LOOK_PERIOD)
                self.watch.sweep()

        self._run.do(wait)

    # --- Agents ------------------------------------------------------------------------------------------------------

    async def _run_agents(self) -> None:
        while True:
            self._agent_ends = trio.Event()
            make_registry = self.watch.new_registry
            async with simulated_node(
                self.sim, sources=self.sources, make_registry=make_registry, prepare=self._prepare
            ):
                self._agent_started.set()
                await self._agent_ends.wait()
            self.watch.detach()
            await trio.sleep(self._pause)

    def _prepare(self, agent: Agent) -> None:
        self._agent = agent
        self.watch.attach(agent)

    async def _begin(self) -> None:
        await self._agent_started.wait()
        await trio.sleep(1)
        await self.watch.learn_idle()
