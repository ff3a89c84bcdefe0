"""The real lives of pods against the pure model: whatever happens, both are in the same phase, doing the same work.

`PodWorkers` runs on a mock clock with a syncer whose every call waits until the script says how it ends. Beside it the
pure machine is driven by `PureNode`, whose lives are only a loop. After each step, phases, work in flight, what was
cancelled, who was told of an end, and how long kills may take are compared.
"""

from __future__ import annotations

import math
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.captured_logs import capture_logs
from tests.examples import IS_NIGHT, NIGHTLY, examples
from tests.pods.factories import CREATE, KILL, SYNC, UPDATE, make_pod, request, running, runtime_status
from tests.pods.pure_node import PureNode
from tests.sim.held_run import HeldRun
from trikubelet.api import Pod
from trikubelet.pods.machine import IllegalTransitionError
from trikubelet.pods.phases import (
    Cancelled,
    CleanUpPod,
    Completed,
    Failed,
    Finished,
    Outcome,
    RetryReason,
    SyncPod,
    Terminated,
    TerminatePod,
    TerminateRuntimePod,
    Terminating,
    TerminationRequested,
)
from trikubelet.pods.retry import NetworkNotReadyError, RetryPolicy
from trikubelet.pods.types import PodSyncReport
from trikubelet.pods.workers import PodWorkers
from trikubelet.supervision import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trikubelet.container.model import PodRuntimeStatus, RunningPod
    from trikubelet.pods.types import Kill, PodSyncer, Request, SyncPodType


UIDS = ("api", "static-1", "static-2")
CALLS = {
    SyncPod: "sync",
    TerminatePod: "terminate",
    TerminateRuntimePod: "terminate runtime pod",
    CleanUpPod: "clean up",
}
WAITS = {RetryReason.RESYNC: 60.0, RetryReason.ERROR: 10.0, RetryReason.NETWORK_NOT_READY: 1.0}

uids = st.sampled_from(UIDS)
graces = st.none() | st.integers(0, 40)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [Completed(), Completed(), Completed(terminal=True), Failed(), Failed(network_not_ready=True)]
)


@attrs.define(eq=False)
class Call:
    """One work in flight."""

    kind: str
    pod: Pod | None
    deadline: float = math.inf
    over: trio.Event = attrs.field(factory=trio.Event)
    outcome: Outcome = attrs.field(factory=Completed)


class NoJitter(random.Random):
    def random(self) -> float:
        return 0.0


class Syncer:
    """Implements `PodSyncer` for one pod: every call waits for its outcome."""

    def __init__(self, node: RealNode, uid: str) -> None:
        self.node = node
        self.uid = uid

    async def sync_pod(
        self, update_type: SyncPodType, pod: Pod, mirror_pod: Pod | None, status: PodRuntimeStatus
    ) -> PodSyncReport:
        outcome = await self._call(Call("sync", pod))
        return PodSyncReport(trio.current_time(), terminal=isinstance(outcome, Completed) and outcome.terminal)

    async def sync_terminating_pod(self, pod: Pod, status: PodRuntimeStatus, kill: Callable[[], Kill]) -> PodSyncReport:
        await self._call(Call("terminate", pod, kill().deadline))
        return PodSyncReport(trio.current_time())

    async def sync_terminating_runtime_pod(self, running_pod: RunningPod, kill: Kill) -> None:
        await self._call(Call("terminate runtime pod", None, kill.deadline))

    def shorten_grace(self, deadline: float) -> None:
        call = self.node.calls[self.uid]
        call.deadline = min(call.deadline, deadline)

    async def sync_terminated_pod(self, pod: Pod, status: PodRuntimeStatus) -> None:
        await self._call(Call("clean up", pod))

    async def _call(self, call: Call) -> Outcome:
        assert self.uid not in self.node.calls, "two works of one pod at the same time"
        self.node.calls[self.uid] = call
        try:
            await call.over.wait()
        except trio.Cancelled:
            self.node.cancelled.append((self.uid, call.kind))
            raise
        finally:
            del self.node.calls[self.uid]
        match call.outcome:
            case Failed(network_not_ready=True):
                raise NetworkNotReadyError("not yet")
            case Failed():
                raise RuntimeError("failed")
            case outcome:
                return outcome


