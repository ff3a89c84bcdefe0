"""Many inputs from anybody to each reader: documents and layers that were whole, and of which parts were changed.

2,500 of each by day, 100,000 new ones by night (`DOCUMENT_INPUTS`). Each is read or refused; no other error comes out.
What was made to be expensive takes bounded memory, and steps in proportion to its length.
"""

from __future__ import annotations

import json
import os
import random
import tarfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import pytest

from tests.costs import peak_bytes, steps
from tests.embedded.images.archives import Entry, digest, directory, image_spec, layer
from tests.embedded.registry.scripted_registry import INDEX, MANIFEST
from tests.examples import examples, seeds
from tests.mutated import changed_bytes, changed_document
from tests.watchdog import one_example
from trikubelet.embedded.images.errors import ArchiveError
from trikubelet.embedded.images.memory import MemoryBudget
from trikubelet.embedded.images.model import LayerFormat, UnpackLimits, config_from_spec
from trikubelet.embedded.images.oci_layout import Manifest, config_of, digest_in, fittest_children, image_of, is_index
from trikubelet.embedded.images.platform import Platform
from trikubelet.embedded.images.tar_stream import MAX_HEADER_BYTES
from trikubelet.embedded.images.unpack import LayerUnpacker, UnpackBudget
from trikubelet.embedded.registry.documents import MOST_BYTES, parse_document, size_in
from trikubelet.embedded.registry.errors import HostsFileError
from trikubelet.embedded.registry.hosts import parse_hosts_file
from trikubelet.linux.trees import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INPUTS: Final = int(os.environ.get("DOCUMENT_INPUTS", examples(10_000)))
HOSTS: Final = (Platform("linux", "amd64"), Platform("linux", "arm", "v7"))
DIGEST: Final = digest(b"")
LAYERS_IN_A_ROOT: Final = 200
"""Each meets what those before it left; to remove a root takes longer than to fill it."""
PULL_BYTES: Final = 32 * 2**20
"""What a pull may take."""

_DESCRIPTOR: Final = {"mediaType": MANIFEST, "digest": DIGEST, "size": 7, "platform": {"os": "linux", "variant": "v8"}}
_CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"


def _sparse(version: str, **fields: str) -> Entry:
    """A file with holes, in one of the ways that GNU tar has for it."""
    content = b"1\n0\n4\n".ljust(512, b"\0") + b"tail" if version == "1.0" else b"tail"
    numbers = dict(zip(("GNU.sparse.major", "GNU.sparse.minor"), version.split("."), strict=True))
    told = {f"GNU.sparse.{name}": value for name, value in fields.items()}
    return Entry(f"sparse-{version}", content, pax={**numbers, "GNU.sparse.name": "holes", **told})


_LAYERS: Final = tuple(
    layer(*entries)
    for entries in (
        (
            directory("d"),
            Entry("d/file", b"content" * 200),
            Entry("link", link="d/file"),
            Entry("d/.wh.gone"),
            "x" * 150,
        ),
        (directory("a"), directory("a/b"), "a/b/file", Entry("a/.wh..wh..opq"), Entry(".wh.d")),
        (Entry("link", link="d/file", hard=True), Entry("up", link="../../.."), Entry("up/file", b"x"), "link/in"),
        (Entry("d", link="/etc"), Entry("d/passwd", b"x"), Entry(".wh..wh..opq"), directory("d/e/f")),
        (
            Entry("x", b"x", pax={"mtime": "1.5", "uid": "7", "SCHILY.xattr.user.a": "b"}),
            Entry("fifo", kind=tarfile.FIFOTYPE),
        ),
        (Entry("a", b"", size=2**60), Entry("null", kind=tarfile.CHRTYPE, device=(1, 3))),
        (_sparse("1.0", realsize="4"), _sparse("0.1", size="4", map="0,4"), _sparse("0.0", size="4", offset="0")),
        (
            Entry("g", kind=tarfile.XGLTYPE, content=b"13 comment=x\n"),
            Entry("old", b"tail", kind=tarfile.GNUTYPE_SPARSE),
        ),
    )
)
_WHOLE: Final = {
    "index": {"schemaVersion": 2, "mediaType": INDEX, "manifests": [_DESCRIPTOR] * 3},
    "manifest": {"schemaVersion": 2, "config": {**_DESCRIPTOR, "mediaType": _CONFIG_TYPE}, "layers": [_DESCRIPTOR] * 2},
    "config": json.loads(image_spec([b"", b""], {"Env": ["A=b"], "Cmd": ["c"], "User": "1:2", "Volumes": {"/v": {}}})),
}
_OTHERS: Final = ({"digest": 7}, DIGEST, {"os": "linux", "architecture": "arm", "variant": "u²"})


