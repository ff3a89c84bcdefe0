"""Metric families as values, and Prometheus' text format (0.0.4) of them, byte for byte as Go writes it.

By hand, since prometheus_client cannot: it appends `_total` to every counter, while cAdvisor has counters such as
`container_memory_failcnt`; and ten thousand series take it a second. This has no imports, so an agent that nobody
scrapes does not pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_MILLISECOND: Final = 1_000_000
_EXPONENT_FROM: Final = 1_000_000
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


@attrs.frozen
class Sample:
    """One value."""

    labels: tuple[str, ...]
    """The values, in the order of the family's names."""
    value: float
    at: int | None = None
    """Nanoseconds since 1970; None: no time is given, and the reader takes the time of reading."""


@attrs.frozen
class Family:
    """All series of one name."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    label_names: tuple[str, ...] = ()
    samples: Sequence[Sample] = ()


def text_of(families: Iterable[Family]) -> bytes:
    """By name, the series by their labels; families without series are left out, and of two with equal labels the
    second."""
    lines: list[str] = []
    for family in sorted(families, key=lambda one: one.name):
        if family.samples:
            lines.append(f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n")
            lines.append(f"# TYPE {family.name} {family.kind}\n")
            lines += _series(family)
    return "".join(lines).encode()


def go_float(value: float) -> str:
    """A number as Go's `strconv.FormatFloat(value, 'g', -1, 64)`: the fewest digits that read back as the same, with an
    exponent below -4 and from 6 on (`1e+06`)."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    if "e" in text:
        return text
    whole, _, fraction = text.partition(".")
    if abs(value) < _EXPONENT_FROM:
        return whole if fraction == "0" else text
    sign, whole = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    digits = (whole + fraction).rstrip("0")
    return f"{sign}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e+{len(whole) - 1:02d}"


def _series(family: Family) -> Iterable[str]:
    # Sorted by label name within a series, as Go's writer has it.
    order = sorted(range(len(family.label_names)), key=lambda index: family.label_names[index])
    names = [family.label_names[index] for index in order]
    seen = set()
    for sample in sorted(family.samples, key=lambda one: [one.labels[index] for index in order]):
        if sample.labels in seen:
            continue
        seen.add(sample.labels)
        pairs = ",".join(
            f'{name}="{sample.labels[index].translate(_ESCAPES)}"' for name, index in zip(names, order, strict=True)
        )
        labels = f"{{{pairs}}}" if pairs else ""
        at = "" if sample.at is None else f" {sample.at // _MILLISECOND}"
        yield f"{family.name}{labels} {go_float(sample.value)}{at}\n"
