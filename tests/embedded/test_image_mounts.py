"""What an image decides about places: links that lead nowhere, its own volumes, a working directory that is closed.

Each on the embedded runtime and on containerd, behind its socket.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.embedded.images.archives import Entry, directory, layer, oci_archive
from tests.oci_image import OciImage, make_root_folder
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from tests.embedded.any_runtime import Runtime

    ImageMaker = Callable[..., Awaitable[str]]

STUB = "../run/systemd/resolve/stub-resolv.conf"


@pytest.fixture
def image(runtime: Runtime, tmp_path: Path) -> ImageMaker:
    """Imports an image of busybox and further entries, and returns its name."""

    async def make(*entries: Entry | str, config: Mapping[str, object] | None = None) -> str:
        name = f"example.com/{runtime.name}/{tmp_path.name.lower()}:1"
        base = OciImage.from_folder(make_root_folder(tmp_path / "busybox"), {}).layer
        archive = oci_archive(tmp_path / "image.tar", [base, layer(*entries)], name, config)
        await runtime.import_image(archive)
        return name

    return make


def read_only() -> v1.LinuxContainerSecurityContext:
    return v1.LinuxContainerSecurityContext(readonly_rootfs=True)


def as_user(uid: int, **more: object) -> v1.LinuxContainerSecurityContext:
    return v1.LinuxContainerSecurityContext(run_as_user=v1.Int64Value(value=uid), **more)  # type: ignore[arg-type]


# --- Links that lead nowhere ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("links", "made"),
    [
        ({"etc/localtime": STUB}, "/run/systemd/resolve/stub-resolv.conf"),
        ({"etc/localtime": "/nowhere/yet/zone"}, "/nowhere/yet/zone"),
        ({"etc/localtime": "../../../../../../../nowhere"}, "/nowhere"),
        ({"etc/localtime": "one", "etc/one": "/two", "two": "tmp/three"}, "/tmp/three"),
        ({"etc/localtime": "/gone/zone", "gone": "/tmp/./../etc/here"}, "/etc/here/zone"),
    ],
    ids=["relative", "absolute", "above-the-root", "chain", "folder-of-a-link"],
)
@pytest.mark.parametrize("kind", ["file", "folder"])
async def test_a_mount_lies_where_the_images_link_leads(
    runtime: Runtime, image: ImageMaker, tmp_path: Path, links: Mapping[str, str], made: str, kind: str
) -> None:
    name = await image(*(Entry(link, link=target) for link, target in links.items()))
    source, inside = tmp_path / "source", ""
    if kind == "file":
        source.write_text("content\n")
    else:
        source.mkdir()
        (source / "file").write_text("content\n")
        inside = "/file"
    mount = v1.Mount(host_path=str(source), container_path="/etc/localtime", readonly=True)
    script = f"cat /etc/localtime{inside} {made}{inside}; readlink /etc/localtime"
    lines = await runtime.run(await runtime.pod(), script, image=name, mounts=[mount], security=read_only())
    assert lines == ["content", "content", links["etc/localtime"]]


async def test_the_runtimes_own_files_lie_where_the_images_links_lead(runtime: Runtime, image: ImageMaker) -> None:
    name = await image(Entry("etc/resolv.conf", link=STUB), Entry("etc/hostname", link="/run/name"))
    pod = await runtime.pod(dns_config=v1.DnsConfig(servers=["192.0.2.53"]))
    lines = await runtime.run(pod, "cat /etc/resolv.conf /run/systemd/resolve/stub-resolv.conf", image=name)
    assert [line for line in lines if line] == ["nameserver 192.0.2.53"] * 2


async def test_a_link_that_leads_to_itself_fails_the_start(runtime: Runtime, image: ImageMaker, tmp_path: Path) -> None:
    name = await image(Entry("etc/localtime", link="one"), Entry("etc/one", link="localtime"))
    mount = v1.Mount(host_path=str(tmp_path), container_path="/etc/localtime")
    with pytest.raises(CRIError, match=r"[Tt]oo many (levels of symbolic )?links"):
        await runtime.start(await runtime.pod(), image=name, mounts=[mount])


async def test_a_link_into_a_volume_makes_the_place_there(runtime: Runtime, image: ImageMaker, tmp_path: Path) -> None:
    """As a container of the same pod may have left it there."""
    name = await image()
    shared, source = tmp_path / "shared", tmp_path / "source"
    shared.mkdir()
    source.mkdir()
    (source / "file").write_text("content\n")
    (shared / "link").symlink_to("../../../outside")
    mounts = [
        v1.Mount(host_path=str(shared), container_path="/shared"),
        v1.Mount(host_path=str(source), container_path="/shared/link"),
    ]
    lines = await runtime.run(await runtime.pod(), "cat /outside/file; ls /shared", image=name, mounts=mounts)
    assert lines == ["content", "link"]
    assert not (tmp_path.parent / "outside").exists()
    assert sorted(path.name for path in shared.iterdir()) == ["link"]


# --- Volumes of an image ----------------------------------------------------------------------------------------------

CONTENT = (
    directory("data", mode=0o2750, uid=1000, gid=1000),
    Entry("data/file", b"of the image\n", mode=0o640, uid=1000, gid=1000),
    Entry("data/again", link="data/file", hard=True, mode=0o640, uid=1000, gid=1000),
    Entry("data/link", link="file"),
    Entry("data/program", b"#!/bin/sh\necho ran\n", mode=0o4755),
    directory("data/below", mode=0o700, uid=1000, gid=5000),
    Entry("data/below/file", b"below\n"),
    Entry("data/gone", b"gone\n"),
)
VOLUME: dict[str, Any] = {"Volumes": {"/data": {}}}
IS_MOUNT = "awk '$5 == \"{}\"' /proc/self/mountinfo | wc -l"


@pytest.mark.parametrize("readonly", [False, True])
async def test_an_images_volume_is_a_folder_with_its_content(
    runtime: Runtime, image: ImageMaker, readonly: bool
) -> None:
    name = await image(*CONTENT, config=VOLUME)
    security = v1.LinuxContainerSecurityContext(readonly_rootfs=readonly)
    script = f"""
        {IS_MOUNT.format("/data")}
        stat -c '%n %a %u:%g %h %F' /data /data/file /data/link /data/program /data/below
        cat /data/file /data/below/file; readlink /data/link; /data/program
        echo more >> /data/again; tail -n 1 /data/file
        touch /new 2> /dev/null && echo root is writable
    """
    lines = await runtime.run(await runtime.pod(), script, image=name, security=security)
    assert lines == [
        "1",
        "/data 2750 1000:1000 3 directory",
        "/data/file 640 1000:1000 2 regular file",
        "/data/link 777 0:0 1 symbolic link",
        "/data/program 4755 0:0 1 regular file",
        "/data/below 700 1000:5000 2 directory",
        "of the image",
        "below",
        "file",
        "ran",
        "more",
        *([] if readonly else ["root is writable"]),
    ]


async def test_an_images_volume_is_its_containers_alone(runtime: Runtime, image: ImageMaker) -> None:
    name = await image(*CONTENT, config=VOLUME)
    pod = await runtime.pod()
    first = await runtime.start(pod, "echo mine > /data/mine; echo written; sleep 1000", image=name)
    await runtime.until_written(first, "written")
    assert await runtime.run(pod, "ls /data", image=name) == ["again", "below", "file", "gone", "link", "program"]
    assert (await runtime.exec(first, ["cat", "/data/mine"])).stdout == b"mine\n"


async def test_what_the_pod_mounts_takes_the_place_of_an_images_volume(
    runtime: Runtime, image: ImageMaker, tmp_path: Path
) -> None:
    name = await image(*CONTENT, config={"Volumes": {"/data/": {}, "/other": {}}})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("of the pod\n")
    mounts = [v1.Mount(host_path=str(tmp_path / "mine"), container_path="/data")]
    script = f"cat /data/file; ls /data; {IS_MOUNT.format('/data')}; {IS_MOUNT.format('/other')}"
    lines = await runtime.run(await runtime.pod(), script, image=name, mounts=mounts)
    assert lines == ["of the pod", "file", "1", "1"]


async def test_an_images_volumes_lie_within_one_another(runtime: Runtime, image: ImageMaker, tmp_path: Path) -> None:
    name = await image(*CONTENT, config={"Volumes": {"/data": {}, "/data/below": {}, "/absent/deep": {}}})
    (tmp_path / "pods").mkdir()
    mounts = [v1.Mount(host_path=str(tmp_path / "pods"), container_path="/data/below/pods")]
    script = f"""
        for path in /data /data/below /data/below/pods /absent/deep; do {IS_MOUNT.format("'$path'")}; done
        cat /data/below/file; stat -c '%a %u:%g' /data/below /absent/deep
        touch /data/below/pods/written /absent/deep/written && echo written
    """
    security = read_only()
    lines = await runtime.run(await runtime.pod(), script, image=name, mounts=mounts, security=security)
    assert lines == ["1", "1", "1", "1", "below", "700 1000:5000", "755 0:0", "written"]
    assert (tmp_path / "pods" / "written").exists()


async def test_an_images_volume_may_be_behind_a_link(runtime: Runtime, image: ImageMaker) -> None:
    links = (Entry("var/one", link="/data"), Entry("var/two", link="../nowhere/yet"))
    name = await image(*CONTENT, *links, config={"Volumes": {"/var/one": {}, "/var/two": {}}})
    script = f"""
        {IS_MOUNT.format("/data")}; {IS_MOUNT.format("/nowhere/yet")}
        cat /data/file; touch /data/written /var/two/written && echo written; readlink /var/one; readlink /var/two
    """
    lines = await runtime.run(await runtime.pod(), script, image=name, security=read_only())
    assert lines == ["1", "1", "of the image", "written", "/data", "../nowhere/yet"]


async def test_an_images_volume_at_a_file_is_refused(runtime: Runtime, image: ImageMaker) -> None:
    name = await image("data", config=VOLUME)
    with pytest.raises(CRIError, match=r"/data|not a directory"):
        await runtime.start(await runtime.pod(), image=name)


async def test_an_images_volume_may_hold_an_overlay(runtime: Runtime, image: ImageMaker) -> None:
    """As a Docker daemon needs it; the container's root, an overlay itself, cannot."""
    name = await image(directory("data"), config=VOLUME)
    script = """
        cd $1 && mkdir lower upper work merged && touch lower/file &&
        mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work merged 2> /dev/null && ls merged
    """
    security = v1.LinuxContainerSecurityContext(privileged=True)
    pod = await runtime.pod()
    assert await runtime.run(pod, f"set -- /data; {script}", image=name, security=security) == ["file"]
    security = v1.LinuxContainerSecurityContext(privileged=True)
    assert await runtime.run(pod, f"set -- /tmp; {script}", image=name, security=security) == []