def _index(body: bytes) -> None:
    document = parse_document(body, "index")
    is_index(document.get("mediaType"), document)
    for host in HOSTS:
        for child in fittest_children(document, "index", host)[0]:
            digest_in(child)
            size_in(child)


def _manifest(body: bytes) -> None:
    document = parse_document(body, "manifest")
    config = config_of(document, "manifest")
    size_in(config)
    image_of(Manifest(DIGEST, document, _WHOLE["config"], digest_in(config), (DIGEST,)), "r.example/app:1", "")


def _config(body: bytes) -> None:
    spec = parse_document(body, "config")
    for host in HOSTS:
        Platform.from_json(spec).rank_on(host)
    config_from_spec(spec)
    image_of(Manifest(DIGEST, _WHOLE["manifest"], spec, DIGEST, (DIGEST,)), "r.example/app:1", "")


_READERS: Final[dict[str, Callable[[bytes], None]]] = {"index": _index, "manifest": _manifest, "config": _config}


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", _READERS)
def test_a_changed_document_is_read_or_refused(kind: str) -> None:
    refused = 0
    for seed in seeds(INPUTS):
        body = changed_document(random.Random(seed), _WHOLE[kind], _OTHERS)
        try:
            with one_example():
                _READERS[kind](body)
        except ArchiveError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {body!r}") from error
    assert 0 < refused < INPUTS


def unpack(root: Path, data: bytes, layer_format: LayerFormat = LayerFormat.FLAT, *, most_entries: int = 100) -> None:
    limits = UnpackLimits(max_bytes=2**20, max_entries=most_entries)
    budget = UnpackBudget(limits, MemoryBudget(2**25))
    unpacker = LayerUnpacker(root, layer_format, budget=budget, checkpoint=lambda: None, privileged=False)
    unpacker.apply(_Bytes(data), subject="layer")
    unpacker.finish()


@pytest.mark.fuzz
def test_a_changed_layer_is_unpacked_or_refused(tmp_path: Path) -> None:
    refused = 0
    root, beside = tmp_path / "root", tmp_path / "beside"
    beside.write_text("as it was")
    for number, seed in enumerate(seeds(INPUTS)):
        if number % LAYERS_IN_A_ROOT == 0:
            if number:
                remove_tree(root)
            root.mkdir()
        chance = random.Random(seed)
        try:
            with one_example():
                unpack(root, changed_bytes(chance, chance.choice(_LAYERS)))
        except ArchiveError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, after those from {seed - number % LAYERS_IN_A_ROOT} on") from error
    assert 0 < refused < INPUTS
    assert beside.read_text() == "as it was"
    assert {path.name for path in tmp_path.iterdir()} == {"root", "beside"}
    remove_tree(root)


@pytest.mark.fuzz
def test_a_changed_hosts_file_is_read_or_refused(tmp_path: Path) -> None:
    whole = b'server = "https://r"\n[host."https://m:1/p"]\ncapabilities = ["pull"]\nca = "c"\ndial_timeout = "1s"\n'
    refused = 0
    for seed in seeds(INPUTS):
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


# --- Made to be expensive ---------------------------------------------------------------------------------------------


def _filled(kind: str, item: str, most: int) -> bytes:
    """A document with so many bytes of an item, where it has a list."""
    descriptor = json.dumps(_DESCRIPTOR)
    begin, end = {
        "index": ('{"manifests":[', "]}"),
        "manifest": (f'{{"config":{descriptor},"layers":[', "]}"),
        "config": (f'{{"rootfs":{{"diff_ids":["{DIGEST}"]}},"config":{{"Env":[', "]}}"),
    }[kind]
    count = (most - len(begin) - len(end)) // (len(item) + 1)
    return f"{begin}{','.join([item] * count)}{end}".encode()


_ITEMS: Final = {
    "index": ("{}", "[]", json.dumps({"digest": DIGEST, "size": 1, "platform": {"os": "x"}})),
    "manifest": ("{}", json.dumps({"digest": DIGEST, "size": 1})),
    "config": ('"ab"', '"\\ud83d\\ude00"', "{}"),
}
_EXPENSIVE: Final = [(kind, item) for kind, items in _ITEMS.items() for item in items]


@pytest.mark.parametrize(("kind", "item"), _EXPENSIVE)
def test_the_largest_document_takes_little_memory(kind: str, item: str) -> None:
    body = _filled(kind, item, MOST_BYTES)

    def read() -> None:
        with suppress(ArchiveError):
            _READERS[kind](body)

    assert peak_bytes(read) < PULL_BYTES - MOST_BYTES


