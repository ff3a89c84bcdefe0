"""Whatever pods come, change and go: nobody has what is not there, and nobody waits for what is there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.allocation.situations import simple_pod
from tests.allocation.stage import Stage
from trikubelet.admission.types import Admitted
from trikubelet.allocation.metrics import PODS_REMOVED
from trikubelet.api import POD_RESIZE_PENDING, Pod, pod_requests

UIDS = ("a", "b", "c", "d")
NODE = {"cpu": 4000, "memory": 4 * 2**30 * 1000}
"""In thousandths."""

wishes = st.builds(
    simple_pod,
    st.sampled_from(UIDS),
    st.sampled_from(("500m", "1", "2", "3", "5")),
    st.sampled_from(("512Mi", "1Gi", "2Gi", "3Gi")),
    priority=st.sampled_from((None, 1, 2)),
)
events = st.lists(st.one_of(wishes, st.sampled_from(UIDS)), max_size=30)
"""A pod arrives or changes; a pod, by UID, ends."""


def arrive(stage: Stage, pod: Pod) -> None:
    others = [stage.manager.allocated(other) for other in stage.pods.values()]
    if stage.decides.admit(pod, others, node=stage.node(), fresh=True) == Admitted():
        stage.add(pod)


def happen(stage: Stage, event: Pod | str) -> None:
    stage.clock.go_on()
    if isinstance(event, str):
        if event in stage.pods:
            stage.end(event)
            stage.manager.removed(event)
    elif event.metadata.uid in stage.pods:
        stage.change(event)
    else:
        arrive(stage, event)
    stage.retry()


def check(stage: Stage) -> None:
    allocated = [stage.manager.allocated(pod) for pod in stage.pods.values()]
    for name, there_is in NODE.items():
        assert sum(pod_requests(pod)[name].milli_value() for pod in allocated) <= there_is
    wanting = {uid for uid, pod in stage.pods.items() if stage.manager.allocated(pod) is not pod}
    shown = {
        uid for uid in UIDS if any(condition.type == POD_RESIZE_PENDING for condition in stage.manager.conditions(uid))
    }
    assert set(stage.manager.waiting) == wanting == shown
    assert set(stage.store.uids()) == stage.pods.keys()
    stage.manager.room_appeared(PODS_REMOVED)
    stage.retry()
    assert set(stage.manager.waiting) == wanting, "somebody waited for what was there"


@given(happening=events)
def test_what_is_there_is_given_and_no_more(happening: list[Pod | str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        for event in happening:
            happen(stage, event)
            check(stage)
