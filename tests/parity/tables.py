"""The tables of `docs/parity/`: what a kubelet 1.36 has, where it is in this code, or why it is not.

A line has a `name`, and `where`, a path in the repository, or a `note`, or both. A note that begins with `ours` is of
something that no kubelet has; all others say why it is left out, or what is to be known of it. That it is to come is no
reason. The name is looked for in the file; beside a note it need not be there.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "parity"
COLUMNS: Final = ["name", "where", "note"]
KINDS: Final = ("fields", "flags", "gates", "metrics", "events", "endpoints")
NOT_YET: Final = "not yet"
OURS: Final = "ours"


@attrs.frozen
class Row:
    """One line."""

    name: str
    where: str = ""
    note: str = ""

    @property
    def is_ours(self) -> bool:
        return self.note.startswith(OURS)

    @property
    def is_here(self) -> bool:
        return bool(self.where)


def read(kind: str, folder: Path = FOLDER) -> list[Row]:
    """Raises ValueError for a file of another shape."""
    with (folder / f"{kind}.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    if lines[:1] != [COLUMNS]:
        raise ValueError(f"{kind}.csv: expected the columns {COLUMNS}, got {lines[:1]}")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(COLUMNS):
            raise ValueError(f"{kind}.csv, line {number}: expected {len(COLUMNS)} columns, got {line}")
    return [Row(*line) for line in lines[1:]]


def problems(kind: str, rows: Iterable[Row], root: Path = ROOT) -> Iterator[str]:
    """What is wrong with a table by itself."""
    rows = list(rows)
    names = [row.name for row in rows]
    if names != sorted(set(names)):
        yield "names have to be in order, each once"
    for row in rows:
        if not row.where and not row.note:
            yield f"{row.name}: neither where it is nor why not"
        elif row.note.lower().startswith(NOT_YET):
            yield f"{row.name}: '{NOT_YET}' is no reason"
        elif row.where and not (root / row.where).is_file():
            yield f"{row.name}: there is no {row.where}"
        elif row.where and not row.note and not is_mentioned(kind, row.name, (root / row.where).read_text()):
            yield f"{row.name}: {row.where} does not mention it; say in a note how it is there"
        elif row.is_ours and not row.where:
            yield f"{row.name}: what is ours is somewhere"


def unknown(rows: Iterable[Row], known: Iterable[str]) -> list[str]:
    """What the code has, and no line says where."""
    return sorted(set(known) - {row.name for row in rows if row.is_here})


def vanished(rows: Iterable[Row], known: Iterable[str]) -> list[str]:
    """What lines say is there, and the code has not."""
    return sorted({row.name for row in rows if row.is_here} - set(known))


def is_mentioned(kind: str, name: str, text: str) -> bool:
    """Whether a file has the name, in one of the shapes that it takes there."""
    if kind == "fields":  # `podPidsLimit` is `pod_pids_limit` in code
        text = text.replace("_", "").lower()
    return any(re.search(rf"(?<![A-Za-z0-9]){re.escape(shape)}(?![A-Za-z0-9])", text) for shape in _shapes(kind, name))


def _shapes(kind: str, name: str) -> Iterator[str]:
    if kind == "fields":
        yield name.rpartition(".")[2].lower()
    elif kind == "metrics":  # long ones are put together
        words_of = name.split("_")
        yield name
        yield from ("_".join(words_of[start:]) for start in range(1, len(words_of) - 2))
        yield from ("_".join(words_of[:end]) for end in range(2, len(words_of)))
    elif kind == "endpoints":
        yield "/" + name.partition("/")[2].partition("/")[0].strip("{}")
        yield name.partition(" ")[2]
    else:
        yield name.rstrip("*")
