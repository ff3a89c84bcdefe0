"""The page `docs/parity.md`, made of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.parity.tables import KINDS, ROOT, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PAGE: Final = ROOT / "docs" / "parity.md"

_HEAD: Final = """\
# What of the kubelet is here

Made by `make parity` from the tables in `docs/parity/`: fields of the KubeletConfiguration (v1beta1) and of pods'
specs, flags, feature gates that concern a node, metrics, reasons of events and HTTP endpoints of Kubernetes 1.36. Tests
hold the tables against the code: a line says where something is, or why it is not, and what the code has is in a line.

`OutOf*` and other names with a star stand for all that begin so.
"""


def page(tables: Mapping[str, list[Row]]) -> str:
    """The whole text."""
    return "\n".join([_HEAD, *_summary(tables), *_everything(tables)])


def _summary(tables: Mapping[str, list[Row]]) -> Iterator[str]:
    yield "| | kubelet's | here | left out | ours only |"
    yield "|---|---|---|---|---|"
    for kind in KINDS:
        rows = tables[kind]
        theirs = [row for row in rows if not row.is_ours]
        here = sum(row.is_here for row in theirs)
        counts = (len(theirs), here, len(theirs) - here, len(rows) - len(theirs))
        yield f"| [{kind}](#{kind}) | " + " | ".join(map(str, counts)) + " |"
    yield ""


def _everything(tables: Mapping[str, list[Row]]) -> Iterator[str]:
    for kind in KINDS:
        yield f"## {kind.capitalize()}\n"
        yield from _table(tables[kind])
        yield ""


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| name | where | note |"
    yield "|---|---|---|"
    for row in rows:
        where = f"[{row.where.removeprefix('trikubelet/')}](../{row.where})" if row.where else ""
        yield f"| `{row.name}` | {where} | {row.note} |"
