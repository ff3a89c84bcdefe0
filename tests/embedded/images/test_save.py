"""Saved images are the same ones wherever they are imported, in this runtime and in containerd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.embedded.images.archives import (
    OTHER_ARCHITECTURE,
    Entry,
    docker_archive,
    layer,
    oci_archive,
)
from tests.embedded.registry.conftest import PullFixture
from tests.embedded.registry.scripted_registry import scripted_registry, this_platform
from trikubelet.clock import SystemClock
from trikubelet.embedded.images.model import LayerFormat
from trikubelet.embedded.images.save import SavedName
from trikubelet.embedded.images.store import ImageStore

if TYPE_CHECKING:
    from tests.containerd_node import ContainerdNode
    from trikubelet.embedded.images.model import StoredImage

LAYERS = [layer("one", Entry("two", b"first")), layer(Entry("two", b"second"), Entry(".wh.one"))]
FORMATS = (LayerFormat.FLAT, pytest.param(LayerFormat.OVERLAY, marks=pytest.mark.root))


@attrs.frozen
class Shop:
    """Two stores, and what goes between them."""

    folder: Path
    layer_format: LayerFormat

    def store(self, name: str) -> ImageStore:
        return ImageStore(self.folder / name, clock=SystemClock(), layer_format=self.layer_format, host=False)

    async def imported(self, archive: Path, into: str = "first") -> StoredImage:
        store = self.store(into)
        (name,) = await store.import_archive(archive)
        image = store.resolve(name)
        assert image is not None
        return image

    async def saved(self, image: StoredImage, store: str = "first") -> Path:
        path = self.folder / "saved.tar"
        with path.open("wb") as out:
            await self.store(store).save([SavedName(image, image.repo_tags)], out)
        return path


@pytest.fixture(params=FORMATS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    return Shop(tmp_path, request.param)


async def test_an_imported_image_keeps_its_id_and_digest(shop: Shop) -> None:
    before = await shop.imported(oci_archive(shop.folder / "image.tar", LAYERS, "example.com/app:1"))
    after = await shop.imported(await shop.saved(before), "second")
    assert (after.id, after.repo_tags) == (before.id, before.repo_tags)
    assert after.repo_digests == before.repo_digests != ()
    assert sorted(path.name for path in after.layers[-1].iterdir()) == sorted(
        path.name for path in before.layers[-1].iterdir()
    )
    once_more = await shop.imported(await shop.saved(after, "second"), "third")
    assert (once_more.id, once_more.repo_digests) == (after.id, after.repo_digests)


async def test_one_of_docker_keeps_its_id_and_gets_a_manifest(shop: Shop) -> None:
    before = await shop.imported(docker_archive(shop.folder / "image.tar", LAYERS, ["example.com/app:1"]))
    assert before.repo_digests == ()
    after = await shop.imported(await shop.saved(before), "second")
    assert after.id == before.id
    assert len(after.repo_digests) == 1


async def test_a_pulled_image_keeps_the_digest_of_what_its_tag_meant(shop: Shop) -> None:
    pulls = PullFixture.make(shop.folder, layer_format=shop.layer_format)
    async with scripted_registry() as registry:
        ours = registry.put_image("app", "", LAYERS)
        other = registry.put_image("app", "", [layer("other")], architecture=OTHER_ARCHITECTURE)
        index = registry.put_index(
            "app", "1", (other, this_platform(architecture=OTHER_ARCHITECTURE)), (ours, this_platform())
        )
        before = await pulls.pull(f"{registry.host}/app:1")
        assert before.repo_digests == (f"{registry.host}/app@{index}",)
        after = await shop.imported(await shop.saved(before, "store"), "second")
        assert after.id == before.id
        assert after.repo_digests == (*before.repo_digests, f"{registry.host}/app@{ours.digest}")


async def test_what_an_earlier_release_brought_in_is_saved_with_other_digests(shop: Shop) -> None:
    before = await shop.imported(oci_archive(shop.folder / "image.tar", LAYERS, "example.com/app:1"))
    (record,) = (shop.folder / "first" / "images").iterdir()
    document = json.loads(record.read_text())
    del document["documents"]
    record.write_text(json.dumps(document))
    old = shop.store("first").resolve(before.id)
    assert old is not None
    after = await shop.imported(await shop.saved(old), "second")
    assert after.repo_tags == before.repo_tags
    assert sorted(path.name for path in after.layers[-1].iterdir()) == sorted(
        path.name for path in before.layers[-1].iterdir()
    )


async def test_layers_that_were_there_otherwise_packed_leave_the_id_as_it_is(shop: Shop) -> None:
    await shop.imported(docker_archive(shop.folder / "image.tar", LAYERS, ["example.com/app:1"]))
    before = await shop.imported(oci_archive(shop.folder / "other.tar", LAYERS, "example.com/app:1"))
    assert before.repo_digests != ()
    after = await shop.imported(await shop.saved(before), "second")
    assert after.id == before.id
    assert after.repo_digests != before.repo_digests


@pytest.mark.containerd
async def test_containerd_calls_them_by_the_same_ids_and_digests(tmp_path: Path, containerd: ContainerdNode) -> None:
    shop = Shop(tmp_path, LayerFormat.OVERLAY)
    archive = oci_archive(tmp_path / "image.tar", LAYERS, "registry.example/saved:1")
    image = await shop.imported(archive)
    for path in (archive, await shop.saved(image)):
        await trio.to_thread.run_sync(containerd.ctr, "images", "import", str(path))
        try:
            listed = containerd.ctr("images", "list", "name==registry.example/saved:1")
            assert image.repo_digests[0].partition("@")[2] in listed
            content = containerd.ctr("content", "ls", "-q")
            assert image.id in content.split()
        finally:
            containerd.ctr("images", "remove", "--sync", "registry.example/saved:1")
