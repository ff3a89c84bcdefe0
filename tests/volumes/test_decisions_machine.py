"""A machine that tries all orders of what can happen to a volume that pods share."""

from __future__ import annotations

from pathlib import Path

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from tests.examples import examples
from tests.volumes.stage import pod
from trikubelet.api import PersistentVolume, PersistentVolumeSpec
from trikubelet.volumes.decisions import (
    Action,
    Certainty,
    Done,
    Failed,
    Operation,
    Outcome,
    still_useful,
)
from trikubelet.volumes.desired import Wanted
from trikubelet.volumes.model import MountedVolume, Presence, VolumeSpec
from trikubelet.volumes.reconstruct import FoundVolume
from trikubelet.volumes.tracked_volumes import TrackedVolumes

NAME = "kubernetes.io/csi/pv-1"
SPEC = VolumeSpec("data", "pv-1", "kubernetes.io/csi", persistent=PersistentVolume())
ABSENT, UNCERTAIN, PRESENT = Presence.ABSENT, Presence.UNCERTAIN, Presence.PRESENT


PODS = ("a", "b", "c")


class VolumesOfANode(RuleBasedStateMachine):
    """A volume that pods share, with the truth about it beside what the tracked state believes.

    Pods come, end, and are released; operations end in every way; the agent is restarted. Never is anything taken down
    while a pod wants it or its containers may run, nor unstaged while a pod may have it.
    """

    @initialize(staged=st.sampled_from([True, True, False]), attachable=st.booleans(), exclusive=st.booleans())
    def begin(self, staged: bool, attachable: bool, exclusive: bool) -> None:
        modes = ("ReadWriteOncePod",) if exclusive else ("ReadWriteMany",)
        volume = PersistentVolume(spec=PersistentVolumeSpec(access_modes=modes))
        self.spec = attrs.evolve(SPEC, persistent=volume)
        self.staged, self.attachable, self.exclusive = staged, attachable, exclusive
        self.now = 0.0
        self.tracked = TrackedVolumes()
        self.operation: Operation | None = None
        self.wanted: set[str] = set()
        self.containers: set[str] = set()
        """Pods whose containers may run."""
        self.mounts: set[str] = set()
        self.is_staged = False
        self.lost = False
        """Staged without any pod's folder telling of it: no later agent can know."""

    @rule(uid=st.sampled_from(PODS))
    def prepare(self, uid: str) -> None:
        one = Wanted(
            pod=pod(uid),
            spec=self.spec,
            names=("data",),
            staged=self.staged,
            attachable=self.attachable,
            refreshes=True,
            request=0,
        )
        self.tracked.want(NAME, uid, one)
        self.wanted.add(uid)
        self.containers.add(uid)

    @rule(uid=st.sampled_from(PODS))
    def release(self, uid: str) -> None:
        self.containers.discard(uid)
        self.wanted.discard(uid)
        self.tracked.release(uid)

    @rule(uid=st.sampled_from(PODS))
    def refresh(self, uid: str) -> None:
        self.tracked.change(NAME, uid, lambda one: attrs.evolve(one, request=one.request + 1))

    @rule()
    def forgive(self) -> None:
        self.tracked.forgive([NAME])

    @rule(seconds=st.sampled_from([0.0, 200.0]))
    def start(self, seconds: float) -> None:
        self.now += seconds
        if self.operation is None:
            self._start()

    @rule(certainty=st.sampled_from([None, None, *Certainty]), really=st.booleans(), cancelled=st.booleans())
    def end(self, certainty: Certainty | None, really: bool, cancelled: bool) -> None:
        """`really`: what an uncertain operation did."""
        if self.operation is None and not self._start():
            return
        assert self.operation is not None
        if cancelled and not still_useful(self.operation, self._wanted_in_book()):
            certainty = Certainty.UNCERTAIN
        if certainty is None or (certainty is Certainty.UNCERTAIN and really):
            self._do(self.operation)
        elif certainty is Certainty.FINAL and not self.operation.inherited:
            self._undo(self.operation)
        outcome = self._done(self.operation) if certainty is None else Failed(certainty, "no", cancelled=cancelled)
        self._finish(outcome)

    @rule()
    def restart(self) -> None:
        """A pod whose containers run stays wanted, and will be prepared again: until then nobody knows that."""
        if self.operation is not None and self.operation.action is Action.STAGE:
            self.is_staged = True  # at worst
        self.operation = None
        self.wanted.clear()
        self.tracked = TrackedVolumes()
        self.tracked.adopt(
            FoundVolume(uid=uid, unique_name=NAME, spec=self.spec, staged=self.staged) for uid in sorted(self.mounts)
        )
        self.lost = self.lost or (self.is_staged and not self.mounts)

    @invariant()
    def what_is_there_is_known(self) -> None:
        if not hasattr(self, "tracked"):
            return
        volume = self.tracked.get(NAME)
        known = set() if volume is None else set(volume.actual.mounts)
        going_on = set() if self.operation is None else {self.operation.uid}
        assert self.mounts <= known | going_on
        if self.is_staged and not self.lost and self.operation is None:
            assert volume is not None
            assert volume.actual.staged is not ABSENT
        for uid in PODS:
            if volume is not None and volume.actual.is_present(uid) and uid not in going_on:
                assert uid in self.mounts

    def teardown(self) -> None:
        if not hasattr(self, "tracked"):
            return
        if self.operation is not None:
            self._do(self.operation)
            self._finish(self._done(self.operation))
        self._run_dry()
        volume = self.tracked.get(NAME)
        present = {uid for uid in PODS if volume is not None and volume.actual.is_present(uid)}
        others = self.mounts - self.wanted
        if not self.exclusive:
            assert present == self.wanted
        elif self.wanted and not others:
            assert len(present) == 1
        for uid in PODS:
            self.release(uid)
        self._run_dry()
        assert not self.mounts
        assert not self.is_staged or self.lost
        assert self.tracked.names() == ()
        assert not any(self.tracked.names_of(uid) for uid in PODS)

    def _run_dry(self) -> None:
        """Let all succeed until nothing is left to do, or only what cannot succeed."""
        for _ in range(60):
            if not self._start():
                volume = self.tracked.get(NAME)
                wake_at = None if volume is None else self.tracked.next_step(NAME, self.now, may_unstage=True).wake_at
                if wake_at is None:
                    return
                self.now = max(self.now, wake_at)
                continue
            assert self.operation is not None
            if self.operation.obstacle is not None:
                self._finish(Failed(Certainty.TRANSIENT, "no"))
                continue
            self._do(self.operation)
            self._finish(self._done(self.operation))
        assert self.exclusive, "expected an end, things went on and on"

    def _start(self) -> bool:
        if self.tracked.get(NAME) is None:
            return False
        operation = self.tracked.next_step(NAME, self.now, may_unstage=True).operation
        if operation is None:
            return False
        match operation.action:
            case Action.TEAR_DOWN:
                assert operation.uid not in self.wanted
                assert operation.uid not in self.containers
            case Action.UNSTAGE:
                assert not self.mounts
                assert not self.wanted
            case Action.SET_UP if operation.obstacle is None:
                assert operation.uid in self.wanted
                assert self.is_staged or not self.staged
                assert not self.exclusive or self.mounts <= {operation.uid}
        self.tracked.begin(operation)
        self.operation = operation
        return True

    def _finish(self, outcome: Outcome) -> None:
        assert self.operation is not None
        operation, self.operation = self.operation, None
        if operation.obstacle is not None:
            outcome = Failed(Certainty.TRANSIENT, "no")
        self.tracked.finish(operation, outcome, self.now)

    def _do(self, operation: Operation) -> None:
        """What the operation does to the truth."""
        if operation.obstacle is not None:
            return
        match operation.action:
            case Action.STAGE:
                self.is_staged = True
            case Action.SET_UP:
                self.mounts.add(operation.uid)
            case Action.TEAR_DOWN:
                self.mounts.discard(operation.uid)
            case Action.UNSTAGE:
                self.is_staged = self.lost = False

    def _undo(self, operation: Operation) -> None:
        """What a final failure promises: nothing of what was tried is there."""
        if operation.obstacle is not None:
            return
        if operation.action is Action.STAGE:
            self.is_staged = False
        if operation.action is Action.SET_UP:
            self.mounts.discard(operation.uid)

    def _done(self, operation: Operation) -> Done:
        return Done(mounted=MountedVolume(operation.spec, Path("/x")))

    def _wanted_in_book(self) -> dict[str, Wanted]:
        volume = self.tracked.get(NAME)
        return {} if volume is None else volume.wanted


TestVolumesOfANode = VolumesOfANode.TestCase
TestVolumesOfANode.settings = settings(max_examples=examples(300), stateful_step_count=50, deadline=None)
