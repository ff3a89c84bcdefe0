"""Pulls from a registry that behaves, and from ones that do not."""

from __future__ import annotations

import errno
import gzip
import json
import os
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from tests.embedded.images.archives import OTHER_ARCHITECTURE, Entry, layer, oci_archive
from tests.embedded.registry.conftest import QUICK, PullFixture
from tests.embedded.registry.scripted_registry import (
    Answer,
    Asked,
    ask_for_password,
    from_range,
    scripted_registry,
    this_platform,
)
from trikubelet.embedded.images import disk_space
from trikubelet.embedded.images.model import LayerFormat
from trikubelet.embedded.registry.credentials import Credentials
from trikubelet.embedded.registry.errors import PullError, PullFailure

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.registry.scripted_registry import ScriptedRegistry

NOISE = os.urandom(300_000)


async def failure_of(pulls: PullFixture, name: str) -> PullError:
    """Why a pull fails, and that nothing of it stays."""
    with pytest.raises(PullError) as caught:
        await pulls.pull(name)
    assert pulls.leftovers() == []
    return caught.value


# -- what comes


@pytest.mark.parametrize("packed", [True, False], ids=["compressed", "of no bytes"])
async def test_an_empty_layer_is_pulled(pulls: PullFixture, registry: ScriptedRegistry, packed: bool) -> None:
    pack = gzip.compress if packed else bytes
    registry.put_image("app", "1", [b"", layer("two")], pack)
    image = await pulls.pull(f"{registry.host}/app:1")
    assert [path.name for path in image.layers[-1].iterdir()] == ["two"]