@pytest.mark.parametrize(("kind", "item"), _EXPENSIVE)
def test_a_document_takes_steps_in_proportion(kind: str, item: str) -> None:
    def taken(count: int) -> int:
        def read() -> None:
            with suppress(ArchiveError):
                _READERS[kind](body)

        body = _filled(kind, item, 200 + count * (len(item) + 1))
        return steps(read)

    assert taken(800) < 5 * taken(200) + 1000


def _directories_that_files_replace(count: int) -> bytes:
    made = [directory(f"d{number}") for number in range(count)]
    return layer(*made, *(f"d{number}" for number in range(count)))


def _directories_hidden_again_and_again(count: int) -> bytes:
    return layer(*(f"f{number}" for number in range(count)), *[Entry(".wh..wh..opq")] * count)


def _files_that_are_hidden(count: int) -> bytes:
    return layer(*(f"d{number}/f" for number in range(count)), *(Entry(f".wh.d{number}") for number in range(count)))


def _links_that_lead_to_each_other(count: int) -> bytes:
    links = [Entry(f"l{number}", link=f"l{number + 1}") for number in range(30)]
    return layer(directory("l30"), *links, *(f"l0/f{number}" for number in range(count)))


@pytest.mark.parametrize(
    "made",
    [
        _directories_that_files_replace,
        _directories_hidden_again_and_again,
        _files_that_are_hidden,
        _links_that_lead_to_each_other,
    ],
)
def test_a_layer_takes_steps_in_proportion(tmp_path: Path, made: Callable[[int], bytes]) -> None:
    def taken(count: int) -> int:
        root = tmp_path / str(count)
        root.mkdir()
        data = made(count)
        return steps(lambda: unpack(root, data, most_entries=1000))

    assert taken(200) < 5 * taken(50)


def _records(content: bytes, kind: bytes = tarfile.XHDTYPE, times: int = 1) -> bytes:
    """A layer with extended headers and a file."""
    return layer(*[Entry("pax", content, kind=kind)] * times, "file")


def _global_fields() -> bytes:
    headers = []
    for number in range(40):
        field = f" k{number}={'v' * 2**16}\n"
        headers.append(Entry("pax", f"{len(field) + 5}{field}".encode(), kind=tarfile.XGLTYPE))
    return layer(*headers, "file")


def _old_sparse(blocks: int) -> bytes:
    """A map of holes that goes on in many blocks."""
    header = bytearray(layer(Entry("old", kind=tarfile.GNUTYPE_SPARSE))[:512])
    header[257:265] = b"ustar  \0"
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    more = (b"00000000001\0" * 42).ljust(504, b"\0") + b"\1" + bytes(7)
    return bytes(header) + more * blocks


_BOMBS: Final = {
    "a keyword up to the last equals sign": _records(b"2 " * 8192 + b"=\n"),
    "digits": _records(b"%d a=%s\n" % (2**14 + 9, b"1" * 2**14)),
    "a record of no length": _records(b"0 a=b\n"),
    "no end of a record": _records(b"6 a=bc"),
    "no field": _records(b"6 abc\n"),
    "many headers": _records(b"9 ab=cde\n", times=200),
    "global headers": _global_fields(),
    "a large header": layer(Entry("x" * (MAX_HEADER_BYTES + 1))),
    "a map of holes": _old_sparse(3 * MAX_HEADER_BYTES // 512),
    "a map without numbers": layer(attrs.evolve(_sparse("1.0", realsize="4"), content=b"9" * 2**16)),
    "a map of many numbers": layer(attrs.evolve(_sparse("1.0", realsize="4"), content=b"999999\n" + b"1\n" * 2**20)),
    "whiteout of a size": layer(Entry("dir/.wh.x", size=2**60)),
}


@pytest.mark.parametrize(
    "what",
    # While each piece of memory is counted, the longest map takes seconds. That of holes ends at the same limit.
    [pytest.param(each, marks=[pytest.mark.night] if each == "a map of many numbers" else []) for each in _BOMBS],
)
def test_what_was_made_to_exhaust_a_reader_is_refused_with_little_memory(tmp_path: Path, what: str) -> None:
    def refuse() -> None:
        with pytest.raises(ArchiveError) as caught:
            unpack(tmp_path, _BOMBS[what])
        assert len(str(caught.value)) < 2000

    assert peak_bytes(refuse) < PULL_BYTES / 2
