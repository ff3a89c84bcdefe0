"""Images made in unusual ways show the same files, users and environment on the embedded runtime and on containerd.

Each shape is one that somebody reported to a runtime or a builder, or that images of distributions have.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.embedded.any_runtime import MACHINES_NETWORK, Runtime
from tests.embedded.images.archives import Entry, OciLayout, directory, layer
from tests.embedded.images.hostile_archives import header
from tests.embedded.runtime_node import parse_log
from tests.oci_image import make_root_folder
from trikubelet.rpc.cri import v1
from trikubelet.rpc.cri.errors import CRIError

NAME = "localhost/shape:1"
SHELL = ("sh", "-c")


@attrs.frozen
class Shape:
    """Layers above busybox, the image's configuration, and what a script says in a container of it."""

    layers: Sequence[bytes | Sequence[Entry | str]]
    script: str
    expected: Sequence[str]
    config: Mapping[str, Any] = attrs.field(factory=dict)
    top: Mapping[str, Any] = attrs.field(factory=dict)
    packed: bool = True
    """The layers are compressed."""
    otherwise: str = ""
    """What containerd does with it, where that is something else: then the shape is tried on the embedded one alone."""


def _sparse() -> bytes:
    content = b"1\n1048576\n4\n".ljust(512, b"\0") + b"tail"
    fields = {"major": "1", "minor": "0", "name": "sparse", "realsize": str(2**20 + 4)}
    return layer(Entry("GNUSparseFile.0/sparse", content, pax={f"GNU.sparse.{key}": fields[key] for key in fields}))


def _gnu(*entries: Entry) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            tar.addfile(entry.info(), io.BytesIO(entry.content))
    return buffer.getvalue()


LONG = "/".join("n" * 200 for _ in range(5))
PASSWD = b"root:x:0:0::/:/bin/sh\napp:x:1001:1001::/:/bin/sh\n"

