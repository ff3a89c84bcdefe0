"""Anything may happen to the whole agent, in any order and with any fault: what must hold, holds.

Hypothesis chooses each step when the last one is over, by what the node is like then, and time passes only in steps
that say so. `Watch` checks every transition and every change of a container, and the rest after every step. When a
script is over the faults stop, everything wanted gets the time to run, then everything is removed, and nothing may be
left.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.captured_logs import capture_logs
from tests.examples import IS_NIGHT, NIGHTLY, examples
from tests.sim.node_stage import PROGRAMS, VERSIONS, FaultName, NodeStage, make_pod

if TYPE_CHECKING:
    from trikubelet.api import Pod

UIDS: Final = ("one", "two", "three")
CHANGING: Final = ("RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox")
CALLS: Final = (*CHANGING, "ListContainers", "ListPodSandbox", "ContainerStatus", "PodSandboxStatus", "RemoveContainer")

sources = st.sampled_from(("file", "api"))
names = st.sampled_from(("web", "db"))
programs = st.sampled_from(sorted(PROGRAMS))
seconds = st.sampled_from((0.0, 0.001, 0.01, 0.1, 1.0, 5.0, 30.0, 120.0))
faults: st.SearchStrategy[FaultName] = st.sampled_from(("error", "lost reply", "hang"))


class SimulatedNodeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[str, tuple[str, Pod]] = {}
        """Pods that were removed, as they were then."""
        self.logs = capture_logs()
        self.logs.__enter__()
        self.stage = NodeStage()
        self.stage.let_faults_come()

    # Hypothesis leaves some rules out of each script, but never this one: no script is about an empty node.
    @initialize(
        pods=st.lists(st.tuples(sources, names, programs, st.sampled_from((0, 1, 3, 30))), min_size=1, max_size=3),
        settled=seconds,
    )
    def pods_to_begin_with(self, pods: list[tuple[str, str, str, int]], settled: float) -> None:
        for uid, (source, name, program, grace) in zip(UIDS, pods, strict=False):
            self.put(source, make_pod(uid, name, program, grace))
        self.stage.pass_time(settled)

    def put(self, source: str, pod: Pod) -> None:
        before = self.stage.pods
        self.stage.put(source, pod)
        after = self.stage.pods
        self.gone |= {uid: before[uid] for uid in before if uid not in after}
        self.gone.pop(pod.metadata.uid, None)

    # --- Pods --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.stage.pods) < len(UIDS))
    @rule(
        data=st.data(), source=sources, name=names, program=programs, grace=st.sampled_from((0, 1, 3, 30)), wait=seconds
    )
    def create(self, data: st.DataObject, source: str, name: str, program: str, grace: int, wait: float) -> None:
        uid = data.draw(st.sampled_from([uid for uid in UIDS if uid not in self.stage.pods]), label="uid")
        self.put(source, make_pod(uid, name, program, grace))
        self.stage.pass_time(wait)

    @precondition(lambda self: self.stage.pods)
    @rule(data=st.data(), version=st.sampled_from(VERSIONS))
    def update(self, data: st.DataObject, version: int) -> None:
        self.stage.change_image(self._wanted(data), version)

    @precondition(lambda self: self.stage.pods)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        uid = self._wanted(data)
        self.gone[uid] = self.stage.pods[uid]
        self.stage.remove(uid)

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), wait=seconds)
    def put_back(self, data: st.DataObject, wait: float) -> None:
        """A pod that went comes again with its UID, whether it has ended or not."""
        uid = data.draw(st.sampled_from(sorted(self.gone)), label="uid")
        self.put(*self.gone[uid])
        self.stage.pass_time(wait)

    @precondition(lambda self: self.stage.sources["api"].pods)
    @rule(data=st.data(), grace=st.sampled_from((0, 1, 5, 20)), wait=seconds)
    def delete(self, data: st.DataObject, grace: int, wait: float) -> None:
        uid = data.draw(st.sampled_from(sorted(self.stage.sources["api"].pods)), label="uid")
        self.stage.mark_deleted(uid, grace)
        self.stage.pass_time(wait)

    @precondition(lambda self: self.stage.pods)
    @rule(data=st.data(), grace=st.sampled_from((None, 0, 1, 10)), patience=seconds)
    def evict(self, data: st.DataObject, grace: int | None, patience: float) -> None:
        self.stage.evict(self._wanted(data), grace, patience)

    def _wanted(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.stage.pods)), label="uid")

    # --- The node ----------------------------------------------------------------------------------------------------

    @rule(seconds=seconds)
    def time_passes(self, seconds: float) -> None:
        self.stage.pass_time(seconds)

    @precondition(lambda self: self.stage.running())
    @rule(data=st.data())
    def containers_crash(self, data: st.DataObject) -> None:
        self.stage.crash(self._running(data))

    @precondition(lambda self: self.stage.running())
    @rule(data=st.data())
    def sandbox_dies(self, data: st.DataObject) -> None:
        self.stage.lose_sandbox(self._running(data))

    def _running(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.stage.running())), label="uid")

    @rule(fault=faults, rpc=st.sampled_from(CALLS), times=st.integers(min_value=1, max_value=3))
    def calls_break(self, fault: FaultName, rpc: str, times: int) -> None:
        self.stage.break_calls(fault, rpc, times)

    @rule(lost=st.integers(min_value=0, max_value=3), doubled=st.integers(min_value=0, max_value=3))
    def events_break(self, lost: int, doubled: int) -> None:
        self.stage.break_events(lost, doubled)

    @rule(seconds=st.sampled_from((0.5, 5.0)))
    def lists_lie(self, seconds: float) -> None:
        self.stage.show_stale_lists(seconds)

    @rule(downtime=st.sampled_from((0.0, 0.1, 10.0)))
    def runtime_restarts(self, downtime: float) -> None:
        self.stage.restart_runtime(downtime)

    @rule(downtime=st.sampled_from((0.0, 5.0)))
    def agent_restarts(self, downtime: float) -> None:
        self.stage.restart_agent(downtime)

    @rule()
    def faults_pause_until_all_is_well(self) -> None:
        self.stage.get_well()
        self.stage.let_faults_come()

    # --- What always holds -------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_violated(self) -> None:
        if not self.stage.watch.tasks_match():
            self.stage.settle()
        self.stage.watch.sweep()
        self._judge()

    def teardown(self) -> None:
        """The end of the script, unless it failed, or was given up because it cannot be completed."""
        try:
            complete = sys.exc_info()[0] is None
            if complete:
                self.stage.end()
                self._judge()
        finally:
            self.stage.close()
            self.logs.__exit__(None, None, None)
            # Hypothesis may keep the machine.
            del self.stage, self.logs
            self.gone.clear()

    def _judge(self) -> None:
        assert not self.stage.watch.violations, "\n".join(map(str, self.stage.watch.violations))


TestSimulatedNodeMachine = SimulatedNodeMachine.TestCase
TestSimulatedNodeMachine.settings = settings(
    max_examples=settings.get_profile(NIGHTLY).max_examples if IS_NIGHT else examples(30),
    stateful_step_count=25,
    derandomize=not IS_NIGHT,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
"""A script takes a fifth of a second: the ordinary run plays a few, always the same ones; nights play many new ones."""
