"""Images are looked for while the sandbox is made, and nothing else of their story changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.runtime.conftest import make_container, make_pod
from trikubelet.api import ImageVolumeSource, Volume

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.runtime.conftest import Node

SANDBOX = 1.0
"""Seconds that one takes to be made."""


@pytest.fixture
async def slow(node: Node) -> Node:
    """A node whose runtime takes its time."""
    await trio.lowlevel.checkpoint()
    node.sim.delays["RunPodSandbox"] = SANDBOX
    node.sim.delays["ImageStatus"] = 0.4
    return node


async def have(node: Node, *images: str) -> None:
    """Let the runtime have images, and forget how."""
    pods = [make_pod(make_container(image=image), name=f"earlier-{image}") for image in images]
    for pod in pods:
        assert (await node.sync(pod)).error is None
    node.sim.calls.clear()


def asked(node: Node, rpc: str, began: float) -> list[float]:
    """When the calls of this name came, after `began`."""
    return [round(call.time - began, 2) for call in node.sim.calls.of(rpc)]


async def test_a_present_image_is_found_while_the_sandbox_is_made(autojump_clock: MockClock, slow: Node) -> None:
    await have(slow, "busybox")
    began = trio.current_time()
    result = await slow.sync(make_pod(make_container("a"), make_container("b")))
    assert result.error is None
    assert asked(slow, "ImageStatus", began) == [0]
    assert asked(slow, "CreateContainer", began) == [SANDBOX, SANDBOX]
    images = {one.image_ref for one in (await slow.status(make_pod())).container_statuses}
    assert images == {one.image_ref for one in (await slow.status(make_pod(name="earlier-busybox"))).container_statuses}


async def test_an_image_that_is_not_there_is_pulled_after_the_sandbox(autojump_clock: MockClock, slow: Node) -> None:
    pod, began = make_pod(), trio.current_time()
    assert (await slow.sync(pod)).error is None
    assert asked(slow, "ImageStatus", began)[:2] == [0, SANDBOX]
    assert asked(slow, "PullImage", began) == [SANDBOX + 0.4]
    assert [reason for reason, _ in slow.said(pod)] == ["Pulling", "Pulled", "Created", "Started"]


@pytest.mark.parametrize("broken", [partial(dict, hang=True), partial(dict, hang=False)])
async def test_an_answer_that_does_not_come_holds_up_nothing(
    autojump_clock: MockClock, slow: Node, broken: Any
) -> None:
    await have(slow, "busybox")
    if broken()["hang"]:
        slow.sim.faults.hang_next("ImageStatus")
    else:
        slow.sim.faults.fail_next("ImageStatus")
    pod, began = make_pod(), trio.current_time()
    assert (await slow.sync(pod)).error is None
    assert asked(slow, "ImageStatus", began) == [0, SANDBOX]
    assert asked(slow, "CreateContainer", began) == [SANDBOX + 0.4]
    assert [reason for reason, _ in slow.said(pod)] == ["Pulled", "Created", "Started"]


@pytest.mark.parametrize("policies", [("Always",), ("IfNotPresent", "Always"), ("Always", "IfNotPresent")])
async def test_an_image_that_is_pulled_anyway_is_not_looked_for(
    autojump_clock: MockClock, slow: Node, policies: tuple[str, ...]
) -> None:
    """What was found before the pull would not be what came."""
    await have(slow, "busybox")
    containers = [make_container(f"c{number}", image_pull_policy=policy) for number, policy in enumerate(policies)]
    began = trio.current_time()
    assert (await slow.sync(make_pod(*containers))).error is None
    assert min(asked(slow, "ImageStatus", began)) >= SANDBOX


async def test_an_image_that_is_also_a_volume_is_not_looked_for(autojump_clock: MockClock, slow: Node) -> None:
    await have(slow, "busybox")
    volume = Volume(name="v", image=ImageVolumeSource(reference="busybox", pull_policy="Always"))
    began = trio.current_time()
    assert (await slow.sync(make_pod(make_container(), volumes=(volume,)))).error is None
    assert min(asked(slow, "ImageStatus", began)) >= SANDBOX


async def test_without_a_sandbox_nothing_goes_on(autojump_clock: MockClock, slow: Node) -> None:
    slow.sim.faults.fail_next("RunPodSandbox")
    slow.sim.faults.hang_next("ImageStatus")
    pod = make_pod()
    result = await slow.sync(pod)
    assert [one.reason for one in result.results] == ["CreatePodSandboxError"]
    await trio.sleep(0.1)
    assert [call.outcome for call in slow.sim.calls.of("ImageStatus")] == ["cancelled"]
    with slow.manager.image_holds.collection():
        async with slow.manager.image_holds.removal() as held:
            assert held == set()


async def test_a_sync_that_is_cancelled_leaves_no_question_and_no_hold(autojump_clock: MockClock, slow: Node) -> None:
    with trio.move_on_after(0.2):
        await slow.sync(make_pod())
    await trio.sleep(0.1)
    calls = slow.sim.calls.of("RunPodSandbox", "ImageStatus")
    assert sorted((call.rpc, call.outcome) for call in calls) == [
        ("ImageStatus", "cancelled"),
        ("RunPodSandbox", "cancelled"),
    ]
    with slow.manager.image_holds.collection():
        async with slow.manager.image_holds.removal() as held:
            assert held == set()


async def test_an_image_that_was_found_is_not_removed_before_its_container_is_made(
    autojump_clock: MockClock, slow: Node, nursery: trio.Nursery
) -> None:
    await have(slow, "busybox")
    with slow.manager.image_holds.collection():
        nursery.start_soon(slow.sync, make_pod())
        await trio.sleep(SANDBOX / 2)
        async with slow.manager.image_holds.removal() as held:
            assert held == {"busybox"}
    await trio.sleep(10)
