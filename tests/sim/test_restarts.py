"""Restarts of the simulated runtime at chosen calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from tests.sim.building import container_config, run_pod, sandbox_config
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import CRIError
from trikubelet.sim import ExecOutcome, FaultKind, Life, Program, SimulatedRuntime

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.sim.conftest import Connected
    from trikubelet.sim.faults import When

ALL_MOMENTS: tuple[When, ...] = ("before", "during", "after")
SLEEPY = v1.ImageSpec(image="sleepy")


@pytest.mark.parametrize(("when", "exists"), [("before", False), ("during", True), ("after", True)])
async def test_a_call_that_takes_no_time_is_done_unless_the_restart_comes_before(
    autojump_clock: MockClock, node: Connected, when: When, exists: bool
) -> None:
    node.sim.restart_at("RunPodSandbox", when=when)
    with pytest.raises(CRIError) as error:
        await node.runtime.run_pod_sandbox(sandbox_config())
    assert error.value.unavailable
    await trio.sleep(60)
    assert len(await node.runtime.list_pod_sandboxes()) == exists
    (call,) = node.sim.calls.of("RunPodSandbox")
    assert call.fault is FaultKind.RESTART


@pytest.mark.parametrize(("when", "present"), [("before", False), ("during", False), ("after", True)])
async def test_a_pull_that_is_cut_short_brings_nothing(
    autojump_clock: MockClock, node: Connected, when: When, present: bool
) -> None:
    node.sim.images.offer(SLEEPY.image, seconds=20)
    node.sim.restart_at("PullImage", when=when)
    with pytest.raises(CRIError):
        await node.images.pull_image(SLEEPY)
    await trio.sleep(60)
    assert (await node.images.image_status(SLEEPY) is not None) is present


@pytest.mark.parametrize(("when", "signals"), [("before", []), ("during", ["SIGTERM"]), ("after", ["SIGTERM"])])
async def test_a_stop_that_is_cut_short_has_sent_its_signal(
    autojump_clock: MockClock, node: Connected, when: When, signals: list[str]
) -> None:
    node.sim.program(Program((Life(sigterm=5),)), container="main")
    _, (container_id,) = await run_pod(node.runtime, node.images)
    container = node.sim.machine.containers[container_id]
    node.sim.restart_at("StopContainer", when=when)
    begun = trio.current_time()
    with pytest.raises(CRIError):
        await node.runtime.stop_container(container_id, 30)
    assert (trio.current_time() - begun >= 5) is (when == "after")
    await trio.sleep(10)
    assert [name for _, name in container.signals] == signals
    assert bool(node.sim.running_containers()) is not bool(signals)


@pytest.mark.parametrize("when", ALL_MOMENTS)
async def test_nothing_connects_while_it_is_away_and_everything_is_there_when_it_is_back(
    autojump_clock: MockClock, node: Connected, when: When
) -> None:
    await run_pod(node.runtime, node.images)
    node.sim.restart_at("Version", when=when, downtime=10)
    begun = trio.current_time()
    for _ in range(2):
        with pytest.raises(CRIError) as error:
            await node.runtime.version()
        assert error.value.unavailable
    assert trio.current_time() - begun < 10
    await trio.sleep(60)
    await node.runtime.version()
    assert [container.name for container in node.sim.running_containers()] == ["main"]


async def test_the_restart_comes_at_the_call_with_the_number(autojump_clock: MockClock, node: Connected) -> None:
    await node.runtime.version()
    node.sim.restart_at("Version", 2)
    await node.runtime.version()
    with pytest.raises(CRIError):
        await node.runtime.version()
    await trio.sleep(60)
    await node.runtime.version()


async def test_calls_of_all_names_can_be_counted(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.restart_at("*", 3)
    await node.runtime.version()
    await node.runtime.status()
    with pytest.raises(CRIError):
        await node.images.list_images()


async def test_a_call_in_another_ones_restart_fails_too(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.program(Program(exec=lambda _: ExecOutcome(seconds=60)), container="main")
    _, (container_id,) = await run_pod(node.runtime, node.images)
    failures: list[Status] = []

    async def run_command() -> None:
        try:
            await node.runtime.exec_sync(container_id, ["sleep", "60"], 0)
        except CRIError as error:
            failures.append(error.status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_command)
        await trio.sleep(1)
        node.sim.restart_at("Version")
        with pytest.raises(CRIError):
            await node.runtime.version()
    assert failures == [Status.UNAVAILABLE]


async def test_a_create_that_failed_and_whose_reply_was_lost_made_nothing(
    autojump_clock: MockClock, node: Connected
) -> None:
    sandbox_id = await node.runtime.run_pod_sandbox(sandbox_config())
    node.sim.restart_at("CreateContainer", when="after")
    with pytest.raises(CRIError) as error:
        await node.runtime.create_container(sandbox_id, container_config(image="absent"), sandbox_config())
    assert error.value.unavailable
    assert node.sim.machine.containers == {}


async def test_without_a_connection_the_call_itself_tells(autojump_clock: MockClock) -> None:
    sim = SimulatedRuntime()
    sim.restart_at("Version")
    with pytest.raises(GRPCError) as error:
        await sim.runtime_service.version(v1.VersionRequest())
    assert error.value.status is Status.UNAVAILABLE


async def test_no_restart_after_the_faults_are_over(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.restart_at("Version")
    node.sim.stop_faults()
    await node.runtime.version()
