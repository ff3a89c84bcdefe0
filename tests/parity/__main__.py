"""Write `docs/parity.md`, and say what is wrong with the tables (`make parity`)."""

from __future__ import annotations

from tests.parity import known
from tests.parity.report import PAGE, page
from tests.parity.tables import KINDS, problems, read, unknown, vanished


def main() -> int:
    """1 when something is wrong."""
    tables = {kind: read(kind) for kind in KINDS}
    PAGE.write_text(page(tables))
    found = []
    for kind, rows in tables.items():
        found += [f"{kind}: {problem}" for problem in problems(kind, rows)]
        there = known.BY_KIND[kind]()
        if kind != "fields":  # a field may be known without an effect
            found += [f"{kind}: {name}: the agent has it, and no line says where" for name in unknown(rows, there)]
        found += [f"{kind}: {name}: a line says where, and the agent has it not" for name in vanished(rows, there)]
    print(*found, sep="\n", end="\n" if found else "")
    return min(len(found), 1)


raise SystemExit(main())
