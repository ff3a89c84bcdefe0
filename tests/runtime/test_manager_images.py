"""Images: present, pulled, waiting to be pulled again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from grpclib.const import Status

from tests.runtime.conftest import Node, make_container, make_pod
from trikubelet.api import SecurityContext
from trikubelet.sim.images import PullError

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_an_image_that_is_there_is_not_pulled(autojump_clock: MockClock, node: Node) -> None:
    node.sim.images.add("busybox")
    pod = make_pod()
    await node.sync(pod)
    assert node.sim.calls.count("PullImage") == 0
    assert node.said(pod)[0] == (
        "Pulled",
        'Container image "busybox" already present on machine',
    )


async def test_always_means_always(autojump_clock: MockClock, node: Node) -> None:
    node.sim.images.add("busybox")
    await node.sync(make_pod(make_container(image_pull_policy="Always")))
    assert node.sim.calls.count("PullImage") == 1
    assert len(node.sim.running_containers()) == 1


async def test_never_means_never(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(make_container(image_pull_policy="Never"))
    result = await node.sync(pod)
    message = 'Container image "busybox" is not present with pull policy of Never'
    assert (result.results[-1].reason, result.results[-1].message) == ("ErrImageNeverPull", message)
    assert node.said(pod) == [("ErrImageNeverPull", message), ("Failed", "Error: ErrImageNeverPull")]
    node.sim.images.add("busybox")
    assert (await node.sync(pod)).error is None


async def test_a_name_that_is_none_is_refused(autojump_clock: MockClock, node: Node) -> None:
    pod = make_pod(make_container(image="Not/An/Image"))
    result = await node.sync(pod)
    assert result.results[-1].reason == "InvalidImageName"
    assert result.results[-1].message.startswith('Failed to apply default image tag "Not/An/Image": couldn\'t parse')
    assert node.said(pod)[0][0] == "InspectFailed"
    assert node.sim.calls.count("ImageStatus") == 0


async def test_an_image_that_cannot_be_inspected_is_an_error(autojump_clock: MockClock, node: Node) -> None:
    node.sim.faults.fail_next("ImageStatus", times=2, message="disk on fire")
    result = await node.sync(make_pod())
    assert result.results[-1].reason == "ImageInspectError"


async def test_a_failed_pull_waits_and_tells_what_it_failed_with(autojump_clock: MockClock, node: Node) -> None:
    node.sim.images.fail_pulls("busybox", PullError("no route to host", Status.UNKNOWN), times=2)
    pod = make_pod()
    failed = (await node.sync(pod)).results[-1]
    assert (failed.reason, failed.message) == ("ErrImagePull", "no route to host")
    result = await node.sync(pod)
    [waiting] = result.results
    assert (waiting.reason, waiting.message) == (
        "ImagePullBackOff",
        'Back-off pulling image "busybox": ErrImagePull: no route to host',
    )
    assert result.error is None
    assert [reason for reason, _ in node.said(pod)] == ["Pulling", "Failed", "Failed", "BackOff", "Failed"]
    assert node.said(pod)[3] == ("BackOff", 'Back-off pulling image "busybox"')
    began = trio.current_time()
    while not node.sim.running_containers():
        result = await node.sync(pod)
        await trio.sleep_until(result.backoffs.get("main", trio.current_time()))
    assert trio.current_time() - began == pytest.approx(30, abs=0.5)


async def test_an_error_with_a_code_is_told_with_it(autojump_clock: MockClock, node: Node) -> None:
    node.sim.images.fail_pulls("busybox", PullError("no such thing", Status.NOT_FOUND))
    pod = make_pod()
    failed = (await node.sync(pod)).results[-1]
    assert failed.message == "rpc error: code = NotFound desc = no such thing"
    assert node.said(pod)[1] == ("Failed", f'Failed to pull image "busybox": {failed.message}')


async def test_another_image_does_not_wait(autojump_clock: MockClock, node: Node) -> None:
    node.sim.images.withdraw("missing")
    await node.sync(make_pod(make_container(image="missing")))
    assert (await node.sync(make_pod())).error is None


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (
            "RegistryUnavailable: it is down",
            "RegistryUnavailable",
            "image pull failed for busybox because the registry is unavailable: it is down",
        ),
        (
            "SignatureValidationFailed",
            "SignatureValidationFailed",
            "image pull failed for busybox because the signature validation failed",
        ),
    ],
)
async def test_some_pull_errors_have_names_of_their_own(
    autojump_clock: MockClock, node: Node, error: str, reason: str, message: str
) -> None:
    node.sim.images.fail_pulls("busybox", PullError(error))
    result = (await node.sync(make_pod())).results[-1]
    assert (result.reason, result.message) == (reason, message)


async def test_pulls_wait_for_each_other_unless_told_otherwise(autojump_clock: MockClock, node: Node) -> None:
    for name in ("one", "two"):
        node.sim.images.offer(name, seconds=10)

    async def both() -> float:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(node.sync, make_pod(make_container(image=name), name=f"{name}-{began}"))
        return trio.current_time() - began

    assert await both() == pytest.approx(20, abs=0.5)
    for name in ("one", "two"):
        node.sim.images.remove(name)
    node.manager = node.another_manager(serialize_image_pulls=False)
    assert await both() == pytest.approx(10, abs=0.5)


@pytest.mark.parametrize("pulled", [True, False])
async def test_the_images_user_is_used_and_checked(autojump_clock: MockClock, node: Node, pulled: bool) -> None:
    (node.sim.images.offer if pulled else node.sim.images.add)("busybox", uid=1000)
    await node.sync(make_pod(make_container(security_context=SecurityContext(run_as_non_root=True))))
    [running] = node.sim.running_containers()
    assert running.config.linux.security_context.run_as_user.value == 1000


async def test_an_image_that_runs_as_root_is_refused_where_root_is_not_wanted(
    autojump_clock: MockClock, node: Node
) -> None:
    pod = make_pod(make_container(security_context=SecurityContext(run_as_non_root=True)))
    result = (await node.sync(pod)).results[-1]
    assert result.reason == "CreateContainerConfigError"
    assert result.message == (
        'container has runAsNonRoot and image will run as root (pod: "web_default(uid-web)", container: main)'
    )
