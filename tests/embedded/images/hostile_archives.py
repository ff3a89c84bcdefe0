"""Image archives that were made to take memory: small files, written quickly, each of which a registry could send.

`tarfile` is too slow for so many entries, and refuses to write some of these, so headers are made here.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
from typing import TYPE_CHECKING, Final

from tests.embedded.images.archives import OciLayout, image_spec
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

SCALE: Final = int(os.environ.get("ARCHIVE_SCALE", "1"))
"""How many times as many entries as else have the layers that are written to disk before they are refused."""
FILE, HARD_LINK, LINK, FOLDER = b"0", b"1", b"2", b"5"
_GLOBAL, _EXTENDED = b"g", b"x"
_BLOCK: Final = 512
_END: Final = bytes(2 * _BLOCK)


def header(name: bytes, kind: bytes = FILE, size: int = 0, link: bytes = b"") -> bytes:
    """One block of a tar."""
    block = bytearray(_BLOCK)
    block[: len(name)] = name
    block[100:108] = b"0000755\0" if kind == FOLDER else b"0000644\0"
    block[108:124] = b"0000000\0" * 2
    block[124:136] = b"%011o\0" % size
    block[136:148] = b"%011o\0" % 1_700_000_000
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % _BLOCK)


def records(fields: Mapping[str, str]) -> bytes:
    """The content of an extended header."""
    written = []
    for key, value in fields.items():
        field = f" {key}={value}\n".encode()
        size = len(field) + len(str(len(field)))
        size = len(field) + len(str(size))
        written.append(b"%d%s" % (size, field))
    return b"".join(written)


def extended(fields: Mapping[str, str], kind: bytes = _EXTENDED) -> bytes:
    content = records(fields)
    return header(b"pax", kind, len(content)) + padded(content)


def entry(
    name: str, kind: bytes = FILE, content: bytes = b"", link: str = "", fields: Mapping[str, str] | None = None
) -> bytes:
    """An entry, with an extended header for fields, and where its names are long."""
    fields = dict(fields or {})
    if len(name) > 99:
        fields["path"], name = name, "long"
    if len(link) > 99:
        fields["linkpath"], link = link, "long"
    before = extended(fields) if fields else b""
    return before + header(name.encode(), kind, len(content), link.encode()) + padded(content)


def attributes(count: int, size: int, first: int = 0) -> dict[str, str]:
    """Extended attributes of so many bytes each."""
    return {f"SCHILY.xattr.user.a{first + number}": "v" * size for number in range(count)}


def _long_path(depth: int, width: int) -> str:
    return "/".join("n" * width for _ in range(depth))


# --- Layers -----------------------------------------------------------------------------------------------------------


def _global_attributes() -> Iterator[bytes]:
    yield extended(attributes(90, 11_000), _GLOBAL)
    yield from (entry(f"d{number}", FOLDER) for number in range(3000))


def _attributes_of_each_folder() -> Iterator[bytes]:
    large = extended(attributes(90, 11_000))
    yield from (large + entry(f"d{number}", FOLDER) for number in range(examples(480)))


def _small_attributes_of_each_folder() -> Iterator[bytes]:
    small = attributes(1, 3000)
    yield from (entry(f"d{number}", FOLDER, fields=small) for number in range(examples(2000) * SCALE))


def _long_names() -> Iterator[bytes]:
    folder = _long_path(18, 200)
    yield from (entry(f"{folder}/{number}") for number in range(examples(2000) * SCALE))


def _many_names_in_one_folder_that_is_hidden() -> Iterator[bytes]:
    yield from (entry(f"d/{number:0250}", LINK, link="x") for number in range(examples(3000) * SCALE))
    yield entry("d/.wh..wh..opq")


def _names_beyond_all_bounds() -> Iterator[bytes]:
    yield from (entry("./" * 400_000 + str(number)) for number in range(20))


def _targets_beyond_all_bounds() -> Iterator[bytes]:
    yield from (entry(f"l{number}", LINK, link="x/" * 400_000) for number in range(20))


def _implied_folders() -> Iterator[bytes]:
    deep = _long_path(150, 20)
    yield from (entry(f"{number}/{deep}/file") for number in range(examples(15) * SCALE))


def _hard_links() -> Iterator[bytes]:
    for number in range(examples(2000) * SCALE):
        yield entry(f"f{number}")
        yield entry(f"h{number}", HARD_LINK, link=f"f{number}")


def _whiteouts() -> Iterator[bytes]:
    yield from (entry(f"{number}/.wh.{number:0240}") for number in range(examples(2000) * SCALE))


def _small_fields() -> Iterator[bytes]:
    keys = (chr(33 + a) + chr(62 + b) + chr(62 + c) for a in range(20) for b in range(60) for c in range(60))
    fields = extended(dict.fromkeys(keys, ""))
    yield from (fields + entry(f"f{number}") for number in range(20))


def _holes() -> Iterator[bytes]:
    """A file of many holes, in the way that keeps the map before the content."""
    pieces = 200_000
    numbers = b"%d\n" % pieces + b"0\n0\n" * (pieces - 1) + b"9\n0\n"
    fields = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": "9"}
    yield from (entry("s", content=padded(numbers), fields=fields) for _ in range(3))


def _by_chance(seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    folders = [""]
    for number in range(1500):
        if chance.random() < 0.001:
            yield extended(attributes(chance.randrange(1, 40), chance.choice((10, 40))), _GLOBAL)
        parent = chance.choice(folders)
        name = f"{parent}{number:0{chance.choice((1, 20, 240))}}"
        if chance.random() < 0.0003:  # beyond what a file system takes
            yield entry(name, FOLDER, fields=attributes(chance.randrange(9, 90), 10_000))
        fields = attributes(chance.randrange(1, 20), chance.choice((1, 90))) if chance.random() < 0.02 else {}
        match chance.randrange(7):
            case 0 | 1:
                folders.append(f"{name}/")
                yield entry(name, FOLDER, fields=fields)
            case 2:
                yield entry(name, LINK, link="x" * chance.choice((1, 4000)))
            case 3:
                yield entry(f"{parent}.wh.{number - chance.randrange(9)}")
            case 4:
                yield entry(f"{parent}{'p/' * chance.choice((1, 50, 100))}{number}")
            case 5 if chance.random() < 0.1:
                yield entry(f"{parent}.wh..wh..opq")
            case _:
                yield entry(name, content=b"x" * chance.choice((0, 10, 2000)), fields=fields)


_LAYERS: Final[dict[str, Callable[[], Iterable[bytes]]]] = {
    made.__name__.strip("_"): made
    for made in (
        _global_attributes,
        _attributes_of_each_folder,
        _small_attributes_of_each_folder,
        _long_names,
        _many_names_in_one_folder_that_is_hidden,
        _names_beyond_all_bounds,
        _targets_beyond_all_bounds,
        _implied_folders,
        _hard_links,
        _whiteouts,
        _small_fields,
        _holes,
    )
}


def write_layer_archive(path: Path, entries: Iterable[bytes]) -> None:
    """An archive of one image with one layer, which is made piece by piece, as it may be large before compression."""
    plain, packed = hashlib.sha256(), io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as out:
        for piece in (*entries, _END):
            plain.update(piece)
            out.write(piece)
    spec = json.loads(image_spec([]))
    spec["rootfs"]["diff_ids"] = [f"sha256:{plain.hexdigest()}"]
    layout = OciLayout()
    layout.add(_described(layout, json.dumps(spec).encode(), [packed.getvalue()]), f"localhost/{path.stem}:1")
    layout.write(path)


def _described(layout: OciLayout, spec: bytes, layers: list[bytes]) -> dict[str, object]:
    manifest = {
        "schemaVersion": 2,
        "config": layout.blob(spec, "application/vnd.oci.image.config.v1+json"),
        "layers": [layout.blob(data, "application/vnd.oci.image.layer.v1.tar+gzip") for data in layers],
    }
    return layout.blob(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")


# --- Archives ---------------------------------------------------------------------------------------------------------


def _files_with_long_names(path: Path) -> None:
    folder = _long_path(18, 200)
    with gzip.open(path, "wb", compresslevel=1) as out:
        for number in range(45_000):
            out.write(entry(f"{folder}/{number}"))
        out.write(_END)


def _files_with_large_headers(path: Path) -> None:
    large = {f"x{number}": "v" * 11_000 for number in range(90)}
    with gzip.open(path, "wb", compresslevel=1) as out:
        for number in range(examples(60)):
            out.write(entry(str(number), fields=large))
        out.write(_END)


def _one_manifest_by_many_names(path: Path) -> None:
    layout = OciLayout()
    described = _described(layout, image_spec([], {"Labels": {"a": "b" * 2**20}}), [])
    for number in range(2000):
        layout.add(described, f"localhost/many:{number}")
    layout.write(path)


def _images_with_large_documents(path: Path) -> None:
    layout = OciLayout()
    for number in range(12):
        spec = image_spec([], {"Labels": {"é": "b" * 3 * 2**20, "n": str(number)}})
        layout.add(_described(layout, spec, []), f"localhost/large:{number}")
    layout.write(path)


def _images_with_long_histories(path: Path) -> None:
    layout = OciLayout()
    for number in range(12):
        spec = image_spec([], {}, history=[{"created_by": f"{number}{'h' * 100}\N{SNOWMAN}"}] * 20_000)
        layout.add(_described(layout, spec, []), f"localhost/history:{number}")
    layout.write(path)


_ARCHIVES: Final[dict[str, Callable[[Path], None]]] = {
    made.__name__.strip("_"): made
    for made in (
        _files_with_long_names,
        _files_with_large_headers,
        _one_manifest_by_many_names,
        _images_with_large_documents,
        _images_with_long_histories,
    )
}


def write_hostile_archives(folder: Path) -> list[Path]:
    """All that are refused before a layer is unpacked."""
    paths: list[Path] = []
    for name, write in _ARCHIVES.items():
        paths.append(folder / f"{name}.tar")
        write(paths[-1])
    return paths


def write_hostile_layers(folder: Path, seeds: Iterable[int]) -> list[Path]:
    """An archive with each of the layers, and one with a layer of chance for each seed."""
    paths: list[Path] = []
    for name, entries in _LAYERS.items():
        paths.append(folder / f"{name}.tar")
        write_layer_archive(paths[-1], entries())
    for seed in seeds:
        paths.append(folder / f"chance-{seed}.tar")
        write_layer_archive(paths[-1], _by_chance(seed))
    return paths
