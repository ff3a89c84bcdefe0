"""OVERLAY layers, mounted by the kernel, show the same files as a FLAT root of the same layers."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.embedded.images.archives import Entry, directory, layer
from tests.examples import examples
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.lower import LowerLayers
from trikubelet.embedded.images.memory import MemoryBudget
from trikubelet.embedded.images.model import LayerFormat, UnpackLimits
from trikubelet.embedded.images.unpack import LayerUnpacker, UnpackBudget

if TYPE_CHECKING:
    from pathlib import Path

# Prints {path: [kind, mode, owner, content or link]} of a directory tree.
LISTING = """
import json, os, stat, sys
found = {}
for parent, directories, files in os.walk(sys.argv[1]):
    for name in directories + files:
        path = os.path.join(parent, name)
        info = os.lstat(path)
        what = os.readlink(path) if os.path.islink(path) else open(path).read() if os.path.isfile(path) else ""
        found[os.path.relpath(path, sys.argv[1])] = [stat.filemode(info.st_mode), info.st_uid, what]
print(json.dumps(found))
"""


def unpack(path: Path, *layers: bytes, layer_format: LayerFormat, lower: LowerLayers | None = None) -> None:
    path.mkdir(parents=True)
    unpacker = LayerUnpacker(
        path,
        layer_format,
        budget=UnpackBudget(UnpackLimits(), MemoryBudget(2**25)),
        checkpoint=lambda: None,
        lower=lower,
        privileged=True,
    )
    for data in layers:
        unpacker.apply(io.BytesIO(data), subject="layer")
    unpacker.finish()


def shown_flat(root: Path) -> object:
    return json.loads(subprocess.check_output([sys.executable, "-c", LISTING, str(root)]))


def shown_merged(layers: list[Path], target: Path) -> object:
    target.mkdir()
    options = f"lowerdir={':'.join(str(path) for path in reversed(layers))}"
    script = 'mount -t overlay overlay -o "$1" "$2" && exec "$3" -c "$4" "$2"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", options, str(target), sys.executable, LISTING]
    return json.loads(subprocess.check_output(command))


NAMES = st.sampled_from(["a", "b", "a/b", "a/c", "b/a", "a/b/c", "link/x", "link"])
ENTRIES = st.one_of(
    st.builds(Entry, NAMES, st.binary(min_size=1, max_size=2).map(lambda data: data.hex().encode())),
    st.builds(directory, NAMES, st.sampled_from([0o755, 0o700]), uid=st.sampled_from([0, 5])),
    st.builds(Entry, NAMES, link=st.sampled_from(["a", "b", "a/b"])),
    st.sampled_from(
        [Entry(name) for name in (".wh.a", ".wh.b", "a/.wh.b", "a/.wh..wh..opq", ".wh..wh..opq", ".wh.link")]
    ),
)


@pytest.mark.root
@given(st.lists(st.lists(ENTRIES, max_size=5), min_size=2, max_size=3))
@settings(max_examples=examples(40), deadline=None)
def test_the_kernels_merge_of_overlay_layers_equals_the_flat_root(
    tmp_path_factory: pytest.TempPathFactory, layers: list[list[Entry]]
) -> None:
    base = tmp_path_factory.mktemp("merge")
    tars = [layer(directory("floor"), *entries) for entries in layers]
    outcomes: list[str] = []
    placed: list[Path] = []
    try:
        for number, data in enumerate(tars):
            path = base / f"layer{number}"
            lower = LowerLayers([str(below) for below in placed])
            unpack(path, data, layer_format=LayerFormat.OVERLAY, lower=lower)
            placed.append(path)
    except ArchiveError as error:
        outcomes.append(str(error))
    try:
        unpack(base / "flat", *tars, layer_format=LayerFormat.FLAT)
    except ArchiveError as error:
        outcomes.append(str(error))
    if outcomes:  # refused by both, or by one: then nothing is stored, and there is nothing to compare
        return
    assert shown_merged(placed, base / "merged") == shown_flat(base / "flat")
