"""Simulated containers answer probes as their programs say."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.sim.building import run_pod
from trikubelet.api import Container, ExecAction, ObjectMeta, Pod, Probe, TCPSocketAction
from trikubelet.container.model import ContainerID
from trikubelet.probes.types import Outcome, ProbeAnswer, ProbeKind, ProbeTarget
from trikubelet.rpc.cri.client import ImageClient, RuntimeClient
from trikubelet.sim import Program, SimulatedRuntime
from trikubelet.sim.probing import SimulatedTargets
from trikubelet.sim.programs import HANGS, Late

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

OVER_TCP = Probe(tcp_socket=TCPSocketAction(port=80), timeout_seconds=2)
BY_COMMAND = Probe(exec=ExecAction(command=("true",)), timeout_seconds=2)
NOT_YET = ProbeAnswer(Outcome.FAILURE, "not yet")


@attrs.define
class Stage:
    sim: SimulatedRuntime
    runtime: RuntimeClient
    targets: SimulatedTargets
    images: ImageClient

    async def start(self, program: Program) -> ProbeTarget:
        """A running container with this program, to be asked over TCP."""
        self.sim.program(program, container="main")
        _, (identifier,) = await run_pod(self.runtime, self.images)
        container = Container(name="main", readiness_probe=OVER_TCP)
        address = self.sim.machine.find_container(identifier).sandbox.ip
        pod = Pod(metadata=ObjectMeta(uid="uid-web"))
        return ProbeTarget(pod, container, ContainerID("simulated", identifier), address, ProbeKind.READINESS)


@asynccontextmanager
async def probing_stage() -> AsyncIterator[Stage]:
    sim = SimulatedRuntime()
    async with sim.connect() as channel:
        yield Stage(sim, RuntimeClient(channel), SimulatedTargets(sim.machine), ImageClient(channel))


async def test_a_container_answers_well_unless_its_program_says_otherwise(autojump_clock: MockClock) -> None:
    async with probing_stage() as stage:
        target = await stage.start(Program())
        assert await stage.targets(target) == ProbeAnswer(Outcome.SUCCESS)


async def test_a_program_answers_by_kind_and_age(autojump_clock: MockClock) -> None:
    async with probing_stage() as stage:
        seen: list[tuple[ProbeKind, float]] = []

        def answers(kind: ProbeKind, age: float) -> ProbeAnswer:
            seen.append((kind, age))
            return NOT_YET if age < 5 else ProbeAnswer(Outcome.SUCCESS)

        target = await stage.start(Program(answers=answers))
        began = trio.current_time()
        assert await stage.targets(target) == NOT_YET
        await trio.sleep(5)
        assert (await stage.targets(target)).outcome is Outcome.SUCCESS
        assert [kind for kind, _ in seen] == [ProbeKind.READINESS] * 2
        assert [age for _, age in seen] == pytest.approx([0, 5], abs=0.1)
        assert [(one.time - began, one.container, one.kind) for one in stage.targets.asked] == [
            (0, "main", ProbeKind.READINESS),
            (5, "main", ProbeKind.READINESS),
        ]


@pytest.mark.parametrize(
    ("late", "seconds", "outcome"),
    [
        (Late(0.5), 0.5, Outcome.SUCCESS),
        (Late(1.5, NOT_YET), 1.5, Outcome.FAILURE),
        (Late(2.5), 2, Outcome.FAILURE),
        (HANGS, 2, Outcome.FAILURE),
    ],
)
async def test_an_answer_may_be_late_or_too_late(
    late: Late, seconds: float, outcome: Outcome, autojump_clock: MockClock
) -> None:
    async with probing_stage() as stage:
        target = await stage.start(Program(answers=lambda kind, age: late))
        began = trio.current_time()
        answer = await stage.targets(target)
        assert trio.current_time() - began == pytest.approx(seconds)
        assert answer.outcome is outcome
        assert not answer.error


async def test_nobody_answers_once_the_container_has_ended(autojump_clock: MockClock) -> None:
    async with probing_stage() as stage:
        target = await stage.start(Program.exits(1))
        assert (await stage.targets(target)).outcome is Outcome.SUCCESS
        await trio.sleep(1)
        answer = await stage.targets(target)
        assert answer.outcome is Outcome.FAILURE
        assert "refused" in answer.output


async def test_a_container_that_ends_while_it_is_asked_answers_no_more(autojump_clock: MockClock) -> None:
    async with probing_stage() as stage:
        program = attrs.evolve(Program.exits(1), answers=lambda kind, age: HANGS)
        target = await stage.start(program)
        began = trio.current_time()
        assert "refused" in (await stage.targets(target)).output
        assert trio.current_time() - began == pytest.approx(1, abs=0.1)


async def test_at_another_address_there_is_nobody(autojump_clock: MockClock) -> None:
    async with probing_stage() as stage:
        target = attrs.evolve(await stage.start(Program()), pod_ip="10.88.9.9")
        began = trio.current_time()
        answer = await stage.targets(target)
        assert answer.outcome is Outcome.FAILURE
        assert trio.current_time() - began == 2


async def test_commands_go_to_whoever_runs_commands(autojump_clock: MockClock) -> None:
    async with probing_stage() as stage:

        async def commands(target: ProbeTarget, /) -> ProbeAnswer:
            return ProbeAnswer(Outcome.UNKNOWN, error="the runtime is away")

        target = await stage.start(Program())
        by_command = attrs.evolve(target, container=Container(name="main", readiness_probe=BY_COMMAND))
        targets = SimulatedTargets(stage.sim.machine, commands)
        assert (await targets(by_command)).error == "the runtime is away"
        assert (await targets(target)).outcome is Outcome.SUCCESS
        assert (await stage.targets(by_command)).outcome is Outcome.SUCCESS