# --- Working directories ----------------------------------------------------------------------------------------------


async def test_a_user_works_in_a_directory_that_it_may_not_enter(runtime: Runtime, image: ImageMaker) -> None:
    """runc changes directory while it has all rights, and only if that is refused again as the user."""
    name = await image(directory("root", mode=0o700), "root/file", directory("root/below"))
    pod = await runtime.pod()
    for folder in ("/root", "/root/below"):
        script = "pwd; ls . 2> /dev/null; echo $?; touch x 2> /dev/null && echo written"
        lines = await runtime.run(pod, script, image=name, security=as_user(1000), working_dir=folder)
        assert lines == [folder, *(["1"] if folder == "/root" else ["0"])]
    container = await runtime.start(pod, "sleep 1000", image=name, security=as_user(1000), working_dir="/root")
    told = await runtime.exec(container, ["sh", "-c", "pwd; ls ."])
    assert (told.stdout, told.exit_code) == (b"/root\n", 1)


# --- What cannot start ------------------------------------------------------------------------------------------------


async def test_a_start_that_fails_is_an_end(runtime: Runtime, image: ImageMaker, tmp_path: Path) -> None:
    """So that a pod whose containers are not started again is Failed, and does not wait for ever."""
    name = await image("file", directory("folder"), Entry("loop", link="loop"))
    (tmp_path / "file").touch()
    file, folder = str(tmp_path / "file"), str(tmp_path)
    pod = await runtime.pod()
    failing: list[dict[str, Any]] = [
        {"working_dir": "/file"},
        {"working_dir": "/loop/x"},
        {"mounts": [v1.Mount(host_path=file, container_path="/folder")]},
        {"mounts": [v1.Mount(host_path=folder, container_path="/file")]},
        {"mounts": [v1.Mount(host_path=folder, container_path="/file/below")]},
        {"mounts": [v1.Mount(host_path=folder, container_path="/loop")]},
        {"mounts": [v1.Mount(host_path=folder, container_path="/proc/absent")]},
        {"resources": v1.LinuxContainerResources(cpuset_cpus="nonsense")},
    ]
    for fields in failing:
        container = await runtime.create(pod, "true", image=name, **fields)
        with pytest.raises(CRIError):
            await runtime.calls.start_container(container)
        ended = await runtime.status(container)
        assert (ended.state, ended.exit_code, ended.reason) == (
            v1.ContainerState.CONTAINER_EXITED,
            128,
            "StartError",
        ), fields
    # containerd tells of this one by its exit code alone.
    container = await runtime.create(pod, "true", image=name, envs=[v1.KeyValue(key="LONG", value=b"x" * 140_000)])
    with suppress(CRIError):
        await runtime.calls.start_container(container)
    assert (await runtime.ended(container)).exit_code in (1, 128)
