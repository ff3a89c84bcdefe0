"""An import takes little memory, whatever the archive, and gives it back when it fails."""

from __future__ import annotations

import gc
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.costs import peak_bytes
from tests.embedded.images import hostile_archives
from tests.embedded.images.archives import Entry, directory, layer
from tests.embedded.images.hostile_archives import SCALE, write_hostile_archives, write_hostile_layers
from tests.examples import IS_NIGHT, examples
from trikubelet.clock import SystemClock
from trikubelet.embedded.images.archive import ArchiveFiles
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.memory import MemoryBudget, NameSet
from trikubelet.embedded.images.model import LayerFormat, UnpackLimits
from trikubelet.embedded.images.store import ImageStore
from trikubelet.embedded.images.unpack import LayerUnpacker, UnpackBudget

if TYPE_CHECKING:
    from collections.abc import Iterable

PROJECT = Path(__file__).parents[3]
MOST_MIB = 150
FORMATS = (LayerFormat.FLAT, pytest.param(LayerFormat.OVERLAY, marks=pytest.mark.root))
KEPT = UnpackLimits().max_kept_bytes


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_hostile_archives(tmp_path_factory.mktemp("archives"))


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_hostile_layers(tmp_path_factory.mktemp("layers"), range(examples(3) * SCALE))


@pytest.mark.fuzz
@pytest.mark.parametrize("layer_format", FORMATS)
def test_a_process_that_imports_every_hostile_archive_stays_small(
    archives: list[Path], layers: list[Path], tmp_path: Path, layer_format: LayerFormat
) -> None:
    # What is refused before any layer is unpacked is the same for both formats. By day one process tries some of all.
    if IS_NIGHT:
        imported = layers + (archives if layer_format is LayerFormat.FLAT else [])
    else:
        imported = layers[::2] + archives[::5] if layer_format is LayerFormat.FLAT else layers[1::4]
    command = [
        sys.executable,
        "-m",
        "tests.embedded.images.metered_imports",
        str(tmp_path / "store"),
        layer_format.value,
    ]
    lines = subprocess.run([*command, *map(str, imported)], cwd=PROJECT, capture_output=True, text=True, check=True)
    results = [json.loads(line) for line in lines.stdout.splitlines() if line.startswith("{")]
    assert [result["archive"] for result in results] == [archive.stem for archive in imported]
    assert {result["archive"]: result["peak"] for result in results if result["peak"] > MOST_MIB} == {}
    assert {result["became"] == "imported" for result in results} == {True, False}


class Unpacking:
    """A folder that layers are unpacked into."""

    def __init__(self, path: Path, layer_format: LayerFormat = LayerFormat.FLAT) -> None:
        path.mkdir()
        self.path = path
        self.memory = MemoryBudget(KEPT)
        budget = UnpackBudget(UnpackLimits(), self.memory)
        self._unpacker = LayerUnpacker(
            path, layer_format, budget=budget, checkpoint=lambda: None, privileged=os.geteuid() == 0
        )

    def unpack(self, *layers: bytes) -> None:
        for data in layers:
            self._unpacker.apply(io.BytesIO(data), subject="layer")
        self._unpacker.finish()


def test_half_a_million_ordinary_names_are_within_the_budget() -> None:
    memory = MemoryBudget(KEPT)
    names = NameSet(memory)
    count = examples(500_000)
    for number in range(count):
        names.add(f"usr/lib/python3/dist-packages/package{number % 1000}/module{number}.py")
    assert len(names) == count
    assert memory.used <= KEPT / 1_000_000 * count
    assert "usr/lib/python3/dist-packages/package7/module7.py" in names
    assert not any(f"usr/share/doc/package{number}" in names for number in range(10_000))
    names.clear()
    assert memory.used < 1000
    assert "usr/lib/python3/dist-packages/package7/module7.py" not in names


