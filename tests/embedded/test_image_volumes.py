"""Images as volumes of containers, on every way that the runtime keeps layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from grpclib import GRPCError

from tests.embedded.images.archives import Entry, directory, layer, oci_archive
from trikubelet.rpc.cri import v1

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.runtime_node import Ended, Node

LAYERS = [
    layer(
        directory("data"),
        Entry("data/one", b"first"),
        Entry("data/gone", b"gone"),
        Entry("out", link="/etc"),
        Entry("etc/passwd", b"of the image"),
        Entry("in", link="data"),
        Entry("round", link="round"),
    ),
    layer(
        Entry("data/one", b"second"), Entry("data/.wh.gone"), Entry("data/run", b"#!/bin/sh\necho ran\n", mode=0o755)
    ),
]


def image_mount(path: str = "/volume", image: str = "data:1", sub_path: str = "", **fields: object) -> v1.Mount:
    spec = v1.ImageSpec(image=image)
    mount = v1.Mount(container_path=path, image=spec, image_sub_path=sub_path, readonly=True)
    for name, value in fields.items():
        setattr(mount, name, value)
    return mount


async def run(node: Node, script: str, *mounts: v1.Mount) -> Ended:
    return await node.run(await node.sandbox(), ["sh", "-c", script], mounts=list(mounts))


@pytest.fixture
async def image(node: Node, tmp_path: Path) -> str:
    await node.runtime.images.import_archive(oci_archive(tmp_path / "data.tar", LAYERS, "data:1"))
    found = node.images.resolve("data:1")
    assert found is not None
    return found.id


@pytest.mark.root
async def test_a_volume_shows_the_images_merged_layers(node: Node, image: str) -> None:
    ended = await run(node, "cat /volume/data/one; ls /volume/data; /volume/data/run", image_mount())
    assert (ended.out, ended.err) == ("secondone\nrun\nran\n", "")


@pytest.mark.root
async def test_nobody_writes_to_it(node: Node, image: str) -> None:
    ended = await run(node, "touch /volume/new; mount -o remount,rw /volume; touch /volume/data/new", image_mount())
    assert ended.err.count("Read-only file system") == 2


@pytest.mark.root
async def test_a_folder_of_it_may_be_mounted_alone(node: Node, image: str) -> None:
    ended = await run(
        node,
        "cat /a/one; cat /b/one; cat /c/passwd",
        *(image_mount(f"/{name}", sub_path=sub) for name, sub in (("a", "data"), ("b", "in"), ("c", "out"))),
    )
    assert ended.out == "secondsecondof the image\n"


@pytest.mark.root
@pytest.mark.parametrize("sub_path", ["absent", "data/one", "data/gone", "in/absent", "round"])
async def test_a_folder_that_is_not_there_fails_the_creation(node: Node, image: str, sub_path: str) -> None:
    with pytest.raises(GRPCError, match=f"ImageVolumeMountFailed: .* no folder '{sub_path}'"):
        await node.create(await node.sandbox(), ["true"], mounts=[image_mount(sub_path=sub_path)])


@pytest.mark.root
@pytest.mark.parametrize(
    ("mount", "words"),
    [
        (image_mount(image="absent:1"), "not found"),
        (image_mount(image="localhost/host"), "use a hostPath"),
        (image_mount(readonly=False), "readonly"),
        (image_mount(host_path="/tmp"), "no host path"),
        (image_mount(sub_path="../data"), "a path within the image"),
        (image_mount(sub_path="/data"), "a path within the image"),
    ],
)
async def test_what_cannot_be_mounted_is_told(node: Node, image: str, mount: v1.Mount, words: str) -> None:
    with pytest.raises(GRPCError, match="ImageVolumeMountFailed") as caught:
        await run(node, "true", mount)
    assert words in str(caught.value.message)


@pytest.mark.root
async def test_an_image_that_is_a_volume_is_in_use(node: Node, image: str) -> None:
    container = await node.create(await node.sandbox(), ["true"], mounts=[image_mount()])
    (mount,) = (await node.status(container)).mounts
    assert (mount.image.image, mount.image.image_ref) == ("data:1", image)
    request = v1.RemoveImageRequest(image=v1.ImageSpec(image=image))
    with pytest.raises(GRPCError, match="in use"):
        await node.runtime.image_service.remove_image(request)
    await node.cri.remove_container(v1.RemoveContainerRequest(container_id=container))
    await node.runtime.image_service.remove_image(request)
