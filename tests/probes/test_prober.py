"""Tries, verdicts and events: the kubelet's `TestProbe`, and what users read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
import trio

from trikubelet.api import Container, ExecAction, ObjectMeta, Pod, PodSpec, Probe
from trikubelet.container.model import ContainerID
from trikubelet.probes.prober import TRIES, Prober
from trikubelet.probes.types import Outcome, ProbeAnswer, ProbeKind, ProbeTarget
from trikubelet.telemetry.events import EventRecorder, EventType

EXEC = Probe(exec=ExecAction(command=("check",)), timeout_seconds=1)
FIELDS = {
    ProbeKind.LIVENESS: "liveness_probe",
    ProbeKind.READINESS: "readiness_probe",
    ProbeKind.STARTUP: "startup_probe",
}
ERROR = ProbeAnswer(Outcome.UNKNOWN, error="exec error")


class StoppedClock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


@attrs.define
class ScriptedAsker:
    """Gives these answers one after the other, the last one for ever."""

    answers: Sequence[ProbeAnswer]
    asked: list[ProbeTarget] = attrs.Factory(list)

    async def __call__(self, target: ProbeTarget, /) -> ProbeAnswer:
        await trio.lowlevel.checkpoint()
        self.asked.append(target)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def make_target(kind: ProbeKind = ProbeKind.LIVENESS, probe: Probe | None = EXEC, *, init: bool = False) -> ProbeTarget:
    probes: dict[str, Any] = {FIELDS[kind]: probe}
    container = Container(name="main", **probes)
    spec = PodSpec(init_containers=(container,)) if init else PodSpec(containers=(container,))
    pod = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="uid-web"), spec=spec)
    return ProbeTarget(pod, container, ContainerID("test", "foobar"), "10.0.0.1", kind)


async def verdict(target: ProbeTarget, *answers: ProbeAnswer) -> tuple[bool | None, list[str], int]:
    """What a look at this target says, its events as `reason message`, and how often the container was asked."""
    recorder = EventRecorder(StoppedClock())
    asker = ScriptedAsker(answers)
    result = await Prober(asker, recorder).probe(target)
    events = recorder.events_of("uid-web")
    assert all(event.type is EventType.WARNING for event in events)
    assert asker.asked == [target] * len(asker.asked)
    return result, [f"{event.reason} {event.message}" for event in events], len(asker.asked)


@pytest.mark.parametrize("kind", ProbeKind)
@pytest.mark.parametrize(
    ("answer", "result", "events"),
    [
        (ProbeAnswer(Outcome.SUCCESS, "fine"), True, []),
        (ProbeAnswer(Outcome.FAILURE, "no such file"), False, ["Unhealthy {} probe failed: no such file"]),
        (ProbeAnswer(Outcome.FAILURE), False, ["Unhealthy {} probe failed: "]),
        (ProbeAnswer(Outcome.WARNING, "moved"), True, ["ProbeWarning {} probe warning: moved"]),
        (ProbeAnswer(Outcome.UNKNOWN, "hm"), False, []),
        (ERROR, None, ["Unhealthy {} probe errored and resulted in unknown state: exec error"]),
        (
            ProbeAnswer(Outcome.FAILURE, error="unexpected EOF"),
            None,
            ["Unhealthy {} probe errored and resulted in failure state: unexpected EOF"],
        ),
    ],
)
async def test_an_answer_becomes_a_verdict_and_an_event(
    kind: ProbeKind, answer: ProbeAnswer, result: bool | None, events: list[str]
) -> None:
    asked = 3 if answer.error else 1
    assert await verdict(make_target(kind), answer) == (result, [event.format(kind.value) for event in events], asked)


@pytest.mark.parametrize("kind", ProbeKind)
async def test_a_container_without_the_probe_is_well_and_is_not_asked(kind: ProbeKind) -> None:
    assert await verdict(make_target(kind, None), ERROR) == (True, [], 0)


async def test_an_answer_after_errors_counts_and_the_errors_are_not_told() -> None:
    well, ill = ProbeAnswer(Outcome.SUCCESS), ProbeAnswer(Outcome.FAILURE, "down")
    assert await verdict(make_target(), ERROR, ERROR, well) == (True, [], 3)
    assert await verdict(make_target(), ERROR, ill, well) == (False, ["Unhealthy Liveness probe failed: down"], 2)


async def test_after_three_errors_the_last_one_is_told() -> None:
    errors = [ProbeAnswer(Outcome.UNKNOWN, error=f"error {number}") for number in range(1, TRIES + 2)]
    text = "Unhealthy Liveness probe errored and resulted in unknown state: error 3"
    assert await verdict(make_target(), *errors) == (None, [text], 3)


@pytest.mark.parametrize(
    ("init", "path"), [(False, "spec.containers{main}"), (True, "spec.initContainers{main}")], ids=["main", "sidecar"]
)
async def test_an_event_points_at_the_container(init: bool, path: str) -> None:
    recorder = EventRecorder(StoppedClock())
    await Prober(ScriptedAsker([ERROR]), recorder).probe(make_target(init=init))
    assert [event.field_path for event in recorder.events_of("uid-web")] == [path]


async def test_a_failure_that_repeats_is_one_event_with_a_count() -> None:
    recorder = EventRecorder(StoppedClock())
    prober = Prober(ScriptedAsker([ProbeAnswer(Outcome.FAILURE, "down")]), recorder)
    for _ in range(4):
        await prober.probe(make_target())
    assert [(event.message, event.count) for event in recorder.events_of("uid-web")] == [
        ("Liveness probe failed: down", 4)
    ]


async def test_an_answer_that_was_asked_for_before_its_turn_makes_no_event() -> None:
    target = attrs.evolve(make_target(ProbeKind.STARTUP), early=True)
    assert await verdict(target, ProbeAnswer(Outcome.FAILURE, output="not yet")) == (False, [], 1)