class Cache:
    def __init__(self) -> None:
        self.runs: set[str] = set()

    def get(self, uid: str) -> PodRuntimeStatus:
        return runtime_status(uid, containers=uid in self.runs)

    async def get_newer_than(self, uid: str, min_time: float) -> PodRuntimeStatus:
        await trio.lowlevel.checkpoint()
        return self.get(uid)


class RealNode:
    def __init__(self) -> None:
        self.run = HeldRun(seed=7)
        self.calls: dict[str, Call] = {}
        self.cancelled: list[tuple[str, str]] = []
        self.nurseries: dict[str, trio.Nursery] = {}
        self.told: list[int] = []
        self.cache = Cache()
        self.workers = PodWorkers(self.open_pod, self.cache, policy=RetryPolicy(), rng=NoJitter(), recorder=None)
        self.run.start_soon(self.workers.run)
        self.settle()

    @contextmanager
    def open_pod(self, uid: str, nursery: trio.Nursery) -> Iterator[PodSyncer]:
        assert uid not in self.nurseries, "two lives of one pod"
        self.nurseries[uid] = nursery
        nursery.start_soon(trio.sleep_forever)  # which ends with the life, or it never ends
        try:
            yield Syncer(self, uid)
        finally:
            del self.nurseries[uid]

    def settle(self) -> None:
        async def settle() -> None:
            await trio.testing.wait_all_tasks_blocked()

        self.run.do(settle)

    def now(self) -> float:
        times: list[float] = []

        async def look() -> None:
            times.append(trio.current_time())
            await trio.lowlevel.checkpoint()

        self.run.do(look)
        return times[0]


class LivesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.logs = capture_logs()
        self.logs.__enter__()
        self.real = RealNode()
        self.pure = PureNode()
        self.due: dict[str, float] = {}
        """When the model's lives look again."""
        self.expected_cancelled: list[tuple[str, str]] = []
        self.version = 0
        self.killers: dict[int, list[int]] = {}
        """Number of a killer to how often it was told: by the model, by the life."""

    def pod(self, uid: str, **more: object) -> Pod:
        self.version += 1
        pod = make_pod(uid, "web" if uid.startswith("static") else uid, static=uid.startswith("static"), **more)  # type: ignore[arg-type]
        annotations = {**pod.metadata.annotations, "version": str(self.version)}
        return attrs.evolve(pod, metadata=attrs.evolve(pod.metadata, annotations=annotations))

    # --- What happens ------------------------------------------------------------------------------------------------

    def send(self, uid: str, asked: Request, *, runs: bool = False, killer: int | None = None) -> None:
        self.pure.now = self.real.now()
        self.pure.now -= 1  # which it adds
        self.real.cache.runs.discard(uid)
        if runs:
            self.real.cache.runs.add(uid)
        told = None if killer is None else lambda: self._count(killer, 0)
        self.pure.update(asked, runtime_status(uid, containers=runs), told=told)
        self._settle_model()

        async def ask() -> None:
            self.real.workers.update_pod(asked)
            await trio.testing.wait_all_tasks_blocked()

        self.real.run.do(ask)

    @rule(uid=uids, update_type=st.sampled_from([CREATE, UPDATE, SYNC]))
    def config_update(self, uid: str, update_type: object) -> None:
        self.send(uid, request(update_type, self.pod(uid)))  # type: ignore[arg-type]

    @rule(uid=uids, grace=st.integers(0, 40))
    def deletion(self, uid: str, grace: int) -> None:
        self.send(uid, request(UPDATE, self.pod(uid, deletion_grace=grace)))

    @rule(uid=uids, runs=st.booleans())
    def terminal_phase(self, uid: str, runs: bool) -> None:
        self.send(uid, request(UPDATE, self.pod(uid, phase="Failed")), runs=runs)

    @rule(uid=uids, grace=graces)
    def kill_and_wait(self, uid: str, grace: int | None) -> None:
        """Somebody kills a pod and awaits its end."""
        killer, pod = len(self.killers), self.pod(uid)
        self.killers[killer] = [0, 0]
        self.pure.now = self.real.now() - 1
        self.real.cache.runs.discard(uid)
        asked = request(KILL, pod, kill={"grace_period_override": grace})
        self.pure.update(asked, runtime_status(uid), told=lambda: self._count(killer, 0))
        self._settle_model()

        async def wait() -> None:
            self.real.workers.update_pod(asked)
            await self.real.workers.until_ended(uid)
            self._count(killer, 1)

        self.real.run.start_soon(wait)
        self.real.settle()

    @rule(uid=uids, grace=graces)
    def runtime_kill(self, uid: str, grace: int | None) -> None:
        self.send(uid, request(KILL, running_pod=running(uid), kill={"grace_period_override": grace}), runs=True)

    @rule(desired=st.sets(uids))
    def housekeeping(self, desired: set[str]) -> None:
        self.pure.now = self.real.now() - 1
        pods = [self.pod(uid) for uid in sorted(desired)]
        expected = self.pure.sync_known_pods(*pods)
        self._settle_model()
        found: list[object] = []

        async def compare() -> None:
            found.append(self.real.workers.sync_known_pods(pods))
            await trio.testing.wait_all_tasks_blocked()

        self.real.run.do(compare)
        assert found == [expected]

    @precondition(lambda self: self.real.calls)
    @rule(data=st.data(), outcome=outcomes)
    def work_ends(self, data: st.DataObject, outcome: Outcome) -> None:
        uid = data.draw(st.sampled_from(sorted(self.real.calls)))
        call = self.real.calls[uid]
        if call.kind != "sync" and outcome == Completed(terminal=True):
            outcome = Completed()
        self.pure.now = self.real.now() - 1
        self.pure.done(uid, outcome)
        self._settle_model()

        async def end() -> None:
            call.outcome = outcome
            call.over.set()
            await trio.testing.wait_all_tasks_blocked()

        self.real.run.do(end)

    @precondition(lambda self: self.real.nurseries)
    @rule(data=st.data())
    def fault(self, data: st.DataObject) -> None:
        """Something that runs for a pod raises what nobody expected."""
        uid = data.draw(st.sampled_from(sorted(self.real.nurseries)))

        async def explode() -> None:
            await trio.lowlevel.checkpoint()
            raise IllegalTransitionError(uid, "in a test", "fault")

        async def inject() -> None:
            self.real.nurseries[uid].start_soon(explode)
            await trio.testing.wait_all_tasks_blocked()

        in_flight = self.real.calls.get(uid)
        self.pure.begin_again(uid)
        self.due.pop(uid, None)
        self.pure.woken.discard(uid)
        self.pure.held.add(uid)
        self.real.run.do(inject)
        if in_flight is not None:
            assert self.real.cancelled[-1] == (uid, in_flight.kind)
            self.real.cancelled.pop()
        self._pass(FAULTS.longest)
        self.pure.held.discard(uid)
        self.pure.woken.add(uid)
        self._settle_model()

    @rule(seconds=st.sampled_from((0.5, 1.0, 10.0, 60.0)))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        until = self.real.now() + seconds
        while due := sorted((at, uid) for uid, at in self.due.items() if at <= until):
            at, uid = due[0]
            del self.due[uid]
            self.pure.now = at - 1
            self.pure.retry(uid)
            self._settle_model(at)

        async def sleep() -> None:
            await trio.sleep(seconds)
            await trio.testing.wait_all_tasks_blocked()

        self.real.run.do(sleep)

    # --- The model's lives -------------------------------------------------------------------------------------------

    def _settle_model(self, now: float | None = None) -> None:
        """Let the model's lives do what the real ones do by themselves."""
        now = self.real.now() if now is None else now
        pure = self.pure
        while True:
            self._take_retries(now)
            called_off = sorted(pure.cancelled & pure.busy.keys())
            ready = sorted(pure.woken - pure.busy.keys() - pure.held)
            for uid in called_off:
                kind = CALLS[type(pure.busy[uid])]
                self.expected_cancelled.append((uid, kind))
                pure.now = now - 1
                pure.done(uid, Cancelled())
            for uid in ready:
                pure.now = now - 1
                if pure.begin(uid) is not None:
                    self.due.pop(uid, None)
            if not called_off and not ready:
                break

    def _take_retries(self, now: float) -> None:
        for uid, retry in list(self.pure.retries.items()):
            self.due[uid] = now + WAITS[retry.reason]
            del self.pure.retries[uid]
        for uid in list(self.due):
            if uid not in self.pure.workers:
                del self.due[uid]

    def _count(self, killer: int, who: int) -> None:
        self.killers[killer][who] += 1

    # --- What always holds -------------------------------------------------------------------------------------------

    @invariant()
    def the_lives_are_where_the_model_is(self) -> None:
        real, pure = self.real.workers.states.phases(), self.pure.states.phases()
        assert {uid: type(phase) for uid, phase in real.items()} == {uid: type(phase) for uid, phase in pure.items()}
        for uid, phase in real.items():
            model = pure[uid]
            if isinstance(phase, TerminationRequested | Terminating):
                assert isinstance(model, TerminationRequested | Terminating)
                assert phase.kill.grace_period == model.kill.grace_period
                assert phase.kill.deadline == model.kill.deadline

    @invariant()
    def the_same_work_is_in_flight(self) -> None:
        expected = {uid: CALLS[type(work)] for uid, work in self.pure.busy.items()}
        assert {uid: call.kind for uid, call in self.real.calls.items()} == expected
        assert self.real.workers.statistics().in_flight == len(expected)

    @invariant()
    def the_same_work_was_called_off(self) -> None:
        assert sorted(self.real.cancelled) == sorted(self.expected_cancelled)

    @invariant()
    def kills_have_the_deadline_that_is_in_force(self) -> None:
        for uid, call in self.real.calls.items():
            phase = self.real.workers.states.phase(uid)
            if call.kind.startswith("terminate"):
                assert isinstance(phase, Terminating)
                assert call.deadline == phase.kill.deadline

    @invariant()
    def who_waits_is_told_when_the_model_says_so(self) -> None:
        for by_model, by_life in self.killers.values():
            assert by_life == by_model <= 1

    @invariant()
    def each_life_has_one_nursery_and_no_other_is_left(self) -> None:
        alive = {uid for uid, phase in self.pure.states.phases().items() if not isinstance(phase, Finished)}
        assert self.real.nurseries.keys() == alive
        assert self.real.workers.statistics().tasks == len(alive)

    def teardown(self) -> None:
        """Everything that is left ends, and then nothing is left."""
        try:
            self.housekeeping(set())
            for _ in range(100):
                if not self.real.calls:
                    break
                for uid in sorted(self.real.calls):
                    call = self.real.calls[uid]

                    async def end(call: Call = call) -> None:
                        call.over.set()
                        await trio.testing.wait_all_tasks_blocked()

                    self.real.run.do(end)
                    self.pure.now = self.real.now() - 1
                    self.pure.done(uid, Completed())
                    self._settle_model()
            self.real.settle()
            assert self.real.nurseries == {}
            phases = self.real.workers.states.phases().values()
            assert all(isinstance(phase, Finished | Terminated) for phase in phases)
        finally:
            self.real.run.close()
            self.logs.__exit__(None, None, None)


TestLives = LivesMachine.TestCase
TestLives.settings = settings(
    max_examples=settings.get_profile(NIGHTLY).max_examples if IS_NIGHT else examples(40),
    stateful_step_count=30,
    derandomize=not IS_NIGHT,
    deadline=None,
)