SHAPES = {
    "absolute names": Shape(
        [
            [
                directory("/usr/lib/java", mode=0o750),
                Entry("/usr/lib/java/one", b"1\n"),
                Entry("/nix/a", b"a\n"),
                Entry("/nix/b", link="/nix/a", hard=True),
                Entry("x/../y", b"y\n"),
            ],
            [Entry("/usr/lib/java/.wh.one"), Entry("/usr/lib/java/two", b"2\n")],
        ],
        "cat /nix/b /y; ls /usr/lib/java; stat -c %h /nix/a; stat -c %a /usr/lib/java",
        ["a", "y", "two", "2", "750"],
    ),
    "an absolute link on the way": Shape(
        [[directory("run"), Entry("var/run", link="/run"), Entry("var/run/pid", b"7\n")]],
        "readlink /var/run; cat /run/pid",
        ["/run", "7"],
    ),
    "an absolute link of a lower layer on the way": Shape(
        [[directory("run"), Entry("var/run", link="/run")], [Entry("var/run/pid", b"7\n")]],
        "readlink /var/run; cat /run/pid",
        ["/run", "7"],
        otherwise="replaces the link by a directory",
    ),
    "an empty layer, compressed": Shape([b"", ["file"]], "cat /file", ["file"]),
    "an empty layer of no bytes": Shape([b"", ["file"]], "cat /file", ["file"], packed=False),
    "a layer of zeros": Shape([bytes(1024), ["file"]], "cat /file", ["file"]),
    "a layer of the root alone": Shape([[directory(".")], ["file"]], "cat /file; stat -c ' %a' /", ["file 755"]),
    "an opaque mark between entries": Shape(
        [["doc/old", "doc/sub/old"], ["doc/first", Entry("doc/.wh..wh..opq"), "doc/sub/last"]],
        "cd /doc; find . | sort",
        [".", "./first", "./sub", "./sub/last"],
    ),
    "a directory removed and made again": Shape(
        [["dir1/dir2/foo"], [Entry(".wh.dir1"), directory("dir1")]],
        "find /dir1",
        ["/dir1"],
        otherwise="shows what was in the directory before",
    ),
    "a directory that a file replaces": Shape([["d/e/f"], [Entry(".wh.d"), Entry("d", b"file\n")]], "cat /d", ["file"]),
    "a directory that a link replaces": Shape(
        [["lib/one"], [directory("usr/lib"), Entry("usr/lib/two", b"2\n"), Entry("lib", link="usr/lib")]],
        "ls /lib/; readlink /lib",
        ["two", "usr/lib"],
    ),
    "entries without directories": Shape(
        [[Entry("opt/a/b/c", b"c\n")]],
        "stat -c %a:%u /opt /opt/a /opt/a/b; cat /opt/a/b/c",
        ["755:0"] * 3 + ["c"],
        {"User": "1000"},
    ),
    "a hard link without a directory": Shape(
        [[Entry("app", b"app\n"), Entry("app.runfiles/_main/app_/app", link="app", hard=True)]],
        "cat /app.runfiles/_main/app_/app; stat -c %h /app",
        ["app", "2"],
    ),
    "a hard link to a link": Shape(
        [[Entry("file", b"file\n"), Entry("soft", link="file"), Entry("hard", link="soft", hard=True)]],
        "readlink /hard; cat /hard",
        ["file", "file"],
    ),
    "a hard link through a link": Shape(
        [[Entry("real/file", b"file\n"), Entry("way", link="/real"), Entry("hard", link="way/file", hard=True)]],
        "cat /hard; stat -c %h /real/file",
        ["file", "2"],
    ),
    "a hard link to a file of a lower layer": Shape(
        [[Entry("low", b"low\n")], [Entry("high", link="low", hard=True)]],
        "cat /high",
        ["low"],
        otherwise="refuses the image: the layer has no such file",
    ),
    "a hard link whose target goes": Shape(
        [[Entry("a", b"a\n"), Entry("b", link="a", hard=True)], [Entry(".wh.a")]],
        "cat /b; test -e /a || echo gone",
        ["a", "gone"],
    ),
    "one name twice": Shape(
        [[Entry("x", b"1\n"), Entry("x", b"2\n"), Entry("d", b""), directory("d"), "d/e"]], "cat /x; ls /d", ["2", "e"]
    ),
    "accounts behind absolute links": Shape(
        [[Entry("nix/passwd", PASSWD), Entry("etc/passwd", link="/nix/passwd")]], "id -u", ["1001"], {"User": "app"}
    ),
    "a root that only root may enter": Shape(
        [["file", directory(".", mode=0o700, uid=5)]],
        "id -u; id -g; stat -c %a:%u /",
        ["1000", "5000", "755:0"],
        {"User": "user:more"},
    ),
    "a group by name and a working directory that is missing": Shape(
        [], "id -u; id -g; pwd", ["1000", "5000", "/not/there"], {"User": "1000:more", "WorkingDir": "/not/there"}
    ),
    "a file that its own layer deletes first": Shape(
        [["d/a"], [Entry("d/.wh.a"), Entry("d/a", b"new\n")]], "cat /d/a", ["new"]
    ),
    "a file that its own layer deletes last": Shape(
        [["d/a"], [Entry("d/a", b"new\n"), Entry("d/.wh.a")]], "cat /d/a", ["new"], otherwise="refuses the image"
    ),
    "a file where a lower layer has one, and a file below": Shape(
        [["d"], [Entry("d/a", b"new\n")]], "cat /d/a", ["new"]
    ),
    "the mode of a directory that only a lower layer brings": Shape(
        [[directory("d", mode=0o700, uid=5)], ["d/a"]], "stat -c %a:%u /d", ["700:5"]
    ),
    "no accounts and a number": Shape(
        [[Entry("etc/.wh.passwd"), Entry("etc/.wh.group")]], "id -u; id -g", ["1000", "0"], {"User": "1000"}
    ),
    "bits of mode": Shape(
        [[Entry("su", mode=0o4755), Entry("wall", mode=0o2755, gid=5), directory("tmp2", mode=0o1777, uid=7)]],
        "stat -c %a:%u:%g /su /wall /tmp2",
        ["4755:0:0", "2755:0:5", "1777:7:0"],
    ),
    "devices": Shape(
        [
            [
                Entry("jail/null", kind=tarfile.CHRTYPE, device=(1, 3), mode=0o666),
                Entry("dev/null", kind=tarfile.CHRTYPE, device=(1, 3)),
            ]
        ],
        "echo x > /jail/null; stat -c %F /jail/null /dev/null",
        ["character special file"] * 2,
    ),
    "names that are no UTF-8": Shape(
        [header(b"odd/caf\xe9") + bytes(1024)], "printf %s /odd/* | od -An -tx1", [" 2f 6f 64 64 2f 63 61 66 e9"]
    ),
    "long names": Shape(
        [[Entry(f"{LONG}/file", b"long\n"), Entry("soft", link=f"/{LONG}/file")]],
        f"cat /{LONG}/file /soft",
        ["long"] * 2,
    ),
    "long names of GNU tar": Shape(
        [_gnu(Entry(f"{LONG}/file", b"long\n"), Entry("soft", link=f"/{LONG}/file"))],
        f"cat /{LONG}/file /soft",
        ["long"] * 2,
    ),
    "a sparse file": Shape([_sparse()], "wc -c < /sparse; tail -c 4 /sparse", [str(2**20 + 4), "tail"]),
    "times before the epoch": Shape(
        [[Entry("old", mtime=-86400), Entry("older", b"", pax={"mtime": "-1.5"})]], "stat -c %Y /old /older", ["0", "0"]
    ),
    "a directory that is named as a whiteout": Shape(
        [["sbin2/x"], [directory(".wh.sbin2")]], "test -e /sbin2 || echo gone", ["gone"]
    ),
    "a variable without a value": Shape([], "env | grep -e '^A=' -e BARE", ["A=1"], {"Env": ["A=1", "BARE"]}),
    "fields that nobody knows": Shape(
        [],
        "echo run",
        ["run"],
        {"Healthcheck": {"Test": ["NONE"]}, "ArgsEscaped": True, "New": [1]},
        {"future": {}, "history": []},
    ),
    "no entry point and null fields": Shape(
        [], "echo run", ["run"], {"Entrypoint": None, "Env": None, "Labels": None, "Volumes": None}
    ),
    "a mode of the root": Shape([[directory(".", mode=0o711)], ["file"]], "stat -c %a /", ["755"]),
}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(make_root_folder(tmp_path_factory.mktemp("shapes")), ".")
    return buffer.getvalue()


