"""An image comes into the store whole or not at all, is found by all its names, and leaves nothing when it goes."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.embedded.images.archives import (
    OTHER_ARCHITECTURE,
    Entry,
    OciLayout,
    digest,
    directory,
    docker_archive,
    image_spec,
    layer,
    oci_archive,
    pack,
)
from tests.embedded.images.hostile_archives import entry, write_layer_archive
from trikubelet.clock import SystemClock
from trikubelet.embedded.images.errors import (
    ArchiveError,
    ImageInUseError,
    ImagePinnedError,
    InvalidReferenceError,
)
from trikubelet.embedded.images.model import LayerFormat, StoredImage, UnpackLimits
from trikubelet.embedded.images.store import ImageStore

if TYPE_CHECKING:
    from pathlib import Path

BASE = layer(directory("bin"), Entry("bin/sh", b"#!", mode=0o755), "etc/os")
TOP = layer("app/main", Entry("etc/.wh.os"))
FORMATS = [
    pytest.param(LayerFormat.FLAT, id="flat"),
    pytest.param(LayerFormat.OVERLAY, id="overlay", marks=pytest.mark.root),
]


@pytest.fixture(params=FORMATS)
def layer_format(request: pytest.FixtureRequest) -> LayerFormat:
    return LayerFormat(request.param)


@pytest.fixture
def store(tmp_path: Path, layer_format: LayerFormat) -> ImageStore:
    return open_store(tmp_path, layer_format)


def open_store(tmp_path: Path, layer_format: LayerFormat | None = None, **options: Any) -> ImageStore:
    return ImageStore(tmp_path / "store", clock=SystemClock(), layer_format=layer_format, **options)


def found(store: ImageStore, reference: str) -> StoredImage:
    image = store.resolve(reference)
    assert image is not None, reference
    return image


def leftovers(tmp_path: Path) -> list[str]:
    """Everything that the store holds but its locks and empty folders."""
    return [
        str(path) for path in (tmp_path / "store").rglob("*") if path.suffix != ".lock" and path.parent.name != "store"
    ]


async def test_an_image_is_found_by_name_digest_id_and_the_start_of_its_id(store: ImageStore, tmp_path: Path) -> None:
    layout = OciLayout()
    manifest = layout.manifest([BASE, TOP], {"Cmd": ["sh"]})
    layout.add(manifest, "busybox:1.36")
    assert await store.import_archive(layout.write(tmp_path / "a.tar")) == ("docker.io/library/busybox:1.36",)
    image = found(store, "busybox:1.36")
    assert image.id == digest(image_spec([BASE, TOP], {"Cmd": ["sh"]}))
    assert image.repo_tags == ("docker.io/library/busybox:1.36",)
    assert image.repo_digests == (f"docker.io/library/busybox@{manifest['digest']}",)
    hex_id = image.id.removeprefix("sha256:")
    for text in (image.id, hex_id, hex_id[:12], f"sha256:{hex_id[:20]}", f"busybox@{manifest['digest']}"):
        assert store.resolve(text) == image
    for text in (hex_id[:11], "busybox", "busybox:1.37", f"other@{manifest['digest']}", "", "NO WAY", "0" * 64):
        assert store.resolve(text) is None


async def test_the_configuration_is_what_the_runtime_needs(store: ImageStore, tmp_path: Path) -> None:
    config = {
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ["echo hi"],
        "Env": ["PATH=/bin", "A=b=c"],
        "WorkingDir": "/app",
        "User": "1000:1000",
        "StopSignal": "SIGQUIT",
        "Labels": {"a": "b"},
        "Volumes": {"/data": {}},
        "ExposedPorts": {"80/tcp": {}},
    }
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "app", config))
    got = found(store, "app").config
    assert (got.entrypoint, got.cmd, got.env) == (("/bin/sh", "-c"), ("echo hi",), ("PATH=/bin", "A=b=c"))
    assert (got.working_dir, got.user, got.stop_signal) == ("/app", "1000:1000", "SIGQUIT")
    assert (dict(got.labels), got.volumes) == ({"a": "b"}, ("/data",))


async def test_layers_are_unpacked_lowest_first_and_deletions_hold(store: ImageStore, tmp_path: Path) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE, TOP], "app"))
    image = found(store, "app")
    assert (image.layers[0] / "bin/sh").read_bytes() == b"#!"
    assert (image.layers[-1] / "app/main").read_text() == "app/main"
    assert not (image.layers[-1] / "etc/os").is_file()
    assert len(image.layers) == (2 if image.layer_format is LayerFormat.OVERLAY else 1)
    assert image.size == len(b"#!" + b"etc/os" + b"app/main")


@pytest.mark.parametrize("kind", ["oci", "oci gzipped", "docker", "docker before 1.10"])
async def test_every_kind_of_archive_gives_the_same_files(store: ImageStore, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "image.tar"
    match kind:
        case "oci":
            oci_archive(path, [BASE, TOP], "app:1")
        case "oci gzipped":
            oci_archive(path, [BASE, TOP], "app:1", gzipped=True)
        case "docker":
            docker_archive(path, [BASE, TOP], ["app:1"])
        case _:
            files = {
                "base/layer.tar": BASE,
                "base/json": b'{"id": "base"}',
                "top/layer.tar": TOP,
                "top/json": b'{"id": "top", "parent": "base", "config": {"Cmd": ["sh"]}}',
                "repositories": b'{"app": {"1": "top"}}',
            }
            pack(path, files)
    assert await store.import_archive(path) == ("docker.io/library/app:1",)
    layers = found(store, "app:1").layers
    assert (layers[-1] / "app/main").is_file()
    assert (layers[0] / "bin/sh").is_file()


async def test_docker_save_of_several_images_with_a_shared_linked_layer(store: ImageStore, tmp_path: Path) -> None:
    first, second = image_spec([BASE]), image_spec([BASE, TOP])
    manifest = [
        {"Config": f"{digest(first)[7:]}.json", "RepoTags": ["one:1", "uno:1"], "Layers": ["x/layer.tar"]},
        {"Config": f"{digest(second)[7:]}.json", "RepoTags": None, "Layers": ["y/layer.tar", "z/layer.tar"]},
    ]
    path = pack(
        tmp_path / "a.tar",
        {
            "x/layer.tar": BASE,
            "z/layer.tar": gzip.compress(TOP),
            f"{digest(first)[7:]}.json": first,
            f"{digest(second)[7:]}.json": second,
            "manifest.json": json.dumps(manifest).encode(),
        },
    )
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("y/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../x/layer.tar"
        tar.addfile(link)
    assert await store.import_archive(path) == ("docker.io/library/one:1", "docker.io/library/uno:1")
    assert found(store, "one:1") == found(store, "uno:1")
    nameless = found(store, digest(second))
    assert (nameless.repo_tags, nameless.name) == ((), digest(second))


async def test_of_an_index_of_platforms_this_machines_image_is_taken(store: ImageStore, tmp_path: Path) -> None:
    layout = OciLayout()
    ours = layout.manifest([BASE])
    other = layout.manifest([TOP], architecture=OTHER_ARCHITECTURE)
    attestation = layout.manifest([b""], architecture="unknown", os="unknown")
    missing = {**ours, "digest": "sha256:" + "0" * 64, "platform": {"os": "linux", "architecture": "arm"}}
    platforms = [
        {**other, "platform": {"os": "linux", "architecture": OTHER_ARCHITECTURE}},
        {**attestation, "platform": {"os": "unknown", "architecture": "unknown"}},
        missing,
        {**ours, "platform": {"os": "linux", "architecture": json.loads(image_spec([]))["architecture"]}},
    ]
    index = json.dumps({"schemaVersion": 2, "manifests": platforms}).encode()
    layout.add(layout.blob(index, "application/vnd.oci.image.index.v1+json"), "app:1")
    await store.import_archive(layout.write(tmp_path / "a.tar"))
    image = found(store, "app:1")
    assert image.id == digest(image_spec([BASE]))
    repository = "docker.io/library/app"
    assert image.repo_digests == (f"{repository}@{digest(index)}", f"{repository}@{ours['digest']}")
    assert len(store.list()) == 2


@pytest.mark.parametrize("kind", ["oci", "docker"])
async def test_an_image_of_another_platform_is_refused_with_both_names(
    store: ImageStore, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "a.tar"
    if kind == "oci":
        layout = OciLayout()
        layout.add(layout.manifest([BASE], architecture=OTHER_ARCHITECTURE), "app:1")
        layout.write(path)
    else:
        spec = image_spec([BASE], architecture=OTHER_ARCHITECTURE)
        manifest = json.dumps([{"Config": "config.json", "RepoTags": ["app:1"], "Layers": ["l.tar"]}]).encode()
        pack(path, {"manifest.json": manifest, "config.json": spec, "l.tar": BASE})
    with pytest.raises(ArchiveError, match=f"linux/{OTHER_ARCHITECTURE}.*this machine is linux/"):
        await store.import_archive(path)
    assert leftovers(tmp_path) == []


async def test_a_bare_tag_of_an_oci_layout_gets_the_files_name(store: ImageStore, tmp_path: Path) -> None:
    layout = OciLayout()
    layout.descriptors.append({**layout.manifest([BASE]), "annotations": {"org.opencontainers.image.ref.name": "v1.2"}})
    assert await store.import_archive(layout.write(tmp_path / "My App.tar.gz")) == ("localhost/my-app:v1.2",)


async def test_an_image_without_a_name_is_known_by_its_id_and_may_be_given_one(
    store: ImageStore, tmp_path: Path
) -> None:
    path = oci_archive(tmp_path / "a.tar", [BASE], "")
    image_id = digest(image_spec([BASE]))
    assert await store.import_archive(path) == (image_id,)
    assert await store.import_archive(path, name="mine:2") == ("docker.io/library/mine:2",)
    assert found(store, "mine:2").id == image_id
    assert len(store.list()) == 2


async def test_a_name_moves_to_the_newer_image(store: ImageStore, tmp_path: Path) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "app:1"))
    await store.import_archive(oci_archive(tmp_path / "b.tar", [TOP], "app:1"))
    assert found(store, "app:1").id == digest(image_spec([TOP]))
    assert found(store, digest(image_spec([BASE]))).repo_tags == ()


async def test_shared_layers_stay_until_the_last_image_goes(store: ImageStore, tmp_path: Path) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "one"))
    await store.import_archive(oci_archive(tmp_path / "b.tar", [BASE, TOP], "two"))
    shared, two = found(store, "one").layers[0], found(store, "two")
    if two.layer_format is LayerFormat.OVERLAY:
        assert two.layers[0] == shared
    assert await store.remove("two") == two
    assert (shared / "bin/sh").is_file()
    assert not two.layers[-1].exists()
    await store.remove("one")
    assert not shared.exists()
    assert leftovers(tmp_path) == []
    assert await store.remove("one") is None


async def test_an_image_in_use_stays(store: ImageStore, tmp_path: Path) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "one"))
    image = found(store, "one")
    with pytest.raises(ImageInUseError, match="c1"):
        await store.remove("one", users=lambda image_id: ["c1"] if image_id == image.id else [])
    assert store.resolve("one") == image


async def test_the_host_image_is_always_there_and_cannot_be_removed_or_replaced(
    store: ImageStore, tmp_path: Path
) -> None:
    host = found(store, "localhost/host")
    assert host.is_host
    assert host.pinned
    assert [str(path) for path in host.layers] == ["/"]
    assert store.resolve(host.id) == host
    assert store.list()[0] == host
    with pytest.raises(ImagePinnedError):
        await store.remove("localhost/host")
    with pytest.raises(ImagePinnedError):
        await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "localhost/host:2"))
    assert leftovers(tmp_path) == []


async def test_another_process_sees_what_was_imported_and_removed(store: ImageStore, tmp_path: Path) -> None:
    other = open_store(tmp_path)
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "one"))
    assert other.resolve("one") == store.resolve("one")
    await other.remove("one")
    assert store.resolve("one") is None


async def test_two_imports_of_one_archive_at_once_give_one_image(store: ImageStore, tmp_path: Path) -> None:
    path = oci_archive(tmp_path / "a.tar", [BASE, TOP], "one")
    other = open_store(tmp_path, store.layer_format)
    async with trio.open_nursery() as nursery:
        for importer in (store, store, other):
            nursery.start_soon(importer.import_archive, path)
        with trio.fail_after(20):
            while (image := store.resolve("one")) is None:  # a reader meanwhile sees a whole image or none
                await trio.lowlevel.checkpoint()
        assert all(path.is_dir() for path in image.layers)
    image = found(store, "one")
    assert len(store.list()) == 2
    assert len(list((tmp_path / "store" / "layers").iterdir())) == len(image.layers)
    assert list((tmp_path / "store" / "staging").iterdir()) == []


async def test_a_cancelled_import_leaves_nothing(store: ImageStore, tmp_path: Path) -> None:
    path = tmp_path / "one.tar"
    write_layer_archive(path, (entry(f"f{number}") for number in range(20_000)))
    with trio.move_on_after(0.05) as scope:
        await store.import_archive(path)
    assert scope.cancelled_caught
    assert leftovers(tmp_path) == []
    assert store.resolve("localhost/one:1") is None


def named_evil(top: Path) -> list[Path]:
    return list(top.rglob("evil"))


def evil_layer(path: Path) -> Path:
    return oci_archive(path, [BASE, layer("good", Entry("../../evil", b"x"))])


def evil_archive_entry(path: Path) -> Path:
    return pack(path, {"index.json": b"{}", "../../evil": b"x"})


def wrong_layer(path: Path) -> Path:
    layout = OciLayout()
    layout.add(layout.manifest([BASE]), "app")
    blob = next(name for name, data in layout.files.items() if data == gzip.compress(BASE, mtime=0))
    layout.files[blob] = gzip.compress(TOP)
    return layout.write(path)


def wrong_diff_id(path: Path) -> Path:
    spec = image_spec([TOP])
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["app:1"], "Layers": ["l.tar"]}]).encode()
    return pack(path, {"manifest.json": manifest, "c.json": spec, "l.tar": BASE})


def wrong_config(path: Path) -> Path:
    layout = OciLayout()
    layout.add(layout.manifest([BASE]), "app")
    blob = next(name for name, data in layout.files.items() if b"rootfs" in data)
    layout.files[blob] = layout.files[blob].replace(b"linux", b"Linux")
    return layout.write(path)


def missing_layer(path: Path) -> Path:
    layout = OciLayout()
    layout.add(layout.manifest([BASE]), "app")
    del layout.files[next(name for name, data in layout.files.items() if data == gzip.compress(BASE, mtime=0))]
    return layout.write(path)


def path_as_diff_id(path: Path) -> Path:
    spec = json.dumps({"os": "linux", "rootfs": {"diff_ids": ["../../../evil"]}}).encode()
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["app:1"], "Layers": ["l.tar"]}]).encode()
    return pack(path, {"manifest.json": manifest, "c.json": spec, "l.tar": BASE})


def path_as_digest(path: Path) -> Path:
    index = {"manifests": [{"mediaType": "x", "digest": "sha256:../../etc/passwd"}]}
    return pack(path, {"index.json": json.dumps(index).encode()})


def no_image(path: Path) -> Path:
    return pack(path, {"readme": b"hello"})


def no_tar(path: Path) -> Path:
    path.write_bytes(b"hello " * 500)
    return path


def truncated(path: Path) -> Path:
    oci_archive(path, [BASE, TOP])
    path.write_bytes(path.read_bytes()[:3000])
    return path


def truncated_gzip(path: Path) -> Path:
    oci_archive(path, [BASE, TOP], gzipped=True)
    path.write_bytes(path.read_bytes()[:-200])
    return path


def deep_json(path: Path) -> Path:
    return pack(path, {"index.json": b"[" * 50_000})


def wrong_types(path: Path) -> Path:
    return oci_archive(path, [BASE], config={"Cmd": "not a list"})


def bad_name(path: Path) -> Path:
    return oci_archive(path, [BASE], "Not A Name")


def zstd_layer(path: Path) -> Path:
    spec = image_spec([BASE])
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["app:1"], "Layers": ["l.tar"]}]).encode()
    return pack(path, {"manifest.json": manifest, "c.json": spec, "l.tar": b"\x28\xb5\x2f\xfd" + b"x" * 50})


def a_chart(path: Path) -> Path:
    layout = OciLayout()
    config = layout.blob(b"{}", "application/vnd.cncf.helm.config.v1+json")
    document = json.dumps({"schemaVersion": 2, "config": config, "layers": []}).encode()
    layout.add(layout.blob(document, "application/vnd.oci.image.manifest.v1+json"), "chart")
    return layout.write(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (evil_layer, r"entry '\.\./\.\./evil'"),
        (evil_archive_entry, r"entry '\.\./\.\./evil'"),
        (wrong_layer, "has the digest sha256:.*expected sha256:"),
        (wrong_diff_id, "the image's configuration says sha256:"),
        (wrong_config, "has the digest sha256:"),
        (missing_layer, "lacks the file 'blobs/sha256/"),
        (path_as_diff_id, "expected a sha256 or sha512 digest in rootfs.diff_ids"),
        (path_as_digest, "expected a sha256 or sha512 digest in a descriptor"),
        (no_image, "is no image archive: expected"),
        (no_tar, "damaged or not a tar archive"),
        (truncated, "entry|lacks|damaged"),
        (truncated_gzip, "damaged"),
        (deep_json, "entry 'index.json': it has more than 100 objects and lists in one another"),
        (wrong_types, "'config.Cmd', got str"),
        (bad_name, "'Not A Name' is no image reference"),
        (zstd_layer, "zstd"),
        (a_chart, "no container image"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_bad_archive_is_refused_with_its_reason_and_leaves_nothing(
    store: ImageStore, tmp_path: Path, make: Any, message: str
) -> None:
    with pytest.raises((ArchiveError, InvalidReferenceError), match=message):
        await store.import_archive(make(tmp_path / "bad.tar"))
    assert leftovers(tmp_path) == []
    assert len(store.list()) == 1
    assert named_evil(tmp_path) == []


@pytest.mark.parametrize("gzipped", [False, True], ids=["layer", "archive"])
async def test_a_decompression_bomb_is_stopped_at_the_limit(tmp_path: Path, gzipped: bool) -> None:
    store = open_store(tmp_path, LayerFormat.FLAT, limits=UnpackLimits(max_bytes=100_000, max_entries=10))
    path = oci_archive(tmp_path / "a.tar", [layer(Entry("zeros", bytes(300_000)))])
    if gzipped:
        pack(path, {"index.json": b"{}", "zeros": bytes(300_000)}, gzipped=True)
    with pytest.raises(ArchiveError, match=r"more than 1\d{5} bytes"):
        await store.import_archive(path)
    assert leftovers(tmp_path) == []


async def test_a_missing_file_is_an_os_error(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await store.import_archive(tmp_path / "none.tar")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"{}", b'{"version": 99}', b"\xff\xfe"],
    ids=["empty", "cut", "list", "object", "version", "binary"],
)
async def test_a_corrupt_record_is_moved_aside_and_the_others_stay(
    store: ImageStore, tmp_path: Path, damage: bytes
) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "one"))
    await store.import_archive(oci_archive(tmp_path / "b.tar", [TOP], "two"))
    record = tmp_path / "store" / "images" / f"{found(store, 'one').id[7:]}.json"
    record.write_bytes(damage)
    assert store.resolve("one") is None
    assert store.resolve("two") is not None
    assert not record.exists()
    assert record.with_suffix(".corrupt").read_bytes() == damage
    await store.import_archive(tmp_path / "a.tar")
    assert store.resolve("one") is not None


def record_of(tmp_path: Path, image: StoredImage) -> Path:
    return tmp_path / "store" / "images" / f"{image.id[7:]}.json"


def layer_names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "store" / "layers").iterdir()}


async def test_what_only_new_images_have_to_keep_to_is_not_asked_of_those_in_the_store(
    store: ImageStore, tmp_path: Path
) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "one"))
    record, before = record_of(tmp_path, found(store, "one")), layer_names(tmp_path)
    document = json.loads(record.read_bytes())
    document["spec"]["config"] = {"Labels": {"bill-of-materials": "x" * 600_000}}
    record.write_text(json.dumps(document))
    assert await store.collect_garbage() == 0
    assert len(found(store, "one").config.labels["bill-of-materials"]) == 600_000
    assert layer_names(tmp_path) == before


async def test_a_new_image_does_not_keep_much_in_memory(store: ImageStore, tmp_path: Path) -> None:
    spec = image_spec([BASE], {"Labels": {"bill-of-materials": "x" * 600_000}})
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["app:1"], "Layers": ["l.tar"]}]).encode()
    with pytest.raises(ArchiveError, match="'config' has 600023 characters"):
        await store.import_archive(pack(tmp_path / "a.tar", {"manifest.json": manifest, "c.json": spec, "l.tar": BASE}))


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"{}", b'{"layers": 5}', b'{"layers": ["a/b"]}', b"[" * 5000 + b"]" * 5000],
    ids=["empty", "cut", "object", "number", "no-name", "deep"],
)
async def test_layers_stay_as_long_as_a_record_that_was_moved_aside_may_mean_them(
    store: ImageStore, tmp_path: Path, damage: bytes
) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "one"))
    await store.import_archive(oci_archive(tmp_path / "b.tar", [TOP], "two"))
    record, before = record_of(tmp_path, found(store, "one")), layer_names(tmp_path)
    record.write_bytes(damage)
    assert await store.collect_garbage() == 0
    assert record.with_suffix(".corrupt").exists()
    assert await store.remove("two") is not None
    assert layer_names(tmp_path) == before
    # The image that is imported again has the same layers, and when it is removed all may go.
    await store.import_archive(tmp_path / "a.tar")
    await store.remove("one")
    assert layer_names(tmp_path) == set()


async def test_of_a_record_that_was_moved_aside_the_layers_are_known_if_it_tells_them(
    store: ImageStore, tmp_path: Path
) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "one"))
    await store.import_archive(oci_archive(tmp_path / "b.tar", [TOP], "two"))
    record, kept = record_of(tmp_path, found(store, "one")), {found(store, "one").layers[0].parent.name}
    document = json.loads(record.read_bytes())
    record.write_text(json.dumps({**document, "version": 99}))
    await store.remove("two")
    assert store.resolve("one") is None
    assert layer_names(tmp_path) == kept


async def test_one_record_that_is_too_deep_does_not_break_the_store(store: ImageStore, tmp_path: Path) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "one"))
    await store.import_archive(oci_archive(tmp_path / "b.tar", [TOP], "two"))
    record = record_of(tmp_path, found(store, "one"))
    text = record.read_text()
    record.write_text(text.replace('"spec": {', '"spec": {"x": ' + "[" * 990 + "]" * 990 + ", ", 1))
    assert [image.name for image in store.list() if not image.is_host] == [found(store, "two").name]
    assert store.resolve("one") is None
    assert await store.remove("two") is not None


@pytest.mark.parametrize(("depth", "taken"), [(98, True), (100, False), (978, False)])
async def test_a_deeply_nested_configuration_is_refused_before_it_is_in_the_store(
    store: ImageStore, tmp_path: Path, depth: int, taken: bool
) -> None:
    nested = '["' + "[" * depth + '"]'
    nested = "[" * depth + nested + "]" * depth
    spec = image_spec([BASE]).replace(b'"config"', f'"x": {nested}, "config"'.encode(), 1)
    manifest = json.dumps([{"Config": "c.json", "RepoTags": ["app:1"], "Layers": ["l.tar"]}]).encode()
    path = pack(tmp_path / "a.tar", {"manifest.json": manifest, "c.json": spec, "l.tar": BASE})
    if taken:
        assert await store.import_archive(path)
        return
    with pytest.raises(ArchiveError, match=r"entry 'c\.json': it has more than 100 objects and lists in one another"):
        await store.import_archive(path)
    assert leftovers(tmp_path) == []


async def test_each_image_of_an_archive_has_the_whole_memory_of_an_import(
    tmp_path: Path, layer_format: LayerFormat
) -> None:
    store = open_store(tmp_path, layer_format, limits=UnpackLimits(max_kept_bytes=70_000))
    layout = OciLayout()
    for number in range(8):
        links = [Entry(f"{number}-{index}", link="file", hard=True) for index in range(200)]
        layout.add(layout.manifest([layer("file", *links)]), f"example.com/app:{number}")
    assert len(await store.import_archive(layout.write(tmp_path / "a.tar"))) == 8


async def test_what_a_killed_import_left_is_collected(store: ImageStore, tmp_path: Path) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [BASE], "one"))
    kept = set(leftovers(tmp_path))
    (tmp_path / "store" / "staging" / "import-dead" / "part").mkdir(parents=True)
    (tmp_path / "store" / "layers" / "sha256-orphan" / "fs").mkdir(parents=True)
    assert await store.collect_garbage() == 2
    assert set(leftovers(tmp_path)) == kept


async def test_usage_is_that_of_the_layers(store: ImageStore, tmp_path: Path) -> None:
    assert store.usage().used_bytes == 0
    await store.import_archive(oci_archive(tmp_path / "a.tar", [layer(Entry("big", os.urandom(50_000)))], "one"))
    assert store.usage().used_bytes >= 50_000
    assert store.usage().inodes_used == 3
    await store.remove("one")
    assert store.usage().used_bytes == 0


async def test_only_the_owner_may_look_into_the_store(store: ImageStore, tmp_path: Path) -> None:
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700


async def test_an_image_without_layers_is_an_empty_directory(store: ImageStore, tmp_path: Path) -> None:
    await store.import_archive(oci_archive(tmp_path / "a.tar", [], "nothing"))
    image = found(store, "nothing")
    assert [list(path.iterdir()) for path in image.layers] == [[]]
