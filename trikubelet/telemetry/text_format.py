"""Two formats of text: Prometheus' 0.0.4 as Go's library writes it, and OpenMetrics 1.0.

Python's library writes two things of 0.0.4 differently from kubelets: it gives every
counter a name that ends in `_total` in its header, and it writes the bounds of buckets as `1.0` where Go has `1`, which
is part of the bucket's name. And it takes long: a page with the probes of 500 pods has 18,000 lines. So this writes, in
pieces, between which others may have their turn.

OpenMetrics knows no counter whose name does not end in `_total`: such keep their name here, and lose their type.
"""

from __future__ import annotations

import enum
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from trikubelet.telemetry.families import TOTAL, HistogramFamily, base_name, is_counter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trikubelet.telemetry.families import AnyFamily, HistogramSample, Sample
    from trikubelet.telemetry.metrics import Labels

PIECE: Final = 1000
"""Lines that are written at once: a millisecond or two."""
ROWS: Final = PIECE // 10
"""Histograms that are written at once."""
_MILLISECOND: Final = 1_000_000
"""Nanoseconds."""
_EXPONENT_FROM: Final = 1_000_000
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class TextFormat(enum.Enum):
    """By their content types."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def write_text(families: Iterable[AnyFamily], form: TextFormat = TextFormat.TEXT) -> Iterator[bytes]:
    """The families and their samples in their order, in pieces. What no UTF-8 can say becomes `?`: the formats have no
    escape for it."""
    return (text.encode(errors="replace") for text in _pieces(families, form))


def _pieces(families: Iterable[AnyFamily], form: TextFormat) -> Iterator[str]:
    for family in families:
        yield _header(family, form)
        if isinstance(family, HistogramFamily):
            for start in range(0, len(family.samples), ROWS):
                yield _histograms(family, family.samples[start : start + ROWS], form)
        else:
            for start in range(0, len(family.samples), PIECE):
                yield _lines(family, family.samples[start : start + PIECE], form)
    if form is TextFormat.OPENMETRICS:
        yield "# EOF\n"


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


def _header(family: AnyFamily, form: TextFormat) -> str:
    """Lines with the family's help and type."""
    kind: str = "histogram" if isinstance(family, HistogramFamily) else family.kind
    if form is TextFormat.TEXT:
        return f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n# TYPE {family.name} {kind}\n"
    if is_counter(family) and not family.name.endswith(TOTAL):
        kind = "unknown"
    name = base_name(family)
    return f"# HELP {name} {family.help.translate(_ESCAPES)}\n# TYPE {name} {kind}\n"


def _lines(family: AnyFamily, samples: Sequence[Sample], form: TextFormat) -> str:
    name, label_names, text = family.name, family.label_names, form is TextFormat.TEXT
    return "".join(
        [
            f"{name}{_labels(label_names, sample.labels)} {_number(sample.value, text)}{_time(sample.at, text)}\n"
            for sample in samples
        ]
    )


def _histograms(family: AnyFamily, samples: Sequence[HistogramSample], form: TextFormat) -> str:
    name, text, lines = family.name, form is TextFormat.TEXT, []
    for sample in samples:
        labels = _labels(family.label_names, sample.labels)
        before = f"{name}_bucket{labels[:-1]}," if labels else f"{name}_bucket{{"
        lines += [
            f'{before}le="{bound}"}} {_number(number, text)}\n'
            for bound, number in zip(_bounds(sample.bounds, text), sample.cumulated, strict=True)
        ]
        lines.append(f"{name}_count{labels} {_number(sample.cumulated[-1], text)}\n")
        lines.append(f"{name}_sum{labels} {_number(sample.sum, text)}\n")
    return "".join(lines)


@lru_cache(maxsize=100)
def _bounds(bounds: tuple[float, ...], text: bool) -> tuple[str, ...]:
    """As the label `le` has them."""
    return tuple(_number(float(bound), text) for bound in (*bounds, math.inf))


def _labels(names: tuple[str, ...], values: Labels) -> str:
    if not names:
        return ""
    pairs = [
        f'{name}="{value.translate(_ESCAPES) if _is_special(value) else value}"'
        for name, value in zip(names, values, strict=True)
    ]
    return "{" + ",".join(pairs) + "}"


def _is_special(value: str) -> bool:
    return "\\" in value or "\n" in value or '"' in value


def _number(value: float, text: bool) -> str:
    """OpenMetrics has `1.0` where the text has `1`."""
    if isinstance(value, int):
        return str(value) if text else f"{value}.0"
    written = go_float(value)
    return written if text or not written.lstrip("-").isdecimal() else f"{written}.0"


def _time(at: int | None, text: bool) -> str:
    """Milliseconds, or seconds with three digits behind the point."""
    if at is None:
        return ""
    milliseconds = at // _MILLISECOND
    return f" {milliseconds}" if text else f" {milliseconds // 1000}.{milliseconds % 1000:03d}"