def write_image(path: Path, base: bytes, shape: Shape, config: Mapping[str, Any]) -> Path:
    layers = [base, *(one if isinstance(one, bytes) else layer(*one) for one in shape.layers)]
    layout = OciLayout()
    layout.add(layout.manifest(layers, {**shape.config, **config}, gzipped=shape.packed, **shape.top), NAME)
    return layout.write(path)


Pod = tuple[str, v1.PodSandboxConfig]


async def said(runtime: Runtime, pod: Pod, number: int) -> list[str]:
    """What a container of the image writes, which is the pod's so-many-th."""
    security = v1.LinuxContainerSecurityContext(namespace_options=MACHINES_NETWORK)
    config = v1.ContainerConfig(
        metadata=v1.ContainerMetadata(name="shape", attempt=number),
        image=v1.ImageSpec(image=NAME),
        log_path=f"{number}.log",
        linux=v1.LinuxContainerConfig(security_context=security),
    )
    container = await runtime.calls.create_container(pod[0], config, pod[1])
    await runtime.calls.start_container(container)
    path = (await runtime.ended(container)).log_path
    await runtime.calls.remove_container(container)
    return [text for _, _, text in parse_log(Path(path).read_text())]


async def test_an_image_shows_the_same_on_each_runtime(runtime: Runtime, base: bytes, tmp_path: Path) -> None:
    pod = await runtime.pod()
    for number, (name, shape) in enumerate(SHAPES.items()):
        if not (shape.otherwise and runtime.name == "containerd"):
            image = write_image(tmp_path / "shape.tar", base, shape, {"Cmd": [*SHELL, shape.script]})
            await runtime.import_image(image)
            assert (name, await said(runtime, pod, number)) == (name, list(shape.expected))


async def test_a_user_that_the_image_does_not_know_is_an_error(runtime: Runtime, base: bytes, tmp_path: Path) -> None:
    shape = Shape([], "id", [], {"User": "nobody-knows"})
    await runtime.import_image(write_image(tmp_path / "shape.tar", base, shape, {"Cmd": ["id"]}))
    with pytest.raises(CRIError):
        await said(runtime, await runtime.pod(), 0)
