"""CRI's view of the image store."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from grpclib import GRPCError
from grpclib.const import Status

from tests.captured_logs import capture_logs
from tests.embedded.images.archives import layer, oci_archive
from tests.embedded.registry.scripted_registry import Answer, ask_for_password, scripted_registry
from tests.patience import PATIENCE
from trikubelet.clock import TrioClock
from trikubelet.embedded.image_service import EmbeddedImageService
from trikubelet.embedded.images.model import LayerFormat
from trikubelet.embedded.images.store import ImageStore
from trikubelet.embedded.registry.puller import Puller
from trikubelet.embedded.registry.retry import Timeouts
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.client import ImageClient
from trikubelet.rpc.grpc import Channel, Server
from trikubelet.rpc.grpc.unix import UnixStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Fixture:
    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.in_use: list[str] = []
        clock = TrioClock(EPOCH)
        self.store = ImageStore(tmp_path / "store", clock=clock, layer_format=LayerFormat.FLAT)
        self.puller = Puller(self.store, clock=clock, hosts_dirs=[tmp_path / "certs.d"], timeouts=Timeouts(tries=1))
        self.service = EmbeddedImageService(self.store, self.puller, clock=clock, users=self.users)

    def users(self, image_id: str) -> Sequence[str]:
        return ["c1"] if image_id in self.in_use else []

    async def add(self, name: str, **config: object) -> str:
        await self.store.import_archive(oci_archive(self.path / "a.tar", [layer(name)], name, config))
        image = self.store.resolve(name)
        assert image is not None
        return image.id

    async def status(self, name: str, *, verbose: bool = False) -> v1.ImageStatusResponse:
        request = v1.ImageStatusRequest(image=v1.ImageSpec(image=name), verbose=verbose)
        reply = await self.service.image_status(request)
        return v1.ImageStatusResponse().parse(bytes(reply))  # as it comes over the wire

    async def pull(self, name: str) -> str:
        return (await self.service.pull_image(v1.PullImageRequest(image=v1.ImageSpec(image=name)))).image_ref


@pytest.fixture
def images(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def present(reply: v1.ImageStatusResponse) -> bool:
    return bool(reply.image.id)


async def test_pulling_an_image_that_is_there_gives_its_id(images: Fixture) -> None:
    image_id = await images.add("app:1")
    assert await images.pull("app:1") == image_id
    assert await images.pull("docker.io/library/app:1") == image_id
    assert (await images.pull("localhost/host")).startswith("sha256:")


async def test_pulling_where_no_registry_is_reached_tells_what_can_be_done(images: Fixture) -> None:
    folder = images.path / "certs.d" / "docker.io"
    folder.mkdir(parents=True)
    (folder / "hosts.toml").write_text('server = "http://127.0.0.1:1"')
    with pytest.raises(GRPCError) as caught:
        await images.pull("nginx")
    # UNAVAILABLE would be the runtime itself, whose pull may still go on.
    assert caught.value.status is Status.UNKNOWN
    message = str(caught.value.message)
    for part in (
        "docker.io/library/nginx:latest: 127.0.0.1:1 cannot be reached",
        "trikubelet images import FILE",
        "'localhost/host'",
    ):
        assert part in message


async def test_a_pulled_name_is_asked_for_again_and_an_imported_one_is_not(images: Fixture) -> None:
    async with scripted_registry() as registry:
        put = registry.put_image("app", "1")
        name = f"{registry.host}/app:1"
        for _ in range(2):
            assert await images.pull(name) == put.id
        assert [asked.method for asked in registry.asked].count("HEAD") == 2
        registry.asked.clear()
        imported = await images.add(name)
        assert await images.pull(name) == imported
        assert registry.asked == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Answer(404), Status.NOT_FOUND),
        (Answer(401), Status.PERMISSION_DENIED),
        (Answer(403), Status.PERMISSION_DENIED),
        (Answer(500), Status.UNKNOWN),
        (Answer(200, body=b"no manifest"), Status.FAILED_PRECONDITION),
    ],
)
async def test_why_a_pull_failed_is_told_by_the_status(images: Fixture, answer: Answer, status: Status) -> None:
    async with scripted_registry() as registry:
        registry.guard = lambda asked: answer
        with pytest.raises(GRPCError) as caught:
            await images.pull(f"{registry.host}/app:1")
    assert caught.value.status is status
    assert str(caught.value.message).startswith(f"failed to pull image {registry.host}/app:1: ")


async def test_the_requests_credentials_are_shown(images: Fixture) -> None:
    async with scripted_registry() as registry:
        put = registry.put_image("app", "1")
        registry.guard = ask_for_password
        spec = v1.ImageSpec(image=f"{registry.host}/app:1")
        for auth in (
            v1.AuthConfig(username="ali", password="open sesame"),
            v1.AuthConfig(auth="YWxpOm9wZW4gc2VzYW1l", server_address=f"https://{registry.host}/v1/"),
        ):
            reply = await images.service.pull_image(v1.PullImageRequest(image=spec, auth=auth))
            assert reply.image_ref == put.id
        for auth in (
            v1.AuthConfig(),
            v1.AuthConfig(username="ali", password="wrong"),
            v1.AuthConfig(username="ali", password="open sesame", server_address="another.example"),
        ):
            with pytest.raises(GRPCError, match="pull access denied"):
                await images.service.pull_image(v1.PullImageRequest(image=spec, auth=auth))


@pytest.mark.parametrize("name", ["", "Not A Name", "a//b"])
async def test_pulling_what_is_no_name_is_an_invalid_argument(images: Fixture, name: str) -> None:
    with pytest.raises(GRPCError) as caught:
        await images.pull(name)
    assert caught.value.status is Status.INVALID_ARGUMENT


async def test_the_status_of_an_absent_image_is_empty(images: Fixture) -> None:
    reply = await images.status("nginx", verbose=True)
    assert not present(reply)
    assert reply.info == {}


async def test_the_status_tells_names_size_and_pin(images: Fixture) -> None:
    image_id = await images.add("app:1")
    image = (await images.status("app:1")).image
    assert (image.id, image.repo_tags, image.pinned) == (image_id, ["docker.io/library/app:1"], False)
    assert image.size == len("app:1")
    assert (await images.status("localhost/host")).image.pinned
    assert (await images.status(image_id)).image == image


@pytest.mark.parametrize(
    ("user", "uid", "username"),
    [
        ("", None, ""),
        ("0", 0, ""),
        ("1000:1000", 1000, ""),
        ("app:staff", None, "app"),
        ("٣", None, "٣"),
        ("2147483648", None, "2147483648"),
        ("9" * 5000, None, "9" * 5000),
    ],
)
async def test_the_images_user_is_told_by_number_or_by_name(
    images: Fixture, user: str, uid: int | None, username: str
) -> None:
    await images.add("app:1", User=user)
    image = (await images.status("app:1")).image
    assert image.username == username
    # Number 0 must arrive as 0, and no number as none: the kubelet checks runAsNonRoot with it.
    assert (image.uid.value if image.is_set("uid") else None) == uid


async def test_the_verbose_status_holds_the_image_configuration(images: Fixture) -> None:
    await images.add("app:1", Cmd=["run"])
    info = json.loads((await images.status("app:1", verbose=True)).info["info"])
    assert info["imageSpec"]["config"]["Cmd"] == ["run"]


async def test_the_list_holds_every_image_or_those_asked_for(images: Fixture) -> None:
    image_id = await images.add("app:1")
    reply = await images.service.list_images(v1.ListImagesRequest())
    assert [image.repo_tags for image in reply.images] == [["localhost/host:latest"], ["docker.io/library/app:1"]]
    other_id = await images.add("app:2")
    await images.add("application:1")
    digest = reply.images[1].repo_digests[0]
    for name, ids in (
        ("app:1", [image_id]),
        ("app", [other_id, image_id]),
        ("docker.io/library/app", [other_id, image_id]),
        (image_id[7:20], [image_id]),
        (digest, [image_id]),
        ("app:3", []),
        ("nginx", []),
        ("No Name", []),
    ):
        wanted = v1.ImageFilter(image=v1.ImageSpec(image=name))
        reply = await images.service.list_images(v1.ListImagesRequest(filter=wanted))
        assert [image.id for image in reply.images] == ids


async def test_the_stream_holds_each_image_once(images: Fixture) -> None:
    await images.add("app:1")
    streamed = [
        image.id async for part in images.service.stream_images(v1.StreamImagesRequest()) for image in part.images
    ]
    listed = [image.id for image in (await images.service.list_images(v1.ListImagesRequest())).images]
    assert streamed == listed


async def test_removing_is_idempotent_but_not_for_images_in_use_or_the_host(images: Fixture) -> None:
    image_id = await images.add("app:1")
    images.in_use.append(image_id)
    for name, reason in (("app:1", "container c1"), ("localhost/host", "cannot be removed")):
        with pytest.raises(GRPCError, match=reason) as caught:
            await images.service.remove_image(v1.RemoveImageRequest(image=v1.ImageSpec(image=name)))
        assert caught.value.status is Status.FAILED_PRECONDITION
    images.in_use.clear()
    for _ in range(2):
        await images.service.remove_image(v1.RemoveImageRequest(image=v1.ImageSpec(image=image_id)))
    assert not present(await images.status("app:1"))


async def test_the_file_system_info_tells_what_the_images_take(images: Fixture) -> None:
    await images.add("app:1")
    reply = await images.service.image_fs_info(v1.ImageFsInfoRequest())
    (usage,) = reply.image_filesystems
    assert usage.fs_id.mountpoint == str(images.path / "store")
    assert usage.used_bytes.value > 0
    assert usage.inodes_used.value == 3
    assert usage.timestamp >= EPOCH.timestamp() * 1e9
    assert reply.container_filesystems == [usage]


async def test_a_pull_that_its_caller_gives_up_leaves_nothing(images: Fixture) -> None:
    async with scripted_registry() as registry, trio.open_nursery() as nursery:
        put = registry.put_image("app", "1")
        path = f"/v2/app/blobs/{put.layers[0]}"
        registry.documents[path] = attrs.evolve(registry.documents[path], pause=60)

        async def connect() -> UnixStream:
            ours, theirs = socket.socketpair()
            nursery.start_soon(Server([images.service]).serve_stream, UnixStream(theirs))
            return UnixStream(ours)

        async with Channel(connect) as channel:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_when, scope, lambda: bool(registry.requests(path)))
                await ImageClient(channel).pull_image(v1.ImageSpec(image=f"{registry.host}/app:1"))
            assert scope.cancelled_caught
            with trio.fail_after(PATIENCE):
                while images.puller.progress():
                    await trio.sleep(0.01)
            assert list((images.path / "store" / "staging").iterdir()) == []
        nursery.cancel_scope.cancel()


async def cancel_when(scope: trio.CancelScope, condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)
    scope.cancel()


async def test_a_pull_is_told_of_in_the_log_while_it_lasts(images: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trikubelet.embedded.registry.puller._PROGRESS_PERIOD", 0.05)
    async with scripted_registry() as registry:
        put = registry.put_image("app", "1")
        path = f"/v2/app/blobs/{put.layers[0]}"
        registry.documents[path] = attrs.evolve(registry.documents[path], pause=0.3)
        with capture_logs() as told:
            await images.pull(f"{registry.host}/app:1")
    size = len(registry.documents[path].body)
    assert f"0B of {size}B, 0 of 1 layers unpacked" in {line.get("progress") for line in told}
    assert told[-1]["event"] == "image pulled"
