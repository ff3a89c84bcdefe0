"""The clients' own work: deadlines, errors, refusing useless replies. What calls do is the runtime's matter."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import CRIError, ImageClient, RuntimeClient
from trikubelet.rpc.cri.list_cache import RawReply

if TYPE_CHECKING:
    from types import TracebackType

    from trio.testing import MockClock

Reply = object


@attrs.define
class ScriptedChannel:
    """Answers every call with the same reply, or fails it, or never answers; notes what was asked. As every channel, it
    keeps the deadline of a call."""

    reply: object = None
    error: GRPCError | None = None
    hangs: bool = False
    rpc: str = ""
    timeout: float | None = math.nan
    request_message: Any = None

    def request(self, name: str, *_: object, timeout: float | None = None, **__: object) -> ScriptedChannel:
        self.rpc = name.rpartition("/")[2]
        self.timeout = timeout
        return self

    async def __aenter__(self) -> ScriptedChannel:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    async def send_message(self, message: object, *, end: bool = False) -> None:
        self.request_message = message
        await trio.lowlevel.checkpoint()

    async def recv_message(self) -> object:
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep(math.inf if self.timeout is None else self.timeout)
            raise GRPCError(Status.DEADLINE_EXCEEDED, f"context deadline exceeded: not within {self.timeout:g} s")
        if self.error is not None:
            raise self.error
        return self.reply

    def __aiter__(self) -> ScriptedChannel:
        return self

    async def __anext__(self) -> object:
        return await self.recv_message()


Call = Callable[[RuntimeClient], Awaitable[object]]
ImageCall = Callable[[ImageClient], Awaitable[object]]

SPEC = v1.ImageSpec(image="nginx")
CONFIG = v1.PodSandboxConfig(metadata=v1.PodSandboxMetadata(name="web"))


@pytest.mark.parametrize(
    ("call", "rpc", "seconds"),
    [
        (lambda client: client.version(), "Version", 120),
        (lambda client: client.status(), "Status", 120),
        (lambda client: client.run_pod_sandbox(CONFIG), "RunPodSandbox", 240),
        (lambda client: client.stop_pod_sandbox("s"), "StopPodSandbox", 120),
        (lambda client: client.remove_pod_sandbox("s"), "RemovePodSandbox", 120),
        (lambda client: client.pod_sandbox_status("s"), "PodSandboxStatus", 120),
        (lambda client: client.list_pod_sandboxes(), "ListPodSandbox", 120),
        (lambda client: client.create_container("s", v1.ContainerConfig(), CONFIG), "CreateContainer", 120),
        (lambda client: client.start_container("c"), "StartContainer", 120),
        (lambda client: client.stop_container("c", 30), "StopContainer", 150),
        (lambda client: client.remove_container("c"), "RemoveContainer", 120),
        (lambda client: client.list_containers(), "ListContainers", 120),
        (lambda client: client.container_status("c"), "ContainerStatus", 120),
        (lambda client: client.exec_sync("c", ["true"], 10), "ExecSync", 130),
        (lambda client: client.reopen_container_log("c"), "ReopenContainerLog", 120),
        (lambda client: client.checkpoint_container("c", "/tmp/c.tar", 10), "CheckpointContainer", 120),
        (lambda client: client.checkpoint_container("c", "/tmp/c.tar", 300), "CheckpointContainer", 300),
        (
            lambda client: client.update_container_resources("c", v1.LinuxContainerResources()),
            "UpdateContainerResources",
            120,
        ),
        (lambda client: client.container_stats("c"), "ContainerStats", 120),
        (lambda client: client.list_container_stats(), "ListContainerStats", 120),
        (lambda client: client.runtime_config(), "RuntimeConfig", 120),
    ],
)
async def test_every_call_has_its_deadline(autojump_clock: MockClock, call: Call, rpc: str, seconds: float) -> None:
    channel = ScriptedChannel(hangs=True)
    with pytest.raises(CRIError) as error:
        await call(RuntimeClient(channel))
    assert trio.current_time() == seconds
    assert (channel.rpc, channel.timeout) == (rpc, seconds)
    assert (error.value.rpc, error.value.timed_out) == (rpc, True)


@pytest.mark.parametrize(
    ("call", "rpc"),
    [
        (lambda client: client.list_images(), "ListImages"),
        (lambda client: client.image_status(SPEC), "ImageStatus"),
        (lambda client: client.remove_image(SPEC), "RemoveImage"),
        (lambda client: client.image_fs_info(), "ImageFsInfo"),
    ],
)
async def test_image_calls_have_a_deadline(autojump_clock: MockClock, call: ImageCall, rpc: str) -> None:
    channel = ScriptedChannel(hangs=True)
    with pytest.raises(CRIError, match="within 120 s"):
        await call(ImageClient(channel))
    assert (channel.rpc, channel.timeout) == (rpc, 120)


async def test_a_pull_and_an_unlimited_command_have_none(autojump_clock: MockClock) -> None:
    channel = ScriptedChannel(hangs=True)
    with trio.move_on_after(100_000) as scope:
        await ImageClient(channel).pull_image(SPEC)
    assert scope.cancelled_caught
    assert channel.timeout is None
    with trio.move_on_after(100_000) as scope:
        await RuntimeClient(channel).exec_sync("c", ["sleep"], 0)
    assert scope.cancelled_caught
    assert channel.timeout is None


async def test_a_client_may_have_another_ordinary_timeout(autojump_clock: MockClock) -> None:
    channel = ScriptedChannel(hangs=True)
    with pytest.raises(CRIError):
        await RuntimeClient(channel, timeout=5).run_pod_sandbox(CONFIG)
    assert trio.current_time() == 10


async def test_a_runtimes_error_keeps_its_status_and_words() -> None:
    channel = ScriptedChannel(error=GRPCError(Status.NOT_FOUND, "no such container"))
    with pytest.raises(CRIError) as error:
        await RuntimeClient(channel).container_status("c")
    assert error.value.not_found
    assert str(error.value) == "rpc error: code = NotFound desc = no such container"
    with pytest.raises(CRIError):
        await RuntimeClient(channel).list_containers()


async def test_an_event_stream_that_breaks_raises() -> None:
    channel = ScriptedChannel(error=GRPCError(Status.UNAVAILABLE, "connection lost"))
    with pytest.raises(CRIError) as error:
        async with aclosing(cast("Any", RuntimeClient(channel).container_events())) as events:
            await anext(events)
    assert error.value.unavailable


def a_container_status(**changes: object) -> v1.ContainerStatusResponse:
    fields: dict[str, Any] = {
        "id": "c",
        "metadata": v1.ContainerMetadata(name="main"),
        "created_at": 1,
        "image": v1.ImageSpec(image="nginx"),
        "image_ref": "sha256:abc",
        **changes,
    }
    return v1.ContainerStatusResponse(status=v1.ContainerStatus(**fields))


def a_sandbox_status(**changes: object) -> v1.PodSandboxStatusResponse:
    fields: dict[str, Any] = {
        "id": "s",
        "metadata": v1.PodSandboxMetadata(name="web", uid="1", namespace="default"),
        "created_at": 1,
        **changes,
    }
    return v1.PodSandboxStatusResponse(status=v1.PodSandboxStatus(**fields))


@pytest.mark.parametrize(
    ("call", "reply", "missing"),
    [
        (lambda client: client.version(), v1.VersionResponse(version="0.1.0"), "runtime_name"),
        (lambda client: client.status(), v1.StatusResponse(), "NetworkReady"),
        (
            lambda client: client.run_pod_sandbox(CONFIG),
            v1.RunPodSandboxResponse(),
            "no id for the sandbox of pod 'web'",
        ),
        (
            lambda client: client.create_container("s", v1.ContainerConfig(), CONFIG),
            v1.CreateContainerResponse(),
            "no id",
        ),
        (lambda client: client.container_status("c"), a_container_status(id=""), r"status\.id not set"),
        (
            lambda client: client.container_status("c"),
            a_container_status(image=v1.ImageSpec()),
            r"status\.image\.image",
        ),
        (lambda client: client.container_status("c"), a_container_status(image_ref=""), r"status\.image_ref"),
        (lambda client: client.container_status("c"), a_container_status(created_at=0), r"status\.created_at"),
        (lambda client: client.pod_sandbox_status("s"), a_sandbox_status(id=""), r"status\.id"),
        (
            lambda client: client.pod_sandbox_status("s"),
            a_sandbox_status(metadata=v1.PodSandboxMetadata(name="web")),
            r"status\.metadata\.namespace, status\.metadata\.uid",
        ),
        (lambda client: client.list_containers(), RawReply(b"\x0a\x05a"), "ends early"),
    ],
)
async def test_replies_without_the_essential_are_refused(call: Call, reply: Reply, missing: str) -> None:
    with pytest.raises(CRIError, match=missing):
        await call(RuntimeClient(ScriptedChannel(reply)))


async def test_complete_replies_pass() -> None:
    assert (await RuntimeClient(ScriptedChannel(a_container_status())).container_status("c")).status.id == "c"
    assert (await RuntimeClient(ScriptedChannel(a_sandbox_status())).pod_sandbox_status("s")).status.id == "s"


async def test_an_image_without_id_or_size_is_refused_but_no_image_is_none() -> None:
    absent = ImageClient(ScriptedChannel(v1.ImageStatusResponse()))
    assert await absent.image_status(SPEC) is None
    for image in (v1.Image(id="sha256:abc"), v1.Image(size=5)):
        with pytest.raises(CRIError, match="without id or size"):
            await ImageClient(ScriptedChannel(v1.ImageStatusResponse(image=image))).image_status(SPEC)
    with pytest.raises(CRIError, match="no reference"):
        await ImageClient(ScriptedChannel(v1.PullImageResponse())).pull_image(SPEC)


async def test_lists_parse_what_is_new_only() -> None:
    items = [v1.Container(id="a"), v1.Container(id="b")]
    client = RuntimeClient(ScriptedChannel(RawReply(bytes(v1.ListContainersResponse(containers=items)))))
    first, second = await client.list_containers(), await client.list_containers()
    assert [container.id for container in first] == ["a", "b"]
    assert all(one is other for one, other in zip(first, second, strict=True))
    statistics = client.list_statistics()["ListContainers"]
    assert (statistics.parses, statistics.hits) == (2, 2)


async def test_a_filter_travels_only_when_there_is_one() -> None:
    channel = ScriptedChannel(RawReply(b""))
    client = RuntimeClient(channel)
    await client.list_containers()
    assert bytes(channel.request_message) == b""
    await client.list_containers(v1.ContainerFilter(id="c"))
    assert channel.request_message.filter.id == "c"


async def test_optional_parts_of_a_pull_travel_only_when_given() -> None:
    channel = ScriptedChannel(v1.PullImageResponse(image_ref="sha256:abc"))
    client = ImageClient(channel)
    await client.pull_image(SPEC)
    assert bytes(channel.request_message) == bytes(v1.PullImageRequest(image=SPEC))
    await client.pull_image(SPEC, v1.AuthConfig(username="me"), CONFIG)
    assert channel.request_message.auth.username == "me"
    assert channel.request_message.sandbox_config.metadata.name == "web"