async def test_a_pulled_image_has_its_files_its_id_and_the_digest_of_what_its_tag_means(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    put = registry.put_image("app", "1", [layer("one"), layer("two")])
    image = await pulls.pull(f"{registry.host}/app:1")
    assert image.id == put.id
    assert image.repo_tags == (f"{registry.host}/app:1",)
    assert image.repo_digests == (f"{registry.host}/app@{put.digest}",)
    assert sorted(path.name for path in image.layers[0].iterdir()) == ["one", "two"]
    assert pulls.leftovers() == []


async def test_of_an_index_the_image_for_this_machine_comes_and_the_digest_is_that_of_the_index(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    other = registry.put_image("app", "", [layer("other")], architecture=OTHER_ARCHITECTURE)
    ours = registry.put_image("app", "", [layer("ours")])
    attestation = registry.put_image("app", "", [layer("attestation")])
    index = registry.put_index(
        "app",
        "1",
        (other, this_platform(architecture=OTHER_ARCHITECTURE)),
        (attestation, {"os": "unknown", "architecture": "unknown"}),
        (ours, this_platform()),
    )
    image = await pulls.pull(f"{registry.host}/app:1")
    assert image.id == ours.id
    assert image.repo_digests == (f"{registry.host}/app@{index}",)


async def test_a_pull_by_digest_gives_no_tag(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    put = registry.put_image("app", "1")
    image = await pulls.pull(f"{registry.host}/app@{put.digest}")
    assert (image.repo_tags, image.repo_digests) == ((), (f"{registry.host}/app@{put.digest}",))


async def test_an_image_that_is_there_costs_one_question(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.put_image("app", "1")
    first = await pulls.pull(f"{registry.host}/app:1")
    registry.asked.clear()
    assert (await pulls.pull(f"{registry.host}/app:1")).id == first.id
    assert [(asked.method, asked.path) for asked in registry.asked] == [("HEAD", "/v2/app/manifests/1")]


async def test_a_tag_that_moved_names_the_new_image_and_the_old_one_keeps_its_digest(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    ids = []
    for content in ("old", "new"):
        registry.put_image("app", "1", [layer(content)])
        ids.append((await pulls.pull(f"{registry.host}/app:1")).id)
    old, new = ids
    before = pulls.store.resolve(old)
    assert before is not None
    assert before.repo_tags == ()
    assert len(before.repo_digests) == 1
    named = pulls.store.resolve(f"{registry.host}/app:1")
    assert named is not None
    assert named.id == new


async def test_two_references_of_one_image_are_one_image(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.put_image("app", "1")
    registry.put_image("app", "2")
    await pulls.pull(f"{registry.host}/app:1")
    image = await pulls.pull(f"{registry.host}/app:2")
    assert image.repo_tags == (f"{registry.host}/app:1", f"{registry.host}/app:2")


@pytest.mark.root
async def test_layers_that_are_there_are_not_read_again(tmp_path: Path, registry: ScriptedRegistry) -> None:
    pulls = PullFixture.make(tmp_path, layer_format=LayerFormat.OVERLAY)
    base = layer("base")
    registry.put_image("app", "1", [base])
    put = registry.put_image("app", "2", [base, layer("more")])
    await pulls.pull(f"{registry.host}/app:1")
    registry.asked.clear()
    await pulls.pull(f"{registry.host}/app:2")
    read = [asked.path for asked in registry.asked if "/blobs/" in asked.path]
    assert sorted(read) == sorted(f"/v2/app/blobs/{one}" for one in (put.id, put.layers[1]))


async def test_the_same_layer_twice_is_read_once(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    same = layer("same")
    put = registry.put_image("app", "1", [same, layer("between"), same])
    await pulls.pull(f"{registry.host}/app:1")
    assert len(registry.requests(f"/v2/app/blobs/{put.layers[0]}")) == 1


async def test_uncompressed_and_zstd_layers_come_too(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.put_image("plain", "1", pack=lambda data: data)
    await pulls.pull(f"{registry.host}/plain:1")
    zstd = pytest.importorskip("backports.zstd")
    registry.put_image("zstd", "1", [layer("other")], pack=zstd.compress)
    await pulls.pull(f"{registry.host}/zstd:1")


async def test_zstd_that_would_take_too_much_memory_is_refused(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    zstd = pytest.importorskip("backports.zstd")
    wide = {zstd.CompressionParameter.window_log: 27}

    def pack(data: bytes) -> bytes:
        packer = zstd.ZstdCompressor(options=wide)
        return packer.compress(data) + packer.flush()  # type: ignore[no-any-return]

    registry.put_image("app", "1", [layer("file")], pack=pack)
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert failure.failure is PullFailure.WRONG_CONTENT
    assert "zstd window" in failure.reason


async def test_dockers_own_types_are_as_good(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    put = registry.put_image("app", "1")
    renamed = registry.documents["/v2/app/manifests/1"].body
    for oci, docker in (
        (b"vnd.oci.image.manifest.v1+json", b"vnd.docker.distribution.manifest.v2+json"),
        (b"vnd.oci.image.config.v1+json", b"vnd.docker.container.image.v1+json"),
        (b"vnd.oci.image.layer.v1.tar+gzip", b"vnd.docker.image.rootfs.diff.tar.gzip"),
    ):
        renamed = renamed.replace(oci, docker)
    registry.put_manifest("app", "1", renamed, "application/vnd.docker.distribution.manifest.v2+json")
    assert (await pulls.pull(f"{registry.host}/app:1")).id == put.id


async def test_a_proxy_of_the_environment_is_used(
    pulls: PullFixture, registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = registry.put_image("app", "1")
    registry.documents = {f"http://registry.example{path}": answer for path, answer in registry.documents.items()}
    monkeypatch.setenv("HTTP_PROXY", f"http://{registry.host}")
    pulls.configure("registry.example", 'server = "http://registry.example"')
    assert (await pulls.pull("registry.example/app:1")).id == put.id


# -- what is refused


async def test_what_is_not_there_is_told_with_host_and_the_servers_words(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert failure.failure is PullFailure.NOT_FOUND
    assert str(failure) == f"{registry.host}/app:1: {registry.host}: not found (404 Said)"


async def test_a_registry_that_knows_no_head_requests_is_asked_for_the_manifest(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    put = registry.put_image("app", "1")
    registry.guard = lambda asked: Answer(405) if asked.method == "HEAD" else None
    assert (await pulls.pull(f"{registry.host}/app:1")).id == put.id
    failure = await failure_of(pulls, f"{registry.host}/app:2")
    assert failure.failure is PullFailure.NOT_FOUND
    assert "MANIFEST_UNKNOWN: manifest unknown" in failure.reason


async def test_an_image_for_other_machines_is_told_with_both_platforms(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    other = registry.put_image("app", "single", architecture=OTHER_ARCHITECTURE)
    registry.put_index("app", "index", (other, this_platform(architecture=OTHER_ARCHITECTURE)))
    for tag in ("single", "index"):
        failure = await failure_of(pulls, f"{registry.host}/app:{tag}")
        assert failure.failure is PullFailure.NO_PLATFORM
        assert f"the image is for linux/{OTHER_ARCHITECTURE}" in failure.reason
        assert str(pulls.store.platform) in failure.reason


@pytest.mark.parametrize("what", ["layer", "config", "manifest"])
async def test_other_content_than_the_digest_says_is_refused(
    pulls: PullFixture, registry: ScriptedRegistry, what: str
) -> None:
    put = registry.put_image("app", "1", [layer(Entry("noise", NOISE))])
    path = {
        "layer": f"/v2/app/blobs/{put.layers[0]}",
        "config": f"/v2/app/blobs/{put.id}",
        "manifest": f"/v2/app/manifests/{put.digest}",
    }[what]
    body = bytearray(registry.documents[path].body)
    body[len(body) // 2] ^= 1
    registry.documents[path] = Answer(body=bytes(body))
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert failure.failure is PullFailure.WRONG_CONTENT
    assert f"{registry.host} sent other content than sha256:" in failure.reason


async def test_a_layer_that_unpacks_to_something_else_is_refused(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    registry.put_image("app", "1", [layer("file")], pack=lambda data: gzip.compress(layer("another")))
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert failure.failure is PullFailure.WRONG_CONTENT
    assert "the image's configuration says" in failure.reason


async def test_more_bytes_than_a_layer_has_are_not_read(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    put = registry.put_image("app", "1")
    registry.documents[f"/v2/app/blobs/{put.layers[0]}"] = Answer(body=NOISE, repeat=10**6)
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert f"{registry.host} sent more than the" in failure.reason


@pytest.mark.parametrize("tag", ["huge", "endless"])
async def test_a_huge_manifest_is_not_read(pulls: PullFixture, registry: ScriptedRegistry, tag: str) -> None:
    body = b" " * 2**20
    answers = {"huge": Answer(body=body * 5), "endless": Answer(body=body, repeat=10**6)}
    registry.documents[f"/v2/app/manifests/{tag}"] = answers[tag]
    failure = await failure_of(pulls, f"{registry.host}/app:{tag}")
    assert "more than 4194304 bytes" in failure.reason


@pytest.mark.parametrize(
    "document",
    [
        *(b"", b"[]", b"{", b"[" * 50_000, b'{"layers": 7}', b'{"schemaVersion": 1}'),
        b'{"manifests": [], "layers": []}',
        b'{"manifests": [], "config": {}}',
    ],
)
async def test_what_is_no_manifest_is_told(pulls: PullFixture, registry: ScriptedRegistry, document: bytes) -> None:
    registry.put_manifest("app", "1", document)
    assert (await failure_of(pulls, f"{registry.host}/app:1")).failure is PullFailure.WRONG_CONTENT


async def test_indexes_that_lead_to_indexes_without_end_are_refused(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    inner = registry.put_image("app", "")
    for _ in range(6):
        described = json.dumps({"schemaVersion": 2, "manifests": [dict(inner.descriptor)]}).encode()
        found = registry.put_manifest("app", "1", described)
        inner = attrs.evolve(inner, descriptor={"digest": found, "size": len(described)})
    assert "indexes lead to it" in (await failure_of(pulls, f"{registry.host}/app:1")).reason


# -- servers in trouble


async def test_a_broken_connection_goes_on_where_it_broke(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    put = registry.put_image("app", "1", [layer(Entry("noise", NOISE))])
    path = f"/v2/app/blobs/{put.layers[0]}"
    data = registry.documents[path].body

    def cut(asked: Asked) -> Answer:
        whole = from_range(asked, data) if "range" in asked.headers else Answer(body=data)
        return attrs.evolve(whole, body=whole.body[:70_000], length=len(whole.body))

    registry.first(path, cut, cut, cut)
    await pulls.pull(f"{registry.host}/app:1")
    ranges = [asked.headers.get("range", "") for asked in registry.requests(path)]
    assert ranges == ["", "bytes=70000-", "bytes=140000-", "bytes=210000-"]


async def test_a_server_without_ranges_sends_it_again(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    put = registry.put_image("app", "1", [layer(Entry("noise", NOISE))])
    path = f"/v2/app/blobs/{put.layers[0]}"
    data = registry.documents[path].body
    registry.ranges = False
    registry.first(path, Answer(body=data[:100_000], length=len(data)))
    await pulls.pull(f"{registry.host}/app:1")
    assert len(registry.requests(path)) == 2


async def test_a_resumed_layer_that_does_not_fit_together_is_read_anew(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    put = registry.put_image("app", "1", [layer(Entry("noise", NOISE))])
    path = f"/v2/app/blobs/{put.layers[0]}"
    data = registry.documents[path].body
    registry.first(path, Answer(body=b"x" * 100_000, length=len(data)))
    await pulls.pull(f"{registry.host}/app:1")
    assert [asked.headers.get("range", "") for asked in registry.requests(path)] == ["", "bytes=100000-", ""]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_trouble_that_passes_is_waited_for(pulls: PullFixture, registry: ScriptedRegistry, status: int) -> None:
    put = registry.put_image("app", "1")
    for path in (f"/v2/app/manifests/{put.digest}", f"/v2/app/blobs/{put.layers[0]}"):
        registry.first(path, Answer(status), Answer(status, {"Retry-After": "0"}))
    await pulls.pull(f"{registry.host}/app:1")


async def test_trouble_that_stays_is_told(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.guard = lambda asked: Answer(503, body=b"upstream is away")
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert failure.failure is PullFailure.UNREACHABLE
    assert f"{registry.host} answered 503" in failure.reason
    assert len(registry.asked) == QUICK.tries


async def test_a_server_that_wants_a_long_wait_is_left_alone(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.guard = lambda asked: Answer(429, {"Retry-After": "3600"})
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert "try again in 3600 s" in failure.reason
    assert len(registry.asked) == 1


async def test_an_answer_that_does_not_come_is_not_waited_for_forever(
    tmp_path: Path, registry: ScriptedRegistry
) -> None:
    pulls = PullFixture.make(tmp_path, attrs.evolve(QUICK, answer=0.1, tries=2))
    put = registry.put_image("app", "1")
    registry.documents[f"/v2/app/blobs/{put.layers[0]}"] = Answer(pause=60, body=b"x")
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert f"{registry.host} did not answer in time" in failure.reason


async def test_a_layer_that_drips_is_given_up(tmp_path: Path, registry: ScriptedRegistry) -> None:
    pulls = PullFixture.make(tmp_path, attrs.evolve(QUICK, progress=0.3, tries=1))
    put = registry.put_image("app", "1", [layer(Entry("noise", NOISE))])

    async def drip(stream: trio.abc.Stream, asked: Asked, answer: Answer) -> None:
        await stream.send_all(f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer.body)}\r\n\r\n".encode())
        for byte in answer.body:
            await stream.send_all(bytes([byte]))
            await trio.sleep(0.02)

    registry.senders[f"/v2/app/blobs/{put.layers[0]}"] = drip
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert "sent less than 64 KiB in" in failure.reason


async def test_a_host_that_is_not_there_is_told(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    failure = await failure_of(pulls, "127.0.0.1:1/app:1")
    assert str(failure) == "127.0.0.1:1/app:1: 127.0.0.1:1 cannot be reached: Connection refused"
    assert str(failure).endswith("Connection refused")


async def test_a_full_disk_is_told_before_anything_is_read(
    pulls: PullFixture, registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = registry.put_image("app", "1")
    monkeypatch.setattr(disk_space, "KEPT_FREE", 2**62)
    failure = await failure_of(pulls, f"{registry.host}/app:1")
    assert failure.failure is PullFailure.NO_SPACE
    assert failure.reason.startswith("no space left on the disk of /")
    assert "None" not in failure.reason
    assert registry.requests(f"/v2/app/blobs/{put.layers[0]}") == []


async def test_a_disk_that_fills_up_while_unpacking_is_told(
    pulls: PullFixture, registry: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def check(folder: Path, wanted: int = 0) -> None:
        calls.append(wanted)
        if not wanted:
            raise OSError(errno.ENOSPC, "full", os.fspath(folder))

    monkeypatch.setattr("trikubelet.embedded.images.staging.check_space", check)
    registry.put_image("app", "1", [layer(*(f"file-{number}" for number in range(100)))])
    assert (await failure_of(pulls, f"{registry.host}/app:1")).failure is PullFailure.NO_SPACE


async def test_a_cancelled_pull_leaves_nothing(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    put = registry.put_image("app", "1", [layer("one"), layer("two")])
    path = f"/v2/app/blobs/{put.layers[1]}"
    registry.documents[path] = attrs.evolve(registry.documents[path], pause=60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulls.pull, f"{registry.host}/app:1")
        while not registry.requests(path):
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert pulls.leftovers() == []
    assert pulls.store.resolve(f"{registry.host}/app:1") is None
    assert pulls.puller.progress() == ()


async def test_two_pulls_of_one_name_read_it_once(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    put = registry.put_image("app", "1")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(pulls.pull, f"{registry.host}/app:1")
    assert len(registry.requests(f"/v2/app/blobs/{put.layers[0]}")) == 1


async def test_a_pull_tells_how_far_it_is(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    put = registry.put_image("app", "1", [layer("one"), layer("two")])
    path = f"/v2/app/blobs/{put.layers[1]}"
    size = len(registry.documents[path].body)
    registry.documents[path] = attrs.evolve(registry.documents[path], pause=60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pulls.pull, f"{registry.host}/app:1")
        while not (pulls.puller.progress() and pulls.puller.progress()[0].received_bytes):
            await trio.sleep(0.01)
        (progress,) = pulls.puller.progress()
        assert (progress.reference, progress.layers) == (f"{registry.host}/app:1", 2)
        assert progress.received_bytes == progress.total_bytes - size
        assert pulls.puller.progress_of(f"{registry.host}/app:1") == str(progress)
        assert pulls.puller.progress_of(f"{registry.host}/app:2") == pulls.puller.progress_of("no/Image") == ""
        nursery.cancel_scope.cancel()


# -- where it leads


async def test_a_redirect_is_followed_without_credentials_and_headers_to_another_host(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    put = registry.put_image("app", "1")
    path = f"/v2/app/blobs/{put.layers[0]}"
    async with scripted_registry() as elsewhere:
        elsewhere.documents["/store"] = registry.documents[path]
        registry.documents[path] = Answer(307, {"Location": f"http://{elsewhere.host}/store"})
        registry.guard = ask_for_password
        pulls.configure(registry.host, f'server = "http://{registry.host}"\n[header]\nx-key = "secret"\n')
        await pulls.pull(f"{registry.host}/app:1", Credentials("ali", "open sesame"))
        (asked,) = elsewhere.asked
        assert "authorization" not in asked.headers
        assert "x-key" not in asked.headers
        assert registry.requests(path)[-1].headers["x-key"] == "secret"


async def test_a_redirect_on_the_same_host_keeps_the_credentials(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    put = registry.put_image("app", "1")
    path = f"/v2/app/blobs/{put.layers[0]}"
    registry.documents["/v2/elsewhere"] = registry.documents[path]
    registry.documents[path] = Answer(302, {"Location": "/v2/elsewhere"})
    registry.guard = ask_for_password
    await pulls.pull(f"{registry.host}/app:1", Credentials("ali", "open sesame"))


async def test_redirects_in_a_circle_end(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.guard = lambda asked: Answer(302, {"Location": asked.target})
    assert "redirects more than 10 times" in (await failure_of(pulls, f"{registry.host}/app:1")).reason


async def test_a_redirect_to_another_protocol_is_not_followed(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    registry.guard = lambda asked: Answer(302, {"Location": "file:///etc/passwd"})
    assert "redirects to 'file:" in (await failure_of(pulls, f"{registry.host}/app:1")).reason


async def test_a_mirror_is_asked_first_for_the_registrys_image_and_the_registry_when_it_fails(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    put = registry.put_image("app", "1")
    async with scripted_registry() as mirror:
        pulls.configure(
            "registry.example",
            f'server = "http://{registry.host}"\n[host."http://{mirror.host}"]\ncapabilities = ["pull", "resolve"]\n',
        )
        image = await pulls.pull("registry.example/app:1")
        assert {asked.target.partition("?")[2] for asked in mirror.asked} == {"ns=registry.example"}
        assert {asked.target.partition("?")[2] for asked in registry.asked} == {"ns=registry.example"}
        assert image.repo_digests == (f"registry.example/app@{put.digest}",)


async def test_a_mirrors_wrong_layer_comes_from_the_registry(pulls: PullFixture, registry: ScriptedRegistry) -> None:
    put = registry.put_image("app", "1")
    path = f"/v2/app/blobs/{put.layers[0]}"
    async with scripted_registry() as mirror:
        mirror.documents = {**registry.documents, path: Answer(body=b"x" * len(registry.documents[path].body))}
        pulls.configure(
            registry.host, f'server = "http://{registry.host}"\n[host."http://{mirror.host}"]\nskip_verify = false\n'
        )
        await pulls.pull(f"{registry.host}/app:1")
        assert len(registry.requests(path)) == 1


# -- imported and pulled


async def test_a_pulled_name_replaces_an_imported_one_when_it_is_asked_for(
    pulls: PullFixture, registry: ScriptedRegistry
) -> None:
    name = f"{registry.host}/app:1"
    await pulls.store.import_archive(oci_archive(pulls.path / "a.tar", [layer("imported")], name))
    imported = pulls.store.resolve(name)
    assert imported is not None
    assert imported.pulled == ()
    put = registry.put_image("app", "1")
    image = await pulls.pull(name)
    assert image.id == put.id
    assert name in image.pulled
