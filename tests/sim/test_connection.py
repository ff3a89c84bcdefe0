"""Delays, faults, events and restarts of the simulated runtime, seen through the agent's own clients."""

from __future__ import annotations

import math
from base64 import b64encode
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from grpclib.const import Status

from tests.sim.building import container_config, run_pod, sandbox_config
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import CRIError, ImageClient, RuntimeClient
from trikubelet.sim import FaultKind, Program, SimulatedRuntime
from trikubelet.sim.images import PullError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trio.testing import MockClock

    from tests.sim.conftest import Connected

CREATED = v1.ContainerEventType.CONTAINER_CREATED_EVENT
STARTED = v1.ContainerEventType.CONTAINER_STARTED_EVENT
STOPPED = v1.ContainerEventType.CONTAINER_STOPPED_EVENT
DELETED = v1.ContainerEventType.CONTAINER_DELETED_EVENT


@asynccontextmanager
async def collected_events(node: Connected) -> AsyncIterator[list[v1.ContainerEventResponse]]:
    """Events that arrive while the block runs."""
    events: list[v1.ContainerEventResponse] = []

    async def collect() -> None:
        async with aclosing(cast("Any", node.runtime.container_events())) as stream:
            async for event in stream:
                events.append(event)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        await trio.sleep(1)
        assert node.sim.events.subscribers == 1
        yield events
        await trio.sleep(1)
        nursery.cancel_scope.cancel()


