"""One sync or kill at whose calls the runtime restarts: what it says of it, and what the next one makes of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest
import trio

from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.api import ExecAction, Lifecycle, LifecycleHandler
from trikubelet.container.errors import GarbageCollectionError, KillPodError
from trikubelet.rpc.cri.errors import CRIError
from trikubelet.sim import ExecOutcome, FaultKind, Life, Program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from trikubelet.api import Pod
    from trikubelet.runtime.results import PodSyncResult
    from trikubelet.sim.faults import When

DOWNTIME: Final = 2.0
PULL: Final = 5.0
BEFORE_AND_AFTER: Final = pytest.mark.parametrize("when", ["before", "after"])


@pytest.fixture
async def node(node: Node) -> AsyncIterator[Node]:
    """Its manager runs, and its images take some seconds."""
    node.sim.images.default_pull_seconds = PULL
    async with trio.open_nursery() as nursery:
        await nursery.start(node.manager.run)
        yield node
        nursery.cancel_scope.cancel()


async def restarted(node: Node) -> bool:
    """Whether the runtime has restarted; it is back then."""
    await trio.sleep(DOWNTIME + 4)  # the channel's own pause is at most 3.6 s
    return node.sim.faults.met[FaultKind.RESTART] == 1


async def synced_twice(node: Node, pod: Pod) -> tuple[PodSyncResult, PodSyncResult]:
    """A sync in which the runtime restarts, and the next."""
    first = await node.sync(pod)
    assert await restarted(node)
    return first, await node.sync(pod)


@BEFORE_AND_AFTER
@pytest.mark.parametrize(
    ("rpc", "reason"),
    [
        ("RunPodSandbox", "CreatePodSandboxError"),
        ("ImageStatus", "ImageInspectError"),
        ("PullImage", "ErrImagePull"),
        ("CreateContainer", "CreateContainerError"),
        ("StartContainer", "RunContainerError"),
    ],
)
async def test_a_start_that_the_runtime_did_not_survive_is_an_error_to_try_again_soon(
    autojump_clock: MockClock, node: Node, rpc: str, reason: str, when: When
) -> None:
    # The first question for the image goes beside the sandbox, which would fail with it.
    node.sim.restart_at(rpc, nth=2 if rpc == "ImageStatus" else 1, when=when, downtime=DOWNTIME)
    result = await node.sync(make_pod())
    [failed] = [one for one in result.results if one.failed]
    assert failed.reason == reason
    assert result.error is not None
    if rpc not in ("ImageStatus", "PullImage"):  # images wait as the kubelet's do
        assert failed.retry_at is not None
        assert 0 < failed.retry_at - trio.current_time() <= 1


@BEFORE_AND_AFTER
@pytest.mark.parametrize("rpc", ["RunPodSandbox", "PodSandboxStatus", "CreateContainer", "StartContainer"])
async def test_the_next_sync_goes_on_and_starts_nothing_twice(
    autojump_clock: MockClock, node: Node, rpc: str, when: When
) -> None:
    pod = make_pod()
    node.sim.restart_at(rpc, when=when, downtime=DOWNTIME)
    first, second = await synced_twice(node, pod)
    assert first.error is not None
    assert second.error is None
    assert [run.container_name for run in node.sim.runs()] == ["main"]
    assert (await node.sync(pod)).results == []
    ready = [sandbox for sandbox in node.sim.machine.sandboxes.values() if sandbox.ready]
    assert len(ready) == 1


@pytest.mark.parametrize(("when", "pulls"), [("before", 2), ("during", 2), ("after", 1)])
async def test_an_image_whose_pull_was_cut_is_pulled_again_unless_it_came(
    autojump_clock: MockClock, node: Node, when: When, pulls: int
) -> None:
    pod = make_pod()
    node.sim.restart_at("PullImage", when=when, downtime=DOWNTIME)
    await node.sync(pod)
    await trio.sleep(15)  # the pull's backoff
    await node.sync(pod)
    assert node.sim.calls.count("PullImage") == pulls
    assert [run.container_name for run in node.sim.runs()] == ["main"]


@BEFORE_AND_AFTER
async def test_a_container_that_was_created_and_never_started_is_replaced(
    autojump_clock: MockClock, node: Node, when: When
) -> None:
    pod = make_pod()
    node.sim.restart_at("CreateContainer" if when == "after" else "StartContainer", when=when, downtime=DOWNTIME)
    await synced_twice(node, pod)
    [run] = node.sim.runs()
    assert run.attempt == 0, "it never ran"
    assert len(node.sim.machine.containers) == 1


@BEFORE_AND_AFTER
async def test_what_a_pod_looks_like_is_not_known_while_the_runtime_is_away(
    autojump_clock: MockClock, node: Node, when: When
) -> None:
    pod = make_pod()
    await node.sync(pod)
    node.sim.events.supported = False  # else the sandbox's status tells of the containers too
    for rpc in ("ListPodSandbox", "ListContainers", "ContainerStatus", "PodSandboxStatus"):
        node.sim.restart_at(rpc, when=when, downtime=DOWNTIME)
        with pytest.raises(CRIError) as error:
            await node.status(pod)
        assert error.value.unavailable
        await restarted(node)
    assert (await node.sync(pod)).results == []
    assert len(node.sim.runs()) == 1


@pytest.mark.parametrize("when", ["before", "during", "after"])
async def test_a_stop_is_asked_again_within_the_grace_period(autojump_clock: MockClock, node: Node, when: When) -> None:
    node.sim.program(Program((Life(sigterm=1),)), container="main")
    pod = make_pod()
    await node.sync(pod)
    node.sim.restart_at("StopContainer", when=when, downtime=DOWNTIME)
    began = trio.current_time()
    await node.kill(pod)
    assert trio.current_time() - began < 15
    assert node.sim.running_containers() == []
    [run] = node.sim.runs()
    assert run.exit_code == 143


@BEFORE_AND_AFTER
async def test_a_sandbox_whose_stop_failed_is_stopped_by_the_next_kill(
    autojump_clock: MockClock, node: Node, when: When
) -> None:
    pod = make_pod()
    await node.sync(pod)
    node.sim.restart_at("StopPodSandbox", when=when, downtime=DOWNTIME)
    with pytest.raises(KillPodError):
        await node.kill(pod)
    assert await restarted(node)
    await node.kill(pod)
    assert [sandbox.ready for sandbox in node.sim.machine.sandboxes.values()] == [False]


@pytest.mark.parametrize("hook", ["postStart", "preStop"])
@pytest.mark.parametrize("when", ["before", "during", "after"])
async def test_a_hook_that_the_runtime_did_not_survive_has_failed(
    autojump_clock: MockClock, node: Node, hook: str, when: When
) -> None:
    node.sim.program(Program((Life(sigterm=1),), exec=lambda _: ExecOutcome(seconds=3)), container="main")
    handler = LifecycleHandler(exec=ExecAction(command=("hook",)))
    lifecycle = Lifecycle(post_start=handler) if hook == "postStart" else Lifecycle(pre_stop=handler)
    pod = make_pod(make_container(lifecycle=lifecycle))
    node.sim.restart_at("ExecSync", when=when, downtime=DOWNTIME)
    result = await node.sync(pod)
    if hook == "postStart":
        [failed] = [one for one in result.results if one.failed]
        assert failed.reason == "PostStartHookError"
        assert "FailedPostStartHook" in [reason for reason, _ in node.said(pod)]
    else:
        assert result.error is None
        await node.kill(pod)
        assert "FailedPreStopHook" in [reason for reason, _ in node.said(pod)]
    assert await restarted(node)
    assert node.sim.running_containers() == []


@BEFORE_AND_AFTER
@pytest.mark.parametrize("rpc", ["RemoveContainer", "RemovePodSandbox", "StopPodSandbox"])
async def test_garbage_that_was_not_removed_is_removed_by_the_next_collection(
    autojump_clock: MockClock, node: Node, rpc: str, when: When
) -> None:
    pod = make_pod()
    await node.sync(pod)
    if rpc == "StopPodSandbox":  # one that the agent has stopped itself is not stopped again
        for container in node.sim.running_containers():
            node.sim.end_container(container)
        node.sim.fail_sandbox(next(iter(node.sim.machine.sandboxes.values())))
    else:
        await node.kill(pod)

    async def collect() -> None:
        await node.manager.garbage_collect(all_sources_ready=True, is_pod_removed=lambda _: True)

    node.sim.restart_at(rpc, when=when, downtime=DOWNTIME)
    with suppress(GarbageCollectionError):  # what could be asked for may have been all
        await collect()
    assert await restarted(node)
    await collect()
    await collect()
    assert node.sim.machine.containers == {}
    assert node.sim.machine.sandboxes == {}


async def test_a_sandbox_that_was_stopped_is_removed_without_being_stopped_again(
    autojump_clock: MockClock, node: Node
) -> None:
    pod = make_pod()
    await node.sync(pod)
    await node.kill(pod)
    stops = node.sim.calls.count("StopPodSandbox")
    await node.manager.garbage_collect(all_sources_ready=True, is_pod_removed=lambda _: True)
    assert node.sim.machine.sandboxes == {}
    assert node.sim.calls.count("StopPodSandbox") == stops
