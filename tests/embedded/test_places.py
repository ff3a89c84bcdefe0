"""Places within a container's root, while another container exchanges parts of the path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MAKER = """
import os, sys
from trikubelet.embedded.keeper import linux, places

root, rounds = sys.argv[1], int(sys.argv[2])
os.chroot(root)
os.chdir("/")
made = refused = 0
for number in range(rounds):
    try:
        os.close(places.open_folder(f"/shared/door/new/{number}"))
        made += 1
    except OSError:
        refused += 1
print(made + refused)
"""
SWAPPER = """
import os, sys

os.chdir(sys.argv[1])
links = ("../../outside", "/outside", "../../../../../../outside/deep", "nowhere", "door", "/proc/1/root/tmp")
number = 0
while True:
    link = links[number % len(links)]
    number += 1
    os.symlink(link, "next")
    os.rename("next", "door") if not os.path.isdir("door") or os.path.islink("door") else os.unlink("next")
    try:
        os.unlink("door")
    except OSError:
        pass
    try:
        os.mkdir("door")
        os.rename("door", f"moved-{number}")
    except OSError:
        pass
"""


@pytest.mark.root
def test_no_place_is_made_outside_of_the_root(tmp_path: Path) -> None:
    root, shared = tmp_path / "root", tmp_path / "root" / "shared"
    shared.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    with subprocess.Popen([sys.executable, "-c", SWAPPER, str(shared)]) as swapper:
        try:
            command = [sys.executable, "-c", MAKER, str(root), "3000"]
            done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=120)
        finally:
            swapper.kill()
    assert (done.stdout, done.stderr) == ("3000\n", "")
    assert list(outside.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"root", "outside"}


@pytest.mark.root
@pytest.mark.parametrize(
    ("links", "path", "made"),
    [
        ({"a": "b/c"}, "/a/d", "b/c/d"),
        ({"a": "/b", "b": "./c/"}, "a", "c"),
        ({"a": "../../../../x"}, "/a", "x"),
        ({"a": "b/../c"}, "/a", "c"),
        ({f"l{n}": f"l{n + 1}" for n in range(39)}, "/l0", "l39"),
    ],
)
def test_a_link_says_where_a_place_is_made(tmp_path: Path, links: dict[str, str], path: str, made: str) -> None:
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    script = """
import os, sys
from trikubelet.embedded.keeper import places
os.chroot(sys.argv[1])
os.chdir("/")
print(os.path.samestat(os.fstat(places.open_folder(sys.argv[2])), os.stat("/" + sys.argv[3])))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), path, made], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert (tmp_path / made).is_dir()
    assert (tmp_path / made).stat().st_mode & 0o777 == 0o755
