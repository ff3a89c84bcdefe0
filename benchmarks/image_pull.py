"""An image of 300 MiB in ten layers from a registry on loopback: the embedded runtime beside `ctr images pull`.

    python -m benchmarks.image_pull [--json FILE] [--rounds N]

They take turns, and each begins without the image. Half of each layer is noise, half text. The embedded runtime's
memory is what this process has more than before, at most. Needs root, docker-registry and containerd (`make packages`).
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import attrs
import click
import trio

from benchmarks.picture import picture_option
from benchmarks.report import Result, report
from tests.containerd_node import ContainerdNode
from tests.embedded.images.archives import Entry, digest, image_spec, layer
from tests.oci_image import MANIFEST_TYPE, OciImage
from tests.registry_node import RegistryNode
from trikubelet.clock import SystemClock
from trikubelet.embedded.images.reference import Reference
from trikubelet.embedded.images.store import ImageStore
from trikubelet.embedded.registry.puller import Puller

LAYERS: Final = 10
FILES: Final = 145
FILE_BYTES: Final = 300 * 1024
NAME: Final = "large:1"


@attrs.frozen
class LayeredImage(OciImage):
    """An image of several layers; `layer` is the first of them."""

    others: tuple[bytes, ...] = ()

    @property
    def blobs(self) -> tuple[bytes, ...]:
        return (self.layer, *self.others, self.config)


def large_image() -> LayeredImage:
    """The same one every time."""
    chance = random.Random(1)
    words = [chance.randbytes(8).hex().encode() for _ in range(4000)]

    def content() -> bytes:
        text = b" ".join(chance.choice(words) for _ in range(FILE_BYTES // 34))
        return chance.randbytes(FILE_BYTES // 2) + text

    tars = [layer(*(Entry(f"{number}/{file}", content()) for file in range(FILES))) for number in range(LAYERS)]
    packed = [gzip.compress(tar, 6, mtime=0) for tar in tars]
    config = image_spec(tars)
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
        "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar+gzip", blob) for blob in packed],
    }
    return LayeredImage(packed[0], config, json.dumps(manifest).encode(), tuple(packed[1:]))


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


async def pull_embedded(folder: Path, name: str) -> tuple[float, int]:
    """Seconds, and bytes of memory, of one pull into an empty store."""
    clock = SystemClock()
    puller = Puller(ImageStore(folder, clock=clock), clock=clock)
    before = most = resident_bytes()
    pulled = trio.Event()
    async with trio.open_nursery() as nursery:

        async def pull() -> None:
            await puller.pull(Reference.parse(name))
            pulled.set()

        began = time.monotonic()
        nursery.start_soon(pull)
        while not pulled.is_set():
            most = max(most, resident_bytes())
            await trio.sleep(0.01)
    return time.monotonic() - began, most - before


def pull_containerd(containerd: ContainerdNode, name: str) -> float:
    """Seconds of one pull; the image is removed again."""
    began = time.monotonic()
    command = ["ctr", "-a", str(containerd.socket), "images", "pull", "--plain-http", name]
    subprocess.run(command, check=True, capture_output=True)
    took = time.monotonic() - began
    subprocess.run(
        ["ctr", "-a", str(containerd.socket), "images", "rm", "--sync", name], check=True, capture_output=True
    )
    return took


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@click.command()
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the results here too.")
@picture_option
@click.option("--rounds", default=3, show_default=True)
@click.option("--push-to", type=int, hidden=True, help="Only push the image to the registry on this port.")
def main(json_file: Path | None, rounds: int, push_to: int | None) -> None:
    if push_to is not None:
        RegistryNode(Path(), protected=False, port=push_to).push(NAME, large_image())
        return
    with TemporaryDirectory(prefix="trikubelet-") as temporary:
        folder = Path(temporary)
        registry = RegistryNode(folder / "registry", protected=False)
        containerd = ContainerdNode(folder / "containerd", bridge="tkbpull0")
        try:
            registry.start()
            # In a process of its own, whose memory is not this one's.
            subprocess.run([sys.executable, "-m", "benchmarks.image_pull", f"--push-to={registry.port}"], check=True)
            containerd.start()
            name = f"{registry.host}/{NAME}"
            ours, theirs, memory = [], [], []
            for number in range(rounds):
                seconds, grown = trio.run(pull_embedded, folder / f"store-{number}", name)
                ours.append(seconds)
                memory.append(grown)
                theirs.append(pull_containerd(containerd, name))
        finally:
            containerd.stop()
            registry.stop()
    click.echo(f"embedded {median(ours):.1f} s, ctr {median(theirs):.1f} s")
    met = report(
        [
            Result("pull of 300 MiB beside `ctr images pull`", "times", median(ours) / median(theirs), 1.2),
            Result("memory of a pull", "MiB", max(memory) / 2**20, 32),
        ],
        json_file,
    )
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
