"""A layer is written as it is, and nothing is written anywhere else."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.embedded.images.archives import Entry, directory, layer
from tests.examples import examples
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.lower import LowerLayers, is_opaque, is_whiteout
from trikubelet.embedded.images.memory import MemoryBudget
from trikubelet.embedded.images.model import LayerFormat, UnpackLimits
from trikubelet.embedded.images.unpack import LayerUnpacker, UnpackBudget

IS_ROOT = os.geteuid() == 0


def go_on() -> None:
    pass


class Root:
    """A root directory that layers are unpacked into, below a directory that must stay empty otherwise."""

    def __init__(self, tmp_path: Path) -> None:
        self.outside = tmp_path
        self.path = tmp_path / "a" / "b" / "root"
        self.path.mkdir(parents=True)

    def unpack(
        self,
        *layers: bytes,
        layer_format: LayerFormat = LayerFormat.FLAT,
        limits: UnpackLimits | None = None,
        lower: LowerLayers | None = None,
        privileged: bool = IS_ROOT,
    ) -> None:
        unpacker = LayerUnpacker(
            self.path,
            layer_format,
            budget=UnpackBudget(limits or UnpackLimits(), MemoryBudget(2**25)),
            checkpoint=go_on,
            lower=lower,
            privileged=privileged,
        )
        for data in layers:
            unpacker.apply(io.BytesIO(data), subject="layer test")
        unpacker.finish()

    def files(self) -> set[str]:
        return {str(path.relative_to(self.path)) for path in self.path.rglob("*") if not path.is_dir()}

    def strangers(self) -> set[str]:
        """What is outside of the root, and must not be."""
        allowed = {self.outside / "a", self.outside / "a" / "b", self.path}
        return {
            str(path) for path in self.outside.rglob("*") if path not in allowed and not path.is_relative_to(self.path)
        }


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_files_directories_and_links_are_written_with_content_mode_and_time(root: Root) -> None:
    root.unpack(
        layer(
            directory("etc", mode=0o750, mtime=1000.5),
            Entry("etc/passwd", b"root", mode=0o640, mtime=2000),
            Entry("etc/alias", link="passwd"),
            Entry("etc/same", link="etc/passwd", hard=True),
            Entry("run/pipe", kind=tarfile.FIFOTYPE, mode=0o600),
            "deep/er/file",
        )
    )
    passwd = (root.path / "etc/passwd").stat()
    assert (root.path / "etc/passwd").read_bytes() == b"root"
    assert stat.S_IMODE(passwd.st_mode) == 0o640
    assert passwd.st_mtime == 2000
    assert passwd.st_nlink == 2
    assert (root.path / "etc/same").samefile(root.path / "etc/passwd")
    assert (root.path / "etc/alias").readlink() == Path("passwd")
    assert (root.path / "run/pipe").is_fifo()
    assert stat.S_IMODE((root.path / "etc").stat().st_mode) == 0o750
    assert (root.path / "etc").stat().st_mtime == 1000.5
    assert stat.S_IMODE((root.path / "deep").stat().st_mode) == 0o755
    assert (root.path / "deep/er/file").read_text() == "deep/er/file"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (Entry("../evil", b"x"), "climbs"),
        (Entry("a/../../evil", b"x"), "climbs"),
        (Entry("..", kind=tarfile.DIRTYPE), "climbs"),
        (Entry("/../evil", b"x"), "climbs"),
        (Entry("a/b/../../../evil", b"x"), "climbs"),
        (Entry("a/.wh...", b""), "whiteout"),
        (Entry(".wh..", b""), "whiteout"),
        (Entry("a/.wh.", b""), "whiteout"),
        (Entry("evil", link="/etc/passwd", hard=True), "no file of the image"),
        (Entry("evil", link="/../etc/passwd", hard=True), "climbs"),
        (Entry("evil", link="../../etc/passwd", hard=True), "climbs"),
        (Entry("evil", link="no/such/file", hard=True), "no file of the image"),
        (Entry("evil", link=".", hard=True), "root"),
        (Entry("disk", kind=tarfile.BLKTYPE, device=(8, 0)), "block device 8:0"),
        (Entry("mem", kind=tarfile.CHRTYPE, device=(1, 1)), "character device 1:1"),
        (Entry("gone", kind=tarfile.CHRTYPE, device=(0, 0)), "character device 0:0"),
        (Entry("odd", kind=b"Z"), "unknown type"),
        (Entry("/".join(["d"] * 300), b"x"), "deep"),
        (Entry("n" * 256, b"x"), "longer than 255"),
        (Entry("owner", b"x", pax={"uid": "-1"}), "out of range"),
        (Entry("owner", b"x", pax={"gid": str(2**40)}), "out of range"),
    ],
    ids=lambda value: value.name[:20] if isinstance(value, Entry) else "",
)
def test_an_entry_that_would_reach_out_is_refused_by_name(root: Root, entry: Entry, reason: str) -> None:
    with pytest.raises(ArchiveError, match=reason) as caught:
        root.unpack(layer(entry))
    assert caught.value.entry is not None
    assert caught.value.entry[:90] == entry.name.rstrip("/")[:90]
    assert root.strangers() == set()


@pytest.mark.parametrize(
    "entries",
    [
        [Entry("loop", link="loop"), Entry("loop/evil", b"x")],
        [Entry("loop", link="/loop"), Entry("loop/evil", b"x")],
        [Entry("way", link="/etc"), Entry("evil", link="way/hostname", hard=True)],
        [Entry("way", link="../../../etc"), Entry("evil", link="way/hostname", hard=True)],
    ],
)
@pytest.mark.parametrize("split", [False, True], ids=["one-layer", "two-layers"])
def test_a_way_through_a_link_that_leads_nowhere_is_refused(root: Root, entries: list[Entry], split: bool) -> None:
    layers = [layer(*entries[:-1]), layer(entries[-1])] if split else [layer(*entries)]
    with pytest.raises(ArchiveError, match=r"links are on its way|no file of the image") as caught:
        root.unpack(*layers)
    assert caught.value.entry == entries[-1].name.rstrip("/")
    assert root.strangers() == set()


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([Entry("usr/lib", link="../../../lib"), Entry("usr/lib/x", b"x")], {"lib/x"}),
        ([Entry("way", link="../../.."), Entry("way/x", b"x")], {"x"}),
        ([Entry("way", link="/../.."), Entry("way/x", b"x")], {"x"}),
        ([directory("d"), Entry("d/way", link="../.."), Entry("d/way/x", b"x")], {"x"}),
        ([Entry("one", link="two"), Entry("two", link="../.."), Entry("one/x", b"x")], {"x"}),
        ([Entry("way", link="../.."), Entry("same", link="way", hard=True), Entry("same/x")], {"x"}),
        ([Entry("way", link="../.."), Entry("way/deep/er/x", b"x")], {"deep/er/x"}),
        ([Entry("way", link="../.."), Entry("a", b"a"), Entry("x", link="way/../a", hard=True)], {"a", "x"}),
        ([Entry("b", b"b"), Entry("way", link="../.."), Entry("way/.wh.c", b"")], {"b"}),
        ([Entry("b", b"b"), Entry("way", link="../.."), Entry("way/.wh..wh..opq", b"")], {"b"}),
    ],
)
def test_a_link_that_climbs_above_the_root_leads_to_the_root(root: Root, entries: list[Entry], found: set[str]) -> None:
    """As the kernel has it: `..` of the root is the root."""
    root.unpack(layer(*entries))
    assert {path for path in root.files() if not (root.path / path).is_symlink()} == found
    assert root.strangers() == set()


def test_absolute_names_and_links_are_below_the_root_of_the_image(root: Root, tmp_path: Path) -> None:
    root.unpack(
        layer(
            directory("/usr/lib/java", mode=0o700),
            Entry("/usr/lib/java/one", b"1"),
            Entry("/two", link="/usr/lib/java/one", hard=True),
            Entry("var/run", link="/run"),
            Entry("out", link=str(tmp_path)),
            Entry("x/../y", b"y"),
            Entry("/usr/./lib/../three", b"3"),
        ),
        layer("var/run/pid", "out/evil", Entry("four", link="/var/run/pid", hard=True), Entry("/usr/lib/java/.wh.one")),
    )
    inside = str(tmp_path)[1:]
    assert root.files() == {"two", "run/pid", f"{inside}/evil", "y", "usr/three", "four"}
    assert stat.S_IMODE((root.path / "usr/lib/java").stat().st_mode) == 0o700
    assert (root.path / "four").samefile(root.path / "run/pid")
    assert root.strangers() == set()


@pytest.mark.parametrize("data", [b"", bytes(512), bytes(1024), bytes(10240)])
def test_a_layer_of_nothing_is_empty(root: Root, data: bytes) -> None:
    root.unpack(data, layer("file"), data)
    assert root.files() == {"file"}


@pytest.mark.parametrize("name", [".", "./", "./."])
def test_a_root_that_is_a_link_is_left_out(root: Root, name: str) -> None:
    root.unpack(layer(Entry(name, link="../../outside"), Entry("file", b"x")))
    assert not root.path.is_symlink()
    assert (root.path / "file").read_bytes() == b"x"
    assert root.strangers() == set()


def test_a_link_that_stays_inside_is_followed_as_the_container_would(root: Root) -> None:
    root.unpack(
        layer(directory("usr/lib"), Entry("lib", link="usr/lib"), "lib/first"),
        layer("lib/second", Entry("usr/up", link="../usr"), "usr/up/lib/third"),
    )
    assert {path.name for path in (root.path / "usr/lib").iterdir()} == {"first", "second", "third"}
    assert (root.path / "lib").is_symlink()


def test_a_file_over_a_link_replaces_the_link_and_not_its_target(root: Root, tmp_path: Path) -> None:
    victim = tmp_path / "a" / "victim"
    victim.write_text("untouched")
    root.unpack(layer(Entry("name", link=str(victim)), Entry("name", b"new")))
    assert victim.read_text() == "untouched"
    assert (root.path / "name").read_bytes() == b"new"
    assert not (root.path / "name").is_symlink()


def test_a_directory_over_a_link_replaces_the_link(root: Root, tmp_path: Path) -> None:
    root.unpack(layer(Entry("name", link="/tmp"), directory("name"), "name/file"))
    assert not (root.path / "name").is_symlink()
    assert root.files() == {"name/file"}


def test_the_last_of_several_entries_with_one_name_wins(root: Root) -> None:
    root.unpack(
        layer("x/y", Entry("x", b"now a file"), directory("z"), Entry("z", link="x"), Entry("w", b"1"), directory("w"))
    )
    assert (root.path / "x").read_bytes() == b"now a file"
    assert (root.path / "z").is_symlink()
    assert (root.path / "w").is_dir()


def test_an_entry_below_a_file_is_refused(root: Root) -> None:
    with pytest.raises(ArchiveError, match="not a directory"):
        root.unpack(layer("file", "file/below"))


def test_a_huge_sparse_file_is_refused_before_it_is_written(root: Root) -> None:
    limits = UnpackLimits(max_bytes=10_000)
    with pytest.raises(ArchiveError, match="unpacks to more than 10000 bytes") as caught:
        root.unpack(layer(Entry("small", b"x" * 9_000), Entry("huge", size=2**60)), limits=limits)
    assert caught.value.entry == "huge"
    assert root.files() == {"small"}


def test_the_limits_hold_for_all_layers_together(root: Root) -> None:
    with pytest.raises(ArchiveError, match="more than 100 bytes"):
        root.unpack(layer(Entry("a", b"x" * 60)), layer(Entry("b", b"x" * 60)), limits=UnpackLimits(max_bytes=100))


def test_too_many_entries_are_refused(root: Root) -> None:
    with pytest.raises(ArchiveError, match="more than 3 files") as caught:
        root.unpack(layer("a", "b", "c", "d"), limits=UnpackLimits(max_entries=3))
    assert caught.value.entry == "d"


def test_a_giant_extended_header_is_refused_before_it_is_read(root: Root) -> None:
    info = tarfile.TarInfo("header")
    info.type = tarfile.XHDTYPE
    info.size = 2**40
    with pytest.raises(ArchiveError, match="its header has"):
        root.unpack(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4096)


def test_a_sparse_file_keeps_its_holes(root: Root) -> None:
    # GNU sparse format 1.0 as GNU tar writes it: the map comes first, then the data.
    block = b"1\n3145728\n4\n".ljust(512, b"\0") + b"tail"
    pax = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "sparse",
        "GNU.sparse.realsize": str(3 * 2**20 + 4),
    }
    root.unpack(layer(Entry("GNUSparseFile.0/sparse", block, pax=pax)))
    info = (root.path / "sparse").stat()
    assert info.st_size == 3 * 2**20 + 4
    assert info.st_blocks * 512 < 2**20
    assert (root.path / "sparse").read_bytes()[-4:] == b"tail"


def test_without_root_setuid_bits_are_dropped(root: Root) -> None:
    root.unpack(layer(Entry("bin/su", b"x", mode=0o4755), Entry("bin/wall", b"x", mode=0o2755)), privileged=False)
    assert stat.S_IMODE((root.path / "bin/su").stat().st_mode) == 0o755
    assert stat.S_IMODE((root.path / "bin/wall").stat().st_mode) == 0o755


@pytest.mark.root
def test_as_root_owners_setuid_bits_and_capabilities_are_kept(root: Root) -> None:
    capability = b"\x01\x00\x00\x02\x00\x04\x00\x00" + b"\x00" * 12
    root.unpack(
        layer(
            Entry("su", b"x", mode=0o4755, uid=0, gid=12),
            Entry("mine", b"x", uid=1000, gid=1000),
            Entry("link", link="mine", uid=1000, gid=1000),
            Entry("ping", b"x", pax={"SCHILY.xattr.security.capability": capability.decode("latin-1")}),
            Entry("sly", b"x", pax={"SCHILY.xattr.trusted.overlay.redirect": "/secret"}),
            directory("home", mode=0o1777, uid=7),
        )
    )
    assert stat.S_IMODE((root.path / "su").stat().st_mode) == 0o4755
    assert (root.path / "su").stat().st_gid == 12
    assert (root.path / "mine").stat().st_uid == 1000
    assert (root.path / "link").lstat().st_uid == 1000
    assert os.getxattr(root.path / "ping", "security.capability")[:4] == capability[:4]
    assert os.listxattr(root.path / "sly") == []
    assert (root.path / "home").stat().st_uid == 7
    assert stat.S_IMODE((root.path / "home").stat().st_mode) == 0o1777


@pytest.mark.root
def test_as_root_a_harmless_device_outside_dev_is_made(root: Root) -> None:
    root.unpack(layer(Entry("jail/null", kind=tarfile.CHRTYPE, device=(1, 3), mode=0o666)))
    assert stat.S_ISCHR((root.path / "jail/null").stat().st_mode)


def test_without_root_a_device_is_refused_but_in_dev_left_out(root: Root) -> None:
    root.unpack(layer(Entry("dev/null", kind=tarfile.CHRTYPE, device=(1, 3))), privileged=False)
    assert root.files() == set()
    with pytest.raises(ArchiveError, match="only root can create"):
        root.unpack(layer(Entry("jail/null", kind=tarfile.CHRTYPE, device=(1, 3))), privileged=False)


# Deletions


def overlay_over(tmp_path: Path, below: bytes) -> tuple[Root, LowerLayers]:
    """An empty root above an OVERLAY layer."""
    lower = Root(tmp_path / "lower")
    lower.unpack(below, layer_format=LayerFormat.OVERLAY)
    return Root(tmp_path / "upper"), LowerLayers([str(lower.path)])


LOWER = layer("keep/a", "keep/b", "gone/c", "top")


def test_in_a_flat_root_whiteouts_delete_what_earlier_layers_brought(root: Root) -> None:
    root.unpack(LOWER, layer(Entry("keep/.wh.a"), Entry(".wh.gone"), Entry(".wh.never-was"), "new"))
    assert root.files() == {"keep/b", "top", "new"}
    assert not (root.path / "gone").exists()


@pytest.mark.parametrize("whiteout_first", [True, False])
def test_an_opaque_directory_shows_only_what_its_own_layer_brings(root: Root, whiteout_first: bool) -> None:
    entries: list[Entry | str] = [Entry("keep/.wh..wh..opq"), "keep/new", "keep/sub/new"]
    root.unpack(layer("keep/a", "keep/sub/old"), layer(*(entries if whiteout_first else [*entries[1:], entries[0]])))
    assert root.files() == {"keep/new", "keep/sub/new"}


@pytest.mark.parametrize("whiteout_first", [True, False])
def test_a_file_that_a_layer_deletes_and_brings_is_there(root: Root, whiteout_first: bool) -> None:
    entries = [Entry(".wh.top"), Entry("top", b"new"), Entry(".wh.gone"), Entry("gone/d", b"d")]
    root.unpack(LOWER, layer(*(entries if whiteout_first else entries[::-1])))
    assert (root.path / "top").read_bytes() == b"new"
    assert root.files() == {"keep/a", "keep/b", "top", "gone/d"}


def test_bookkeeping_names_of_union_file_systems_are_left_out(root: Root) -> None:
    root.unpack(layer(Entry(".wh..wh.aufs", b"x"), directory(".wh..wh.plnk"), Entry(".wh..wh.plnk/1.2", b"x"), "a"))
    assert "a" in root.files()
    assert not any(name.startswith(".wh..wh.aufs") for name in root.files())


@pytest.mark.root
def test_in_an_overlay_layer_whiteouts_become_the_kernels_marks(tmp_path: Path) -> None:
    root, lower = overlay_over(tmp_path, LOWER)
    root.unpack(
        layer(Entry("keep/.wh.a"), directory("gone"), Entry("gone/.wh..wh..opq"), Entry(".wh.top"), Entry(".wh.no")),
        layer_format=LayerFormat.OVERLAY,
        lower=lower,
    )
    assert not os.path.lexists(root.path / "no")
    assert is_whiteout((root.path / "keep/a").lstat())
    assert is_whiteout((root.path / "top").lstat())
    assert is_opaque(str(root.path / "gone"))


@pytest.mark.root
@pytest.mark.parametrize("whiteout_first", [True, False])
def test_in_an_overlay_layer_a_directory_deleted_and_brought_is_opaque(tmp_path: Path, whiteout_first: bool) -> None:
    root, lower = overlay_over(tmp_path, LOWER)
    entries = [Entry(".wh.gone"), Entry("gone/d", b"d"), Entry(".wh.top"), Entry("top", b"new")]
    root.unpack(layer(*(entries if whiteout_first else entries[::-1])), layer_format=LayerFormat.OVERLAY, lower=lower)
    assert is_opaque(str(root.path / "gone"))
    assert (root.path / "top").read_bytes() == b"new"


@pytest.mark.root
def test_an_overlay_layer_takes_over_what_it_only_implies_from_the_layers_below(tmp_path: Path) -> None:
    below, root = Root(tmp_path / "1"), Root(tmp_path / "2")
    below.unpack(
        layer(
            directory("tmp", mode=0o1777, uid=5),
            directory("usr/lib"),
            Entry("lib", link="usr/lib"),
            Entry("bin/tool", b"tool", mode=0o755),
            Entry("out", link="../etc"),
        ),
        layer_format=LayerFormat.OVERLAY,
    )
    lower = LowerLayers([str(below.path)])
    root.unpack(
        layer("tmp/file", "lib/new.so", Entry("bin/same", link="bin/tool", hard=True), Entry(".wh..wh..opq")),
        layer_format=LayerFormat.OVERLAY,
        lower=lower,
    )
    tmp = (root.path / "tmp").stat()
    assert (stat.S_IMODE(tmp.st_mode), tmp.st_uid) == (0o1777, 5)
    assert (root.path / "usr/lib/new.so").is_file()
    assert is_whiteout((root.path / "lib").lstat())
    assert (root.path / "bin/same").read_bytes() == b"tool"
    assert (root.path / "bin/same").samefile(root.path / "bin/tool")
    assert is_opaque(str(root.path / "tmp"))
    third = Root(tmp_path / "3")
    third.unpack(layer("out/inside"), layer_format=LayerFormat.OVERLAY, lower=lower)
    assert third.files() == {"etc/inside"}
    assert third.strangers() == set()


# Broken input


@pytest.mark.parametrize("data", [b"garbage" * 200, bytes(100), b"\x1f\x8b broken"])
def test_what_is_no_tar_is_refused(root: Root, data: bytes) -> None:
    with pytest.raises(ArchiveError, match="layer test"):
        root.unpack(data)


def test_a_file_cut_short_is_refused(root: Root) -> None:
    with pytest.raises(ArchiveError):
        root.unpack(layer(Entry("file", b"x" * 5000))[:2000])


NAMES = st.sampled_from(
    ["a", "b", "..", ".", "a/b", "b/a", "a/../..", "/x", ".wh.a", ".wh..wh..opq", ".wh...", "a/b/c"]
)
ENTRIES = st.one_of(
    st.builds(Entry, NAMES, st.binary(max_size=4)),
    st.builds(lambda name: directory(name.rstrip("/")), NAMES),
    st.builds(
        lambda name, link, hard: Entry(name, link=link, hard=hard),
        NAMES,
        st.sampled_from(["a", "b", "..", "../..", "/", "/tmp", "a/b", "../a", "."]),
        st.booleans(),
    ),
)


@given(st.lists(st.lists(ENTRIES, max_size=8), min_size=1, max_size=3), st.booleans())
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_layers_hold_nothing_is_written_outside(
    tmp_path_factory: pytest.TempPathFactory, layers: list[list[Entry]], overlay: bool
) -> None:
    root = Root(tmp_path_factory.mktemp("any"))
    layer_format = LayerFormat.OVERLAY if overlay and IS_ROOT else LayerFormat.FLAT
    with contextlib.suppress(ArchiveError):
        root.unpack(*(layer(*entries) for entries in layers), layer_format=layer_format)
    assert root.strangers() == set()
    assert stat.S_IMODE(root.outside.stat().st_mode) == 0o700


@given(st.binary(max_size=2000), st.integers(0, 3000))
@settings(max_examples=examples(200), deadline=None)
def test_noise_in_a_tar_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, position: int
) -> None:
    root = Root(tmp_path_factory.mktemp("noise"))
    good = layer(directory("d"), Entry("d/f", b"x" * 600), Entry("d/l", link="f"))
    with contextlib.suppress(ArchiveError):
        root.unpack(good[:position] + noise + good[position + len(noise) :])
    assert root.strangers() == set()
