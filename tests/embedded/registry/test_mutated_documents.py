"""Many inputs from anybody to each reader: documents and layers that were whole, and of which parts were changed.

10,000 for each by day, and a million by night (`DOCUMENT_INPUTS`); of layers, which cost milliseconds each, a twentieth
of that. Each is read or refused; no other error comes out.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from typing import TYPE_CHECKING, Final

import pytest

from tests.embedded.images.archives import Entry, digest, directory, image_spec, layer
from tests.embedded.registry.scripted_registry import INDEX, MANIFEST
from tests.mutated import changed_bytes, changed_document
from tests.watchdog import one_example
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.model import LayerFormat, UnpackLimits, config_from_spec
from trikubelet.embedded.images.oci_layout import Manifest, config_of, digest_in, fittest_children, image_of, is_index
from trikubelet.embedded.images.platform import Platform
from trikubelet.embedded.images.unpack import LayerUnpacker, UnpackBudget
from trikubelet.embedded.registry.documents import parse_document, size_in
from trikubelet.embedded.registry.errors import HostsFileError
from trikubelet.embedded.registry.hosts import parse_hosts_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INPUTS: Final = int(os.environ.get("DOCUMENT_INPUTS", "10000"))
LAYERS: Final = INPUTS // 20
HOST: Final = Platform("linux", "amd64")
DIGEST: Final = digest(b"")

_DESCRIPTOR: Final = {"mediaType": MANIFEST, "digest": DIGEST, "size": 7, "platform": {"os": "linux", "variant": "v8"}}
_CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = layer(
    directory("d"), Entry("d/file", b"content" * 200), Entry("link", link="d/file"), Entry("d/.wh.gone"), "x" * 150
)
_WHOLE: Final = {
    "index": {"schemaVersion": 2, "mediaType": INDEX, "manifests": [_DESCRIPTOR] * 3},
    "manifest": {"schemaVersion": 2, "config": {**_DESCRIPTOR, "mediaType": _CONFIG_TYPE}, "layers": [_DESCRIPTOR] * 2},
    "config": json.loads(image_spec([b"", b""], {"Env": ["A=b"], "Cmd": ["c"], "User": "1:2", "Volumes": {"/v": {}}})),
}
_OTHERS: Final = ({"digest": 7}, DIGEST)


def _index(body: bytes) -> None:
    document = parse_document(body, "index")
    is_index(document.get("mediaType"), document)
    for child in fittest_children(document, "index", HOST)[0]:
        digest_in(child)
        size_in(child)


def _manifest(body: bytes) -> None:
    document = parse_document(body, "manifest")
    config = config_of(document, "manifest")
    size_in(config)
    image_of(Manifest(DIGEST, document, _WHOLE["config"], digest_in(config), (DIGEST,)), "r.example/app:1", "")


def _config(body: bytes) -> None:
    spec = parse_document(body, "config")
    Platform.from_json(spec).rank_on(HOST)
    config_from_spec(spec)
    image_of(Manifest(DIGEST, _WHOLE["manifest"], spec, DIGEST, (DIGEST,)), "r.example/app:1", "")


@pytest.mark.fuzz
@pytest.mark.parametrize(("kind", "read"), [("index", _index), ("manifest", _manifest), ("config", _config)])
def test_a_changed_document_is_read_or_refused(kind: str, read: Callable[[bytes], None]) -> None:
    refused = 0
    for seed in range(INPUTS):
        body = changed_document(random.Random(seed), _WHOLE[kind], _OTHERS)
        try:
            with one_example():
                read(body)
        except ArchiveError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {body!r}") from error
    assert 0 < refused < INPUTS


@pytest.mark.fuzz
def test_a_changed_layer_is_unpacked_or_refused(tmp_path: Path) -> None:
    refused = 0
    limits = UnpackLimits(max_bytes=2**20, max_entries=100)
    for seed in range(LAYERS):
        root = tmp_path / "root"
        root.mkdir()
        budget = UnpackBudget(limits)
        unpacker = LayerUnpacker(root, LayerFormat.FLAT, budget=budget, checkpoint=lambda: None, privileged=False)
        try:
            with one_example():
                unpacker.apply(_Bytes(changed_bytes(random.Random(seed), _LAYER)), subject="layer")
                unpacker.finish()
        except ArchiveError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        shutil.rmtree(root)
    assert 0 < refused < LAYERS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fuzz
def test_a_changed_hosts_file_is_read_or_refused(tmp_path: Path) -> None:
    whole = b'server = "https://r"\n[host."https://m:1/p"]\ncapabilities = ["pull"]\nca = "c"\ndial_timeout = "1s"\n'
    refused = 0
    for seed in range(INPUTS):
        text = changed_bytes(random.Random(seed), whole).decode(errors="replace")
        try:
            with one_example():
                parse_hosts_file("r.example", text, tmp_path)
        except HostsFileError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {text!r}") from error
    assert 0 < refused < INPUTS


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read(self, size: int = -1, /) -> bytes:
        size = len(self._data) if size < 0 else size
        taken, self._data = bytes(self._data[:size]), self._data[size:]
        return taken