async def test_calls_take_their_delay_and_are_logged(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.delays["Version"] = 2.5
    begun = trio.current_time()
    await node.runtime.version()
    (call,) = node.sim.calls.of("Version")
    assert (call.time, call.ended_at, call.outcome) == (begun, begun + 2.5, "ok")


async def test_a_delay_range_is_drawn_by_the_seed(autojump_clock: MockClock) -> None:
    async def durations(seed: int) -> list[float]:
        sim = SimulatedRuntime(seed=seed)
        sim.delays["*"] = (0.1, 0.9)
        for _ in range(5):
            await sim.runtime_service.version(v1.VersionRequest())
        return [cast("float", call.ended_at) - call.time for call in sim.calls.of("Version")]

    first = await durations(1)
    assert first == pytest.approx(await durations(1))
    assert first != pytest.approx(await durations(2))
    assert all(0.1 <= duration <= 0.9 for duration in first)


async def test_the_call_log_can_be_asked_about_an_id(autojump_clock: MockClock, node: Connected) -> None:
    sandbox_id, (container_id,) = await run_pod(node.runtime, node.images)
    await node.runtime.stop_container(container_id, 1)
    assert [call.rpc for call in node.sim.calls.of(id=container_id)] == ["StartContainer", "StopContainer"]
    assert [call.rpc for call in node.sim.calls.of(id=sandbox_id)] == ["CreateContainer"]
    assert node.sim.calls.count("PullImage") == 1


async def test_a_failed_call_has_no_effect(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.faults.fail_next("RunPodSandbox", status=Status.INTERNAL, message="no room")
    with pytest.raises(CRIError, match="no room") as error:
        await node.runtime.run_pod_sandbox(sandbox_config())
    assert error.value.status is Status.INTERNAL
    assert await node.runtime.list_pod_sandboxes() == []
    (call,) = node.sim.calls.of("RunPodSandbox")
    assert (call.outcome, call.fault) == ("INTERNAL", FaultKind.ERROR)


async def test_a_call_whose_reply_is_lost_took_effect(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.faults.lose_next_reply("RunPodSandbox")
    with pytest.raises(CRIError) as error:
        await node.runtime.run_pod_sandbox(sandbox_config())
    assert error.value.unavailable
    assert len(await node.runtime.list_pod_sandboxes()) == 1


async def test_a_hanging_call_meets_the_callers_deadline(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.faults.hang_next("Version")
    begun = trio.current_time()
    with pytest.raises(CRIError) as error:
        await node.runtime.version()
    assert error.value.timed_out
    assert trio.current_time() - begun == pytest.approx(120, abs=1)
    await node.runtime.version()


async def test_a_call_that_is_cancelled_is_cancelled_in_the_runtime(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.faults.hang_next("RunPodSandbox")
    with trio.move_on_after(3):
        await node.runtime.run_pod_sandbox(sandbox_config())
    await trio.sleep(1)
    (call,) = node.sim.calls.of("RunPodSandbox")
    assert call.outcome == "cancelled"
    assert node.sim.machine.sandboxes == {}


async def test_events_tell_the_life_of_a_container_as_it_happens(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.program(Program.exits(7, exit_code=4), container="main")
    async with collected_events(node) as events:
        sandbox_id, (container_id,) = await run_pod(node.runtime, node.images)
        begun = trio.current_time()
        await trio.sleep(7.5)
        seen = [(event.container_id, event.container_event_type) for event in events]
        await node.runtime.remove_pod_sandbox(sandbox_id)
    assert seen == [
        (sandbox_id, CREATED),
        (sandbox_id, STARTED),
        (container_id, CREATED),
        (container_id, STARTED),
        (container_id, STOPPED),
    ]
    assert [(event.container_id, event.container_event_type) for event in events[5:]] == [
        (sandbox_id, STOPPED),
        (container_id, DELETED),
        (sandbox_id, DELETED),
    ]
    stopped = events[4]
    assert stopped.created_at == node.sim.machine.timestamp(begun + 7)
    assert stopped.containers_statuses[0].exit_code == 4
    assert stopped.pod_sandbox_status.metadata.uid == "uid-web"


async def test_events_arrive_without_any_call(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.program(Program.exits(7), container="main")
    arrival = math.nan

    async def wait_for_stop() -> None:
        nonlocal arrival
        async with aclosing(cast("Any", node.runtime.container_events())) as stream:
            async for event in stream:
                if event.container_event_type == STOPPED:
                    arrival = trio.current_time()
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_stop)
        await trio.sleep(1)
        await run_pod(node.runtime, node.images)
        begun = trio.current_time()
    assert arrival == begun + 7


async def test_events_can_be_lost_and_doubled(autojump_clock: MockClock, node: Connected) -> None:
    async with collected_events(node) as events:
        node.sim.events.lose_next()
        node.sim.events.duplicate_next()
        await node.runtime.run_pod_sandbox(sandbox_config())
    assert [event.container_event_type for event in events] == [STARTED, STARTED]
    assert node.sim.events.dropped == 1


async def test_a_subscriber_that_left_is_forgotten(autojump_clock: MockClock, node: Connected) -> None:
    async with collected_events(node):
        pass
    await trio.sleep(1)
    assert node.sim.events.subscribers == 0


async def test_an_old_runtime_has_no_events(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.events.supported = False
    with pytest.raises(CRIError) as error:
        await anext(node.runtime.container_events())
    assert error.value.unimplemented


async def test_stale_lists_show_the_past_for_a_while(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.freeze_lists(10)
    await run_pod(node.runtime, node.images)
    assert await node.runtime.list_containers() == []
    assert await node.runtime.list_pod_sandboxes() == []
    await trio.sleep(10)
    assert len(await node.runtime.list_containers()) == 1


async def test_a_restart_breaks_calls_and_streams_but_no_containers(autojump_clock: MockClock, node: Connected) -> None:
    await run_pod(node.runtime, node.images)
    node.sim.faults.hang_next("Status")
    failures: list[Status] = []

    async def hanging_status() -> None:
        try:
            await node.runtime.status()
        except CRIError as error:
            failures.append(error.status)

    async def read_events() -> None:
        try:
            async for _ in node.runtime.container_events():
                pass
        except CRIError as error:
            failures.append(error.status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hanging_status)
        nursery.start_soon(read_events)
        await trio.sleep(1)
        node.sim.restart(downtime=10)
    assert failures == [Status.UNAVAILABLE, Status.UNAVAILABLE]
    with pytest.raises(CRIError) as error:
        await node.runtime.version()
    assert error.value.unavailable
    await trio.sleep(60)
    await node.runtime.version()
    assert len(node.sim.running_containers()) == 1


async def test_pulls_take_their_time_and_fail_as_told(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.images.offer("app:1", seconds=20, size=5, uid=1000)
    node.sim.images.fail_pulls("app:1", PullError("connection refused"))
    begun = trio.current_time()
    with pytest.raises(CRIError, match="connection refused"):
        await node.images.pull_image(v1.ImageSpec(image="app:1"))
    reference = await node.images.pull_image(v1.ImageSpec(image="app:1"))
    assert trio.current_time() - begun == 40
    image = await node.images.image_status(v1.ImageSpec(image="app:1"))
    assert image is not None
    assert (image.id, image.size, image.uid.value) == (reference, 5, 1000)
    assert await node.images.image_status(v1.ImageSpec(image="app:2")) is None
    usage = await node.images.image_fs_info()
    assert usage.image_filesystems[0].used_bytes.value == 5
    await node.images.remove_image(v1.ImageSpec(image="app:1"))
    assert await node.images.list_images() == []


@pytest.mark.parametrize(
    ("auth", "succeeds"),
    [
        (v1.AuthConfig(username="ann", password="secret"), True),
        (v1.AuthConfig(auth=b64encode(b"ann:secret").decode()), True),
        (v1.AuthConfig(username="ann", password="guess"), False),
        (v1.AuthConfig(auth=b64encode(b"ann:guess").decode()), False),
        (None, False),
    ],
)
async def test_a_pull_shows_its_credentials(
    autojump_clock: MockClock, node: Connected, auth: v1.AuthConfig | None, succeeds: bool
) -> None:
    node.sim.images.protect("registry.test/private", "ann", "secret")
    spec = v1.ImageSpec(image="registry.test/private:1")
    with nullcontext() if succeeds else pytest.raises(CRIError, match="authorization failed"):
        await node.images.pull_image(spec, auth)
    assert (await node.images.image_status(spec) is not None) is succeeds


async def test_conditions_can_be_turned_off(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.runtime_service.network_ready.status = False
    conditions = (await node.runtime.status()).status.conditions
    assert {condition.type: condition.status for condition in conditions} == {
        "RuntimeReady": True,
        "NetworkReady": False,
    }
    with pytest.raises(CRIError, match="network"):
        await node.runtime.run_pod_sandbox(sandbox_config())


async def test_log_files_are_made_when_asked(autojump_clock: MockClock, tmp_path: Path) -> None:
    sim = SimulatedRuntime(write_logs=True)
    sim.images.add("nginx")
    async with sim.connect() as channel:
        runtime = RuntimeClient(channel)
        config = sandbox_config()
        config.log_directory = str(tmp_path / "pod")
        sandbox_id = await runtime.run_pod_sandbox(config)
        container_id = await runtime.create_container(sandbox_id, container_config(), config)
        await runtime.start_container(container_id)
        status = (await runtime.container_status(container_id)).status
    assert status.log_path == str(tmp_path / "pod" / "main" / "0.log")
    assert (tmp_path / "pod" / "main" / "0.log").exists()


async def test_stop_faults_makes_everything_work_again(autojump_clock: MockClock, node: Connected) -> None:
    node.sim.faults.fail_randomly("*", 1.0)
    node.sim.events.lose_probability = 1.0
    node.sim.freeze_lists(1000)
    node.sim.stop_faults()
    async with collected_events(node) as events:
        await run_pod(node.runtime, node.images)
    assert len(events) == 4
    assert len(await node.runtime.list_containers()) == 1


async def test_two_agents_may_connect(autojump_clock: MockClock, node: Connected) -> None:
    async with node.sim.connect() as channel:
        await run_pod(RuntimeClient(channel), ImageClient(channel))
    assert len(await node.runtime.list_containers()) == 1
