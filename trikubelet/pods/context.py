"""What the lives of all pods share, and what they tell of one that takes long to end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import attrs
import trio

from trikubelet.formats.values import frozen
from trikubelet.pods import phases
from trikubelet.pods.registry import PodWorkerRegistry
from trikubelet.pods.retry import RetryPolicy
from trikubelet.pods.statistics import WorkerCounts
from trikubelet.pods.types import DesiredPod, OpenPod, PodCache
from trikubelet.telemetry.events import EventRecorder, EventType
from trikubelet.telemetry.steps import Steps

KILL_TIMEOUT_FACTOR: Final = 1.5
MINIMUM_KILL_TIMEOUT: Final = 10.0
"""Seconds: what a runtime may take for a kill without any grace."""
INSPECTION: Final = "inspection of the pod"
"""The step in which the runtime is asked what it holds of the pod."""


@frozen(kw_only=True)
class LifeContext:
    """What all lives share."""

    registry: PodWorkerRegistry
    open_pod: OpenPod
    cache: PodCache
    policy: RetryPolicy
    rng: Random
    desired: DesiredPod | None = None
    """The newest version of a pod when it is looked at again; without it the last one is used again."""
    recorder: EventRecorder | None = None
    counts: WorkerCounts = attrs.field(factory=WorkerCounts)
    steps: Steps = attrs.field(factory=Steps)
    """Where it is told what goes on for a pod."""
    why: Callable[[str], str] = lambda uid: "not known"
    """What the pod of a UID waits for, for people."""


async def tell_when_stuck(context: LifeContext, uid: str) -> None:
    """An event when a pod's end takes longer than one and a half times its grace period, with what it waits for."""
    phase = context.registry.states.phase(uid)
    if not isinstance(phase, phases.TerminationRequested | phases.Terminating):
        return
    seconds = max(MINIMUM_KILL_TIMEOUT, KILL_TIMEOUT_FACTOR * phase.kill.grace_period)
    await trio.sleep_until(phase.ending.asked_at + seconds)
    if isinstance(phase.active, phases.ConfigUpdate) and context.recorder is not None:
        text = f"The pod has not ended within {seconds:g} s: {context.why(uid)}"
        context.recorder.pod_event(phase.active.pod, EventType.WARNING, "StuckTerminating", text)
