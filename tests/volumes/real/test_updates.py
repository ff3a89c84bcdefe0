"""Readers of a ConfigMap that changes again and again: what they read is of one version, whenever they look."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from tests.examples import IS_NIGHT
from tests.volumes.real.joined_node import mounts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.volumes.real.joined_node import JoinedNode

UPDATES: Final = 1000 if IS_NIGHT else 100
UPDATES_ON_CONTAINERD: Final = UPDATES // 5
"""The volume is the same; the reader's container is another."""
FILES: Final = tuple("abcd")
LENGTH: Final = 2000
"""Of a file: enough that half of it would be seen."""
SHOWN_WITHIN: Final = 10.0
BETWEEN_READS: Final = 0.0005
LOOKED_FOR_EACH: Final = 25
"""After so many updates they wait for the container, which a busy machine leaves behind."""


def word(number: int) -> str:
    return f"v{number:06d}."


def version(number: int) -> dict[str, str]:
    """Each file is one word, again and again."""
    return {name: word(number) * (LENGTH // len(word(number))) for name in FILES}


READER: Final = r"""
reads=0; mixed=0; last=; trap 'done=yes' TERM
while [ -z "$done" ]; do
  cd /cm && cd -P ..data 2>/dev/null || continue
  a= b= c= d=
  { IFS= read -r a <a; IFS= read -r b <b; IFS= read -r c <c; IFS= read -r d <d; } 2>/dev/null
  [ -n "$a" ] && [ -n "$b" ] && [ -n "$c" ] && [ -n "$d" ] || continue
  reads=$((reads+1)); word="${a%%.*}."; rest="$a"
  [ "$a" = "$b" ] && [ "$a" = "$c" ] && [ "$a" = "$d" ] && [ ${#a} = LENGTH ] || { mixed=$((mixed+1)); continue; }
  [ "$a" = "$last" ] || { echo "saw: $word"; last="$a"; }
done
echo "reads: $reads"; echo "mixed: $mixed"; echo END-OF-READER; cd /; sleep 5
"""


def read_all(volume: Path) -> set[bytes] | None:
    """What all files of one version say; None when it was replaced while they were read."""
    try:
        folder = os.open(volume / "..data", os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:  # the link had been read, its target is gone
        return None
    try:
        found = set()
        for name in FILES:
            file = os.open(name, os.O_RDONLY, dir_fd=folder)
            try:
                found.add(os.read(file, 2 * LENGTH))
            finally:
                os.close(file)
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)
    return found


def test_no_reader_sees_parts_of_two_versions(node: JoinedNode) -> None:
    node.cluster.create("ConfigMap", "changing", data=version(0))
    script = READER.replace("LENGTH", str(len(version(0)["a"])))
    container = {**node.container("true", volumeMounts=mounts(("cm", "/cm"))), "command": ["sh", "-c", script]}
    node.start(
        "reader",
        container,
        volumes=[{"name": "cm", "configMap": {"name": "changing"}}],
        terminationGracePeriodSeconds=30,
    )

    def running() -> bool:
        pod = node.pod("reader") or {}
        return bool(pod.get("status", {}).get("phase") == "Running")

    node.until(running, "the reader runs", "reader")
    volume = node.volume("reader", "configmap", "cm")
    reads, updates = 0, UPDATES_ON_CONTAINERD if node.is_containerd else UPDATES
    for number in range(1, updates + 1):
        expected = {text.encode() for text in version(number).values()}
        node.cluster.replace_data("changing", version(number))
        began = time.monotonic()
        while True:
            found = read_all(volume)
            if found is not None:
                reads += 1
                assert len(found) == 1, f"mixed: {sorted(text[:8] for text in found)}"
                if found == expected:
                    break
            assert time.monotonic() - began < SHOWN_WITHIN, f"version {number} is not shown"
            time.sleep(BETWEEN_READS)
        if number % LOOKED_FOR_EACH == 0:
            node.until(
                lambda number=number: f"saw: {word(number)}" in node.lines("reader"), "the reader sees it", "reader"
            )
    assert reads >= updates
    assert sorted(path.name for path in volume.iterdir() if not path.name.startswith("..")) == sorted(FILES)
    node.until(lambda: len(list(volume.iterdir())) == len(FILES) + 2, "no folder of an older version is left")
    node.cluster.delete("pods", "reader")
    said: list[str] = []

    def told() -> bool:
        said[:] = node.lines("reader")
        return "END-OF-READER" in said

    node.until(told, "the reader tells what it has seen", "reader")
    assert "mixed: 0" in said
    node.end("reader")
