"""Anything may be asked of the whole agent, in any order and with any fault: what must hold, holds.

Hypothesis writes a script, rule by rule, and the script is played when it is complete, in simulated time: `Watch`
checks every transition and every change of a container on the way. At the end the faults stop, everything wanted gets
the time to run, then everything is removed, and nothing may be left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import structlog
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from trikubelet.api import Pod, pod_from_dict, set_pod_defaults
from trikubelet.pods.workers import KillTimeoutError
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.kinds import with_image
from trikubelet.sim.node import ScriptedSource, run_deterministically, simulated_node
from trikubelet.sim.watch import STARTING_BOUND, Wanted, Watch

if TYPE_CHECKING:
    from trikubelet.agent import Agent

HYPOTHESIS_USUAL: Final = 100
MANY: Final = settings.default.max_examples if settings.default is not None else HYPOTHESIS_USUAL
NIGHTLY: Final = MANY > HYPOTHESIS_USUAL
EXAMPLES: Final = MANY if NIGHTLY else 10
"""A script may take seconds: the ordinary run plays a few, always the same ones; the nightly profile many new ones."""

PROGRAMS: Final = {
    "obedient": Program.runs_forever(),
    "stubborn": Program.runs_forever(sigterm=None),
    "slow": Program.runs_forever(sigterm=1.5, sigkill=0.2),
    "crasher": Program.crashes(2, after=0.5),
    "batch": Program.exits(after=3.0),
}
UIDS: Final = ("one", "two", "three")
NAMES: Final = ("web", "db")
CHANGING: Final = ("RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox")
CALLS: Final = (*CHANGING, "ListContainers", "ListPodSandbox", "ContainerStatus", "PodSandboxStatus", "RemoveContainer")
SECONDS: Final = st.sampled_from((0.0, 0.001, 0.01, 0.1, 1.0, 5.0, 30.0, 120.0))


def make_pod(uid: str, name: str, program: str, grace: int) -> Pod:
    metadata = {"name": name, "namespace": "ns", "uid": uid}
    spec = {
        "containers": [{"name": "main", "image": f"test/{program}:1"}],
        "terminationGracePeriodSeconds": grace,
        "restartPolicy": "Never" if program == "batch" else "Always",
    }
    return set_pod_defaults(pod_from_dict({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}))


class Stage:
    """Where a script is played."""

    def __init__(self) -> None:
        self.sim = SimulatedRuntime(seed=1)
        self.watch = Watch(self.sim.machine)
        self.sources = {name: ScriptedSource(name) for name in ("file", "api")}
        self.agent: Agent | None = None
        self.restart = trio.Event()
        self.started = trio.Event()
        for name, program in PROGRAMS.items():
            for version in (1, 2):
                self.sim.program(program, image=f"test/{name}:{version}")

    async def run_agents(self) -> None:
        while True:
            self.restart = trio.Event()
            async with simulated_node(self.sim, sources=self.sources, prepare=self.prepare):
                self.started.set()
                await self.restart.wait()

    def prepare(self, agent: Agent) -> None:
        self.agent = agent
        self.watch.attach(agent)

    async def play(self, steps: list[Step]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run_agents)
            await self.started.wait()
            self.watch.faults_begin()
            for step in steps:
                await step(self)
                self.watch.sweep()
            await self.get_well()
            await self.end()
            nursery.cancel_scope.cancel()
        assert not self.watch.violations, "\n".join(map(str, self.watch.violations))

    async def get_well(self) -> None:
        """Without faults, every wanted pod runs what it should."""
        self.sim.stop_faults()
        self.watch.lists_are_stale(False)
        self.watch.faults_end()
        for source in self.sources.values():
            for uid, pod in source.pods.items():
                if pod.metadata.deletion_timestamp is None and pod.spec.restart_policy == "Always":
                    self.watch.wanted[uid] = Wanted(trio.current_time(), pod.spec.containers[0].image)
        await trio.sleep(STARTING_BOUND + 1)
        self.watch.sweep()

    async def end(self) -> None:
        """Without pods, nothing is left."""
        self.watch.wanted.clear()
        for source in self.sources.values():
            source.remove(*source.pods)
        await trio.sleep(180)
        self.watch.sweep()
        self.watch.check_nothing_left()


Step = Callable[[Stage], Awaitable[None]]


async def put(source: str, pod: Pod, stage: Stage) -> None:
    stage.sources[source].put(pod)
    await trio.lowlevel.checkpoint()


async def remove(source: str, uid: str, stage: Stage) -> None:
    stage.sources[source].remove(uid)
    await trio.lowlevel.checkpoint()


async def mark_deleted(source: str, pod: Pod, grace: int, stage: Stage) -> None:
    metadata = attrs.evolve(pod.metadata, deletion_timestamp=stage.sim.clock.now(), deletion_grace_period_seconds=grace)
    stage.sources[source].put(attrs.evolve(pod, metadata=metadata))
    await trio.lowlevel.checkpoint()


async def wait(seconds: float, stage: Stage) -> None:
    await trio.sleep(seconds)


async def crash(uid: str, stage: Stage) -> None:
    for container in stage.sim.running_containers(uid):
        stage.sim.end_container(container, 137, "OOMKilled")
    await trio.lowlevel.checkpoint()


async def lose_sandbox(uid: str, stage: Stage) -> None:
    for container in stage.sim.running_containers(uid):
        stage.sim.fail_sandbox(container.sandbox)
    await trio.lowlevel.checkpoint()


async def break_call(kind: str, rpc: str, times: int, stage: Stage) -> None:
    faults = stage.sim.faults
    if kind == "error":
        faults.fail_next(rpc, times=times)
    elif kind == "lost reply":
        faults.lose_next_reply(rpc, times=times)
    else:
        faults.hang_next(rpc, times=times, seconds=20)
    await trio.lowlevel.checkpoint()


async def break_events(lost: int, doubled: int, stage: Stage) -> None:
    stage.sim.events.lose_next(lost)
    stage.sim.events.duplicate_next(doubled)
    await trio.lowlevel.checkpoint()


async def show_stale_lists(seconds: float, stage: Stage) -> None:
    stage.watch.lists_are_stale(True)
    stage.sim.freeze_lists(seconds)
    await trio.sleep(seconds + 1)
    stage.watch.lists_are_stale(False)


async def restart_runtime(downtime: float, stage: Stage) -> None:
    stage.sim.restart(downtime)
    await trio.lowlevel.checkpoint()


async def restart_agent(stage: Stage) -> None:
    stage.restart.set()
    await trio.lowlevel.checkpoint()


class NodeScript(RuleBasedStateMachine):
    """`pods`: what the script wants of each source so far, and how pods that are marked for deletion were."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.pods: dict[str, tuple[str, Pod]] = {}
        self.gone: dict[str, tuple[str, Pod]] = {}

    def add(self, step: Step) -> None:
        self.steps.append(step)

    @rule(
        source=st.sampled_from(("file", "api")),
        uid=st.sampled_from(UIDS),
        name=st.sampled_from(NAMES),
        program=st.sampled_from(sorted(PROGRAMS)),
        grace=st.sampled_from((0, 1, 3, 30)),
    )
    def create(self, source: str, uid: str, name: str, program: str, grace: int) -> None:
        """A new pod; one of its source that has its name goes in the same moment, as when a manifest is edited."""
        if uid in self.pods:
            return
        for other, (place, pod) in list(self.pods.items()):
            if place == source and pod.metadata.name == name:
                self.drop(other)
        self.gone.pop(uid, None)
        pod = make_pod(uid, name, program, grace)
        self.pods[uid] = (source, pod)
        self.add(partial(put, source, pod))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        source, pod = self.pods[uid]
        repository = pod.spec.containers[0].image.rpartition(":")[0]
        changed = with_image(pod, f"{repository}:{data.draw(st.sampled_from((1, 2)))}")
        self.pods[uid] = (source, changed)
        self.add(partial(put, source, changed))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.drop(data.draw(st.sampled_from(sorted(self.pods))))

    def drop(self, uid: str) -> None:
        source, _pod = self.gone[uid] = self.pods.pop(uid)
        self.add(partial(remove, source, uid))

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """A pod that went comes again with its UID, whether it has ended or not."""
        uid = data.draw(st.sampled_from(sorted(self.gone)))
        source, pod = self.gone[uid]
        names = {each.metadata.name for place, each in self.pods.values() if place == source}
        if pod.metadata.name not in names:
            del self.gone[uid]
            self.pods[uid] = (source, pod)
            self.add(partial(put, source, pod))

    @precondition(lambda self: any(source == "api" for source, _ in self.pods.values()))
    @rule(data=st.data(), graces=st.lists(st.sampled_from((0, 1, 5, 20)), min_size=1, max_size=3), pause=SECONDS)
    def delete(self, data: st.DataObject, graces: list[int], pause: float) -> None:
        """Marked for deletion, perhaps several times with more or less grace, and gone some time later."""
        mine = sorted(uid for uid, (source, _) in self.pods.items() if source == "api")
        uid = data.draw(st.sampled_from(mine))
        source, pod = self.pods.pop(uid)
        for grace in graces:
            self.add(partial(mark_deleted, source, pod, grace))
            self.add(partial(wait, pause))
        self.add(partial(remove, source, uid))

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), grace=st.sampled_from((None, 0, 1, 10)), pause=SECONDS)
    def evict(self, data: st.DataObject, grace: int | None, pause: float) -> None:
        """The agent ends the pod itself; its object goes some time later."""
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        source, pod = self.pods.pop(uid)

        async def kill(stage: Stage) -> None:
            assert stage.agent is not None
            # Killing may take longer than a killer waits, with a runtime that is away: it goes on all the same.
            with trio.move_on_after(pause), suppress(KillTimeoutError):
                await stage.agent.workers.kill_pod(pod, evict=True, grace_period_override=grace)

        self.add(kill)
        self.add(partial(remove, source, uid))

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.add(partial(wait, seconds))

    @rule(uid=st.sampled_from(UIDS))
    def containers_crash(self, uid: str) -> None:
        self.add(partial(crash, uid))

    @rule(uid=st.sampled_from(UIDS))
    def sandbox_dies(self, uid: str) -> None:
        self.add(partial(lose_sandbox, uid))

    @rule(
        kind=st.sampled_from(("error", "lost reply", "hang")),
        rpc=st.sampled_from(CALLS),
        times=st.integers(min_value=1, max_value=3),
    )
    def calls_break(self, kind: str, rpc: str, times: int) -> None:
        self.add(partial(break_call, kind, rpc, times))

    @rule(lost=st.integers(min_value=0, max_value=3), doubled=st.integers(min_value=0, max_value=3))
    def events_break(self, lost: int, doubled: int) -> None:
        self.add(partial(break_events, lost, doubled))

    @rule(seconds=st.sampled_from((0.5, 5.0)))
    def lists_lie(self, seconds: float) -> None:
        self.add(partial(show_stale_lists, seconds))

    @rule(downtime=st.sampled_from((0.0, 0.1, 10.0)))
    def runtime_restarts(self, downtime: float) -> None:
        self.add(partial(restart_runtime, downtime))

    @rule()
    def agent_restarts(self) -> None:
        self.add(restart_agent)

    def teardown(self) -> None:
        """Play the script."""
        if self.steps:
            with structlog.testing.capture_logs():
                run_deterministically(lambda: Stage().play(self.steps), seed=1)


TestNodeScript = NodeScript.TestCase
TestNodeScript.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=25, deadline=None, derandomize=not NIGHTLY
)