@pytest.mark.skipif(SCALE == 1, reason="takes minutes: ARCHIVE_SCALE=10")
def test_an_image_of_half_a_million_files_is_unpacked(tmp_path: Path) -> None:
    def pieces() -> Iterable[bytes]:
        for folder in range(50_000):
            yield hostile_archives.entry(f"app/node_modules/package-{folder}", hostile_archives.FOLDER)
            for number in range(9):
                yield hostile_archives.entry(f"app/node_modules/package-{folder}/file-{number}.js")

    unpacking = Unpacking(tmp_path / "root")
    data = b"".join(pieces()) + bytes(1024)
    assert peak_bytes(lambda: unpacking.unpack(data)) < KEPT
    assert sum(len(files) for _, _, files in os.walk(unpacking.path)) == 450_000


@pytest.mark.parametrize("layer_format", FORMATS)
def test_a_layer_gives_its_memory_back(tmp_path: Path, layer_format: LayerFormat) -> None:
    good, bad = Unpacking(tmp_path / "good", layer_format), Unpacking(tmp_path / "bad", layer_format)
    files = b"".join(hostile_archives.entry(f"d/{number}") for number in range(500))
    good.unpack(files + bytes(1024))
    with pytest.raises(ArchiveError):
        bad.unpack(files + hostile_archives.entry("../out") + bytes(1024))
    assert max(good.memory.used, bad.memory.used) < 2000


@pytest.mark.parametrize("layer_format", FORMATS)
async def test_a_failed_import_gives_its_memory_back_without_the_collector(
    tmp_path: Path, layer_format: LayerFormat
) -> None:
    archive = tmp_path / "archive.tar"
    hostile_archives.write_layer_archive(archive, [hostile_archives.entry("a"), hostile_archives.entry("../b")])
    store = ImageStore(tmp_path / "store", clock=SystemClock(), layer_format=layer_format)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ArchiveError):
            await store.import_archive(archive)
        kept = (LayerUnpacker, ArchiveFiles, tarfile.TarInfo)
        assert [each for each in gc.get_objects() if isinstance(each, kept)] == []
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("pax", "reason"),
    [
        ({"SCHILY.xattr.user.a": "v" * (2**16 + 1)}, "its extended attributes have"),
        ({f"SCHILY.xattr.user.a{number}": "v" * 1000 for number in range(70)}, "its extended attributes have"),
        ({f"SCHILY.xattr.user.{'n' * 255}": "v"}, "the name of an extended attribute is longer"),
    ],
)
@pytest.mark.parametrize("entry", [Entry("file"), directory("folder")], ids=["file", "folder"])
def test_attributes_beyond_what_file_systems_take_are_refused(
    tmp_path: Path, entry: Entry, pax: dict[str, str], reason: str
) -> None:
    unpacking = Unpacking(tmp_path / "root")
    with pytest.raises(ArchiveError, match=reason):
        unpacking.unpack(layer(Entry(entry.name, pax=pax)))


def test_folders_that_nothing_brings_count_as_entries(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    budget = UnpackBudget(UnpackLimits(max_entries=10), MemoryBudget(KEPT))
    unpacker = LayerUnpacker(root, LayerFormat.FLAT, budget=budget, checkpoint=lambda: None, privileged=False)
    with pytest.raises(ArchiveError, match="more than 10 files"):
        unpacker.apply(io.BytesIO(layer("a/b/c/d/e/f/g/h/i/j/k")), subject="layer")


def test_a_folders_time_and_attributes_are_those_of_its_last_entry(tmp_path: Path) -> None:
    unpacking = Unpacking(tmp_path / "root")
    unpacking.unpack(
        layer(
            directory("d", mtime=1000, pax={"SCHILY.xattr.user.old": "1", "SCHILY.xattr.user.both": "1"}),
            directory("d/e", mode=0o555, mtime=1000),
            "d/e/file",
            directory("d", mtime=2000, pax={"SCHILY.xattr.user.both": "2"}),
            "d/other",
            "d/e/last",
        ),
        layer("d/e/later", Entry("d/.wh.other")),
    )
    folder, inner = unpacking.path / "d", unpacking.path / "d/e"
    assert (folder.stat().st_mtime, inner.stat().st_mtime) == (2000, 1000)
    assert inner.stat().st_mode & 0o777 == 0o555
    assert sorted(path.name for path in inner.iterdir()) == ["file", "last", "later"]
    assert not (folder / "other").exists()
    assert {name: os.getxattr(folder, name) for name in os.listxattr(folder)} == {"user.both": b"2"}
